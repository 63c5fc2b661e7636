//! Where bytes are, for those who ask.

use vram_gpu::{DeviceRange, GpuId};
use vram_pool::{Extent, Place, SliceId};
use vram_tier::TierKind;

use crate::Residency;
use crate::tiers::key_of;

/// Where a run of bytes is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BytePlace {
    /// On this GPU.
    Gpu(GpuId),
    /// In this tier.
    Tier(TierKind),
    /// Nowhere: they were in a tier, and are damaged.
    Damaged,
    /// Nowhere: they were on this GPU, which is lost.
    Lost(GpuId),
    /// Nowhere that concerns the slice: they are another's, which has revoked them.
    Revoked,
}

impl Residency {
    /// Where the bytes of a range are now, in order of address; neighbours in the same place are one run.
    pub fn places(&self, slice: SliceId, range: DeviceRange) -> Vec<(DeviceRange, BytePlace)> {
        let extents: Vec<Extent> = self.pool().extents(slice, range).collect();
        let mut runs: Vec<(DeviceRange, BytePlace)> = Vec::new();
        for extent in extents {
            let place = self.place_of(&extent);
            match runs.last_mut() {
                Some((last, same)) if *same == place && last.end() == Some(extent.range.start) => {
                    last.len_bytes = last.len_bytes.saturating_add(extent.range.len_bytes);
                }
                _ => runs.push((extent.range, place)),
            }
        }
        runs
    }

    fn place_of(&self, extent: &Extent) -> BytePlace {
        match extent.place {
            Place::Gpu(gpu) => BytePlace::Gpu(gpu),
            Place::Lost(gpu) => BytePlace::Lost(gpu),
            Place::Damaged => BytePlace::Damaged,
            Place::Revoked => BytePlace::Revoked,
            // Its handle may be gone again by now.
            Place::Tier => {
                let kept = self.tiers.get(key_of(extent));
                let kind = kept.and_then(|kept| self.tiers.kind(&kept));
                BytePlace::Tier(kind.unwrap_or(TierKind::Host))
            }
        }
    }
}
