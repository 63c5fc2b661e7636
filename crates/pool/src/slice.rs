//! A slice's books: its band, what lies in it, and the shards it holds.

use vram_gpu::{DeviceRange, GpuId};

use crate::address_map::AddressMap;
use crate::band::Band;
use crate::gpu::{Gpus, ShardCounts};
use crate::room::When;
use crate::span::Span;
use crate::{Backing, RegionIndex, RegionState, ReleasePlan, SliceConfig, SliceId};

/// One slice. Its methods keep the counts of regions, slice and GPUs in step.
#[derive(Debug)]
pub(crate) struct Slice {
    pub(crate) id: SliceId,
    pub(crate) config: SliceConfig,
    pub(crate) home: GpuId,
    pub(crate) limit_shards: u32,
    pub(crate) guarantee_shards: u32,
    pub(crate) band: Band,
    /// What each byte of the band is.
    pub(crate) map: AddressMap,
    /// What the pending grant reserves.
    pub(crate) pending: Option<Span>,
    pub(crate) live_bytes: u64,
    pub(crate) quarantined_bytes: u64,
    /// Shards held: backing, backed or draining.
    pub(crate) held: ShardCounts,
    /// Shards of these that go back unless something new is put in: draining, or backed and nothing live in them.
    pub(crate) returning: ShardCounts,
}

/// Where bytes that are no longer live go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vacated {
    Free,
    Quarantined,
}

impl Slice {
    /// Shards missing to the guarantee.
    pub(crate) fn missing_shards(&self, when: When) -> u32 {
        let held = match when {
            When::Now => self.held.total(),
            When::AfterReturns => self.held.total().saturating_sub(self.returning.total()),
        };
        self.guarantee_shards.saturating_sub(held)
    }

    /// Whether bytes or shards of this slice are on their way back.
    pub(crate) fn is_releasing(&self) -> bool {
        self.quarantined_bytes > 0 || self.returning.total() > 0
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
            if let RegionState::Backed(gpu) = region.state
                && region.live_bytes == 0
            {
                self.returning.add(gpu, 1);
            }
        }
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
        let window = self.band.region_span(region);
        for beside in window.around(granted.intersection(window)) {
            self.map.free(beside);
        }
    }

    /// The region has no shard any more, or will not get one.
    pub(crate) fn unback(&mut self, gpus: &mut Gpus, region: RegionIndex) {
        let Some(state) = self.band.region(region).map(|region| region.state) else { return };
        if let RegionState::Backing(gpu) | RegionState::Backed(gpu) | RegionState::Draining(gpu) = state {
            self.held.subtract(gpu, 1);
            gpus.give_back_shard(gpu);
        }
        if let RegionState::Draining(gpu) = state {
            self.returning.subtract(gpu, 1);
        }
        self.band.set_state(region, RegionState::Unbacked);
    }

    /// Begins to take away a region in which nothing is left, and notes it in the plan. Returns whether it could.
    pub(crate) fn drain(&mut self, region: RegionIndex, plan: &mut ReleasePlan) -> bool {
        match self.band.region(region).map(|region| region.state) {
            Some(RegionState::Backed(gpu)) => {
                self.band.set_state(region, RegionState::Draining(gpu));
                self.map.close_free(self.band.region_span(region));
                plan.unback.push(self.band.backing(region, gpu));
                true
            }
            Some(RegionState::Lost(gpu)) => {
                plan.forget.push(self.band.backing(region, gpu));
                true
            }
            _ => false,
        }
    }

    /// Makes a span free that is neither live nor quarantined any more, as far as memory is behind it. Regions left
    /// without a byte are drained instead; the plan for them is returned.
    pub(crate) fn settle(&mut self, span: Span) -> Option<ReleasePlan> {
        let mut plan = ReleasePlan::empty(self.id);
        for index in self.band.touched(span) {
            let Some(region) = self.band.region(index).copied() else { continue };
            let part = span.intersection(self.band.region_span(index));
            let drained = region.is_empty() && self.drain(index, &mut plan);
            match region.state {
                RegionState::Backed(_) if !drained => self.map.free(part),
                _ => self.map.close(part),
            }
        }
        (!plan.is_trivial()).then_some(plan)
    }

    /// Gives up all regions of a GPU, and returns them.
    pub(crate) fn lose(&mut self, lost: GpuId) -> Vec<Backing> {
        let of_lost = |state| match state {
            RegionState::Backing(gpu) | RegionState::Backed(gpu) | RegionState::Draining(gpu) => gpu == lost,
            RegionState::Unbacked | RegionState::Lost(_) => false,
        };
        let regions: Vec<_> =
            self.band.regions().filter(|(_, region)| of_lost(region.state)).map(|(index, _)| index).collect();
        self.held.set(lost, 0);
        self.returning.set(lost, 0);
        regions
            .into_iter()
            .map(|index| {
                self.map.close_free(self.band.region_span(index));
                self.band.set_state(index, RegionState::Lost(lost));
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
