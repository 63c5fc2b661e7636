//! Bytes one slice shows another, one rule each.

use std::time::{Duration, Instant};

use vram_gpu::GpuId;
use vram_pool::{Audience, Place, RegionState, Rights, ShareId, SliceId};
use vram_residency::{Access, Advice, MemoryLease, Revocation};
use vram_transfer::TransferError;

use crate::rig::{Rig, SHARD, Tiers, end_of, spans};
use crate::scenes::{eventually, noise, on_gpus, part};

/// Long enough for anything that ends by itself.
const LONG: Duration = Duration::from_secs(10);

/// An owner with bytes, and a guest they are shown to.
struct Shown {
    rig: Rig,
    owner: SliceId,
    guest: SliceId,
    exported: MemoryLease,
    attached: MemoryLease,
    share: ShareId,
    bytes: Vec<u8>,
}

impl Shown {
    /// Shows all of an allocation but its first KiB, which begins in the middle of a region.
    fn new(gpus: &str, tiers: Tiers, len_bytes: u64, rights: Rights) -> Self {
        let rig = Rig::new(gpus, tiers);
        let (owner, guest) = (rig.slice("owner", 12 * SHARD, 0), rig.slice("guest", 12 * SHARD, 0));
        let before = rig.alloc(owner, SHARD / 2).unwrap();
        let exported = rig.alloc(owner, len_bytes + 1024).unwrap();
        rig.fill(owner, before.range(), 0xee).result.unwrap();
        rig.fill(owner, exported.range(), 0xdd).result.unwrap();
        let bytes = noise(len_bytes, 23);
        let range = part(&exported, 1024, len_bytes);
        rig.write(owner, range, &bytes).result.unwrap();
        let share = rig.residency.export(owner, range, rights, Audience::All).unwrap();
        let attached = rig.residency.attach(guest, share).unwrap();
        assert_eq!(attached.range().len_bytes, len_bytes);
        Self { rig, owner, guest, exported, attached, share, bytes }
    }

    fn check(&self) {
        let (outcome, read) = self.rig.read(self.guest, self.attached.range());
        outcome.result.unwrap();
        assert!(read == self.bytes, "the guest sees other bytes");
    }

    /// What the owner sees of what it exported.
    fn owners(&self) -> Vec<u8> {
        let (outcome, read) = self.rig.read(self.owner, part(&self.exported, 1024, self.bytes.len() as u64));
        outcome.result.unwrap();
        read
    }

    /// The guest writes, and sees what it wrote.
    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let outcome = self.rig.write(self.guest, part(&self.attached, offset, bytes.len() as u64), bytes);
        outcome.result.unwrap();
        self.bytes[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
        self.check();
    }

    fn states(&self) -> Vec<RegionState> {
        let pool = self.rig.residency.pool();
        let regions = pool.extents(self.guest, self.attached.range()).map(|extent| extent.region);
        regions.map(|region| pool.region(self.guest, region).unwrap()).collect()
    }

    fn verify(&self) {
        let verdict = self.rig.residency.pool().verify();
        assert_eq!(verdict.err().map(|violation| violation.to_string()), None);
    }
}

fn all_tiers() -> [Tiers; 4] {
    [
        Tiers { host: 24, ..Tiers::default() },
        Tiers { compressed: 32, disk: 32, ..Tiers::default() },
        Tiers { disk: 32, ..Tiers::default() },
        Tiers { host: 2, remote: 32, ..Tiers::default() },
    ]
}

#[test]
fn attached_bytes_are_the_owners_wherever_they_are() {
    for tiers in all_tiers() {
        let mut shown = Shown::new("2x6MiB,fresh=dirty", tiers, 7 * SHARD + 77, Rights::ReadWrite);
        shown.check();
        // Some are on a GPU, some are not; and all move about.
        for round in 0..6u8 {
            let offset = u64::from(round) * SHARD + 1000 * u64::from(round);
            shown.write(offset, &noise(SHARD / 2 + 3, u64::from(round) + 1));
            assert!(shown.owners() == shown.bytes, "{tiers:?}: the owner sees other bytes");
            let own = noise(4096, u64::from(round) + 99);
            let at = part(&shown.exported, 1024 + offset, 4096);
            shown.rig.write(shown.owner, at, &own).result.unwrap();
            shown.bytes[offset as usize..offset as usize + 4096].copy_from_slice(&own);
            shown.check();
        }
        let usage = shown.rig.residency.pool().usage(shown.guest).unwrap();
        assert_eq!((usage.backed_bytes, usage.stored_bytes, usage.attached_bytes), (0, 0, 8 * SHARD));
        shown.verify();
    }
}

