//! A slice's books: its band, what lies in it, and the shards it holds.

use std::collections::BTreeSet;

use vram_gpu::{DeviceRange, GpuId};

use crate::address_map::AddressMap;
use crate::attachment::Attachments;
use crate::band::{Band, Region};
use crate::gpu::{Gpus, ShardCounts};
use crate::room::When;
use crate::span::Span;
use crate::{
    AllocError, Backing, GpuUsage, Heat, RegionIndex, RegionState, ReleasePlan, Residence, ShareId,
    SliceConfig, SliceId, TierCopy,
};

/// One slice. Its methods keep the counts of regions, slice and GPUs in step.
#[derive(Debug)]
pub(crate) struct Slice {
    pub(crate) id: SliceId,
    pub(crate) config: SliceConfig,
    pub(crate) home: GpuId,
    pub(crate) limit_shards: u32,
    /// What it may hold until it holds less: more than the limit after that was lowered.
    pub(crate) most_shards: u32,
    pub(crate) guarantee_shards: u32,
    pub(crate) band: Band,
    /// What each byte of the band is.
    pub(crate) map: AddressMap,
    /// What the pending grant reserves.
    pub(crate) pending: Option<Span>,
    pub(crate) live_bytes: u64,
    pub(crate) quarantined_bytes: u64,
    /// Shards held: backing, backed or returning.
    pub(crate) held: ShardCounts,
    /// Shards that regions on other GPUs are moving to; not held yet.
    pub(crate) incoming: ShardCounts,
    /// Regions whose bytes are in a lower tier only.
    pub(crate) stored: u32,
    /// Those of them whose bytes are being discarded.
    pub(crate) discarding: u32,
    /// Regions on their way back from a lower tier.
    pub(crate) promoting: u32,
    /// Shards of the held whose bytes are on their way to a lower tier.
    pub(crate) evicting: ShardCounts,
    /// How much use each region gets; of no region if there are no tiers.
    pub(crate) heat: Heat,
    /// What it shows of other slices.
    pub(crate) attachments: Attachments,
    /// Regions of it that take neither a shard nor room of a tier.
    pub(crate) shown: u32,
    /// What it exports: where that begins, and as which share.
    pub(crate) exports: BTreeSet<(u64, ShareId)>,
    /// Shards of the held that go back unless something new is put in: returning, or backed and nothing live in them.
    pub(crate) returning: ShardCounts,
}

/// Where bytes that are no longer live go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vacated {
    Free,
    Quarantined,
}

impl Slice {
    /// Shards missing to the guarantee, on the GPUs that are not drained.
    pub(crate) fn missing_shards(&self, gpus: &Gpus, when: When) -> u32 {
        self.guarantee_shards.saturating_sub(self.staying_shards(gpus, when))
    }

    /// Whether it has more than it is promised on the GPUs that are not drained, when all that is leaving has left.
    pub(crate) fn borrows(&self, gpus: &Gpus) -> bool {
        self.staying_shards(gpus, When::AfterEvictions) > self.guarantee_shards
    }

    /// Shards on the GPUs that are not drained.
    fn staying_shards(&self, gpus: &Gpus, when: When) -> u32 {
        let held = |gpu: &GpuUsage| self.held.of(gpu.id).saturating_sub(self.leaving_shards(gpu.id, when));
        let (mut staying, mut leaving) = (0u32, 0u32);
        for gpu in gpus.iter() {
            let sum = if gpu.draining { &mut leaving } else { &mut staying };
            *sum = sum.saturating_add(held(gpu));
        }
        // What is on its way has its shard on another GPU already.
        let arriving = self.incoming.total().min(leaving);
        staying.saturating_add(arriving)
    }

    /// Shards held now and no longer then.
    pub(crate) fn leaving_shards(&self, gpu: GpuId, when: When) -> u32 {
        match when {
            When::Now => 0,
            When::AfterReturns => self.returning.of(gpu),
            When::AfterEvictions => self.returning.of(gpu).saturating_add(self.evicting.of(gpu)),
        }
    }

    /// Whether bytes, shards or regions of lower tiers are on their way back from this slice.
    pub(crate) fn is_releasing(&self) -> bool {
        self.quarantined_bytes > 0 || self.returning.total() > 0 || self.discarding > 0
    }

    /// Whether it has more on GPUs than its limit, when all that is leaving has left.
    pub(crate) fn exceeds_limit(&self) -> bool {
        let leaving = self.returning.total().saturating_add(self.evicting.total());
        self.held.total().saturating_sub(leaving) > self.limit_shards
    }

