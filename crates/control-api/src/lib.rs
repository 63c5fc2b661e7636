//! The operator API of vram: its versioned types, the sizes people write and read, and a client.
//!
//! The API is HTTP/1.1 with JSON over a Unix socket. [`v1`] holds what travels, [`Client`] fetches it,
//! `docs/openapi.json` describes it for other languages and is checked against the types by a test. Within a version
//! fields are only added; whoever reads ignores fields and words it does not know.
//!
//! The daemon, the command line and the configuration share [`ByteSize`], so that a size reads the same everywhere,
//! and [`Printable`], in which what others wrote is shown to people.
//!
//! What this crate does *not* do: serve the API (`control-server`), or decide what the numbers are (`vramd`).
#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

mod client;
mod error;
mod printable;
mod size;
pub mod v1;

pub use client::Client;
pub use error::ClientError;
pub use printable::{Printable, is_printable};
pub use size::{ByteSize, ByteSizeError};

/// Folder `vramd` puts its sockets in unless configured otherwise.
pub const DEFAULT_SOCKET_DIR: &str = "/run/vram";
/// Socket of the operator API unless configured otherwise; it lies in [`DEFAULT_SOCKET_DIR`].
pub const DEFAULT_CONTROL_SOCKET: &str = "/run/vram/control.sock";
