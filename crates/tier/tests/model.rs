//! All tiers against a plain table of bytes, with faults at random points.
//!
//! `VRAM_LONG=1` makes a million steps of it.

mod support;

use support::{Random, all, bytes, content, memory};
use vram_tier::testing::Faults;
use vram_tier::{Store, Stored, TierError, TierKind};

/// Regions held at once.
const REGIONS: usize = 40;

struct Region {
    store: usize,
    stored: Stored,
    bytes: Vec<u8>,
    /// Whether what is stored may not be what was given.
    damaged: bool,
}

/// What the next call is in for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Armed {
    put: bool,
    damage: bool,
    get: bool,
    remove: bool,
}

fn arm(random: &mut Random, faults: &Faults) -> Armed {
    let mut armed = Armed::default();
    if !random.chance(4) {
        return armed;
    }
    let nth = 1 + random.below(3) as u64;
    match random.below(7) {
        0 => {
            faults.fail_write(nth);
            armed.put = true;
        }
        1 => {
            faults.fill_up(true);
            armed.put = true;
        }
        2 => {
            faults.damage_write(nth);
            armed.damage = true;
        }
        3 => {
            faults.fail_read(nth);
            armed.get = true;
        }
        4 => {
            faults.damage_read(nth);
            armed.get = true;
        }
        5 => {
            faults.cut_read(nth);
            armed.get = true;
        }
        _ => {
            faults.fail_remove(nth);
            armed.remove = true;
        }
    }
    armed
}

fn put(random: &mut Random, store: &dyn Store, number: usize, armed: Armed, regions: &mut Vec<Region>) {
    let len = 1 + random.below(48 << 10);
    let given = content(random, len);
    let from = memory(&given);
    let before = store.meter();
    let result = store.put(&from);
    assert_eq!(bytes(&from), given, "the caller still has the bytes");
    match result {
        Ok(stored) => {
            assert_eq!(stored.len_bytes(), len as u64);
            let whole = stored.uniform().is_some();
            assert!(!whole || store.meter().stored_bytes == before.stored_bytes, "a pattern takes no room");
            let damaged = armed.damage && !whole && store.kind() != TierKind::Host;
            regions.push(Region { store: number, stored, bytes: given, damaged });
        }
        Err(error) => {
            let after = store.meter();
            assert_eq!((after.regions, after.logical_bytes), (before.regions, before.logical_bytes));
            // What a failed put has sent to a server is deleted later.
            assert!(after.stored_bytes == before.stored_bytes || store.kind() == TierKind::Remote);
            match error {
                TierError::Full { .. } => {}
                TierError::Incompressible { .. } => assert_eq!(store.kind(), TierKind::Compressed),
                TierError::NoRoomBelow { .. } | TierError::Io { .. } => assert!(armed.put),
                other => panic!("{other}"),
            }
        }
    }
}

fn get(random: &mut Random, store: &dyn Store, region: &Region, armed: Armed) {
    let len = region.bytes.len();
    let (offset, wanted) = match random.below(3) {
        0 => (0, len),
        _ => {
            let offset = random.below(len);
            (offset, random.below(len - offset + 1))
        }
    };
    let marker = 0xcc;
    let to = memory(&vec![marker; wanted]);
    let result = store.get(&region.stored, offset as u64, &to);
    let (found, was) = (bytes(&to), &region.bytes[offset..offset + wanted]);
    match result {
        Ok(()) => assert!(found == was, "bytes that are not those that were stored"),
        Err(error) => {
            assert!(found.iter().zip(was).all(|(found, was)| *found == marker || found == was));
            match error {
                TierError::Corrupt { offset_bytes, len_bytes, .. } => {
                    assert!(armed.get || region.damaged);
                    let end = offset_bytes + len_bytes;
                    assert!(
                        offset_bytes < (offset + wanted) as u64 && end > offset as u64,
                        "it names its place"
                    );
                }
                TierError::Io { .. } => assert!(armed.get),
                other => panic!("{other}"),
            }
        }
    }
}

fn run(seed: u64, steps: usize) {
    println!("seed {seed}, {steps} steps");
    let dir = tempfile::tempdir().unwrap();
    let stores = all(dir.path());
    let mut random = Random(seed);
    let mut regions: Vec<Region> = Vec::new();
    for _ in 0..steps {
        let choice = random.below(10);
        let new = regions.is_empty() || (choice < 3 && regions.len() < REGIONS);
        let (number, at) = match regions.len() {
            0 => (random.below(stores.len()), 0),
            len => {
                let at = random.below(len);
                (if new { random.below(stores.len()) } else { regions[at].store }, at)
            }
        };
        let (store, faults) = &stores[number];
        let armed = arm(&mut random, faults);
        if new {
            put(&mut random, store.as_ref(), number, armed, &mut regions);
        } else if choice < 8 {
            get(&mut random, store.as_ref(), &regions[at], armed);
        } else if choice == 8 {
            let Region { stored, .. } = regions.swap_remove(at);
            assert!(store.remove(stored).is_ok() || armed.remove);
        } else {
            let (other, _) = &stores[(number + 1) % stores.len()];
            let refused = other.get(&regions[at].stored, 0, &memory(&[0]));
            assert!(matches!(refused, Err(TierError::ForeignHandle { .. })));
            // A dropped handle frees its room as well.
            drop(regions.swap_remove(at));
        }
        faults.clear();
    }
    for Region { store, stored, bytes: was, damaged } in regions {
        let to = memory(&vec![0; was.len()]);
        let result = stores[store].0.get(&stored, 0, &to);
        assert!(damaged || result.is_ok());
        assert!(result.is_err() || bytes(&to) == was);
        stores[store].0.remove(stored).unwrap();
    }
    for (store, _) in &stores {
        store.close().unwrap();
        let meter = store.meter();
        println!("{}: {meter:?}", store.kind());
        assert_eq!((meter.regions, meter.logical_bytes, meter.stored_bytes), (0, 0, 0), "{}", store.kind());
        assert!(meter.puts > 0 && meter.gets > 0 && meter.pattern_chunks + meter.puts > 0);
    }
    drop(stores);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn tiers_do_what_a_table_of_bytes_does() {
    let long = std::env::var_os("VRAM_LONG").is_some_and(|value| value == "1");
    run(1, if long { 1_000_000 } else { 10_000 });
}
