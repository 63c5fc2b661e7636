//! Bytes: in, out, across, and repeated.

use vram_gpu::{DeviceAddress, DeviceRange, GpuError, Pattern};
use vram_guest_memory::HostBuffer;

use crate::rig::{Rig, assert_bad_range, assert_same, bytes_of, noise, span_of};

const OFFSETS: [u64; 6] = [0, 1, 3, 4095, 4096, 65_537];
const LENGTHS: [usize; 9] = [1, 2, 3, 7, 511, 4096, 4097, 65_537, (1 << 20) + 3];

/// Any offset, any length, nothing around it touched.
pub fn copy_in_and_out_keep_every_byte(rig: &Rig) {
    let ground = rig.ground(&[rig.gpu()]);
    let lane = rig.lane(rig.gpu());
    let mut wanted = vec![0u8; usize::try_from(rig.unit()).unwrap()];
    rig.backend().fill(lane.stream, ground.band, Pattern::U8(0)).unwrap();
    for (seed, offset) in OFFSETS.into_iter().enumerate() {
        for len in LENGTHS {
            let bytes = noise((seed * 31 + len) as u64, len);
            lane.write(ground.at(offset), &bytes);
            let start = usize::try_from(offset).unwrap();
            wanted[start..start + len].copy_from_slice(&bytes);
            assert_same(&lane.read(ground.at(offset), len), &bytes, format_args!("{len} bytes at {offset}"));
        }
        assert_same(&lane.read(ground.at(0), wanted.len()), &wanted, "the whole shard");
    }
}

/// Shards side by side on one GPU are one range.
pub fn copy_over_two_shards_of_one_gpu_is_one_copy(rig: &Rig) {
    let ground = rig.ground(&[rig.gpu(), rig.gpu()]);
    let lane = rig.lane(rig.gpu());
    let bytes = noise(3, 300_001);
    let at = ground.at(rig.unit() - 150_000);
    lane.write(at, &bytes);
    assert_same(&lane.read(at, bytes.len()), &bytes, "over the edge");
    let target = ground.at(17);
    rig.backend().copy(lane.stream, target, at, bytes.len() as u64).unwrap();
    assert_same(&lane.read(target, bytes.len()), &bytes, "copied from over the edge");
}

/// What lies on two GPUs is two copies, each on a stream of its GPU.
pub fn copy_over_two_gpus_works_when_split(rig: &Rig) {
    let (first, second) = (rig.gpu(), rig.other_gpu());
    let ground = rig.ground(&[first, second]);
    let (lane, other_lane) = (rig.lane(first), rig.lane(second));
    let bytes = noise(4, 200_003);
    let split = 77_777;
    let at = ground.at(rig.unit() - split as u64);
    lane.write(at, &bytes[..split]);
    other_lane.write(ground.at(rig.unit()), &bytes[split..]);
    let mut found = lane.read(at, split);
    found.extend(other_lane.read(ground.at(rig.unit()), bytes.len() - split));
    assert_same(&found, &bytes, "two halves");
    if first != second {
        assert_bad_range(lane.send(at, &bytes));
    }
}

/// Between GPUs, from either side's stream.
pub fn copy_between_gpus_keeps_every_byte(rig: &Rig) {
    let (first, second) = (rig.gpu(), rig.other_gpu());
    let ground = rig.ground(&[first, second]);
    let (lane, other_lane) = (rig.lane(first), rig.lane(second));
    for (seed, len) in LENGTHS.into_iter().enumerate() {
        let bytes = noise(100 + seed as u64, len);
        let (from, to) = (ground.at(seed as u64), ground.at(rig.unit() + 5));
        lane.write(from, &bytes);
        rig.backend().copy(lane.stream, to, from, len as u64).unwrap();
        lane.finish().unwrap();
        assert_same(&other_lane.read(to, len), &bytes, format_args!("{len} bytes there"));
        let back = ground.at(rig.unit() / 4 + 1);
        rig.backend().copy(other_lane.stream, back, to, len as u64).unwrap();
        other_lane.finish().unwrap();
        assert_same(&lane.read(back, len), &bytes, format_args!("{len} bytes back"));
    }
}