    /// Regions that count towards the limit, wherever their bytes are.
    pub(crate) fn footprint(&self) -> u32 {
        self.held.total().saturating_add(self.stored).saturating_add(self.shown)
    }

    /// The refusal of so many bytes for the slice's limit.
    pub(crate) fn over_limit(&self, shard_bytes: u64, requested_bytes: u64) -> AllocError {
        let in_bytes = |shards: u32| u64::from(shards).saturating_mul(shard_bytes);
        AllocError::OverLimit {
            limit_bytes: in_bytes(self.limit_shards),
            in_use_bytes: in_bytes(self.footprint()),
            requested_bytes,
        }
    }

    /// Number of live allocations.
    pub(crate) fn allocations(&self) -> u64 {
        self.map.allocations()
    }

    /// Counts a span as live in the regions it touches.
    pub(crate) fn occupy(&mut self, span: Span) {
        self.live_bytes = self.live_bytes.saturating_add(span.len_bytes());
        for index in self.band.touched(span) {
            let part_bytes = part_bytes(&self.band, index, span);
            let Some(region) = self.band.region_mut(index) else { continue };
            if let RegionState::Backed(gpu) = region.state
                && region.live_bytes == 0
            {
                self.returning.subtract(gpu, 1);
            }
            region.live_bytes = region.live_bytes.saturating_add(part_bytes);
        }
    }

    /// Counts a span as no longer live.
    pub(crate) fn vacate(&mut self, span: Span, to: Vacated) {
        self.live_bytes = self.live_bytes.saturating_sub(span.len_bytes());
        if to == Vacated::Quarantined {
            self.quarantined_bytes = self.quarantined_bytes.saturating_add(span.len_bytes());
        }
        for index in self.band.touched(span) {
            let part_bytes = part_bytes(&self.band, index, span);
            let Some(region) = self.band.region_mut(index) else { continue };
            region.live_bytes = region.live_bytes.saturating_sub(part_bytes);
            if to == Vacated::Quarantined {
                region.quarantined_bytes = region.quarantined_bytes.saturating_add(part_bytes);
            }
            match region.state {
                RegionState::Backed(gpu) if region.live_bytes == 0 => self.returning.add(gpu, 1),
                RegionState::Stored if region.live_bytes == 0 => self.retire(index),
                _ => {}
            }
        }
    }

    /// Nothing live is left in a stored region: it is not used again, and discarded when the last byte is released.
    pub(crate) fn retire(&mut self, region: RegionIndex) {
        self.map.close_free(self.band.region_span(region));
    }

    /// Counts a span as no longer quarantined.
    pub(crate) fn end_quarantine(&mut self, span: Span) {
        self.quarantined_bytes = self.quarantined_bytes.saturating_sub(span.len_bytes());
        for index in self.band.touched(span) {
            let part_bytes = part_bytes(&self.band, index, span);
            if let Some(region) = self.band.region_mut(index) {
                region.quarantined_bytes = region.quarantined_bytes.saturating_sub(part_bytes);
            }
        }
    }

    /// Asks for a shard behind an unbacked region.
    pub(crate) fn begin_backing(&mut self, gpus: &mut Gpus, region: RegionIndex, gpu: GpuId) -> Backing {
        self.band.set_state(region, RegionState::Backing(gpu));
        self.held.add(gpu, 1);
        gpus.take_shard(gpu);
        self.band.backing(region, gpu)
    }

    /// The shard asked for is there. Unless its GPU was lost since, the region's bytes beside the granted span are free.
    pub(crate) fn finish_backing(&mut self, region: RegionIndex, granted: Span) {
        let Some(RegionState::Backing(gpu)) = self.band.region(region).map(|region| region.state) else {
            return;
        };
        self.band.set_state(region, RegionState::Backed(gpu));
        self.heat.insert(region, Residence::Gpu(TierCopy::Stale));
        self.open_beside(region, granted);
    }

    /// What of a region is beside a span may be given out.
    pub(crate) fn open_beside(&mut self, region: RegionIndex, granted: Span) {
        let window = self.band.region_span(region);
        for beside in window.around(granted.intersection(window)) {
            self.map.free(beside);
        }
    }

