//! The pool's rules, one case each.

mod shares;
mod tiers;

use vram_gpu::{DeviceAddress, DeviceRange, GpuId, Link, Topology};
use vram_pool::{
    AccessKind, AllocError, AllocRequest, Allocation, DrainError, GpuCapacity, Grant, PinError, Place,
    Placement, Pool, PoolConfig, PoolError, RegionIndex, RegionState, Releasable, ReleasePlan, SliceConfig,
    SliceId,
};

const MIB: u64 = 1 << 20;
const SHARD: u64 = 2 * MIB;

/// A pool of shards of 2 MiB without lower tiers; GPUs 0 and 1 are near each other, all others far apart.
fn pool(shards: &[u32]) -> Pool {
    tiered_pool(shards, 0)
}

/// The same with lower tiers that take so many regions.
fn tiered_pool(shards: &[u32], tier_regions: u32) -> Pool {
    let gpus =
        shards.iter().zip(0u16..).map(|(&shards, gpu)| GpuCapacity { id: GpuId(gpu), shards }).collect();
    let near = |a: GpuId, b: GpuId| if a.0 + b.0 == 1 { Link::NvLink(18) } else { Link::Sys };
    let topology = Topology::from_fn(shards.len(), near);
    Pool::new(PoolConfig { shard_bytes: SHARD, gpus, topology, tier_regions }).unwrap()
}

fn config(guarantee_shards: u64, limit_shards: u64) -> SliceConfig {
    SliceConfig {
        name: "tenant".to_owned(),
        guarantee_bytes: guarantee_shards * SHARD,
        limit_bytes: limit_shards * SHARD,
        placement: Placement::Spill,
        home: Some(GpuId(0)),
    }
}

fn local(guarantee_shards: u64, limit_shards: u64, home: u16) -> SliceConfig {
    SliceConfig {
        placement: Placement::Local,
        home: Some(GpuId(home)),
        ..config(guarantee_shards, limit_shards)
    }
}

fn add(pool: &mut Pool, config: SliceConfig) -> SliceId {
    let start = DeviceAddress((1 + pool.slices().count() as u64) << 40);
    let len_bytes = pool.band_bytes(config.limit_bytes).unwrap();
    pool.add_slice(config, DeviceRange { start, len_bytes }).unwrap()
}

fn request(length_bytes: u64) -> AllocRequest {
    AllocRequest { length_bytes, alignment_bytes: 0 }
}

fn alloc(pool: &mut Pool, slice: SliceId, length_bytes: u64) -> Allocation {
    let grant = pool.plan_alloc(slice, request(length_bytes)).unwrap();
    pool.commit(grant)
}

fn begin_release(pool: &mut Pool, slice: SliceId, allocation: Allocation) -> ReleasePlan {
    let freeing = pool.begin_free(slice, allocation.range.start).unwrap();
    pool.plan_release(freeing)
}

fn free(pool: &mut Pool, slice: SliceId, allocation: Allocation) {
    let plan = begin_release(pool, slice, allocation);
    assert_eq!(pool.finish_release(plan), None);
    pool.verify().unwrap();
}

fn gpus_of(grant: &Grant) -> Vec<u16> {
    grant.backings().iter().map(|backing| backing.gpu.0).collect()
}

fn fill(pool: &mut Pool, slice: SliceId, shards: u64) -> Vec<Allocation> {
    (0..shards).map(|_| alloc(pool, slice, SHARD)).collect()
}

fn made_of(shard_bytes: u64, gpus: Vec<GpuCapacity>, topology_gpus: usize) -> PoolConfig {
    PoolConfig { shard_bytes, gpus, topology: Topology::uniform(topology_gpus, Link::Sys), tier_regions: 0 }
}

#[test]
fn new_with_odd_shard_size_is_refused() {
    for shard_bytes in [0, MIB, 3 * MIB, 2 << 30] {
        let gpus = vec![GpuCapacity { id: GpuId(0), shards: 1 }];
        let made = Pool::new(made_of(shard_bytes, gpus, 1));
        assert_eq!(made.unwrap_err(), PoolError::BadShardSize { shard_bytes });
    }
}

#[test]
fn new_with_a_gpu_twice_is_refused() {
    let gpus = vec![GpuCapacity { id: GpuId(0), shards: 1 }; 2];
    let made = Pool::new(made_of(SHARD, gpus, 1));
    assert_eq!(made.unwrap_err(), PoolError::DuplicateGpu { gpu: GpuId(0) });
}

