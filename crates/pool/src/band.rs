//! A band: the regions of one slice, and which of them nothing is behind.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use vram_gpu::GpuId;

use crate::address_map::AddressMap;
use crate::config::GRANULARITY_BYTES;
use crate::span::{GRANULE_BYTES, Span, align_down, align_up};
use crate::{Backing, RegionIndex, RegionState};

/// A region's part in the books.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) state: RegionState,
    /// Bytes of live allocations and of a pending grant.
    pub(crate) live_bytes: u32,
    /// Bytes freed and not yet released.
    pub(crate) quarantined_bytes: u32,
    /// Users who need the bytes to stay where they are.
    pub(crate) pins: u32,
}

impl Region {
    pub(crate) fn is_empty(&self) -> bool {
        self.live_bytes == 0 && self.quarantined_bytes == 0
    }

    /// Whether the region's shard is on its way back to its GPU, unless something new is put in.
    pub(crate) fn returning_to(&self) -> Option<GpuId> {
        match self.state {
            RegionState::Returning(gpu) => Some(gpu),
            RegionState::Backed(gpu) if self.live_bytes == 0 => Some(gpu),
            _ => None,
        }
    }
}

/// Where an allocation can go, and how many shards that takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) span: Span,
    pub(crate) new_shards: u32,
}

/// The regions of a slice.
#[derive(Debug)]
pub(crate) struct Band {
    span: Span,
    shard_bytes: u64,
    regions: Vec<Region>,
    /// Runs of unbacked regions, as long as they can be: first to count.
    unbacked: BTreeMap<u32, u32>,
}

impl Band {
    /// A band of `regions` unbacked regions.
    pub(crate) fn new(start: u64, shard_bytes: u64, regions: u32) -> Self {
        let empty = Region { state: RegionState::Unbacked, live_bytes: 0, quarantined_bytes: 0, pins: 0 };
        Self {
            span: Span::new(start, u64::from(regions).saturating_mul(shard_bytes)),
            shard_bytes,
            regions: (0..regions).map(|_| empty).collect(),
            unbacked: BTreeMap::from([(0, regions)]),
        }
    }

    pub(crate) fn span(&self) -> Span {
        self.span
    }

    pub(crate) fn region(&self, index: RegionIndex) -> Option<&Region> {
        self.regions.get(usize::try_from(index.0).ok()?)
    }

    pub(crate) fn region_mut(&mut self, index: RegionIndex) -> Option<&mut Region> {
        self.regions.get_mut(usize::try_from(index.0).ok()?)
    }