#[test]
fn copies_between_attached_and_own_bytes_move_what_is_seen() {
    let shown = Shown::new("2x8MiB", Tiers { disk: 16, ..Tiers::default() }, 3 * SHARD, Rights::ReadWrite);
    let own = shown.rig.alloc(shown.guest, 3 * SHARD).unwrap();
    shown
        .rig
        .copy(shown.guest, part(&own, 100, 2 * SHARD), part(&shown.attached, 7, 2 * SHARD))
        .result
        .unwrap();
    let (outcome, read) = shown.rig.read(shown.guest, part(&own, 100, 2 * SHARD));
    outcome.result.unwrap();
    assert!(read == shown.bytes[7..7 + 2 * SHARD as usize]);
    shown.rig.fill(shown.guest, own.range(), 5).result.unwrap();
    shown.rig.copy(shown.guest, part(&shown.attached, 9, SHARD), part(&own, 0, SHARD)).result.unwrap();
    assert!(shown.owners()[9..9 + SHARD as usize].iter().all(|byte| *byte == 5));
}

#[test]
fn write_to_what_is_for_reading_changes_nothing() {
    let shown = Shown::new("2x8MiB", Tiers::default(), 2 * SHARD, Rights::Read);
    let outcome = shown.rig.fill(shown.guest, shown.attached.range(), 1);
    assert!(matches!(outcome.result, Err(TransferError::ReadOnly)), "{outcome:?}");
    assert_eq!(outcome.moved_bytes, 0);
    shown.check();
}

#[test]
fn first_write_copies_a_region_and_leaves_the_owners_alone() {
    for tiers in all_tiers() {
        let mut shown = Shown::new("2x6MiB,fresh=dirty", tiers, 5 * SHARD + 500, Rights::CopyOnWrite);
        let before = shown.bytes.clone();
        shown.write(SHARD + 11, &noise(5000, 3));
        assert_eq!(shown.states().iter().filter(|state| **state == RegionState::Shared).count(), 5);
        // To the last byte, which is in the middle of a region; and over several at once.
        shown.write(5 * SHARD, &noise(500, 4));
        shown.write(2 * SHARD - 100, &noise(SHARD + 200, 5));
        assert!(shown.owners() == before, "{tiers:?}: the owner's bytes changed");
        // What the owner writes is seen where there is no copy.
        let at = part(&shown.exported, 1024, 100);
        shown.rig.fill(shown.owner, at, 1).result.unwrap();
        shown.bytes[..100].fill(1);
        shown.check();
        shown.verify();
    }
}

#[test]
fn copy_has_zeros_beside_what_was_shown() {
    let host = Tiers { host: 8, ..Tiers::default() };
    // To a GPU that has room, and to a slot as it has none.
    for (tiers, gpus) in [(Tiers::default(), "1x8MiB,fresh=dirty"), (host, "1x2MiB,fresh=dirty")] {
        let rig = Rig::new(gpus, tiers);
        let (owner, guest) = (rig.slice("owner", 4 * SHARD, 0), rig.slice("guest", SHARD, 0));
        let around = rig.alloc(owner, SHARD).unwrap();
        rig.fill(owner, around.range(), 0xee).result.unwrap();
        let (before, shown) = (SHARD / 4, 1000);
        let range = part(&around, before, shown);
        let share = rig.residency.export(owner, range, Rights::CopyOnWrite, Audience::All).unwrap();
        let attached = rig.residency.attach(guest, share).unwrap();
        rig.fill(guest, part(&attached, 500, 1), 1).result.unwrap();
        // The slice has no room elsewhere.
        let first = rig.alloc(guest, before).unwrap();
        let last = rig.alloc(guest, SHARD - before - 1024).unwrap();
        for lease in [&first, &last] {
            let (outcome, read) = rig.read(guest, lease.range());
            outcome.result.unwrap();
            assert!(read.iter().all(|byte| *byte == 0), "bytes of the owner, or of nobody");
        }
        let (_, read) = rig.read(guest, attached.range());
        assert!(read[..500].iter().chain(&read[501..]).all(|byte| *byte == 0xee) && read[500] == 1);
    }
}