#[test]
fn new_with_a_gpu_outside_the_topology_is_refused() {
    let gpus = vec![GpuCapacity { id: GpuId(3), shards: 1 }];
    let made = Pool::new(made_of(SHARD, gpus, 2));
    assert_eq!(made.unwrap_err(), PoolError::UnknownToTopology { gpu: GpuId(3), topology_gpus: 2 });
}

#[test]
fn new_without_gpus_is_refused() {
    let made = Pool::new(made_of(SHARD, vec![], 0));
    assert_eq!(made.unwrap_err(), PoolError::NoGpus);
}

#[test]
fn band_bytes_of_any_limit_is_twice_the_shards_and_a_gibibyte() {
    let pool = pool(&[10]);
    assert_eq!(pool.band_bytes(0), None);
    assert_eq!(pool.band_bytes(1), Some(2 * SHARD + (1 << 30)));
    assert_eq!(pool.band_bytes(u64::MAX), Some(20 * SHARD + (1 << 30)));
}

#[test]
fn admit_of_a_guarantee_beyond_the_pool_tells_what_is_free() {
    let mut pool = pool(&[3, 2]);
    add(&mut pool, config(4, 5));
    let refused = pool.admit(&config(2, 5)).unwrap_err();
    assert_eq!(refused, PoolError::GuaranteeDoesNotFit { requested_bytes: 2 * SHARD, free_bytes: SHARD });
    assert_eq!(pool.admit(&config(1, 5)), Ok(()));
}

#[test]
fn admit_of_a_broken_guarantee_rounds_it_up() {
    let pool = pool(&[1]);
    let config = SliceConfig { guarantee_bytes: SHARD + 1, ..config(0, 2) };
    assert!(matches!(pool.admit(&config), Err(PoolError::GuaranteeDoesNotFit { .. })));
}

#[test]
fn admit_of_a_local_slice_needs_room_at_home() {
    let mut pool = pool(&[3, 9]);
    add(&mut pool, local(2, 3, 0));
    let refused = pool.admit(&local(2, 3, 0)).unwrap_err();
    assert_eq!(refused, PoolError::GuaranteeDoesNotFit { requested_bytes: 2 * SHARD, free_bytes: SHARD });
    assert_eq!(pool.admit(&local(2, 3, 1)), Ok(()));
}

#[test]
fn admit_of_senseless_sizes_is_refused() {
    let pool = pool(&[3]);
    assert_eq!(pool.admit(&config(0, 0)), Err(PoolError::BadLimit { limit_bytes: 0 }));
    assert!(matches!(pool.admit(&config(2, 1)), Err(PoolError::GuaranteeAboveLimit { .. })));
    assert_eq!(pool.admit(&local(1, 1, 7)), Err(PoolError::NoSuchGpu { gpu: GpuId(7) }));
}

#[test]
fn add_slice_without_home_goes_where_least_is_promised() {
    let mut pool = pool(&[4, 6, 6]);
    let nowhere = |guarantee| SliceConfig { home: None, ..config(guarantee, 6) };
    let homes: Vec<_> = [3, 1, 1]
        .map(|guarantee| add(&mut pool, nowhere(guarantee)))
        .map(|s| pool.usage(s).unwrap().home.0)
        .into();
    assert_eq!(homes, [1, 2, 2]);
}

#[test]
fn add_slice_promises_spill_over_to_the_nearest() {
    let mut pool = pool(&[2, 2, 9]);
    add(&mut pool, config(3, 3));
    let promised = |pool: &Pool| pool.gpus().iter().map(|gpu| gpu.promised_shards).collect::<Vec<_>>();
    assert_eq!(promised(&pool), [2, 1, 0]);
    add(&mut pool, local(2, 2, 1));
    assert_eq!(promised(&pool), [2, 2, 1]);
}

#[test]
fn add_slice_with_a_bad_band_is_refused() {
    let mut pool = pool(&[8]);
    add(&mut pool, config(0, 2));
    for (start, len_bytes) in [
        (MIB, 4 * SHARD),
        (SHARD, 4 * SHARD + 1),
        (SHARD, SHARD),
        (u64::MAX - SHARD + 1, 2 * SHARD),
        (1 << 40, 4 * SHARD),
    ] {
        let band = DeviceRange { start: DeviceAddress(start), len_bytes };
        assert!(matches!(pool.add_slice(config(0, 2), band), Err(PoolError::BadBand { .. })), "{band}");
    }
}

