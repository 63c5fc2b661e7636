//! Telling those who hold memory what happens to it without their asking.

use std::sync::{Arc, PoisonError, Weak};

use vram_gpu::{DeviceRange, GpuId};
use vram_pool::{Place, RegionIndex, SliceId};

use crate::Residency;

/// Something that happened to the memory of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryEvent {
    /// This GPU is lost, and all bytes on it, whosever they were.
    GpuLost(GpuId),
    /// Bytes that were in a tier are damaged, and so lost: all that lies in this range.
    DataLost(DeviceRange),
    /// Limit or guarantee of the slice are others than before; the pool knows which.
    LimitChanged,
}

/// Who wants to know.
pub trait MemoryWatch: Send + Sync {
    /// It happened. Called on any thread, maybe with a stream locked: must not block, nor call residency or the engine.
    fn happened(&self, event: MemoryEvent);
}

impl Residency {
    /// From now on `watch` is told what happens to the memory of a slice, for as long as somebody else keeps it.
    pub fn subscribe(&self, slice: SliceId, watch: Weak<dyn MemoryWatch>) {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.retain(|(_, watch)| watch.strong_count() > 0);
        watches.push((slice, watch));
    }

    /// Tells those who watch this slice, or whoever watches any. The pool is not locked.
    pub(crate) fn tell(&self, slice: Option<SliceId>, event: MemoryEvent) {
        let told: Vec<Arc<dyn MemoryWatch>> = {
            let watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
            let concerned = watches.iter().filter(|(of, _)| slice.is_none_or(|slice| slice == *of));
            concerned.filter_map(|(_, watch)| watch.upgrade()).collect()
        };
        for watch in told {
            watch.happened(event);
        }
    }

    /// Tells that a region has been found damaged.
    pub(crate) fn tell_damage(&self, slice: SliceId, region: RegionIndex) {
        let range = self.pool().region_range(slice, region);
        if let Some(range) = range {
            self.tell(Some(slice), MemoryEvent::DataLost(range));
        }
    }

    /// Whether bytes of a region are live and not known to be damaged.
    pub(crate) fn is_sound(&self, slice: SliceId, region: RegionIndex) -> bool {
        let pool = self.pool();
        let range = pool.region_range(slice, region);
        range.is_some_and(|range| pool.extents(slice, range).any(|extent| extent.place != Place::Damaged))
    }
}
