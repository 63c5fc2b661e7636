//! The rules of the lower tiers: births, evictions and promotions, shifts, damage, and who is to leave the GPUs.

use vram_pool::{PoolTime, TierCopy};

use super::*;

const NOW: PoolTime = PoolTime(0);

fn regions<const N: usize>(indices: [u32; N]) -> Vec<RegionIndex> {
    indices.map(RegionIndex).to_vec()
}

fn evict(pool: &mut Pool, slice: SliceId, region: u32) {
    let eviction = pool.plan_eviction(slice, RegionIndex(region)).unwrap();
    assert_eq!(pool.finish_eviction(eviction), None);
}

fn promote(pool: &mut Pool, slice: SliceId, region: u32, copy: TierCopy) {
    let promotion = pool.plan_promotion(slice, RegionIndex(region)).unwrap().unwrap();
    assert_eq!(pool.finish_promotion(promotion, copy), None);
}

fn state(pool: &Pool, slice: SliceId, region: u32) -> RegionState {
    pool.region(slice, RegionIndex(region)).unwrap()
}

fn places(pool: &Pool, slice: SliceId, allocation: Allocation) -> Vec<Place> {
    pool.extents(slice, allocation.range).map(|extent| extent.place).collect()
}

/// Uses an allocation so many times.
fn read(pool: &mut Pool, slice: SliceId, allocation: Allocation, times: u32) {
    for _ in 0..times {
        assert_eq!(pool.touch(slice, allocation.range, AccessKind::Read, NOW), []);
    }
}

fn victim(pool: &Pool, slice: SliceId, keep: &[RegionIndex]) -> Option<(SliceId, u32)> {
    pool.victim_for(slice, keep, NOW).map(|(slice, victim)| (slice, victim.region.0))
}

#[test]
fn band_bytes_with_tiers_count_their_regions() {
    let pool = tiered_pool(&[10], 6);
    assert_eq!(pool.band_bytes(u64::MAX), Some(32 * SHARD + (1 << 30)));
}

#[test]
fn alloc_beyond_the_gpus_is_born_in_the_tiers_but_for_two_of_their_regions() {
    let mut pool = tiered_pool(&[1], 4);
    let slice = add(&mut pool, config(0, 8));
    let grant = pool.plan_alloc(slice, request(3 * SHARD)).unwrap();
    assert_eq!((gpus_of(&grant), grant.born_stored()), (vec![0], &regions([1, 2])[..]));
    let allocation = pool.commit(grant);
    assert_eq!(places(&pool, slice, allocation), [Place::Gpu(GpuId(0)), Place::Tier, Place::Tier]);
    let usage = pool.usage(slice).unwrap();
    assert_eq!((usage.backed_bytes, usage.stored_bytes), (SHARD, 2 * SHARD));
    let refused = pool.plan_alloc(slice, request(SHARD)).unwrap_err();
    assert_eq!(refused, AllocError::OutOfMemory { requested_bytes: SHARD, free_bytes: 0 });
    free(&mut pool, slice, allocation);
    assert!(pool.remove_slice(slice).is_ok());
}

#[test]
fn alloc_in_a_region_born_stored_uses_its_free_bytes() {
    let mut pool = tiered_pool(&[1], 4);
    let slice = add(&mut pool, config(0, 8));
    let first = alloc(&mut pool, slice, SHARD + 256);
    let grant = pool.plan_alloc(slice, request(MIB)).unwrap();
    assert_eq!((grant.backings().len(), grant.born_stored().len()), (0, 0));
    assert_eq!(grant.range().start.0, first.range.end().unwrap().0);
    pool.commit(grant);
    pool.verify().unwrap();
}

