//! Physical memory: taking, giving back, exporting.

use std::fs::File;
use std::os::fd::AsFd as _;

use vram_gpu::{FreshMemory, GpuError, Pattern, ShardHandle};

use crate::rig::{Rig, assert_bad_handle, assert_same, noise};

/// A full GPU says so, and has room again afterwards.
pub fn create_shard_until_out_of_memory_recovers(rig: &Rig) {
    let (backend, gpu, unit) = (rig.backend(), rig.gpu(), rig.unit());
    let total_bytes = backend.memory(gpu).unwrap().total_bytes;
    // A few dozen shards, whatever the size of the GPU.
    let shard_bytes = (total_bytes / 48).next_multiple_of(unit);
    let mut shards = Vec::new();
    let refusal = loop {
        match backend.create_shard(gpu, shard_bytes) {
            Ok(shard) => shards.push(shard),
            Err(refusal) => break refusal,
        }
        assert!(shards.len() as u64 * shard_bytes <= total_bytes, "more memory than there is");
    };
    assert_eq!(refusal, GpuError::OutOfMemory { gpu, requested_bytes: shard_bytes });
    assert!(!shards.is_empty());
    // Some drivers keep a little back.
    assert!(backend.memory(gpu).unwrap().free_bytes < 2 * shard_bytes);
    for shard in shards {
        backend.release_shard(shard).unwrap();
    }
    let again = backend.create_shard(gpu, shard_bytes).unwrap();
    backend.release_shard(again).unwrap();
}

/// Lengths and GPUs that cannot be are errors.
pub fn create_shard_with_bad_arguments_is_refused(rig: &Rig) {
    let (backend, unit) = (rig.backend(), rig.unit());
    for len_bytes in [0, 1, unit - 1, unit + 1, u64::MAX] {
        assert!(backend.create_shard(rig.gpu(), len_bytes).is_err(), "{len_bytes:#x}");
    }
    let outcome = backend.create_shard(rig.gpu(), !(unit - 1));
    assert!(matches!(outcome, Err(GpuError::OutOfMemory { .. })), "{outcome:?}");
    let gpu = rig.no_gpu();
    assert_eq!(backend.create_shard(gpu, unit).unwrap_err(), GpuError::NoSuchGpu { gpu });
    assert_eq!(backend.memory(gpu).unwrap_err(), GpuError::NoSuchGpu { gpu });
    assert_eq!(backend.create_stream(gpu).unwrap_err(), GpuError::NoSuchGpu { gpu });
}

/// A released shard takes room as long as it is mapped.
pub fn memory_counts_a_shard_until_it_is_released_and_unmapped(rig: &Rig) {
    let (backend, gpu) = (rig.backend(), rig.gpu());
    let len_bytes = rig.unit() * 8;
    let free_bytes = || backend.memory(gpu).unwrap().free_bytes;
    let band = backend.reserve_band(len_bytes, rig.unit()).unwrap();
    let before = free_bytes();
    let shard = backend.create_shard(gpu, len_bytes).unwrap();
    assert!(free_bytes() <= before - len_bytes);
    backend.map(band.start, &shard).unwrap();
    backend.release_shard(shard).unwrap();
    assert!(free_bytes() <= before - len_bytes);
    backend.unmap(band).unwrap();
    assert!(free_bytes() >= before);
    backend.free_band(band).unwrap();
}

/// Zeros where zeros are promised, also in memory that was used before.
pub fn fresh_shard_holds_what_the_backend_says(rig: &Rig) {
    let lane = rig.lane(rig.gpu());
    for _ in 0..2 {
        let ground = rig.ground(&[rig.gpu()]);
        if rig.backend().fresh_memory() == FreshMemory::Zeroed {
            let bytes = lane.read(ground.band.start, 1 << 20);
            assert!(bytes.iter().all(|byte| *byte == 0));
        }
        rig.backend().fill(lane.stream, ground.band, Pattern::U8(0x5a)).unwrap();
        lane.finish().unwrap();
    }
}

