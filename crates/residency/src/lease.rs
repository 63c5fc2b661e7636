//! Holding an allocation.

use std::sync::{Arc, Weak};

use tracing::error;
use vram_gpu::DeviceRange;
use vram_pool::SliceId;

use crate::Residency;

/// An allocation. When it is dropped its memory is quarantined, scrubbed and given back; whoever still moves bytes of
/// it holds a clone of the `Arc` it lives in.
pub struct MemoryLease {
    residency: Weak<Residency>,
    slice: SliceId,
    range: DeviceRange,
}

impl MemoryLease {
    pub(crate) fn new(residency: &Arc<Residency>, slice: SliceId, range: DeviceRange) -> Self {
        Self { residency: Arc::downgrade(residency), slice, range }
    }

    /// Its addresses, rounded up as the pool rounds.
    pub fn range(&self) -> DeviceRange {
        self.range
    }
}

impl Drop for MemoryLease {
    fn drop(&mut self) {
        let Some(residency) = self.residency.upgrade() else { return };
        let freeing = residency.pool().begin_free(self.slice, self.range.start);
        match freeing {
            Ok(freeing) => residency.release(freeing),
            Err(error) => error!(%error, range = %self.range, "a lease names no allocation"),
        }
    }
}
