//! Room: how many shards, and of which GPUs, a slice may take.
//!
//! A shard may be taken while what is left covers what others still miss of their guarantees: on each GPU what slices
//! miss that cannot leave it, and in sum what all miss. Inside its own guarantee a slice only has to mind the former,
//! because its own claim shrinks with every shard it takes.

use std::cmp::Reverse;

use vram_gpu::GpuId;

use crate::gpu::{Gpus, ShardCounts};
use crate::slice::Slice;
use crate::{GpuUsage, Placement};

/// The shards one slice may take.
#[derive(Debug)]
pub(crate) struct Room {
    /// On each GPU.
    free: ShardCounts,
    /// In sum.
    total: u32,
    /// What was taken of it, on each GPU.
    taken: ShardCounts,
}

/// At which time room is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Now,
    /// Once all shards and regions of lower tiers that are on their way back have arrived.
    AfterReturns,
    /// Once those have arrived, too, whose bytes are on their way to a lower tier.
    AfterEvictions,
}

impl Room {
    /// What `slice` may take, `slices` being all slices.
    pub(crate) fn of<'a>(
        gpus: &Gpus,
        slices: impl Iterator<Item = &'a Slice>,
        slice: &Slice,
        when: When,
    ) -> Self {
        let mut leaving = ShardCounts::default();
        let mut missing_local = ShardCounts::default();
        let mut missing = 0u32;
        for other in slices {
            if when != When::Now {
                for gpu in gpus.iter() {
                    leaving.add(gpu.id, other.leaving_shards(gpu.id, when));
                }
            }
            if other.id == slice.id {
                continue;
            }
            if other.config.placement.stays_home() {
                missing_local.add(other.home, other.missing_shards(gpus, when));
            } else {
                missing = missing.saturating_add(other.missing_shards(gpus, when));
            }
        }
        let mut room = Self { free: ShardCounts::default(), total: 0, taken: ShardCounts::default() };
        let mut free_total = 0u32;
        let mut takeable = 0u32;
        for gpu in gpus.iter() {
            if gpu.draining {
                continue;
            }
            let free = free_shards(gpu).saturating_add(leaving.of(gpu.id));
            let kept = missing_local.of(gpu.id).min(free);
            missing = missing.saturating_add(kept);
            free_total = free_total.saturating_add(free);
            if !slice.config.placement.stays_home() || gpu.id == slice.home {
                room.free.set(gpu.id, free.saturating_sub(kept));
                takeable = takeable.saturating_add(free.saturating_sub(kept));
            }
        }
        let own = slice.missing_shards(gpus, when);
        let borrowable = free_total.saturating_sub(missing).saturating_sub(own);
        room.total = takeable.min(own.saturating_add(borrowable));
        room
    }

    /// How many shards in sum.
    pub(crate) fn shards(&self) -> u32 {
        self.total
    }

    /// How many of one GPU.
    pub(crate) fn on(&self, gpu: GpuId) -> u32 {
        self.free.of(gpu).min(self.total)
    }

    /// The GPU of the slice's next shard, as its placement has it.
    pub(crate) fn take(&mut self, gpus: &Gpus, slice: &Slice) -> Option<GpuId> {
        self.total = self.total.checked_sub(1)?;
        let gpu = match slice.config.placement {
            Placement::Local | Placement::Spill => {
                gpus.nearest(slice.home, |usage| Reverse(self.free.of(usage.id)), |usage| self.has(usage))
            }
            Placement::Spread => {
                let on = |gpu| slice.held.of(gpu).saturating_add(self.taken.of(gpu));
                gpus.first_by(slice.home, |usage| on(usage.id), |usage| self.has(usage))
            }
            Placement::Pack => {
                gpus.first_by(slice.home, |usage| self.free.of(usage.id), |usage| self.has(usage))
            }
        }?;
        self.free.subtract(gpu, 1);
        self.taken.add(gpu, 1);
        Some(gpu)
    }

    fn has(&self, gpu: &GpuUsage) -> bool {
        self.free.of(gpu.id) > 0
    }
}

/// Shards of a GPU that nobody holds.
fn free_shards(gpu: &GpuUsage) -> u32 {
    gpu.capacity_shards.saturating_sub(gpu.used_shards)
}
