//! Reserved address ranges.

use vram_gpu::{DeviceAddress, DeviceRange, GpuError};

use crate::rig::{Rig, assert_bad_range};

/// Bands lie where asked and apart from each other.
pub fn reserve_band_is_aligned_and_apart_from_others(rig: &Rig) {
    let (backend, unit) = (rig.backend(), rig.unit());
    let mut bands: Vec<DeviceRange> = Vec::new();
    for alignment in [1, unit, 64 << 20, 1 << 30] {
        let band = backend.reserve_band(unit * 3, alignment).unwrap();
        assert_eq!(band.len_bytes, unit * 3);
        assert_eq!(band.start.0 % alignment.max(unit), 0, "{band} for {alignment:#x}");
        assert!(
            bands
                .iter()
                .all(|other| other.end().unwrap() <= band.start || band.end().unwrap() <= other.start)
        );
        bands.push(band);
    }
    for band in bands {
        backend.free_band(band).unwrap();
    }
}

/// Lengths and alignments that cannot be are errors.
pub fn reserve_band_with_bad_arguments_is_refused(rig: &Rig) {
    let (backend, unit) = (rig.backend(), rig.unit());
    for (len_bytes, alignment) in [(0, unit), (1, unit), (unit + 1, unit), (unit, 3), (unit, 0)] {
        assert_bad_range(backend.reserve_band(len_bytes, alignment));
    }
    for len_bytes in [!(unit - 1), 1 << 62] {
        let outcome = backend.reserve_band(len_bytes, unit);
        assert!(matches!(outcome, Err(GpuError::OutOfAddressSpace { .. })), "{outcome:?}");
    }
    assert!(backend.reserve_band(unit, 1 << 63).is_err());
}

/// A band can be had again where it was, unless somebody is there.
pub fn reserve_band_at_gives_the_same_addresses_again(rig: &Rig) {
    let (backend, unit) = (rig.backend(), rig.unit());
    let band = backend.reserve_band(unit * 4, unit).unwrap();
    let taken = backend.reserve_band_at(band);
    assert!(matches!(taken, Err(GpuError::OutOfAddressSpace { .. })), "{taken:?}");
    backend.free_band(band).unwrap();
    backend.reserve_band_at(band).unwrap();
    let shard = backend.create_shard(rig.gpu(), unit).unwrap();
    backend.map(band.start, &shard).unwrap();
    backend.unmap(DeviceRange { len_bytes: unit, ..band }).unwrap();
    backend.release_shard(shard).unwrap();
    backend.free_band(band).unwrap();
    assert_bad_range(backend.reserve_band_at(DeviceRange { start: DeviceAddress(1), len_bytes: unit }));
    assert_bad_range(backend.reserve_band_at(DeviceRange { len_bytes: 0, ..band }));
}

/// A band in use stays in use.
pub fn free_band_while_mapped_is_refused_and_changes_nothing(rig: &Rig) {
    let ground = rig.ground(&[rig.gpu()]);
    let lane = rig.lane(rig.gpu());
    lane.write(ground.at(7), b"still here");
    assert_bad_range(rig.backend().free_band(ground.band));
    assert_eq!(lane.read(ground.at(7), 10), b"still here");
}

/// Only what was reserved can be freed, once.
pub fn free_band_that_is_none_is_refused(rig: &Rig) {
    let (backend, unit) = (rig.backend(), rig.unit());
    let band = backend.reserve_band(unit * 4, unit).unwrap();
    let inner = DeviceRange { start: band.start.checked_add(unit).unwrap(), len_bytes: unit };
    for wrong in [
        inner,
        DeviceRange { len_bytes: unit, ..band },
        DeviceRange { len_bytes: unit * 5, ..band },
        DeviceRange { len_bytes: 0, ..band },
        DeviceRange { start: DeviceAddress(0), len_bytes: unit },
        DeviceRange { start: DeviceAddress(u64::MAX), len_bytes: u64::MAX },
    ] {
        assert_bad_range(backend.free_band(wrong));
    }
    backend.free_band(band).unwrap();
    assert_bad_range(backend.free_band(band));
}
