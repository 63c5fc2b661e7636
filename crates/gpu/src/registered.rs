//! The book of registered host memory: which addresses of this process the GPUs know.
//!
//! Drivers refuse a copy whose host side is only partly registered, each in its own words and some of them late, so
//! backends ask here first.

use std::collections::BTreeMap;

/// Where host bytes lie relative to registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pinning {
    /// Wholly inside one registration.
    Registered,
    /// Outside all of them.
    Pageable,
    /// Over the edge of one.
    Mixed,
}

/// Ranges of host addresses, each with the handle of its registration.
#[derive(Debug, Default)]
pub struct RegisteredRanges {
    by_start: BTreeMap<usize, (usize, u64)>,
}

impl RegisteredRanges {
    /// Notes a range; `false`, and nothing is noted, if it is empty or overlaps one that is noted already.
    pub fn insert(&mut self, start: usize, len: usize, handle: u64) -> bool {
        let fits = len > 0 && self.pinning(start, len) == Pinning::Pageable;
        if fits {
            self.by_start.insert(start, (len, handle));
        }
        fits
    }

    /// Forgets the range that starts here.
    pub fn remove(&mut self, start: usize) {
        self.by_start.remove(&start);
    }

    /// The handle of the range that starts here.
    pub fn handle_at(&self, start: usize) -> Option<u64> {
        self.by_start.get(&start).map(|(_, handle)| *handle)
    }

    /// How a run of bytes lies.
    pub fn pinning(&self, start: usize, len: usize) -> Pinning {
        let Some(end) = start.checked_add(len) else { return Pinning::Mixed };
        // The last range that starts before the end is the only one that can hold all the bytes, and if it ends
        // before the first of them so does every other.
        match self.by_start.range(..end).next_back() {
            Some((other, (other_len, _))) if other.saturating_add(*other_len) > start => {
                let inside = *other <= start && end <= other.saturating_add(*other_len);
                if inside { Pinning::Registered } else { Pinning::Mixed }
            }
            _ => Pinning::Pageable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinning_knows_inside_outside_and_edges() {
        let mut ranges = RegisteredRanges::default();
        assert!(ranges.insert(0x1000, 0x1000, 1));
        assert!(ranges.insert(0x2000, 0x1000, 2));
        assert_eq!(ranges.pinning(0x1000, 0x1000), Pinning::Registered);
        assert_eq!(ranges.pinning(0x0f00, 0x100), Pinning::Pageable);
        assert_eq!(ranges.pinning(0x3000, 0x100), Pinning::Pageable);
        assert_eq!(ranges.pinning(0x0f00, 0x101), Pinning::Mixed);
        assert_eq!(ranges.pinning(0x1f00, 0x200), Pinning::Mixed);
        assert_eq!(ranges.pinning(0x2f00, 0x200), Pinning::Mixed);
        assert_eq!(ranges.pinning(usize::MAX, 2), Pinning::Mixed);
    }

    #[test]
    fn insert_overlapping_or_empty_is_refused() {
        let mut ranges = RegisteredRanges::default();
        assert!(ranges.insert(0x1000, 0x1000, 1));
        assert!(!ranges.insert(0x1fff, 2, 2));
        assert!(!ranges.insert(0x800, 0x900, 2));
        assert!(!ranges.insert(0x9000, 0, 2));
        assert_eq!(ranges.handle_at(0x1000), Some(1));
        ranges.remove(0x1000);
        assert!(ranges.insert(0x1fff, 2, 2));
    }
}
