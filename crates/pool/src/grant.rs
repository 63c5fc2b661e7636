//! Allocations, and the grants they begin as.

use vram_gpu::{DeviceAddress, DeviceRange, GpuId};

use crate::band::Window;
use crate::room::{Room, When};
use crate::slice::{Slice, Vacated};
use crate::span::{Span, round_up_to_granule};
use crate::{AllocError, Backing, Pool, RegionIndex, ReleasePlan, SliceId};

/// What a guest asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocRequest {
    /// Bytes; above zero.
    pub length_bytes: u64,
    /// A power of two up to [`Self::MAX_ALIGNMENT_BYTES`]; zero, and anything below, means
    /// [`Self::MIN_ALIGNMENT_BYTES`].
    pub alignment_bytes: u64,
}

impl AllocRequest {
    /// Every allocation starts at a multiple of this.
    pub const MIN_ALIGNMENT_BYTES: u64 = 256;
    /// Largest alignment an allocation can have.
    pub const MAX_ALIGNMENT_BYTES: u64 = 1 << 30;
}

/// A live allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Its addresses: the length is what was asked for, not what it was rounded to.
    pub range: DeviceRange,
}

/// Addresses reserved for an allocation that is not there yet. End it with [`Pool::commit`](crate::Pool::commit) or
/// [`Pool::abort`](crate::Pool::abort); if it is dropped, the slice stays busy.
#[must_use = "a grant that is neither committed nor aborted keeps its slice busy"]
#[derive(Debug, PartialEq, Eq)]
pub struct Grant {
    pub(crate) slice: SliceId,
    pub(crate) range: DeviceRange,
    pub(crate) backings: Vec<Backing>,
    pub(crate) born_stored: Vec<RegionIndex>,
}

impl Grant {
    /// Whose.
    pub fn slice(&self) -> SliceId {
        self.slice
    }

    /// Where the allocation will be.
    pub fn range(&self) -> DeviceRange {
        self.range
    }

    /// The regions that need a new shard, in order of address; empty if all memory is there already.
    pub fn backings(&self) -> &[Backing] {
        &self.backings
    }

    /// The regions for which no GPU has room and that begin their life in a lower tier, all zeros, in order of address.
    pub fn born_stored(&self) -> &[RegionIndex] {
        &self.born_stored
    }
}

impl Pool {
    /// Finds a place for an allocation and reserves it. Free bytes of backed regions are used first, in the shortest run
    /// that takes the allocation; only if none does, the place that needs the fewest new shards. They go to the slice's
    /// GPUs its placement says.
    ///
    /// A slice has one grant at a time. The caller backs [`Grant::backings`] without holding up others.
    pub fn plan_alloc(&mut self, slice: SliceId, request: AllocRequest) -> Result<Grant, AllocError> {
        let found = self.slices.get(&slice).ok_or(AllocError::NoSuchSlice { slice })?;
        let wanted = Wanted::check(request)?;
        let limit_bytes = self.in_bytes(found.limit_shards);
        if wanted.reserved_bytes > limit_bytes {
            return Err(found.over_limit(self.shard_bytes, wanted.length_bytes));
        }
        if found.pending.is_some() {
            return Err(AllocError::Busy { slice });
        }
        if let Some(span) = found.map.best_fit(wanted.reserved_bytes, wanted.alignment_bytes) {
            return Ok(self.grant(slice, wanted, Window { span, new_shards: 0 }, Vec::new()));
        }
        let window = found.band.find_window(&found.map, wanted.reserved_bytes, wanted.alignment_bytes);
        let mut room = Room::of(&self.gpus, self.slices.values(), found, When::Now);
        let limit_left = found.limit_shards.saturating_sub(found.footprint());
        match window {
            Some(window)
                if window.new_shards
                    <= limit_left.min(room.shards().saturating_add(self.births_left(When::Now))) =>
            {
                let gpus: Vec<_> =
                    (0..window.new_shards).map_while(|_| room.take(&self.gpus, found)).collect();
                Ok(self.grant(slice, wanted, window, gpus))
            }
            window => Err(self.refusal(found, wanted, window, &room)),
        }
    }

    /// All shards of a grant are there: the allocation is live. To be called with grants of this pool only; another's
    /// changes nothing here.
    pub fn commit(&mut self, grant: Grant) -> Allocation {
        let Grant { slice, range, backings, born_stored: _ } = grant;
        let span = Span::reserved_by(range);
        if let Some(slice) = self.slices.get_mut(&slice).filter(|slice| slice.pending == Some(span)) {
            slice.pending = None;
            slice.map.commit(span, range.len_bytes);
            for backing in backings {
                slice.finish_backing(backing.region, span);
            }
        }
        Allocation { range }
    }