    /// The region has no shard any more, or will not get one.
    pub(crate) fn unback(&mut self, gpus: &mut Gpus, region: RegionIndex) {
        let Some(state) = self.band.region(region).map(|region| region.state) else { return };
        if let Some(gpu) = state.holder() {
            self.held.subtract(gpu, 1);
            gpus.give_back_shard(gpu);
        }
        if let RegionState::Returning(gpu) = state {
            self.returning.subtract(gpu, 1);
        }
        if state.is_stored() {
            self.stored = self.stored.saturating_sub(1);
        }
        if state == RegionState::Discarding {
            self.discarding = self.discarding.saturating_sub(1);
        }
        if state.takes_nothing() {
            self.shown = self.shown.saturating_sub(1);
        }
        self.heat.remove(region);
        self.band.set_state(region, RegionState::Unbacked);
    }

    /// Begins to take away a region in which nothing is left, and notes it in the plan. Returns whether it could.
    pub(crate) fn take_away(&mut self, region: RegionIndex, plan: &mut ReleasePlan) -> bool {
        match self.band.region(region).map(|region| region.state) {
            Some(RegionState::Backed(gpu)) => {
                self.band.set_state(region, RegionState::Returning(gpu));
                self.map.close_free(self.band.region_span(region));
                plan.unback.push(self.band.backing(region, gpu));
                self.outdate(region, plan);
                true
            }
            Some(RegionState::Lost(gpu)) => {
                self.band.set_state(region, RegionState::Forgetting(gpu));
                plan.forget.push(self.band.backing(region, gpu));
                true
            }
            Some(RegionState::Stored | RegionState::Damaged) => {
                self.band.set_state(region, RegionState::Discarding);
                self.discarding = self.discarding.saturating_add(1);
                self.map.close_free(self.band.region_span(region));
                plan.discard.push(region);
                true
            }
            Some(RegionState::Shared | RegionState::Revoked) => {
                plan.detach.push(region);
                true
            }
            _ => false,
        }
    }

    /// What a lower tier has of a region on a GPU is no longer true, and to be discarded.
    pub(crate) fn outdate(&mut self, region: RegionIndex, plan: &mut ReleasePlan) {
        if self.copy_below(region) == TierCopy::Valid {
            self.heat.insert(region, Residence::Gpu(TierCopy::Stale));
            plan.discard.push(region);
        }
    }

    /// Begins to take away a region if nothing is left in it, and notes that in the plan. Returns whether it could.
    pub(crate) fn release_if_empty(&mut self, region: RegionIndex, plan: &mut ReleasePlan) -> bool {
        self.band.region(region).is_some_and(Region::is_empty) && self.take_away(region, plan)
    }

    /// A region that is to leave its GPU and can: nothing of it is on its way to be free. Those nobody uses go first, so
    /// that one in use for long does not hold up the others.
    pub(crate) fn first_to_leave(&self, gpus: &Gpus) -> Option<(RegionIndex, GpuId)> {
        let drained = |gpu: GpuId| gpus.get(gpu).is_some_and(|usage| usage.draining);
        if !gpus.iter().any(|gpu| gpu.draining && self.held.of(gpu.id) > 0) {
            return None;
        }
        let mut used = None;
        for (index, region) in self.band.regions() {
            match region.state {
                RegionState::Backed(gpu) if drained(gpu) && region.quarantined_bytes == 0 => {
                    if region.pins == 0 {
                        return Some((index, gpu));
                    }
                    used = used.or(Some((index, gpu)));
                }
                _ => {}
            }
        }
        used
    }

    /// A backed region is to move.
    pub(crate) fn begin_moving(&mut self, gpus: &mut Gpus, region: RegionIndex, from: GpuId, to: GpuId) {
        self.band.set_state(region, RegionState::Moving { from, to });
        self.incoming.add(to, 1);
        gpus.take_shard(to);
    }

    /// Whether a region is on its way between two GPUs.
    pub(crate) fn is_moving(&self, from: Backing, to: GpuId) -> bool {
        let moving = RegionState::Moving { from: from.gpu, to };
        self.band.region(from.region).is_some_and(|region| region.state == moving)
    }

    /// A region has moved, or stays: one of the two shards is given back. A region that was lost meanwhile has only the
    /// new one to give.
    pub(crate) fn end_moving(&mut self, gpus: &mut Gpus, from: Backing, to: GpuId, has_moved: bool) {
        // None if the GPU it was to move to was lost.
        let arriving = self.incoming.of(to) > 0;
        let moving = self.is_moving(from, to);
        let has_moved = has_moved && arriving && moving;
        if arriving {
            self.incoming.subtract(to, 1);
        }
        if has_moved {
            self.held.subtract(from.gpu, 1);
            gpus.give_back_shard(from.gpu);
            self.held.add(to, 1);
        } else if arriving {
            gpus.give_back_shard(to);
        }
        if moving {
            let copy = self.copy_below(from.region);
            self.set_backed(from.region, if has_moved { to } else { from.gpu }, copy);
        }
    }