#[test]
fn write_without_room_for_a_copy_is_refused_and_bytes_stay_shown() {
    let shown = Shown::new("1x8MiB", Tiers::default(), 3 * SHARD, Rights::CopyOnWrite);
    let outcome = shown.rig.fill(shown.guest, shown.attached.range(), 1);
    assert!(matches!(outcome.result, Err(TransferError::NoRoom)), "{outcome:?}");
    assert_eq!(outcome.moved_bytes, 0);
    shown.check();
    assert!(shown.rig.alloc(shown.guest, 256).is_err());
    shown.verify();
}

#[test]
fn copy_that_fails_leaves_bytes_shown_and_the_next_one_succeeds() {
    let mut shown = Shown::new("2x8MiB", Tiers::default(), 2 * SHARD, Rights::CopyOnWrite);
    shown.rig.sim.faults().fail_copy(1);
    let outcome = shown.rig.fill(shown.guest, part(&shown.attached, 0, 100), 1);
    assert!(outcome.result.is_err(), "{outcome:?}");
    assert!(shown.states().iter().all(|state| *state == RegionState::Shared));
    shown.check();
    let held = shown.rig.residency.pool().usage(shown.guest).unwrap().backed_bytes;
    assert_eq!(held, 0, "a shard stays behind");
    shown.write(0, &[1; 100]);
}

#[test]
fn private_copy_takes_the_place_of_what_is_colder() {
    let mut shown =
        Shown::new("1x8MiB", Tiers { disk: 24, ..Tiers::default() }, 3 * SHARD, Rights::CopyOnWrite);
    let held = shown.rig.residency.pool().usage(shown.owner).unwrap().backed_bytes;
    assert_eq!(held, 4 * SHARD, "all is taken");
    for region in 0..3 {
        shown.write(region * SHARD, &noise(SHARD, region + 7));
    }
    shown.verify();
}

#[test]
fn use_under_way_goes_on_when_it_is_revoked_and_holds_the_bytes() {
    let shown = Shown::new("1x16MiB", Tiers::default(), 2 * SHARD, Rights::Read);
    shown.rig.sim.faults().pause(GpuId(0));
    let to = spans(2 * SHARD as usize);
    let reading = shown.rig.begin(shown.guest, Access::Read { from: shown.attached.range(), to: to.clone() });
    let in_use = || shown.rig.residency.pool().share(shown.share).unwrap().in_use;
    assert!(eventually(in_use));
    let soon = Duration::from_millis(50);
    assert_eq!(shown.rig.residency.revoke(shown.share, soon), Ok(Revocation::InUse));
    let late = shown.rig.begin(shown.guest, Access::Read { from: shown.attached.range(), to: to.clone() });
    let outcome = end_of(&late);
    assert!(matches!(outcome.result, Err(TransferError::Revoked)), "{outcome:?}");

    // The owner gives the bytes back; they stay as long as they are read.
    drop(shown.exported);
    assert!(!shown.rig.residency.wait_released(shown.owner, Duration::from_millis(100)));
    shown.rig.sim.faults().resume(GpuId(0));
    end_of(&reading).result.unwrap();
    let mut read = vec![0; 2 * SHARD as usize];
    to.read_into(&mut read);
    assert!(read == shown.bytes);
    assert!(shown.rig.residency.wait_released(shown.owner, LONG), "nobody looks at what was freed");
    let refused = shown.rig.read(shown.guest, shown.attached.range()).0.result;
    assert!(matches!(refused, Err(TransferError::Revoked)));
    drop(shown.attached);
    assert!(shown.rig.residency.wait_released(shown.guest, LONG));
    assert!(eventually(|| shown.rig.residency.pool().share(shown.share).is_none()));
    shown.rig.residency.remove_slice(shown.guest).unwrap();
}

