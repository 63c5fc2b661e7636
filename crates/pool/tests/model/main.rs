//! The pool against a plain model: a map of granules for each band, searched by brute force.
//!
//! Random interleavings of all steps over three slices and three GPUs, with and without lower tiers, with refusals, lost
//! GPUs and damaged regions, and with ranges that slices show each other; after each step the pool's invariants hold and
//! its figures are the model's. Memory is modelled as well, and filled, scrubbed and copied as the pool says: whoever reads
//! finds what was written last to what he sees. The model shares no code with the pool, and knows no heat: that has a
//! model of its own.

mod moves;
mod shares;
mod tiers;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;
use shares::{Attached, ModelShare, Pinned, Private};
use vram_gpu::{DeviceAddress, DeviceRange, GpuId, Link, Topology};
use vram_pool::{
    AccessKind, AllocError, AllocRequest, Backing, DrainError, Eviction, Freeing, GpuCapacity, Grant,
    PinError, Place, Placement, Pool, PoolConfig, PoolTime, PrivateLevel, Promotion, RegionIndex,
    RegionState, Releasable, ReleasePlan, Relocation, Rights, SliceConfig, SliceId, TierCopy,
};

const MIB: u64 = 1 << 20;
/// All addresses and rounded lengths here are multiples of this.
const GRANULE: u64 = 128 << 10;

#[derive(Clone, Debug)]
enum Step {
    Alloc { slice: usize, granules: u64, trim: u64, alignment_bytes: u64 },
    Commit { slice: usize },
    Abort { slice: usize, refuse: bool },
    Free { slice: usize, nth: usize },
    PlanRelease { nth: usize },
    FinishRelease { nth: usize },
    Lose { gpu: u16 },
    Resize { slice: usize, limit: u32, guarantee: u32 },
    Drain { gpu: u16 },
    EndDrain { gpu: u16 },
    Evict { slice: usize, nth: usize },
    Promote { slice: usize, nth: usize },
    Shift { slice: usize, nth: usize },
    EndTiering { nth: usize, end: TieringEnd },
    Damage { slice: usize, nth: usize },
    Touch { nth: usize },
    MakeRoom { slice: usize, keep: u32 },
    EnforceLimits,
    EvictAhead { low: u32 },
    Relocate,
    EndRelocation { nth: usize, end: RelocationEnd },
    Pin { slice: usize, nth: usize, kind: AccessKind },
    Unpin { nth: usize },
    Restore { gpu: u16 },
    Export { slice: usize, nth: usize, part: (u64, u64), rights: Rights, only: Option<usize> },
    Attach { slice: usize, nth: usize },
    Revoke { nth: usize },
    Privatize { slice: usize, nth: usize, level: PrivateLevel },
    EndPrivatizing { nth: usize, end: RelocationEnd },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RelocationEnd {
    Finish,
    Abort,
    Refuse,
}

/// How an eviction, a promotion or a shift ends; of a promotion, whether its tier keeps a copy. A shift always ends well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TieringEnd {
    Finish(TierCopy),
    Abort,
    Refuse,
}

#[derive(Clone, Debug)]
struct World {
    shard_bytes: u64,
    gpu_shards: [u32; 3],
    slices: Vec<(u32, u32, Placement, Option<u16>)>,
    spare_regions: u64,
    tier_regions: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    Free,
    Live,
    Quarantined,
}

struct ModelSlice {
    id: SliceId,
    start: u64,
    home: GpuId,
    guarantee: u32,
    limit: u32,
    local: bool,
    placement: Placement,
    cells: Vec<Cell>,
    regions: Vec<RegionState>,
    live: BTreeMap<u64, u64>,
    grant: Option<Grant>,
    /// Users of each region.
    pins: Vec<u32>,
    /// Whether a lower tier has what is on a GPU; stale for regions that are not on one.
    copies: Vec<TierCopy>,
    /// By address, also of those that are freed and not released.
    attached: BTreeMap<u64, Attached>,
    /// What each granule of its own regions should hold.
    truth: Vec<u32>,
}

struct Model {
    pool: Pool,
    shard_bytes: u64,
    topology: Topology,
    configured: Vec<u32>,
    pool_configured: u32,
    tier_regions: u32,
    now: PoolTime,
    capacity: Vec<u32>,
    slices: Vec<ModelSlice>,
    freeings: Vec<Freeing>,
    plans: Vec<ReleasePlan>,
    draining: [bool; 3],
    /// With whether the shard the bytes are to go to is still counted.
    relocations: Vec<(Relocation, bool)>,
    evictions: Vec<Eviction>,
    promotions: Vec<Promotion>,
    /// Slice and region.
    shifts: Vec<(usize, usize)>,
    pinned: Vec<Pinned>,
    shares: Vec<ModelShare>,
    privates: Vec<Private>,
    /// What each granule of a region does hold, wherever that is: by slice and region.
    memory: HashMap<(SliceId, u32), Vec<u32>>,
    /// The last number that was written.
    written: u32,
}

fn holder(state: RegionState) -> Option<GpuId> {
    match state {
        RegionState::Backing(gpu)
        | RegionState::Backed(gpu)
        | RegionState::Moving { from: gpu, .. }
        | RegionState::Evicting(gpu)
        | RegionState::Promoting(gpu)
        | RegionState::Privatizing(Some(gpu))
        | RegionState::Returning(gpu) => Some(gpu),
        RegionState::Unbacked
        | RegionState::Shared
        | RegionState::Revoked
        | RegionState::Privatizing(None)
        | RegionState::Stored
        | RegionState::Shifting
        | RegionState::Damaged
        | RegionState::Discarding
        | RegionState::Lost(_)
        | RegionState::Forgetting(_) => None,
    }
}