#[test]
fn remove_slice_in_use_is_refused_until_all_is_released() {
    let mut pool = pool(&[2]);
    let slice = add(&mut pool, config(1, 2));
    let refused = |pool: &mut Pool| matches!(pool.remove_slice(slice), Err(PoolError::SliceInUse { .. }));
    let grant = pool.plan_alloc(slice, request(1)).unwrap();
    assert!(refused(&mut pool));
    let allocation = pool.commit(grant);
    assert!(refused(&mut pool));
    let freeing = pool.begin_free(slice, allocation.range.start).unwrap();
    assert!(refused(&mut pool));
    let plan = pool.plan_release(freeing);
    assert!(refused(&mut pool));
    pool.finish_release(plan);
    let band = pool.band(slice).unwrap();
    assert_eq!(pool.remove_slice(slice), Ok(band));
    assert_eq!(pool.remove_slice(slice), Err(PoolError::NoSuchSlice { slice }));
    assert_eq!(pool.gpus()[0].promised_shards, 0);
}

#[test]
fn alloc_of_nothing_or_everything_is_refused() {
    let mut pool = pool(&[2]);
    let slice = add(&mut pool, config(0, 2));
    assert_eq!(pool.plan_alloc(slice, request(0)), Err(AllocError::BadLength { length_bytes: 0 }));
    let all = u64::MAX;
    assert_eq!(pool.plan_alloc(slice, request(all)), Err(AllocError::BadLength { length_bytes: all }));
    assert!(matches!(pool.plan_alloc(slice, request(2 * SHARD + 1)), Err(AllocError::OverLimit { .. })));
}

#[test]
fn alloc_with_odd_alignment_is_refused() {
    let mut pool = pool(&[2]);
    let slice = add(&mut pool, config(0, 2));
    for alignment_bytes in [3, 257, 2 << 30, u64::MAX] {
        let refused = pool.plan_alloc(slice, AllocRequest { length_bytes: 1, alignment_bytes });
        assert_eq!(refused, Err(AllocError::BadAlignment { alignment_bytes }));
    }
}

#[test]
fn alloc_with_the_largest_alignment_fits_the_smallest_band() {
    let mut pool = pool(&[1]);
    let slice = {
        let start = DeviceAddress(3 * SHARD);
        let len_bytes = pool.band_bytes(1).unwrap();
        pool.add_slice(config(0, 1), DeviceRange { start, len_bytes }).unwrap()
    };
    let request = AllocRequest { length_bytes: SHARD, alignment_bytes: AllocRequest::MAX_ALIGNMENT_BYTES };
    let grant = pool.plan_alloc(slice, request).unwrap();
    assert_eq!((grant.range().start, grant.backings().len()), (DeviceAddress(1 << 30), 1));
}

#[test]
fn alloc_while_a_grant_is_pending_is_busy() {
    let mut pool = pool(&[2]);
    let slice = add(&mut pool, config(0, 2));
    let grant = pool.plan_alloc(slice, request(1)).unwrap();
    assert_eq!(pool.plan_alloc(slice, request(1)), Err(AllocError::Busy { slice }));
    assert_eq!(pool.abort(grant, None), None);
    assert!(pool.plan_alloc(slice, request(1)).is_ok());
}

#[test]
fn alloc_of_a_small_piece_uses_backed_room_first() {
    let mut pool = pool(&[2]);
    let slice = add(&mut pool, config(0, 2));
    let first = alloc(&mut pool, slice, 300);
    let grant = pool.plan_alloc(slice, request(300)).unwrap();
    assert_eq!(grant.backings(), []);
    assert_eq!(grant.range().start.0, first.range.start.0 + 512);
}

#[test]
fn alloc_reaches_from_a_backed_region_into_a_new_one() {
    let mut pool = pool(&[2]);
    let slice = add(&mut pool, config(0, 2));
    alloc(&mut pool, slice, MIB);
    let grant = pool.plan_alloc(slice, request(2 * MIB)).unwrap();
    assert_eq!(grant.backings().len(), 1);
    let allocation = pool.commit(grant);
    assert_eq!(pool.extents(slice, allocation.range).count(), 2);
    assert_eq!(pool.merged_extents(slice, allocation.range).len(), 1);
}

#[test]
fn alloc_spills_to_the_nearest_gpu_with_room() {
    let mut pool = pool(&[1, 1, 1]);
    let slice = add(&mut pool, config(0, 3));
    let grant = pool.plan_alloc(slice, request(3 * SHARD)).unwrap();
    assert_eq!(gpus_of(&grant), [0, 1, 2]);
    let allocation = pool.commit(grant);
    assert_eq!(pool.merged_extents(slice, allocation.range).len(), 3);
}

