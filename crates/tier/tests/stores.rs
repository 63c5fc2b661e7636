//! Each kind of store: what it holds, refuses, and leaves behind.

mod support;

use std::time::{Duration, Instant};

use support::{
    CHUNK, Random, all, always, bytes, compressed, content, disk_config, host, memory, remote, remote_config,
};
use vram_tier::testing::Faults;
use vram_tier::{
    ChunkedStore, CodecChoice, CodecConfig, CompressedConfig, Damage, DiskConfig, HostConfig, HostStore,
    OpenError, Remedy, RemoteConfig, Store, TierConfig, TierError, TierKind,
};

fn noise(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Random(7).fill(&mut bytes);
    bytes
}

fn get(
    store: &dyn Store,
    stored: &vram_tier::Stored,
    offset: usize,
    len: usize,
) -> Result<Vec<u8>, TierError> {
    let to = memory(&vec![0xcc; len]);
    store.get(stored, offset as u64, &to).map(|()| bytes(&to))
}

#[test]
fn get_of_any_part_gives_the_bytes_that_were_put() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random(3);
    for (store, _) in all(dir.path()) {
        let mut given = content(&mut random, 5 * CHUNK + 100);
        given[..CHUNK].fill(0);
        given[2 * CHUNK..4 * CHUNK].fill(0x11);
        let stored = store.put(&memory(&given)).unwrap();
        for (offset, len) in
            [(0, given.len()), (CHUNK - 1, 2), (2 * CHUNK + 5, CHUNK), (5 * CHUNK, 100), (17, 0)]
        {
            assert!(get(store.as_ref(), &stored, offset, len).unwrap() == given[offset..offset + len]);
        }
        for (offset, len) in [(given.len(), 1), (0, given.len() + 1), (usize::MAX, 1)] {
            let refused = get(store.as_ref(), &stored, offset, len);
            assert!(matches!(refused, Err(TierError::OutOfRange { .. })), "{offset} {len}");
        }
        store.remove(stored).unwrap();
        let meter = store.meter();
        assert_eq!((meter.puts, meter.gets, meter.removes, meter.stored_bytes), (1, 5, 1, 0));
    }
}

#[test]
fn put_of_a_pattern_takes_no_room_and_no_dealings() {
    let dir = tempfile::tempdir().unwrap();
    for (store, faults) in all(dir.path()) {
        for period in [1usize, 2, 4, 8, 16] {
            let given: Vec<u8> = (0..200_000).map(|at| (at % period) as u8).collect();
            let stored = store.put(&memory(&given)).unwrap();
            assert_eq!(store.meter().stored_bytes, 0);
            assert_eq!(stored.uniform().unwrap().is_zero(), period == 1);
            assert!(get(store.as_ref(), &stored, 4097, 999).unwrap() == given[4097..4097 + 999]);
            let runs = stored.pattern_runs();
            assert_eq!((runs.len(), runs[0].len_bytes), (1, 200_000));
        }
        assert!(faults.writes() == 0 || store.kind() == TierKind::Host);
        assert_eq!(store.meter().regions, 0);
    }
}

#[test]
fn put_of_chunks_of_patterns_stores_only_the_others() {
    let store = compressed(None, Faults::new());
    let mut given = vec![0; 8 * CHUNK];
    given[3 * CHUNK..4 * CHUNK].copy_from_slice(&noise(CHUNK));
    let stored = store.put(&memory(&given)).unwrap();
    assert_eq!(store.meter().stored_bytes, CHUNK as u64);
    let runs: Vec<_> = stored.pattern_runs().iter().map(|run| (run.offset_bytes, run.len_bytes)).collect();
    let chunk = CHUNK as u64;
    assert_eq!(runs, [(0, 3 * chunk), (4 * chunk, 4 * chunk)]);
    assert!(get(&store, &stored, 0, given.len()).unwrap() == given);
}

#[test]
fn put_when_full_is_refused_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for (store, _) in all(dir.path()) {
        let meter = store.meter();
        let Some(limit) = meter.limit_bytes else { continue };
        let mut given = noise(40_000);
        // Compresses enough for every tier.
        given.iter_mut().step_by(2).for_each(|byte| *byte = 0);
        let mut held = Vec::new();
        let refused = loop {
            match store.put(&memory(&given)) {
                Ok(stored) => held.push(stored),
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, TierError::Full { .. }), "{refused}");
        assert_eq!(refused.remedy(), Remedy::NextTier);
        let full = store.meter();
        assert!(full.stored_bytes <= limit && full.full == 1);
        assert_eq!(full.regions, held.len() as u64);
        // Room that comes back is used again, at once.
        store.remove(held.remove(0)).unwrap();
        held.push(store.put(&memory(&given)).unwrap());
        for stored in &held {
            assert!(get(store.as_ref(), stored, 0, given.len()).unwrap() == given);
        }
    }
}