#[test]
fn alloc_keeps_off_the_tier_room_of_regions_on_their_way() {
    let mut pool = tiered_pool(&[3], 5);
    let slice = add(&mut pool, config(0, 8));
    fill(&mut pool, slice, 3);
    (0..2).for_each(|region| evict(&mut pool, slice, region));
    let back = [0, 1].map(|region| pool.plan_promotion(slice, RegionIndex(region)).unwrap().unwrap());
    let _leaving = pool.plan_eviction(slice, RegionIndex(2)).unwrap();
    let refused = pool.plan_alloc(slice, request(SHARD)).unwrap_err();
    assert_eq!(refused, AllocError::OutOfMemory { requested_bytes: SHARD, free_bytes: 0 });
    // What is on the GPU takes no room below, even if a copy is there.
    back.into_iter()
        .for_each(|promotion| assert_eq!(pool.finish_promotion(promotion, TierCopy::Valid), None));
    let grant = pool.plan_alloc(slice, request(2 * SHARD)).unwrap();
    assert_eq!(grant.born_stored(), regions([3, 4]));
    assert_eq!(pool.abort(grant, None), None);
    pool.verify().unwrap();
}

#[test]
fn alloc_born_stored_counts_towards_the_limit() {
    let mut pool = tiered_pool(&[1], 9);
    let slice = add(&mut pool, config(0, 2));
    alloc(&mut pool, slice, 2 * SHARD);
    let refused = pool.plan_alloc(slice, request(SHARD)).unwrap_err();
    assert!(matches!(refused, AllocError::OverLimit { .. }), "{refused}");
}

#[test]
fn alloc_waits_for_regions_that_are_discarded() {
    let mut pool = tiered_pool(&[1], 4);
    let slice = add(&mut pool, config(0, 4));
    let other = add(&mut pool, config(0, 4));
    let held = [alloc(&mut pool, slice, 2 * SHARD), alloc(&mut pool, slice, SHARD)];
    let plan = begin_release(&mut pool, slice, held[1]);
    assert_eq!(plan.discard(), regions([2]));
    for waits in [slice, other] {
        let refused = pool.plan_alloc(waits, request(SHARD)).unwrap_err();
        assert_eq!(refused, AllocError::QuarantinePending { requested_bytes: SHARD });
    }
    assert_eq!(pool.finish_release(plan), None);
    assert_eq!(pool.plan_alloc(other, request(SHARD)).unwrap().born_stored(), regions([0]));
}

#[test]
fn alloc_waits_for_a_region_discarded_by_a_later_plan() {
    let mut pool = tiered_pool(&[1], 1);
    let slice = add(&mut pool, config(0, 1));
    let held = [alloc(&mut pool, slice, 256), alloc(&mut pool, slice, 256)];
    evict(&mut pool, slice, 0);
    let freeings = held.map(|allocation| pool.begin_free(slice, allocation.range.start).unwrap());
    let plans = freeings.map(|freeing| pool.plan_release(freeing));
    let [None, Some(last)] = plans.map(|plan| pool.finish_release(plan)) else { panic!("no later plan") };
    assert_eq!(last.discard(), regions([0]));
    let refused = pool.plan_alloc(slice, request(256)).unwrap_err();
    assert_eq!(refused, AllocError::QuarantinePending { requested_bytes: 256 });
    assert_eq!(pool.finish_release(last), None);
    alloc(&mut pool, slice, 256);
}

#[test]
fn abort_of_a_birth_leaves_nothing_behind() {
    let mut pool = tiered_pool(&[1], 4);
    let slice = add(&mut pool, config(0, 4));
    let grant = pool.plan_alloc(slice, request(2 * SHARD + 256)).unwrap();
    assert_eq!(grant.born_stored().len(), 2);
    assert_eq!(pool.abort(grant, None), None);
    pool.verify().unwrap();
    assert!((0..3).all(|region| state(&pool, slice, region) == RegionState::Unbacked));
    assert!(pool.remove_slice(slice).is_ok());
}