/// A copy between GPUs needs each side's own access only, also from the stream of a third.
pub fn copy_between_gpus_without_peer_access_keeps_every_byte(rig: &Rig) {
    let devices = rig.backend().devices();
    let third = devices[devices.len() / 2].id;
    let (first, second) = (rig.gpu(), rig.other_gpu());
    // `ground` gives each shard's own GPU access and nobody else.
    let ground = rig.ground(&[first, second]);
    let (lane, third_lane, other_lane) = (rig.lane(first), rig.lane(third), rig.lane(second));
    let bytes = noise(5, 1_000_003);
    lane.write(ground.at(9), &bytes);
    rig.backend().copy(third_lane.stream, ground.at(rig.unit()), ground.at(9), bytes.len() as u64).unwrap();
    third_lane.finish().unwrap();
    assert_same(&other_lane.read(ground.at(rig.unit()), bytes.len()), &bytes, "through a third stream");
}

/// Addresses with nothing behind them are errors at once, and no fault later.
pub fn copy_outside_what_is_mapped_is_refused_and_changes_nothing(rig: &Rig) {
    let backend = rig.backend();
    let ground = rig.ground(&[rig.gpu()]);
    let lane = rig.lane(rig.gpu());
    lane.write(ground.at(rig.unit() - 4), b"last");
    let wrong = [
        ground.at(rig.unit() - 4),
        ground.at(rig.unit()),
        DeviceAddress(ground.band.start.0 - 4),
        DeviceAddress(0),
        DeviceAddress(u64::MAX - 2),
        DeviceAddress(u64::MAX),
    ];
    for address in wrong {
        let len_bytes = 8;
        assert_bad_range(lane.send(address, &[1; 8]));
        let buffer = HostBuffer::new(8).unwrap();
        assert_bad_range(backend.copy_out(lane.stream, buffer.span().part(0, 8).unwrap(), address));
        assert_bad_range(backend.copy(lane.stream, address, ground.at(0), len_bytes));
        assert_bad_range(backend.copy(lane.stream, ground.at(0), address, len_bytes));
        let range = DeviceRange { start: address, len_bytes };
        assert_bad_range(backend.fill(lane.stream, range, Pattern::U8(1)));
    }
    let endless = DeviceRange { start: ground.at(0), len_bytes: u64::MAX };
    assert_bad_range(backend.fill(lane.stream, endless, Pattern::U8(1)));
    assert_bad_range(backend.copy(lane.stream, ground.at(0), ground.at(16), u64::MAX));
    lane.finish().unwrap();
    assert_eq!(lane.read(ground.at(rig.unit() - 4), 4), b"last");
}

/// Source and target may touch but not overlap.
pub fn copy_onto_itself_is_refused(rig: &Rig) {
    let backend = rig.backend();
    let ground = rig.ground(&[rig.gpu()]);
    let lane = rig.lane(rig.gpu());
    assert_bad_range(backend.copy(lane.stream, ground.at(0), ground.at(0), 64));
    assert_bad_range(backend.copy(lane.stream, ground.at(63), ground.at(0), 64));
    assert_bad_range(backend.copy(lane.stream, ground.at(0), ground.at(63), 64));
    lane.write(ground.at(0), &noise(6, 64));
    backend.copy(lane.stream, ground.at(64), ground.at(0), 64).unwrap();
    assert_same(&lane.read(ground.at(64), 64), &noise(6, 64), "side by side");
}