fn is_moving(state: &RegionState) -> bool {
    matches!(
        state,
        RegionState::Moving { .. }
            | RegionState::Evicting(_)
            | RegionState::Promoting(_)
            | RegionState::Shifting
            | RegionState::Privatizing(_)
    )
}

/// Whether bytes of another slice are seen in it, or were.
fn is_shown(state: &RegionState) -> bool {
    matches!(state, RegionState::Shared | RegionState::Revoked | RegionState::Privatizing(_))
}

fn takes_nothing(state: &RegionState) -> bool {
    matches!(state, RegionState::Shared | RegionState::Revoked)
}

fn is_stored(state: &RegionState) -> bool {
    matches!(
        state,
        RegionState::Stored
            | RegionState::Shifting
            | RegionState::Damaged
            | RegionState::Discarding
            | RegionState::Privatizing(None)
    )
}

fn range_of(start: u64, len_bytes: u64) -> DeviceRange {
    DeviceRange { start: DeviceAddress(start), len_bytes }
}

fn rounded(len_bytes: u64) -> u64 {
    len_bytes.div_ceil(GRANULE) * GRANULE
}

impl ModelSlice {
    fn held(&self) -> u32 {
        self.regions.iter().filter(|state| holder(**state).is_some()).count() as u32
    }

    fn footprint(&self) -> u32 {
        let other = |state: &&RegionState| is_stored(state) || takes_nothing(state);
        self.held() + self.regions.iter().filter(other).count() as u32
    }

    /// Live and quarantined cells of a region.
    fn cells_in(&self, region: usize, shard_bytes: u64) -> (usize, usize) {
        let cells = &self.cells[self.cells_of(self.window(region, shard_bytes))];
        let count = |cell| cells.iter().filter(|other| **other == cell).count();
        (count(Cell::Live), count(Cell::Quarantined))
    }

    fn window(&self, region: usize, shard_bytes: u64) -> DeviceRange {
        range_of(self.start + region as u64 * shard_bytes, shard_bytes)
    }

    /// What is missing to the guarantee on GPUs that are not drained; what is moving there counts.
    fn missing(&self, draining: &[bool; 3], incoming: u32) -> u32 {
        let leaves = |state: &&RegionState| holder(**state).is_some_and(|gpu| draining[gpu.index()]);
        let leaving = self.regions.iter().filter(leaves).count() as u32;
        self.guarantee.saturating_sub(self.held() - leaving + incoming.min(leaving))
    }

    fn cells_of(&self, range: DeviceRange) -> std::ops::Range<usize> {
        let first = (range.start.0 - self.start) / GRANULE;
        first as usize..(first + rounded(range.len_bytes) / GRANULE) as usize
    }

    fn paint(&mut self, range: DeviceRange, cell: Cell) {
        for index in self.cells_of(range) {
            self.cells[index] = cell;
        }
    }

    fn count(&self, cell: Cell) -> u64 {
        self.cells.iter().filter(|other| **other == cell).count() as u64 * GRANULE
    }
}

impl Model {
    fn new(world: &World) -> Self {
        let topology = Topology::from_fn(3, |a, b| if a.0 + b.0 == 1 { Link::NvLink(4) } else { Link::Node });
        let gpus: Vec<_> = (0u16..3)
            .map(|gpu| GpuCapacity { id: GpuId(gpu), shards: world.gpu_shards[usize::from(gpu)] })
            .collect();
        let &World { shard_bytes, tier_regions, .. } = world;
        let config = PoolConfig { shard_bytes, gpus, topology: topology.clone(), tier_regions };
        let mut pool = Pool::new(config).unwrap();
        let mut slices = Vec::new();
        let mut start = 1 << 32;
        for (name, &(guarantee, limit, placement, home)) in world.slices.iter().enumerate() {
            let limit_bytes = u64::from(limit) * world.shard_bytes;
            let config = SliceConfig {
                name: name.to_string(),
                guarantee_bytes: u64::from(guarantee.min(limit)) * world.shard_bytes,
                limit_bytes,
                placement,
                home: home.map(GpuId),
            };
            let regions = u64::from(limit) + world.spare_regions;
            let range = DeviceRange { start: DeviceAddress(start), len_bytes: regions * world.shard_bytes };
            if pool.admit(&config).is_err() {
                assert!(pool.add_slice(config, range).is_err());
                continue;
            }
            let id = pool.add_slice(config, range).unwrap();
            slices.push(ModelSlice {
                id,
                start,
                home: pool.usage(id).unwrap().home,
                guarantee: guarantee.min(limit),
                limit,
                local: placement == Placement::Local,
                placement,
                cells: vec![Cell::Free; (range.len_bytes / GRANULE) as usize],
                regions: vec![RegionState::Unbacked; regions as usize],
                live: BTreeMap::new(),
                grant: None,
                pins: vec![0; regions as usize],
                copies: vec![TierCopy::Stale; regions as usize],
                attached: BTreeMap::new(),
                truth: vec![0; (range.len_bytes / GRANULE) as usize],
            });
            start += (range.len_bytes).next_multiple_of(2 * MIB) + 2 * MIB;
        }
        let configured = world.gpu_shards.to_vec();
        Self {
            pool,
            shard_bytes: world.shard_bytes,
            topology,
            capacity: configured.clone(),
            pool_configured: world.gpu_shards.iter().sum(),
            configured,
            tier_regions,
            now: PoolTime(0),
            slices,
            freeings: Vec::new(),
            plans: Vec::new(),
            draining: [false; 3],
            relocations: Vec::new(),
            evictions: Vec::new(),
            promotions: Vec::new(),
            shifts: Vec::new(),
            pinned: Vec::new(),
            shares: Vec::new(),
            privates: Vec::new(),
            memory: HashMap::new(),
            written: 0,
        }
    }

