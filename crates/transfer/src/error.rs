//! What can go wrong when bytes are moved.

use vram_gpu::GpuError;

/// Why a job did not do all it should.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TransferError {
    /// The job was cancelled before it began, or between two of its pieces.
    #[error("The transfer was cancelled")]
    Cancelled,
    /// The two sides of the job do not fit each other, or it would write where nothing can be: a bug of the caller.
    #[error("The transfer's two sides do not fit each other")]
    Mismatch,
    /// The host memory was lost under us.
    #[error("Guest memory vanished under the transfer")]
    HostMemoryLost,
    /// What was stored is not what is read.
    #[error("The bytes are damaged where they were stored")]
    DataLost,
    /// The bytes are where they were, and nothing is lost.
    #[error("The bytes cannot be reached now: {reason}")]
    Unavailable {
        /// Why, for people.
        reason: String,
    },
    /// The bytes must be on a GPU to be used, and every one that could take them is full.
    #[error("There is no GPU memory to bring the bytes to")]
    NoRoom,
    /// The bytes are somebody else's, who no longer shows them.
    #[error("The bytes are another slice's, which has revoked them")]
    Revoked,
    /// The bytes are somebody else's, who shows them for reading only.
    #[error("The bytes are another slice's, and to be read only")]
    ReadOnly,
    /// A GPU failed.
    #[error("A GPU failed the transfer")]
    Gpu(#[from] GpuError),
}
