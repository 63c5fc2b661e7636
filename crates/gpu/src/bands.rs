//! The book of bands: which device addresses are reserved, what is mapped there, and which GPUs may touch it.
//!
//! Pure bookkeeping that every backend keeps beside its driver, so that a wrong address is a [`GpuError::BadRange`]
//! at the call and never a fault on the device, which would take the whole context with it.
//!
//! A change that needs the driver in the middle is made in two steps, so that no lock is held across the driver's
//! call: *claim* (nobody else can use or claim the range meanwhile), then *settle* or *forget*.

use std::collections::BTreeMap;

use crate::{DeviceAddress, DeviceRange, GpuError, GpuId};

/// A set of GPUs. Numbers from [`GpuSet::CAPACITY`] up are never in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuSet(u64);

impl GpuSet {
    /// GPUs a set can hold: far above what one host has.
    pub const CAPACITY: usize = 64;

    /// The set of these GPUs.
    pub fn of(gpus: &[GpuId]) -> Self {
        Self(gpus.iter().map(|gpu| Self::bit(*gpu)).fold(0, |set, bit| set | bit))
    }

    /// Whether a GPU is in it.
    pub fn contains(self, gpu: GpuId) -> bool {
        self.0 & Self::bit(gpu) != 0
    }

    /// The GPUs in it, lowest number first.
    pub fn iter(self) -> impl Iterator<Item = GpuId> {
        (0u16..64).map(GpuId).filter(move |gpu| self.contains(*gpu))
    }

    /// The GPUs that are in both.
    pub fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    fn bit(gpu: GpuId) -> u64 {
        1u64.checked_shl(u32::from(gpu.0)).unwrap_or(0)
    }
}

/// A shard in a band.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Where.
    pub range: DeviceRange,
    /// The GPU whose memory it is.
    pub gpu: GpuId,
    /// The backend's name of the shard.
    pub shard: u64,
    /// Who may touch it.
    pub access: GpuSet,
    /// Whether it is on its way in or out.
    claimed: bool,
}

/// What lies behind a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The one GPU whose memory it is.
    pub home: GpuId,
    /// The GPUs that may touch all of it.
    pub access: GpuSet,
}

/// Bands and what is mapped in them.
#[derive(Debug)]
pub struct Bands {
    granularity_bytes: u64,
    bands: BTreeMap<DeviceAddress, Band>,
}

#[derive(Debug)]
struct Band {
    range: DeviceRange,
    mappings: BTreeMap<DeviceAddress, Mapping>,
}

impl Bands {
    /// An empty book. Maps and bands are multiples of the granularity (not zero).
    pub fn new(granularity_bytes: u64) -> Self {
        Self { granularity_bytes: granularity_bytes.max(1), bands: BTreeMap::new() }
    }

    /// Number of bands.
    pub fn band_count(&self) -> usize {
        self.bands.len()
    }

    /// Number of mapped shards.
    pub fn mapping_count(&self) -> usize {
        self.bands.values().map(|band| band.mappings.len()).sum()
    }

    /// Checks the arguments of a reservation.
    pub fn check_reservation(
        &self,
        start: u64,
        len_bytes: u64,
        alignment_bytes: u64,
    ) -> Result<(), GpuError> {
        let range = DeviceRange { start: DeviceAddress(start), len_bytes };
        if len_bytes == 0 || !self.is_aligned(len_bytes) || !self.is_aligned(start) {
            return Err(bad(range, "not a multiple of the granularity"));
        }
        if !alignment_bytes.is_power_of_two() {
            return Err(bad(range, "to be aligned to something that is no power of two"));
        }
        match range.end() {
            Some(_) => Ok(()),
            None => Err(GpuError::OutOfAddressSpace { len_bytes }),
        }
    }

    /// Notes a band. The caller has reserved its addresses, so no other band overlaps it.
    pub fn insert_band(&mut self, range: DeviceRange) {
        self.bands.insert(range.start, Band { range, mappings: BTreeMap::new() });
    }

    /// Takes a band out of the book; a caller whose driver refuses to free it puts it back.
    pub fn claim_band(&mut self, range: DeviceRange) -> Result<(), GpuError> {
        let band = self.bands.get(&range.start).filter(|band| band.range == range);
        match band {
            None => Err(bad(range, "not a reserved band")),
            Some(band) if !band.mappings.is_empty() => Err(bad(range, "still mapped")),
            Some(_) => {
                self.bands.remove(&range.start);
                Ok(())
            }
        }
    }

