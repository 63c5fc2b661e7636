//! Steps that show bytes of one slice to another, and that read and write what is in memory.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use vram_pool::{Audience, Extent, Privatization, PrivatizeError, ShareError, ShareId, Unpinned};

use super::*;

pub(super) struct ModelShare {
    id: ShareId,
    owner: usize,
    range: DeviceRange,
    rights: Rights,
    only: Option<usize>,
    revoked: bool,
}

/// An allocation that shows bytes of another slice.
#[derive(Clone, Copy)]
pub(super) struct Attached {
    /// Which share, in the order they were made.
    share: usize,
    owner: usize,
    rights: Rights,
    range: DeviceRange,
    owner_start: u64,
    /// Regions of the owner are so many further on, or back.
    shift: i64,
    revoked: bool,
}

/// Bytes that are in use.
pub(super) struct Pinned {
    index: usize,
    range: DeviceRange,
    kind: AccessKind,
    extents: Vec<Extent>,
    /// Regions that show others: itself, the share, the owner and its region.
    sources: Vec<Source>,
}

#[derive(Clone, Copy)]
struct Source {
    region: usize,
    share: usize,
    owner: usize,
    owner_region: usize,
}

/// A private copy that is being made, and what it uses.
pub(super) struct Private {
    privatization: Privatization,
    source: Source,
}

impl Pinned {
    pub(super) fn is_of(&self, index: usize, range: DeviceRange) -> bool {
        (self.index, self.range) == (index, range)
    }
}

impl ModelSlice {
    fn regions_of(&self, range: DeviceRange, shard_bytes: u64) -> RangeInclusive<usize> {
        let (start, end) = (range.start.0 - self.start, range.end().unwrap().0 - self.start);
        (start / shard_bytes) as usize..=((end - 1) / shard_bytes) as usize
    }

    /// What a region shows, if it shows anything.
    fn shows(&self, region: usize, shard_bytes: u64) -> Option<Attached> {
        let around = |at: &&Attached| self.regions_of(at.range, shard_bytes).contains(&region);
        self.attached.values().find(around).copied().filter(|_| is_shown(&self.regions[region]))
    }

    fn source(&self, region: usize, shard_bytes: u64) -> Option<Source> {
        let Attached { share, owner, shift, .. } = self.shows(region, shard_bytes)?;
        Some(Source { region, share, owner, owner_region: (region as i64 + shift) as usize })
    }

    /// The regions of a released range show nothing any more.
    pub(super) fn detach(&mut self, range: DeviceRange, shard_bytes: u64) {
        for region in self.regions_of(range, shard_bytes) {
            if takes_nothing(&self.regions[region]) {
                self.regions[region] = RegionState::Unbacked;
            }
        }
        self.forget_attached(shard_bytes);
    }

    /// Forgets allocations of which no region shows anything any more.
    fn forget_attached(&mut self, shard_bytes: u64) {
        let shows = |at: &Attached| {
            self.regions_of(at.range, shard_bytes).any(|region| is_shown(&self.regions[region]))
        };
        let ended: Vec<_> =
            self.attached.iter().filter(|(_, at)| !shows(at)).map(|(start, _)| *start).collect();
        for start in ended {
            self.attached.remove(&start);
        }
    }

    fn stay_shown(&mut self, region: usize, shard_bytes: u64) {
        let revoked = self.shows(region, shard_bytes).unwrap().revoked;
        self.regions[region] = if revoked { RegionState::Revoked } else { RegionState::Shared };
    }

    pub(super) fn lose_private_copies(&mut self, gpu: GpuId, shard_bytes: u64) {
        for region in 0..self.regions.len() {
            if self.regions[region] == RegionState::Privatizing(Some(gpu)) {
                self.stay_shown(region, shard_bytes);
            }
        }
    }
}