#[test]
fn region_a_pending_grant_reaches_into_stays_in_its_tier() {
    let mut pool = tiered_pool(&[2], 4);
    let slice = add(&mut pool, config(0, 4));
    alloc(&mut pool, slice, 256);
    evict(&mut pool, slice, 0);
    let grant = pool.plan_alloc(slice, request(256)).unwrap();
    assert_eq!(pool.plan_promotion(slice, RegionIndex(0)), Ok(None));
    assert!(!pool.begin_shift(slice, RegionIndex(0)));
    pool.commit(grant);
    promote(&mut pool, slice, 0, TierCopy::Stale);
}

#[test]
fn evicted_region_counts_towards_the_limit_and_frees_its_gpu() {
    let mut pool = tiered_pool(&[2], 2);
    let slice = add(&mut pool, config(0, 3));
    let held = fill(&mut pool, slice, 2);
    let eviction = pool.plan_eviction(slice, RegionIndex(0)).unwrap();
    assert_eq!(pool.plan_eviction(slice, RegionIndex(0)), None);
    assert_eq!(pool.pin(slice, held[0].range, AccessKind::Read), Err(PinError::Moving));
    assert_eq!(pool.finish_eviction(eviction), None);
    let usage = pool.usage(slice).unwrap();
    assert_eq!((usage.backed_bytes, usage.stored_bytes), (SHARD, SHARD));
    alloc(&mut pool, slice, SHARD);
    let refused = pool.plan_alloc(slice, request(SHARD)).unwrap_err();
    assert!(matches!(refused, AllocError::OverLimit { .. }), "{refused}");
    let no_room = pool.plan_promotion(slice, RegionIndex(0)).unwrap_err();
    assert!(matches!(no_room, AllocError::OutOfMemory { .. }), "{no_room}");
    free(&mut pool, slice, held[1]);
    promote(&mut pool, slice, 0, TierCopy::Stale);
    assert_eq!(pool.pin(slice, held[0].range, AccessKind::Read).unwrap()[0].place, Place::Gpu(GpuId(0)));
    pool.verify().unwrap();
}

#[test]
fn freed_bytes_of_an_evicted_region_are_scrubbed_there_unless_it_empties() {
    let mut pool = tiered_pool(&[2], 2);
    let slice = add(&mut pool, config(0, 2));
    let held: Vec<_> = (0..3).map(|_| alloc(&mut pool, slice, 256)).collect();
    evict(&mut pool, slice, 0);
    let freeing = pool.begin_free(slice, held[0].range.start).unwrap();
    assert_eq!(pool.releasable(&freeing), Releasable::Now);
    let plan = pool.plan_release(freeing);
    assert_eq!(plan.scrub(), &[held[0].range]);
    assert_eq!(pool.finish_release(plan), None);
    // Another may have them at once.
    assert_eq!(alloc(&mut pool, slice, 256).range, held[0].range);
    let (first, second, third) = (held[0], held[1], held[2]);
    free(&mut pool, slice, third);
    let freeing = pool.begin_free(slice, first.range.start).unwrap();
    let last = pool.begin_free(slice, second.range.start).unwrap();
    // Nothing live is left: what the tier has is discarded with the last of the two.
    assert_eq!((pool.releasable(&freeing), pool.releasable(&last)), (Releasable::Now, Releasable::Now));
    let plan = pool.plan_release(freeing);
    assert!(plan.is_trivial());
    assert_eq!(pool.finish_release(plan), None);
    let plan = pool.plan_release(last);
    assert_eq!((plan.discard(), plan.scrub()), (&[RegionIndex(0)][..], &[][..]));
    assert_eq!(pool.finish_release(plan), None);
    pool.verify().unwrap();
    assert!(pool.remove_slice(slice).is_ok());
}