    /// A grant comes to nothing: none of its regions has a shard. If a GPU refused one, say which: the pool then believes
    /// it to have no more shards than are in use, until [`Self::restore_capacity`] or until slices give some back.
    ///
    /// Returns a plan if the grant was all that kept some regions; carry it out and finish it.
    pub fn abort(&mut self, grant: Grant, refused: Option<GpuId>) -> Option<ReleasePlan> {
        let Grant { slice, range, backings, born_stored } = grant;
        let span = Span::reserved_by(range);
        let slice = self.slices.get_mut(&slice).filter(|slice| slice.pending == Some(span))?;
        slice.pending = None;
        slice.vacate(span, Vacated::Free);
        for backing in backings {
            slice.unback(&mut self.gpus, backing.region);
        }
        for region in born_stored {
            slice.unback(&mut self.gpus, region);
        }
        let plan = slice.settle(span);
        if let Some(gpu) = refused {
            self.shrink_capacity(gpu);
        }
        plan
    }

    /// The live allocation that has a byte at an address.
    pub fn find(&self, slice: SliceId, address: DeviceAddress) -> Option<Allocation> {
        self.slices.get(&slice)?.allocation_at(address.0).map(|range| Allocation { range })
    }

    /// All live allocations of a slice, in order of address.
    pub fn allocations(&self, slice: SliceId) -> impl Iterator<Item = Allocation> + '_ {
        let live = self.slices.get(&slice).into_iter().flat_map(|slice| slice.map.live());
        live.map(|span| Allocation { range: span.range() })
    }

    /// Books a window, the new shards in it coming from `gpus`.
    fn grant(&mut self, id: SliceId, wanted: Wanted, window: Window, gpus: Vec<GpuId>) -> Grant {
        let range = Span::new(window.span.start, wanted.length_bytes).range();
        let mut grant = Grant { slice: id, range, backings: Vec::new(), born_stored: Vec::new() };
        let Some(slice) = self.slices.get_mut(&id) else { return grant };
        slice.pending = Some(window.span);
        slice.map.grant(window.span);
        if window.new_shards > 0 {
            grant.backings = Vec::with_capacity(gpus.len());
            let unbacked = slice.band.unbacked_in(window.span);
            let mut gpus = gpus.into_iter();
            for region in unbacked {
                match gpus.next() {
                    Some(gpu) => grant.backings.push(slice.begin_backing(&mut self.gpus, region, gpu)),
                    None => {
                        slice.bear_stored(region, window.span);
                        grant.born_stored.push(region);
                    }
                }
            }
        }
        slice.occupy(window.span);
        grant
    }

    /// Why an allocation cannot be had.
    fn refusal(&self, slice: &Slice, wanted: Wanted, window: Option<Window>, room: &Room) -> AllocError {
        let requested_bytes = wanted.length_bytes;
        let over_limit = slice.over_limit(self.shard_bytes, requested_bytes);
        let out_of_memory = AllocError::OutOfMemory {
            requested_bytes,
            free_bytes: self.in_bytes(room.shards().saturating_add(self.births_left(When::Now))),
        };
        // What is live stays where it is: beside it, the limit has to take the allocation. (Live bytes on a lost GPU
        // take nothing of the limit.)
        let limit_bytes = self.in_bytes(slice.limit_shards);
        let any_lost = self.gpus.iter().any(|gpu| gpu.lost);
        if !any_lost && wanted.reserved_bytes > limit_bytes.saturating_sub(slice.live_bytes) {
            return over_limit;
        }
        // On a GPU that is drained it may still go where memory is already.
        if wanted.reserved_bytes > self.in_bytes(self.gpus.present_total().saturating_add(self.tier_regions))
        {
            return out_of_memory;
        }
        if slice.is_releasing() {
            return AllocError::QuarantinePending { requested_bytes };
        }
        match window {
            None => AllocError::Fragmented { requested_bytes },
            Some(window) if window.new_shards > slice.limit_shards.saturating_sub(slice.footprint()) => {
                over_limit
            }
            Some(window) => {
                let later = Room::of(&self.gpus, self.slices.values(), slice, When::AfterReturns);
                if window.new_shards <= later.shards().saturating_add(self.births_left(When::AfterReturns)) {
                    AllocError::QuarantinePending { requested_bytes }
                } else {
                    out_of_memory
                }
            }
        }
    }
}

/// A request that makes sense.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    length_bytes: u64,
    /// The length in whole granules.
    reserved_bytes: u64,
    alignment_bytes: u64,
}

impl Wanted {
    fn check(request: AllocRequest) -> Result<Self, AllocError> {
        let AllocRequest { length_bytes, alignment_bytes } = request;
        let aligned_as_any = alignment_bytes == 0;
        if !aligned_as_any
            && (!alignment_bytes.is_power_of_two() || alignment_bytes > AllocRequest::MAX_ALIGNMENT_BYTES)
        {
            return Err(AllocError::BadAlignment { alignment_bytes });
        }
        let reserved_bytes = round_up_to_granule(length_bytes).filter(|&reserved_bytes| reserved_bytes > 0);
        Ok(Self {
            length_bytes,
            reserved_bytes: reserved_bytes.ok_or(AllocError::BadLength { length_bytes })?,
            alignment_bytes: alignment_bytes.max(AllocRequest::MIN_ALIGNMENT_BYTES),
        })
    }
}
