//! Steps to, from and between the lower tiers, and who is to leave the GPUs.

use super::*;

impl ModelSlice {
    /// The `nth` region of those in a state, if there are any and `nth` is odd; any region else.
    pub(super) fn pick(&self, nth: usize, wanted: impl Fn(&RegionState) -> bool) -> usize {
        let matching: Vec<_> = (0..self.regions.len()).filter(|at| wanted(&self.regions[*at])).collect();
        match matching.len() {
            count if count > 0 && nth % 2 == 1 => matching[nth / 2 % count],
            _ => nth / 2 % self.regions.len(),
        }
    }

    fn is_evictable(&self, region: usize, shard_bytes: u64) -> bool {
        let (live, quarantined) = self.cells_in(region, shard_bytes);
        matches!(self.regions[region], RegionState::Backed(_)) && live > 0 && quarantined == 0
    }

    /// Whether the region's shard is on its way out of the slice's hands.
    fn is_leaving(&self, region: usize, shard_bytes: u64) -> bool {
        match self.regions[region] {
            RegionState::Returning(_) | RegionState::Evicting(_) => true,
            RegionState::Backed(_) => self.cells_in(region, shard_bytes).0 == 0,
            _ => false,
        }
    }

    /// Whether bytes that are live could be moved about in the tiers.
    fn can_leave_tier(&self, region: usize, shard_bytes: u64) -> bool {
        let window = self.window(region, shard_bytes);
        let granted = self.grant.as_ref().is_some_and(|grant| {
            let (start, end) = (grant.range().start.0, grant.range().end().unwrap().0);
            start < window.end().unwrap().0 && window.start.0 < end
        });
        self.regions[region] == RegionState::Stored && self.cells_in(region, shard_bytes).0 > 0 && !granted
    }
}

impl Model {
    pub(super) fn evict(&mut self, index: usize, nth: usize) {
        let slice = &self.slices[index];
        let region = slice.pick(nth, |state| matches!(state, RegionState::Backed(_)));
        let evictable = slice.is_evictable(region, self.shard_bytes);
        assert_eq!(self.pool.is_evictable(slice.id, RegionIndex(region as u32)), evictable);
        self.begin_eviction(index, region, evictable);
    }

    fn begin_eviction(&mut self, index: usize, region: usize, evictable: bool) {
        let slice = &mut self.slices[index];
        let eviction = self.pool.plan_eviction(slice.id, RegionIndex(region as u32));
        assert_eq!(eviction.is_some(), evictable);
        if let (Some(eviction), RegionState::Backed(gpu)) = (eviction, slice.regions[region]) {
            assert_eq!(eviction.from().gpu, gpu);
            slice.regions[region] = RegionState::Evicting(gpu);
            self.evictions.push(eviction);
        }
    }

    pub(super) fn promote(&mut self, index: usize, nth: usize) {
        let slice = &self.slices[index];
        let region = slice.pick(nth, |state| *state == RegionState::Stored);
        let wanted = slice.can_leave_tier(region, self.shard_bytes);
        let place = self.place(index, 1);
        match self.pool.plan_promotion(slice.id, RegionIndex(region as u32)) {
            Ok(Some(promotion)) => {
                assert!(wanted);
                assert_eq!(place, [promotion.to().gpu]);
                self.slices[index].regions[region] = RegionState::Promoting(promotion.to().gpu);
                self.promotions.push(promotion);
            }
            Ok(None) => assert!(!wanted),
            Err(AllocError::OutOfMemory { .. }) => assert!(wanted && place.is_empty()),
            Err(other) => panic!("unexpected {other}"),
        }
    }

    pub(super) fn shift(&mut self, index: usize, nth: usize) {
        let slice = &mut self.slices[index];
        let region = slice.pick(nth, |state| *state == RegionState::Stored);
        let wanted = slice.can_leave_tier(region, self.shard_bytes);
        assert_eq!(self.pool.begin_shift(slice.id, RegionIndex(region as u32)), wanted);
        if wanted {
            slice.regions[region] = RegionState::Shifting;
            self.shifts.push((index, region));
        }
    }

    pub(super) fn end_tiering(&mut self, nth: usize, end: TieringEnd) {
        let (evictions, promotions) = (self.evictions.len(), self.promotions.len());
        let all = evictions + promotions + self.shifts.len();
        if all == 0 {
            return;
        }
        let nth = nth % all;
        let plan = if nth < evictions {
            self.end_eviction(nth, end)
        } else if nth < evictions + promotions {
            self.end_promotion(nth - evictions, end)
        } else {
            self.end_shift(nth - evictions - promotions)
        };
        self.adopt(plan);
    }