    fn used(&self, gpu: GpuId) -> u32 {
        let of_slice = |slice: &ModelSlice| {
            slice.regions.iter().filter(|state| holder(**state) == Some(gpu)).count() as u32
        };
        let arriving = |(relocation, counted): &&(Relocation, bool)| *counted && relocation.to() == gpu;
        self.slices.iter().map(of_slice).sum::<u32>()
            + self.relocations.iter().filter(arriving).count() as u32
    }

    /// Shards that regions of a slice are moving to.
    fn incoming(&self, slice: &ModelSlice) -> u32 {
        let own = |(relocation, counted): &&(Relocation, bool)| *counted && relocation.slice() == slice.id;
        self.relocations.iter().filter(own).count() as u32
    }

    fn missing(&self, slice: &ModelSlice) -> u32 {
        slice.missing(&self.draining, self.incoming(slice))
    }

    /// Regions that can be born in the tiers: two less than they have room for beside all that is there or on its way.
    fn births(&self) -> u32 {
        self.births_beside(is_stored)
    }

    /// The same once all that is being discarded is gone.
    fn births_later(&self) -> u32 {
        self.births_beside(|state| is_stored(state) && *state != RegionState::Discarding)
    }

    fn births_beside(&self, stored: fn(&RegionState) -> bool) -> u32 {
        let in_tiers = |state: &&RegionState| {
            stored(state) || matches!(state, RegionState::Promoting(_) | RegionState::Evicting(_))
        };
        let used = self.slices.iter().flat_map(|slice| &slice.regions).filter(in_tiers).count() as u32;
        self.tier_regions.saturating_sub(2 + used)
    }

