//! The free map: free bytes behind which there is memory.
//!
//! Free spans are kept as long as they can be: two that touch are one. They are found by length for the best fit and by
//! address for merging; the address key is a span's *end*, so that an allocation cut from the front of a span, the common
//! case, changes a value in place and no key.

use std::collections::{BTreeMap, BTreeSet};

use crate::span::{GRANULE_BYTES, Span, align_up};

/// How many spans that are long enough but lie badly are tried before only those are considered that fit however they
/// lie. Bounds what an aligned allocation costs in a band full of small holes.
const ALIGNED_CANDIDATES: usize = 1024;

/// Free spans by address and by length.
#[derive(Debug, Default)]
pub(crate) struct FreeMap {
    /// End to start.
    by_end: BTreeMap<u64, u64>,
    /// Length and start.
    by_length: BTreeSet<(u64, u64)>,
}

impl FreeMap {
    /// Adds a span of which nothing is in the map.
    pub(crate) fn insert(&mut self, span: Span) {
        if span.is_empty() {
            return;
        }
        let mut merged = span;
        if let Some(start) = self.by_end.remove(&span.start) {
            self.by_length.remove(&key(Span { start, end: span.start }));
            merged.start = start;
        }
        match self.by_end.range_mut(span.end..).next() {
            Some((&end, start)) if *start == span.end => {
                self.by_length.remove(&key(Span { start: span.end, end }));
                *start = merged.start;
                merged.end = end;
            }
            _ => {
                self.by_end.insert(merged.end, merged.start);
            }
        }
        self.by_length.insert(key(merged));
    }

    /// Takes a span out that is wholly in the map.
    pub(crate) fn remove(&mut self, span: Span) {
        let Some((&end, start)) = self.by_end.range_mut(span.end..).next() else { return };
        let whole = Span { start: *start, end };
        if span.is_empty() || !whole.contains(span) {
            return;
        }
        let [before, after] = whole.around(span);
        if after.is_empty() {
            self.by_end.remove(&end);
        } else {
            *start = after.start;
            self.by_length.insert(key(after));
        }
        if !before.is_empty() {
            self.by_end.insert(before.end, before.start);
            self.by_length.insert(key(before));
        }
        self.by_length.remove(&key(whole));
    }

    /// Takes out whatever of the map lies in a window.
    pub(crate) fn remove_within(&mut self, window: Span) {
        let mut from = window.start;
        while let Some(next) = self.first_ending_after(from) {
            let part = next.intersection(window);
            if part.is_empty() {
                return;
            }
            self.remove(part);
            from = part.end;
        }
    }

    /// Where an allocation fits best: in the shortest span that takes it, the lowest of several.
    pub(crate) fn best_fit(&self, len_bytes: u64, alignment_bytes: u64) -> Option<Span> {
        let fits = |&(free_bytes, start): &(u64, u64)| {
            let placed = Span::new(align_up(start, alignment_bytes)?, len_bytes);
            Span::new(start, free_bytes).contains(placed).then_some(placed)
        };
        let wherever_it_lies = len_bytes.saturating_add(alignment_bytes.saturating_sub(GRANULE_BYTES));
        if let found @ Some(_) =
            self.by_length.range((len_bytes, 0)..).take(ALIGNED_CANDIDATES).find_map(fits)
        {
            return found;
        }
        self.by_length.range((wherever_it_lies, 0)..).find_map(fits)
    }

    /// The free span that ends at an address.
    pub(crate) fn ending_at(&self, end: u64) -> Option<Span> {
        self.by_end.get(&end).map(|&start| Span { start, end })
    }

    /// The free span that starts at an address.
    pub(crate) fn starting_at(&self, start: u64) -> Option<Span> {
        self.first_ending_after(start).filter(|span| span.start == start)
    }

    /// All spans in order of address.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Span> + '_ {
        self.by_end.iter().map(|(&end, &start)| Span { start, end })
    }

    /// Whether both orders hold the same spans.
    pub(crate) fn is_consistent(&self) -> bool {
        self.by_end.len() == self.by_length.len()
            && self.iter().all(|span| self.by_length.contains(&key(span)))
    }

    fn first_ending_after(&self, address: u64) -> Option<Span> {
        let (&end, &start) = self.by_end.range(address.checked_add(1)?..).next()?;
        Some(Span { start, end })
    }
}

fn key(span: Span) -> (u64, u64) {
    (span.len_bytes(), span.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(spans: &[(u64, u64)]) -> FreeMap {
        let mut map = FreeMap::default();
        for &(start, end) in spans {
            map.insert(Span { start, end });
        }
        map
    }

    fn spans(map: &FreeMap) -> Vec<(u64, u64)> {
        assert!(map.is_consistent());
        map.iter().map(|span| (span.start, span.end)).collect()
    }

    #[test]
    fn insert_between_two_neighbours_leaves_one_span() {
        let map = map(&[(0, 256), (512, 768), (256, 512)]);
        assert_eq!(spans(&map), [(0, 768)]);
    }

    #[test]
    fn insert_after_a_neighbour_extends_it() {
        assert_eq!(spans(&map(&[(0, 256), (256, 512)])), [(0, 512)]);
    }

    #[test]
    fn insert_before_a_neighbour_extends_it() {
        assert_eq!(spans(&map(&[(256, 512), (0, 256)])), [(0, 512)]);
    }

    #[test]
    fn insert_apart_stays_apart() {
        assert_eq!(spans(&map(&[(0, 256), (512, 768)])), [(0, 256), (512, 768)]);
    }

    #[test]
    fn remove_from_the_middle_leaves_both_sides() {
        let mut map = map(&[(0, 1024)]);
        map.remove(Span { start: 256, end: 512 });
        assert_eq!(spans(&map), [(0, 256), (512, 1024)]);
    }

    #[test]
    fn remove_of_all_leaves_nothing() {
        let mut map = map(&[(256, 1024)]);
        map.remove(Span { start: 256, end: 1024 });
        assert_eq!(spans(&map), []);
    }

    #[test]
    fn remove_within_clips_all_spans_of_the_window() {
        let mut map = map(&[(0, 512), (768, 1024), (1280, 2048)]);
        map.remove_within(Span { start: 256, end: 1536 });
        assert_eq!(spans(&map), [(0, 256), (1536, 2048)]);
    }

    #[test]
    fn best_fit_of_equal_lengths_takes_the_lowest() {
        let map = map(&[(0, 1024), (4096, 4608), (2048, 2560)]);
        assert_eq!(map.best_fit(512, 256), Some(Span::new(2048, 512)));
    }

    #[test]
    fn best_fit_skips_spans_that_lie_badly() {
        let map = map(&[(256, 768), (4352, 5376)]);
        assert_eq!(map.best_fit(512, 512), Some(Span::new(4608, 512)));
    }

    #[test]
    fn best_fit_looks_past_many_badly_lying_spans() {
        let mut map = FreeMap::default();
        for hole in 0..2000 {
            map.insert(Span::new(hole * 4096 + 256, 512));
        }
        map.insert(Span::new(1 << 30, 768));
        assert_eq!(map.best_fit(512, 512), Some(Span::new(1 << 30, 512)));
    }

    #[test]
    fn best_fit_of_too_much_finds_nothing() {
        assert_eq!(map(&[(0, 512)]).best_fit(768, 256), None);
    }
}
