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
    /// No shard and no tier: it shows bytes of another slice.
    Shared,
    /// It showed bytes of another slice, which revoked that.
    Revoked,
    /// It shows bytes of another slice, and is being given a copy of its own: on this GPU, or in a lower tier.
    Privatizing(Option<GpuId>),
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
            | Self::Privatizing(Some(gpu))
            | Self::Returning(gpu) => Some(gpu),
            Self::Unbacked
            | Self::Stored
            | Self::Shifting
            | Self::Shared
            | Self::Revoked
            | Self::Privatizing(None)
            | Self::Damaged
            | Self::Discarding
            | Self::Lost(_)
            | Self::Forgetting(_) => None,
        }
    }

    /// Whether its bytes are on their way from one place to another.
    pub fn is_moving(self) -> bool {
        matches!(
            self,
            Self::Moving { .. }
                | Self::Evicting(_)
                | Self::Promoting(_)
                | Self::Shifting
                | Self::Privatizing(_)
        )
    }

    /// Whether it takes room of the lower tiers and of no GPU.
    pub(crate) fn is_stored(self) -> bool {
        matches!(
            self,
            Self::Stored | Self::Shifting | Self::Damaged | Self::Discarding | Self::Privatizing(None)
        )
    }

    /// Whether what is seen in it are bytes of another slice, or were until that revoked them.
    pub(crate) fn is_shown(self) -> bool {
        matches!(self, Self::Shared | Self::Revoked | Self::Privatizing(_))
    }

    /// Whether it counts towards its slice's limit though nothing is behind it.
    pub(crate) fn takes_nothing(self) -> bool {
        matches!(self, Self::Shared | Self::Revoked)
    }

    /// Whether bytes of it that nobody uses can be given out.
    pub(crate) fn has_free_bytes(self) -> bool {
        matches!(self, Self::Backed(_) | Self::Stored) || self.is_moving() && !self.is_shown()
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