    /// Claims a place for a shard. Settle it when it is mapped, or forget it.
    pub fn claim_map(&mut self, range: DeviceRange, gpu: GpuId, shard: u64) -> Result<(), GpuError> {
        if range.len_bytes == 0 || !self.is_aligned(range.start.0) || !self.is_aligned(range.len_bytes) {
            return Err(bad(range, "not a multiple of the granularity"));
        }
        let band = self.band_mut(range)?;
        // A mapping that starts before the range's end overlaps it unless it ends before the range starts.
        let end = range.end().unwrap_or(range.start);
        let before = band.mappings.range(..end).next_back();
        if before.and_then(|(_, mapping)| mapping.range.end()).is_some_and(|taken| taken > range.start) {
            return Err(bad(range, "already mapped"));
        }
        let mapping = Mapping { range, gpu, shard, access: GpuSet::default(), claimed: true };
        band.mappings.insert(range.start, mapping);
        Ok(())
    }

    /// Claims mapped shards to take them out: a run of whole ones. Forget them when they are unmapped, or settle.
    pub fn claim_unmap(&mut self, range: DeviceRange) -> Result<Vec<Mapping>, GpuError> {
        let found = self.whole(range)?;
        self.each(range, |mapping| mapping.claimed = true);
        Ok(found)
    }

    /// Ends a claim: what is in the range is mapped.
    pub fn settle(&mut self, range: DeviceRange) {
        self.each(range, |mapping| mapping.claimed = false);
    }

    /// Ends a claim: what was in the range is not mapped.
    pub fn forget(&mut self, range: DeviceRange) {
        if let Ok(band) = self.band_mut(range) {
            band.mappings.retain(|_, mapping| !range.contains(&mapping.range));
        }
    }

    /// The whole shards that make up a range, lowest first; `BadRange` for anything else.
    pub fn whole(&self, range: DeviceRange) -> Result<Vec<Mapping>, GpuError> {
        let run: Vec<Mapping> = self.covering(range)?.copied().collect();
        let starts = run.first().is_some_and(|first| first.range.start == range.start);
        let ends = run.last().is_some_and(|last| last.range.end() == range.end());
        if starts && ends { Ok(run) } else { Err(bad(range, "not made of whole shards")) }
    }

    /// Notes who may touch a range of whole shards from now on.
    pub fn set_access(&mut self, range: DeviceRange, access: GpuSet) -> Result<(), GpuError> {
        self.whole(range)?;
        self.each(range, |mapping| mapping.access = access);
        Ok(())
    }

    /// Empties the book: every band with the ranges mapped in it, for a backend that gives everything back.
    pub fn take_all(&mut self) -> Vec<(DeviceRange, Vec<DeviceRange>)> {
        let bands = std::mem::take(&mut self.bands).into_values();
        bands
            .map(|band| (band.range, band.mappings.values().map(|mapping| mapping.range).collect()))
            .collect()
    }

    /// What lies behind a range: `BadRange` unless all of it is mapped, and on one GPU.
    pub fn resolve(&self, range: DeviceRange) -> Result<Resolved, GpuError> {
        let mut resolved: Option<Resolved> = None;
        for mapping in self.covering(range)? {
            resolved = Some(match resolved {
                None => Resolved { home: mapping.gpu, access: mapping.access },
                Some(so_far) if so_far.home == mapping.gpu => {
                    Resolved { access: so_far.access.intersection(mapping.access), ..so_far }
                }
                Some(_) => return Err(bad(range, "spread over several GPUs")),
            });
        }
        resolved.ok_or_else(|| bad(range, "not mapped"))
    }

    /// The mappings that together cover a range without a gap, lowest first; none of them claimed.
    pub fn covering(&self, range: DeviceRange) -> Result<impl Iterator<Item = &Mapping>, GpuError> {
        let band = self.band(range)?;
        let end = range.end().unwrap_or(range.start);
        let first = match band.mappings.range(..=range.start).next_back() {
            Some((start, _)) => *start,
            None => return Err(bad(range, "not mapped")),
        };
        let mut covered = range.start;
        for mapping in band.mappings.range(first..end).map(|(_, mapping)| mapping) {
            let mapping_end = mapping.range.end().unwrap_or(mapping.range.start);
            if mapping.claimed || mapping.range.start > covered || mapping_end <= covered {
                return Err(bad(range, "not mapped"));
            }
            covered = mapping_end;
        }
        if covered < end || range.len_bytes == 0 {
            return Err(bad(range, "not mapped"));
        }
        Ok(band.mappings.range(first..end).map(|(_, mapping)| mapping))
    }

    fn each(&mut self, range: DeviceRange, mut change: impl FnMut(&mut Mapping)) {
        if let Ok(band) = self.band_mut(range) {
            band.mappings.values_mut().filter(|mapping| range.contains(&mapping.range)).for_each(&mut change);
        }
    }

    fn band(&self, range: DeviceRange) -> Result<&Band, GpuError> {
        let band = self.bands.range(..=range.start).next_back().map(|(_, band)| band);
        band.filter(|band| band.range.contains(&range)).ok_or_else(|| bad(range, "outside every band"))
    }

