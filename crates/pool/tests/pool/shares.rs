//! The rules of shares: who sees what, for how long, and what a copy of it costs.

use vram_pool::{
    Advice, Audience, Origin, PoolTime, PrivateLevel, PrivatizeError, Rights, ShareError, ShareId, TierCopy,
    Unpinned,
};

use super::*;

const NOW: PoolTime = PoolTime(0);

/// An owner and a guest, each with room for eight regions, and a share of an allocation of the owner.
struct Shown {
    pool: Pool,
    owner: SliceId,
    guest: SliceId,
    exported: Allocation,
    share: ShareId,
}

impl Shown {
    fn new(mut pool: Pool, len_bytes: u64, rights: Rights) -> Self {
        let (owner, guest) = (add(&mut pool, config(0, 8)), add(&mut pool, config(0, 8)));
        let exported = alloc(&mut pool, owner, len_bytes);
        let share = pool.export(owner, exported.range, rights, Audience::All).unwrap();
        Self { pool, owner, guest, exported, share }
    }

    fn attach(&mut self) -> Allocation {
        let allocation = self.pool.attach(self.guest, self.share).unwrap();
        self.pool.verify().unwrap();
        allocation
    }

    fn pin(&mut self, allocation: Allocation, kind: AccessKind) -> Result<(), PinError> {
        self.pool.pin(self.guest, allocation.range, kind).map(|_| ())
    }

    fn unpin(&mut self, allocation: Allocation) -> Unpinned {
        self.pool.unpin(self.guest, allocation.range)
    }

    fn privatize(&mut self, region: u32, level: PrivateLevel) {
        let planned = self.pool.plan_privatization(self.guest, RegionIndex(region), level);
        let unpinned = self.pool.finish_privatization(planned.unwrap().unwrap());
        assert_eq!(unpinned, Unpinned::default());
        self.pool.verify().unwrap();
    }

    fn states(&self, regions: u32) -> Vec<RegionState> {
        (0..regions).map(|region| self.pool.region(self.guest, RegionIndex(region)).unwrap()).collect()
    }
}

fn part(allocation: Allocation, offset: u64, len_bytes: u64) -> DeviceRange {
    DeviceRange { start: DeviceAddress(allocation.range.start.0 + offset), len_bytes }
}

fn write(region: u32) -> PinError {
    PinError::NotPrivate(RegionIndex(region))
}

#[test]
fn attached_bytes_are_the_owners_at_the_same_place_and_take_no_shard() {
    let mut pool = pool(&[8]);
    let (owner, guest) = (add(&mut pool, config(0, 8)), add(&mut pool, config(0, 8)));
    let around = alloc(&mut pool, owner, 3 * SHARD);
    let exported = part(around, SHARD / 2, 2 * SHARD - 7);
    let share = pool.export(owner, exported, Rights::Read, Audience::All).unwrap();
    let attached = pool.attach(guest, share).unwrap();
    pool.verify().unwrap();

    let band = pool.band(guest).unwrap();
    assert_eq!(attached.range.start.0 - band.start.0, SHARD / 2);
    assert_eq!(attached.range.len_bytes, exported.len_bytes);
    let extents = pool.pin(guest, attached.range, AccessKind::Read).unwrap();
    let origins = extents.iter().map(|extent| (extent.place, extent.origin));
    let origin = |region, start| Origin { slice: owner, region: RegionIndex(region), start };
    let there = pool.band(owner).unwrap().start.0;
    let expected = [
        (Place::Gpu(GpuId(0)), origin(0, exported.start)),
        (Place::Gpu(GpuId(0)), origin(1, DeviceAddress(there + SHARD))),
        (Place::Gpu(GpuId(0)), origin(2, DeviceAddress(there + 2 * SHARD))),
    ];
    assert!(origins.eq(expected));
    let usage = pool.usage(guest).unwrap();
    assert_eq!((usage.backed_bytes, usage.attached_bytes), (0, 3 * SHARD));
    assert_eq!(usage.allocated_bytes, 2 * SHARD);
    assert_eq!(pool.gpus()[0].used_shards, 3);
}