    fn end_eviction(&mut self, nth: usize, end: TieringEnd) -> Option<ReleasePlan> {
        let eviction = &self.evictions[nth];
        let slice = self.slices.iter_mut().find(|slice| slice.id == eviction.slice()).unwrap();
        let (region, gpu) = (eviction.from().region.0 as usize, eviction.from().gpu);
        let done = matches!(end, TieringEnd::Finish(_));
        if done && !self.pool.is_quiet(slice.id, eviction.from().region) {
            return None;
        }
        let evicting = slice.regions[region] == RegionState::Evicting(gpu);
        if evicting && done {
            slice.regions[region] = RegionState::Stored;
            slice.copies[region] = TierCopy::Stale;
        } else if evicting {
            slice.regions[region] = RegionState::Backed(gpu);
        }
        let eviction = self.evictions.swap_remove(nth);
        assert_eq!(self.pool.can_leave(&eviction), evicting);
        if done { self.pool.finish_eviction(eviction) } else { self.pool.abort_eviction(eviction) }
    }

    fn end_promotion(&mut self, nth: usize, end: TieringEnd) -> Option<ReleasePlan> {
        let promotion = &self.promotions[nth];
        let slice = self.slices.iter_mut().find(|slice| slice.id == promotion.slice()).unwrap();
        let (region, gpu) = (promotion.to().region.0 as usize, promotion.to().gpu);
        if matches!(end, TieringEnd::Finish(_)) && !self.pool.is_quiet(slice.id, promotion.to().region) {
            return None;
        }
        if slice.regions[region] == RegionState::Promoting(gpu) {
            slice.regions[region] = match end {
                TieringEnd::Finish(_) => RegionState::Backed(gpu),
                TieringEnd::Abort | TieringEnd::Refuse => RegionState::Stored,
            };
            if let (TieringEnd::Finish(copy), true) = (end, self.tier_regions > 0) {
                slice.copies[region] = copy;
            }
        }
        let promotion = self.promotions.swap_remove(nth);
        if end == TieringEnd::Refuse {
            self.capacity[gpu.index()] = self.used(gpu);
        }
        match end {
            TieringEnd::Finish(copy) => self.pool.finish_promotion(promotion, copy),
            TieringEnd::Abort => self.pool.abort_promotion(promotion, false),
            TieringEnd::Refuse => self.pool.abort_promotion(promotion, true),
        }
    }

    fn end_shift(&mut self, nth: usize) -> Option<ReleasePlan> {
        let (index, region) = self.shifts[nth];
        let slice = &mut self.slices[index];
        if slice.pins[region] > 0 {
            return None;
        }
        if slice.regions[region] == RegionState::Shifting {
            slice.regions[region] = RegionState::Stored;
        }
        self.shifts.swap_remove(nth);
        self.pool.finish_shift(slice.id, RegionIndex(region as u32))
    }

    pub(super) fn damage(&mut self, index: usize, nth: usize) {
        let below = |state: &RegionState| {
            matches!(state, RegionState::Stored | RegionState::Shifting | RegionState::Promoting(_))
        };
        let slice = &mut self.slices[index];
        let region = slice.pick(nth, below);
        if below(&slice.regions[region]) {
            slice.regions[region] = RegionState::Damaged;
        }
        let plan = self.pool.mark_damaged(slice.id, RegionIndex(region as u32));
        self.adopt(plan);
    }

    /// Shards a slice has on GPUs that are not drained, when all that is leaving has left.
    fn staying(&self, slice: &ModelSlice) -> u32 {
        let shards = |draining: bool| {
            let counts = |region: &usize| {
                holder(slice.regions[*region]).is_some_and(|gpu| self.draining[gpu.index()] == draining)
                    && !slice.is_leaving(*region, self.shard_bytes)
            };
            (0..slice.regions.len()).filter(counts).count() as u32
        };
        shards(false) + self.incoming(slice).min(shards(true))
    }