impl Model {
    pub(super) fn export(
        &mut self,
        index: usize,
        nth: usize,
        (offset, granules): (u64, u64),
        rights: Rights,
        only: Option<usize>,
    ) {
        let slice = &self.slices[index];
        if slice.live.is_empty() {
            return;
        }
        let (&base, &len_bytes) = slice.live.iter().nth(nth % slice.live.len()).unwrap();
        let offset = offset % len_bytes.div_ceil(GRANULE) * GRANULE;
        // Sometimes to the end, which is at no granule.
        let range = range_of(base + offset, (granules * GRANULE).min(len_bytes - offset));
        let shown = slice
            .regions_of(range, self.shard_bytes)
            .any(|region| slice.shows(region, self.shard_bytes).is_some());
        let audience = only.map_or(Audience::All, |only| Audience::Slices([self.slices[only].id].into()));
        match self.pool.export(slice.id, range, rights, audience) {
            Ok(id) => {
                assert!(!shown);
                self.shares.push(ModelShare { id, owner: index, range, rights, only, revoked: false });
            }
            Err(ShareError::NotOwned { .. }) => assert!(shown),
            Err(other) => panic!("unexpected {other}"),
        }
        let beyond = range_of(base, len_bytes + 1);
        let refused = self.pool.export(slice.id, beyond, rights, Audience::All);
        assert_eq!(refused, Err(ShareError::BadRange { slice: slice.id, range: beyond }));
    }

    pub(super) fn attach(&mut self, index: usize, nth: usize) {
        // One of the last, or any.
        let count = self.shares.len();
        if count == 0 {
            return;
        }
        let nth = if nth % 2 == 1 { count - 1 - nth / 2 % count.min(3) } else { nth / 2 % count };
        let share = &self.shares[nth];
        let (owner, slice) = (&self.slices[share.owner], &self.slices[index]);
        let there = owner.regions_of(share.range, self.shard_bytes);
        let wanted = there.clone().count();
        let unbacked = |first: &usize| {
            let run = slice.regions.get(*first..*first + wanted);
            run.is_some_and(|run| run.iter().all(|state| *state == RegionState::Unbacked))
        };
        let first = (0..slice.regions.len()).find(unbacked);
        let over_limit = slice.footprint() + wanted as u32 > slice.limit;
        let leaving =
            |region: usize| match slice.regions[region] {
                RegionState::Returning(_) | RegionState::Discarding => true,
                RegionState::Backed(_) => slice.cells_in(region, self.shard_bytes).0 == 0,
                _ => false,
            } || slice.cells_in(region, self.shard_bytes).1 > 0;
        let releasing = (0..slice.regions.len()).any(leaving);
        let allocation = match self.pool.attach(slice.id, share.id) {
            Ok(allocation) => allocation,
            Err(error) => {
                match error {
                    ShareError::NoSuchShare { .. } => assert!(share.revoked),
                    ShareError::NotForSlice { .. } => assert!(share.only.is_some_and(|only| only != index)),
                    ShareError::Room(AllocError::QuarantinePending { .. }) => {
                        assert!(releasing && (over_limit || first.is_none()));
                    }
                    ShareError::Room(AllocError::OverLimit { .. }) => assert!(over_limit && !releasing),
                    ShareError::Room(AllocError::Fragmented { .. }) => {
                        assert!(first.is_none() && !over_limit && !releasing);
                    }
                    other => panic!("unexpected {other}"),
                }
                return;
            }
        };
        assert!(!share.revoked && share.only.is_none_or(|only| only == index) && !over_limit);
        let first = first.unwrap();
        let in_region = |start: u64, slice: &ModelSlice| (start - slice.start) % self.shard_bytes;
        let range = allocation.range;
        assert_eq!(range.len_bytes, share.range.len_bytes);
        assert_eq!(in_region(range.start.0, slice), in_region(share.range.start.0, owner));
        assert_eq!(slice.regions_of(range, self.shard_bytes), first..=first + wanted - 1);
        let attached = Attached {
            share: nth,
            owner: share.owner,
            rights: share.rights,
            range,
            owner_start: share.range.start.0,
            shift: *there.start() as i64 - first as i64,
            revoked: false,
        };
        let slice = &mut self.slices[index];
        slice.regions[first..first + wanted].fill(RegionState::Shared);
        slice.paint(range, Cell::Live);
        slice.live.insert(range.start.0, range.len_bytes);
        slice.attached.insert(range.start.0, attached);
        assert_eq!(self.pool.find(slice.id, range.start), Some(allocation));
    }

    pub(super) fn revoke(&mut self, nth: usize) {
        if self.shares.is_empty() {
            return;
        }
        let nth = nth % self.shares.len();
        let (id, revoked) = (self.shares[nth].id, self.shares[nth].revoked);
        assert_eq!(self.pool.revoke(id).is_err(), revoked);
        self.cut_off(nth);
    }

