//! A Unix socket at a path: who may connect, who owns the path, when the file goes.
//!
//! A [`SocketFile`] listens where nobody else does. It replaces what a dead process left, and nothing else; it is never
//! open to more than its owner and group; and when it is dropped it removes its own file, and nobody else's.
//!
//! What this crate does *not* do: accept, or keep two processes apart that start in the same instant.
#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

mod error;
mod folder;
mod occupant;
mod socket_file;

pub use error::SocketFileError;
pub use folder::make_folder_of;
pub use nix::unistd::Gid;
pub use socket_file::SocketFile;