#[test]
fn put_of_noise_is_refused_by_compressed_ram_and_kept_raw_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    for (store, _) in all(dir.path()) {
        let given = noise(16 * CHUNK);
        let result = store.put(&memory(&given));
        if store.kind() == TierKind::Compressed {
            let error = result.unwrap_err();
            assert!(matches!(error, TierError::Incompressible { .. }));
            assert_eq!(error.remedy(), Remedy::NextTier);
            assert_eq!(store.meter().stored_bytes, 0);
        } else {
            assert_eq!(get(store.as_ref(), &result.unwrap(), 0, given.len()).unwrap(), given);
        }
    }
}

#[test]
fn get_of_damaged_bytes_names_the_chunk_and_gives_none() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random(5);
    for (store, faults) in all(dir.path()).into_iter().skip(1) {
        let given: Vec<u8> = {
            let mut bytes = content(&mut random, 3 * CHUNK);
            bytes.iter_mut().step_by(2).for_each(|byte| *byte = 5);
            bytes[0] = 1;
            bytes
        };
        faults.damage_write(1);
        let stored = store.put(&memory(&given)).unwrap();
        let to = memory(&vec![0xcc; given.len()]);
        let error = store.get(&stored, 0, &to).unwrap_err();
        let TierError::Corrupt { offset_bytes, len_bytes, .. } = error else { panic!("{error}") };
        assert_eq!((offset_bytes, len_bytes), (0, CHUNK as u64));
        assert!(bytes(&to)[..CHUNK].iter().all(|byte| *byte == 0xcc), "nothing of it is given out");
        assert_eq!(error.remedy(), Remedy::BytesLost);
        // The chunks behind it are well.
        assert!(get(store.as_ref(), &stored, CHUNK, CHUNK).unwrap() == given[CHUNK..2 * CHUNK]);
        store.remove(stored).unwrap();

        let stored = store.put(&memory(&given)).unwrap();
        faults.cut_read(1);
        let error = store.get(&stored, 0, &to).unwrap_err();
        assert!(matches!(error, TierError::Corrupt { damage: Damage::Truncated, .. }));
        assert_eq!(
            get(store.as_ref(), &stored, 0, given.len()).unwrap(),
            given,
            "what passes may be tried again"
        );
        assert_eq!(store.meter().corrupt, 2);
    }
}

#[test]
fn faults_are_values_and_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for (store, faults) in all(dir.path()) {
        let mut given = noise(3 * CHUNK);
        given.iter_mut().step_by(2).for_each(|byte| *byte = 0);
        faults.fail_write(1);
        let error = store.put(&memory(&given)).unwrap_err();
        assert!(matches!(error, TierError::Io { .. }) && error.remedy() == Remedy::Later);
        faults.fill_up(true);
        assert!(matches!(store.put(&memory(&given)), Err(TierError::NoRoomBelow { .. })));
        faults.clear();
        let stored = store.put(&memory(&given)).unwrap();
        faults.fail_read(1);
        assert!(matches!(get(store.as_ref(), &stored, 0, 10), Err(TierError::Io { .. })));
        faults.delay(Duration::from_millis(30));
        let started = Instant::now();
        assert!(get(store.as_ref(), &stored, 0, given.len()).unwrap() == given);
        assert!(started.elapsed() >= Duration::from_millis(30));
        faults.clear();
        faults.fail_remove(1);
        let failed = store.remove(stored).is_err();
        assert_eq!(failed, store.kind() != TierKind::Host);
        assert_eq!(store.meter().stored_bytes, 0);
    }
}

#[test]
fn put_of_no_bytes_or_too_many_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (store, _) in all(dir.path()) {
        let nothing = memory(&[1]).part(0, 0).unwrap();
        assert!(matches!(store.put(&nothing), Err(TierError::BadLength { .. })));
    }
    let store = host(1, Faults::new());
    assert!(matches!(store.put(&memory(&vec![1; (2 << 20) + 1])), Err(TierError::BadLength { .. })));
}

#[test]
fn host_slot_is_filled_and_read_in_place() {
    let store = host(2, Faults::new());
    let given = noise(100_000);
    let slot = store.take().unwrap();
    slot.span().write_from(&given);
    let stored = store.keep(slot, 100_000).unwrap();
    assert_eq!(bytes(&store.span(&stored).unwrap()), given);
    assert!(get(&store, &stored, 50_000, 50_000).unwrap() == given[50_000..]);

    let zeros = store.keep(store.take().unwrap(), 2 << 20).unwrap();
    assert!(zeros.uniform().unwrap().is_zero() && store.span(&zeros).is_none());
    assert_eq!(store.meter().stored_bytes, 2 << 20);

    let other = host(1, Faults::new());
    assert!(other.span(&stored).is_none());
    assert!(matches!(other.keep(store.take().unwrap(), 1), Err(TierError::ForeignHandle { .. })));
    assert!(matches!(other.remove(stored), Err(TierError::ForeignHandle { .. })));
    assert_eq!(store.arena().free_slots(), 2);
}