#[test]
fn bytes_beside_attached_ones_are_reached_by_nobody_and_not_given_out() {
    let mut shown = Shown::new(pool(&[8]), SHARD / 4, Rights::ReadWrite);
    let attached = shown.attach();
    let beside = DeviceRange { len_bytes: SHARD, ..attached.range };
    let refused = shown.pool.pin(shown.guest, beside, AccessKind::Read);
    assert_eq!(refused, Err(PinError::Unbacked));
    let end = shown.pool.band(shown.guest).unwrap().start.0 + SHARD;
    let other = alloc(&mut shown.pool, shown.guest, SHARD / 4);
    assert!(other.range.start.0 >= end, "in the region that shows others");
}

#[test]
fn attach_counts_towards_the_limit_and_waits_for_what_is_released() {
    let mut shown = Shown::new(pool(&[16]), 3 * SHARD, Rights::Read);
    let held = alloc(&mut shown.pool, shown.guest, 6 * SHARD);
    let over =
        AllocError::OverLimit { limit_bytes: 8 * SHARD, in_use_bytes: 6 * SHARD, requested_bytes: 3 * SHARD };
    assert_eq!(shown.pool.attach(shown.guest, shown.share), Err(over.into()));
    let plan = begin_release(&mut shown.pool, shown.guest, held);
    let pending = AllocError::QuarantinePending { requested_bytes: 3 * SHARD };
    assert_eq!(shown.pool.attach(shown.guest, shown.share), Err(pending.into()));
    assert_eq!(shown.pool.finish_release(plan), None);
    shown.attach();
    shown.attach();
    assert!(shown.pool.plan_alloc(shown.guest, request(3 * SHARD)).is_err());
    alloc(&mut shown.pool, shown.guest, 2 * SHARD);
}

#[test]
fn export_of_what_is_not_owned_is_refused() {
    let mut shown = Shown::new(pool(&[8]), SHARD, Rights::Read);
    let attached = shown.attach();
    let (owner, guest, exported) = (shown.owner, shown.guest, shown.exported);
    let mut refusal =
        |slice, range| shown.pool.export(slice, range, Rights::Read, Audience::All).unwrap_err();
    let bad = [
        part(exported, 0, SHARD + 1),
        part(exported, 0, 0),
        part(exported, 128, 256),
        part(exported, SHARD, 256),
        part(exported, 0, u64::MAX),
    ];
    for range in bad {
        assert_eq!(refusal(owner, range), ShareError::BadRange { slice: owner, range });
    }
    let range = attached.range;
    assert_eq!(refusal(guest, range), ShareError::NotOwned { slice: guest, range });
    assert_eq!(refusal(SliceId(9), range), ShareError::NoSuchSlice { slice: SliceId(9) });
}

#[test]
fn attach_by_somebody_it_is_not_for_is_refused() {
    let mut shown = Shown::new(pool(&[8]), SHARD, Rights::Read);
    let (owner, guest, range) = (shown.owner, shown.guest, shown.exported.range);
    let audience = Audience::Slices([owner].into());
    let share = shown.pool.export(owner, range, Rights::Read, audience).unwrap();
    let refused = shown.pool.attach(guest, share);
    assert_eq!(refused, Err(ShareError::NotForSlice { share, slice: guest }));
    assert!(shown.pool.attach(owner, share).is_ok(), "not even to itself");
    let unknown = ShareId(9);
    assert_eq!(shown.pool.attach(guest, unknown), Err(ShareError::NoSuchShare { share: unknown }));
    shown.pool.verify().unwrap();
}

#[test]
fn write_to_what_is_for_reading_is_refused() {
    let mut shown = Shown::new(pool(&[8]), SHARD, Rights::Read);
    let attached = shown.attach();
    assert_eq!(shown.pin(attached, AccessKind::Write), Err(PinError::ReadOnly));
    assert_eq!(shown.pin(attached, AccessKind::Read), Ok(()));
    let planned = shown.pool.plan_privatization(shown.guest, RegionIndex(0), PrivateLevel::Gpu);
    assert_eq!(planned, Ok(None));
}

