//! Shards in bands, and who may touch them.

use vram_gpu::{DeviceAddress, DeviceRange, GpuError};

use crate::rig::{Rig, assert_bad_range, assert_same, noise};

/// A shard goes only where there is room for it.
pub fn map_in_bad_places_is_refused(rig: &Rig) {
    let (backend, unit) = (rig.backend(), rig.unit());
    let band = backend.reserve_band(unit * 4, unit).unwrap();
    let shard = backend.create_shard(rig.gpu(), unit * 2).unwrap();
    let at = |offset: u64| band.start.checked_add(offset).unwrap();
    backend.map(at(unit), &shard).unwrap();
    for place in [at(0), at(unit), at(unit * 2), at(unit * 3), at(unit * 4), at(1), at(unit - 1)] {
        assert_bad_range(backend.map(place, &shard));
    }
    for place in [DeviceAddress(0), DeviceAddress(u64::MAX), DeviceAddress(!(unit - 1))] {
        assert_bad_range(backend.map(place, &shard));
    }
    backend.unmap(DeviceRange { start: at(unit), len_bytes: unit * 2 }).unwrap();
    backend.map(at(0), &shard).unwrap();
    backend.unmap(DeviceRange { start: at(0), len_bytes: unit * 2 }).unwrap();
    backend.release_shard(shard).unwrap();
    backend.free_band(band).unwrap();
}

/// The mapping holds the memory, not the handle.
pub fn map_of_released_shard_keeps_its_bytes(rig: &Rig) {
    let (backend, gpu, unit) = (rig.backend(), rig.gpu(), rig.unit());
    let lane = rig.lane(gpu);
    let band = backend.reserve_band(unit, unit).unwrap();
    let shard = backend.create_shard(gpu, unit).unwrap();
    backend.map(band.start, &shard).unwrap();
    backend.set_access(band, &[gpu]).unwrap();
    lane.write(band.start, b"held");
    backend.release_shard(shard).unwrap();
    assert_eq!(lane.read(band.start, 4), b"held");
    backend.unmap(band).unwrap();
    backend.free_band(band).unwrap();
}

/// A shard moves between addresses with its bytes.
pub fn map_again_elsewhere_keeps_bytes(rig: &Rig) {
    let (backend, gpu, unit) = (rig.backend(), rig.gpu(), rig.unit());
    let lane = rig.lane(gpu);
    let bytes = noise(2, 70_001);
    let band = backend.reserve_band(unit * 2, unit).unwrap();
    let first = DeviceRange { len_bytes: unit, ..band };
    let second = DeviceRange { start: band.start.checked_add(unit).unwrap(), len_bytes: unit };
    let shard = backend.create_shard(gpu, unit).unwrap();
    backend.map(first.start, &shard).unwrap();
    backend.set_access(first, &[gpu]).unwrap();
    lane.write(first.start, &bytes);
    backend.unmap(first).unwrap();
    backend.map(second.start, &shard).unwrap();
    // Access belonged to the old place.
    assert_bad_range(lane.send(second.start, &bytes));
    backend.set_access(second, &[gpu]).unwrap();
    assert_same(&lane.read(second.start, bytes.len()), &bytes, "moved bytes");
    assert_bad_range(lane.send(first.start, &bytes));
    backend.unmap(second).unwrap();
    backend.release_shard(shard).unwrap();
    backend.free_band(band).unwrap();
}

/// Whole shards, and all of the range mapped.
pub fn unmap_of_anything_but_whole_shards_is_refused(rig: &Rig) {
    let (backend, unit) = (rig.backend(), rig.unit());
    let ground = rig.ground_of(&[rig.gpu(), rig.gpu()], unit * 2, |home| vec![home]);
    let range = |offset: u64, len_bytes: u64| DeviceRange { start: ground.at(offset), len_bytes };
    for wrong in [
        range(0, unit),
        range(unit, unit),
        range(unit, unit * 2),
        range(0, unit * 3),
        range(0, unit * 5),
        range(0, 0),
        range(1, unit * 2),
        range(0, u64::MAX),
    ] {
        assert_bad_range(backend.unmap(wrong));
    }
    let lane = rig.lane(rig.gpu());
    lane.write(ground.at(unit * 2 - 1), b"over the edge");
    assert_eq!(lane.read(ground.at(unit * 2 - 1), 13), b"over the edge");
}

/// Access is given to whole mapped shards and to GPUs there are.
pub fn set_access_with_bad_arguments_is_refused(rig: &Rig) {
    let (backend, gpu, unit) = (rig.backend(), rig.gpu(), rig.unit());
    let ground = rig.ground_of(&[gpu], unit * 2, |home| vec![home]);
    let half = DeviceRange { start: ground.at(0), len_bytes: unit };
    assert_bad_range(backend.set_access(half, &[gpu]));
    assert_bad_range(backend.set_access(DeviceRange { len_bytes: unit * 4, ..half }, &[gpu]));
    assert_bad_range(backend.set_access(DeviceRange { start: DeviceAddress(0), len_bytes: unit }, &[gpu]));
    let nobody = rig.no_gpu();
    assert_eq!(backend.set_access(ground.band, &[gpu, nobody]), Err(GpuError::NoSuchGpu { gpu: nobody }));
    let lane = rig.lane(gpu);
    lane.write(ground.at(3), b"unchanged");
    assert_eq!(lane.read(ground.at(3), 9), b"unchanged");
}

/// Nobody before, these GPUs and no others after.
pub fn set_access_decides_who_may_touch(rig: &Rig) {
    let (backend, gpu, unit) = (rig.backend(), rig.gpu(), rig.unit());
    let lane = rig.lane(gpu);
    let band = backend.reserve_band(unit, unit).unwrap();
    let shard = backend.create_shard(gpu, unit).unwrap();
    backend.map(band.start, &shard).unwrap();
    assert_bad_range(lane.send(band.start, b"too early"));
    backend.set_access(band, &[gpu]).unwrap();
    lane.write(band.start, b"in time");
    backend.set_access(band, &[]).unwrap();
    assert_bad_range(lane.send(band.start, b"too late"));
    backend.set_access(band, &[gpu]).unwrap();
    assert_eq!(lane.read(band.start, 7), b"in time");
    if rig.other_gpu() != gpu {
        let stranger = rig.lane(rig.other_gpu());
        assert_bad_range(stranger.send(band.start, b"not yours"));
    }
    backend.unmap(band).unwrap();
    backend.release_shard(shard).unwrap();
    backend.free_band(band).unwrap();
}
