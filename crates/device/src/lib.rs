//! The virtio-vram device, blind to its transport.
