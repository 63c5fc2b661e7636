//! Tiering: regions leave the GPUs for a lower tier and come back, at unchanged addresses.

use vram_gpu::GpuId;

use crate::band::Region;
use crate::room::{Room, When};
use crate::slice::Slice;
use crate::{
    AllocError, Backing, Demand, Pool, PoolTime, RegionIndex, RegionState, ReleasePlan, Residence, SliceId,
    TierCopy, Victim,
};

/// Of all shards one in so many, as a power of two, is kept free.
const KEPT_FREE_SHIFT: u32 = 6;
/// Regions of the lower tiers in which none is born, so that evicted and promoted ones can change places.
const KEPT_FOR_EXCHANGES: u32 = 2;

/// A region whose bytes are to leave its GPU. End it with [`Pool::finish_eviction`] or [`Pool::abort_eviction`]; until
/// then nobody can use the region.
#[must_use = "an eviction that is neither finished nor aborted keeps its region from being used"]
#[derive(Debug, PartialEq, Eq)]
pub struct Eviction {
    slice: SliceId,
    from: Backing,
    copy: TierCopy,
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

    /// Whether a lower tier has its bytes already.
    pub fn copy(&self) -> TierCopy {
        self.copy
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
        self.slices.get(&slice).is_some_and(|slice| slice.can_be_evicted(region, true, |_| true))
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
        found.evicting.add(gpu, 1);
        Some(Eviction { slice, from: found.band.backing(region, gpu), copy: found.copy_below(region) })
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
        let Eviction { slice, from, .. } = eviction;
        let region = self.slices.get(slice).and_then(|slice| slice.band.region(from.region));
        region.is_some_and(|region| region.state == RegionState::Evicting(from.gpu))
    }

    fn end_eviction(&mut self, eviction: &Eviction, has_left: bool) -> Option<ReleasePlan> {
        let can_leave = self.can_leave(eviction);
        let Eviction { slice, from, .. } = eviction;
        let found = self.slices.get_mut(slice)?;
        if can_leave {
            found.evicting.subtract(from.gpu, 1);
        }
        if can_leave && has_left {
            found.held.subtract(from.gpu, 1);
            self.gpus.give_back_shard(from.gpu);
            found.set_stored(from.region);
        } else if can_leave {
            let copy = found.copy_below(from.region);
            found.set_backed(from.region, from.gpu, copy);
        }
        self.release_if_empty(*slice, from.region)
    }

    /// Begins to bring a region back to a GPU, chosen as for a new one; `None` if it is not in a lower tier, nothing
    /// live is left in it, or a pending grant reaches into it. An error if no GPU has room that the slice may take.
    pub fn plan_promotion(
        &mut self,
        slice: SliceId,
        region: RegionIndex,
    ) -> Result<Option<Promotion>, AllocError> {
        let found = self.slices.get(&slice).ok_or(AllocError::NoSuchSlice { slice })?;
        if !found.can_leave_tier(region) {
            return Ok(None);
        }
        let mut room = Room::of(&self.gpus, self.slices.values(), found, When::Now);
        let Some(gpu) = room.take(&self.gpus, found) else {
            return Err(AllocError::OutOfMemory { requested_bytes: self.shard_bytes, free_bytes: 0 });
        };
        let Some(found) = self.slices.get_mut(&slice) else { return Ok(None) };
        found.band.set_state(region, RegionState::Promoting(gpu));
        found.stored = found.stored.saturating_sub(1);
        found.promoting = found.promoting.saturating_add(1);
        found.held.add(gpu, 1);
        self.gpus.take_shard(gpu);
        Ok(Some(Promotion { slice, to: found.band.backing(region, gpu) }))
    }

    /// Whether the GPU a region is to come to is still there, and the region still on its way.
    pub fn can_come(&self, promotion: &Promotion) -> bool {
        self.region(promotion.slice, promotion.to.region) == Some(RegionState::Promoting(promotion.to.gpu))
    }

