//! What guests say about their bytes.

use std::sync::Arc;

use vram_gpu::{DeviceRange, GpuId};
use vram_pool::{Place, RegionIndex, SliceId};

use crate::Residency;
use crate::fetch::Fetch;

/// What a guest says about a range. A hint: nothing that is asked of the bytes later depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Needed soon: bring it to the GPUs, in the place of what is colder.
    Prefetch,
    /// Not needed soon: the first to leave the GPUs.
    Cold,
    /// Keep it on the GPUs, until told otherwise.
    Pin,
    /// It may leave the GPUs again.
    Unpin,
    /// Move it to this GPU if that has room.
    PreferGpu(GpuId),
}

/// Why an advice is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdviseError {
    /// There is no such GPU in the pool.
    #[error("{gpu} is not part of the pool")]
    NoSuchGpu {
        /// Which.
        gpu: GpuId,
    },
    /// More would be pinned than is promised to the slice.
    #[error("No more than its guarantee can be pinned for a slice")]
    OverGuarantee,
}

impl Residency {
    /// Takes a guest's word about all regions a range touches.
    pub fn advise(
        self: &Arc<Self>,
        slice: SliceId,
        range: DeviceRange,
        advice: Advice,
    ) -> Result<(), AdviseError> {
        match advice {
            Advice::Cold => self.pool().advise(slice, range, vram_pool::Advice::Cold),
            Advice::Prefetch => {
                self.pool().advise(slice, range, vram_pool::Advice::Prefetch);
                self.ask_for(slice, &self.stored_regions(slice, range), |slice, region| Fetch::Worthwhile {
                    slice,
                    region,
                });
            }
            Advice::Pin => {
                if !self.pool().pin_to_gpus(slice, range) {
                    return Err(AdviseError::OverGuarantee);
                }
                self.ask_for(slice, &self.stored_regions(slice, range), |slice, region| Fetch::Pinned {
                    slice,
                    region,
                });
            }
            Advice::Unpin => self.pool().unpin_from_gpus(slice, range),
            Advice::PreferGpu(gpu) => {
                if !self.backend.devices().iter().any(|device| device.id == gpu) {
                    return Err(AdviseError::NoSuchGpu { gpu });
                }
                let elsewhere: Vec<RegionIndex> = self
                    .pool()
                    .extents(slice, range)
                    .filter(|extent| extent.place.gpu().is_some_and(|on| on != gpu))
                    .map(|extent| extent.region)
                    .collect();
                self.ask_for(slice, &elsewhere, |slice, region| Fetch::Preferred { slice, region, gpu });
            }
        }
        Ok(())
    }

    fn stored_regions(&self, slice: SliceId, range: DeviceRange) -> Vec<RegionIndex> {
        let pool = self.pool();
        let stored = pool.extents(slice, range).filter(|extent| extent.place == Place::Tier);
        stored.map(|extent| extent.region).collect()
    }

    /// Asks a slice's fetch thread for each region, unless it has been asked for something of it already.
    fn ask_for(
        &self,
        slice: SliceId,
        regions: &[RegionIndex],
        fetch: impl Fn(SliceId, RegionIndex) -> Fetch,
    ) {
        for region in regions {
            if self.worthwhile().insert((slice, *region)) {
                self.fetch_soon(slice, fetch(slice, *region));
            }
        }
    }
}
