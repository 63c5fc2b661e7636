//! Reading and writing: where bytes are when they are needed, and that they stay there meanwhile.

use std::sync::{Arc, Weak};

use vram_gpu::{DeviceRange, GpuError};
use vram_pool::{PinError, SliceId};
use vram_transfer::{Again, Lease, Locate, Located, Part, TransferError, Work};

use crate::Residency;
use crate::residency::part_of;

/// Makes work of the places of up to two ranges; called once.
pub type MakeWork = Box<dyn FnOnce(Vec<Part>, Vec<Part>) -> Work + Send>;

/// Bytes of a slice that a job is to touch. The caller holds a lease on them.
struct Access {
    residency: Weak<Residency>,
    slice: SliceId,
    ranges: [Option<DeviceRange>; 2],
    make: Option<MakeWork>,
}

/// Keeps bytes where they are.
struct Pins {
    residency: Weak<Residency>,
    slice: SliceId,
    ranges: [Option<DeviceRange>; 2],
}

impl Residency {
    /// Work on bytes of a slice that finds out where they are when its turn comes.
    pub fn access(
        self: &Arc<Self>,
        slice: SliceId,
        ranges: [Option<DeviceRange>; 2],
        make: MakeWork,
    ) -> Work {
        let residency = Arc::downgrade(self);
        Work::Located(Box::new(Access { residency, slice, ranges, make: Some(make) }))
    }

    /// Asks again, for everybody who waited for bytes that moved.
    pub(crate) fn wake_accesses(&self) {
        let waiting = std::mem::take(&mut *self.waiting_accesses());
        for again in waiting {
            again();
        }
    }
}

impl Locate for Access {
    fn locate(&mut self, again: Again) -> Located {
        let Some(residency) = self.residency.upgrade() else {
            return Located::Gone(TransferError::Cancelled);
        };
        // Made before the pool is locked, so that what was pinned is unpinned after it is unlocked.
        let mut pins =
            Pins { residency: Weak::clone(&self.residency), slice: self.slice, ranges: [None, None] };
        let mut places: [Vec<Part>; 2] = Default::default();
        let mut pool = residency.pool();
        for ((range, place), pinned) in self.ranges.iter().zip(&mut places).zip(&mut pins.ranges) {
            let Some(range) = range else { continue };
            match pool.pin(self.slice, *range) {
                Ok(extents) => {
                    *place = extents.iter().filter_map(part_of).collect();
                    *pinned = Some(*range);
                }
                Err(PinError::Moving) => {
                    // Whoever moves the bytes holds the pool's lock when it is done, and looks here afterwards.
                    residency.waiting_accesses().push(again);
                    return Located::Moving;
                }
                Err(PinError::Lost(gpu)) => {
                    let reason = "the bytes were on it".to_owned();
                    return Located::Gone(GpuError::DeviceLost { gpu, reason }.into());
                }
                // Nothing is put into a lower tier yet.
                Err(PinError::Stored(_) | PinError::Unbacked) => {
                    return Located::Gone(TransferError::Mismatch);
                }
            }
        }
        drop(pool);
        let Some(make) = self.make.take() else { return Located::Gone(TransferError::Cancelled) };
        let [first, second] = places;
        let pins: Lease = Arc::new(pins);
        Located::Here(make(first, second), pins)
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let Some(residency) = self.residency.upgrade() else { return };
        let mut pool = residency.pool();
        let mut awaited = false;
        for range in self.ranges.into_iter().flatten() {
            awaited |= pool.unpin(self.slice, range);
        }
        drop(pool);
        if awaited {
            residency.quiet.notify_all();
        }
    }
}