    /// The GPUs the next `wanted` shards of a slice come from; fewer if there are not so many.
    fn place(&self, index: usize, wanted: u32) -> Vec<GpuId> {
        let slice = &self.slices[index];
        let free_on = |gpu: u16| match self.draining[usize::from(gpu)] {
            true => 0,
            false => self.capacity[usize::from(gpu)] - self.used(GpuId(gpu)),
        };
        let mut free: Vec<u32> = (0..3).map(free_on).collect();
        let mut own_missing = self.missing(slice);
        let others =
            || self.slices.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, slice)| slice);
        let kept_local = |gpu: u16| -> u32 {
            others().filter(|other| other.local && other.home.0 == gpu).map(|slice| self.missing(slice)).sum()
        };
        let kept_anywhere: u32 = others().filter(|other| !other.local).map(|slice| self.missing(slice)).sum();
        let mut chosen = Vec::new();
        while (chosen.len() as u32) < wanted {
            let candidates = (0u16..3).filter(|gpu| {
                let at = free[usize::from(*gpu)];
                at > kept_local(*gpu) && (!slice.local || slice.home.0 == *gpu)
            });
            let kept: u32 =
                kept_anywhere + (0u16..3).map(|gpu| kept_local(gpu).min(free[usize::from(gpu)])).sum::<u32>();
            if own_missing == 0 && free.iter().sum::<u32>() <= kept {
                break;
            }
            let rank = |gpu: &u16| {
                let room = free[usize::from(*gpu)] - kept_local(*gpu);
                let distance = u64::from(self.topology.distance(slice.home, GpuId(*gpu)));
                let here = |holder: &GpuId| *holder == GpuId(*gpu);
                let held = slice.regions.iter().filter_map(|state| holder(*state)).filter(here).count()
                    + chosen.iter().filter(|gpu| here(gpu)).count();
                match slice.placement {
                    // Nearest to home; then the one with most room; then the lowest.
                    Placement::Local | Placement::Spill => (distance, Reverse(u64::from(room)), *gpu),
                    // What holds least of the slice, or what is fullest; then the nearest; then the lowest.
                    Placement::Spread => (held as u64, Reverse(u64::MAX - distance), *gpu),
                    Placement::Pack => (u64::from(room), Reverse(u64::MAX - distance), *gpu),
                }
            };
            let Some(gpu) = candidates.min_by_key(rank) else { break };
            free[usize::from(gpu)] -= 1;
            own_missing = own_missing.saturating_sub(1);
            chosen.push(GpuId(gpu));
        }
        chosen
    }

    fn unbacked_in(&self, slice: &ModelSlice, first: u64, len_bytes: u64) -> Vec<u32> {
        let regions = (first / self.shard_bytes)..=((first + len_bytes - 1) / self.shard_bytes);
        regions
            .map(|region| region as u32)
            .filter(|r| slice.regions[*r as usize] == RegionState::Unbacked)
            .collect()
    }

    /// The fewest new shards an allocation needs, over all places it could go; `None` without any.
    fn fewest_new_shards(&self, slice: &ModelSlice, len_bytes: u64, alignment: u64) -> Option<u32> {
        let granules = (len_bytes / GRANULE) as usize;
        let place = |first: usize| {
            let cells = slice.cells.get(first..first + granules)?;
            let offset = first as u64 * GRANULE;
            let regions = (offset / self.shard_bytes)..=((offset + len_bytes - 1) / self.shard_bytes);
            let usable = regions.clone().all(|region| {
                let state = slice.regions[region as usize];
                let retired =
                    state == RegionState::Stored && slice.cells_in(region as usize, self.shard_bytes).0 == 0;
                matches!(state, RegionState::Unbacked | RegionState::Backed(_) | RegionState::Stored)
                    && !retired
                    || is_moving(&state) && !is_shown(&state)
            });
            let aligned = (slice.start + offset).is_multiple_of(alignment);
            (aligned && usable && cells.iter().all(|cell| *cell == Cell::Free))
                .then(|| self.unbacked_in(slice, offset, len_bytes).len() as u32)
        };
        (0..slice.cells.len()).filter_map(place).min()
    }

    /// Length of the run of free, backed granules around one.
    fn free_run(&self, slice: &ModelSlice, at: usize) -> usize {
        let usable = |index: &usize| {
            let region = *index as u64 * GRANULE / self.shard_bytes;
            slice.cells[*index] == Cell::Free
                && match slice.regions[region as usize] {
                    RegionState::Backed(_) => true,
                    RegionState::Stored => slice.cells_in(region as usize, self.shard_bytes).0 > 0,
                    state => is_moving(&state) && !is_shown(&state),
                }
        };
        (0..at).rev().take_while(usable).count() + (at..slice.cells.len()).take_while(usable).count()
    }

    fn alloc(&mut self, index: usize, granules: u64, trim: u64, alignment_bytes: u64) {
        let slice = &self.slices[index];
        let request = AllocRequest { length_bytes: granules * GRANULE - trim, alignment_bytes };
        let len_bytes = granules * GRANULE;
        let fewest = self.fewest_new_shards(slice, len_bytes, alignment_bytes.max(256));
        let held = slice.footprint();
        let quarantined = slice.cells.contains(&Cell::Quarantined);
        let busy = slice.grant.is_some();
        let before: Vec<_> = self.slices.iter().map(|slice| self.pool.usage(slice.id)).collect();
        match self.pool.plan_alloc(slice.id, request) {
            Ok(grant) => {
                assert!(!busy, "granted while a grant is pending");
                self.accept(index, grant, request, fewest);
            }
            Err(error) => {
                let after: Vec<_> = self.slices.iter().map(|slice| self.pool.usage(slice.id)).collect();
                assert_eq!(before, after, "a refusal changed something");
                let over_limit = len_bytes > u64::from(slice.limit) * self.shard_bytes;
                let no_limit =
                    over_limit || fewest.is_some_and(|fewest| fewest > 0 && held + fewest > slice.limit);
                let no_room = fewest
                    .is_none_or(|fewest| (self.place(index, fewest).len() as u32) + self.births() < fewest);
                let draining = |slice: &ModelSlice| {
                    slice
                        .regions
                        .iter()
                        .any(|state| matches!(state, RegionState::Returning(_) | RegionState::Discarding))
                };
                match error {
                    AllocError::Busy { .. } => assert!(busy),
                    AllocError::OverLimit { .. } => {
                        let live = slice.count(Cell::Live);
                        let live_in_the_way = len_bytes + live > u64::from(slice.limit) * self.shard_bytes;
                        assert!(
                            over_limit
                                || (no_limit && (!quarantined && !draining(slice) || live_in_the_way))
                                || (live_in_the_way && fewest != Some(0))
                        );
                    }
                    AllocError::OutOfMemory { .. } => {
                        assert!(no_room);
                        let room = self.place(index, u32::MAX).len() as u32 + self.births_later();
                        let too_few = fewest.is_none_or(|fewest| room < fewest);
                        assert!(too_few, "did not wait for what is discarded");
                    }
                    AllocError::Fragmented { .. } => {
                        assert!(fewest.is_none() && !quarantined && !draining(slice));
                    }
                    AllocError::QuarantinePending { .. } => {
                        assert!(no_limit || no_room);
                        let anywhere = self
                            .slices
                            .iter()
                            .any(|slice| slice.cells.contains(&Cell::Quarantined) || draining(slice));
                        assert!(anywhere, "waits for nothing");
                    }
                    other => panic!("unexpected {other}"),
                }
                assert!(busy || no_limit || no_room, "{error} though it fits");
            }
        }
    }

    fn accept(&mut self, index: usize, grant: Grant, request: AllocRequest, fewest: Option<u32>) {
        let slice = &self.slices[index];
        let range = grant.range();
        assert_eq!(range.len_bytes, request.length_bytes);
        assert!(range.start.0.is_multiple_of(request.alignment_bytes.max(256)), "misaligned");
        let band = self.pool.band(slice.id).unwrap();
        assert!(band.contains(&range), "outside the band");
        let cells = slice.cells_of(range);
        assert!(slice.cells[cells.clone()].iter().all(|cell| *cell == Cell::Free), "overlap");
        let new = self.unbacked_in(slice, range.start.0 - slice.start, rounded(range.len_bytes));
        assert_eq!(Some(new.len() as u32), fewest, "more shards than needed");
        assert!(new.is_empty() || slice.footprint() + new.len() as u32 <= slice.limit, "over the limit");
        let gpus: Vec<_> = grant.backings().iter().map(|backing| backing.gpu).collect();
        assert_eq!(gpus, self.place(index, new.len() as u32));
        let (backed, born) = new.split_at(gpus.len());
        assert!(grant.backings().iter().map(|backing| backing.region.0).eq(backed.iter().copied()));
        assert!(grant.born_stored().iter().map(|region| region.0).eq(born.iter().copied()));
        assert!(born.len() as u32 <= self.births(), "more are born than tiers take");
        if new.is_empty() && request.alignment_bytes <= 256 {
            let run = self.free_run(slice, cells.start);
            let shorter = (0..slice.cells.len())
                .map(|at| (self.free_run(slice, at), slice.cells[at]))
                .any(|(other, cell)| cell == Cell::Free && (cells.len()..run).contains(&other) && other > 0);
            assert!(!shorter, "not the best fit");
        }
        let zeros = vec![0; (self.shard_bytes / GRANULE) as usize];
        for region in &new {
            self.memory.insert((grant.slice(), *region), zeros.clone());
        }
        let slice = &mut self.slices[index];
        for cell in slice.cells_of(range) {
            slice.truth[cell] = 0;
        }
        for backing in grant.backings() {
            assert_eq!(backing.range.start.0, slice.start + u64::from(backing.region.0) * self.shard_bytes);
            assert_eq!(backing.range.len_bytes, self.shard_bytes);
            slice.regions[backing.region.0 as usize] = RegionState::Backing(backing.gpu);
        }
        for region in grant.born_stored() {
            slice.regions[region.0 as usize] = RegionState::Stored;
        }
        slice.paint(range, Cell::Live);
        slice.grant = Some(grant);
    }

    fn commit(&mut self, index: usize) {
        let slice = &mut self.slices[index];
        let Some(grant) = slice.grant.take() else { return };
        for backing in grant.backings() {
            let state = &mut slice.regions[backing.region.0 as usize];
            if let RegionState::Backing(gpu) = *state {
                *state = RegionState::Backed(gpu);
            }
        }
        let range = self.pool.commit(grant).range;
        slice.live.insert(range.start.0, range.len_bytes);
        let last = DeviceAddress(range.start.0 + range.len_bytes - 1);
        assert_eq!(self.pool.find(slice.id, range.start).map(|found| found.range), Some(range));
        assert_eq!(self.pool.find(slice.id, last).map(|found| found.range), Some(range));
        let covered: u64 = self.pool.extents(slice.id, range).map(|extent| extent.range.len_bytes).sum();
        assert_eq!(covered, range.len_bytes, "an allocation without memory");
    }

    fn abort(&mut self, index: usize, refuse: bool) {
        let slice = &mut self.slices[index];
        let Some(grant) = slice.grant.take() else { return };
        let refused = grant.backings().last().map(|backing| backing.gpu).filter(|_| refuse);
        slice.paint(grant.range(), Cell::Free);
        for backing in grant.backings() {
            slice.regions[backing.region.0 as usize] = RegionState::Unbacked;
        }
        for region in grant.born_stored() {
            slice.regions[region.0 as usize] = RegionState::Unbacked;
        }
        let new =
            grant.backings().iter().map(|backing| backing.region).chain(grant.born_stored().iter().copied());
        for region in new {
            self.memory.remove(&(grant.slice(), region.0));
        }
        if let Some(gpu) = refused {
            self.capacity[gpu.index()] = self.used(gpu);
        }
        let plan = self.pool.abort(grant, refused);
        self.adopt(plan);
    }

    /// Takes a plan on: its regions drain.
    fn adopt(&mut self, plan: Option<ReleasePlan>) {
        let Some(plan) = plan else { return };
        let slice = self.slices.iter_mut().find(|slice| slice.id == plan.slice()).unwrap();
        for backing in plan.unback() {
            let state = &mut slice.regions[backing.region.0 as usize];
            assert_eq!(*state, RegionState::Backed(backing.gpu));
            *state = RegionState::Returning(backing.gpu);
        }
        for region in plan.discard() {
            let state = &mut slice.regions[region.0 as usize];
            let copy = std::mem::replace(&mut slice.copies[region.0 as usize], TierCopy::Stale);
            if matches!(state, RegionState::Stored | RegionState::Damaged) {
                *state = RegionState::Discarding;
            } else {
                assert_eq!(copy, TierCopy::Valid, "discards what is not there");
            }
        }
        for backing in plan.forget() {
            let state = &mut slice.regions[backing.region.0 as usize];
            assert_eq!(*state, RegionState::Lost(backing.gpu));
            *state = RegionState::Forgetting(backing.gpu);
        }
        self.plans.push(plan);
    }

    fn free(&mut self, index: usize, nth: usize) {
        let slice = &mut self.slices[index];
        if slice.live.is_empty() {
            return;
        }
        let (&base, &len_bytes) = slice.live.iter().nth(nth % slice.live.len()).unwrap();
        // Whoever uses an allocation keeps it from being freed.
        if self.pinned.iter().any(|pinned| pinned.is_of(index, range_of(base, len_bytes))) {
            return;
        }
        slice.live.remove(&base);
        let freeing = self.pool.begin_free(slice.id, DeviceAddress(base)).unwrap();
        assert_eq!(freeing.range(), DeviceRange { start: DeviceAddress(base), len_bytes });
        slice.paint(freeing.range(), Cell::Quarantined);
        self.revoke_within(index, freeing.range());
        let slice = &self.slices[index];
        assert_eq!(self.pool.find(slice.id, DeviceAddress(base)), None);
        assert!(self.pool.begin_free(slice.id, DeviceAddress(base)).is_err());
        self.freeings.push(freeing);
    }

    fn plan_release(&mut self, nth: usize) {
        if self.freeings.is_empty() {
            return;
        }
        let nth = nth % self.freeings.len();
        let freeing = &self.freeings[nth];
        let slice = self.slices.iter().find(|slice| slice.id == freeing.slice()).unwrap();
        let first = (freeing.range().start.0 - slice.start) / self.shard_bytes;
        let last = (freeing.range().start.0 + freeing.range().len_bytes - 1 - slice.start) / self.shard_bytes;
        let moving = slice.regions[first as usize..=last as usize].iter().any(is_moving);
        let used = self.is_used_within(freeing);
        let releasable = match (moving, used) {
            (true, _) => Releasable::AfterMove,
            (false, true) => Releasable::AfterUse,
            (false, false) => Releasable::Now,
        };
        assert_eq!(self.pool.releasable(freeing), releasable);
        if releasable != Releasable::Now {
            return;
        }
        let freeing = self.freeings.swap_remove(nth);
        let (id, range) = (freeing.slice(), freeing.range());
        let plan = self.pool.plan_release(freeing);
        let slice = self.slices.iter().find(|slice| slice.id == id).unwrap();
        // Each byte of the range is scrubbed, or goes with its region, or is out of reach: on a lost GPU, damaged, or in
        // a region that is given up as soon as the last of it is released.
        for cell in slice.cells_of(range) {
            let address = slice.start + cell as u64 * GRANULE;
            let within = |range: &DeviceRange| {
                (range.start.0..range.start.0 + rounded(range.len_bytes)).contains(&address)
            };
            let scrubbed = plan.scrub().iter().any(within);
            let taken = plan.unback().iter().any(|backing| within(&backing.range));
            let region = (address - slice.start) / self.shard_bytes;
            let lost =
                matches!(slice.regions[region as usize], RegionState::Lost(_) | RegionState::Forgetting(_));
            let state = slice.regions[region as usize];
            let (live, _) = slice.cells_in(region as usize, self.shard_bytes);
            let given_up = is_stored(&state) && (live == 0 || state == RegionState::Damaged);
            let shown = takes_nothing(&state);
            assert_eq!(
                u32::from(scrubbed)
                    + u32::from(taken)
                    + u32::from(lost)
                    + u32::from(given_up)
                    + u32::from(shown),
                1,
                "scrubbed twice or not at all"
            );
        }
        // What a tier has of a region goes when the region does, or when bytes in it are scrubbed.
        for (region, copy) in slice.copies.iter().enumerate() {
            let window = slice.cells_of(slice.window(region, self.shard_bytes));
            let touched = slice.cells_of(range).any(|cell| window.contains(&cell));
            if touched && *copy == TierCopy::Valid {
                assert!(
                    plan.discard().contains(&RegionIndex(region as u32)),
                    "a copy stays that is not true"
                );
            }
        }
        let adjacent = |pair: &[DeviceRange]| pair[0].end().unwrap() >= pair[1].start;
        assert!(!plan.scrub().windows(2).any(adjacent), "adjacent ranges not merged");
        for backing in plan.unback() {
            let cells = slice.cells_of(backing.range);
            let others = cells.filter(|cell| !slice.cells_of(range).contains(cell));
            assert!(others.into_iter().all(|cell| slice.cells[cell] == Cell::Free), "took used bytes away");
        }
        self.adopt(Some(plan));
    }

    fn finish_release(&mut self, nth: usize) {
        if self.plans.is_empty() {
            return;
        }
        let plan = self.plans.swap_remove(nth % self.plans.len());
        self.release_memory(&plan);
        let slice = self.slices.iter_mut().find(|slice| slice.id == plan.slice()).unwrap();
        for Backing { region: RegionIndex(region), .. } in plan.unback().iter().chain(plan.forget()) {
            slice.regions[*region as usize] = RegionState::Unbacked;
        }
        for region in plan.discard() {
            let state = &mut slice.regions[region.0 as usize];
            if *state == RegionState::Discarding {
                *state = RegionState::Unbacked;
            }
        }
        if let Some(range) = plan.range() {
            slice.paint(range, Cell::Free);
            slice.detach(range, self.shard_bytes);
        }
        let more = self.pool.finish_release(plan);
        self.adopt(more);
    }

    fn lose(&mut self, gpu: GpuId) {
        self.capacity[gpu.index()] = 0;
        self.configured[gpu.index()] = 0;
        self.draining[gpu.index()] = false;
        for (relocation, counted) in &mut self.relocations {
            *counted &= relocation.to() != gpu;
        }
        let mut expected = Vec::new();
        for slice in &mut self.slices {
            slice.lose_private_copies(gpu, self.shard_bytes);
            for (index, state) in slice.regions.iter_mut().enumerate() {
                let copied = *state == RegionState::Backed(gpu) && slice.copies[index] == TierCopy::Valid;
                if holder(*state) == Some(gpu) {
                    slice.copies[index] = TierCopy::Stale;
                }
                if *state == RegionState::Promoting(gpu) || copied {
                    *state = RegionState::Stored;
                }
                if holder(*state) == Some(gpu) {
                    *state = RegionState::Lost(gpu);
                    expected.push((slice.id, index as u32));
                }
            }
        }
        let lost = self.pool.mark_lost(gpu);
        let lost =
            lost.iter().flat_map(|lost| lost.regions.iter().map(|region| (lost.slice, region.region.0)));
        assert_eq!(lost.collect::<Vec<_>>(), expected);
    }

    fn step(&mut self, step: &Step) {
        let slices = self.slices.len();
        self.now.0 += 1;
        match *step {
            Step::Alloc { slice, granules, trim, alignment_bytes } if slices > 0 => {
                self.alloc(slice % slices, granules, trim, alignment_bytes);
            }
            Step::Commit { slice } if slices > 0 => self.commit(slice % slices),
            Step::Abort { slice, refuse } if slices > 0 => self.abort(slice % slices, refuse),
            Step::Free { slice, nth } if slices > 0 => self.free(slice % slices, nth),
            Step::PlanRelease { nth } => self.plan_release(nth),
            Step::FinishRelease { nth } => self.finish_release(nth),
            Step::Lose { gpu } => self.lose(GpuId(gpu)),
            Step::Resize { slice, limit, guarantee } if slices > 0 => {
                self.resize(slice % slices, limit, guarantee);
            }
            Step::Drain { gpu } => self.drain(GpuId(gpu)),
            Step::EndDrain { gpu } => {
                self.draining[usize::from(gpu)] = false;
                self.pool.end_drain(GpuId(gpu)).unwrap();
            }
            Step::Evict { slice, nth } if slices > 0 => self.evict(slice % slices, nth),
            Step::Promote { slice, nth } if slices > 0 => self.promote(slice % slices, nth),
            Step::Shift { slice, nth } if slices > 0 => self.shift(slice % slices, nth),
            Step::EndTiering { nth, end } => self.end_tiering(nth, end),
            Step::Damage { slice, nth } if slices > 0 => self.damage(slice % slices, nth),
            Step::Touch { nth } => self.touch(nth),
            Step::MakeRoom { slice, keep } if slices > 0 => self.make_room(slice % slices, keep),
            Step::EnforceLimits => self.enforce_limits(),
            Step::EvictAhead { low } => self.evict_ahead(low),
            Step::Relocate => self.relocate(),
            Step::EndRelocation { nth, end } => self.end_relocation(nth, end),
            Step::Pin { slice, nth, kind } if slices > 0 => self.pin(slice % slices, nth, kind),
            Step::Unpin { nth } => self.unpin(nth),
            Step::Restore { gpu } => {
                self.capacity[usize::from(gpu)] = self.configured[usize::from(gpu)];
                self.pool.restore_capacity(GpuId(gpu));
            }
            Step::Export { slice, nth, part, rights, only } if slices > 0 => {
                self.export(slice % slices, nth, part, rights, only.map(|only| only % slices));
            }
            Step::Attach { slice, nth } if slices > 0 => self.attach(slice % slices, nth),
            Step::Revoke { nth } => self.revoke(nth),
            Step::Privatize { slice, nth, level } if slices > 0 => {
                self.privatize(slice % slices, nth, level);
            }
            Step::EndPrivatizing { nth, end } => self.end_privatizing(nth, end),
            _ => {}
        }
        self.check();
    }

    /// The pool's figures are the model's.
    fn check(&self) {
        self.pool.verify().unwrap();
        for gpu in self.pool.gpus() {
            assert_eq!(gpu.used_shards, self.used(gpu.id));
            assert_eq!(gpu.draining, self.draining[gpu.id.index()]);
            assert_eq!(gpu.capacity_shards, self.capacity[gpu.id.index()]);
        }
        for slice in &self.slices {
            let usage = self.pool.usage(slice.id).unwrap();
            assert_eq!(usage.allocated_bytes, slice.count(Cell::Live));
            assert_eq!(usage.quarantined_bytes, slice.count(Cell::Quarantined));
            assert_eq!(usage.backed_bytes, u64::from(slice.held()) * self.shard_bytes);
            let bytes_of = |counted: fn(&RegionState) -> bool| {
                slice.regions.iter().filter(|state| counted(state)).count() as u64 * self.shard_bytes
            };
            assert_eq!(usage.stored_bytes, bytes_of(is_stored));
            assert_eq!(usage.attached_bytes, bytes_of(takes_nothing));
            assert_eq!(usage.allocations, slice.live.len() as u64);
            assert_eq!(usage.gpus.iter().map(|gpu| gpu.bytes).sum::<u64>(), usage.backed_bytes);
            let live: Vec<_> =
                self.pool.allocations(slice.id).map(|a| (a.range.start.0, a.range.len_bytes)).collect();
            assert!(live.into_iter().eq(slice.live.iter().map(|(&start, &len)| (start, len))));
            for (index, state) in slice.regions.iter().enumerate() {
                let region = RegionIndex(index as u32);
                assert_eq!(self.pool.region(slice.id, region), Some(*state));
            }
        }
        self.check_shares();
    }

    /// Frees everything: everything is back.
    fn wind_down(mut self) {
        while !self.pinned.is_empty() {
            self.unpin(0);
        }
        while !self.relocations.is_empty() {
            self.end_relocation(0, RelocationEnd::Abort);
        }
        while !self.privates.is_empty() {
            self.end_privatizing(0, RelocationEnd::Abort);
        }
        assert!(self.slices.iter().all(|slice| slice.pins.iter().all(|pins| *pins == 0)));
        while self.evictions.len() + self.promotions.len() + self.shifts.len() > 0 {
            self.end_tiering(0, TieringEnd::Abort);
        }
        for index in 0..self.slices.len() {
            self.abort(index, false);
            while !self.slices[index].live.is_empty() {
                self.free(index, 0);
            }
        }
        while !self.freeings.is_empty() {
            self.plan_release(0);
        }
        while !self.plans.is_empty() {
            self.finish_release(0);
        }
        self.check();
        for slice in &self.slices {
            assert!(slice.regions.iter().all(|state| *state == RegionState::Unbacked), "a region stayed");
            self.pool.remove_slice(slice.id).unwrap();
        }
        assert!(self.memory.is_empty(), "a region was not taken away");
        for gpu in self.pool.gpus() {
            assert_eq!((gpu.used_shards, gpu.promised_shards), (0, 0));
        }
        self.pool.verify().unwrap();
    }
}