    pub(crate) fn regions(&self) -> impl Iterator<Item = (RegionIndex, &Region)> + '_ {
        (0..).map(RegionIndex).zip(&self.regions)
    }

    /// Runs of unbacked regions: first and count.
    pub(crate) fn unbacked_runs(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.unbacked.iter().map(|(&first, &count)| (first, count))
    }

    pub(crate) fn region_span(&self, index: RegionIndex) -> Span {
        self.regions_span(index.0, 1)
    }

    pub(crate) fn backing(&self, region: RegionIndex, gpu: GpuId) -> Backing {
        Backing { region, range: self.region_span(region).range(), gpu }
    }

    /// The regions a span touches; none for what lies outside the band.
    pub(crate) fn touched(&self, span: Span) -> impl Iterator<Item = RegionIndex> + use<> {
        let inside = span.intersection(self.span);
        let range = if inside.is_empty() { RangeInclusive::new(1, 0) } else { self.touched_range(inside) };
        range.map(RegionIndex)
    }

    /// The unbacked regions a span touches.
    pub(crate) fn unbacked_in(&self, span: Span) -> Vec<RegionIndex> {
        let unbacked = |index: &RegionIndex| {
            self.region(*index).is_some_and(|region| region.state == RegionState::Unbacked)
        };
        self.touched(span).filter(unbacked).collect()
    }

    /// Sets the state of a region. The caller keeps the counts.
    pub(crate) fn set_state(&mut self, index: RegionIndex, state: RegionState) {
        let Some(region) = self.region_mut(index) else { return };
        let was_unbacked = region.state == RegionState::Unbacked;
        region.state = state;
        match (was_unbacked, state == RegionState::Unbacked) {
            (true, false) => self.leave_unbacked(index.0),
            (false, true) => self.join_unbacked(index.0),
            _ => {}
        }
    }

    /// The first of so many unbacked regions in a row, the lowest of several.
    pub(crate) fn first_unbacked(&self, count: u32) -> Option<RegionIndex> {
        let mut runs = self.unbacked_runs();
        runs.find(|(_, free)| *free >= count).map(|(first, _)| RegionIndex(first))
    }

    /// How many regions a span touches.
    pub(crate) fn touched_count(&self, span: Span) -> u32 {
        let inside = span.intersection(self.span);
        if inside.is_empty() {
            return 0;
        }
        let touched = self.touched_range(inside);
        touched.end().saturating_sub(*touched.start()).saturating_add(1)
    }

    /// The place for an allocation that needs the fewest new shards, the lowest of several. Looks only at places that
    /// take in an unbacked region: the map itself knows the others.
    ///
    /// A place reaches over one run of unbacked regions and the free bytes that touch the run on both sides. It needs
    /// fewest shards where it uses most of those bytes on one side, so only the outermost places of a run can be best;
    /// alignments above that of the regions add those where it meets region edges differently. Costs a look at each run,
    /// but stops at the first that cannot be beaten, which for allocations up to a shard is the first that fits.
    pub(crate) fn find_window(
        &self,
        map: &AddressMap,
        len_bytes: u64,
        alignment_bytes: u64,
    ) -> Option<Window> {
        let most_beside_run = self.shard_bytes.saturating_sub(GRANULE_BYTES).saturating_mul(2);
        let fewest = shards_up(len_bytes.saturating_sub(most_beside_run), self.shard_bytes).max(1);
        let mut best: Option<Window> = None;
        for (first, count) in self.unbacked_runs() {
            let run = self.regions_span(first, count);
            if run.len_bytes().saturating_add(most_beside_run) < len_bytes {
                continue;
            }
            let usable = Span {
                start: map.free_ending_at(run.start).map_or(run.start, |before| before.start),
                end: map.free_starting_at(run.end).map_or(run.end, |after| after.end),
            };
            for start in self.window_starts(usable, len_bytes, alignment_bytes) {
                let span = Span::new(start, len_bytes);
                let window = Window { span, new_shards: self.touched_count(span.intersection(run)) };
                if usable.contains(span) && best.is_none_or(|best| window.new_shards < best.new_shards) {
                    best = Some(window);
                }
            }
            if best.is_some_and(|best| best.new_shards <= fewest) {
                break;
            }
        }
        best
    }

    /// Aligned addresses to try in a span, lowest first; they may not fit.
    fn window_starts(&self, usable: Span, len_bytes: u64, alignment_bytes: u64) -> impl Iterator<Item = u64> {
        let positions = if alignment_bytes <= GRANULARITY_BYTES {
            1
        } else {
            self.shard_bytes >> alignment_bytes.trailing_zeros().min(self.shard_bytes.trailing_zeros())
        };
        let leftmost = align_up(usable.start, alignment_bytes);
        let rightmost = usable.end.checked_sub(len_bytes).map(|start| align_down(start, alignment_bytes));
        let from_left = (0..positions)
            .filter_map(move |step| leftmost?.checked_add(step.checked_mul(alignment_bytes)?))
            .take_while(move |&start| rightmost.is_some_and(|rightmost| start <= rightmost));
        from_left.chain(rightmost)
    }

    fn regions_span(&self, first: u32, count: u32) -> Span {
        let start = self.span.start.saturating_add(u64::from(first).saturating_mul(self.shard_bytes));
        Span::new(start, u64::from(count).saturating_mul(self.shard_bytes))
    }

    fn touched_range(&self, inside: Span) -> RangeInclusive<u32> {
        let first = self.index_at(inside.start);
        let last = if inside.end <= self.regions_span(first, 1).end {
            first
        } else {
            self.index_at(inside.end.saturating_sub(1))
        };
        first..=last
    }

    fn index_at(&self, address: u64) -> u32 {
        let offset_bytes = address.saturating_sub(self.span.start);
        offset_bytes
            .checked_div(self.shard_bytes)
            .and_then(|index| u32::try_from(index).ok())
            .unwrap_or(u32::MAX)
    }

    fn leave_unbacked(&mut self, index: u32) {
        let Some((&first, count)) = self.unbacked.range_mut(..=index).next_back() else { return };
        let before = index.saturating_sub(first);
        let after = count.saturating_sub(before).saturating_sub(1);
        if before == 0 {
            self.unbacked.remove(&first);
        } else {
            *count = before;
        }
        if after > 0 {
            self.unbacked.insert(index.saturating_add(1), after);
        }
    }

    fn join_unbacked(&mut self, index: u32) {
        let next = index.saturating_add(1);
        let added = self.unbacked.remove(&next).unwrap_or(0).saturating_add(1);
        match self.unbacked.range_mut(..index).next_back() {
            Some((&first, count)) if first.saturating_add(*count) == index => {
                *count = count.saturating_add(added)
            }
            _ => {
                self.unbacked.insert(index, added);
            }
        }
    }
}

/// How many shards hold that many bytes.
pub(crate) fn shards_up(len_bytes: u64, shard_bytes: u64) -> u32 {
    u32::try_from(len_bytes.div_ceil(shard_bytes.max(1))).unwrap_or(u32::MAX)
}
