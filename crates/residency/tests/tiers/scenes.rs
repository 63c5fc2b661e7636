//! One rule each.

use vram_gpu::{DeviceAddress, DeviceRange, GpuError, GpuId};
use vram_pool::Place;
use vram_residency::{Advice, AdviseError, MemoryEvent, MemoryLease};
use vram_transfer::TransferError;

use crate::rig::{Rig, SHARD, Tiers};

pub(crate) fn part(lease: &MemoryLease, offset: u64, len_bytes: u64) -> DeviceRange {
    DeviceRange { start: DeviceAddress(lease.range().start.0 + offset), len_bytes }
}

pub(crate) fn noise(len: u64, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

#[test]
fn allocation_larger_than_all_gpus_holds_every_byte() {
    for tiers in [
        Tiers { host: 16, ..Tiers::default() },
        Tiers { compressed: 24, disk: 24, ..Tiers::default() },
        Tiers { disk: 24, ..Tiers::default() },
        Tiers { host: 2, remote: 24, ..Tiers::default() },
    ] {
        let rig = Rig::new("2x8MiB,fresh=dirty", tiers);
        let slice = rig.slice("a", 12 * SHARD, 0);
        let lease = rig.alloc(slice, 12 * SHARD).unwrap();
        let (outcome, zeros) = rig.read(slice, lease.range());
        assert!(outcome.result.is_ok() && zeros.iter().all(|byte| *byte == 0), "{tiers:?}: {outcome:?}");
        let bytes = noise(12 * SHARD, 7);
        let outcome = rig.write(slice, lease.range(), &bytes);
        assert!(outcome.result.is_ok(), "{tiers:?}: {outcome:?}");
        assert_eq!(outcome.moved_bytes, 12 * SHARD);
        let (outcome, read) = rig.read(slice, lease.range());
        assert!(outcome.result.is_ok() && read == bytes, "{tiers:?}: {outcome:?}");
        assert!(rig.residency.pool().usage(slice).unwrap().stored_bytes >= 4 * SHARD);
    }
}

#[test]
fn copy_larger_than_all_gpus_is_done_piece_by_piece() {
    let rig = Rig::new("1x8MiB", Tiers { disk: 40, ..Tiers::default() });
    let slice = rig.slice("a", 16 * SHARD, 0);
    let (to, from) = (rig.alloc(slice, 8 * SHARD).unwrap(), rig.alloc(slice, 8 * SHARD).unwrap());
    let bytes = noise(8 * SHARD, 3);
    rig.write(slice, from.range(), &bytes).result.unwrap();
    // Unlike edges on both sides.
    let outcome = rig.copy(slice, part(&to, 1000, 7 * SHARD), part(&from, 77, 7 * SHARD));
    outcome.result.unwrap();
    let (outcome, read) = rig.read(slice, part(&to, 1000, 7 * SHARD));
    outcome.result.unwrap();
    assert!(read == bytes[77..77 + 7 * SHARD as usize]);
}

#[test]
fn slice_inside_its_guarantee_is_never_evicted() {
    let rig = Rig::new("2x8MiB", Tiers { host: 32, ..Tiers::default() });
    let (inside, borrower) = (rig.slice("a", 4 * SHARD, 4 * SHARD), rig.slice("b", 16 * SHARD, 0));
    let kept = rig.alloc(inside, 4 * SHARD).unwrap();
    rig.fill(inside, kept.range(), 1).result.unwrap();
    let many = rig.alloc(borrower, 16 * SHARD).unwrap();
    for round in 0..20u8 {
        rig.fill(borrower, many.range(), round).result.unwrap();
        let places: Vec<_> =
            rig.residency.pool().extents(inside, kept.range()).map(|extent| extent.place).collect();
        assert!(places.iter().all(|place| matches!(place, Place::Gpu(_))), "{places:?}");
    }
}

#[test]
fn guarantee_is_there_though_others_borrowed_all() {
    let rig = Rig::new("2x8MiB", Tiers { host: 32, ..Tiers::default() });
    let (late, borrower) = (rig.slice("a", 4 * SHARD, 4 * SHARD), rig.slice("b", 16 * SHARD, 0));
    let many = rig.alloc(borrower, 16 * SHARD).unwrap();
    rig.fill(borrower, many.range(), 9).result.unwrap();
    let mine = rig.alloc(late, 4 * SHARD).unwrap();
    let places: Vec<_> =
        rig.residency.pool().extents(late, mine.range()).map(|extent| extent.place).collect();
    assert!(places.iter().all(|place| matches!(place, Place::Gpu(_))), "{places:?}");
}

#[test]
fn damaged_bytes_are_lost_and_never_wrong() {
    let rig = Rig::new("1x4MiB", Tiers { disk: 16, ..Tiers::default() });
    let slice = rig.slice("a", 8 * SHARD, 0);
    let lease = rig.alloc(slice, 8 * SHARD).unwrap();
    let bytes = noise(8 * SHARD, 5);
    let watch = rig.watch(slice);
    rig.faults[0].damage_write(1);
    rig.write(slice, lease.range(), &bytes).result.unwrap();
    let mut lost = 0;
    for region in 0..8 {
        let (outcome, read) = rig.read(slice, part(&lease, region * SHARD, SHARD));
        match outcome.result {
            Ok(()) => assert!(read == bytes[(region * SHARD) as usize..((region + 1) * SHARD) as usize]),
            Err(TransferError::DataLost) => lost += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(lost, 1);
    let [MemoryEvent::DataLost(told)] = watch.events()[..] else { panic!("{:?}", watch.events()) };
    let damaged = Place::Damaged;
    let places: Vec<_> = rig.residency.pool().extents(slice, lease.range()).collect();
    let found = places.iter().filter(|extent| extent.place == damaged).map(|extent| extent.range.start);
    assert_eq!((told.len_bytes, vec![told.start]), (SHARD, found.collect()));
    drop(lease);
    assert!(rig.residency.wait_released(slice, std::time::Duration::from_secs(10)));
    // What was damaged is as good as new.
    let lease = rig.alloc(slice, 8 * SHARD).unwrap();
    let (outcome, read) = rig.read(slice, lease.range());
    outcome.result.unwrap();
    assert!(read.iter().all(|byte| *byte == 0));
}

#[test]
fn watch_hears_what_concerns_its_slice_and_ends_with_who_keeps_it() {
    let rig = Rig::new("1x4MiB", Tiers::default());
    let (one, other) = (rig.slice("a", 2 * SHARD, 0), rig.slice("b", 2 * SHARD, 0));
    let (watch, beside, gone) = (rig.watch(one), rig.watch(other), rig.watch(one));
    drop(gone);

    rig.residency.resize_slice(one, SHARD, 0).unwrap();
    rig.residency.resize_slice(one, SHARD, 5 * SHARD).unwrap_err();
    let gone = || GpuError::DeviceLost { gpu: GpuId(0), reason: String::new() };
    assert!(rig.residency.note(&gone()) && rig.residency.note(&gone()));

    assert_eq!(watch.events(), [MemoryEvent::LimitChanged, MemoryEvent::GpuLost(GpuId(0))]);
    assert_eq!(beside.events(), [MemoryEvent::GpuLost(GpuId(0))]);
}

#[test]
fn full_tiers_give_out_of_memory_and_nothing_is_lost() {
    let rig = Rig::new("1x4MiB", Tiers { disk: 8, ..Tiers::default() });
    let slice = rig.slice("a", 64 * SHARD, 0);
    let mut leases = Vec::new();
    while let Ok(lease) = rig.alloc(slice, SHARD) {
        let byte = leases.len() as u8;
        rig.fill(slice, lease.range(), byte).result.unwrap();
        leases.push(lease);
    }
    assert!((6..=12).contains(&leases.len()), "{}", leases.len());
    for (byte, lease) in leases.iter().enumerate() {
        let (outcome, read) = rig.read(slice, lease.range());
        outcome.result.unwrap();
        assert!(read.iter().all(|found| *found == byte as u8));
    }
}

#[test]
fn failing_disk_leaves_bytes_where_they_are() {
    let rig = Rig::new("1x4MiB", Tiers { disk: 16, ..Tiers::default() });
    let slice = rig.slice("a", 8 * SHARD, 0);
    let lease = rig.alloc(slice, 8 * SHARD).unwrap();
    let bytes = noise(2 * SHARD, 11);
    rig.write(slice, part(&lease, 0, 2 * SHARD), &bytes).result.unwrap();
    rig.faults[0].fill_up(true);
    let outcome = rig.write(slice, part(&lease, 2 * SHARD, SHARD), &bytes[..SHARD as usize]);
    assert!(matches!(outcome.result, Err(TransferError::NoRoom)), "{outcome:?}");
    let (outcome, read) = rig.read(slice, part(&lease, 0, 3 * SHARD));
    outcome.result.unwrap();
    assert!(read[..2 * SHARD as usize] == bytes && read[2 * SHARD as usize..].iter().all(|byte| *byte == 0));
}

#[test]
fn lost_gpu_spares_what_a_tier_has() {
    let rig = Rig::new("2x4MiB", Tiers { host: 16, ..Tiers::default() });
    let slice = rig.slice("a", 8 * SHARD, 0);
    let lease = rig.alloc(slice, 8 * SHARD).unwrap();
    let bytes = noise(8 * SHARD, 13);
    rig.write(slice, lease.range(), &bytes).result.unwrap();
    // Read so often that those in the tier come back, with their copies left there.
    for _ in 0..40 {
        rig.read(slice, part(&lease, 4 * SHARD, 4 * SHARD)).0.result.unwrap();
    }
    rig.sim.faults().lose_gpu(GpuId(0));
    let mut good = 0;
    for region in 0..8 {
        // The first to meet the loss is told of it, whatever it reads.
        let range = part(&lease, region * SHARD, SHARD);
        let (outcome, read) = match rig.read(slice, range) {
            (outcome, _) if outcome.result.is_err() => {
                rig.residency.note(&vram_gpu::GpuError::DeviceLost { gpu: GpuId(0), reason: String::new() });
                rig.read(slice, range)
            }
            other => other,
        };
        match outcome.result {
            Ok(()) => {
                good += 1;
                assert!(read == bytes[(region * SHARD) as usize..((region + 1) * SHARD) as usize]);
            }
            Err(TransferError::Gpu(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert!(good >= 6, "{good} regions are there");
}

pub(crate) fn on_gpus(rig: &Rig, slice: vram_pool::SliceId, range: DeviceRange) -> bool {
    rig.residency.pool().extents(slice, range).all(|extent| matches!(extent.place, Place::Gpu(_)))
}

pub(crate) fn eventually(mut is_true: impl FnMut() -> bool) -> bool {
    (0..1000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(5));
        is_true()
    })
}

#[test]
fn pinned_region_stays_whatever_else_is_used() {
    let rig = Rig::new("1x8MiB", Tiers { host: 16, ..Tiers::default() });
    let slice = rig.slice("a", 8 * SHARD, SHARD);
    let lease = rig.alloc(slice, 8 * SHARD).unwrap();
    let pinned = part(&lease, 7 * SHARD, SHARD);
    rig.residency.advise(slice, pinned, Advice::Pin).unwrap();
    assert!(eventually(|| on_gpus(&rig, slice, pinned)), "it does not come");
    let refused = rig.residency.advise(slice, part(&lease, 0, 2 * SHARD), Advice::Pin);
    assert_eq!(refused, Err(AdviseError::OverGuarantee));
    // Again is no more.
    rig.residency.advise(slice, pinned, Advice::Pin).unwrap();
    for round in 0..30 {
        rig.fill(slice, part(&lease, 0, 7 * SHARD), round).result.unwrap();
        assert!(on_gpus(&rig, slice, pinned));
    }
    rig.residency.advise(slice, pinned, Advice::Unpin).unwrap();
    let gone = |round: u8| {
        rig.fill(slice, part(&lease, 0, 7 * SHARD), round).result.unwrap();
        !on_gpus(&rig, slice, pinned)
    };
    assert!((0..100).any(gone), "it stays after all");
}

#[test]
fn prefetched_region_comes_in_the_place_of_a_cold_one() {
    let rig = Rig::new("1x8MiB", Tiers { host: 16, ..Tiers::default() });
    let slice = rig.slice("a", 8 * SHARD, 0);
    let lease = rig.alloc(slice, 8 * SHARD).unwrap();
    rig.fill(slice, lease.range(), 1).result.unwrap();
    let (cold, wanted) = (part(&lease, 2 * SHARD, SHARD), part(&lease, 6 * SHARD, SHARD));
    for region in 0..4 {
        rig.residency.advise(slice, part(&lease, region * SHARD, SHARD), Advice::Prefetch).unwrap();
        assert!(eventually(|| on_gpus(&rig, slice, part(&lease, region * SHARD, SHARD))));
        rig.read(slice, part(&lease, region * SHARD, SHARD)).0.result.unwrap();
    }
    assert!(!on_gpus(&rig, slice, wanted) && on_gpus(&rig, slice, cold));
    rig.residency.advise(slice, cold, Advice::Cold).unwrap();
    rig.residency.advise(slice, wanted, Advice::Prefetch).unwrap();
    assert!(eventually(|| on_gpus(&rig, slice, wanted)), "it does not come");
    assert!(!on_gpus(&rig, slice, cold), "another went");
}

#[test]
fn region_moves_to_the_gpu_its_guest_prefers_if_that_has_room() {
    let rig = Rig::new("2x4MiB", Tiers::default());
    let slice = rig.slice("a", 4 * SHARD, 0);
    let lease = rig.alloc(slice, SHARD).unwrap();
    let bytes = noise(SHARD, 17);
    rig.write(slice, lease.range(), &bytes).result.unwrap();
    let on = |gpu| {
        let place = Place::Gpu(GpuId(gpu));
        rig.residency.pool().extents(slice, lease.range()).all(|extent| extent.place == place)
    };
    assert!(on(0));
    rig.residency.advise(slice, lease.range(), Advice::PreferGpu(GpuId(1))).unwrap();
    assert!(eventually(|| on(1)), "it does not move");
    assert!(rig.read(slice, lease.range()).1 == bytes);
    let other = rig.slice("b", 4 * SHARD, 0);
    let _full = rig.alloc(other, 3 * SHARD).unwrap();
    rig.residency.advise(slice, lease.range(), Advice::PreferGpu(GpuId(0))).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(on(1), "there is no room");
    let refused = rig.residency.advise(slice, lease.range(), Advice::PreferGpu(GpuId(9)));
    assert_eq!(refused, Err(AdviseError::NoSuchGpu { gpu: GpuId(9) }));
}

#[test]
fn pool_that_is_dropped_gives_everything_up() {
    let rig = Rig::new("2x4MiB", Tiers { host: 8, ..Tiers::default() });
    let slice = rig.slice("a", 8 * SHARD, 0);
    let lease = rig.alloc(slice, 8 * SHARD).unwrap();
    rig.fill(slice, lease.range(), 1).result.unwrap();
    let pool = std::sync::Arc::downgrade(&rig.residency);
    drop(lease);
    drop(rig);
    assert!(eventually(|| pool.upgrade().is_none()), "a thread holds on to it");
}