fn step() -> impl Strategy<Value = Step> {
    let slice = 0..3usize;
    let alignment = prop_oneof![
        6 => Just(0u64), 2 => Just(256), 1 => Just(MIB), 1 => Just(2 * MIB), 1 => Just(4 * MIB), 1 => Just(8 * MIB),
    ];
    let granules = prop_oneof![4 => 1..8u64, 3 => 8..24u64, 2 => 24..100u64, 1 => 100..400u64];
    let alloc = (slice.clone(), granules, 0..256u64, alignment).prop_map(
        |(slice, granules, trim, alignment_bytes)| Step::Alloc { slice, granules, trim, alignment_bytes },
    );
    let ends = prop_oneof![
        3 => Just(RelocationEnd::Finish),
        1 => Just(RelocationEnd::Abort),
        1 => Just(RelocationEnd::Refuse),
    ];
    let tiering_ends = prop_oneof![
        2 => Just(TieringEnd::Finish(TierCopy::Valid)),
        2 => Just(TieringEnd::Finish(TierCopy::Stale)),
        1 => Just(TieringEnd::Abort),
        1 => Just(TieringEnd::Refuse),
    ];
    let one_region = (slice.clone(), any::<usize>());
    let tiering = prop_oneof![
        5 => one_region.clone().prop_map(|(slice, nth)| Step::Evict { slice, nth }),
        6 => one_region.clone().prop_map(|(slice, nth)| Step::Promote { slice, nth }),
        4 => one_region.clone().prop_map(|(slice, nth)| Step::Shift { slice, nth }),
        10 => (any::<usize>(), tiering_ends).prop_map(|(nth, end)| Step::EndTiering { nth, end }),
        1 => one_region.prop_map(|(slice, nth)| Step::Damage { slice, nth }),
        3 => any::<usize>().prop_map(|nth| Step::Touch { nth }),
        // Few are kept, or most.
        3 => (slice.clone(), any::<u32>(), any::<u32>(), any::<bool>()).prop_map(|(slice, a, b, few)| {
            Step::MakeRoom { slice, keep: if few { a & b & 0x1111_1111 } else { a | b } }
        }),
        1 => Just(Step::EnforceLimits),
        2 => (0..5u32).prop_map(|low| Step::EvictAhead { low }),
    ];
    let kinds = prop_oneof![Just(AccessKind::Read), Just(AccessKind::Write)];
    let (pinner, resized) = (slice.clone(), slice.clone());
    let step = prop_oneof![
        12 => alloc,
        11 => slice.clone().prop_map(|slice| Step::Commit { slice }),
        3 => (slice.clone(), any::<bool>()).prop_map(|(slice, refuse)| Step::Abort { slice, refuse }),
        7 => (slice, any::<usize>()).prop_map(|(slice, nth)| Step::Free { slice, nth }),
        6 => any::<usize>().prop_map(|nth| Step::PlanRelease { nth }),
        6 => any::<usize>().prop_map(|nth| Step::FinishRelease { nth }),
        1 => (0..3u16).prop_map(|gpu| Step::Restore { gpu }),
        1 => (0..3u16).prop_map(|gpu| Step::Drain { gpu }),
        1 => (resized, 1..14u32, 0..6u32)
            .prop_map(|(slice, limit, guarantee)| Step::Resize { slice, limit, guarantee }),
        1 => (0..3u16).prop_map(|gpu| Step::EndDrain { gpu }),
        28 => tiering,
        4 => Just(Step::Relocate),
        3 => (any::<usize>(), ends).prop_map(|(nth, end)| Step::EndRelocation { nth, end }),
        7 => (pinner, any::<usize>(), kinds)
            .prop_map(|(slice, nth, kind)| Step::Pin { slice, nth, kind }),
        20 => shares::steps(),
        6 => any::<usize>().prop_map(|nth| Step::Unpin { nth }),
    ];
    let loss = (0..3u16).prop_map(|gpu| Step::Lose { gpu });
    prop_oneof![150 => step, 1 => loss]
}

