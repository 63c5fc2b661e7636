//! What is in use.

use vram_gpu::GpuId;

use crate::{Placement, Pool, SliceId};

/// Bytes on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuBytes {
    /// Which.
    pub gpu: GpuId,
    /// Bytes.
    pub bytes: u64,
}

/// What one slice uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceUsage {
    /// The limit, in whole shards.
    pub limit_bytes: u64,
    /// The guarantee, in whole shards.
    pub guarantee_bytes: u64,
    /// Bytes of live allocations and of a pending grant, each rounded up to 256.
    pub allocated_bytes: u64,
    /// Bytes freed and not yet released, rounded likewise.
    pub quarantined_bytes: u64,
    /// Bytes of shards the slice holds: backed, being backed, or returning. The limit counts these,
    /// `stored_bytes` and `attached_bytes`.
    pub backed_bytes: u64,
    /// Bytes of regions that lie in a lower tier only.
    pub stored_bytes: u64,
    /// Bytes of regions that show bytes of another slice, or did until it revoked them.
    pub attached_bytes: u64,
    /// Live allocations.
    pub allocations: u64,
    /// `backed_bytes` by GPU; GPUs with none are left out.
    pub gpus: Vec<GpuBytes>,
    /// The GPU its regions go to first.
    pub home: GpuId,
    /// Where its regions go.
    pub placement: Placement,
}

/// What is used of one GPU, in shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuUsage {
    /// Which.
    pub id: GpuId,
    /// Shards it is believed to have: as configured, less after a refusal, none once lost.
    pub capacity_shards: u32,
    /// Shards held by slices.
    pub used_shards: u32,
    /// Shards promised to slices as part of their guarantee.
    pub promised_shards: u32,
    /// Whether what is on it is to leave, and nothing new may come.
    pub draining: bool,
    /// Whether the GPU is lost.
    pub lost: bool,
}

impl Pool {
    /// What a slice uses.
    pub fn usage(&self, slice: SliceId) -> Option<SliceUsage> {
        let slice = self.slices.get(&slice)?;
        let gpus =
            self.gpus.iter().map(|gpu| GpuBytes { gpu: gpu.id, bytes: self.in_bytes(slice.held.of(gpu.id)) });
        Some(SliceUsage {
            limit_bytes: self.in_bytes(slice.limit_shards),
            guarantee_bytes: self.in_bytes(slice.guarantee_shards),
            allocated_bytes: slice.live_bytes,
            quarantined_bytes: slice.quarantined_bytes,
            backed_bytes: self.in_bytes(slice.held.total()),
            stored_bytes: self.in_bytes(slice.stored),
            attached_bytes: self.in_bytes(slice.shown),
            allocations: slice.allocations(),
            gpus: gpus.filter(|gpu| gpu.bytes > 0).collect(),
            home: slice.home,
            placement: slice.config.placement,
        })
    }
}
