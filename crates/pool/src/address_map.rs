//! The address map: what each byte of a band is.
//!
//! A band is divided into blocks without gaps, so that a byte is free, granted, live, quarantined or closed, and never
//! two of these. Blocks are kept in order of address as one word each, where they start and what they are; allocations
//! and the holes between them are neighbours in memory, so finding, splitting and merging them costs one search. Free
//! blocks are kept a second time by length, for the best fit.
//!
//! Two free blocks never touch, nor two closed ones: they are one. Outside, addresses are bytes; inside, granules from
//! the start of the band.

use crate::block::{Block, BlockUse, Hole, Mark, Run};
use crate::sorted::{Entry, Place, Sorted};
use crate::span::{GRANULE_BYTES, Span, align_up};

/// How many holes that are long enough but lie badly are tried before only those are considered that fit however they
/// lie. Bounds what an aligned allocation costs in a band full of small holes.
const ALIGNED_CANDIDATES: usize = 1024;

/// The blocks of a band.
#[derive(Debug)]
pub(crate) struct AddressMap {
    band: Span,
    marks: Sorted<Mark>,
    holes: Sorted<Hole>,
    allocations: u64,
    /// The last block granted or quarantined: the next step for it often comes at once. May be out of date.
    recent: Option<Place>,
}

impl AddressMap {
    /// A band in which everything is closed.
    pub(crate) fn new(band: Span) -> Self {
        let mut marks = Sorted::default();
        marks.insert(Mark::new(0, BlockUse::Closed));
        Self { band, marks, holes: Sorted::default(), allocations: 0, recent: None }
    }

    /// Number of live allocations.
    pub(crate) fn allocations(&self) -> u64 {
        self.allocations
    }

    /// Where an allocation fits best: in the shortest hole that takes it, the lowest of several.
    pub(crate) fn best_fit(&self, len_bytes: u64, alignment_bytes: u64) -> Option<Span> {
        let fits = |hole: Hole| {
            let free = self.span(hole.run());
            let placed = Span::new(align_up(free.start, alignment_bytes)?, len_bytes);
            free.contains(placed).then_some(placed)
        };
        let wherever_it_lies = len_bytes.saturating_add(alignment_bytes.saturating_sub(GRANULE_BYTES));
        if let found @ Some(_) = self.holes_from(len_bytes).take(ALIGNED_CANDIDATES).find_map(fits) {
            return found;
        }
        self.holes_from(wherever_it_lies).find_map(fits)
    }

    /// Reserves a span for the pending grant: all of it is free or closed.
    pub(crate) fn grant(&mut self, span: Span) {
        self.assign_each(span, |_| true, BlockUse::Granted);
    }

    /// The pending grant, which this is, becomes a live allocation of so many bytes.
    pub(crate) fn commit(&mut self, granted: Span, len_bytes: u64) {
        let unused_bytes = granted.len_bytes().saturating_sub(len_bytes);
        let unused_bytes = u8::try_from(unused_bytes).unwrap_or(u8::MAX);
        let Some((place, block)) = self.block_starting_at(granted.start) else { return };
        self.marks.replace(place, Mark::new(block.run.start, BlockUse::Live { unused_bytes }));
        self.allocations = self.allocations.saturating_add(1);
    }

    /// A live allocation of so many bytes comes to a span that is closed.
    pub(crate) fn insert(&mut self, span: Span, len_bytes: u64) {
        let unused_bytes = span.len_bytes().saturating_sub(len_bytes);
        let unused_bytes = u8::try_from(unused_bytes).unwrap_or(u8::MAX);
        self.assign_each(span, |_| true, BlockUse::Live { unused_bytes });
        self.allocations = self.allocations.saturating_add(1);
    }

    /// Quarantines the live allocation that starts at an address. Returns its length.
    pub(crate) fn quarantine(&mut self, start: u64) -> Option<u64> {
        let (place, block) = self.block_starting_at(start)?;
        let BlockUse::Live { unused_bytes } = block.used else { return None };
        self.marks.replace(place, Mark::new(block.run.start, BlockUse::Quarantined { unused_bytes }));
        self.recent = Some(place);
        self.allocations = self.allocations.saturating_sub(1);
        Some(self.used_span(block.run, unused_bytes).len_bytes())
    }

    /// Whether exactly these bytes are a quarantined allocation.
    pub(crate) fn is_quarantined(&self, allocation: Span) -> bool {
        self.block_starting_at(allocation.start).is_some_and(|(_, block)| match block.used {
            BlockUse::Quarantined { unused_bytes } => self.used_span(block.run, unused_bytes) == allocation,
            _ => false,
        })
    }

