//! The invariants, checked.

mod shares;

use vram_gpu::{DeviceAddress, GpuId};

use crate::block::BlockUse;
use crate::gpu::ShardCounts;
use crate::slice::Slice;
use crate::span::{GRANULE_BYTES, Span};
use crate::{Pool, RegionIndex, RegionState, Residence, ShareId, SliceId};

/// An invariant that does not hold: a bug in this crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A byte is in two places of the books, or outside the band.
    #[error("{slice} books {address} twice or outside its band")]
    Overlap {
        /// Whose.
        slice: SliceId,
        /// First address of the later booking.
        address: DeviceAddress,
    },
    /// A span does not start at a multiple of 256.
    #[error("{slice} has {address} misaligned")]
    Misaligned {
        /// Whose.
        slice: SliceId,
        /// Where.
        address: DeviceAddress,
    },
    /// Two free spans touch, the two orders of the free ones differ, or something else is granted than what is pending.
    #[error("The address map of {slice} is out of order")]
    FreeMap {
        /// Whose.
        slice: SliceId,
    },
    /// A region's counts are not the sum of what lies in it, or contradict its state.
    #[error("{region} of {slice} does not add up")]
    Region {
        /// Whose.
        slice: SliceId,
        /// Which.
        region: RegionIndex,
    },
    /// The runs of unbacked regions are not those of the regions.
    #[error("{slice} has its unbacked regions wrong")]
    UnbackedRuns {
        /// Whose.
        slice: SliceId,
    },
    /// A slice's sums differ from what they sum.
    #[error("The sums of {slice} are wrong")]
    SliceSums {
        /// Whose.
        slice: SliceId,
    },
    /// A slice holds more than its limit, or than it held when that was lowered.
    #[error("{slice} holds more than its limit")]
    OverLimit {
        /// Whose.
        slice: SliceId,
    },
    /// A share is not shown by those who should show it, is used by others than them, or should be gone.
    #[error("{share} does not add up")]
    Share {
        /// Which.
        share: ShareId,
    },
    /// A GPU's used shards are not what slices hold, or more than it has.
    #[error("{gpu} does not add up")]
    Gpu {
        /// Which.
        gpu: GpuId,
    },
    /// More is guaranteed than there is.
    #[error("{guaranteed_shards} shards are guaranteed, {configured_shards} are there")]
    Guarantees {
        /// Sum of guarantees.
        guaranteed_shards: u64,
        /// Shards of all GPUs as configured.
        configured_shards: u64,
    },
}

/// What a span is in the books.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Booked {
    Free,
    Live,
    Quarantined,
}

impl Pool {
    /// Checks every invariant by counting all anew. For tests: it walks all that is booked.
    pub fn verify(&self) -> Result<(), Violation> {
        let mut held = ShardCounts::default();
        let mut guaranteed_shards = 0u64;
        for slice in self.slices.values() {
            verify_slice(slice)?;
            guaranteed_shards = guaranteed_shards.saturating_add(u64::from(slice.guarantee_shards));
            for gpu in self.gpus.iter() {
                held.add(gpu.id, slice.held.of(gpu.id).saturating_add(slice.incoming.of(gpu.id)));
            }
        }
        for gpu in self.gpus.iter() {
            let within = gpu.used_shards <= gpu.capacity_shards && gpu.promised_shards <= gpu.capacity_shards;
            if gpu.used_shards != held.of(gpu.id) || !within {
                return Err(Violation::Gpu { gpu: gpu.id });
            }
        }
        self.verify_shares()?;
        let configured_shards = u64::from(self.gpus.configured_total());
        if guaranteed_shards > configured_shards {
            return Err(Violation::Guarantees { guaranteed_shards, configured_shards });
        }
        Ok(())
    }
}

fn verify_slice(slice: &Slice) -> Result<(), Violation> {
    let id = slice.id;
    let booked = booked_spans(slice);
    verify_order(slice, &booked)?;
    let granted = slice.map.spans().filter(|(_, used)| *used == BlockUse::Granted).map(|(span, _)| span);
    if !slice.map.is_consistent() || !granted.eq(slice.pending) {
        return Err(Violation::FreeMap { slice: id });
    }
    let sum = |kind| {
        let lengths = booked.iter().filter(|(_, booked)| *booked == kind).map(|(span, _)| span.len_bytes());
        lengths.fold(0u64, u64::saturating_add)
    };
    let (mut held, mut returning) = (ShardCounts::default(), ShardCounts::default());
    verify_regions(slice, &booked, &mut held, &mut returning)?;
    let count = |counted: fn(RegionState) -> bool| {
        let regions = slice.band.regions().filter(|(_, region)| counted(region.state)).count();
        u32::try_from(regions).unwrap_or(u32::MAX)
    };
    let stored = count(RegionState::is_stored);
    let shown = count(RegionState::takes_nothing);
    let discarding = count(|state| state == RegionState::Discarding);
    let promoting = count(|state| matches!(state, RegionState::Promoting(_)));
    let mut evicting = ShardCounts::default();
    for (_, region) in slice.band.regions() {
        if let RegionState::Evicting(gpu) = region.state {
            evicting.add(gpu, 1);
        }
    }
    if sum(Booked::Live) != slice.live_bytes
        || sum(Booked::Quarantined) != slice.quarantined_bytes
        || !held.equal(&slice.held)
        || !returning.equal(&slice.returning)
        || !evicting.equal(&slice.evicting)
        || promoting != slice.promoting
        || discarding != slice.discarding
        || shown != slice.shown
    {
        return Err(Violation::SliceSums { slice: id });
    }
    if slice.footprint() > slice.most_shards || stored != slice.stored {
        return Err(Violation::OverLimit { slice: id });
    }
    verify_runs(slice)
}

