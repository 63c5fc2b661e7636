//! Where a run of bytes lies.

use std::fmt;
use std::sync::Arc;

use vram_gpu::{DeviceRange, GpuId};
use vram_guest_memory::HostSpan;

use crate::TransferError;

/// A store whose bytes can only be read, and take their time: a disk, a server, compressed memory.
pub trait ColdSource: Send + Sync {
    /// Reads bytes from offset on, as many as `to` holds. May block. On `Ok` every byte of `to` was written, on an
    /// error any may have been. Called on threads of the engine, by several at once.
    fn read(&self, offset_bytes: u64, to: &HostSpan) -> Result<(), TransferError>;
}

/// A run of bytes that lie in one place.
#[derive(Clone)]
pub enum Part {
    /// Device memory that lies in one shard.
    Gpu {
        /// Where.
        range: DeviceRange,
        /// On which GPU.
        gpu: GpuId,
    },
    /// Host memory that stays put: read and written in place.
    Host(HostSpan),
    /// Bytes of a store. Can be read only.
    Cold {
        /// The store.
        source: Arc<dyn ColdSource>,
        /// Where in it.
        offset_bytes: u64,
        /// How many.
        len_bytes: u64,
    },
}

impl Part {
    /// Device memory that lies in one shard.
    pub fn gpu(range: DeviceRange, gpu: GpuId) -> Self {
        Self::Gpu { range, gpu }
    }

    /// Bytes of a store.
    pub fn cold(source: Arc<dyn ColdSource>, offset_bytes: u64, len_bytes: u64) -> Self {
        Self::Cold { source, offset_bytes, len_bytes }
    }

    /// Bytes.
    pub fn len_bytes(&self) -> u64 {
        match self {
            Self::Gpu { range, .. } => range.len_bytes,
            Self::Host(span) => span.len_bytes() as u64,
            Self::Cold { len_bytes, .. } => *len_bytes,
        }
    }

    /// The `len_bytes` bytes at `offset` of this part; `None` if there are fewer bytes.
    pub(crate) fn slice(&self, offset: u64, len_bytes: u64) -> Option<Self> {
        offset.checked_add(len_bytes).filter(|end| *end <= self.len_bytes())?;
        Some(match self {
            Self::Gpu { range, gpu } => {
                let start = range.start.checked_add(offset)?;
                Self::Gpu { range: DeviceRange { start, len_bytes }, gpu: *gpu }
            }
            Self::Host(span) => {
                Self::Host(span.part(usize::try_from(offset).ok()?, usize::try_from(len_bytes).ok()?).ok()?)
            }
            Self::Cold { source, offset_bytes, .. } => {
                let offset_bytes = offset_bytes.checked_add(offset)?;
                Self::Cold { source: Arc::clone(source), offset_bytes, len_bytes }
            }
        })
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpu { range, gpu } => {
                f.debug_struct("Gpu").field("range", range).field("gpu", gpu).finish()
            }
            Self::Host(span) => f.debug_tuple("Host").field(span).finish(),
            Self::Cold { offset_bytes, len_bytes, .. } => f
                .debug_struct("Cold")
                .field("offset_bytes", offset_bytes)
                .field("len_bytes", len_bytes)
                .finish_non_exhaustive(),
        }
    }
}
