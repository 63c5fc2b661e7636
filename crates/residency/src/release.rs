//! Taking freed memory back.

use std::sync::{PoisonError, Weak};

use crossbeam_channel::Receiver;
use tracing::error;
use vram_pool::{Freeing, Releasable, ReleasePlan, SliceId};
use vram_transfer::{Flow, Part, TransferError};

use crate::Residency;

/// How often a scrub that a GPU failed is tried.
const SCRUB_ATTEMPTS: usize = 3;

/// A slice's release thread: takes freed ranges back until nobody can free any more.
pub(crate) fn release_all(residency: &Weak<Residency>, releases: &Receiver<Freeing>) {
    for freeing in releases {
        let Some(residency) = residency.upgrade() else { return };
        let plan = {
            let mut pool = residency.pool();
            // Moves end, one way or the other.
            while pool.releasable(&freeing) != Releasable::Now {
                pool = residency.released.wait(pool).unwrap_or_else(PoisonError::into_inner);
            }
            pool.plan_release(freeing)
        };
        residency.carry_out(plan);
    }
}

impl Residency {
    /// Scrubs and takes shards away as the plan says, then tells the pool, until nothing follows from it.
    pub(crate) fn carry_out(&self, plan: ReleasePlan) {
        let mut next = Some(plan);
        while let Some(plan) = next {
            if let Err(error) = self.scrub(&plan) {
                // Memory that cannot be cleared must not be given out again: it stays quarantined for good.
                error!(%error, "freed memory could not be scrubbed and is kept out of use");
                return;
            }
            for backing in plan.unback().iter().chain(plan.forget()) {
                self.unback(backing);
            }
            next = self.pool().finish_release(plan);
            self.released.notify_all();
        }
    }

    /// Clears what the plan says, except on GPUs that are lost.
    fn scrub(&self, plan: &ReleasePlan) -> Result<(), TransferError> {
        let flow = Flow::Upkeep(plan.slice().0);
        let mut attempts = 0usize;
        loop {
            let parts = self.scrub_parts(plan);
            if parts.is_empty() {
                return Ok(());
            }
            let Err(error) = self.engine.scrub(flow, parts, Vec::new()) else { return Ok(()) };
            // A GPU that is lost takes part no longer; there are only so many.
            if matches!(&error, TransferError::Gpu(error) if self.note(error)) {
                continue;
            }
            attempts = attempts.saturating_add(1);
            if attempts >= SCRUB_ATTEMPTS {
                return Err(error);
            }
        }
    }

    fn scrub_parts(&self, plan: &ReleasePlan) -> Vec<Part> {
        let slice: SliceId = plan.slice();
        plan.scrub().iter().flat_map(|range| self.parts(slice, *range)).collect()
    }

    /// Blocks until everything freed so far is back, for tests and orderly shutdown: returns false if the time is up.
    pub fn wait_released(&self, slice: SliceId, timeout: std::time::Duration) -> bool {
        let deadline = std::time::Instant::now().checked_add(timeout);
        let mut pool = self.pool();
        while pool.usage(slice).is_some_and(|usage| usage.quarantined_bytes > 0) {
            let left = deadline.map_or(timeout, |at| at.saturating_duration_since(std::time::Instant::now()));
            if left.is_zero() {
                return false;
            }
            pool =
                self.released.wait_timeout(pool, left).unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        true
    }
}