/// Everything booked, in order of address.
fn booked_spans(slice: &Slice) -> Vec<(Span, Booked)> {
    let booked = |(span, used)| match used {
        BlockUse::Closed => None,
        BlockUse::Free => Some((span, Booked::Free)),
        BlockUse::Live { .. } | BlockUse::Granted => Some((span, Booked::Live)),
        BlockUse::Quarantined { .. } => Some((span, Booked::Quarantined)),
    };
    slice.map.spans().filter_map(booked).collect()
}

/// Booked spans overlap nowhere, are aligned, and free ones do not touch.
fn verify_order(slice: &Slice, booked: &[(Span, Booked)]) -> Result<(), Violation> {
    let mut reached = slice.band.span().start;
    let mut last = None;
    for &(span, kind) in booked {
        if span.is_empty() || span.start < reached || span.end > slice.band.span().end {
            return Err(Violation::Overlap { slice: slice.id, address: DeviceAddress(span.start) });
        }
        if !span.start.is_multiple_of(GRANULE_BYTES) || !span.end.is_multiple_of(GRANULE_BYTES) {
            return Err(Violation::Misaligned { slice: slice.id, address: DeviceAddress(span.start) });
        }
        if kind == Booked::Free && last == Some(Booked::Free) && span.start == reached {
            return Err(Violation::FreeMap { slice: slice.id });
        }
        reached = span.end;
        last = Some(kind);
    }
    Ok(())
}

/// Every region's bytes add up, and are what its state allows.
fn verify_regions(
    slice: &Slice,
    booked: &[(Span, Booked)],
    held: &mut ShardCounts,
    returning: &mut ShardCounts,
) -> Result<(), Violation> {
    let mut rest = booked;
    for (index, region) in slice.band.regions() {
        let window = slice.band.region_span(index);
        let (mut free, mut live, mut quarantined) = (0u64, 0u64, 0u64);
        while let Some((&(span, kind), later)) = rest.split_first() {
            let bytes = span.intersection(window).len_bytes();
            match kind {
                Booked::Free => free = free.saturating_add(bytes),
                Booked::Live => live = live.saturating_add(bytes),
                Booked::Quarantined => quarantined = quarantined.saturating_add(bytes),
            }
            if span.end > window.end {
                break;
            }
            rest = later;
        }
        let busy = live.saturating_add(quarantined);
        let allowed = match region.state {
            RegionState::Unbacked => free == 0 && busy == 0,
            RegionState::Backing(_) => free == 0 && live > 0 && quarantined == 0 && slice.pending.is_some(),
            RegionState::Backed(_) => busy > 0 && busy.saturating_add(free) == window.len_bytes(),
            RegionState::Moving { .. }
            | RegionState::Evicting(_)
            | RegionState::Promoting(_)
            | RegionState::Shifting => busy.saturating_add(free) == window.len_bytes(),
            RegionState::Stored if live > 0 => busy.saturating_add(free) == window.len_bytes(),
            RegionState::Stored | RegionState::Discarding => free == 0 && live == 0,
            RegionState::Returning(_) => free == 0 && live == 0,
            RegionState::Lost(_) | RegionState::Damaged => free == 0,
            RegionState::Forgetting(_) => free == 0 && live == 0,
            RegionState::Shared | RegionState::Revoked | RegionState::Privatizing(_) => {
                free == 0 && busy > 0 && slice.attachment(index).is_some()
            }
        };
        if !allowed
            || !heat_agrees(slice, index, region.state)
            || live != u64::from(region.live_bytes)
            || quarantined != u64::from(region.quarantined_bytes)
        {
            return Err(Violation::Region { slice: slice.id, region: index });
        }
        if let Some(gpu) = region.state.holder() {
            held.add(gpu, 1);
        }
        if let Some(gpu) = region.returning_to() {
            returning.add(gpu, 1);
        }
    }
    Ok(())
}

/// The heat knows a region where it is. Of one whose last bytes are on their way out it may know either.
fn heat_agrees(slice: &Slice, index: RegionIndex, state: RegionState) -> bool {
    if slice.heat.is_empty() {
        return true;
    }
    let residence = slice.heat.residence(index);
    match state {
        RegionState::Backed(_) | RegionState::Moving { .. } | RegionState::Evicting(_) => {
            matches!(residence, Some(Residence::Gpu(_)))
        }
        RegionState::Stored | RegionState::Shifting | RegionState::Promoting(_) => {
            residence == Some(Residence::Tier)
        }
        RegionState::Returning(_) | RegionState::Discarding => true,
        _ => residence.is_none(),
    }
}

/// The runs of unbacked regions are all of them, each as long as it can be.
fn verify_runs(slice: &Slice) -> Result<(), Violation> {
    let mut expected: Vec<(u32, u32)> = Vec::new();
    for (index, region) in slice.band.regions() {
        if region.state != RegionState::Unbacked {
            continue;
        }
        match expected.last_mut() {
            Some((first, count)) if first.saturating_add(*count) == index.0 => {
                *count = count.saturating_add(1)
            }
            _ => expected.push((index.0, 1)),
        }
    }
    if slice.band.unbacked_runs().eq(expected) {
        Ok(())
    } else {
        Err(Violation::UnbackedRuns { slice: slice.id })
    }
}
