//! The way back: from a freed allocation to free bytes and free shards.

use vram_gpu::{DeviceAddress, DeviceRange};

use crate::slice::Vacated;
use crate::span::Span;
use crate::{Backing, Pool, PoolError, RegionIndex, RegionState, SliceId};

/// An allocation that is no longer live; its bytes are quarantined. Give it to
/// [`Pool::plan_release`](crate::Pool::plan_release) once nothing in flight touches the bytes.
#[must_use = "the bytes stay quarantined until they are released"]
#[derive(Debug, PartialEq, Eq)]
pub struct Freeing {
    pub(crate) slice: SliceId,
    pub(crate) range: DeviceRange,
}

impl Freeing {
    /// Whose it was.
    pub fn slice(&self) -> SliceId {
        self.slice
    }

    /// What was allocated.
    pub fn range(&self) -> DeviceRange {
        self.range
    }
}

/// What to do before bytes may be given out again. Do all of it, then call
/// [`Pool::finish_release`](crate::Pool::finish_release).
#[must_use = "the bytes stay quarantined until the release is finished"]
#[derive(Debug, PartialEq, Eq)]
pub struct ReleasePlan {
    pub(crate) slice: SliceId,
    /// The quarantined bytes that become free; `None` for a plan that only takes shards away.
    pub(crate) range: Option<DeviceRange>,
    pub(crate) scrub: Vec<DeviceRange>,
    pub(crate) unback: Vec<Backing>,
    pub(crate) forget: Vec<Backing>,
    pub(crate) discard: Vec<RegionIndex>,
    /// Regions that show bytes of another slice, and stop.
    pub(crate) detach: Vec<RegionIndex>,
}

impl ReleasePlan {
    /// A plan that asks for nothing.
    pub(crate) fn empty(slice: SliceId) -> Self {
        Self {
            slice,
            range: None,
            scrub: Vec::new(),
            unback: Vec::new(),
            forget: Vec::new(),
            discard: Vec::new(),
            detach: Vec::new(),
        }
    }

    /// Whose.
    pub fn slice(&self) -> SliceId {
        self.slice
    }

    /// The freed allocation; none for a plan that only takes regions away.
    pub fn range(&self) -> Option<DeviceRange> {
        self.range
    }

    /// Ranges to overwrite, in order of address, adjacent ones merged. One may lie on several GPUs and in lower tiers:
    /// [`Pool::extents`](crate::Pool::extents) splits it. What lies in a tier must not leave it meanwhile: see
    /// [`Pool::hold`](crate::Pool::hold).
    pub fn scrub(&self) -> &[DeviceRange] {
        &self.scrub
    }

    /// Regions to unmap and whose shards to give back. Their bytes need no scrub by address; whoever reuses the shard
    /// clears it.
    pub fn unback(&self) -> &[Backing] {
        &self.unback
    }

    /// Regions of lost GPUs that are empty now: nothing to scrub or give back, only bookkeeping to drop. The address
    /// range is used again afterwards, so unmap it if the driver still can.
    pub fn forget(&self) -> &[Backing] {
        &self.forget
    }

    /// Regions of which a lower tier has bytes that nobody needs any more: nothing is left in them, or what is scrubbed
    /// on the GPU is not what the tier has.
    pub fn discard(&self) -> &[RegionIndex] {
        &self.discard
    }

    /// Whether nothing is to be done before finishing.
    pub fn is_trivial(&self) -> bool {
        self.scrub.is_empty() && self.unback.is_empty() && self.forget.is_empty() && self.discard.is_empty()
    }
}

/// When freed bytes can be released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Releasable {
    /// At once.
    Now,
    /// When bytes that are on their way have arrived.
    AfterMove,
    /// When those to whom other slices showed them no longer use them.
    AfterUse,
}

impl Pool {
    /// Takes the allocation that starts at `base` out of the live set. Nothing finds it any more; its bytes are
    /// quarantined until released. What of it is exported is revoked.
    pub fn begin_free(&mut self, slice: SliceId, base: DeviceAddress) -> Result<Freeing, PoolError> {
        let found = self.slices.get_mut(&slice).ok_or(PoolError::NoSuchSlice { slice })?;
        let len_bytes =
            found.map.quarantine(base.0).ok_or(PoolError::NoSuchAllocation { slice, address: base })?;
        let range = Span::new(base.0, len_bytes).range();
        let span = Span::reserved_by(range);
        found.vacate(span, Vacated::Quarantined);
        self.revoke_within(slice, span);
        Ok(Freeing { slice, range })
    }

    /// Whether [`Self::plan_release`] can be called for the bytes of a freed allocation.
    pub fn releasable(&self, freeing: &Freeing) -> Releasable {
        let Some(slice) = self.slices.get(&freeing.slice) else { return Releasable::Now };
        let span = Span::reserved_by(freeing.range);
        let moving = |index| slice.band.region(index).is_some_and(|region| region.state.is_moving());
        if slice.band.touched(span).any(moving) {
            Releasable::AfterMove
        } else if self.is_used_within(slice, span) {
            Releasable::AfterUse
        } else {
            Releasable::Now
        }
    }

    /// Says what to do before the bytes of a freed allocation may be used again. Regions in which nothing else is left
    /// are taken away as a whole; what lies in others is to be scrubbed.
    pub fn plan_release(&mut self, freeing: Freeing) -> ReleasePlan {
        let Freeing { slice, range } = freeing;
        let mut plan = ReleasePlan { range: Some(range), ..ReleasePlan::empty(slice) };
        let Some(slice) = self.slices.get_mut(&slice) else { return plan };
        let span = Span::reserved_by(range);
        let mut dirty: Option<Span> = None;
        for index in slice.band.touched(span) {
            let Some(region) = slice.band.region(index).copied() else { continue };
            let part = span.intersection(slice.band.region_span(index));
            let last_in_region =
                region.live_bytes == 0 && u64::from(region.quarantined_bytes) == part.len_bytes();
            if last_in_region && slice.take_away(index, &mut plan) {
                continue;
            }
            let in_tier = region.state == RegionState::Stored && region.live_bytes > 0;
            if in_tier || matches!(region.state, RegionState::Backed(_)) {
                slice.outdate(index, &mut plan);
                match &mut dirty {
                    Some(dirty) if dirty.end == part.start => dirty.end = part.end,
                    _ => plan.scrub.extend(dirty.replace(part).map(Span::range)),
                }
            }
        }
        plan.scrub.extend(dirty.map(Span::range));
        plan
    }

    /// All of a plan is done: scrubbed bytes are free, regions taken away are unbacked, and their shards are back with their
    /// GPUs.
    ///
    /// Returns another plan if regions have become empty only now, because several releases met in them; carry it out
    /// and finish it likewise.
    pub fn finish_release(&mut self, plan: ReleasePlan) -> Option<ReleasePlan> {
        let ReleasePlan { slice, range, scrub: _, unback, forget, discard, detach } = plan;
        for region in detach {
            self.detach(slice, region);
        }
        let slice = self.slices.get_mut(&slice)?;
        for backing in unback.iter().chain(&forget) {
            slice.unback(&mut self.gpus, backing.region);
        }
        for region in discard {
            // Of others only a copy went.
            if slice.band.region(region).is_some_and(|region| region.state == RegionState::Discarding) {
                slice.unback(&mut self.gpus, region);
            }
        }
        let range = range?;
        if !slice.map.is_quarantined(Span::of(range)) {
            return None;
        }
        let span = Span::reserved_by(range);
        slice.end_quarantine(span);
        slice.settle(span)
    }
}
