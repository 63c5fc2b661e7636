//! Which blocks of the disk tier's file are free.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) start: u64,
    pub(crate) blocks: u64,
}

/// The free blocks. Room is never lost to its shape: what does not fit in one run is given in several.
#[derive(Debug)]
pub(crate) struct BlockMap {
    free: Mutex<Free>,
    blocks: u64,
}

#[derive(Debug, Default)]
struct Free {
    by_start: BTreeMap<u64, u64>,
    by_len: BTreeSet<(u64, u64)>,
    blocks: u64,
}

/// Blocks in use; free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Blocks {
    map: Arc<BlockMap>,
    extents: Vec<Extent>,
}

impl BlockMap {
    /// This many blocks, all free.
    pub(crate) fn new(blocks: u64) -> Arc<Self> {
        let mut free = Free::default();
        free.insert(Extent { start: 0, blocks });
        Arc::new(Self { free: Mutex::new(free), blocks })
    }

    /// Takes blocks, or says how many are free.
    pub(crate) fn take(self: &Arc<Self>, blocks: u64) -> Result<Blocks, u64> {
        let mut free = self.free();
        if blocks > free.blocks {
            return Err(free.blocks);
        }
        let mut taken = Blocks { map: Arc::clone(self), extents: Vec::new() };
        let mut left = blocks;
        while left > 0 {
            // The smallest run that holds it all, else the largest there is.
            let fitting = free.by_len.range((left, 0)..).next().or_else(|| free.by_len.last()).copied();
            // There are enough free blocks, so there is a run.
            let Some((len, start)) = fitting else { break };
            free.remove(start, len);
            let used = len.min(left);
            taken.extents.push(Extent { start, blocks: used });
            free.insert(Extent { start: start.saturating_add(used), blocks: len.saturating_sub(used) });
            left = left.saturating_sub(used);
        }
        drop(free);
        Ok(taken)
    }

    pub(crate) fn free_blocks(&self) -> u64 {
        self.free().blocks
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Free {
    fn remove(&mut self, start: u64, blocks: u64) {
        self.by_start.remove(&start);
        self.by_len.remove(&(blocks, start));
        self.blocks = self.blocks.saturating_sub(blocks);
    }

    /// Adds a run, joined with its neighbours.
    fn insert(&mut self, extent: Extent) {
        let Extent { mut start, mut blocks } = extent;
        if blocks == 0 {
            return;
        }
        let end = start.saturating_add(blocks);
        if let Some(after) = self.by_start.get(&end).copied() {
            self.remove(end, after);
            blocks = blocks.saturating_add(after);
        }
        let before = self.by_start.range(..start).next_back().map(|(start, blocks)| (*start, *blocks));
        if let Some((before_start, before_blocks)) = before
            && before_start.saturating_add(before_blocks) == start
        {
            self.remove(before_start, before_blocks);
            start = before_start;
            blocks = blocks.saturating_add(before_blocks);
        }
        self.by_start.insert(start, blocks);
        self.by_len.insert((blocks, start));
        self.blocks = self.blocks.saturating_add(blocks);
    }
}

impl Blocks {
    /// The runs, in the order of the bytes in them.
    pub(crate) fn extents(&self) -> &[Extent] {
        &self.extents
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        let mut free = self.map.free();
        self.extents.iter().for_each(|extent| free.insert(*extent));
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "a wrong sum is a failed test")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn take_of_scattered_blocks_gives_several_runs_and_all_of_them() {
        let map = BlockMap::new(10);
        let mut singles: Vec<_> = (0..10).map(|_| map.take(1).unwrap()).collect();
        assert_eq!(map.take(1).unwrap_err(), 0);
        let mut number = 0;
        singles.retain(|_| {
            number += 1;
            number % 2 == 0
        });
        assert_eq!(map.take(6).unwrap_err(), 5);
        assert_eq!(map.take(5).unwrap().extents().len(), 5);
        drop(singles);
        assert_eq!(map.take(10).unwrap().extents(), [Extent { start: 0, blocks: 10 }]);
    }

    proptest! {
        #[test]
        fn blocks_are_never_given_twice_and_never_lost(
            steps in prop::collection::vec((any::<bool>(), 0u64..40, any::<usize>()), 1..200),
        ) {
            let map = BlockMap::new(100);
            let mut held: Vec<Blocks> = Vec::new();
            for (take, blocks, which) in steps {
                let used: u64 = held.iter().flat_map(Blocks::extents).map(|extent| extent.blocks).sum();
                prop_assert_eq!(map.free_blocks(), 100 - used);
                if take {
                    match map.take(blocks) {
                        Ok(taken) => held.push(taken),
                        Err(free) => prop_assert!(blocks > free && free == 100 - used),
                    }
                } else if !held.is_empty() {
                    held.swap_remove(which % held.len());
                }
                let mut seen = [false; 100];
                for extent in held.iter().flat_map(Blocks::extents) {
                    for block in extent.start..extent.start + extent.blocks {
                        prop_assert!(!std::mem::replace(&mut seen[block as usize], true));
                    }
                }
            }
            held.clear();
            prop_assert_eq!(map.take(100).unwrap().extents().len(), 1);
        }
    }
}