#[test]
fn disk_holds_what_is_encrypted_and_nothing_has_a_name() {
    let dir = tempfile::tempdir().unwrap();
    let store = ChunkedStore::open(&TierConfig::Disk(disk_config(dir.path(), 1 << 20, true))).unwrap();
    let stored = store.put(&memory(&noise(100_000))).unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    assert!(get(&store, &stored, 0, 100_000).unwrap() == noise(100_000));
    assert_eq!(store.meter().limit_bytes, Some(1 << 20));
}

#[test]
fn disk_without_direct_io_or_with_holes_punched_works_as_well() {
    let dir = tempfile::tempdir().unwrap();
    for (direct, punch_holes) in [(false, false), (true, true), (false, true)] {
        let config = DiskConfig { direct, punch_holes, ..disk_config(dir.path(), 1 << 20, false) };
        let store = ChunkedStore::open(&TierConfig::Disk(config)).unwrap();
        for _ in 0..3 {
            let stored = store.put(&memory(&noise(900_000))).unwrap();
            assert!(get(&store, &stored, 0, 900_000).unwrap() == noise(900_000));
            store.remove(stored).unwrap();
        }
    }
}

#[test]
fn open_where_nothing_can_be_kept_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let open = |config| ChunkedStore::open(&TierConfig::Disk(config)).map(drop).unwrap_err();
    let missing = open(disk_config(&dir.path().join("missing"), 1 << 20, true));
    assert!(matches!(&missing, OpenError::NoFolder { .. }) && missing.to_string().contains("create it"));
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(matches!(open(disk_config(&file, 1 << 20, true)), OpenError::NoFolder { .. }));
    assert!(matches!(
        open(disk_config(std::path::Path::new("/proc"), 1 << 20, true)),
        OpenError::NotWritable { .. }
    ));
    assert!(matches!(open(disk_config(dir.path(), 1 << 60, true)), OpenError::NoRoom { .. }));
    assert!(matches!(open(disk_config(dir.path(), 4095, true)), OpenError::BadConfig { .. }));
    let odd = DiskConfig { chunk_bytes: 5000, ..disk_config(dir.path(), 1 << 20, true) };
    assert!(matches!(open(odd), OpenError::BadConfig { .. }));

    let open = |config| ChunkedStore::open(&TierConfig::Remote(config)).map(drop).unwrap_err();
    for url in ["", "folder", "file://relative", "ftp://host/x", "s3://"] {
        assert!(matches!(open(RemoteConfig::new(url)), OpenError::BadUrl { .. }), "{url}");
    }
    let missing = open(remote_config(&dir.path().join("missing"), None, true));
    assert!(matches!(missing, OpenError::Client { .. }), "{missing}");
    assert!(matches!(
        open(remote_config(&file, None, true)),
        OpenError::Trial { .. } | OpenError::Client { .. }
    ));
    let host = HostConfig { bytes: 1, slot_bytes: 2 << 20, preallocate: true, huge_pages: false };
    assert!(matches!(HostStore::open(&host), Err(OpenError::Arena(_))));
}

#[cfg(not(feature = "s3"))]
#[test]
fn open_of_s3_in_a_build_without_it_says_so() {
    let error = ChunkedStore::open(&TierConfig::Remote(RemoteConfig::new("s3://bucket/prefix"))).map(drop);
    assert!(matches!(error, Err(OpenError::WithoutS3 { .. })));
}