/// No bytes, no error, wherever they are said to be.
pub fn copy_of_nothing_does_nothing(rig: &Rig) {
    let backend = rig.backend();
    let ground = rig.ground(&[rig.gpu()]);
    let lane = rig.lane(rig.gpu());
    for address in [ground.at(0), ground.at(rig.unit()), DeviceAddress(0)] {
        let nothing = span_of(&[]);
        backend.copy_in(lane.stream, address, nothing.clone()).unwrap();
        backend.copy_out(lane.stream, nothing, address).unwrap();
        backend.copy(lane.stream, address, ground.at(0), 0).unwrap();
        backend.fill(lane.stream, DeviceRange { start: address, len_bytes: 0 }, Pattern::U32(1)).unwrap();
    }
    lane.finish().unwrap();
}

/// More than a backend may move at once.
pub fn copy_larger_than_a_chunk_is_whole(rig: &Rig) {
    let backend = rig.backend();
    let shard_bytes = (20u64 << 20).next_multiple_of(rig.unit());
    let (first, second) = (rig.gpu(), rig.other_gpu());
    let ground = rig.ground_of(&[first, second], shard_bytes, |home| vec![home]);
    let (lane, other_lane) = (rig.lane(first), rig.lane(second));
    let bytes = noise(7, (19 << 20) + 1);
    lane.write(ground.at(1), &bytes);
    backend.copy(lane.stream, ground.at(shard_bytes + 3), ground.at(1), bytes.len() as u64).unwrap();
    lane.finish().unwrap();
    assert_same(&other_lane.read(ground.at(shard_bytes + 3), bytes.len()), &bytes, "19 MiB and a byte");
}

/// Every pattern in every phase, and not a byte beside it.
pub fn fill_repeats_every_pattern_and_nothing_else(rig: &Rig) {
    let ground = rig.ground(&[rig.gpu()]);
    let lane = rig.lane(rig.gpu());
    let patterns = [
        (Pattern::U8(0x17), vec![0x17]),
        (Pattern::U16(0x2301), vec![0x01, 0x23]),
        (Pattern::U16(0x4444), vec![0x44, 0x44]),
        (Pattern::U32(0x89ab_cdef), vec![0xef, 0xcd, 0xab, 0x89]),
        (Pattern::U32(0), vec![0; 4]),
    ];
    for (pattern, bytes) in patterns {
        let size = pattern.size_bytes();
        for repeats in [1, 3, 1024, 100_001] {
            let mut wanted = noise(repeats, usize::try_from(size * repeats + 64).unwrap());
            lane.write(ground.at(0), &wanted);
            let range = DeviceRange { start: ground.at(32), len_bytes: size * repeats };
            rig.backend().fill(lane.stream, range, pattern).unwrap();
            let end = wanted.len() - 32;
            let repeated = bytes.iter().copied().cycle();
            wanted[32..end].iter_mut().zip(repeated).for_each(|(byte, pattern)| *byte = pattern);
            let what = format!("{pattern:?} {repeats} times");
            assert_same(&lane.read(ground.at(0), wanted.len()), &wanted, what);
        }
    }
}

/// Address and length are multiples of the pattern.
pub fn fill_not_aligned_to_its_pattern_is_refused(rig: &Rig) {
    let ground = rig.ground(&[rig.gpu()]);
    let lane = rig.lane(rig.gpu());
    let sentinel = span_of(&[9; 64]);
    rig.backend().copy_in(lane.stream, ground.at(0), sentinel.clone()).unwrap();
    let cases = [
        (1, 4, Pattern::U16(1)),
        (0, 3, Pattern::U16(1)),
        (2, 8, Pattern::U32(1)),
        (0, 6, Pattern::U32(1)),
        (1, 4, Pattern::U32(1)),
    ];
    for (offset, len_bytes, pattern) in cases {
        let range = DeviceRange { start: ground.at(offset), len_bytes };
        let outcome = rig.backend().fill(lane.stream, range, pattern);
        assert!(matches!(outcome, Err(GpuError::BadRange { .. })), "{pattern:?} at {offset}: {outcome:?}");
    }
    assert_same(&lane.read(ground.at(0), 64), &bytes_of(&sentinel), "untouched");
}