#[test]
fn alloc_among_equally_near_gpus_takes_the_emptiest() {
    let mut pool = pool(&[1, 0, 2, 5]);
    let slice = add(&mut pool, config(0, 8));
    let grant = pool.plan_alloc(slice, request(6 * SHARD)).unwrap();
    assert_eq!(gpus_of(&grant), [0, 3, 3, 3, 2, 3]);
}

#[test]
fn alloc_of_a_spread_slice_goes_round_all_gpus_with_room() {
    let mut pool = pool(&[3, 1, 3]);
    let spread = SliceConfig { placement: Placement::Spread, home: Some(GpuId(1)), ..config(0, 7) };
    let slice = add(&mut pool, spread);
    let grant = pool.plan_alloc(slice, request(5 * SHARD)).unwrap();
    assert_eq!(gpus_of(&grant), [1, 0, 2, 0, 2]);
    let first = pool.commit(grant);
    // What comes later evens out what is there.
    free(&mut pool, slice, first);
    let (one, two) = (alloc(&mut pool, slice, SHARD), alloc(&mut pool, slice, SHARD));
    free(&mut pool, slice, one);
    let grant = pool.plan_alloc(slice, request(2 * SHARD)).unwrap();
    assert_eq!(gpus_of(&grant), [1, 2]);
    pool.commit(grant);
    free(&mut pool, slice, two);
}

#[test]
fn alloc_of_a_packed_slice_takes_the_fullest_gpu_with_room() {
    let mut pool = pool(&[6, 4, 5]);
    let pack = |home| SliceConfig { placement: Placement::Pack, home, ..config(0, 12) };
    let first = add(&mut pool, pack(None));
    assert_eq!(pool.usage(first).unwrap().home, GpuId(1));
    let second = add(&mut pool, pack(Some(GpuId(2))));
    let grant = pool.plan_alloc(second, request(11 * SHARD)).unwrap();
    assert_eq!(gpus_of(&grant), [1, 1, 1, 1, 2, 2, 2, 2, 2, 0, 0]);
    pool.commit(grant);
}

#[test]
fn add_slice_without_home_spreads_those_without_guarantee_over_the_gpus() {
    let mut pool = pool(&[4, 4, 4]);
    let homes: Vec<_> = (0..4)
        .map(|_| {
            let slice = add(&mut pool, SliceConfig { home: None, ..config(0, 2) });
            pool.usage(slice).unwrap().home.0
        })
        .collect();
    assert_eq!(homes, [0, 1, 2, 0]);
}

#[test]
fn alloc_of_a_local_slice_never_leaves_home() {
    let mut pool = pool(&[1, 5]);
    let slice = add(&mut pool, local(0, 3, 0));
    let refused = pool.plan_alloc(slice, request(2 * SHARD));
    let error = AllocError::OutOfMemory { requested_bytes: 2 * SHARD, free_bytes: SHARD };
    assert_eq!(refused, Err(error));
}

#[test]
fn alloc_beyond_the_limit_tells_what_is_in_use() {
    let mut pool = pool(&[4]);
    let slice = add(&mut pool, config(0, 2));
    alloc(&mut pool, slice, SHARD);
    let refused = pool.plan_alloc(slice, request(SHARD + 1));
    let error =
        AllocError::OverLimit { limit_bytes: 2 * SHARD, in_use_bytes: SHARD, requested_bytes: SHARD + 1 };
    assert_eq!(refused, Err(error));
}

#[test]
fn alloc_by_borrowing_stops_before_the_guarantee_of_others() {
    let mut pool = pool(&[2, 2]);
    let borrower = add(&mut pool, config(1, 4));
    let other = add(&mut pool, config(2, 2));
    fill(&mut pool, borrower, 2);
    let error = AllocError::OutOfMemory { requested_bytes: SHARD, free_bytes: 0 };
    assert_eq!(pool.plan_alloc(borrower, request(SHARD)), Err(error));
    fill(&mut pool, other, 2);
    pool.verify().unwrap();
}

#[test]
fn alloc_inside_the_guarantee_keeps_off_what_a_local_slice_needs() {
    let mut pool = pool(&[2, 2]);
    let bound = add(&mut pool, local(2, 2, 0));
    let roaming = add(&mut pool, config(2, 2));
    let grant = pool.plan_alloc(roaming, request(2 * SHARD)).unwrap();
    assert_eq!(gpus_of(&grant), [1, 1]);
    let _ = pool.commit(grant);
    fill(&mut pool, bound, 2);
}