    /// The bytes are in a shard of the GPU, which is behind the region's addresses, and also in the lower tier if that
    /// has kept its copy. Returns a plan if the region became empty meanwhile; carry it out and finish it. If the GPU was
    /// lost meanwhile it is [`Self::abort_promotion`].
    pub fn finish_promotion(&mut self, promotion: Promotion, copy: TierCopy) -> Option<ReleasePlan> {
        self.end_promotion(&promotion, Some(copy))
    }

    /// The bytes stay in the lower tier, and the shard is given back. If the GPU refused one, it is believed to have no
    /// more than is in use. Returns a plan if the region became empty meanwhile; carry it out and finish it.
    pub fn abort_promotion(&mut self, promotion: Promotion, refused: bool) -> Option<ReleasePlan> {
        let plan = self.end_promotion(&promotion, None);
        if refused {
            self.shrink_capacity(promotion.to.gpu);
        }
        plan
    }

    fn end_promotion(&mut self, promotion: &Promotion, has_come: Option<TierCopy>) -> Option<ReleasePlan> {
        let Promotion { slice, to } = promotion;
        let found = self.slices.get_mut(slice)?;
        let state = found.band.region(to.region).map(|region| region.state);
        if state == Some(RegionState::Promoting(to.gpu)) {
            found.promoting = found.promoting.saturating_sub(1);
            if let Some(copy) = has_come {
                found.set_backed(to.region, to.gpu, copy);
            } else {
                found.held.subtract(to.gpu, 1);
                self.gpus.give_back_shard(to.gpu);
                found.set_stored(to.region);
            }
        }
        self.release_if_empty(*slice, to.region)
    }

    /// The region to evict so that a slice can have one more shard, with whose it is: the coldest of those who borrow, or
    /// of the slice's own, that lies where the slice may have its shard. One that somebody uses just now only if no other
    /// is left. `keep` are regions of the slice that must stay.
    pub fn victim_for(
        &self,
        slice: SliceId,
        keep: &[RegionIndex],
        now: PoolTime,
    ) -> Option<(SliceId, Victim)> {
        let wants = self.slices.get(&slice)?;
        let useful = |gpu| {
            let stays = wants.config.placement.stays_home();
            (!stays || gpu == wants.home) && self.gpus.get(gpu).is_some_and(|usage| !usage.draining)
        };
        let payers = || self.slices.values().filter(|payer| payer.id == slice || payer.borrows(&self.gpus));
        let coldest = |in_use: bool| {
            let victims = payers().filter_map(|payer| {
                let kept = |region| payer.id == slice && keep.contains(&region);
                payer
                    .heat
                    .victim(now, |region| !kept(region) && payer.can_be_evicted(region, in_use, useful))
                    .map(|victim| (payer.id, victim))
            });
            victims.min_by_key(|(_, victim)| victim.demand)
        };
        coldest(false).or_else(|| coldest(true))
    }

    /// Whether a slice has regions that are in lower tiers only.
    pub fn has_stored(&self, slice: SliceId) -> bool {
        self.slices.get(&slice).is_some_and(|slice| slice.stored > 0)
    }

    /// Whether a region is in a lower tier and nobody uses it there.
    pub fn is_stored_unused(&self, slice: SliceId, region: RegionIndex) -> bool {
        let found = self.slices.get(&slice).and_then(|slice| slice.band.region(region));
        found.is_some_and(|region| region.state == RegionState::Stored && region.pins == 0)
    }

    /// Whether a region that is used in its tier is worth promoting: there is room beyond what is kept free for whoever
    /// borrows next, or a victim that is worth less.
    pub fn is_worth_promoting(
        &self,
        slice: SliceId,
        region: RegionIndex,
        keep: &[RegionIndex],
        now: PoolTime,
    ) -> bool {
        let Some(found) = self.slices.get(&slice) else { return false };
        let promised = found.held.total() < found.guarantee_shards;
        let kept_free = if promised { 0 } else { self.kept_free() };
        if self.room_for(slice) > kept_free {
            return found.heat.should_promote(region, None, now);
        }
        let victim = self.victim_for(slice, keep, now).map(|(_, victim)| victim);
        victim.is_some() && found.heat.should_promote(region, victim, now)
    }

