//! What guests say about their regions.

use vram_gpu::DeviceRange;

use crate::{Advice, Pool, RegionIndex, SliceId};

impl Pool {
    /// Takes a guest's word about the regions a range touches. Of those that show bytes of another slice it counts where the
    /// bytes are if they are needed soon; that they are not is for their owner to say.
    pub fn advise(&mut self, slice: SliceId, range: DeviceRange, advice: Advice) {
        let Some(found) = self.slices.get(&slice) else { return };
        for region in found.band.touched(Self::clipped(found, range)) {
            let source = self.slices.get(&slice).and_then(|slice| slice.source(region));
            let told = match (source, advice) {
                (None, _) => (slice, region),
                (Some(source), Advice::Prefetch) => (source.slice, source.region),
                (Some(_), Advice::Cold) => continue,
            };
            if let Some(slice) = self.slices.get_mut(&told.0) {
                slice.heat.advise(told.1, advice);
            }
        }
    }

    /// Regions a range touches are not to be evicted any more, of those that are the slice's own. False, and nothing is
    /// changed, if more would be pinned than is promised to the slice.
    pub fn pin_to_gpus(&mut self, slice: SliceId, range: DeviceRange) -> bool {
        if self.tier_regions == 0 {
            return true;
        }
        let Some(slice) = self.slices.get_mut(&slice) else { return true };
        let touched = slice.band.touched(Self::clipped(slice, range));
        let is_new =
            |region: &RegionIndex| !slice.heat.is_pinned(*region) && slice.attachment(*region).is_none();
        let new: Vec<_> = touched.filter(is_new).collect();
        let pinned = slice.heat.pinned().saturating_add(u32::try_from(new.len()).unwrap_or(u32::MAX));
        if pinned > slice.guarantee_shards {
            return false;
        }
        new.into_iter().all(|region| slice.heat.pin(region))
    }

    /// Regions a range touches may be evicted again.
    pub fn unpin_from_gpus(&mut self, slice: SliceId, range: DeviceRange) {
        let Some(slice) = self.slices.get_mut(&slice) else { return };
        for region in slice.band.touched(Self::clipped(slice, range)) {
            if slice.heat.is_pinned(region) {
                slice.heat.unpin(region);
            }
        }
    }
}