#[test]
fn revoke_of_what_nobody_uses_is_complete_and_private_copies_stay() {
    let mut shown = Shown::new("2x8MiB", Tiers::default(), 2 * SHARD, Rights::CopyOnWrite);
    shown.write(SHARD, &noise(100, 1));
    assert_eq!(shown.rig.residency.revoke(shown.share, LONG), Ok(Revocation::Complete));
    assert!(shown.rig.residency.revoke(shown.share, LONG).is_err());
    assert!(shown.rig.residency.attach(shown.guest, shown.share).is_err());
    // The allocation begins in the middle of a region: its second one is the copy.
    let band = shown.rig.residency.pool().band(shown.guest).unwrap();
    let first = SHARD - (shown.attached.range().start.0 - band.start.0) % SHARD;
    let (outcome, read) = shown.rig.read(shown.guest, part(&shown.attached, first, SHARD));
    outcome.result.unwrap();
    assert!(read == shown.bytes[first as usize..(first + SHARD) as usize]);
    let beside = shown.rig.read(shown.guest, part(&shown.attached, first - 1, 2)).0.result;
    assert!(matches!(beside, Err(TransferError::Revoked)));
    assert!(shown.owners()[..SHARD as usize] == shown.bytes[..SHARD as usize]);
    shown.verify();
}

#[test]
fn attached_bytes_are_used_while_their_gpu_is_drained() {
    let shown = Shown::new("2x8MiB", Tiers::default(), 2 * SHARD, Rights::Read);
    let on = |gpu| {
        let pool = shown.rig.residency.pool();
        pool.extents(shown.guest, shown.attached.range()).all(|extent| extent.place == Place::Gpu(GpuId(gpu)))
    };
    for from in [0, 1] {
        assert!(on(from));
        shown.rig.residency.begin_drain(GpuId(from)).unwrap();
        assert!(eventually(|| {
            shown.check();
            on(1 - from)
        }));
        shown.rig.residency.end_drain(GpuId(from)).unwrap();
    }
}

#[test]
fn attached_bytes_of_a_lost_gpu_are_lost_and_copies_elsewhere_are_not() {
    let mut shown = Shown::new("2x8MiB", Tiers::default(), 2 * SHARD, Rights::CopyOnWrite);
    let pad = shown.rig.alloc(shown.owner, SHARD).unwrap();
    shown.write(0, &noise(100, 1));
    drop(pad);
    let gpu = |nth: usize| match shown.states()[nth] {
        RegionState::Backed(gpu) => Some(gpu),
        _ => None,
    };
    assert_eq!((gpu(0), gpu(1)), (Some(GpuId(1)), None), "{:?}", shown.states());
    shown.rig.sim.faults().lose_gpu(GpuId(0));
    let told = |shown: &Shown, range| shown.rig.read(shown.guest, range).0.result;
    let lost = told(&shown, part(&shown.attached, SHARD, 100));
    assert!(matches!(&lost, Err(TransferError::Gpu(_))), "{lost:?}");
    assert!(eventually(|| {
        shown.rig.residency.note(&vram_gpu::GpuError::DeviceLost { gpu: GpuId(0), reason: String::new() });
        matches!(told(&shown, part(&shown.attached, SHARD, 100)), Err(TransferError::Gpu(_)))
    }));
    told(&shown, part(&shown.attached, 0, 100)).unwrap();
    let outcome = shown.rig.fill(shown.guest, part(&shown.attached, SHARD, 100), 1);
    assert!(matches!(outcome.result, Err(TransferError::Gpu(_))), "{outcome:?}");
    shown.verify();
}

#[test]
fn prefetch_of_attached_bytes_brings_the_owners_and_pins_do_nothing() {
    let shown = Shown::new("1x8MiB", Tiers { host: 16, ..Tiers::default() }, 7 * SHARD, Rights::Read);
    let place = |range| on_gpus(&shown.rig, shown.guest, range);
    let cold = (0..7).map(|region| part(&shown.attached, region * SHARD, 1)).find(|range| !place(*range));
    let cold = cold.expect("all of it is on the GPU");
    shown.rig.residency.advise(shown.owner, shown.exported.range(), Advice::Cold).unwrap();
    shown.rig.residency.advise(shown.guest, cold, Advice::Prefetch).unwrap();
    assert!(eventually(|| place(cold)), "it does not come");
    shown.rig.residency.advise(shown.guest, shown.attached.range(), Advice::Pin).unwrap();
    shown.rig.residency.advise(shown.guest, shown.attached.range(), Advice::PreferGpu(GpuId(0))).unwrap();
    shown.check();
}