    /// Shards kept free for whoever borrows next, as far as tiers take what is on them.
    pub fn kept_free(&self) -> u32 {
        if self.tier_regions == 0 { 0 } else { self.gpus.capacity_total() >> KEPT_FREE_SHIFT }
    }

    /// How much use a region gets, comparable between slices.
    pub fn demand(&self, slice: SliceId, region: RegionIndex, now: PoolTime) -> Option<Demand> {
        self.slices.get(&slice).map(|slice| slice.heat.demand(region, now))
    }

    /// Gives up what a lower tier has of a region that is on a GPU; false if it is not, or the tier has nothing true.
    pub fn drop_copy(&mut self, slice: SliceId, region: RegionIndex) -> bool {
        let Some(found) = self.slices.get_mut(&slice) else { return false };
        let backed =
            matches!(found.band.region(region).map(|region| region.state), Some(RegionState::Backed(_)));
        let droppable = backed && found.copy_below(region) == TierCopy::Valid;
        if droppable {
            found.heat.insert(region, Residence::Gpu(TierCopy::Stale));
        }
        droppable
    }

    /// Shards a slice may take now without anything being evicted.
    pub fn room_for(&self, slice: SliceId) -> u32 {
        let Some(found) = self.slices.get(&slice) else { return 0 };
        Room::of(&self.gpus, self.slices.values(), found, When::Now).shards()
    }

    /// A region of a slice that has more on GPUs than its limit, since that was lowered: its coldest.
    pub fn next_over_limit(&self, now: PoolTime) -> Option<(SliceId, RegionIndex)> {
        self.slices.values().filter(|slice| slice.exceeds_limit()).find_map(|slice| {
            let victim = slice.heat.victim(now, |region| slice.can_be_evicted(region, false, |_| true))?;
            Some((slice.id, victim.region))
        })
    }

    /// A region that is to leave a GPU that is drained, and cannot go to another; or of those who borrow one that makes
    /// room for it.
    pub fn next_off_drained(&self, now: PoolTime) -> Option<(SliceId, RegionIndex)> {
        self.slices.values().find_map(|slice| {
            let (region, _) = slice.first_to_leave(&self.gpus)?;
            if self.room_for(slice.id) > 0 {
                return None;
            }
            if slice.borrows(&self.gpus) && slice.can_be_evicted(region, true, |_| true) {
                return Some((slice.id, region));
            }
            self.victim_for(slice.id, &[region], now).map(|(payer, victim)| (payer, victim.region))
        })
    }

    /// The coldest region of those who borrow, if fewer shards than `low` are left that anybody may borrow, or will be
    /// when all that is leaving has left.
    pub fn next_ahead_of_demand(&self, low: u32, now: PoolTime) -> Option<(SliceId, RegionIndex)> {
        let when = When::AfterEvictions;
        let (mut free, mut missing) = (0u32, 0u32);
        for gpu in self.gpus.iter().filter(|gpu| !gpu.draining) {
            free = free.saturating_add(gpu.capacity_shards.saturating_sub(gpu.used_shards));
            for slice in self.slices.values() {
                free = free.saturating_add(slice.leaving_shards(gpu.id, when));
            }
        }
        for slice in self.slices.values() {
            missing = missing.saturating_add(slice.missing_shards(&self.gpus, when));
        }
        if free.saturating_sub(missing) >= low {
            return None;
        }
        let useful = |gpu| self.gpus.get(gpu).is_some_and(|usage| !usage.draining);
        let victims = self.slices.values().filter(|slice| slice.borrows(&self.gpus)).filter_map(|slice| {
            let victim = slice.heat.victim(now, |region| slice.can_be_evicted(region, false, useful))?;
            Some((slice.id, victim))
        });
        victims.min_by_key(|(_, victim)| victim.demand).map(|(slice, victim)| (slice, victim.region))
    }