#[test]
fn pin_of_bytes_in_a_tier_holds_up_their_promotion() {
    let mut pool = tiered_pool(&[1], 4);
    let slice = add(&mut pool, config(0, 4));
    let allocation = alloc(&mut pool, slice, SHARD);
    evict(&mut pool, slice, 0);
    assert_eq!(pool.pin(slice, allocation.range, AccessKind::Read).unwrap()[0].place, Place::Tier);
    let promotion = pool.plan_promotion(slice, RegionIndex(0)).unwrap().unwrap();
    assert_eq!(pool.pin(slice, allocation.range, AccessKind::Read), Err(PinError::Moving));
    assert!(!pool.is_quiet(slice, RegionIndex(0)));
    assert!(pool.unpin(slice, allocation.range).awaited);
    assert!(pool.is_quiet(slice, RegionIndex(0)));
    assert_eq!(pool.finish_promotion(promotion, TierCopy::Stale), None);
}

#[test]
fn touch_names_a_stale_copy_once() {
    let mut pool = tiered_pool(&[2], 4);
    let slice = add(&mut pool, config(0, 4));
    let allocation = alloc(&mut pool, slice, 2 * SHARD);
    let write = |pool: &mut Pool| pool.touch(slice, allocation.range, AccessKind::Write, NOW);
    evict(&mut pool, slice, 0);
    assert_eq!(write(&mut pool), [], "written in its tier");
    promote(&mut pool, slice, 0, TierCopy::Valid);
    read(&mut pool, slice, allocation, 1);
    assert_eq!(write(&mut pool), [(slice, RegionIndex(0))]);
    assert_eq!(write(&mut pool), []);
}

#[test]
fn touch_without_tiers_does_nothing() {
    let mut pool = pool(&[2]);
    let slice = add(&mut pool, config(0, 2));
    let allocation = alloc(&mut pool, slice, SHARD);
    assert_eq!(pool.touch(slice, allocation.range, AccessKind::Write, NOW), []);
    assert_eq!(pool.victim_for(slice, &[], NOW), None);
}

