//! Serves the operator API of `control-api` over a Unix socket.
//!
//! One named thread runs everything: [`ControlServer::start`] returns when the socket is listening,
//! [`ControlServer::stop`] when the answers under way are out and the socket is gone. What is answered comes from a
//! [`ControlState`], which `vramd` implements.
//!
//! Who may ask is decided by the socket's permissions, owner and group; who does ask is traced. A connection carries one
//! request. A caller costs the daemon a bounded number of connections, bytes and seconds, and can neither panic nor
//! stop it, nor keep its owner out.
//!
//! What this crate does *not* do: know pools or slices. It passes on what it is given.
#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

mod admission;
mod body;
mod error;
mod limits;
mod routes;
mod server;
mod socket;
mod state;

pub use error::ServerError;
pub use limits::Limits;
pub use server::ControlServer;
pub use socket::ControlSocket;
pub use state::{ControlState, Refusal};
