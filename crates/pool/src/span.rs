//! Spans: half-open runs of device addresses, as the books keep them.

use vram_gpu::{DeviceAddress, DeviceRange};

/// The addresses from `start` up to, not including, `end`. Never runs backwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Span {
    /// `len_bytes` from `start` on, cut off at the end of the address space.
    pub(crate) fn new(start: u64, len_bytes: u64) -> Self {
        Self { start, end: start.saturating_add(len_bytes) }
    }

    /// The addresses of a range.
    pub(crate) fn of(range: DeviceRange) -> Self {
        Self::new(range.start.0, range.len_bytes)
    }

    /// From an allocation's first address to the end of the granule its last byte is in.
    pub(crate) fn reserved_by(range: DeviceRange) -> Self {
        Self::new(range.start.0, round_up_to_granule(range.len_bytes).unwrap_or(range.len_bytes))
    }

    pub(crate) fn len_bytes(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    pub(crate) fn is_empty(self) -> bool {
        self.start >= self.end
    }

    pub(crate) fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// What both have in common; empty if nothing.
    pub(crate) fn intersection(self, other: Self) -> Self {
        let start = self.start.max(other.start);
        Self { start, end: self.end.min(other.end).max(start) }
    }

    /// What of `self` lies before and after `inner`, which it contains; either may be empty.
    pub(crate) fn around(self, inner: Self) -> [Self; 2] {
        [Self { start: self.start, end: inner.start }, Self { start: inner.end, end: self.end }]
    }

    pub(crate) fn range(self) -> DeviceRange {
        DeviceRange { start: DeviceAddress(self.start), len_bytes: self.len_bytes() }
    }
}

/// Bytes in which all memory is counted and aligned.
pub(crate) const GRANULE_BYTES: u64 = 256;

/// A length in whole granules, unless that overflows.
pub(crate) fn round_up_to_granule(len_bytes: u64) -> Option<u64> {
    len_bytes.checked_next_multiple_of(GRANULE_BYTES)
}

/// The first multiple of `alignment_bytes`, a power of two, at or after an address.
pub(crate) fn align_up(address: u64, alignment_bytes: u64) -> Option<u64> {
    address.checked_next_multiple_of(alignment_bytes)
}

/// The last multiple of `alignment_bytes`, a power of two, at or before an address.
pub(crate) fn align_down(address: u64, alignment_bytes: u64) -> u64 {
    address & !alignment_bytes.saturating_sub(1)
}
