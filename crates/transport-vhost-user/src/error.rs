//! What can go wrong with a slice's socket.

use std::path::PathBuf;

use vram_socket_file::SocketFileError;

/// Why a socket cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Nobody can listen there.
    #[error(transparent)]
    File(#[from] SocketFileError),
    /// Its thread cannot be started.
    #[error("The thread that serves {} cannot be started", path.display())]
    Thread {
        /// Where.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: vram_sandbox::SpawnError,
    },
}

/// A message whose contents no frontend may send.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MessageError {
    /// A value that is never right.
    #[error("The frontend sent a {what} that is not valid")]
    NotValid {
        /// What is wrong.
        what: &'static str,
    },
    /// A ring the device does not have: the VMM was told of more queues than the slice serves.
    #[error(
        "The frontend uses ring {index}, but the device has {queues}: start the VMM with {queues} queues (QEMU: \
         num_vqs={queues}), or give the slice more with queues="
    )]
    NoSuchRing {
        /// Asked for.
        index: u32,
        /// There are.
        queues: u16,
    },
}