fn worlds() -> impl Strategy<Value = World> {
    let placement = prop_oneof![
        2 => Just(Placement::Spill),
        1 => Just(Placement::Local),
        1 => Just(Placement::Spread),
        1 => Just(Placement::Pack),
    ];
    let slice = (0..5u32, 1..13u32, placement, prop::option::of(0..3u16));
    let tiers = prop_oneof![1 => Just(0), 4 => 1..20u32];
    let shards = prop_oneof![4 => Just(2 * MIB), 1 => Just(4 * MIB), 1 => Just(6 * MIB)];
    (shards, prop::array::uniform3(1..7u32), prop::collection::vec(slice, 3), 0..9u64, tiers).prop_map(
        |(shard_bytes, gpu_shards, slices, spare_regions, tier_regions)| World {
            shard_bytes,
            gpu_shards,
            slices,
            spare_regions,
            tier_regions,
        },
    )
}

fn walk(world: &World, steps: &[Step]) {
    let mut model = Model::new(world);
    model.check();
    for step in steps {
        model.step(step);
    }
    model.wind_down();
}

proptest! {
    #![proptest_config(ProptestConfig::default())]

    #[test]
    fn pool_under_random_steps_agrees_with_the_model(
        world in worlds(),
        steps in prop::collection::vec(step(), 1..150),
    ) {
        walk(&world, &steps);
    }

    #[test]
    fn pool_with_much_shared_agrees_with_the_model(world in shares::worlds(), steps in shares::walks()) {
        walk(&world, &steps);
    }
}
