//! Why there is no socket.

use std::io;
use std::path::PathBuf;

use nix::unistd::Gid;

/// Why nobody can listen at a path. What was there before is still there.
#[derive(Debug, thiserror::Error)]
pub enum SocketFileError {
    /// Its folder does not exist and cannot be made.
    #[error("The folder {} cannot be made", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Something listens there already.
    #[error("{} is already served by another process; stop it or choose another path", socket.display())]
    InUse {
        /// Where.
        socket: PathBuf,
    },
    /// There is something else, which might be worth keeping.
    #[error("{} exists and is not a socket; remove it or choose another path", socket.display())]
    NotASocket {
        /// Where.
        socket: PathBuf,
    },
    /// It cannot be given to the group that is to connect.
    #[error("The socket {} cannot be given to the group {group}", socket.display())]
    Group {
        /// Where.
        socket: PathBuf,
        /// To whom.
        group: Gid,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It cannot be made.
    #[error("The socket {} cannot be made", socket.display())]
    Listen {
        /// Where.
        socket: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}
