//! What can go wrong when a thread is started.

use std::io;

/// Why there is no thread.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// No thread can have this name.
    #[error("The thread name {name:?} is empty or contains a zero byte")]
    BadName {
        /// The name.
        name: String,
    },
    /// The system has no thread left, or no memory for one.
    #[error("Cannot start the thread {name}")]
    Thread {
        /// Its name.
        name: String,
        /// What the system said.
        source: io::Error,
    },
}
