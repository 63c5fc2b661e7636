//! What guests say about their bytes.

use std::sync::Arc;

use vram_gpu::{DeviceRange, GpuId};
use vram_pool::{Extent, Place, SliceId};

use crate::Residency;
use crate::fetch::Fetch;
use crate::tiers::{Key, key_of};

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
    /// Takes a guest's word about all regions a range touches. Of those that show bytes of another slice only what is
    /// needed soon is brought: to keep it anywhere is for its owner to say.
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
                let stored = self.regions_in(slice, range, |extent| extent.place == Place::Tier);
                self.ask_for(&stored, |(slice, region)| Fetch::Worthwhile { slice, region });
            }
            Advice::Pin => {
                if !self.pool().pin_to_gpus(slice, range) {
                    return Err(AdviseError::OverGuarantee);
                }
                let stored = self
                    .regions_in(slice, range, |extent| extent.place == Place::Tier && extent.shown.is_none());
                self.ask_for(&stored, |(slice, region)| Fetch::Pinned { slice, region });
            }
            Advice::Unpin => self.pool().unpin_from_gpus(slice, range),
            Advice::PreferGpu(gpu) => {
                if !self.backend.devices().iter().any(|device| device.id == gpu) {
                    return Err(AdviseError::NoSuchGpu { gpu });
                }
                let elsewhere = self.regions_in(slice, range, |extent| {
                    extent.place.gpu().is_some_and(|on| on != gpu) && extent.shown.is_none()
                });
                self.ask_for(&elsewhere, |(slice, region)| Fetch::Preferred { slice, region, gpu });
            }
        }
        Ok(())
    }

    /// The regions the bytes of a range are in, of those a condition admits.
    fn regions_in(&self, slice: SliceId, range: DeviceRange, admits: impl Fn(&Extent) -> bool) -> Vec<Key> {
        self.pool().extents(slice, range).filter(admits).map(|extent| key_of(&extent)).collect()
    }

    /// Asks the fetch threads for each region, unless they have been asked for something of it already.
    fn ask_for(&self, regions: &[Key], fetch: impl Fn(Key) -> Fetch) {
        for key in regions {
            if self.worthwhile().insert(*key) {
                self.fetch_soon(key.0, fetch(*key));
            }
        }
    }
}