#[test]
fn use_of_attached_bytes_holds_up_their_eviction_and_warms_them_where_they_are() {
    let mut shown = Shown::new(tiered_pool(&[8], 8), 2 * SHARD, Rights::ReadWrite);
    let attached = shown.attach();
    assert_eq!(shown.pin(attached, AccessKind::Write), Ok(()));
    let touched = shown.pool.touch(shown.guest, attached.range, AccessKind::Write, NOW);
    assert_eq!(touched, [], "nothing is below");
    let none = shown.pool.demand(shown.guest, RegionIndex(0), NOW);
    assert!(shown.pool.demand(shown.owner, RegionIndex(0), NOW) > none);

    let eviction = shown.pool.plan_eviction(shown.owner, RegionIndex(0)).unwrap();
    assert!(!shown.pool.is_quiet(shown.owner, RegionIndex(0)));
    assert_eq!(shown.pin(attached, AccessKind::Read), Err(PinError::Moving));
    assert!(shown.unpin(attached).awaited);
    assert_eq!(shown.pool.finish_eviction(eviction), None);
    let places: Vec<_> = shown.pool.extents(shown.guest, attached.range).map(|extent| extent.place).collect();
    assert_eq!(places, [Place::Tier, Place::Gpu(GpuId(0))]);

    let promotion = shown.pool.plan_promotion(shown.owner, RegionIndex(0)).unwrap().unwrap();
    assert_eq!(shown.pool.finish_promotion(promotion, TierCopy::Valid), None);
    assert_eq!(shown.pin(attached, AccessKind::Write), Ok(()));
    let stale = shown.pool.touch(shown.guest, attached.range, AccessKind::Write, NOW);
    assert_eq!(stale, [(shown.owner, RegionIndex(0))]);
    shown.pool.verify().unwrap();
}

#[test]
fn advice_on_attached_bytes_is_for_those_who_need_them_and_pins_nothing() {
    let mut shown = Shown::new(tiered_pool(&[8], 8), SHARD, Rights::Read);
    let attached = shown.attach();
    let demand = |shown: &Shown| shown.pool.demand(shown.owner, RegionIndex(0), NOW).unwrap();
    let before = demand(&shown);
    shown.pool.touch(shown.owner, shown.exported.range, AccessKind::Read, NOW);
    let warm = demand(&shown);
    assert!(warm > before);
    shown.pool.advise(shown.guest, attached.range, Advice::Cold);
    assert_eq!(demand(&shown), warm);
    shown.pool.advise(shown.guest, attached.range, Advice::Prefetch);
    assert!(demand(&shown) > warm);
    assert!(shown.pool.pin_to_gpus(shown.guest, attached.range), "nothing of its own is pinned");
    assert!(shown.pool.plan_eviction(shown.owner, RegionIndex(0)).is_some());
}

#[test]
fn first_write_makes_a_region_private_and_what_nobody_was_shown_free() {
    let mut shown = Shown::new(tiered_pool(&[8], 8), SHARD + SHARD / 2, Rights::CopyOnWrite);
    let attached = shown.attach();
    assert_eq!(shown.pin(attached, AccessKind::Write), Err(write(0)));
    let before = shown.pool.usage(shown.guest).unwrap();
    shown.privatize(1, PrivateLevel::Gpu);
    assert_eq!(shown.states(2), [RegionState::Shared, RegionState::Backed(GpuId(0))]);
    let usage = shown.pool.usage(shown.guest).unwrap();
    assert_eq!((usage.attached_bytes, usage.backed_bytes), (SHARD, SHARD));
    assert_eq!(usage.allocated_bytes, before.allocated_bytes);
    // The second region has free bytes now, as any other.
    let beside = alloc(&mut shown.pool, shown.guest, SHARD / 2);
    assert_eq!(beside.range.start, attached.range.end().unwrap());
    shown.privatize(0, PrivateLevel::Tier);
    assert_eq!(shown.states(2), [RegionState::Stored, RegionState::Backed(GpuId(0))]);
    assert_eq!(shown.pin(attached, AccessKind::Write), Ok(()));
    assert_eq!(shown.pool.share(shown.share).unwrap().attached, 0);
    shown.unpin(attached);
    // It is evicted, promoted and freed as any other.
    let eviction = shown.pool.plan_eviction(shown.guest, RegionIndex(1)).unwrap();
    assert_eq!(shown.pool.finish_eviction(eviction), None);
    free(&mut shown.pool, shown.guest, beside);
    free(&mut shown.pool, shown.guest, attached);
    assert!(shown.pool.remove_slice(shown.guest).is_ok());
}

