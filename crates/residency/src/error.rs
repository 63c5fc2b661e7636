//! What can go wrong between pool and GPUs.

use vram_gpu::GpuError;
use vram_pool::{AllocError, PoolError, ShareError};
use vram_transfer::{EngineError, TransferError};

/// Why the memory of the GPUs cannot be managed at all.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A GPU cannot be asked for its memory.
    #[error("A GPU cannot be asked for its memory")]
    Gpu(#[from] GpuError),
    /// The pool refuses the configuration.
    #[error("The pool cannot be made")]
    Pool(#[from] PoolError),
    /// The lanes cannot be made.
    #[error("The transfer engine cannot start")]
    Engine(#[from] EngineError),
    /// The thread that moves memory cannot be started.
    #[error("The thread that moves memory between GPUs cannot be started")]
    Thread(#[source] vram_sandbox::SpawnError),
    /// The shard size does not fit the GPUs.
    #[error(
        "A shard of {shard_bytes} bytes is no multiple of the GPUs' granularity, {granularity_bytes} bytes"
    )]
    ShardSize {
        /// Asked for.
        shard_bytes: u64,
        /// What the backend says.
        granularity_bytes: u64,
    },
}

/// Why a slice cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SliceError {
    /// The pool refuses it.
    #[error("The pool refuses the slice")]
    Pool(#[from] PoolError),
    /// Its band cannot be reserved.
    #[error("No address space for the slice can be reserved")]
    Gpu(#[from] GpuError),
    /// Its release thread cannot be started.
    #[error("The thread that takes freed memory back cannot be started")]
    Thread(#[source] vram_sandbox::SpawnError),
    /// No address space is that large.
    #[error("A limit of {limit_bytes} bytes needs more address space than there is")]
    TooLarge {
        /// The limit.
        limit_bytes: u64,
    },
}

/// Why an allocation was not made. Nothing changed.
#[derive(Debug, thiserror::Error)]
pub enum AllocateError {
    /// The pool refuses it.
    #[error("The pool refuses the allocation")]
    Pool(#[from] AllocError),
    /// A GPU failed in a way that is not plain lack of memory.
    #[error("A GPU failed while memory was being set up")]
    Gpu(#[from] GpuError),
    /// New memory could not be cleared.
    #[error("New memory could not be cleared")]
    Scrub(#[from] TransferError),
    /// Freed memory of the slice did not come back in time.
    #[error("Freed memory of the slice did not come back within {waited_ms} ms")]
    ReleaseStuck {
        /// How long it was waited for.
        waited_ms: u64,
    },
}

/// Why a share was not attached. Nothing changed.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The pool refuses it.
    #[error("The pool refuses to show the share")]
    Share(#[from] ShareError),
    /// Freed memory of the slice did not come back in time.
    #[error("Freed memory of the slice did not come back within {waited_ms} ms")]
    ReleaseStuck {
        /// How long it was waited for.
        waited_ms: u64,
    },
}

impl AllocateError {
    /// The GPU's error behind it, if there is one.
    pub(crate) fn gpu_error(&self) -> Option<&GpuError> {
        match self {
            Self::Gpu(error) | Self::Scrub(TransferError::Gpu(error)) => Some(error),
            Self::Pool(_) | Self::Scrub(_) | Self::ReleaseStuck { .. } => None,
        }
    }
}
