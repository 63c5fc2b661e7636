//! What a pool and a slice are made from.

use std::fmt;

use vram_gpu::{GpuId, Topology};

/// Granularity of device memory: shards, and the start of a band, are multiples of it.
pub(crate) const GRANULARITY_BYTES: u64 = 2 << 20;
/// Smallest shard.
pub(crate) const MIN_SHARD_BYTES: u64 = GRANULARITY_BYTES;
/// Largest shard.
pub(crate) const MAX_SHARD_BYTES: u64 = 1 << 30;

/// Size of a shard unless the operator says otherwise.
const DEFAULT_SHARD_BYTES: u64 = 64 << 20;

/// The GPUs of a pool and how they are cut.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Bytes of a shard: a multiple of 2 MiB, from 2 MiB to 1 GiB.
    pub shard_bytes: u64,
    /// The GPUs, each once, in any order.
    pub gpus: Vec<GpuCapacity>,
    /// How they reach each other; it knows every GPU named in `gpus`.
    pub topology: Topology,
    /// Regions the tiers below the GPUs take together; zero if there are none.
    pub tier_regions: u32,
}

impl PoolConfig {
    /// The default shard size: 64 MiB.
    pub const DEFAULT_SHARD_BYTES: u64 = DEFAULT_SHARD_BYTES;
}

/// How much of one GPU belongs to the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuCapacity {
    /// Which.
    pub id: GpuId,
    /// Shards.
    pub shards: u32,
}

/// Where the new regions of a slice go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// Never leave the home GPU.
    Local,
    /// The home GPU while it has room, then the nearest GPU that has.
    #[default]
    Spill,
    /// One GPU after the other: each new region goes to the GPU with room that holds least of the slice, the nearest to
    /// home of several.
    Spread,
    /// The fullest GPU that has room, the nearest to home of several, so that others stay empty.
    Pack,
}

impl Placement {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Local, Self::Spill, Self::Spread, Self::Pack];

    /// The word for it in configurations.
    pub fn word(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Spill => "spill",
            Self::Spread => "spread",
            Self::Pack => "pack",
        }
    }

    /// Whether only the home GPU will do.
    pub(crate) fn stays_home(self) -> bool {
        self == Self::Local
    }
}

/// A tenant's share, as the operator states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceConfig {
    /// Name for people; the pool does not ask it to be unique.
    pub name: String,
    /// Bytes that are always there for the slice; counted in whole shards, rounded up.
    pub guarantee_bytes: u64,
    /// Most bytes of shards the slice may hold; counted in whole shards, rounded up.
    pub limit_bytes: u64,
    /// Where its regions go.
    pub placement: Placement,
    /// The GPU its regions go to first, and from which the others are near or far; `None` lets the pool choose by load.
    pub home: Option<GpuId>,
}

/// Number of a slice in its pool; never used again after the slice is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SliceId(pub u32);

impl fmt::Display for SliceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slice{}", self.0)
    }
}