    fn band_mut(&mut self, range: DeviceRange) -> Result<&mut Band, GpuError> {
        let band = self.bands.range_mut(..=range.start).next_back().map(|(_, band)| band);
        band.filter(|band| band.range.contains(&range)).ok_or_else(|| bad(range, "outside every band"))
    }

    fn is_aligned(&self, bytes: u64) -> bool {
        bytes.is_multiple_of(self.granularity_bytes)
    }
}

fn bad(range: DeviceRange, problem: &'static str) -> GpuError {
    GpuError::BadRange { start: range.start, len_bytes: range.len_bytes, problem }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "a wrong sum is a failed test")]
mod tests {
    use super::*;

    const UNIT: u64 = 0x1000;
    const BASE: u64 = 0x10_0000;

    fn range(start_units: u64, len_units: u64) -> DeviceRange {
        DeviceRange { start: DeviceAddress(BASE + start_units * UNIT), len_bytes: len_units * UNIT }
    }

    fn book() -> Bands {
        let mut bands = Bands::new(UNIT);
        bands.insert_band(range(0, 16));
        bands
    }

    fn map(bands: &mut Bands, at: DeviceRange, gpu: u16) {
        bands.claim_map(at, GpuId(gpu), 7).unwrap();
        bands.settle(at);
        bands.set_access(at, GpuSet::of(&[GpuId(gpu)])).unwrap();
    }

    #[test]
    fn claim_map_overlapping_is_refused() {
        let mut bands = book();
        map(&mut bands, range(4, 4), 0);
        for taken in [range(4, 4), range(5, 1), range(2, 3), range(7, 2), range(0, 16)] {
            assert!(bands.claim_map(taken, GpuId(0), 8).is_err(), "{taken}");
        }
        assert!(bands.claim_map(range(2, 2), GpuId(0), 8).is_ok());
        assert!(bands.claim_map(range(8, 8), GpuId(0), 9).is_ok());
        assert!(bands.claim_map(range(16, 1), GpuId(0), 9).is_err());
    }

    #[test]
    fn resolve_over_two_shards_of_one_gpu_is_one_range() {
        let mut bands = book();
        map(&mut bands, range(0, 2), 1);
        map(&mut bands, range(2, 2), 1);
        let inner = DeviceRange { start: DeviceAddress(BASE + 5), len_bytes: 3 * UNIT };
        assert_eq!(bands.resolve(inner).unwrap().home, GpuId(1));
        assert!(bands.resolve(range(1, 4)).is_err());
    }

    #[test]
    fn resolve_over_two_gpus_is_refused() {
        let mut bands = book();
        map(&mut bands, range(0, 2), 0);
        map(&mut bands, range(2, 2), 1);
        assert!(bands.resolve(range(1, 2)).is_err());
    }

    #[test]
    fn claimed_mapping_cannot_be_used_until_settled() {
        let mut bands = book();
        map(&mut bands, range(0, 2), 0);
        bands.claim_unmap(range(0, 2)).unwrap();
        assert!(bands.resolve(range(0, 1)).is_err());
        assert!(bands.claim_unmap(range(0, 2)).is_err());
        assert!(bands.claim_map(range(0, 2), GpuId(0), 9).is_err());
        assert!(bands.claim_band(range(0, 16)).is_err());
        bands.settle(range(0, 2));
        assert!(bands.resolve(range(0, 1)).is_ok());
    }

    #[test]
    fn unmap_of_part_of_a_shard_is_refused() {
        let mut bands = book();
        map(&mut bands, range(0, 4), 0);
        for part in [range(0, 2), range(2, 2), range(0, 5), range(0, 0)] {
            assert!(bands.claim_unmap(part).is_err(), "{part}");
        }
    }

    #[test]
    fn free_band_needs_its_exact_range_and_no_mapping() {
        let mut bands = book();
        map(&mut bands, range(0, 1), 0);
        assert!(bands.claim_band(range(0, 16)).is_err());
        bands.claim_unmap(range(0, 1)).unwrap();
        bands.forget(range(0, 1));
        assert!(bands.claim_band(range(0, 8)).is_err());
        assert!(bands.claim_band(range(0, 16)).is_ok());
        assert!(bands.claim_band(range(0, 16)).is_err());
    }

    #[test]
    fn ranges_that_wrap_are_refused() {
        let bands = book();
        let wrapping = DeviceRange { start: DeviceAddress(u64::MAX - 1), len_bytes: 16 };
        assert!(bands.resolve(wrapping).is_err());
        assert!(bands.check_reservation(0, !(UNIT - 1), UNIT).is_ok());
        assert!(bands.check_reservation(UNIT, !(UNIT - 1), UNIT).is_err());
    }
}
