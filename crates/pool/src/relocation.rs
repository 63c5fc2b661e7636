//! Relocation: a region's bytes move to another GPU, its addresses stay.
//!
//! A region that is to move can no longer be pinned ([`Pool::pin`]); when the last pin is gone its bytes are copied, the
//! new shard takes the old one's place, and it can be pinned again.

use vram_gpu::GpuId;

use crate::room::{Room, When};
use crate::slice::Slice;
use crate::{Backing, DrainError, Pool, RegionIndex, RegionState, ReleasePlan, SliceId};

/// A region that is to move. End it with [`Pool::finish_relocation`] or [`Pool::abort_relocation`]; until then nobody
/// can use the region.
#[must_use = "a relocation that is neither finished nor aborted keeps its region from being used"]
#[derive(Debug, PartialEq, Eq)]
pub struct Relocation {
    slice: SliceId,
    from: Backing,
    to: GpuId,
}

impl Relocation {
    /// Whose.
    pub fn slice(&self) -> SliceId {
        self.slice
    }

    /// The region, its addresses, and where its shard is.
    pub fn from(&self) -> Backing {
        self.from
    }

    /// Where its bytes are to go.
    pub fn to(&self) -> GpuId {
        self.to
    }
}

impl Pool {
    /// Moves nothing new to a GPU, and makes [`Self::next_relocation`] name what is to leave it. Refused if what is
    /// promised to slices does not fit the others, or if a slice cannot leave.
    pub fn begin_drain(&mut self, gpu: GpuId) -> Result<(), DrainError> {
        let usage = self.gpus.get(gpu).copied().ok_or(DrainError::NoSuchGpu { gpu })?;
        if usage.lost {
            return Err(DrainError::Lost { gpu });
        }
        if usage.draining {
            return Ok(());
        }
        let stays = |slice: &&Slice| slice.config.placement.stays_home() && slice.home == gpu;
        if let Some(slice) = self.slices.values().find(stays) {
            return Err(DrainError::Local { gpu, slice: slice.config.name.clone() });
        }
        let guaranteed =
            self.slices.values().fold(0u32, |sum, slice| sum.saturating_add(slice.guarantee_shards));
        let left = self.gpus.capacity_total().saturating_sub(usage.capacity_shards);
        if guaranteed > left || left == 0 {
            return Err(DrainError::GuaranteesDoNotFit {
                gpu,
                guaranteed_bytes: self.in_bytes(guaranteed),
                left_bytes: self.in_bytes(left),
            });
        }
        self.gpus.set_draining(gpu, true);
        self.settle_promises();
        Ok(())
    }

    /// Takes a GPU that was drained, or is being drained, back into use.
    pub fn end_drain(&mut self, gpu: GpuId) -> Result<(), DrainError> {
        self.gpus.get(gpu).ok_or(DrainError::NoSuchGpu { gpu })?;
        self.gpus.set_draining(gpu, false);
        self.settle_promises();
        Ok(())
    }

    /// The next region that is to leave a GPU and for which there is room elsewhere. From now on it cannot be pinned.
    ///
    /// Slices that miss something of their guarantee on the GPUs that stay go first.
    pub fn next_relocation(&mut self) -> Option<Relocation> {
        if !self.gpus.iter().any(|gpu| gpu.draining && gpu.used_shards > 0) {
            return None;
        }
        let mut order: Vec<_> = self.slices.values().collect();
        order.sort_by_key(|slice| (slice.missing_shards(&self.gpus, When::Now) == 0, slice.id));
        let found = order.into_iter().find_map(|slice| {
            let (region, from) = slice.first_to_leave(&self.gpus)?;
            let mut room = Room::of(&self.gpus, self.slices.values(), slice, When::Now);
            Some((slice.id, region, from, room.take(&self.gpus, slice)?))
        });
        let (id, region, from, to) = found?;
        let slice = self.slices.get_mut(&id)?;
        slice.begin_moving(&mut self.gpus, region, from, to);
        Some(Relocation { slice: id, from: slice.band.backing(region, from), to })
    }

    /// Begins to move a region to a GPU somebody would rather have it on; `None` if it cannot move, or there is no room
    /// that the slice may take there. It takes no more than it gives back, but not there: only what nobody is promised.
    pub fn plan_relocation(&mut self, slice: SliceId, region: RegionIndex, to: GpuId) -> Option<Relocation> {
        let found = self.slices.get(&slice)?;
        let RegionState::Backed(from) = found.band.region(region)?.state else { return None };
        let movable = found.band.region(region)?.quarantined_bytes == 0 && from != to;
        let stays = found.config.placement.stays_home() && to != found.home;
        if !movable || stays || Room::of(&self.gpus, self.slices.values(), found, When::Now).on(to) == 0 {
            return None;
        }
        let slice = self.slices.get_mut(&slice)?;
        slice.begin_moving(&mut self.gpus, region, from, to);
        Some(Relocation { slice: slice.id, from: slice.band.backing(region, from), to })
    }

    /// The bytes are where they were to go, the new shard is behind the addresses, and the old one is given back. Returns
    /// a plan if the region became empty meanwhile; carry it out and finish it.
    ///
    /// If either GPU was lost meanwhile, it is [`Self::abort_relocation`].
    pub fn finish_relocation(&mut self, relocation: Relocation) -> Option<ReleasePlan> {
        self.end_relocation(&relocation, true)
    }

    /// The bytes stay where they are, and the new shard is given back. If the new GPU refused one, it is believed to
    /// have no more than is in use. Returns a plan if the region became empty meanwhile; carry it out and finish it.
    pub fn abort_relocation(&mut self, relocation: Relocation, refused: bool) -> Option<ReleasePlan> {
        let plan = self.end_relocation(&relocation, false);
        if refused {
            self.shrink_capacity(relocation.to);
        }
        plan
    }

    /// Whether both GPUs of a relocation are still there.
    pub fn is_possible(&self, relocation: &Relocation) -> bool {
        let Relocation { slice, from, to } = relocation;
        self.gpus.get(*to).is_some_and(|gpu| !gpu.lost)
            && self.slices.get(slice).is_some_and(|slice| slice.is_moving(*from, *to))
    }

    fn end_relocation(&mut self, relocation: &Relocation, has_moved: bool) -> Option<ReleasePlan> {
        let Relocation { slice, from, to } = relocation;
        let slice = self.slices.get_mut(slice)?;
        slice.end_moving(&mut self.gpus, *from, *to, has_moved);
        let id = slice.id;
        self.release_if_empty(id, from.region)
    }
}