/// The bytes behind a descriptor live as long as the descriptor.
pub fn export_outlives_release(rig: &Rig) {
    let (backend, gpu, unit) = (rig.backend(), rig.gpu(), rig.unit());
    let lane = rig.lane(gpu);
    let bytes = noise(1, 100_000);
    let band = backend.reserve_band(unit, unit).unwrap();
    let shard = backend.create_shard(gpu, unit).unwrap();
    backend.map(band.start, &shard).unwrap();
    backend.set_access(band, &[gpu]).unwrap();
    lane.write(band.start, &bytes);
    let export = backend.export_shard(&shard).unwrap();
    backend.unmap(band).unwrap();
    backend.release_shard(shard).unwrap();
    backend.free_band(band).unwrap();

    let shard = backend.import_shard(gpu, unit, export.as_fd()).unwrap();
    drop(export);
    let band = backend.reserve_band(unit, unit).unwrap();
    backend.map(band.start, &shard).unwrap();
    backend.set_access(band, &[gpu]).unwrap();
    assert_same(&lane.read(band.start, bytes.len()), &bytes, "imported bytes");
    backend.unmap(band).unwrap();
    backend.release_shard(shard).unwrap();
    backend.free_band(band).unwrap();
}

/// Import and original are the same memory.
pub fn import_shares_bytes_with_the_original(rig: &Rig) {
    let (backend, gpu, unit) = (rig.backend(), rig.gpu(), rig.unit());
    let lane = rig.lane(gpu);
    let band = backend.reserve_band(unit * 2, unit).unwrap();
    let second = band.start.checked_add(unit).unwrap();
    let original = backend.create_shard(gpu, unit).unwrap();
    let export = backend.export_shard(&original).unwrap();
    let import = backend.import_shard(gpu, unit, export.as_fd()).unwrap();
    backend.map(band.start, &original).unwrap();
    backend.map(second, &import).unwrap();
    backend.set_access(band, &[gpu]).unwrap();
    lane.write(band.start.checked_add(5).unwrap(), b"one way");
    assert_eq!(lane.read(second.checked_add(5).unwrap(), 7), b"one way");
    lane.write(second.checked_add(50).unwrap(), b"the other");
    assert_eq!(lane.read(band.start.checked_add(50).unwrap(), 9), b"the other");
    backend.unmap(band).unwrap();
    backend.release_shard(original).unwrap();
    backend.release_shard(import).unwrap();
    backend.free_band(band).unwrap();
}

/// A descriptor of something else is no shard.
pub fn import_of_something_else_is_refused(rig: &Rig) {
    let null = File::open("/dev/null").unwrap();
    assert!(rig.backend().import_shard(rig.gpu(), rig.unit(), null.as_fd()).is_err());
    assert!(rig.backend().import_shard(rig.no_gpu(), rig.unit(), null.as_fd()).is_err());
    assert!(rig.backend().import_shard(rig.gpu(), 3, null.as_fd()).is_err());
}

/// A handle somebody made up is refused everywhere.
pub fn shard_that_is_not_alive_is_refused(rig: &Rig) {
    let (backend, unit) = (rig.backend(), rig.unit());
    let band = backend.reserve_band(unit, unit).unwrap();
    let made_up = |raw| ShardHandle { gpu: rig.gpu(), len_bytes: unit, raw };
    let stale = {
        let shard = backend.create_shard(rig.gpu(), unit).unwrap();
        let raw = shard.raw;
        backend.release_shard(shard).unwrap();
        raw
    };
    for raw in [0, stale, u64::MAX] {
        assert_bad_handle(backend.map(band.start, &made_up(raw)));
        assert_bad_handle(backend.export_shard(&made_up(raw)));
        assert_bad_handle(backend.release_shard(made_up(raw)));
    }
    assert!(backend.unmap(band).is_err());
    backend.free_band(band).unwrap();
}
