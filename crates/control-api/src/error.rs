//! What can go wrong between a client and the daemon.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::v1::ErrorBody;

/// Why a client has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is nothing at the socket's path.
    #[error("There is no socket at {}", socket.display())]
    SocketMissing {
        /// The path.
        socket: PathBuf,
    },
    /// The caller may not connect to the socket, or not enter its folder.
    #[error("Permission denied at {}", socket.display())]
    PermissionDenied {
        /// The path.
        socket: PathBuf,
    },
    /// The path is there but no process listens on it.
    #[error("Nobody listens at {}", socket.display())]
    NobodyListens {
        /// The path.
        socket: PathBuf,
    },
    /// Connecting failed for another reason.
    #[error("Cannot connect to {}", socket.display())]
    Connect {
        /// The path.
        socket: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// No answer in time.
    #[error("No answer from {} within {} s", socket.display(), timeout.as_secs())]
    TimedOut {
        /// The path.
        socket: PathBuf,
        /// How long the client waited.
        timeout: Duration,
    },
    /// The connection broke, or what came back is not HTTP.
    #[error("The exchange with {} failed", socket.display())]
    Http {
        /// The path.
        socket: PathBuf,
        /// What the HTTP library said.
        source: hyper::Error,
    },
    /// The body of the answer broke off, or is larger than a client reads.
    #[error("The answer of {} cannot be read", socket.display())]
    Body {
        /// The path.
        socket: PathBuf,
        /// What the HTTP library said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The answer is HTTP but not of this API.
    #[error("The answer of {} is not one of vramd (HTTP status {status})", socket.display())]
    NotVram {
        /// The path.
        socket: PathBuf,
        /// HTTP status of the answer.
        status: u16,
        /// Where the body differs from what was expected.
        source: serde_json::Error,
    },
    /// The daemon answered that it cannot.
    #[error("{}", body.message)]
    Refused {
        /// HTTP status of the answer.
        status: u16,
        /// What it said.
        body: ErrorBody,
    },
    /// The request cannot be written as JSON.
    #[error("The request cannot be written as JSON")]
    Encode {
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The client itself could not start.
    #[error("Cannot start a client")]
    Start {
        /// What the system said.
        source: io::Error,
    },
}

impl ClientError {
    /// What the person at the command line can do about it, as a sentence.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::SocketMissing { .. } | Self::NobodyListens { .. } => Some(
                "Is vramd running? It prints the path it listens at when it starts; pass it with --control"
                    .into(),
            ),
            Self::PermissionDenied { .. } => {
                Some("The socket is open to its owner and group only: join the group, or run as root".into())
            }
            Self::TimedOut { .. } => Some("vramd is there but too busy or stuck; its log says more".into()),
            Self::NotVram { .. } => {
                Some("Another program listens there, or vramd and vramctl differ in version".into())
            }
            Self::Refused { body, .. } => body.hint.clone(),
            Self::Connect { .. }
            | Self::Http { .. }
            | Self::Body { .. }
            | Self::Encode { .. }
            | Self::Start { .. } => None,
        }
    }
}