    /// Whether a lower tier has what a region on a GPU holds.
    pub(crate) fn copy_below(&self, region: RegionIndex) -> TierCopy {
        match self.heat.residence(region) {
            Some(Residence::Gpu(copy)) => copy,
            Some(Residence::Tier) | None => TierCopy::Stale,
        }
    }

    /// The bytes of a region are in a shard of this GPU and stay there.
    pub(crate) fn set_backed(&mut self, index: RegionIndex, gpu: GpuId, copy: TierCopy) {
        self.band.set_state(index, RegionState::Backed(gpu));
        self.heat.insert(index, Residence::Gpu(copy));
        if self.band.region(index).is_some_and(|region| region.live_bytes == 0) {
            self.returning.add(gpu, 1);
        }
    }

    /// The bytes of a region are in a lower tier only.
    pub(crate) fn set_stored(&mut self, index: RegionIndex) {
        self.stored = self.stored.saturating_add(1);
        self.settle_stored(index);
    }

    /// A region the lower tiers have, and are not moving about, is ready to be used.
    pub(crate) fn settle_stored(&mut self, index: RegionIndex) {
        self.band.set_state(index, RegionState::Stored);
        self.heat.insert(index, Residence::Tier);
        if self.band.region(index).is_some_and(|region| region.live_bytes == 0) {
            self.retire(index);
        }
    }

    /// Makes a span free that is neither live nor quarantined any more, as far as memory is behind it. Regions left
    /// without a byte are taken away instead; the plan for them is returned.
    pub(crate) fn settle(&mut self, span: Span) -> Option<ReleasePlan> {
        let mut plan = ReleasePlan::empty(self.id);
        for index in self.band.touched(span) {
            let Some(region) = self.band.region(index).copied() else { continue };
            let part = span.intersection(self.band.region_span(index));
            let taken = self.release_if_empty(index, &mut plan);
            let retired = region.state == RegionState::Stored && region.live_bytes == 0;
            if region.state.has_free_bytes() && !taken && !retired {
                self.map.free(part);
            } else {
                self.map.close(part);
            }
        }
        (!plan.is_trivial()).then_some(plan)
    }

    /// A region is born in the lower tiers, all zeros. The region's bytes beside the granted span are free.
    pub(crate) fn bear_stored(&mut self, region: RegionIndex, granted: Span) {
        self.band.set_state(region, RegionState::Stored);
        self.stored = self.stored.saturating_add(1);
        self.heat.insert(region, Residence::Tier);
        self.open_beside(region, granted);
    }

    /// Gives up all regions of a GPU, and returns them, but for those that a lower tier has.
    pub(crate) fn lose(&mut self, lost: GpuId) -> Vec<Backing> {
        let below = |(index, region): &(RegionIndex, &Region)| match region.state {
            RegionState::Promoting(gpu) => gpu == lost,
            RegionState::Backed(gpu) => gpu == lost && self.copy_below(*index) == TierCopy::Valid,
            _ => false,
        };
        let kept: Vec<_> = self.band.regions().filter(below).map(|(index, _)| index).collect();
        for index in kept {
            if self.band.region(index).is_some_and(|region| region.state == RegionState::Promoting(lost)) {
                self.promoting = self.promoting.saturating_sub(1);
            }
            self.set_stored(index);
        }
        self.lose_private_copies(lost);
        let of_lost = |region: &Region| region.state.holder() == Some(lost);
        let regions: Vec<_> =
            self.band.regions().filter(|(_, region)| of_lost(region)).map(|(index, _)| index).collect();
        self.held.set(lost, 0);
        self.incoming.set(lost, 0);
        self.returning.set(lost, 0);
        self.evicting.set(lost, 0);
        regions
            .into_iter()
            .map(|index| {
                self.map.close_free(self.band.region_span(index));
                self.band.set_state(index, RegionState::Lost(lost));
                self.heat.remove(index);
                self.band.backing(index, lost)
            })
            .collect()
    }

    /// The live allocation that has a byte at an address.
    pub(crate) fn allocation_at(&self, address: u64) -> Option<DeviceRange> {
        self.map.allocation_at(address).map(Span::range)
    }
}

/// Bytes of a span in one region.
fn part_bytes(band: &Band, region: RegionIndex, span: Span) -> u32 {
    let part = span.intersection(band.region_span(region));
    u32::try_from(part.len_bytes()).unwrap_or(u32::MAX)
}