    fn cut_off(&mut self, nth: usize) {
        self.shares[nth].revoked = true;
        for slice in &mut self.slices {
            let of_share = slice.attached.values_mut().filter(|at| at.share == nth);
            of_share.for_each(|at| at.revoked = true);
            for region in 0..slice.regions.len() {
                let cut_off = slice.shows(region, self.shard_bytes).is_some_and(|at| at.revoked);
                if cut_off && slice.regions[region] == RegionState::Shared {
                    slice.regions[region] = RegionState::Revoked;
                }
            }
        }
    }

    fn shares_within(&self, index: usize, range: DeviceRange) -> Vec<usize> {
        let within =
            |share: &ModelShare| share.owner == index && range.contains(&range_of(share.range.start.0, 1));
        (0..self.shares.len()).filter(|nth| within(&self.shares[*nth])).collect()
    }

    pub(super) fn revoke_within(&mut self, index: usize, range: DeviceRange) {
        for nth in self.shares_within(index, range) {
            self.cut_off(nth);
        }
    }

    fn uses(&self, nth: usize) -> usize {
        let pinned = self.pinned.iter().flat_map(|pinned| &pinned.sources);
        let sources = pinned.chain(self.privates.iter().map(|private| &private.source));
        sources.filter(|source| source.share == nth).count()
    }

    pub(super) fn is_used_within(&self, freeing: &Freeing) -> bool {
        let index = self.slices.iter().position(|slice| slice.id == freeing.slice()).unwrap();
        // What another allocation had exported from there is gone long since.
        self.shares_within(index, freeing.range()).into_iter().any(|nth| self.uses(nth) > 0)
    }

    pub(super) fn privatize(&mut self, index: usize, nth: usize, level: PrivateLevel) {
        let slice = &self.slices[index];
        let region = slice.pick(nth, |state| *state == RegionState::Shared);
        let attached = slice.shows(region, self.shard_bytes).filter(|at| at.rights == Rights::CopyOnWrite);
        let wanted = slice.regions[region] == RegionState::Shared
            && attached.is_some()
            && slice.cells_in(region, self.shard_bytes).0 > 0;
        let source = slice.source(region, self.shard_bytes).filter(|_| wanted);
        let state = source.map(|source| self.slices[source.owner].regions[source.owner_region]);
        let usable = matches!(state, Some(RegionState::Backed(_) | RegionState::Stored));
        let place = self.place(index, 1);
        let room = match level {
            PrivateLevel::Gpu => !place.is_empty(),
            PrivateLevel::Tier => self.births() > 0,
        };
        let over_limit = slice.footprint() > slice.limit;
        let at = RegionIndex(region as u32);
        let privatization = match self.pool.plan_privatization(slice.id, at, level) {
            Ok(Some(privatization)) => privatization,
            Ok(None) => return assert!(!wanted),
            Err(PrivatizeError::Source(error)) => {
                let expected = match state {
                    Some(RegionState::Lost(gpu)) => PinError::Lost(gpu),
                    Some(RegionState::Damaged) => PinError::Damaged(at),
                    _ => PinError::Moving,
                };
                return assert!(wanted && !usable && error == expected);
            }
            Err(PrivatizeError::Room(AllocError::OverLimit { .. })) => {
                return assert!(wanted && usable && over_limit);
            }
            Err(PrivatizeError::Room(AllocError::OutOfMemory { .. })) => {
                return assert!(wanted && usable && !over_limit && !room);
            }
            Err(other) => panic!("unexpected {other:?}"),
        };
        assert!(wanted && usable && room && !over_limit);
        let gpu = privatization.gpu();
        assert_eq!(gpu, if level == PrivateLevel::Gpu { Some(place[0]) } else { None });
        assert_eq!((privatization.slice(), privatization.region()), (slice.id, at));
        assert_eq!(privatization.range(), slice.window(region, self.shard_bytes));
        let source = source.unwrap();
        self.check_extent(index, &privatization.source());
        self.slices[index].regions[region] = RegionState::Privatizing(gpu);
        self.slices[source.owner].pins[source.owner_region] += 1;
        self.privates.push(Private { privatization, source });
    }

