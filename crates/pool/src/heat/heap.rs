//! A binary heap of regions that knows where each of them is.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::Entry;
use crate::RegionIndex;

/// Regions in order of heat. An entry's `slot` is its region's place in the heap it is in, kept here alone.
#[derive(Debug)]
pub(super) struct Heap {
    regions: Vec<RegionIndex>,
    first: First,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    Coldest,
    Hottest,
}

/// A slot to look at, the first in order greatest.
struct Next {
    heat: f64,
    first: First,
    slot: usize,
}

pub(super) fn entry(entries: &[Entry], region: RegionIndex) -> Option<&Entry> {
    entries.get(usize::try_from(region.0).ok()?)
}

impl First {
    /// `Greater` if a heat comes before another.
    fn compare(self, heat: f64, other: f64) -> Ordering {
        match self {
            First::Coldest => other.total_cmp(&heat),
            First::Hottest => heat.total_cmp(&other),
        }
    }
}

impl Heap {
    pub(super) fn coldest_first(regions: usize) -> Self {
        Self { regions: Vec::with_capacity(regions), first: First::Coldest }
    }

    pub(super) fn hottest_first(regions: usize) -> Self {
        Self { regions: Vec::with_capacity(regions), first: First::Hottest }
    }

    pub(super) fn push(&mut self, entries: &mut [Entry], region: RegionIndex) {
        let slot = self.regions.len();
        self.regions.push(region);
        self.note(entries, slot);
        self.rise(entries, slot);
    }

    pub(super) fn remove(&mut self, entries: &mut [Entry], region: RegionIndex) {
        let Some(slot) = self.slot(entries, region) else { return };
        let Some(last) = self.regions.pop() else { return };
        let Some(hole) = self.regions.get_mut(slot) else { return };
        *hole = last;
        self.note(entries, slot);
        self.reorder(entries, last);
    }

    /// Puts a region where it belongs after its heat has changed.
    pub(super) fn reorder(&mut self, entries: &mut [Entry], region: RegionIndex) {
        let Some(slot) = self.slot(entries, region) else { return };
        let slot = self.rise(entries, slot);
        self.sink(entries, slot);
    }

    /// The first region in order that a condition admits.
    pub(super) fn first(
        &self,
        entries: &[Entry],
        mut admits: impl FnMut(RegionIndex) -> bool,
    ) -> Option<RegionIndex> {
        let root = self.regions.first().copied()?;
        if admits(root) {
            return Some(root);
        }
        let mut open = BinaryHeap::new();
        open.extend(self.below(0).filter_map(|slot| self.next(entries, slot)));
        while let Some(Next { slot, .. }) = open.pop() {
            let region = self.regions.get(slot).copied()?;
            if admits(region) {
                return Some(region);
            }
            open.extend(self.below(slot).filter_map(|slot| self.next(entries, slot)));
        }
        None
    }

    fn next(&self, entries: &[Entry], slot: usize) -> Option<Next> {
        Some(Next { heat: self.heat(entries, slot)?, first: self.first, slot })
    }

    fn below(&self, slot: usize) -> impl Iterator<Item = usize> + use<> {
        let left = slot.saturating_mul(2).saturating_add(1);
        [left, left.saturating_add(1)].into_iter()
    }

    fn slot(&self, entries: &[Entry], region: RegionIndex) -> Option<usize> {
        let slot = usize::try_from(entry(entries, region)?.slot).ok()?;
        (self.regions.get(slot) == Some(&region)).then_some(slot)
    }

    fn heat(&self, entries: &[Entry], slot: usize) -> Option<f64> {
        Some(entry(entries, *self.regions.get(slot)?)?.heat)
    }

    /// Whether the region in a slot comes before the one in another.
    fn before(&self, entries: &[Entry], slot: usize, other: usize) -> bool {
        match (self.heat(entries, slot), self.heat(entries, other)) {
            (Some(heat), Some(other)) => self.first.compare(heat, other) == Ordering::Greater,
            _ => false,
        }
    }

    fn rise(&mut self, entries: &mut [Entry], mut slot: usize) -> usize {
        while let Some(above) = slot.checked_sub(1).map(|slot| slot / 2)
            && self.before(entries, slot, above)
        {
            self.swap(entries, slot, above);
            slot = above;
        }
        slot
    }

    fn sink(&mut self, entries: &mut [Entry], mut slot: usize) {
        loop {
            let first = self
                .below(slot)
                .fold(slot, |first, slot| if self.before(entries, slot, first) { slot } else { first });
            if first == slot {
                return;
            }
            self.swap(entries, slot, first);
            slot = first;
        }
    }

    fn swap(&mut self, entries: &mut [Entry], slot: usize, other: usize) {
        self.regions.swap(slot, other);
        self.note(entries, slot);
        self.note(entries, other);
    }

    /// Writes into a region's entry where it is.
    fn note(&self, entries: &mut [Entry], slot: usize) {
        let region = self.regions.get(slot).and_then(|region| usize::try_from(region.0).ok());
        if let Some(entry) = region.and_then(|region| entries.get_mut(region)) {
            entry.slot = u32::try_from(slot).unwrap_or(u32::MAX);
        }
    }
}

impl PartialEq for Next {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Next {}

impl PartialOrd for Next {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Next {
    fn cmp(&self, other: &Self) -> Ordering {
        self.first.compare(self.heat, other.heat).then_with(|| other.slot.cmp(&self.slot))
    }
}