#[test]
fn alloc_while_own_bytes_are_quarantined_asks_to_wait() {
    let mut pool = pool(&[1]);
    let slice = add(&mut pool, config(0, 1));
    let allocation = alloc(&mut pool, slice, SHARD);
    let plan = begin_release(&mut pool, slice, allocation);
    let error = AllocError::QuarantinePending { requested_bytes: MIB };
    assert_eq!(pool.plan_alloc(slice, request(MIB)), Err(error));
    pool.finish_release(plan);
    alloc(&mut pool, slice, MIB);
}

#[test]
fn alloc_while_shards_of_others_come_back_asks_to_wait() {
    let mut pool = pool(&[2]);
    let (mine, other) = (add(&mut pool, config(0, 2)), add(&mut pool, config(0, 2)));
    let allocations = fill(&mut pool, other, 2);
    let freeing = pool.begin_free(other, allocations[0].range.start).unwrap();
    let wait = |requested_bytes| Err(AllocError::QuarantinePending { requested_bytes });
    assert_eq!(pool.plan_alloc(mine, request(SHARD)), wait(SHARD));
    let too_much = AllocError::OutOfMemory { requested_bytes: 2 * SHARD, free_bytes: 0 };
    assert_eq!(pool.plan_alloc(mine, request(2 * SHARD)), Err(too_much));
    let plan = pool.plan_release(freeing);
    assert_eq!(pool.plan_alloc(mine, request(SHARD)), wait(SHARD));
    pool.finish_release(plan);
    alloc(&mut pool, mine, SHARD);
}

#[test]
fn alloc_while_others_return_what_they_are_guaranteed_does_not_wait() {
    let mut pool = pool(&[1]);
    let (mine, other) = (add(&mut pool, config(0, 1)), add(&mut pool, config(1, 1)));
    let allocation = alloc(&mut pool, other, SHARD);
    let _plan = begin_release(&mut pool, other, allocation);
    let error = AllocError::OutOfMemory { requested_bytes: SHARD, free_bytes: 0 };
    assert_eq!(pool.plan_alloc(mine, request(SHARD)), Err(error));
}

#[test]
fn alloc_in_a_broken_up_band_is_fragmented() {
    let mut pool = pool(&[8]);
    let start = DeviceAddress(1 << 40);
    let band = DeviceRange { start, len_bytes: 4 * SHARD };
    let slice = pool.add_slice(config(0, 4), band).unwrap();
    let allocations = fill(&mut pool, slice, 4);
    free(&mut pool, slice, allocations[0]);
    free(&mut pool, slice, allocations[2]);
    let error = AllocError::Fragmented { requested_bytes: 2 * SHARD };
    assert_eq!(pool.plan_alloc(slice, request(2 * SHARD)), Err(error));
}

#[test]
fn abort_with_a_refusal_shrinks_the_gpu_until_restored() {
    let mut pool = pool(&[4]);
    let slice = add(&mut pool, config(0, 4));
    fill(&mut pool, slice, 1);
    let grant = pool.plan_alloc(slice, request(2 * SHARD)).unwrap();
    assert_eq!(pool.abort(grant, Some(GpuId(0))), None);
    assert_eq!(pool.gpus()[0].capacity_shards, 1);
    assert!(matches!(pool.plan_alloc(slice, request(SHARD)), Err(AllocError::OutOfMemory { .. })));
    pool.restore_capacity(GpuId(0));
    assert_eq!(pool.gpus()[0].capacity_shards, 4);
    alloc(&mut pool, slice, SHARD);
    pool.verify().unwrap();
}

#[test]
fn abort_of_the_last_bytes_of_a_region_returns_a_plan_for_it() {
    let mut pool = pool(&[1]);
    let slice = add(&mut pool, config(0, 1));
    let allocation = alloc(&mut pool, slice, 256);
    let grant = pool.plan_alloc(slice, request(256)).unwrap();
    free(&mut pool, slice, allocation);
    let plan = pool.abort(grant, None).unwrap();
    assert_eq!((plan.scrub().len(), plan.unback().len()), (0, 1));
    assert_eq!(pool.finish_release(plan), None);
    assert_eq!(pool.gpus()[0].used_shards, 0);
}

#[test]
fn free_at_an_inner_address_is_refused() {
    let mut pool = pool(&[1]);
    let slice = add(&mut pool, config(0, 1));
    let start = alloc(&mut pool, slice, 1024).range.start;
    let address = DeviceAddress(start.0 + 256);
    assert_eq!(pool.begin_free(slice, address).unwrap_err(), PoolError::NoSuchAllocation { slice, address });
    assert!(pool.begin_free(slice, start).is_ok());
    assert!(pool.begin_free(slice, start).is_err());
}