#[test]
fn copy_below_outlives_a_lost_gpu_unless_it_is_stale() {
    let mut pool = tiered_pool(&[3], 4);
    let slice = add(&mut pool, config(0, 4));
    let held = fill(&mut pool, slice, 3);
    for region in 0..2 {
        evict(&mut pool, slice, region);
        promote(&mut pool, slice, region, TierCopy::Valid);
    }
    assert_eq!(pool.touch(slice, held[1].range, AccessKind::Write, NOW), [(slice, RegionIndex(1))]);
    let lost = pool.mark_lost(GpuId(0));
    assert_eq!(lost[0].regions.iter().map(|backing| backing.region.0).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(places(&pool, slice, held[0]), [Place::Tier]);
    assert_eq!(pool.usage(slice).unwrap().stored_bytes, SHARD);
    pool.verify().unwrap();
    held.into_iter().for_each(|allocation| free(&mut pool, slice, allocation));
    assert!(pool.remove_slice(slice).is_ok());
}

#[test]
fn touch_of_lost_bytes_makes_nothing_stale() {
    let mut pool = tiered_pool(&[1], 4);
    let slice = add(&mut pool, config(0, 4));
    let allocation = alloc(&mut pool, slice, SHARD);
    evict(&mut pool, slice, 0);
    promote(&mut pool, slice, 0, TierCopy::Valid);
    pool.pin(slice, allocation.range, AccessKind::Read).unwrap();
    let eviction = pool.plan_eviction(slice, RegionIndex(0)).unwrap();
    pool.mark_lost(GpuId(0));
    assert!(!pool.can_leave(&eviction));
    assert_eq!(pool.touch(slice, allocation.range, AccessKind::Write, NOW), []);
    assert_eq!(pool.abort_eviction(eviction), None);
    pool.verify().unwrap();
}

#[test]
fn abort_of_an_eviction_or_a_relocation_keeps_a_true_copy() {
    let mut pool = tiered_pool(&[2, 2], 4);
    let slice = add(&mut pool, config(0, 4));
    let allocation = alloc(&mut pool, slice, SHARD);
    evict(&mut pool, slice, 0);
    promote(&mut pool, slice, 0, TierCopy::Valid);
    let eviction = pool.plan_eviction(slice, RegionIndex(0)).unwrap();
    assert_eq!(pool.abort_eviction(eviction), None);
    pool.begin_drain(GpuId(0)).unwrap();
    let relocation = pool.next_relocation().unwrap();
    assert_eq!(pool.finish_relocation(relocation), None);
    assert_eq!(pool.touch(slice, allocation.range, AccessKind::Write, NOW), [(slice, RegionIndex(0))]);
}

#[test]
fn scrub_of_a_part_discards_the_copy_below() {
    let mut pool = tiered_pool(&[1], 4);
    let slice = add(&mut pool, config(0, 4));
    let (first, second) = (alloc(&mut pool, slice, 256), alloc(&mut pool, slice, 256));
    evict(&mut pool, slice, 0);
    promote(&mut pool, slice, 0, TierCopy::Valid);
    let plan = begin_release(&mut pool, slice, first);
    assert_eq!((plan.scrub(), plan.discard()), (&[first.range][..], &[RegionIndex(0)][..]));
    assert_eq!(pool.finish_release(plan), None);
    assert_eq!(state(&pool, slice, 0), RegionState::Backed(GpuId(0)));
    // Nothing is left below that could come back.
    pool.mark_lost(GpuId(0));
    assert_eq!(places(&pool, slice, second), [Place::Lost(GpuId(0))]);
    pool.verify().unwrap();
}

#[test]
fn release_of_a_region_discards_the_copy_below() {
    let mut pool = tiered_pool(&[1], 4);
    let slice = add(&mut pool, config(0, 4));
    let allocation = alloc(&mut pool, slice, SHARD);
    evict(&mut pool, slice, 0);
    promote(&mut pool, slice, 0, TierCopy::Valid);
    let plan = begin_release(&mut pool, slice, allocation);
    assert_eq!((plan.unback().len(), plan.discard()), (1, &[RegionIndex(0)][..]));
    assert_eq!(pool.finish_release(plan), None);
    pool.verify().unwrap();
    assert!(pool.remove_slice(slice).is_ok());
}

#[test]
fn shifted_region_cannot_be_used_until_it_has_arrived() {
    let mut pool = tiered_pool(&[1], 4);
    let slice = add(&mut pool, config(0, 4));
    let allocation = alloc(&mut pool, slice, SHARD);
    assert!(!pool.begin_shift(slice, RegionIndex(0)), "it is on a GPU");
    evict(&mut pool, slice, 0);
    assert!(pool.begin_shift(slice, RegionIndex(0)));
    assert!(!pool.begin_shift(slice, RegionIndex(0)));
    assert_eq!(pool.pin(slice, allocation.range, AccessKind::Read), Err(PinError::Moving));
    assert_eq!(pool.plan_promotion(slice, RegionIndex(0)), Ok(None));
    assert_eq!(pool.finish_shift(slice, RegionIndex(0)), None);
    assert!(pool.pin(slice, allocation.range, AccessKind::Read).is_ok());
}

#[test]
fn shifted_region_freed_meanwhile_is_discarded_on_arrival() {
    let mut pool = tiered_pool(&[1], 4);
    let slice = add(&mut pool, config(0, 4));
    let allocation = alloc(&mut pool, slice, 256);
    evict(&mut pool, slice, 0);
    assert!(pool.begin_shift(slice, RegionIndex(0)));
    let freeing = pool.begin_free(slice, allocation.range.start).unwrap();
    assert_eq!(pool.releasable(&freeing), Releasable::AfterMove);
    assert_eq!(pool.finish_shift(slice, RegionIndex(0)), None);
    assert_eq!(pool.releasable(&freeing), Releasable::Now);
    let plan = pool.plan_release(freeing);
    assert_eq!(plan.discard(), regions([0]));
    assert_eq!(pool.finish_release(plan), None);
    assert!(pool.remove_slice(slice).is_ok());
}

#[test]
fn abort_in_a_shifted_region_frees_its_bytes() {
    let mut pool = tiered_pool(&[1], 4);
    let slice = add(&mut pool, config(0, 4));
    let allocation = alloc(&mut pool, slice, 256);
    evict(&mut pool, slice, 0);
    assert!(pool.begin_shift(slice, RegionIndex(0)));
    let grant = pool.plan_alloc(slice, request(256)).unwrap();
    let freeing = pool.begin_free(slice, allocation.range.start).unwrap();
    assert_eq!(pool.abort(grant, None), None);
    pool.verify().unwrap();
    assert_eq!(pool.finish_shift(slice, RegionIndex(0)), None);
    pool.verify().unwrap();
    let plan = pool.plan_release(freeing);
    assert_eq!(pool.finish_release(plan), None);
    assert!(pool.remove_slice(slice).is_ok());
}

#[test]
fn damaged_region_takes_nothing_new_until_all_in_it_is_freed() {
    let mut pool = tiered_pool(&[1], 4);
    let slice = add(&mut pool, config(0, 4));
    let (first, second) = (alloc(&mut pool, slice, 256), alloc(&mut pool, slice, 256));
    evict(&mut pool, slice, 0);
    let freeing = pool.begin_free(slice, first.range.start).unwrap();
    assert_eq!(pool.mark_damaged(slice, RegionIndex(0)), None);
    assert_eq!(pool.mark_damaged(slice, RegionIndex(0)), None);
    assert_eq!(pool.pin(slice, second.range, AccessKind::Read), Err(PinError::Damaged(RegionIndex(0))));
    assert_eq!(places(&pool, slice, second), [Place::Damaged]);
    assert!(!pool.is_worth_promoting(slice, RegionIndex(0), &[], NOW));
    assert_eq!(pool.plan_promotion(slice, RegionIndex(0)), Ok(None));
    assert_eq!(pool.usage(slice).unwrap().stored_bytes, SHARD);
    assert_eq!(alloc(&mut pool, slice, 256).range.start.0, first.range.start.0 + SHARD);
    // There is nothing to scrub: what was freed waits for the rest.
    assert_eq!(pool.releasable(&freeing), Releasable::Now);
    let plan = pool.plan_release(freeing);
    assert!(plan.is_trivial());
    assert_eq!(pool.finish_release(plan), None);
    let plan = begin_release(&mut pool, slice, second);
    assert_eq!(plan.discard(), regions([0]));
    assert_eq!(pool.finish_release(plan), None);
    assert_eq!(state(&pool, slice, 0), RegionState::Unbacked);
    pool.verify().unwrap();
}

#[test]
fn damage_while_promoting_gives_the_shard_back() {
    let mut pool = tiered_pool(&[1], 4);
    let slice = add(&mut pool, config(0, 4));
    let allocation = alloc(&mut pool, slice, SHARD);
    evict(&mut pool, slice, 0);
    let promotion = pool.plan_promotion(slice, RegionIndex(0)).unwrap().unwrap();
    assert_eq!(pool.mark_damaged(slice, RegionIndex(0)), None);
    assert_eq!(pool.gpus()[0].used_shards, 0);
    assert_eq!(pool.finish_promotion(promotion, TierCopy::Valid), None);
    assert_eq!(state(&pool, slice, 0), RegionState::Damaged);
    pool.verify().unwrap();
    free(&mut pool, slice, allocation);
    assert!(pool.remove_slice(slice).is_ok());
}

#[test]
fn damage_while_shifting_takes_a_pending_grant_along() {
    let mut pool = tiered_pool(&[1], 4);
    let slice = add(&mut pool, config(0, 4));
    let allocation = alloc(&mut pool, slice, 256);
    evict(&mut pool, slice, 0);
    assert!(pool.begin_shift(slice, RegionIndex(0)));
    let grant = pool.plan_alloc(slice, request(256)).unwrap();
    assert_eq!(pool.mark_damaged(slice, RegionIndex(0)), None);
    assert_eq!(pool.finish_shift(slice, RegionIndex(0)), None);
    let late = pool.commit(grant);
    assert_eq!(places(&pool, slice, late), [Place::Damaged]);
    free(&mut pool, slice, allocation);
    free(&mut pool, slice, late);
    assert!(pool.remove_slice(slice).is_ok());
}

#[test]
fn damage_of_a_region_on_a_gpu_is_ignored() {
    let mut pool = tiered_pool(&[1], 4);
    let slice = add(&mut pool, config(0, 4));
    alloc(&mut pool, slice, SHARD);
    assert_eq!(pool.mark_damaged(slice, RegionIndex(0)), None);
    assert_eq!(state(&pool, slice, 0), RegionState::Backed(GpuId(0)));
}

#[test]
fn victim_is_the_coldest_of_those_who_borrow_and_of_the_own() {
    let mut pool = tiered_pool(&[6], 8);
    let borrower = add(&mut pool, config(1, 4));
    let own = add(&mut pool, config(2, 8));
    let theirs = fill(&mut pool, borrower, 3);
    let mine = fill(&mut pool, own, 3);
    for (allocation, times) in theirs.iter().zip([9, 2, 9]) {
        read(&mut pool, borrower, *allocation, times);
    }
    for (allocation, times) in mine.iter().zip([1, 9, 3]) {
        read(&mut pool, own, *allocation, times);
    }
    assert_eq!(victim(&pool, own, &[]), Some((own, 0)));
    assert_eq!(victim(&pool, own, &regions([0])), Some((borrower, 1)));
    assert_eq!(victim(&pool, borrower, &[]), Some((own, 0)));
}

#[test]
fn victim_is_never_of_another_slice_inside_its_guarantee() {
    let mut pool = tiered_pool(&[4], 8);
    let guarded = add(&mut pool, config(1, 4));
    let wants = add(&mut pool, config(0, 4));
    let held = fill(&mut pool, guarded, 3);
    assert_eq!(victim(&pool, wants, &[]).map(|(slice, _)| slice), Some(guarded));
    // One is on its way out and one on its way back: that leaves the one that is guaranteed.
    let eviction = pool.plan_eviction(guarded, RegionIndex(0)).unwrap();
    let freeing = pool.begin_free(guarded, held[1].range.start).unwrap();
    assert_eq!(victim(&pool, wants, &[]), None);
    assert_eq!(victim(&pool, guarded, &[]), Some((guarded, 2)));
    assert_eq!(pool.abort_eviction(eviction), None);
    assert!(victim(&pool, wants, &[]).is_some());
    let plan = pool.plan_release(freeing);
    assert_eq!(pool.finish_release(plan), None);
}

#[test]
fn victim_on_a_drained_gpu_or_away_from_a_local_slice_helps_nobody() {
    let mut pool = tiered_pool(&[1, 1, 1], 8);
    let away = add(&mut pool, SliceConfig { home: Some(GpuId(1)), ..config(0, 2) });
    let at_home = add(&mut pool, local(0, 2, 0));
    fill(&mut pool, away, 1);
    assert_eq!(victim(&pool, at_home, &[]), None);
    let held = fill(&mut pool, at_home, 1);
    assert_eq!(victim(&pool, at_home, &[]), Some((at_home, 0)));
    assert_eq!(victim(&pool, away, &regions([0])), Some((at_home, 0)));
    pool.begin_drain(GpuId(1)).unwrap();
    read(&mut pool, at_home, held[0], 3);
    assert_eq!(victim(&pool, away, &[]), Some((at_home, 0)));
}

#[test]
fn victim_in_use_is_named_only_if_no_other_is_left() {
    let mut pool = tiered_pool(&[2], 8);
    let slice = add(&mut pool, config(0, 4));
    let held = fill(&mut pool, slice, 2);
    read(&mut pool, slice, held[1], 3);
    pool.pin(slice, held[0].range, AccessKind::Read).unwrap();
    assert_eq!(victim(&pool, slice, &[]), Some((slice, 1)));
    assert_eq!(victim(&pool, slice, &regions([1])), Some((slice, 0)));
    assert_eq!(victim(&pool, slice, &regions([0, 1])), None);
}

#[test]
fn promotion_is_worth_it_into_room_at_once_and_in_place_of_a_victim_if_hotter() {
    let mut pool = tiered_pool(&[1], 8);
    let slice = add(&mut pool, config(0, 4));
    let allocation = alloc(&mut pool, slice, 2 * SHARD);
    let stored = DeviceRange { start: DeviceAddress(allocation.range.start.0 + SHARD), len_bytes: SHARD };
    let resident = DeviceRange { start: allocation.range.start, len_bytes: SHARD };
    pool.touch(slice, resident, AccessKind::Read, NOW);
    let worth = |pool: &Pool, region| pool.is_worth_promoting(slice, RegionIndex(region), &[], NOW);
    assert!(!worth(&pool, 0), "it is on a GPU");
    assert!(!worth(&pool, 1));
    (0..9).for_each(|_| drop(pool.touch(slice, stored, AccessKind::Read, NOW)));
    assert!(worth(&pool, 1));
    assert!(!pool.is_worth_promoting(slice, RegionIndex(1), &[RegionIndex(0)], NOW), "nothing may go");
    evict(&mut pool, slice, 0);
    assert!(worth(&pool, 0) && worth(&pool, 1), "there is room");
}

#[test]
fn room_for_a_slice_leaves_out_what_is_kept_for_others() {
    let mut pool = tiered_pool(&[4], 8);
    let guarded = add(&mut pool, config(1, 4));
    let borrower = add(&mut pool, config(0, 8));
    assert_eq!((pool.room_for(guarded), pool.room_for(borrower)), (4, 3));
    alloc(&mut pool, borrower, 3 * SHARD);
    assert_eq!((pool.room_for(guarded), pool.room_for(borrower)), (1, 0));
    assert_eq!(pool.room_for(SliceId(9)), 0);
}

#[test]
fn next_over_limit_stops_when_enough_is_leaving() {
    let mut pool = tiered_pool(&[4], 8);
    let slice = add(&mut pool, config(0, 4));
    let held = fill(&mut pool, slice, 4);
    assert_eq!(pool.next_over_limit(NOW), None);
    pool.resize_slice(slice, 2 * SHARD, 0).unwrap();
    read(&mut pool, slice, held[0], 5);
    pool.pin(slice, held[1].range, AccessKind::Read).unwrap();
    for _ in 0..2 {
        let (named, region) = pool.next_over_limit(NOW).unwrap();
        assert!(named == slice && region.0 >= 2, "hot or in use: {region}");
        let _ = pool.plan_eviction(slice, region).unwrap();
    }
    assert_eq!(pool.next_over_limit(NOW), None);
}

#[test]
fn next_ahead_of_demand_stops_when_enough_is_leaving() {
    let mut pool = tiered_pool(&[4], 8);
    let guarded = add(&mut pool, config(1, 4));
    let borrower = add(&mut pool, config(0, 4));
    fill(&mut pool, borrower, 3);
    assert_eq!(pool.next_ahead_of_demand(0, NOW), None);
    let (named, region) = pool.next_ahead_of_demand(1, NOW).unwrap();
    assert_eq!(named, borrower);
    let eviction = pool.plan_eviction(borrower, region).unwrap();
    assert_eq!(pool.next_ahead_of_demand(1, NOW), None);
    assert!(pool.next_ahead_of_demand(2, NOW).is_some());
    assert_eq!(pool.finish_eviction(eviction), None);
    assert_eq!(pool.next_ahead_of_demand(1, NOW), None);
    // What is guaranteed is no borrower's, and not evicted.
    fill(&mut pool, guarded, 1);
    let (named, _) = pool.next_ahead_of_demand(9, NOW).unwrap();
    assert_eq!(named, borrower);
}
