//! Taking freed memory back.

use std::collections::BTreeMap;
use std::sync::Weak;

use crossbeam_channel::Receiver;
use tracing::error;
use vram_gpu::{DeviceAddress, DeviceRange};
use vram_pool::{Freeing, Place, Pool, RegionIndex, Releasable, ReleasePlan, SliceId};
use vram_transfer::{Flow, Part, TransferError};

use crate::Residency;

/// How often a scrub that a GPU failed is tried.
const SCRUB_ATTEMPTS: usize = 3;

/// What a release thread is told.
pub(crate) enum Upkeep {
    /// An allocation was freed.
    Freed(Freeing),
    /// These addresses are not on their way any more, or those to whom others showed them do not use them any more.
    Settled(DeviceRange),
}

/// A slice's release thread: takes freed ranges back until nobody can free any more.
pub(crate) fn release_all(residency: &Weak<Residency>, upkeep: &Receiver<Upkeep>) {
    let mut waiting = Waiting::default();
    for told in upkeep {
        let Some(residency) = residency.upgrade() else { return };
        match told {
            Upkeep::Freed(freeing) => {
                let regions = residency.regions_around(freeing.slice(), freeing.range());
                match residency.release_if_possible(freeing) {
                    Some(freeing) => waiting.add(freeing),
                    // It may have been the last in its regions.
                    None => waiting.look_at(&residency, regions),
                }
            }
            Upkeep::Settled(range) => waiting.look_at(&residency, range),
        }
    }
}

/// Freed ranges in regions that are on their way or in use, by address. They lie side by side, so their number
/// is bounded.
#[derive(Default)]
struct Waiting {
    freed: BTreeMap<DeviceAddress, Freeing>,
}

impl Waiting {
    fn add(&mut self, freeing: Freeing) {
        self.freed.insert(freeing.range().start, freeing);
    }

    /// Releases what can be of what touches some addresses.
    fn look_at(&mut self, residency: &Residency, addresses: DeviceRange) {
        let Some(end) = addresses.end() else { return };
        // One may begin before and reach into them.
        let before = self.freed.range(..addresses.start).next_back().map(|(start, _)| *start);
        let within = self.freed.range(addresses.start..end).map(|(start, _)| *start);
        let starts: Vec<_> = before.into_iter().chain(within).collect();
        for start in starts {
            let Some(freeing) = self.freed.remove(&start) else { continue };
            if let Some(freeing) = residency.release_if_possible(freeing) {
                self.add(freeing);
            }
        }
    }
}

impl Residency {
    /// Takes a freed range back; returns it if it cannot be now.
    fn release_if_possible(&self, freeing: Freeing) -> Option<Freeing> {
        let (plan, held) = {
            let mut pool = self.pool();
            if pool.releasable(&freeing) != Releasable::Now {
                return Some(freeing);
            }
            let plan = pool.plan_release(freeing);
            let held = hold_in_tiers(&mut pool, &plan);
            (plan, held)
        };
        let slice = plan.slice();
        for (region, range) in &held {
            self.scrub_in_tier(&plan, *region, *range);
        }
        let held: Vec<_> = held.into_iter().map(|(_, range)| range).collect();
        if !held.is_empty() {
            self.unpin(slice, &held);
        }
        self.carry_out(plan);
        None
    }

    /// Overwrites what a plan says in one region that lies in a tier.
    fn scrub_in_tier(&self, plan: &ReleasePlan, region: RegionIndex, addresses: DeviceRange) {
        for range in plan.scrub() {
            let (Some(end), Some(region_end)) = (range.end(), addresses.end()) else { continue };
            let (start, end) = (range.start.max(addresses.start), end.min(region_end));
            if let (Some(offset), Some(len)) =
                (start.0.checked_sub(addresses.start.0), end.0.checked_sub(start.0))
                && len > 0
            {
                self.tiers.scrub((plan.slice(), region), offset, len);
            }
        }
    }

    /// The addresses of the regions a range touches.
    fn regions_around(&self, slice: SliceId, range: DeviceRange) -> DeviceRange {
        self.pool().regions_around(slice, range).unwrap_or(range)
    }

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
                self.tiers.forget((plan.slice(), backing.region));
            }
            for region in plan.discard() {
                self.tiers.forget((plan.slice(), *region));
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

/// Keeps the regions a plan scrubs where they are, of those in tiers.
fn hold_in_tiers(pool: &mut Pool, plan: &ReleasePlan) -> Vec<(RegionIndex, DeviceRange)> {
    let slice = plan.slice();
    if !pool.has_stored(slice) {
        return Vec::new();
    }
    let extents = plan.scrub().iter().flat_map(|range| pool.extents(slice, *range));
    let mut regions: Vec<_> =
        extents.filter(|extent| extent.place == Place::Tier).map(|extent| extent.region).collect();
    regions.dedup();
    regions.into_iter().filter_map(|region| pool.hold(slice, region).map(|range| (region, range))).collect()
}