#[test]
fn private_copy_that_fails_leaves_the_region_as_it_was() {
    let mut shown = Shown::new(pool(&[2]), SHARD, Rights::CopyOnWrite);
    let attached = shown.attach();
    let plan = |shown: &mut Shown, level| shown.pool.plan_privatization(shown.guest, RegionIndex(0), level);
    let no_room = AllocError::OutOfMemory { requested_bytes: SHARD, free_bytes: 0 };
    assert_eq!(plan(&mut shown, PrivateLevel::Tier), Err(PrivatizeError::Room(no_room)));
    let privatization = plan(&mut shown, PrivateLevel::Gpu).unwrap().unwrap();
    assert_eq!(plan(&mut shown, PrivateLevel::Gpu), Ok(None));
    assert_eq!(shown.pin(attached, AccessKind::Read), Err(PinError::Moving));
    assert_eq!(shown.pool.abort_privatization(privatization, true), Unpinned::default());
    shown.pool.verify().unwrap();
    assert_eq!(shown.pin(attached, AccessKind::Read), Ok(()));
    // The GPU refused the shard.
    assert_eq!(plan(&mut shown, PrivateLevel::Gpu), Err(PrivatizeError::Room(no_room)));
}

#[test]
fn private_copy_on_a_gpu_that_is_lost_is_none() {
    let mut pool = pool(&[2, 2]);
    let (owner, guest) = (add(&mut pool, local(0, 8, 0)), add(&mut pool, local(0, 8, 1)));
    let exported = alloc(&mut pool, owner, SHARD);
    let share = pool.export(owner, exported.range, Rights::CopyOnWrite, Audience::All).unwrap();
    let attached = pool.attach(guest, share).unwrap();
    let planned = pool.plan_privatization(guest, RegionIndex(0), PrivateLevel::Gpu).unwrap();
    let privatization = planned.unwrap();
    assert_eq!(privatization.gpu(), Some(GpuId(1)));
    assert_eq!(pool.mark_lost(GpuId(1)), []);
    assert!(!pool.can_privatize(&privatization));
    pool.verify().unwrap();
    assert!(pool.pin(guest, attached.range, AccessKind::Read).is_ok());
    assert_eq!(pool.finish_privatization(privatization), Unpinned::default());
    pool.unpin(guest, attached.range);
    pool.verify().unwrap();
    // The owner's GPU is lost as well.
    pool.mark_lost(GpuId(0));
    let lost = Err(PinError::Lost(GpuId(0)));
    assert_eq!(pool.pin(guest, attached.range, AccessKind::Read), lost);
    let source = PrivatizeError::Source(PinError::Lost(GpuId(0)));
    assert_eq!(pool.plan_privatization(guest, RegionIndex(0), PrivateLevel::Gpu), Err(source));
    free(&mut pool, guest, attached);
    free(&mut pool, owner, exported);
}

#[test]
fn private_copy_of_a_slice_over_its_limit_is_refused() {
    let mut shown = Shown::new(pool(&[8]), 2 * SHARD, Rights::CopyOnWrite);
    shown.attach();
    shown.pool.resize_slice(shown.guest, SHARD, 0).unwrap();
    let refused = shown.pool.plan_privatization(shown.guest, RegionIndex(0), PrivateLevel::Gpu);
    assert!(matches!(refused, Err(PrivatizeError::Room(AllocError::OverLimit { .. }))), "{refused:?}");
    shown.pool.resize_slice(shown.guest, 2 * SHARD, 0).unwrap();
    shown.privatize(0, PrivateLevel::Gpu);
}

#[test]
fn revoke_refuses_new_uses_and_lets_those_under_way_end() {
    let mut shown = Shown::new(pool(&[8]), 2 * SHARD, Rights::CopyOnWrite);
    let attached = shown.attach();
    shown.privatize(1, PrivateLevel::Gpu);
    assert_eq!(shown.pin(attached, AccessKind::Read), Ok(()));
    shown.pool.revoke(shown.share).unwrap();
    shown.pool.verify().unwrap();
    assert_eq!(shown.states(2), [RegionState::Revoked, RegionState::Backed(GpuId(0))]);
    assert_eq!(shown.pin(attached, AccessKind::Read), Err(PinError::Revoked));
    let private = part(attached, SHARD, SHARD);
    assert!(shown.pool.pin(shown.guest, private, AccessKind::Write).is_ok(), "the copy is its own");
    shown.pool.unpin(shown.guest, private);
    let again = ShareError::NoSuchShare { share: shown.share };
    assert_eq!(shown.pool.revoke(shown.share), Err(again));
    assert_eq!(shown.pool.attach(shown.guest, shown.share), Err(again));
    let report = shown.pool.share(shown.share).unwrap();
    assert_eq!((report.attached, report.in_use, report.is_revoked), (1, true, true));

    let unpinned = shown.unpin(attached);
    assert_eq!(unpinned, Unpinned { awaited: false, cut_off: vec![(shown.owner, shown.exported.range)] });
    free(&mut shown.pool, shown.guest, attached);
    assert_eq!(shown.pool.share(shown.share), None, "nothing is left of it");
    assert_eq!(shown.pool.exports(shown.owner).count(), 0);
}