    /// Whatever a span was, it may be given out from now on.
    pub(crate) fn free(&mut self, span: Span) {
        self.assign_each(span, |_| true, BlockUse::Free);
    }

    /// Whatever a span was, it may not be given out from now on.
    pub(crate) fn close(&mut self, span: Span) {
        self.assign_each(span, |_| true, BlockUse::Closed);
    }

    /// What of a window is free may not be given out from now on.
    pub(crate) fn close_free(&mut self, window: Span) {
        self.assign_each(window, |used| used == BlockUse::Free, BlockUse::Closed);
    }

    /// The free block that ends at an address.
    pub(crate) fn free_ending_at(&self, end: u64) -> Option<Span> {
        let before = self.granule(end).checked_sub(1)?;
        self.free_block_at(before).filter(|span| span.end == end)
    }

    /// The free block that starts at an address.
    pub(crate) fn free_starting_at(&self, start: u64) -> Option<Span> {
        self.free_block_at(self.granule(start)).filter(|span| span.start == start)
    }

    /// The live allocation that has a byte at an address.
    pub(crate) fn allocation_at(&self, address: u64) -> Option<Span> {
        let offset_bytes = address.checked_sub(self.band.start)?;
        let (_, block) = self.block_at(offset_bytes / GRANULE_BYTES)?;
        self.live_span(block).filter(|span| address < span.end)
    }