#[test]
fn release_of_a_part_of_a_region_scrubs_it() {
    let mut pool = pool(&[3]);
    let slice = add(&mut pool, config(0, 3));
    let _first = alloc(&mut pool, slice, MIB);
    let middle = alloc(&mut pool, slice, SHARD + MIB + 512);
    let _last = alloc(&mut pool, slice, 256);
    let plan = begin_release(&mut pool, slice, middle);
    let start = middle.range.start;
    let tail = DeviceAddress(start.0 + SHARD + MIB);
    assert_eq!(
        plan.scrub(),
        [DeviceRange { start, len_bytes: MIB }, DeviceRange { start: tail, len_bytes: 512 }]
    );
    assert_eq!(plan.unback().iter().map(|backing| backing.region.0).collect::<Vec<_>>(), [1]);
    assert_eq!(pool.region(slice, RegionIndex(1)), Some(RegionState::Returning(GpuId(0))));
    assert_eq!(pool.finish_release(plan), None);
    assert_eq!(pool.usage(slice).unwrap().backed_bytes, 2 * SHARD);
}

#[test]
fn release_over_a_region_border_scrubs_one_merged_range() {
    let mut pool = pool(&[2]);
    let slice = add(&mut pool, config(0, 2));
    let _first = alloc(&mut pool, slice, MIB);
    let middle = alloc(&mut pool, slice, 2 * MIB);
    let _last = alloc(&mut pool, slice, 256);
    assert_eq!(begin_release(&mut pool, slice, middle).scrub(), [middle.range]);
}

#[test]
fn release_of_two_that_share_a_region_drains_it_last() {
    let mut pool = pool(&[1]);
    let slice = add(&mut pool, config(0, 1));
    let (a, b) = (alloc(&mut pool, slice, 256), alloc(&mut pool, slice, 256));
    let plan_a = {
        let freeing = pool.begin_free(slice, a.range.start).unwrap();
        let plan_b = begin_release(&mut pool, slice, b);
        assert_eq!(plan_b.scrub(), [b.range]);
        let plan_a = pool.plan_release(freeing);
        assert_eq!(plan_a.scrub(), [a.range]);
        assert_eq!(pool.finish_release(plan_b), None);
        plan_a
    };
    let last = pool.finish_release(plan_a).unwrap();
    assert_eq!((last.range(), last.scrub().len(), last.unback().len()), (None, 0, 1));
    assert_eq!(pool.finish_release(last), None);
    assert_eq!(pool.usage(slice).unwrap().backed_bytes, 0);
    pool.verify().unwrap();
}

#[test]
fn find_between_allocations_finds_nothing() {
    let mut pool = pool(&[1]);
    let slice = add(&mut pool, config(0, 1));
    let allocation = alloc(&mut pool, slice, 100);
    let at = |offset| DeviceAddress(allocation.range.start.0 + offset);
    assert_eq!(pool.find(slice, at(99)), Some(allocation));
    assert_eq!(pool.find(slice, at(100)), None);
    assert_eq!(pool.find(SliceId(9), at(0)), None);
}

#[test]
fn extents_outside_the_band_are_none() {
    let mut pool = pool(&[1]);
    let slice = add(&mut pool, config(0, 1));
    alloc(&mut pool, slice, 100);
    let below = DeviceRange { start: DeviceAddress(0), len_bytes: 1 << 40 };
    let above = DeviceRange { start: DeviceAddress(2 << 40), len_bytes: u64::MAX };
    assert_eq!(pool.merged_extents(slice, below), []);
    assert_eq!(pool.merged_extents(slice, above), []);
}

#[test]
fn mark_lost_takes_regions_and_capacity() {
    let mut pool = pool(&[1, 1]);
    let slice = add(&mut pool, config(0, 2));
    let allocation = alloc(&mut pool, slice, SHARD + MIB);
    let lost = pool.mark_lost(GpuId(1));
    assert_eq!(lost.len(), 1);
    assert_eq!(lost[0].regions.iter().map(|backing| backing.region.0).collect::<Vec<_>>(), [1]);
    let extents: Vec<_> =
        pool.extents(slice, allocation.range).map(|extent| matches!(extent.place, Place::Lost(_))).collect();
    assert_eq!(extents, [false, true]);
    assert_eq!((pool.gpus()[1].capacity_shards, pool.gpus()[1].used_shards), (0, 0));
    assert!(pool.plan_alloc(slice, request(256)).is_err(), "put into a lost region");
    assert_eq!(pool.mark_lost(GpuId(1)), []);
    pool.restore_capacity(GpuId(1));
    assert_eq!(pool.gpus()[1].capacity_shards, 0);
    pool.verify().unwrap();
}

