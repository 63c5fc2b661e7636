//! Ring walking over virtio-queue with must-complete tokens.
