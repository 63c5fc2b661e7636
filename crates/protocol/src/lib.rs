//! The guest ABI of virtio-vram: configuration space, requests, responses, statuses and limits.
//!
//! This crate turns bytes into typed requests and typed answers into bytes, and does nothing else: no I/O, no
//! state, no allocation by a size a guest chose. `docs/protocol.md` is the contract in words, the C header
//! `guest-driver-shim/include/virtio_vram.h` the same contract for drivers; `xtask abi` compares that header with
//! the tables here, field by field.
//!
//! Everything on the wire is little-endian, whatever the host or the guest.
#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

mod config;
mod constants;
mod reply;
mod request;
mod status;
mod wire;

pub use config::ConfigSpace;
pub use constants::*;
pub use reply::{EventMessage, Extent, GpuEntry, HelloReply, InfoReply, QueryReply, Response};
pub use request::{
    Advice, Advise, Alloc, ContextOpen, Copy, Fill, Header, Hello, Opcode, Query, QueueKind, Range, Request,
    RequestError,
};
pub use status::Status;
pub use wire::{Field, Layout, layouts};
