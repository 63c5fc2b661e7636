//! Keeping room ahead of demand, and limits and drains obeyed, in the background.

use std::sync::Weak;
use std::time::Duration;

use vram_pool::{RegionIndex, SliceId};

use crate::Residency;
use crate::bell::Bell;

/// How often it is looked.
const INTERVAL: Duration = Duration::from_millis(200);
/// Of the host tier's slots one in so many is kept free for what is evicted next, as far as lower tiers take it.
const FREE_SLOTS: u32 = 16;

/// The thread that tends to tiers.
pub(crate) fn tend_all(residency: &Weak<Residency>, bell: &Bell) {
    loop {
        let moved = {
            let Some(residency) = residency.upgrade() else { return };
            let moved = residency.tend();
            let scrubbed = || residency.tiers.host().is_some_and(|host| host.arena().scrub_one());
            moved || scrubbed()
        };
        if !moved {
            bell.wait(INTERVAL);
        }
    }
}

impl Residency {
    /// Moves one region that should move. False if there is none, or it could not.
    fn tend(&self) -> bool {
        if let Some((slice, region)) = self.next_to_evict() {
            return self.evict(slice, region);
        }
        self.next_to_sink().is_some_and(|(slice, region)| self.sink(slice, region))
    }

    fn next_to_evict(&self) -> Option<(SliceId, RegionIndex)> {
        let now = self.tiers.now();
        let pool = self.pool();
        pool.next_over_limit(now)
            .or_else(|| pool.next_off_drained(now))
            .or_else(|| pool.next_ahead_of_demand(pool.kept_free(), now))
    }

    /// The coldest region in the host tier, if that is nearly full.
    fn next_to_sink(&self) -> Option<(SliceId, RegionIndex)> {
        let host = self.tiers.host()?;
        let slots = host.arena().slots();
        let low = slots.checked_div(FREE_SLOTS).unwrap_or(0).max(1);
        if !self.tiers.has_below_host() || host.arena().free_slots() >= low {
            return None;
        }
        if self.drop_a_copy() {
            return None;
        }
        let now = self.tiers.now();
        let in_slots = self.tiers.in_slots();
        let pool = self.pool();
        let stored = in_slots.into_iter().filter(|(slice, region)| pool.is_stored_unused(*slice, *region));
        stored.min_by_key(|(slice, region)| pool.demand(*slice, *region, now))
    }
}