#[test]
fn release_of_a_lost_region_only_forgets_it() {
    let mut pool = pool(&[1, 1]);
    let slice = add(&mut pool, config(0, 2));
    let home = alloc(&mut pool, slice, SHARD);
    let away = alloc(&mut pool, slice, SHARD);
    let _ = pool.mark_lost(GpuId(1));
    let plan = begin_release(&mut pool, slice, away);
    assert_eq!((plan.scrub().len(), plan.unback().len(), plan.forget().len()), (0, 0, 1));
    assert_eq!(pool.finish_release(plan), None);
    free(&mut pool, slice, home);
    assert_eq!(alloc(&mut pool, slice, SHARD).range, home.range);
    assert_eq!(pool.region(slice, RegionIndex(1)), Some(RegionState::Unbacked));
}

#[test]
fn commit_after_its_gpu_was_lost_makes_a_lost_allocation() {
    let mut pool = pool(&[1]);
    let slice = add(&mut pool, config(0, 1));
    let grant = pool.plan_alloc(slice, request(SHARD)).unwrap();
    let _ = pool.mark_lost(GpuId(0));
    let allocation = pool.commit(grant);
    assert!(pool.extents(slice, allocation.range).all(|extent| matches!(extent.place, Place::Lost(_))));
    pool.verify().unwrap();
    free(&mut pool, slice, allocation);
    assert!(pool.remove_slice(slice).is_ok());
}

#[test]
fn drain_refused_for_guarantees_and_slices_that_stay_home() {
    let mut pool = pool(&[4, 4, 1]);
    add(&mut pool, config(5, 6));
    assert_eq!(pool.begin_drain(GpuId(7)), Err(DrainError::NoSuchGpu { gpu: GpuId(7) }));
    let short =
        DrainError::GuaranteesDoNotFit { gpu: GpuId(0), guaranteed_bytes: 6 * SHARD, left_bytes: 5 * SHARD };
    add(&mut pool, local(1, 1, 1));
    assert_eq!(pool.begin_drain(GpuId(0)), Err(short));
    let stays = DrainError::Local { gpu: GpuId(1), slice: "tenant".to_owned() };
    assert_eq!(pool.begin_drain(GpuId(1)), Err(stays));
    pool.begin_drain(GpuId(2)).unwrap();
    pool.mark_lost(GpuId(2));
    assert_eq!(pool.begin_drain(GpuId(2)), Err(DrainError::Lost { gpu: GpuId(2) }));
    pool.verify().unwrap();
}

#[test]
fn drained_gpu_gets_nothing_new_and_is_no_home() {
    let mut pool = pool(&[4, 4]);
    let slice = add(&mut pool, config(0, 8));
    pool.begin_drain(GpuId(0)).unwrap();
    let grant = pool.plan_alloc(slice, request(2 * SHARD)).unwrap();
    assert_eq!(gpus_of(&grant), [1, 1]);
    pool.commit(grant);
    let nowhere = add(&mut pool, SliceConfig { home: None, ..config(0, 8) });
    assert_eq!(pool.usage(nowhere).unwrap().home, GpuId(1));
    let none = pool.plan_alloc(slice, request(3 * SHARD)).unwrap_err();
    assert!(matches!(none, AllocError::OutOfMemory { free_bytes, .. } if free_bytes == 2 * SHARD), "{none}");
    pool.end_drain(GpuId(0)).unwrap();
    assert_eq!(gpus_of(&pool.plan_alloc(slice, request(3 * SHARD)).unwrap()), [0, 0, 0]);
}

#[test]
fn relocation_of_a_region_freed_meanwhile_returns_a_plan_for_it() {
    let mut pool = pool(&[2, 2]);
    let slice = add(&mut pool, config(0, 4));
    let grant = pool.plan_alloc(slice, request(SHARD)).unwrap();
    let allocation = pool.commit(grant);
    pool.begin_drain(GpuId(0)).unwrap();
    let relocation = pool.next_relocation().unwrap();
    assert_eq!(pool.next_relocation(), None);
    assert_eq!(pool.pin(slice, allocation.range, AccessKind::Read), Err(PinError::Moving));
    let freeing = pool.begin_free(slice, allocation.range.start).unwrap();
    assert_eq!(pool.releasable(&freeing), Releasable::AfterMove);
    assert_eq!(pool.finish_relocation(relocation), None);
    assert_eq!(pool.releasable(&freeing), Releasable::Now);
    let plan = pool.plan_release(freeing);
    let taken: Vec<_> = plan.unback().iter().map(|backing| backing.gpu).collect();
    assert_eq!(taken, [GpuId(1)]);
    assert_eq!(pool.finish_release(plan), None);
    pool.verify().unwrap();
}

