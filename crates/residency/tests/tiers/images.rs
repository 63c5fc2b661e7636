//! Images, one rule each.

use std::io::{self, Read};

use vram_gpu::GpuId;
use vram_pool::Rights;
use vram_residency::{ImageConfig, ImageError, ImageReport, ImageStage};
use vram_transfer::TransferError;

use crate::rig::{Rig, SHARD, Tiers};
use crate::scenes::{eventually, noise, part};

fn config(length_bytes: u64, rights: Rights) -> ImageConfig {
    ImageConfig { name: "weights".to_owned(), length_bytes, rights }
}

fn report(rig: &Rig) -> Option<ImageReport> {
    rig.residency.image_reports().pop()
}

/// Nothing is left of any image.
fn check_gone(rig: &Rig) {
    assert_eq!(rig.residency.image_reports(), []);
    let counts = rig.sim.counts();
    assert_eq!((counts.shards, counts.mappings), (0, 0));
    assert!(rig.stores.iter().all(|store| store.meter().regions == 0));
    assert_eq!(rig.residency.pool().slices().count(), 0);
}

#[test]
fn image_is_seen_by_all_who_attach_it_and_counted_once() {
    let rig = Rig::new("2x8MiB,fresh=dirty", Tiers { disk: 32, ..Tiers::default() });
    let bytes = noise(5 * SHARD + 123, 41);
    let image = config(bytes.len() as u64, Rights::CopyOnWrite);
    rig.residency.import_image(&image, &mut &bytes[..]).unwrap();
    let guests = ["a", "b", "c"].map(|name| rig.slice(name, 8 * SHARD, 0));
    let leases = guests.map(|guest| rig.residency.attach_image(guest, "weights").unwrap());
    for (nth, (guest, lease)) in guests.iter().zip(&leases).enumerate() {
        let (outcome, read) = rig.read(*guest, lease.range());
        outcome.result.unwrap();
        assert!(read == bytes);
        assert_eq!(rig.residency.pool().usage(*guest).unwrap().backed_bytes, 0);
        // What one writes the others do not see.
        rig.fill(*guest, part(lease, 100 * nth as u64, 100), nth as u8).result.unwrap();
    }
    for (nth, (guest, lease)) in guests.iter().zip(&leases).enumerate() {
        let mut expected = bytes.clone();
        expected[100 * nth..100 * nth + 100].fill(nth as u8);
        let (outcome, read) = rig.read(*guest, lease.range());
        outcome.result.unwrap();
        assert!(read == expected);
    }
    let report = report(&rig).unwrap();
    assert_eq!((report.name.as_str(), report.stage, report.attached), ("weights", ImageStage::Ready, 3));
    assert_eq!(report.on_gpus_bytes + report.in_tiers_bytes, 6 * SHARD);
    assert_eq!((report.length_bytes, report.rights), (bytes.len() as u64, Rights::CopyOnWrite));
}

#[test]
fn image_for_reading_is_not_written_to() {
    let rig = Rig::new("1x8MiB", Tiers::default());
    let bytes = noise(SHARD, 43);
    rig.residency.import_image(&config(SHARD, Rights::Read), &mut &bytes[..]).unwrap();
    let guest = rig.slice("a", 8 * SHARD, 0);
    let lease = rig.residency.attach_image(guest, "weights").unwrap();
    let outcome = rig.fill(guest, lease.range(), 1);
    assert!(matches!(outcome.result, Err(TransferError::ReadOnly)), "{outcome:?}");
    assert!(rig.read(guest, lease.range()).1 == bytes);
}

#[test]
fn zeros_of_an_image_take_no_room_in_tiers() {
    let rig = Rig::new("1x8MiB,fresh=dirty", Tiers { disk: 64, ..Tiers::default() });
    let mut bytes = vec![0; 32 * SHARD as usize];
    let noise = noise(1000, 47);
    bytes[9 * SHARD as usize + 5..][..1000].copy_from_slice(&noise);
    rig.residency.import_image(&config(bytes.len() as u64, Rights::Read), &mut &bytes[..]).unwrap();
    let stored: u64 = rig.stores.iter().map(|store| store.meter().regions).sum();
    assert!(stored <= 4, "{stored} regions are stored");
    let guest = rig.slice("a", 32 * SHARD, 0);
    let lease = rig.residency.attach_image(guest, "weights").unwrap();
    let (outcome, read) = rig.read(guest, lease.range());
    outcome.result.unwrap();
    assert!(read == bytes);
}

