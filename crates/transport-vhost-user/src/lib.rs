//! virtio-vram over vhost-user: one Unix socket is one slice, one connection at a time is one session.
//!
//! Built on the message layer of the `vhost` crate rather than on `vhost-user-backend`, whose handler owns queues and
//! threads in ways that let one guest's mistake end another's service, and cannot serve a second connection.
//!
//! [`SliceSocket`] listens; a connection gets a fresh device and session and a thread of its own, which speaks the
//! protocol and nothing else. When the connection ends, whichever way, the session ends with it and the socket waits
//! for the next frontend.
#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

mod connection;
mod error;
mod fd;
mod handler;
mod socket;
mod vring;

pub use error::SocketError;
pub use socket::{Factory, Reservation, SliceSocket, SocketConfig, SocketState};