    /// All live allocations in order of address.
    pub(crate) fn live(&self) -> impl Iterator<Item = Span> + '_ {
        self.blocks().filter_map(|block| self.live_span(block))
    }

    /// All blocks in order of address: where they are and what they are.
    pub(crate) fn spans(&self) -> impl Iterator<Item = (Span, BlockUse)> + '_ {
        self.blocks().map(|block| (self.span(block.run), block.used))
    }

    /// Whether both orders hold the same free blocks, and everything that should be one block is.
    pub(crate) fn is_consistent(&self) -> bool {
        let blocks = || self.blocks();
        let apart = |(a, b): (Block, Block)| a.used != b.used || !a.used.merges();
        let mut holes: Vec<_> =
            blocks().filter(|block| block.used == BlockUse::Free).map(|block| Hole::new(block.run)).collect();
        holes.sort_by_key(|hole| hole.run().start);
        holes.sort_by_key(|hole| hole.run().granules());
        let live = blocks().filter(|block| matches!(block.used, BlockUse::Live { .. })).count();
        self.marks.is_consistent()
            && self.holes.is_consistent()
            && self.marks.iter().next().is_some_and(|mark| mark.start() == 0)
            && blocks().zip(blocks().skip(1)).all(apart)
            && self.holes.iter().eq(holes)
            && u64::try_from(live) == Ok(self.allocations)
    }

    /// Makes what of a span is used for certain things, of however many blocks it is, a block used for something else.
    fn assign_each(&mut self, span: Span, certain: impl Fn(BlockUse) -> bool, to: BlockUse) {
        let run = self.run(span);
        let mut from = run.start;
        while from < run.end {
            let Some((place, block)) = self.block_at(from) else { return };
            let end = block.run.end.min(run.end);
            if block.used != to && certain(block.used) {
                self.assign(place, block, Run { start: from, end }, to);
            }
            from = end;
        }
    }

    /// Makes a part of a block, or all of it, a block used for something else, and one with its neighbours as far as
    /// they merge.
    fn assign(&mut self, place: Place, block: Block, part: Run, to: BlockUse) {
        let merging = |neighbour: &Block| to.merges() && neighbour.used == to;
        let starts_inside = block.run.start < part.start;
        let ends_inside = part.end < block.run.end;
        let before = if starts_inside { None } else { self.block_before(place, block) };
        let after = if ends_inside { None } else { self.block_after(place) };
        let change = Change { block, part, to, before: before.filter(merging), after: after.filter(merging) };
        self.change_holes(&change);
        self.change_marks(place, &change);
    }

    fn change_holes(&mut self, change: &Change) {
        if change.block.used == BlockUse::Free {
            self.holes.remove_key(Hole::new(change.block.run).key());
            for rest in change.rests().into_iter().flatten() {
                self.holes.insert(Hole::new(rest));
            }
        }
        if change.to == BlockUse::Free {
            for neighbour in [change.before, change.after].into_iter().flatten() {
                self.holes.remove_key(Hole::new(neighbour.run).key());
            }
            self.holes.insert(Hole::new(change.whole()));
        }
    }

    fn change_marks(&mut self, place: Place, change: &Change) {
        let &Change { block, part, to, before, after } = change;
        let [rest_before, rest_after] = change.rests();
        if rest_before.is_none() && before.is_none() {
            self.marks.replace(place, Mark::new(part.start, to));
            self.recent = Some(place);
        }
        // From here on `place` is good for one addition or removal.
        if let Some(rest) = rest_after {
            self.marks.insert_after(place, Mark::new(rest.start, block.used));
        } else if after.is_some()
            && let Some(next) = self.marks.after(place)
        {
            self.marks.remove(next);
        } else if before.is_some() {
            self.marks.remove(place);
            return;
        }
        if rest_before.is_some() {
            self.marks.insert(Mark::new(part.start, to));
        } else if before.is_some() {
            self.marks.remove_key(part.start);
        }
    }

    /// Holes that are at least so long, shortest first, lowest first of those.
    fn holes_from(&self, len_bytes: u64) -> impl Iterator<Item = Hole> + '_ {
        let shortest = Hole::first_of(len_bytes.div_ceil(GRANULE_BYTES));
        self.holes.iter_from(self.holes.first_from(shortest.key()))
    }

    fn blocks(&self) -> impl Iterator<Item = Block> + '_ {
        let ends = self.marks.iter().skip(1).map(Mark::start).chain([self.granule(self.band.end)]);
        self.marks.iter().zip(ends).map(|(mark, end)| Block::from_mark(mark, end))
    }

    /// The block that has a granule.
    fn block_at(&self, granule: u64) -> Option<(Place, Block)> {
        let starts_there = |&place: &Place| self.marks.get(place).is_some_and(|mark| mark.start() == granule);
        let place = match self.recent.filter(starts_there) {
            Some(place) => place,
            None => self.marks.last_up_to(granule)?,
        };
        let block = self.block(place)?;
        (granule < block.run.end).then_some((place, block))
    }

    fn block_starting_at(&self, address: u64) -> Option<(Place, Block)> {
        let offset_bytes = address.checked_sub(self.band.start)?;
        let found = self.block_at(offset_bytes / GRANULE_BYTES)?;
        (self.span(found.1.run).start == address).then_some(found)
    }

    fn block_before(&self, place: Place, block: Block) -> Option<Block> {
        let mark = self.marks.get(self.marks.before(place)?)?;
        Some(Block::from_mark(mark, block.run.start))
    }

    fn block_after(&self, place: Place) -> Option<Block> {
        self.block(self.marks.after(place)?)
    }

    fn block(&self, place: Place) -> Option<Block> {
        let mark = self.marks.get(place)?;
        let next = self.marks.after(place).and_then(|next| self.marks.get(next));
        Some(Block::from_mark(mark, next.map_or(self.granule(self.band.end), Mark::start)))
    }

    fn free_block_at(&self, granule: u64) -> Option<Span> {
        let (_, block) = self.block_at(granule)?;
        (block.used == BlockUse::Free).then(|| self.span(block.run))
    }

    fn live_span(&self, block: Block) -> Option<Span> {
        match block.used {
            BlockUse::Live { unused_bytes } => Some(self.used_span(block.run, unused_bytes)),
            _ => None,
        }
    }

    /// The bytes of an allocation, without those of its last granule that it does not use.
    fn used_span(&self, run: Run, unused_bytes: u8) -> Span {
        let Span { start, end } = self.span(run);
        Span { start, end: end.saturating_sub(u64::from(unused_bytes)) }
    }

    fn granule(&self, address: u64) -> u64 {
        address.saturating_sub(self.band.start) / GRANULE_BYTES
    }

    /// The granules of a span that starts and ends with one.
    fn run(&self, span: Span) -> Run {
        Run { start: self.granule(span.start), end: self.granule(span.end) }
    }

    fn span(&self, run: Run) -> Span {
        let address = |granule: u64| self.band.start.saturating_add(granule.saturating_mul(GRANULE_BYTES));
        Span { start: address(run.start), end: address(run.end) }
    }
}

/// A part of a block, or all of it, that becomes something else.
struct Change {
    block: Block,
    part: Run,
    to: BlockUse,
    /// The block before, if the part becomes one with it.
    before: Option<Block>,
    /// The block after, likewise.
    after: Option<Block>,
}

impl Change {
    /// What stays of the block, before and after the part.
    fn rests(&self) -> [Option<Run>; 2] {
        let before = Run { start: self.block.run.start, end: self.part.start };
        let after = Run { start: self.part.end, end: self.block.run.end };
        [before, after].map(|rest| (rest.granules() > 0).then_some(rest))
    }

    /// The part and what it becomes one with.
    fn whole(&self) -> Run {
        Run {
            start: self.before.map_or(self.part.start, |before| before.run.start),
            end: self.after.map_or(self.part.end, |after| after.run.end),
        }
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "a test that overflows fails, as it should")]
mod tests;