    pub(super) fn end_privatizing(&mut self, nth: usize, end: RelocationEnd) {
        if self.privates.is_empty() {
            return;
        }
        let nth = nth % self.privates.len();
        let Private { privatization, source } = &self.privates[nth];
        let index = self.slices.iter().position(|slice| slice.id == privatization.slice()).unwrap();
        let region = privatization.region().0 as usize;
        let waits = self.slices[index].regions[region] == RegionState::Privatizing(privatization.gpu());
        assert_eq!(self.pool.can_privatize(privatization), waits);
        let done = end == RelocationEnd::Finish;
        if done && !self.pool.is_quiet(privatization.slice(), privatization.region()) {
            return;
        }
        let source = *source;
        let Private { privatization, .. } = self.privates.swap_remove(nth);
        let (gpu, extent) = (privatization.gpu(), privatization.source());
        if waits && done {
            self.copy_privately(index, region, &extent);
            self.slices[index].regions[region] = match gpu {
                Some(gpu) => RegionState::Backed(gpu),
                None => RegionState::Stored,
            };
            self.slices[index].forget_attached(self.shard_bytes);
        } else if waits {
            self.slices[index].stay_shown(region, self.shard_bytes);
        }
        let mut expected = Unpinned::default();
        self.end_use(source, &mut expected);
        if let (Some(gpu), RelocationEnd::Refuse) = (gpu, end) {
            self.capacity[gpu.index()] = self.used(gpu);
        }
        let unpinned = match end {
            RelocationEnd::Finish => self.pool.finish_privatization(privatization),
            RelocationEnd::Abort => self.pool.abort_privatization(privatization, false),
            RelocationEnd::Refuse => self.pool.abort_privatization(privatization, true),
        };
        assert_eq!(unpinned, expected);
    }

    /// A region gets a copy of what it may see, and zeros beside it, in memory and as it should be.
    fn copy_privately(&mut self, index: usize, region: usize, extent: &Extent) {
        let granules = (self.shard_bytes / GRANULE) as usize;
        let shown: Vec<usize> = self.slices[index].cells_of(extent.range).collect();
        let truth: Vec<u32> = shown.iter().map(|cell| self.true_at(index, *cell)).collect();
        let held = self.held_by(extent);
        let slice = &mut self.slices[index];
        let (mut memory, first) = (vec![0; granules], region * granules);
        slice.truth[first..first + granules].fill(0);
        for ((cell, truth), held) in shown.into_iter().zip(truth).zip(held) {
            slice.truth[cell] = truth;
            memory[cell - first] = held;
        }
        let before = self.memory.insert((slice.id, region as u32), memory);
        assert_eq!(before, None, "a region that showed others had memory");
    }

    /// What should be seen in a granule of a slice.
    fn true_at(&self, index: usize, cell: usize) -> u32 {
        let (owner, cell) = self.truth_of(index, cell);
        self.slices[owner].truth[cell]
    }

    /// Whose granule is seen in one of a slice.
    fn truth_of(&self, index: usize, cell: usize) -> (usize, usize) {
        let slice = &self.slices[index];
        let region = cell * GRANULE as usize / self.shard_bytes as usize;
        match slice.shows(region, self.shard_bytes) {
            Some(at) => {
                let address = slice.start + cell as u64 * GRANULE - at.range.start.0 + at.owner_start;
                (at.owner, ((address - self.slices[at.owner].start) / GRANULE) as usize)
            }
            None => (index, cell),
        }
    }

    /// Where in memory the granules of an extent are.
    fn memory_of(&mut self, extent: &Extent) -> &mut [u32] {
        let slice = self.slices.iter().find(|slice| slice.id == extent.origin.slice).unwrap();
        let cells = slice.cells_of(range_of(extent.origin.start.0, extent.range.len_bytes));
        let first = extent.origin.region.0 as usize * (self.shard_bytes / GRANULE) as usize;
        let memory = self.memory.get_mut(&(slice.id, extent.origin.region.0)).expect("bytes without memory");
        &mut memory[cells.start - first..cells.end - first]
    }

    fn held_by(&mut self, extent: &Extent) -> Vec<u32> {
        self.memory_of(extent).to_vec()
    }

    /// What is in memory is what should be.
    fn read(&mut self, index: usize, extents: &[Extent]) {
        for extent in extents {
            let held = self.held_by(extent);
            let truth: Vec<u32> =
                self.slices[index].cells_of(extent.range).map(|cell| self.true_at(index, cell)).collect();
            assert_eq!(held, truth, "wrong bytes at {}", extent.range);
        }
    }