    /// Begins to move a region's bytes from one lower tier to another; false if it is not there, nothing live is left in
    /// it, or a pending grant reaches into it. From now on it cannot be
    /// pinned, and its bytes may be copied once [`Pool::is_quiet`] says that nobody uses them. End it with
    /// [`Self::finish_shift`].
    pub fn begin_shift(&mut self, slice: SliceId, region: RegionIndex) -> bool {
        let Some(found) = self.slices.get_mut(&slice) else { return false };
        if !found.can_leave_tier(region) {
            return false;
        }
        found.band.set_state(region, RegionState::Shifting);
        true
    }

    /// The bytes of a region are in one lower tier or the other. Returns a plan if the region became empty meanwhile;
    /// carry it out and finish it.
    pub fn finish_shift(&mut self, slice: SliceId, region: RegionIndex) -> Option<ReleasePlan> {
        let found = self.slices.get_mut(&slice)?;
        if found.band.region(region)?.state == RegionState::Shifting {
            found.settle_stored(region);
        }
        self.release_if_empty(slice, region)
    }

    /// The bytes of a region that is in a lower tier, or on its way from there, are damaged: nobody can use them any
    /// more, and no new ones come there until all are freed. A promotion or shift of it that is under way is to be ended at
    /// once, and changes nothing. Returns a plan if the region became empty meanwhile; carry it out and finish it.
    pub fn mark_damaged(&mut self, slice: SliceId, region: RegionIndex) -> Option<ReleasePlan> {
        let found = self.slices.get_mut(&slice)?;
        match found.band.region(region)?.state {
            RegionState::Promoting(gpu) => {
                found.promoting = found.promoting.saturating_sub(1);
                found.held.subtract(gpu, 1);
                self.gpus.give_back_shard(gpu);
                found.stored = found.stored.saturating_add(1);
            }
            RegionState::Stored | RegionState::Shifting => {}
            _ => return None,
        }
        found.band.set_state(region, RegionState::Damaged);
        found.heat.remove(region);
        found.map.close_free(found.band.region_span(region));
        self.release_if_empty(slice, region)
    }

    /// Regions that can still be born in the lower tiers, beside what is there and on its way there and back. Two are left
    /// for bytes that change places.
    pub(crate) fn births_left(&self, when: When) -> u32 {
        let births = self.tier_regions.saturating_sub(KEPT_FOR_EXCHANGES);
        self.slices.values().fold(births, |births, slice| births.saturating_sub(slice.in_tiers(when)))
    }

    /// Takes away a region that became empty while its bytes were on their way.
    pub(crate) fn release_if_empty(&mut self, slice: SliceId, region: RegionIndex) -> Option<ReleasePlan> {
        let slice = self.slices.get_mut(&slice)?;
        let mut plan = ReleasePlan::empty(slice.id);
        slice.release_if_empty(region, &mut plan).then_some(plan)
    }
}

impl Slice {
    /// Regions that take room of the lower tiers; copies of what is on a GPU do not count.
    fn in_tiers(&self, when: When) -> u32 {
        let leaving = if when == When::Now { 0 } else { self.discarding };
        let stored = self.stored.saturating_sub(leaving);
        stored.saturating_add(self.promoting).saturating_add(self.evicting.total())
    }

    /// Whether a region's bytes could be moved from the lower tier they are in: some are live, and no grant that may come
    /// to nothing reaches into it.
    fn can_leave_tier(&self, region: RegionIndex) -> bool {
        let window = self.band.region_span(region);
        let granted = self.pending.is_some_and(|span| !span.intersection(window).is_empty());
        let in_use = |region: &Region| region.state == RegionState::Stored && region.live_bytes > 0;
        !granted && self.band.region(region).is_some_and(in_use)
    }

    /// Whether a region could be evicted from a GPU a condition admits; of those in use, only if asked for.
    fn can_be_evicted(&self, region: RegionIndex, in_use: bool, admits: impl Fn(GpuId) -> bool) -> bool {
        self.band.region(region).is_some_and(|found| match found.state {
            RegionState::Backed(gpu) => {
                admits(gpu)
                    && found.live_bytes > 0
                    && found.quarantined_bytes == 0
                    && (in_use || found.pins == 0)
            }
            _ => false,
        })
    }
}
