//! virtio-vram over vhost-user.
