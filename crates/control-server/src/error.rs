//! What can go wrong when the server starts or stops.

use std::io;
use std::path::PathBuf;

use vram_sandbox::{Panic, SpawnError};
use vram_socket_file::SocketFileError;

/// Why there is no server, or no clean end of one.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The file that keeps two daemons apart cannot be locked.
    #[error("Cannot lock {} for the operator API's socket", lock.display())]
    Lock {
        /// The file.
        lock: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Something else is where that file should be, and might be worth keeping.
    #[error(
        "{} is not a file that can be locked: move it, or give another path with --control",
        lock.display()
    )]
    NotALock {
        /// The path.
        lock: PathBuf,
    },
    /// Another process serves on this socket.
    #[error(
        "Another vramd serves the operator API at {}: stop it, or give this one another path with --control",
        socket.display()
    )]
    InUse {
        /// The socket.
        socket: PathBuf,
    },
    /// Nobody can listen there.
    #[error(transparent)]
    Socket(#[from] SocketFileError),
    /// The server's event loop cannot start.
    #[error("Cannot start the operator API's event loop")]
    EventLoop {
        /// What the system said.
        source: io::Error,
    },
    /// The server's thread cannot start.
    #[error("Cannot start the operator API's thread")]
    Spawn {
        /// What the system said.
        source: SpawnError,
    },
    /// The server's thread had panicked before it was stopped. Its socket is gone.
    #[error("The operator API had stopped serving")]
    Panicked {
        /// Why.
        source: Panic,
    },
    /// The server's thread does not end; it is left behind, and its socket with it.
    #[error("The operator API does not stop: a question to the daemon is not answered")]
    Stuck,
}