#[test]
fn resize_changes_what_a_slice_may_hold_from_now_on() {
    let mut pool = pool(&[8]);
    let slice = add(&mut pool, config(1, 4));
    let held = fill(&mut pool, slice, 4);
    pool.resize_slice(slice, 2 * SHARD, SHARD).unwrap();
    pool.verify().unwrap();
    let refused = pool.plan_alloc(slice, request(SHARD)).unwrap_err();
    assert!(matches!(refused, AllocError::OverLimit { limit_bytes, .. } if limit_bytes == 2 * SHARD));
    assert_eq!(pool.usage(slice).unwrap().backed_bytes, 4 * SHARD);
    for allocation in held.into_iter().take(3) {
        free(&mut pool, slice, allocation);
    }
    alloc(&mut pool, slice, SHARD);
    assert!(pool.plan_alloc(slice, request(SHARD)).is_err());
    pool.resize_slice(slice, 8 * SHARD, 8 * SHARD).unwrap();
    fill(&mut pool, slice, 6);
    pool.verify().unwrap();
}

#[test]
fn resize_that_cannot_be_is_refused_and_changes_nothing() {
    let mut pool = pool(&[900]);
    let slice = add(&mut pool, config(1, 4));
    let other = add(&mut pool, config(800, 800));
    let before = pool.usage(slice);
    let refusals = [
        pool.resize_slice(slice, 0, 0),
        pool.resize_slice(slice, SHARD, 2 * SHARD),
        pool.resize_slice(slice, 101 * SHARD, 101 * SHARD),
        pool.resize_slice(slice, 600 * SHARD, 0),
        pool.resize_slice(SliceId(9), SHARD, 0),
    ];
    assert!(matches!(refusals[0], Err(PoolError::BadLimit { .. })));
    assert!(matches!(refusals[1], Err(PoolError::GuaranteeAboveLimit { .. })));
    let fits = PoolError::GuaranteeDoesNotFit { requested_bytes: 101 * SHARD, free_bytes: 100 * SHARD };
    assert_eq!(refusals[2], Err(fits));
    assert!(matches!(refusals[3], Err(PoolError::LimitBeyondBand { .. })), "{:?}", refusals[3]);
    assert!(matches!(refusals[4], Err(PoolError::NoSuchSlice { .. })));
    assert_eq!(pool.usage(slice), before);
    pool.resize_slice(other, 800 * SHARD, 0).unwrap();
    pool.resize_slice(slice, 101 * SHARD, 101 * SHARD).unwrap();
    pool.verify().unwrap();
}

#[test]
fn relocation_of_a_region_emptied_and_then_lost_returns_a_plan_to_forget_it() {
    let mut pool = pool(&[2, 2]);
    let slice = add(&mut pool, config(0, 4));
    let kept = alloc(&mut pool, slice, 256);
    let grant = pool.plan_alloc(slice, request(256)).unwrap();
    free(&mut pool, slice, kept);
    pool.begin_drain(GpuId(0)).unwrap();
    let relocation = pool.next_relocation().unwrap();
    assert_eq!(pool.abort(grant, None), None);
    pool.mark_lost(GpuId(0));
    let plan = pool.abort_relocation(relocation, false).unwrap();
    let forgotten: Vec<_> = plan.forget().iter().map(|backing| backing.gpu).collect();
    assert_eq!(forgotten, [GpuId(0)]);
    assert_eq!(pool.finish_release(plan), None);
    pool.verify().unwrap();
    assert!(pool.remove_slice(slice).is_ok());
}

#[test]
fn relocation_of_a_region_in_use_comes_after_those_nobody_uses() {
    let mut pool = pool(&[3, 3]);
    let slice = add(&mut pool, config(0, 6));
    let held = fill(&mut pool, slice, 2);
    pool.pin(slice, held[0].range, AccessKind::Read).unwrap();
    pool.begin_drain(GpuId(0)).unwrap();
    let (first, second) = (pool.next_relocation().unwrap(), pool.next_relocation().unwrap());
    assert_eq!(
        (first.from().range.start, second.from().range.start),
        (held[1].range.start, held[0].range.start)
    );
    assert!(pool.unpin(slice, held[0].range).awaited);
    assert_eq!((pool.finish_relocation(second), pool.finish_relocation(first)), (None, None));
    pool.verify().unwrap();
}
