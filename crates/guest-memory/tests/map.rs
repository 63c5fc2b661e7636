//! Guest memory maps: spans over regions, frontend addresses, regions that go away, files that shrink.

use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd};

use vram_guest_memory::{GuestMap, HostSpan, MAX_GUEST_BYTES, MapError, RegionSpec, SpanList, sigbus};

const PAGE: u64 = 4096;

fn memfd(len: u64) -> File {
    // SAFETY: the name is a C string; the result is checked.
    let fd = unsafe { libc::memfd_create(c"guest".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0);
    // SAFETY: just made, owned by nobody else.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.set_len(len).unwrap();
    file
}

fn spec(guest_start: u64, len_bytes: u64, file: &File, file_offset: u64) -> RegionSpec {
    RegionSpec {
        guest_start,
        len_bytes,
        frontend_start: guest_start.wrapping_add(0x5000_0000),
        file: file.try_clone().unwrap(),
        file_offset,
    }
}

/// Two adjacent regions, a hole, a third.
fn three() -> (GuestMap, File) {
    let file = memfd(16 * PAGE);
    let map = GuestMap::new()
        .with_region(spec(0x10000, 4 * PAGE, &file, 0))
        .and_then(|map| map.with_region(spec(0x10000 + 4 * PAGE, 2 * PAGE, &file, 8 * PAGE)))
        .and_then(|map| map.with_region(spec(0x40000, PAGE, &file, 4 * PAGE)))
        .unwrap();
    (map, file)
}

fn list(map: &GuestMap, address: u64, len: u64) -> Option<SpanList> {
    let mut list = SpanList::new();
    map.spans(address, len, |span| list.push(span)).then_some(list)
}

#[test]
fn spans_over_adjacent_regions_are_found_and_holes_are_not_memory() {
    let (map, _file) = three();
    let both = list(&map, 0x10000 + 3 * PAGE, 2 * PAGE).unwrap();
    assert_eq!(both.spans().iter().map(HostSpan::len_bytes).collect::<Vec<_>>(), [4096, 4096]);
    assert_eq!(both.write_from(&[7; 8192]), 8192);
    let mut back = [0; 8192];
    list(&map, 0x10000 + 3 * PAGE, 2 * PAGE).unwrap().read_into(&mut back);
    assert_eq!(back, [7; 8192]);
    for (address, len) in [
        (0x10000 - 1, 1),
        (0x10000 + 6 * PAGE, 1),
        (0x10000 + 5 * PAGE, PAGE + 1),
        (0x40000 + PAGE - 1, 2),
        (u64::MAX, 1),
        (u64::MAX - 5, 100),
        (0x10000, u64::MAX),
    ] {
        assert!(list(&map, address, len).is_none(), "{address:#x}+{len:#x}");
    }
    assert!(list(&map, 0xdead, 0).is_some(), "no bytes are nowhere");
}

#[test]
fn from_frontend_translates_whole_ranges_only() {
    let (map, _file) = three();
    let of = |address, len| map.from_frontend(address, len).map(|at| at.0);
    assert_eq!(of(0x10000 + 0x5000_0000 + 5, 16), Some(0x10005));
    assert_eq!(of(0x10000 + 0x5000_0000 + 4 * PAGE - 8, 16), None, "over the edge of a region");
    assert_eq!(of(0x10000, 1), None);
    assert_eq!(of(u64::MAX, 2), None);
}

#[test]
fn regions_that_make_no_sense_are_refused_and_change_nothing() {
    let (map, file) = three();
    let refused = |spec| map.with_region(spec).err().unwrap();
    assert!(matches!(refused(spec(0x90000, 0, &file, 0)), MapError::BadRegion { .. }));
    assert!(matches!(refused(spec(u64::MAX - PAGE, 2 * PAGE, &file, 0)), MapError::BadRegion { .. }));
    assert!(matches!(refused(spec(0x90000, PAGE, &file, u64::MAX)), MapError::BadRegion { .. }));
    assert!(matches!(refused(spec(0x90000, 32 * PAGE, &file, 0)), MapError::FileTooSmall { .. }));
    assert!(matches!(refused(spec(0x90000, PAGE, &file, 16 * PAGE)), MapError::FileTooSmall { .. }));
    assert!(matches!(refused(spec(0x10000 + PAGE, PAGE, &file, 0)), MapError::Collection { .. }));
    let sparse = memfd(MAX_GUEST_BYTES);
    assert!(matches!(refused(spec(1 << 45, MAX_GUEST_BYTES, &sparse, 0)), MapError::TooLarge));
    assert!(map.without_region(0x10000, PAGE).is_err(), "a part of a region is no region");
    assert_eq!(map.region_count(), 3);
}

#[test]
fn departed_region_is_gone_when_its_last_span_is() {
    let (map, _file) = three();
    let span = list(&map, 0x40000, 16).unwrap();
    let (smaller, departed) = map.without_region(0x40000, PAGE).unwrap();
    drop(map);
    assert!(list(&smaller, 0x40000, 1).is_none());
    assert!(!departed.gone());
    assert_eq!(span.write_from(&[1; 16]), 16, "still mapped");
    drop(span);
    assert!(departed.gone());
}

#[test]
fn file_that_shrinks_reads_as_zeros_and_poisons_its_region() {
    sigbus::install().unwrap();
    let file = memfd(2 * PAGE);
    let map = GuestMap::new().with_region(spec(0, 2 * PAGE, &file, 0)).unwrap();
    let span = list(&map, 0, 2 * PAGE).unwrap();
    span.write_from(&[9; 8192]);
    assert!(!map.poisoned());
    file.set_len(PAGE).unwrap();
    let mut back = [1; 8192];
    span.read_into(&mut back);
    assert_eq!(back[..4096], [9; 4096]);
    assert_eq!(back[4096..], [0; 4096]);
    assert!(map.poisoned() && span.poisoned());
    let (other, _file) = three();
    assert!(!other.poisoned());
}

#[test]
fn region_of_odd_files_and_parts_of_pages_is_refused() {
    let file = memfd(16 * PAGE);
    let refused = |spec| GuestMap::new().with_region(spec).err().unwrap();
    for (start, len, offset) in [(0, PAGE - 1, 0), (0, PAGE + 1, 0), (1, PAGE, 0), (0, PAGE, 1), (0, 1, 0)] {
        let error = refused(spec(start, len, &file, offset));
        assert!(matches!(error, MapError::BadRegion { .. }), "{start} {len} {offset}: {error}");
    }
    let odd = File::open("/proc/version").unwrap();
    assert!(matches!(refused(spec(0, PAGE, &odd, 0)), MapError::NotMemory { .. }));
}

#[test]
fn missing_huge_pages_become_zeros_and_poison() {
    // SAFETY: the name is a C string; the result is checked.
    let fd = unsafe { libc::memfd_create(c"huge".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_HUGETLB) };
    if fd < 0 {
        // A kernel without huge pages.
        return;
    }
    // SAFETY: just made, owned by nobody else.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    let huge = 1 << 30;
    file.set_len(huge).unwrap();
    sigbus::install().unwrap();
    let small = GuestMap::new().with_region(spec(0, PAGE, &file, 0)).err().unwrap();
    assert!(matches!(small, MapError::BadRegion { .. }), "{small}");
    let map = GuestMap::new().with_region(spec(0, huge, &file, 0)).unwrap();
    file.set_len(0).unwrap();
    let mut bytes = [9; 8192];
    assert_eq!(list(&map, huge / 2 + 5000, 8192).unwrap().read_into(&mut bytes), 8192);
    assert_eq!(bytes, [0; 8192]);
    assert!(map.poisoned());
}
