//! Tiering: regions leave the GPUs for a lower tier and come back, at unchanged addresses.

use crate::room::{Room, When};
use crate::{AllocError, Backing, Pool, RegionIndex, RegionState, ReleasePlan, SliceId};

/// A region whose bytes are to leave its GPU. End it with [`Pool::finish_eviction`] or [`Pool::abort_eviction`]; until
/// then nobody can use the region.
#[must_use = "an eviction that is neither finished nor aborted keeps its region from being used"]
#[derive(Debug, PartialEq, Eq)]
pub struct Eviction {
    slice: SliceId,
    from: Backing,
}

/// A region whose bytes are to come back to a GPU. End it with [`Pool::finish_promotion`] or
/// [`Pool::abort_promotion`]; until then nobody can use the region.
#[must_use = "a promotion that is neither finished nor aborted keeps its region from being used"]
#[derive(Debug, PartialEq, Eq)]
pub struct Promotion {
    slice: SliceId,
    to: Backing,
}

impl Eviction {
    /// Whose.
    pub fn slice(&self) -> SliceId {
        self.slice
    }

    /// The region, its addresses, and where its shard is.
    pub fn from(&self) -> Backing {
        self.from
    }
}

impl Promotion {
    /// Whose.
    pub fn slice(&self) -> SliceId {
        self.slice
    }

    /// The region, its addresses, and where its shard is to be.
    pub fn to(&self) -> Backing {
        self.to
    }
}

impl Pool {
    /// Whether a region could be evicted: it is on a GPU, has live bytes, and nothing of it is being freed.
    pub fn is_evictable(&self, slice: SliceId, region: RegionIndex) -> bool {
        let found = self.slices.get(&slice).and_then(|slice| slice.band.region(region));
        found.is_some_and(|region| {
            matches!(region.state, RegionState::Backed(_))
                && region.live_bytes > 0
                && region.quarantined_bytes == 0
        })
    }

    /// Begins to take a region off its GPU; `None` if it cannot be evicted. From now on it cannot be pinned. Its bytes
    /// may be copied once [`Pool::is_quiet`] says that nobody uses them.
    pub fn plan_eviction(&mut self, slice: SliceId, region: RegionIndex) -> Option<Eviction> {
        if !self.is_evictable(slice, region) {
            return None;
        }
        let found = self.slices.get_mut(&slice)?;
        let gpu = found.band.region(region)?.state.holder()?;
        found.band.set_state(region, RegionState::Evicting(gpu));
        Some(Eviction { slice, from: found.band.backing(region, gpu) })
    }

    /// The bytes are in a lower tier and the shard is given back. Returns a plan if the region became empty meanwhile;
    /// carry it out and finish it. If the region was lost with its GPU meanwhile it is [`Self::abort_eviction`]: see
    /// [`Self::can_leave`].
    pub fn finish_eviction(&mut self, eviction: Eviction) -> Option<ReleasePlan> {
        self.end_eviction(&eviction, true)
    }

    /// The bytes stay where they are. Returns a plan if the region became empty meanwhile; carry it out and finish it.
    pub fn abort_eviction(&mut self, eviction: Eviction) -> Option<ReleasePlan> {
        self.end_eviction(&eviction, false)
    }

    /// Whether the bytes of a region that is being evicted are still there.
    pub fn can_leave(&self, eviction: &Eviction) -> bool {
        let Eviction { slice, from } = eviction;
        let region = self.slices.get(slice).and_then(|slice| slice.band.region(from.region));
        region.is_some_and(|region| region.state == RegionState::Evicting(from.gpu))
    }

    fn end_eviction(&mut self, eviction: &Eviction, has_left: bool) -> Option<ReleasePlan> {
        let can_leave = self.can_leave(eviction);
        let Eviction { slice, from } = eviction;
        let found = self.slices.get_mut(slice)?;
        if can_leave && has_left {
            found.held.subtract(from.gpu, 1);
            self.gpus.give_back_shard(from.gpu);
            found.set_stored(from.region);
        } else if can_leave {
            found.set_backed(from.region, from.gpu);
        }
        self.release_if_empty(*slice, from.region)
    }

    /// Begins to bring a region back to a GPU, chosen as for a new one; `None` if it is not in a lower tier, or nothing
    /// live is left in it. An error if no GPU has room that the slice may take.
    pub fn plan_promotion(
        &mut self,
        slice: SliceId,
        region: RegionIndex,
    ) -> Result<Option<Promotion>, AllocError> {
        let found = self.slices.get(&slice).ok_or(AllocError::NoSuchSlice { slice })?;
        let is_stored =
            |region: &crate::band::Region| region.state == RegionState::Stored && region.live_bytes > 0;
        if !found.band.region(region).is_some_and(is_stored) {
            return Ok(None);
        }
        let mut room = Room::of(&self.gpus, self.slices.values(), found, When::Now);
        let Some(gpu) = room.take(&self.gpus, found) else {
            return Err(AllocError::OutOfMemory { requested_bytes: self.shard_bytes, free_bytes: 0 });
        };
        let Some(found) = self.slices.get_mut(&slice) else { return Ok(None) };
        found.band.set_state(region, RegionState::Promoting(gpu));
        found.stored = found.stored.saturating_sub(1);
        found.held.add(gpu, 1);
        self.gpus.take_shard(gpu);
        Ok(Some(Promotion { slice, to: found.band.backing(region, gpu) }))
    }

    /// The bytes are in a shard of the GPU, which is behind the region's addresses. Returns a plan if the region became
    /// empty meanwhile; carry it out and finish it. If the GPU was lost meanwhile it is [`Self::abort_promotion`].
    pub fn finish_promotion(&mut self, promotion: Promotion) -> Option<ReleasePlan> {
        self.end_promotion(&promotion, true)
    }

    /// The bytes stay in the lower tier, and the shard is given back. If the GPU refused one, it is believed to have no
    /// more than is in use. Returns a plan if the region became empty meanwhile; carry it out and finish it.
    pub fn abort_promotion(&mut self, promotion: Promotion, refused: bool) -> Option<ReleasePlan> {
        let plan = self.end_promotion(&promotion, false);
        if refused {
            self.shrink_capacity(promotion.to.gpu);
        }
        plan
    }

    fn end_promotion(&mut self, promotion: &Promotion, has_come: bool) -> Option<ReleasePlan> {
        let Promotion { slice, to } = promotion;
        let found = self.slices.get_mut(slice)?;
        let state = found.band.region(to.region).map(|region| region.state);
        if state == Some(RegionState::Promoting(to.gpu)) {
            if has_come {
                found.set_backed(to.region, to.gpu);
            } else {
                found.held.subtract(to.gpu, 1);
                self.gpus.give_back_shard(to.gpu);
                found.set_stored(to.region);
            }
        }
        self.release_if_empty(*slice, to.region)
    }

    /// Takes away a region that became empty while its bytes were on their way.
    pub(crate) fn release_if_empty(&mut self, slice: SliceId, region: RegionIndex) -> Option<ReleasePlan> {
        let slice = self.slices.get_mut(&slice)?;
        let mut plan = ReleasePlan::empty(slice.id);
        slice.release_if_empty(region, &mut plan).then_some(plan)
    }
}