#[test]
fn attach_waits_for_what_the_slice_has_just_freed() {
    let shown = Shown::new("2x16MiB,fresh=dirty", Tiers::default(), 7 * SHARD, Rights::Read);
    let range = part(&shown.exported, 1024, SHARD);
    let small = shown.rig.residency.export(shown.owner, range, Rights::Read, Audience::All).unwrap();
    for _ in 0..20 {
        let own = shown.rig.alloc(shown.guest, 4 * SHARD).unwrap();
        assert!(shown.rig.residency.attach(shown.guest, small).is_err(), "over the limit");
        drop(own);
        let attached = shown.rig.residency.attach(shown.guest, small).unwrap();
        assert!(shown.rig.read(shown.guest, attached.range()).1 == shown.bytes[..SHARD as usize]);
    }
}

#[test]
fn many_guests_at_once_see_only_what_they_are_shown() {
    let rig = Rig::new("2x8MiB,fresh=dirty", Tiers { host: 4, disk: 48, ..Tiers::default() });
    let owner = rig.slice("owner", 8 * SHARD, 0);
    let guests: Vec<_> = (0..3).map(|guest| rig.slice(&format!("g{guest}"), 8 * SHARD, 0)).collect();
    let bytes = noise(3 * SHARD, 31);
    let export = || {
        let lease = rig.alloc(owner, 3 * SHARD + 512).unwrap();
        rig.write(owner, part(&lease, 512, 3 * SHARD), &bytes).result.unwrap();
        let range = part(&lease, 512, 3 * SHARD);
        let share = rig.residency.export(owner, range, Rights::CopyOnWrite, Audience::All).unwrap();
        (lease, share)
    };
    let shown = std::sync::Mutex::new(export());
    let until = Instant::now() + Duration::from_secs(6);
    let use_it = |guest: SliceId, seed: u64| {
        let share = shown.lock().unwrap().1;
        let Ok(attached) = rig.residency.attach(guest, share) else { return 0 };
        let mut expected = bytes.clone();
        for round in 0..4u64 {
            let (outcome, read) = rig.read(guest, attached.range());
            match outcome.result {
                Ok(()) => assert!(read == expected, "wrong bytes in round {round}"),
                Err(TransferError::Revoked) => return 1,
                Err(error) => panic!("{error}"),
            }
            let at = (seed * 7919 + round * 1_000_003) % (3 * SHARD - 100);
            let outcome = rig.fill(guest, part(&attached, at, 100), seed as u8);
            match outcome.result {
                Ok(()) => expected[at as usize..at as usize + 100].fill(seed as u8),
                Err(TransferError::Revoked) => return 1,
                Err(error) => panic!("{error}"),
            }
        }
        2
    };
    let ends: Vec<u64> = std::thread::scope(|scope| {
        let threads = guests.iter().enumerate().map(|(nth, guest)| {
            let use_it = &use_it;
            scope.spawn(move || {
                let mut ends = 0;
                for round in 0u64.. {
                    if Instant::now() > until {
                        break;
                    }
                    ends |= 1 << use_it(*guest, round * 3 + nth as u64 + 1);
                }
                ends
            })
        });
        let threads: Vec<_> = threads.collect();
        let mut gpu = 0;
        while Instant::now() < until {
            std::thread::sleep(Duration::from_millis(120));
            let next = export();
            // Given back while it is used.
            *shown.lock().unwrap() = next;
            let _ = rig.residency.begin_drain(GpuId(gpu));
            std::thread::sleep(Duration::from_millis(30));
            rig.residency.end_drain(GpuId(gpu)).unwrap();
            gpu = 1 - gpu;
        }
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(ends.iter().any(|ends| ends & 2 != 0), "nothing was revoked in use");
    assert!(ends.iter().any(|ends| ends & 4 != 0), "nothing was used to its end");
    drop(shown);
    for slice in guests.into_iter().chain([owner]) {
        assert!(rig.residency.wait_released(slice, LONG), "{:?}", rig.residency.pool().usage(slice));
        rig.residency.remove_slice(slice).unwrap();
    }
    let counts = rig.sim.counts();
    assert_eq!((counts.shards, counts.mappings), (0, 0));
    assert!(rig.stores.iter().all(|store| store.meter().regions == 0));
    assert!(rig.residency.pool().verify().is_ok());
}