    /// Regions that may be evicted for a slice, of itself and of those who then still have their guarantee; with how many
    /// use each.
    fn victims(&self, wants: Option<usize>, keep: &[RegionIndex]) -> Vec<(SliceId, RegionIndex, u32)> {
        let mut victims = Vec::new();
        for (index, slice) in self.slices.iter().enumerate() {
            let own = wants == Some(index);
            if self.tier_regions == 0 || (!own && self.staying(slice) <= slice.guarantee) {
                continue;
            }
            for (region, state) in slice.regions.iter().enumerate() {
                let RegionState::Backed(gpu) = *state else { continue };
                let at = RegionIndex(region as u32);
                let wants = wants.map(|wants| &self.slices[wants]);
                let useful = wants.is_none_or(|wants| !wants.local || wants.home == gpu)
                    && !self.draining[gpu.index()];
                let kept = own && keep.contains(&at);
                if useful && !kept && slice.is_evictable(region, self.shard_bytes) {
                    victims.push((slice.id, at, slice.pins[region]));
                }
            }
        }
        victims
    }

    pub(super) fn make_room(&mut self, index: usize, keep: u32) {
        let id = self.slices[index].id;
        assert_eq!(self.pool.room_for(id) as usize, self.place(index, u32::MAX).len());
        // Every region whose bit is set; the last one stands for all behind it.
        let bit = |at: &u32| keep >> at.min(&31) & 1 == 1;
        let keep: Vec<_> =
            (0..self.slices[index].regions.len() as u32).filter(bit).map(RegionIndex).collect();
        let mut candidates = self.victims(Some(index), &keep);
        if candidates.iter().any(|(.., users)| *users == 0) {
            candidates.retain(|(.., users)| *users == 0);
        }
        let found = self.pool.victim_for(id, &keep, self.now);
        self.evict_one_of(found.map(|(slice, victim)| (slice, victim.region)), candidates);
        if let Some((id, victim)) = found {
            let slice = self.slices.iter().find(|slice| slice.id == id).unwrap();
            assert_eq!(victim.copy, slice.copies[victim.region.0 as usize]);
        }
    }

    /// What is named is a candidate, and something is named if there is one. It is then evicted.
    fn evict_one_of(
        &mut self,
        named: Option<(SliceId, RegionIndex)>,
        candidates: Vec<(SliceId, RegionIndex, u32)>,
    ) {
        let Some((id, region)) = named else {
            assert_eq!(candidates, [], "something could be evicted");
            return;
        };
        assert!(candidates.iter().any(|(slice, at, _)| (*slice, *at) == (id, region)), "not to be evicted");
        let index = self.slices.iter().position(|slice| slice.id == id).unwrap();
        self.begin_eviction(index, region.0 as usize, true);
    }

    pub(super) fn enforce_limits(&mut self) {
        let mut candidates = Vec::new();
        for slice in &self.slices {
            let stays = |region: &usize| {
                holder(slice.regions[*region]).is_some() && !slice.is_leaving(*region, self.shard_bytes)
            };
            let on_gpus = (0..slice.regions.len()).filter(stays).count() as u32;
            let evictable =
                |region: &usize| slice.is_evictable(*region, self.shard_bytes) && slice.pins[*region] == 0;
            let regions = (0..slice.regions.len()).filter(evictable);
            if candidates.is_empty() && self.tier_regions > 0 && on_gpus > slice.limit {
                candidates.extend(regions.map(|region| (slice.id, RegionIndex(region as u32), 0)));
            }
        }
        let named = self.pool.next_over_limit(self.now);
        self.evict_one_of(named, candidates);
    }

    pub(super) fn evict_ahead(&mut self, low: u32) {
        let usable = (0u16..3).filter(|gpu| !self.draining[usize::from(*gpu)]);
        let leaving = |gpu: u16| {
            let of = |slice: &ModelSlice| {
                let leaves = |region: &usize| {
                    holder(slice.regions[*region]) == Some(GpuId(gpu))
                        && slice.is_leaving(*region, self.shard_bytes)
                };
                (0..slice.regions.len()).filter(leaves).count() as u32
            };
            self.slices.iter().map(of).sum::<u32>()
        };
        let free: u32 =
            usable.map(|gpu| self.capacity[usize::from(gpu)] - self.used(GpuId(gpu)) + leaving(gpu)).sum();
        let missing: u32 =
            self.slices.iter().map(|slice| slice.guarantee.saturating_sub(self.staying(slice))).sum();
        let mut candidates = self.victims(None, &[]);
        candidates.retain(|(.., users)| *users == 0 && free.saturating_sub(missing) < low);
        let named = self.pool.next_ahead_of_demand(low, self.now);
        self.evict_one_of(named, candidates);
    }
}
