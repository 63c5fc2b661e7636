//! Regions: shard-sized windows of a band.

use std::fmt;

use vram_gpu::{DeviceRange, GpuId};

use crate::SliceId;

/// Number of a region in its band, from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionIndex(pub u32);

impl fmt::Display for RegionIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "region{}", self.0)
    }
}

/// What is behind a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionState {
    /// Nothing.
    Unbacked,
    /// A pending grant asked for a shard of this GPU.
    Backing(GpuId),
    /// A shard of this GPU.
    Backed(GpuId),
    /// A shard of one GPU, whose bytes are being moved to another.
    Moving {
        /// Where the bytes are.
        from: GpuId,
        /// Where they are to be.
        to: GpuId,
    },
    /// Nothing is in it any more; its shard is being taken away.
    Draining(GpuId),
    /// The GPU is lost, and with it the bytes.
    Lost(GpuId),
}

impl RegionState {
    /// The GPU whose shard is behind the region, or is to be; none if it is lost.
    pub fn holder(self) -> Option<GpuId> {
        match self {
            Self::Backing(gpu) | Self::Backed(gpu) | Self::Moving { from: gpu, .. } | Self::Draining(gpu) => {
                Some(gpu)
            }
            Self::Unbacked | Self::Lost(_) => None,
        }
    }
}

/// A region and the GPU whose shard is behind it, or is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backing {
    /// Which.
    pub region: RegionIndex,
    /// Its addresses: one shard long.
    pub range: DeviceRange,
    /// Where the shard is.
    pub gpu: GpuId,
}

/// The regions of one slice that a lost GPU took with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRegions {
    /// Whose.
    pub slice: SliceId,
    /// Which, in order of address; never empty.
    pub regions: Vec<Backing>,
}
