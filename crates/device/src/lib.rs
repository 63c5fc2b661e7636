//! The virtio-vram device, blind to its transport.
//!
//! A transport hands over rings, memory and the two event descriptors of a queue; this crate runs a thread for each
//! queue that takes chains, decodes requests, has the session carry them out, and puts answers into the used ring. The
//! event queue's thread goes the other way: it fills buffers with what the session has to tell.
//! Only a queue's own thread touches its ring; others post finished requests to it.
//!
//! What a guest can do wrong is answered with a status. What ends the session (a broken ring, guest memory that
//! vanished, a bug of ours) is a [`DeviceFailure`], told to the transport once.
#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

mod device;
mod event_queue;
mod memory;
mod queue;
mod request;
mod waker;

pub use device::{Device, DeviceFailure, DeviceSetup, QueueEvents, StartQueueError, StopError};
pub use memory::MemoryCell;
pub use queue::CallCell;
