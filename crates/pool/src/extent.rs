//! Extents: what is behind which part of a range.

use vram_gpu::{DeviceAddress, DeviceRange, GpuId};

use crate::slice::Slice;
use crate::span::Span;
use crate::{Pool, RegionIndex, RegionState, Rights, SliceId};

/// A run of addresses whose bytes are in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The addresses.
    pub range: DeviceRange,
    /// Where the bytes are.
    pub place: Place,
    /// The region, or the first of several in a merged extent.
    pub region: RegionIndex,
    /// Whose bytes they are.
    pub origin: Origin,
    /// What may be done with them if the region shows bytes of another slice, or of another region.
    pub shown: Option<Rights>,
}

/// Whose bytes are behind an extent: those of its own region, unless that shows others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The slice.
    pub slice: SliceId,
    /// The region of that slice; the first of several in a merged extent.
    pub region: RegionIndex,
    /// Where the bytes begin in that slice's band.
    pub start: DeviceAddress,
}

/// Where bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On this GPU.
    Gpu(GpuId),
    /// In a tier below the GPUs.
    Tier,
    /// Nowhere: they were in a tier, and are damaged.
    Damaged,
    /// Nowhere: they were on this GPU, which is lost.
    Lost(GpuId),
    /// Nowhere that concerns the slice: they are another's, which has revoked them.
    Revoked,
}

impl Extent {
    /// Whether another extent is the next piece of the same run of bytes.
    fn continues_with(&self, next: &Self) -> bool {
        self.range.end() == Some(next.range.start)
            && self.origin.slice == next.origin.slice
            && self.origin.start.checked_add(self.range.len_bytes) == Some(next.origin.start)
            && (self.place, self.shown) == (next.place, next.shown)
    }
}

impl Place {
    /// Where the bytes of a region in this state are; nowhere if there are none.
    fn of(state: RegionState) -> Option<Self> {
        match state {
            RegionState::Lost(gpu) | RegionState::Forgetting(gpu) => Some(Self::Lost(gpu)),
            RegionState::Damaged => Some(Self::Damaged),
            RegionState::Promoting(_) => Some(Self::Tier),
            state if state.is_stored() => Some(Self::Tier),
            state => state.holder().map(Self::Gpu),
        }
    }

    /// The GPU the bytes are on.
    pub fn gpu(self) -> Option<GpuId> {
        match self {
            Self::Gpu(gpu) => Some(gpu),
            Self::Tier | Self::Damaged | Self::Lost(_) | Self::Revoked => None,
        }
    }
}

impl Pool {
    /// The extents of a range, one for each region it touches, in order of address. Parts with no memory behind them are
    /// left out, as is what lies outside the band: an allocation has no such parts.
    pub fn extents(&self, slice: SliceId, range: DeviceRange) -> impl Iterator<Item = Extent> + '_ {
        self.slices.get(&slice).into_iter().flat_map(move |slice| {
            let inside = Self::clipped(slice, range);
            slice.band.touched(inside).filter_map(move |region| self.extent(slice, region, inside))
        })
    }

    /// The extent of a span in one region; none if nothing is behind it there.
    pub(crate) fn extent(&self, slice: &Slice, region: RegionIndex, inside: Span) -> Option<Extent> {
        let state = slice.band.region(region)?.state;
        let part = inside.intersection(slice.band.region_span(region));
        let Some(attachment) = slice.attachment(region) else {
            let (range, place) = (part.range(), Place::of(state)?);
            let origin = Origin { slice: slice.id, region, start: range.start };
            return Some(Extent { range, place, region, origin, shown: None });
        };
        // What is beside the exported bytes is nobody's business here.
        let part = part.intersection(attachment.span);
        let source = attachment.source(region);
        let start = attachment.owner_address(part.start);
        let place = match state {
            RegionState::Revoked => Place::Revoked,
            _ => self.region(source.slice, source.region).and_then(Place::of)?,
        };
        let origin = Origin { slice: source.slice, region: source.region, start };
        let extent = Extent { range: part.range(), place, region, origin, shown: Some(attachment.rights) };
        (!part.is_empty()).then_some(extent)
    }

    /// The addresses of a region.
    pub fn region_range(&self, slice: SliceId, region: RegionIndex) -> Option<DeviceRange> {
        let slice = self.slices.get(&slice)?;
        slice.band.region(region).map(|_| slice.band.region_span(region).range())
    }

    /// The addresses of all regions a range touches.
    pub fn regions_around(&self, slice: SliceId, range: DeviceRange) -> Option<DeviceRange> {
        let found = self.slices.get(&slice)?;
        let touched = || found.band.touched(Self::clipped(found, range));
        let (first, last) = (touched().next()?, touched().last()?);
        let (start, end) = (found.band.region_span(first).start, found.band.region_span(last).end);
        Some(Span::new(start, end.saturating_sub(start)).range())
    }

    /// The extents of a range, adjacent ones in the same place in one.
    pub fn merged_extents(&self, slice: SliceId, range: DeviceRange) -> Vec<Extent> {
        let mut merged: Vec<Extent> = Vec::new();
        for extent in self.extents(slice, range) {
            match merged.last_mut() {
                Some(last) if last.continues_with(&extent) => {
                    last.range.len_bytes = last.range.len_bytes.saturating_add(extent.range.len_bytes);
                }
                _ => merged.push(extent),
            }
        }
        merged
    }
}
