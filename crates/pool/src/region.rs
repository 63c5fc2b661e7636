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
    /// A shard of this GPU, whose bytes are being stored in a lower tier.
    Evicting(GpuId),
    /// No shard: its bytes are in a lower tier.
    Stored,
    /// Its bytes are in a lower tier and being brought back to a shard of this GPU.
    Promoting(GpuId),
    /// Its bytes are being moved from one lower tier to another.
    Shifting,
    /// Its bytes were in a lower tier, and are damaged there.
    Damaged,
    /// Nothing is in it any more; what a lower tier has of it is being discarded.
    Discarding,
    /// Nothing is in it any more; its shard is being taken away.
    Returning(GpuId),
    /// The GPU is lost, and with it the bytes.
    Lost(GpuId),
    /// Nothing is in it any more; what is left of a lost GPU's shard is being cleared away.
    Forgetting(GpuId),
}

impl RegionState {
    /// The GPU whose shard is behind the region, or is to be; none if it is lost.
    pub fn holder(self) -> Option<GpuId> {
        match self {
            Self::Backing(gpu)
            | Self::Backed(gpu)
            | Self::Moving { from: gpu, .. }
            | Self::Evicting(gpu)
            | Self::Promoting(gpu)
            | Self::Returning(gpu) => Some(gpu),
            Self::Unbacked
            | Self::Stored
            | Self::Shifting
            | Self::Damaged
            | Self::Discarding
            | Self::Lost(_)
            | Self::Forgetting(_) => None,
        }
    }

    /// Whether its bytes are on their way from one place to another.
    pub fn is_moving(self) -> bool {
        matches!(self, Self::Moving { .. } | Self::Evicting(_) | Self::Promoting(_) | Self::Shifting)
    }

    /// Whether its bytes are in a lower tier only, or were until they were damaged.
    pub(crate) fn is_stored(self) -> bool {
        matches!(self, Self::Stored | Self::Shifting | Self::Damaged | Self::Discarding)
    }

    /// Whether bytes of it that nobody uses can be given out.
    pub(crate) fn has_free_bytes(self) -> bool {
        matches!(self, Self::Backed(_) | Self::Stored) || self.is_moving()
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
