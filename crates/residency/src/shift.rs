//! Moving regions between tiers: up, to where they can be written to, and down.

use vram_guest_memory::HostSpan;
use vram_pool::{RegionIndex, SliceId};
use vram_tier::Remedy;

use crate::Residency;
use crate::kept::Body;
use crate::moves::MoveError;

impl Residency {
    /// Brings a stored region into a slot of the host tier, where it can be written to. False if there is no slot.
    pub(crate) fn lift(&self, slice: SliceId, region: RegionIndex) -> Result<bool, MoveError> {
        if self.tiers.host().is_none_or(|host| host.arena().free_slots() == 0) {
            return Ok(false);
        }
        if !self.pool().begin_shift(slice, region) {
            return Ok(true);
        }
        let lifted = self.wait_quiet(slice, region, |_| true).and_then(|()| {
            let Some(kept) = self.tiers.get((slice, region)) else { return Ok(false) };
            if self.tiers.in_place(&kept).is_some() {
                return Ok(true);
            }
            let shard_bytes = self.pool().shard_bytes();
            let fill = |span: &HostSpan| match &kept.body {
                Body::Zeros => Ok(()),
                Body::Stored { .. } => self.tiers.read(&kept, 0, span),
            };
            let Some(slotted) = self.tiers.take_slot(fill, shard_bytes)? else { return Ok(false) };
            self.tiers.keep((slice, region), slotted);
            Ok(true)
        });
        self.end_shift(slice, region, lifted.as_ref().err());
        lifted
    }

    /// Moves a region down from the tier it is in. False if it stays.
    pub(crate) fn sink(&self, slice: SliceId, region: RegionIndex) -> bool {
        if !self.pool().begin_shift(slice, region) {
            return false;
        }
        let sunk = self.wait_quiet(slice, region, |_| true).and_then(|()| {
            let Some(kept) = self.tiers.get((slice, region)) else { return Ok(()) };
            let Body::Stored { rung, stored } = &kept.body else { return Ok(()) };
            let bring = |to: &HostSpan| -> Result<(), MoveError> { Ok(self.tiers.read(&kept, 0, to)?) };
            let lower = self.tiers.put(rung.saturating_add(1), stored.len_bytes(), bring)?;
            self.tiers.keep((slice, region), lower);
            Ok(())
        });
        self.end_shift(slice, region, sunk.as_ref().err());
        sunk.is_ok()
    }

    fn end_shift(&self, slice: SliceId, region: RegionIndex, failure: Option<&MoveError>) {
        let damaged = matches!(failure, Some(MoveError::Tier(error)) if error.remedy() == Remedy::BytesLost);
        let plan = {
            let mut pool = self.pool();
            if damaged { pool.mark_damaged(slice, region) } else { pool.finish_shift(slice, region) }
        };
        if let Some(error) = failure.filter(|_| damaged) {
            self.report_fetch(slice, region, error);
        }
        if let Some(plan) = plan {
            self.carry_out(plan);
        }
        self.moved(slice, region);
    }
}