    fn write(&mut self, index: usize, extents: &[Extent]) {
        for extent in extents {
            for (at, cell) in self.slices[index].cells_of(extent.range).enumerate() {
                self.written += 1;
                let number = self.written;
                let (owner, there) = self.truth_of(index, cell);
                self.slices[owner].truth[there] = number;
                self.memory_of(extent)[at] = number;
            }
        }
    }

    /// Memory is scrubbed and taken away as a plan says that is finished.
    pub(super) fn release_memory(&mut self, plan: &ReleasePlan) {
        let slice = self.slices.iter().find(|slice| slice.id == plan.slice()).unwrap();
        let granules = (self.shard_bytes / GRANULE) as usize;
        for cell in plan.scrub().iter().flat_map(|range| slice.cells_of(*range)) {
            let key = (slice.id, (cell / granules) as u32);
            self.memory.get_mut(&key).expect("scrubs what is not there")[cell % granules] = 0;
        }
        let discarded = plan.discard().iter().map(|region| region.0);
        let discarded = discarded.filter(|region| slice.regions[*region as usize] == RegionState::Discarding);
        let taken = plan.unback().iter().chain(plan.forget()).map(|backing| backing.region.0);
        for region in taken.chain(discarded) {
            assert!(self.memory.remove(&(slice.id, region)).is_some(), "took away what was not there");
        }
    }

    /// An extent is where the model has its bytes.
    fn check_extent(&self, index: usize, extent: &Extent) {
        let slice = &self.slices[index];
        let region = extent.region.0 as usize;
        let (owner, owner_region, start) = match slice.shows(region, self.shard_bytes) {
            Some(at) => {
                assert!(at.range.contains(&extent.range), "shows more than was exported");
                let start = extent.range.start.0 - at.range.start.0 + at.owner_start;
                (at.owner, (region as i64 + at.shift) as usize, start)
            }
            None => (index, region, extent.range.start.0),
        };
        let origin = extent.origin;
        let owner = &self.slices[owner];
        assert_eq!((origin.slice, origin.region.0 as usize, origin.start.0), (owner.id, owner_region, start));
        assert_eq!(extent.shown, slice.shows(region, self.shard_bytes).map(|at| at.rights));
        let place = match owner.regions[owner_region] {
            RegionState::Backed(gpu) => Place::Gpu(gpu),
            RegionState::Stored => Place::Tier,
            other => panic!("used while {other:?}"),
        };
        assert_eq!(extent.place, place);
    }

    /// Why a region cannot be used.
    fn blocked(&self, index: usize, region: usize, kind: AccessKind) -> Option<PinError> {
        let own = |state: RegionState| match state {
            RegionState::Backed(_) | RegionState::Stored => None,
            RegionState::Damaged => Some(PinError::Damaged(RegionIndex(region as u32))),
            RegionState::Revoked => Some(PinError::Revoked),
            state => {
                assert!(is_moving(&state), "{state:?}");
                Some(PinError::Moving)
            }
        };
        let slice = &self.slices[index];
        if slice.regions[region] != RegionState::Shared {
            return own(slice.regions[region]);
        }
        let rights = slice.shows(region, self.shard_bytes).unwrap().rights;
        let source = slice.source(region, self.shard_bytes).unwrap();
        let behind = own(self.slices[source.owner].regions[source.owner_region]);
        match (rights, kind) {
            (Rights::Read, AccessKind::Write) => Some(PinError::ReadOnly),
            (Rights::CopyOnWrite, AccessKind::Write) => {
                behind.or(Some(PinError::NotPrivate(RegionIndex(region as u32))))
            }
            _ => behind,
        }
    }

    /// The GPU a region was on that is lost.
    fn lost(&self, index: usize, region: usize) -> Option<GpuId> {
        let slice = &self.slices[index];
        let state = match slice.source(region, self.shard_bytes) {
            Some(_) if slice.regions[region] == RegionState::Revoked => return None,
            Some(source) => self.slices[source.owner].regions[source.owner_region],
            None => slice.regions[region],
        };
        if let RegionState::Lost(gpu) = state { Some(gpu) } else { None }
    }

