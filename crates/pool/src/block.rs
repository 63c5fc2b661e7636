//! Blocks: what a band is divided into.

use crate::sorted::Entry;

/// Bits of a mark that say what its block is used for; the bits above are the granule the block starts at. A band has
/// at most 2^32 regions of 2^22 granules, so 54 bits are enough for that.
const USE_BITS: u32 = 10;

/// Granules of a band, counted from its start: from `start` up to, not including, `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Run {
    pub(crate) fn granules(self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

/// What the granules of a block are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockUse {
    /// A live allocation. Its length may end before its last granule does: by `unused_bytes`.
    Live { unused_bytes: u8 },
    /// A freed allocation that is not released yet.
    Quarantined { unused_bytes: u8 },
    /// Not to be given out: no memory is behind it, or that is being taken away.
    Closed,
    /// To be given out.
    Free,
    /// Reserved for the pending grant.
    Granted,
}

impl BlockUse {
    /// Whether blocks that touch and are both used for this are one.
    pub(crate) fn merges(self) -> bool {
        match self {
            Self::Live { .. } | Self::Quarantined { .. } => false,
            Self::Closed | Self::Free | Self::Granted => true,
        }
    }

    fn bits(self) -> u16 {
        match self {
            Self::Live { unused_bytes } => u16::from(unused_bytes),
            Self::Quarantined { unused_bytes } => 0x100 | u16::from(unused_bytes),
            Self::Closed => 0x200,
            Self::Free => 0x201,
            Self::Granted => 0x202,
        }
    }

    fn of_bits(bits: u16) -> Self {
        let [high, low] = bits.to_be_bytes();
        match (high, low) {
            (0, unused_bytes) => Self::Live { unused_bytes },
            (1, unused_bytes) => Self::Quarantined { unused_bytes },
            (_, 0) => Self::Closed,
            (_, 1) => Self::Free,
            _ => Self::Granted,
        }
    }
}

/// Granules that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) run: Run,
    pub(crate) used: BlockUse,
}

impl Block {
    /// The block of a mark, which ends where the next one starts.
    pub(crate) fn from_mark(mark: Mark, end: u64) -> Self {
        Self { run: Run { start: mark.start(), end }, used: mark.used() }
    }
}

/// Where a block starts and what it is used for, in one word. It ends where the next one starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark(u64);

impl Mark {
    pub(crate) fn new(start: u64, used: BlockUse) -> Self {
        Self(start << USE_BITS | u64::from(used.bits()))
    }

    pub(crate) fn start(self) -> u64 {
        self.0 >> USE_BITS
    }

    pub(crate) fn used(self) -> BlockUse {
        let bits = self.0 & ((1 << USE_BITS) - 1);
        BlockUse::of_bits(u16::try_from(bits).unwrap_or(u16::MAX))
    }
}

impl Entry for Mark {
    type Key = u64;
    const LEAF: usize = 64;

    fn key(self) -> u64 {
        self.start()
    }
}

/// A free block, as sorted by length and then start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hole(u128);

impl Hole {
    pub(crate) fn new(run: Run) -> Self {
        Self(u128::from(run.granules()) << 64 | u128::from(run.start))
    }

    /// What all holes of a length come after.
    pub(crate) fn first_of(granules: u64) -> Self {
        Self(u128::from(granules) << 64)
    }

    pub(crate) fn run(self) -> Run {
        let [granules, start] = [self.0 >> 64, self.0 & u128::from(u64::MAX)];
        let [granules, start] = [granules, start].map(|half| u64::try_from(half).unwrap_or(u64::MAX));
        Run { start, end: start.saturating_add(granules) }
    }
}

impl Entry for Hole {
    type Key = u128;
    const LEAF: usize = 32;

    fn key(self) -> u128 {
        self.0
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "a test that overflows fails, as it should")]
mod tests {
    use super::*;

    #[test]
    fn mark_of_every_use_keeps_it() {
        let unused = [0, 1, 127, 255];
        let live = unused.map(|unused_bytes| BlockUse::Live { unused_bytes });
        let quarantined = unused.map(|unused_bytes| BlockUse::Quarantined { unused_bytes });
        let others = [BlockUse::Closed, BlockUse::Free, BlockUse::Granted];
        for used in live.into_iter().chain(quarantined).chain(others) {
            for start in [0, 1, (1 << 54) - 1] {
                let mark = Mark::new(start, used);
                assert_eq!((mark.start(), mark.used()), (start, used));
            }
        }
    }

    #[test]
    fn holes_sort_by_length_then_start() {
        let hole = |start, end| Hole::new(Run { start, end });
        assert_eq!(hole(7, 12).run(), Run { start: 7, end: 12 });
        assert!(hole(100, 101).key() < hole(0, 2).key());
        assert!(hole(4, 6).key() < hole(8, 10).key());
        assert!(Hole::first_of(2).key() <= hole(0, 2).key());
        assert!(Hole::first_of(2).key() > hole(u64::from(u32::MAX), u64::from(u32::MAX) + 1).key());
    }
}