#[test]
fn free_of_exported_bytes_revokes_them_and_waits_for_those_who_use_them() {
    let mut shown = Shown::new(pool(&[8]), SHARD, Rights::ReadWrite);
    let attached = shown.attach();
    assert_eq!(shown.pin(attached, AccessKind::Write), Ok(()));
    let freeing = shown.pool.begin_free(shown.owner, shown.exported.range.start).unwrap();
    shown.pool.verify().unwrap();
    assert_eq!(shown.pin(attached, AccessKind::Read), Err(PinError::Revoked));
    assert_eq!(shown.pool.releasable(&freeing), Releasable::AfterUse);
    assert!(shown.pool.remove_slice(shown.owner).is_err());
    assert_eq!(shown.unpin(attached).cut_off, [(shown.owner, shown.exported.range)]);
    assert_eq!(shown.pool.releasable(&freeing), Releasable::Now);
    let plan = shown.pool.plan_release(freeing);
    assert_eq!((plan.unback().len(), shown.pool.finish_release(plan)), (1, None));
    // The owner goes; what showed its bytes stays until it is freed.
    shown.pool.remove_slice(shown.owner).unwrap();
    shown.pool.verify().unwrap();
    let places: Vec<_> = shown.pool.extents(shown.guest, attached.range).map(|extent| extent.place).collect();
    assert_eq!(places, [Place::Revoked]);
    free(&mut shown.pool, shown.guest, attached);
    assert!(shown.pool.remove_slice(shown.guest).is_ok());
}

#[test]
fn revoke_lets_a_private_copy_under_way_come_to_its_end() {
    for finishes in [true, false] {
        let mut shown = Shown::new(pool(&[8]), SHARD, Rights::CopyOnWrite);
        let attached = shown.attach();
        let planned = shown.pool.plan_privatization(shown.guest, RegionIndex(0), PrivateLevel::Gpu);
        let freeing = shown.pool.begin_free(shown.owner, shown.exported.range.start).unwrap();
        assert_eq!(shown.pool.releasable(&freeing), Releasable::AfterUse);
        let privatization = planned.unwrap().unwrap();
        let unpinned = if finishes {
            shown.pool.finish_privatization(privatization)
        } else {
            shown.pool.abort_privatization(privatization, false)
        };
        assert_eq!(unpinned.cut_off, [(shown.owner, shown.exported.range)]);
        assert_eq!(shown.pool.releasable(&freeing), Releasable::Now);
        shown.pool.verify().unwrap();
        let used = shown.pin(attached, AccessKind::Write);
        assert_eq!(used, if finishes { Ok(()) } else { Err(PinError::Revoked) });
        assert_eq!(shown.pool.share(shown.share).is_none(), finishes);
    }
}

#[test]
fn slice_can_attach_its_own_bytes() {
    let mut pool = pool(&[8]);
    let slice = add(&mut pool, config(0, 8));
    let exported = alloc(&mut pool, slice, SHARD);
    let share = pool.export(slice, exported.range, Rights::CopyOnWrite, Audience::All).unwrap();
    let attached = pool.attach(slice, share).unwrap();
    let extents = pool.pin(slice, attached.range, AccessKind::Read).unwrap();
    assert_eq!((extents[0].region, extents[0].origin.region), (RegionIndex(1), RegionIndex(0)));
    assert!(!pool.is_quiet(slice, RegionIndex(0)));
    pool.unpin(slice, attached.range);
    assert!(pool.is_quiet(slice, RegionIndex(0)) && pool.is_quiet(slice, RegionIndex(1)));
    free(&mut pool, slice, exported);
    free(&mut pool, slice, attached);
    assert!(pool.remove_slice(slice).is_ok());
}