    pub(super) fn pin(&mut self, index: usize, nth: usize, kind: AccessKind) {
        let slice = &self.slices[index];
        if slice.live.is_empty() {
            return;
        }
        // One that shows others, or any.
        let shown: Vec<u64> =
            slice.attached.keys().copied().filter(|at| slice.live.contains_key(at)).collect();
        let base = match shown.len() {
            count if count > 0 && nth % 2 == 1 => shown[nth / 2 % count],
            _ => *slice.live.keys().nth(nth / 2 % slice.live.len()).unwrap(),
        };
        let range = range_of(base, slice.live[&base]);
        let regions = slice.regions_of(range, self.shard_bytes);
        // What is in the way, first of all lost bytes, then whatever comes first.
        let lost = regions.clone().find_map(|region| self.lost(index, region)).map(PinError::Lost);
        let error = lost.or_else(|| {
            regions.clone().find_map(|region| {
                // Of one that is lost, the state is not looked at.
                self.blocked(index, region, kind)
            })
        });
        let extents = match self.pool.pin(slice.id, range, kind) {
            Ok(extents) => extents,
            Err(found) => return assert_eq!(Some(found), error),
        };
        assert_eq!(error, None);
        assert_eq!(extents.iter().map(|extent| extent.range.len_bytes).sum::<u64>(), range.len_bytes);
        assert!(extents.iter().map(|extent| extent.region.0 as usize).eq(regions.clone()));
        extents.iter().for_each(|extent| self.check_extent(index, extent));
        let sources: Vec<_> =
            regions.clone().filter_map(|region| slice.source(region, self.shard_bytes)).collect();
        regions.for_each(|region| self.slices[index].pins[region] += 1);
        sources.iter().for_each(|source| self.slices[source.owner].pins[source.owner_region] += 1);
        self.read(index, &extents);
        if kind == AccessKind::Write {
            self.write(index, &extents);
        }
        self.pinned.push(Pinned { index, range, kind, extents, sources });
    }

    /// Whoever used bytes has used them to the end, whatever became of them meanwhile.
    pub(super) fn unpin(&mut self, nth: usize) {
        if self.pinned.is_empty() {
            return;
        }
        let nth = nth % self.pinned.len();
        let (index, extents) = (self.pinned[nth].index, self.pinned[nth].extents.clone());
        self.read(index, &extents);
        let pinned = self.pinned.swap_remove(nth);
        let mut expected = Unpinned::default();
        let regions = self.slices[index].regions_of(pinned.range, self.shard_bytes);
        let mut left = pinned.sources;
        for region in regions {
            let slice = &mut self.slices[index];
            slice.pins[region] -= 1;
            expected.awaited |= slice.pins[region] == 0 && is_moving(&slice.regions[region]);
            if left.first().is_some_and(|source| source.region == region) {
                let source = left.remove(0);
                // Those that come later are still uses of it.
                let more = left.iter().filter(|other| other.share == source.share).count();
                self.end_use_beside(source, more, &mut expected);
            }
        }
        assert_eq!(self.pool.unpin(self.slices[index].id, pinned.range), expected);
    }

    fn end_use(&mut self, source: Source, expected: &mut Unpinned) {
        self.end_use_beside(source, 0, expected);
    }

    /// Somebody no longer uses a region, and still uses so many others of the share.
    fn end_use_beside(&mut self, source: Source, more: usize, expected: &mut Unpinned) {
        let owner = &mut self.slices[source.owner];
        let pins = &mut owner.pins[source.owner_region];
        *pins -= 1;
        expected.awaited |= *pins == 0 && is_moving(&owner.regions[source.owner_region]);
        if self.shares[source.share].revoked && self.uses(source.share) + more == 0 {
            let share = &self.shares[source.share];
            expected.cut_off.push((self.slices[share.owner].id, share.range));
        }
    }

    /// A write to bytes on a GPU makes the copies below them stale, and nothing else does.
    pub(super) fn touch(&mut self, nth: usize) {
        if self.pinned.is_empty() {
            return;
        }
        let Pinned { index, range, kind, ref sources, .. } = self.pinned[nth % self.pinned.len()];
        let mut expected = Vec::new();
        for region in self.slices[index].regions_of(range, self.shard_bytes) {
            let source = sources.iter().find(|source| source.region == region);
            let (owner, region) =
                source.map_or((index, region), |source| (source.owner, source.owner_region));
            let slice = &mut self.slices[owner];
            if kind == AccessKind::Write && slice.copies[region] == TierCopy::Valid {
                slice.copies[region] = TierCopy::Stale;
                expected.push((slice.id, RegionIndex(region as u32)));
            }
        }
        let id = self.slices[index].id;
        assert_eq!(self.pool.touch(id, range, kind, self.now), expected);
    }