#[test]
fn image_that_is_attached_is_not_removed_and_then_nothing_is_left() {
    let rig = Rig::new("1x8MiB", Tiers { disk: 16, ..Tiers::default() });
    let bytes = noise(6 * SHARD, 53);
    let image = config(6 * SHARD, Rights::CopyOnWrite);
    rig.residency.import_image(&image, &mut &bytes[..]).unwrap();
    let guest = rig.slice("a", 8 * SHARD, 0);
    let lease = rig.residency.attach_image(guest, "weights").unwrap();
    let refused = rig.residency.remove_image("weights").unwrap_err();
    assert!(matches!(refused, ImageError::Attached { attached: 1, .. }), "{refused}");
    assert!(rig.read(guest, lease.range()).1 == bytes);
    drop(lease);
    assert!(eventually(|| rig.residency.remove_image("weights").is_ok()));
    let unknown = rig.residency.remove_image("weights").unwrap_err();
    assert!(matches!(unknown, ImageError::NoSuchImage { .. }), "{unknown}");
    assert!(matches!(rig.residency.attach_image(guest, "weights"), Err(ImageError::NoSuchImage { .. })));
    rig.residency.remove_slice(guest).unwrap();
    check_gone(&rig);
    // The name can be had again.
    rig.residency.import_image(&image, &mut &bytes[..]).unwrap();
    let again = rig.residency.import_image(&image, &mut &bytes[..]).unwrap_err();
    assert!(matches!(again, ImageError::NameTaken { .. }), "{again}");
}

/// Yields some bytes, and then fails.
struct Failing(u64);

impl Read for Failing {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let len = to.len().min(self.0 as usize);
        self.0 -= len as u64;
        to[..len].fill(1);
        if len == 0 { Err(io::Error::other("the server is gone")) } else { Ok(len) }
    }
}

#[test]
fn image_that_cannot_be_loaded_leaves_nothing() {
    let rig = Rig::new("1x8MiB", Tiers { disk: 16, ..Tiers::default() });
    let bytes = noise(3 * SHARD, 59);
    let load = |length, source: &mut dyn Read| {
        let error = rig.residency.import_image(&config(length, Rights::Read), source).unwrap_err();
        check_gone(&rig);
        error
    };
    let short = load(4 * SHARD, &mut &bytes[..]);
    assert!(matches!(short, ImageError::Source { offset_bytes, .. } if offset_bytes == 3 * SHARD), "{short}");
    let failed = load(8 * SHARD, &mut Failing(5 * SHARD + 7));
    assert!(matches!(failed, ImageError::Source { offset_bytes, .. } if offset_bytes == 5 * SHARD));
    let large = load(1000 * SHARD, &mut &bytes[..]);
    assert!(matches!(large, ImageError::Allocate(_)), "{large}");
    let none = load(0, &mut &bytes[..]);
    assert!(matches!(none, ImageError::Slice(_)), "{none}");
    rig.sim.faults().fail_copy(2);
    let unwritten = load(3 * SHARD, &mut &bytes[..]);
    assert!(matches!(unwritten, ImageError::Transfer(_)), "{unwritten}");
    let all = rig.residency.import_image(&config(SHARD, Rights::ReadWrite), &mut &bytes[..]);
    assert!(matches!(all, Err(ImageError::Writable { .. })));
    rig.residency.import_image(&config(3 * SHARD, Rights::Read), &mut &bytes[..]).unwrap();
}

#[test]
fn image_moves_off_a_drained_gpu_and_down_the_tiers_while_it_is_read() {
    let rig = Rig::new("2x8MiB", Tiers { host: 4, disk: 16, ..Tiers::default() });
    let bytes = noise(4 * SHARD, 61);
    let (reader, owed) = (rig.slice("a", 8 * SHARD, 0), rig.slice("b", 8 * SHARD, 6 * SHARD));
    rig.residency.import_image(&config(4 * SHARD, Rights::Read), &mut &bytes[..]).unwrap();
    let lease = rig.residency.attach_image(reader, "weights").unwrap();
    rig.residency.begin_drain(GpuId(0)).unwrap_err();
    let all = rig.alloc(owed, 6 * SHARD).unwrap();
    for round in 0..10 {
        rig.fill(owed, all.range(), round).result.unwrap();
        let (outcome, read) = rig.read(reader, lease.range());
        outcome.result.unwrap();
        assert!(read == bytes);
    }
    // What is guaranteed to others is not the image's.
    assert!(report(&rig).unwrap().on_gpus_bytes <= 2 * SHARD);
    drop(all);
    rig.residency.resize_slice(owed, 8 * SHARD, 0).unwrap();
    rig.residency.begin_drain(GpuId(0)).unwrap();
    let empty = || rig.residency.pool().gpus()[0].used_shards == 0;
    assert!(eventually(|| {
        let (outcome, read) = rig.read(reader, lease.range());
        outcome.result.unwrap();
        assert!(read == bytes);
        empty()
    }));
}
