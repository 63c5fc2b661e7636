//! What can go wrong between pool and GPUs.

use std::io;

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

/// Why something asked of an image was not done.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// There is another image of this name.
    #[error("There is an image {name:?} already; remove it first, or choose another name")]
    NameTaken {
        /// Which.
        name: String,
    },
    /// There is no such image.
    #[error("There is no image {name:?}")]
    NoSuchImage {
        /// Which.
        name: String,
    },
    /// Its bytes are not all there yet.
    #[error("The image {name:?} is still being loaded")]
    Loading {
        /// Which.
        name: String,
    },
    /// Somebody shows it.
    #[error("The image {name:?} is attached {attached} times; free those allocations first")]
    Attached {
        /// Which.
        name: String,
        /// Allocations that show some of it.
        attached: usize,
    },
    /// Those who attach it could change it for all.
    #[error("The image {name:?} cannot be written to by all; show it for reading, or copies of it on write")]
    Writable {
        /// Which.
        name: String,
    },
    /// Its bytes cannot be read from where they are to come from.
    #[error("The image cannot be read at byte {offset_bytes}")]
    Source {
        /// How far it was read.
        offset_bytes: u64,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// There is no host memory to read it into.
    #[error("There is no memory to read the image into")]
    Buffer(#[source] io::Error),
    /// The slice for its memory cannot be made.
    #[error("No slice for the image can be made")]
    Slice(#[from] SliceError),
    /// There is no memory for it.
    #[error("There is no memory for the image")]
    Allocate(#[from] AllocateError),
    /// Its bytes cannot be brought to where they are to be.
    #[error("The image could not be written")]
    Transfer(#[from] TransferError),
    /// It cannot be exported.
    #[error("The image cannot be shown")]
    Share(#[from] ShareError),
    /// It cannot be attached.
    #[error("The image cannot be attached")]
    Attach(#[from] AttachError),
    /// Its memory did not come back in time.
    #[error("The memory of the image {name:?} is not given back yet; remove it again")]
    InUse {
        /// Which.
        name: String,
        /// What is still there.
        #[source]
        source: PoolError,
    },
}