    pub(super) fn check_shares(&self) {
        for (nth, share) in self.shares.iter().enumerate() {
            let attached = self.slices.iter().flat_map(|slice| slice.attached.values());
            let attached = attached.filter(|at| at.share == nth).count();
            let uses = self.uses(nth);
            let Some(report) = self.pool.share(share.id) else {
                assert!(share.revoked && attached == 0 && uses == 0, "a share is forgotten");
                continue;
            };
            let owner = self.slices[share.owner].id;
            assert!(!share.revoked || attached > 0 || uses > 0, "a share is over, and known");
            assert_eq!((report.owner, report.range, report.rights), (owner, share.range, share.rights));
            assert_eq!((report.attached, report.in_use), (attached, uses > 0));
            assert_eq!(report.is_revoked, share.revoked);
        }
        for slice in &self.slices {
            assert_eq!(self.pool.has_attached(slice.id), !slice.attached.is_empty());
            let exported: BTreeSet<_> = self.pool.exports(slice.id).collect();
            let known = |share: &&ModelShare| {
                self.slices[share.owner].id == slice.id && self.pool.share(share.id).is_some()
            };
            let expected = self.shares.iter().filter(known).map(|share| share.id);
            assert_eq!(exported, expected.collect());
        }
    }
}

/// Worlds with room to show much of it to each other.
pub(super) fn worlds() -> impl Strategy<Value = World> {
    (super::worlds(), 6..14u32, 12..24u64).prop_map(|(world, limit, spare_regions)| {
        let slices = world
            .slices
            .iter()
            .map(|&(guarantee, own, placement, home)| (guarantee.min(2), limit + own / 2, placement, home));
        World { slices: slices.collect(), spare_regions, ..world }
    })
}

/// Walks that begin with something to show, and show it often.
pub(super) fn walks() -> impl Strategy<Value = Vec<Step>> {
    let first = (0..3usize, 1..60u64, 0..256u64).prop_map(|(slice, granules, trim)| {
        [Step::Alloc { slice, granules, trim, alignment_bytes: 0 }, Step::Commit { slice }]
    });
    let slice = 0..3usize;
    let kinds = prop_oneof![1 => Just(AccessKind::Read), 2 => Just(AccessKind::Write)];
    let step = prop_oneof![
        4 => steps(),
        2 => (slice, any::<usize>(), kinds).prop_map(|(slice, nth, kind)| Step::Pin { slice, nth: nth | 1, kind }),
        1 => any::<usize>().prop_map(|nth| Step::Unpin { nth }),
        1 => any::<usize>().prop_map(|nth| Step::PlanRelease { nth }),
        6 => super::step(),
    ];
    (prop::collection::vec(first, 1..5), prop::collection::vec(step, 20..200))
        .prop_map(|(first, steps)| first.into_iter().flatten().chain(steps).collect())
}

pub(super) fn steps() -> impl Strategy<Value = Step> {
    let slice = 0..3usize;
    let rights = prop_oneof![
        1 => Just(Rights::Read),
        2 => Just(Rights::ReadWrite),
        4 => Just(Rights::CopyOnWrite),
    ];
    // Mostly all or much of it.
    let part = (prop_oneof![Just(0u64), 0..60u64], prop_oneof![1..40u64, Just(400u64)]);
    let only = prop_oneof![3 => Just(None), 1 => prop::option::of(slice.clone())];
    let levels = prop_oneof![Just(PrivateLevel::Gpu), Just(PrivateLevel::Tier)];
    let ends = prop_oneof![
        3 => Just(RelocationEnd::Finish),
        1 => Just(RelocationEnd::Abort),
        1 => Just(RelocationEnd::Refuse),
    ];
    prop_oneof![
        5 => (slice.clone(), any::<usize>(), part, rights, only)
            .prop_map(|(slice, nth, part, rights, only)| Step::Export { slice, nth, part, rights, only }),
        7 => (slice.clone(), any::<usize>()).prop_map(|(slice, nth)| Step::Attach { slice, nth }),
        2 => any::<usize>().prop_map(|nth| Step::Revoke { nth }),
        6 => (slice, any::<usize>(), levels)
            .prop_map(|(slice, nth, level)| Step::Privatize { slice, nth, level }),
        6 => (any::<usize>(), ends).prop_map(|(nth, end)| Step::EndPrivatizing { nth, end }),
    ]
}
