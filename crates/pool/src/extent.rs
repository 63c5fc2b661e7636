//! Extents: what is behind which part of a range.

use vram_gpu::{DeviceRange, GpuId};

use crate::span::Span;
use crate::{Pool, RegionIndex, RegionState, SliceId};

/// A run of addresses whose bytes are in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The addresses.
    pub range: DeviceRange,
    /// Where the bytes are.
    pub place: Place,
    /// The region, or the first of several in a merged extent.
    pub region: RegionIndex,
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
}

impl Place {
    /// The GPU the bytes are on.
    pub fn gpu(self) -> Option<GpuId> {
        match self {
            Self::Gpu(gpu) => Some(gpu),
            Self::Tier | Self::Damaged | Self::Lost(_) => None,
        }
    }
}

impl Pool {
    /// The extents of a range, one for each region it touches, in order of address. Parts with no memory behind them are
    /// left out, as is what lies outside the band: an allocation has no such parts.
    pub fn extents(&self, slice: SliceId, range: DeviceRange) -> impl Iterator<Item = Extent> + '_ {
        self.slices.get(&slice).into_iter().flat_map(move |slice| {
            let inside = Self::clipped(slice, range);
            slice.band.touched(inside).filter_map(move |region| {
                let state = slice.band.region(region)?.state;
                let place = match state {
                    RegionState::Lost(gpu) | RegionState::Forgetting(gpu) => Place::Lost(gpu),
                    RegionState::Damaged => Place::Damaged,
                    RegionState::Promoting(_) => Place::Tier,
                    state if state.is_stored() => Place::Tier,
                    _ => Place::Gpu(state.holder()?),
                };
                let part = inside.intersection(slice.band.region_span(region));
                Some(Extent { range: part.range(), place, region })
            })
        })
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

    /// The extents of a range, adjacent ones on the same GPU in one.
    pub fn merged_extents(&self, slice: SliceId, range: DeviceRange) -> Vec<Extent> {
        let mut merged: Vec<Extent> = Vec::new();
        for extent in self.extents(slice, range) {
            match merged.last_mut() {
                Some(last) if last.range.end() == Some(extent.range.start) && last.place == extent.place => {
                    last.range.len_bytes = last.range.len_bytes.saturating_add(extent.range.len_bytes);
                }
                _ => merged.push(extent),
            }
        }
        merged
    }
}