#[test]
fn remote_objects_are_gone_when_removed_dropped_or_closed() {
    let dir = tempfile::tempdir().unwrap();
    let files = || {
        let folders = std::fs::read_dir(dir.path()).unwrap();
        folders.map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap().count()).sum::<usize>()
    };
    let store = remote(dir.path(), Some(300_000), true, Faults::new());
    let stored: Vec<_> = (0..3).map(|_| store.put(&memory(&noise(50_000))).unwrap()).collect();
    assert_eq!(files(), 3);
    let mut stored = stored.into_iter();
    store.remove(stored.next().unwrap()).unwrap();
    assert_eq!(files(), 2);
    drop(stored.next());
    assert_eq!(files(), 2, "dropped handles are seen to later");
    let last = stored.next().unwrap();
    // Room that only dropped regions take is found when it is needed.
    let large = store.put(&memory(&noise(240_000))).unwrap();
    assert_eq!(files(), 2);
    store.close().unwrap();
    assert_eq!(files(), 0);
    let lost = get(&store, &last, 0, 10);
    assert!(matches!(lost, Err(TierError::Corrupt { damage: Damage::Truncated, .. })));
    drop((last, large));
    drop(store);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn remote_bytes_changed_by_somebody_are_never_given_out() {
    let dir = tempfile::tempdir().unwrap();
    for encrypt in [false, true] {
        let store = remote(dir.path(), None, encrypt, Faults::new());
        let given = noise(3 * CHUNK);
        let stored = store.put(&memory(&given)).unwrap();
        let folder = std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
        let file = std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
        let kept = std::fs::read(&file).unwrap();
        assert_eq!(kept == given, !encrypt, "encrypted or not");
        let mut changed = kept.clone();
        changed[CHUNK + 10] ^= 1;
        std::fs::write(&file, &changed).unwrap();
        let error = get(&store, &stored, 0, given.len()).unwrap_err();
        let damage = if encrypt { Damage::Forged } else { Damage::Checksum };
        assert!(matches!(error, TierError::Corrupt { offset_bytes: 4096, damage: is, .. } if is == damage));
        std::fs::write(&file, &kept[..2 * CHUNK]).unwrap();
        let error = get(&store, &stored, 0, given.len()).unwrap_err();
        assert!(matches!(
            error,
            TierError::Corrupt { damage: Damage::Truncated, .. } | TierError::Unreachable { .. }
        ));
        std::fs::write(&file, &kept).unwrap();
        assert!(get(&store, &stored, 0, given.len()).unwrap() == given);
    }
}

#[test]
fn remote_calls_from_inside_a_runtime_do_not_panic() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let store = remote(dir.path(), None, true, Faults::new());
        let stored = store.put(&memory(&noise(1000))).unwrap();
        assert!(get(&store, &stored, 0, 1000).unwrap() == noise(1000));
    });
}

#[test]
fn every_codec_and_none_give_the_bytes_back() {
    let mut random = Random(11);
    for choice in [
        CodecChoice::Auto,
        CodecChoice::None,
        CodecChoice::Only(vram_tier::Codec::Lz4),
        CodecChoice::Only(vram_tier::Codec::Zstd),
        CodecChoice::Only(vram_tier::Codec::Zlib),
    ] {
        let config = CompressedConfig {
            chunk_bytes: CHUNK as u32,
            codec: CodecConfig { choice, ..always() },
            min_ratio: 0.5,
            ..CompressedConfig::new(None)
        };
        let store = ChunkedStore::open(&TierConfig::Compressed(config)).unwrap();
        for _ in 0..20 {
            let given = content(&mut random, 10 * CHUNK + 12);
            let stored = store.put(&memory(&given)).unwrap();
            assert!(get(&store, &stored, 0, given.len()).unwrap() == given, "{choice:?}");
        }
        assert_eq!(store.meter().coded_chunks == 0, choice == CodecChoice::None);
    }
}

#[test]
fn region_that_changes_its_kind_is_coded_as_well_as_its_parts() {
    let planes: Vec<u8> = noise(16 * CHUNK)
        .into_iter()
        .enumerate()
        .map(|(at, byte)| if at % 2 == 1 { 0x3c } else { byte })
        .collect();
    let text: Vec<u8> =
        b"the quick brown fox jumps over the lazy dog, ".iter().copied().cycle().take(16 * CHUNK).collect();
    let parts = [planes, noise(4 * CHUNK), text];
    let stored_bytes = |region: &[u8]| {
        let store = compressed(None, Faults::new());
        let stored = store.put(&memory(region));
        let bytes = store.meter().stored_bytes;
        if let Ok(stored) = stored {
            assert!(get(&store, &stored, 0, region.len()).unwrap() == region);
            bytes
        } else {
            region.len() as u64
        }
    };
    let apart: u64 = parts.iter().map(|part| stored_bytes(part)).sum();
    assert!(stored_bytes(&parts.concat()) <= apart + apart / 20);
}

#[test]
fn stores_are_used_from_many_threads() {
    let dir = tempfile::tempdir().unwrap();
    for (store, _) in all(dir.path()) {
        let store = store.as_ref();
        std::thread::scope(|scope| {
            for seed in 1..4 {
                scope.spawn(move || {
                    let mut random = Random(seed);
                    for _ in 0..20 {
                        let given = content(&mut random, 20_000);
                        if let Ok(stored) = store.put(&memory(&given)) {
                            assert!(get(store, &stored, 0, given.len()).unwrap() == given);
                            store.remove(stored).unwrap();
                        }
                    }
                });
            }
        });
        assert_eq!(store.meter().stored_bytes, 0);
    }
}
