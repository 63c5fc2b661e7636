//! Extents: which GPU is behind which part of a range.

use vram_gpu::{DeviceRange, GpuId};

use crate::{Pool, RegionIndex, RegionState, SliceId};

/// A run of addresses with one GPU behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The addresses.
    pub range: DeviceRange,
    /// The GPU.
    pub gpu: GpuId,
    /// The region, or the first of several in a merged extent.
    pub region: RegionIndex,
    /// Whether the GPU, and so the bytes, are lost.
    pub lost: bool,
}

impl Pool {
    /// The extents of a range, one for each region it touches, in order of address. Parts with no memory behind them are
    /// left out, as is what lies outside the band: an allocation has no such parts.
    pub fn extents(&self, slice: SliceId, range: DeviceRange) -> impl Iterator<Item = Extent> + '_ {
        self.slices.get(&slice).into_iter().flat_map(move |slice| {
            let inside = Self::clipped(slice, range);
            slice.band.touched(inside).filter_map(move |region| {
                let state = slice.band.region(region)?.state;
                let (gpu, lost) = match state {
                    RegionState::Lost(gpu) => (gpu, true),
                    _ => (state.holder()?, false),
                };
                let part = inside.intersection(slice.band.region_span(region));
                Some(Extent { range: part.range(), gpu, region, lost })
            })
        })
    }

    /// The extents of a range, adjacent ones on the same GPU in one.
    pub fn merged_extents(&self, slice: SliceId, range: DeviceRange) -> Vec<Extent> {
        let mut merged: Vec<Extent> = Vec::new();
        for extent in self.extents(slice, range) {
            match merged.last_mut() {
                Some(last)
                    if last.range.end() == Some(extent.range.start)
                        && (last.gpu, last.lost) == (extent.gpu, extent.lost) =>
                {
                    last.range.len_bytes = last.range.len_bytes.saturating_add(extent.range.len_bytes);
                }
                _ => merged.push(extent),
            }
        }
        merged
    }
}
