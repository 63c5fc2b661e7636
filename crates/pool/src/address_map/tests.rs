use proptest::prelude::*;

use super::*;

const BASE: u64 = 6 << 20;
/// Granules of the band in the tests against the model.
const GRANULES: u64 = 96;

fn span(start: u64, end: u64) -> Span {
    Span { start: BASE + start, end: BASE + end }
}

/// A band with these spans free, all others closed.
fn map(free: &[(u64, u64)]) -> AddressMap {
    let mut map = AddressMap::new(Span::new(BASE, 1 << 40));
    free.iter().for_each(|&(start, end)| map.free(span(start, end)));
    map
}

fn free_spans(map: &AddressMap) -> Vec<(u64, u64)> {
    assert!(map.is_consistent());
    let free = map.spans().filter(|(_, used)| *used == BlockUse::Free);
    free.map(|(span, _)| (span.start - BASE, span.end - BASE)).collect()
}

#[test]
fn free_between_two_neighbours_leaves_one_block() {
    assert_eq!(free_spans(&map(&[(0, 256), (512, 768), (256, 512)])), [(0, 768)]);
}

#[test]
fn free_after_a_neighbour_extends_it() {
    assert_eq!(free_spans(&map(&[(0, 256), (256, 512)])), [(0, 512)]);
}

#[test]
fn free_before_a_neighbour_extends_it() {
    assert_eq!(free_spans(&map(&[(256, 512), (0, 256)])), [(0, 512)]);
}

#[test]
fn free_apart_stays_apart() {
    assert_eq!(free_spans(&map(&[(0, 256), (512, 768)])), [(0, 256), (512, 768)]);
}

#[test]
fn grant_from_the_middle_leaves_both_sides() {
    let mut map = map(&[(0, 1024)]);
    map.grant(span(256, 512));
    assert_eq!(free_spans(&map), [(0, 256), (512, 1024)]);
}

#[test]
fn grant_of_all_leaves_nothing() {
    let mut map = map(&[(256, 1024)]);
    map.grant(span(256, 1024));
    assert_eq!(free_spans(&map), []);
}

#[test]
fn grant_over_free_and_closed_blocks_is_one_block() {
    let mut map = map(&[(0, 512), (1024, 2048)]);
    map.grant(span(256, 1280));
    assert_eq!(free_spans(&map), [(0, 256), (1280, 2048)]);
    let granted = map.spans().filter(|(_, used)| *used == BlockUse::Granted).map(|(span, _)| span);
    assert!(granted.eq([span(256, 1280)]));
}

#[test]
fn close_free_clips_all_blocks_of_the_window() {
    let mut map = map(&[(0, 512), (768, 1024), (1280, 2048)]);
    map.close_free(span(256, 1536));
    assert_eq!(free_spans(&map), [(0, 256), (1536, 2048)]);
}

#[test]
fn quarantine_at_an_inner_address_is_refused() {
    let mut map = map(&[(0, 4096)]);
    map.grant(span(0, 1024));
    map.commit(span(0, 1024), 800);
    assert_eq!(map.quarantine(BASE + 256), None);
    assert_eq!(map.quarantine(BASE + 1), None);
    assert_eq!(map.quarantine(BASE - 256), None);
    assert_eq!(map.quarantine(BASE), Some(800));
    assert_eq!(map.quarantine(BASE), None);
    assert!(map.is_quarantined(span(0, 800)) && !map.is_quarantined(span(0, 1024)));
}

#[test]
fn best_fit_of_equal_lengths_takes_the_lowest() {
    let map = map(&[(0, 1024), (4096, 4608), (2048, 2560)]);
    assert_eq!(map.best_fit(512, 256), Some(span(2048, 2560)));
}

#[test]
fn best_fit_skips_holes_that_lie_badly() {
    let map = map(&[(256, 768), (4352, 5376)]);
    assert_eq!(map.best_fit(512, 512), Some(span(4608, 5120)));
}

#[test]
fn best_fit_looks_past_many_badly_lying_holes() {
    let mut map = AddressMap::new(Span::new(BASE, 1 << 40));
    for hole in 0..2000 {
        map.free(span(hole * 4096 + 256, hole * 4096 + 768));
    }
    map.free(span(1 << 30, (1 << 30) + 768));
    assert_eq!(map.best_fit(512, 512), Some(span(1 << 30, (1 << 30) + 512)));
}

#[test]
fn best_fit_of_too_much_finds_nothing() {
    assert_eq!(map(&[(0, 512)]).best_fit(768, 256), None);
}

/// The plainest address map: what each granule is, and for allocations which and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    Closed,
    Free,
    Granted,
    Live { start: u64, len_bytes: u64 },
    Quarantined { start: u64, len_bytes: u64 },
}

impl Cell {
    fn is_open(self) -> bool {
        matches!(self, Self::Closed | Self::Free)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Free { start: u64, granules: u64 },
    CloseFree { start: u64, granules: u64 },
    BestFit { granules: u64, alignment_bytes: u64, trim: u64 },
    Grant { start: u64, granules: u64, trim: u64, commit: bool },
    Quarantine { nth: usize },
    Release { nth: usize, closed_from: u64 },
}

struct Model {
    map: AddressMap,
    cells: Vec<Cell>,
}

impl Model {
    fn new() -> Self {
        let map = AddressMap::new(Span::new(BASE, GRANULES * GRANULE_BYTES));
        Self { map, cells: vec![Cell::Closed; GRANULES as usize] }
    }

    /// A run of granules as far as the band reaches.
    fn clip(start: u64, granules: u64) -> (std::ops::Range<usize>, Span) {
        let end = (start + granules).min(GRANULES);
        (start as usize..end as usize, span(start * GRANULE_BYTES, end * GRANULE_BYTES))
    }

    fn grant(&mut self, placed: Span, trim: u64, commit: bool) {
        let first = (placed.start - BASE) / GRANULE_BYTES;
        let (cells, placed) = Self::clip(first, placed.len_bytes() / GRANULE_BYTES);
        self.map.grant(placed);
        self.cells[cells.clone()].fill(Cell::Granted);
        self.check();
        if commit {
            let len_bytes = placed.len_bytes() - trim;
            self.map.commit(placed, len_bytes);
            self.cells[cells].fill(Cell::Live { start: placed.start, len_bytes });
        } else {
            self.map.close(placed);
            self.cells[cells].fill(Cell::Closed);
        }
    }

    /// The shortest run of free granules that takes so many, the lowest of several.
    fn best_fit(&self, granules: u64, alignment_bytes: u64) -> Option<Span> {
        let mut runs = Vec::new();
        let mut start = 0;
        for same in self.cells.chunk_by(|a, b| a == b) {
            if same[0] == Cell::Free {
                runs.push((same.len() as u64, start));
            }
            start += same.len() as u64;
        }
        runs.sort();
        let place = |(len, start): (u64, u64)| {
            let aligned = (BASE + start * GRANULE_BYTES).next_multiple_of(alignment_bytes);
            let placed = Span::new(aligned, granules * GRANULE_BYTES);
            (placed.end <= BASE + (start + len) * GRANULE_BYTES).then_some(placed)
        };
        runs.into_iter().find_map(place)
    }

    /// The nth of the allocations of a kind.
    fn pick(&self, nth: usize, start: impl Fn(Cell) -> Option<(u64, u64)>) -> Option<(u64, u64)> {
        let mut all: Vec<_> = self.cells.iter().filter_map(|cell| start(*cell)).collect();
        all.dedup();
        all.get(nth % all.len().max(1)).copied()
    }

    fn cells_of(start: u64, len_bytes: u64) -> (std::ops::Range<usize>, Span) {
        Self::clip((start - BASE) / GRANULE_BYTES, len_bytes.div_ceil(GRANULE_BYTES))
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Free { start, granules } => {
                let (cells, span) = Self::clip(start, granules);
                if self.cells[cells.clone()].iter().all(|cell| cell.is_open()) {
                    self.map.free(span);
                    self.cells[cells].fill(Cell::Free);
                }
            }
            Step::CloseFree { start, granules } => {
                let (cells, span) = Self::clip(start, granules);
                self.map.close_free(span);
                let free = self.cells[cells].iter_mut().filter(|cell| **cell == Cell::Free);
                free.for_each(|cell| *cell = Cell::Closed);
            }
            Step::BestFit { granules, alignment_bytes, trim } => {
                let found = self.map.best_fit(granules * GRANULE_BYTES, alignment_bytes);
                assert_eq!(found, self.best_fit(granules, alignment_bytes));
                if let Some(placed) = found {
                    self.grant(placed, trim, true);
                }
            }
            Step::Grant { start, granules, trim, commit } => {
                let (cells, span) = Self::clip(start, granules);
                if self.cells[cells].iter().all(|cell| cell.is_open()) {
                    self.grant(span, trim, commit);
                }
            }
            Step::Quarantine { nth } => self.quarantine(nth),
            Step::Release { nth, closed_from } => self.release(nth, closed_from),
        }
        self.check();
    }

    fn quarantine(&mut self, nth: usize) {
        let live = |cell| match cell {
            Cell::Live { start, len_bytes } => Some((start, len_bytes)),
            _ => None,
        };
        let Some((start, len_bytes)) = self.pick(nth, live) else { return };
        assert_eq!(self.map.quarantine(start), Some(len_bytes));
        assert!(self.map.is_quarantined(Span::new(start, len_bytes)));
        let (cells, _) = Self::cells_of(start, len_bytes);
        self.cells[cells].fill(Cell::Quarantined { start, len_bytes });
    }

    /// Frees a quarantined allocation up to a granule, and closes it from there on.
    fn release(&mut self, nth: usize, closed_from: u64) {
        let quarantined = |cell| match cell {
            Cell::Quarantined { start, len_bytes } => Some((start, len_bytes)),
            _ => None,
        };
        let Some((start, len_bytes)) = self.pick(nth, quarantined) else { return };
        let (cells, span) = Self::cells_of(start, len_bytes);
        let cut = (BASE + closed_from * GRANULE_BYTES).clamp(span.start, span.end);
        self.map.free(Span { end: cut, ..span });
        self.map.close(Span { start: cut, ..span });
        for index in cells {
            self.cells[index] = if (index as u64) < closed_from { Cell::Free } else { Cell::Closed };
        }
    }

    /// The blocks are the runs of equal cells, and each address finds what is there.
    fn check(&self) {
        assert!(self.map.is_consistent());
        let mut start = 0;
        let mut blocks = Vec::new();
        for same in self.cells.chunk_by(|a, b| a == b) {
            let (_, block) = Self::clip(start, same.len() as u64);
            let unused = |len_bytes| u8::try_from(block.len_bytes() - len_bytes).unwrap();
            let used = match same[0] {
                Cell::Closed => BlockUse::Closed,
                Cell::Free => BlockUse::Free,
                Cell::Granted => BlockUse::Granted,
                Cell::Live { len_bytes, .. } => BlockUse::Live { unused_bytes: unused(len_bytes) },
                Cell::Quarantined { len_bytes, .. } => {
                    BlockUse::Quarantined { unused_bytes: unused(len_bytes) }
                }
            };
            blocks.push((block, used));
            start += same.len() as u64;
        }
        assert!(self.map.spans().eq(blocks.iter().copied()), "{:?}", self.map.spans().collect::<Vec<_>>());
        for (block, used) in blocks {
            let free = (used == BlockUse::Free).then_some(block);
            assert_eq!(self.map.free_starting_at(block.start), free);
            assert_eq!(self.map.free_ending_at(block.end), free);
            let live = match used {
                BlockUse::Live { unused_bytes } => {
                    Some(Span { end: block.end - u64::from(unused_bytes), ..block })
                }
                _ => None,
            };
            assert_eq!(self.map.allocation_at(block.start), live);
            assert_eq!(
                self.map.allocation_at(block.end - 1),
                live.filter(|live| live.end == block.end),
                "past the end of its length"
            );
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let run = || (0..GRANULES, 1..12u64);
    let alignment = prop_oneof![3 => Just(256u64), 1 => Just(512), 1 => Just(2048)];
    let step = prop_oneof![
        4 => run().prop_map(|(start, granules)| Step::Free { start, granules }),
        1 => run().prop_map(|(start, granules)| Step::CloseFree { start, granules }),
        5 => (1..9u64, alignment, 0..256u64).prop_map(|(granules, alignment_bytes, trim)| {
            Step::BestFit { granules, alignment_bytes, trim }
        }),
        2 => (run(), 0..256u64, any::<bool>()).prop_map(|((start, granules), trim, commit)| {
            Step::Grant { start, granules, trim, commit }
        }),
        4 => any::<usize>().prop_map(|nth| Step::Quarantine { nth }),
        4 => (any::<usize>(), 0..2 * GRANULES).prop_map(|(nth, closed_from)| {
            Step::Release { nth, closed_from }
        }),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    #[test]
    fn address_map_under_random_steps_agrees_with_cells(steps in steps()) {
        let mut model = Model::new();
        model.map.free(Model::clip(0, GRANULES / 2).1);
        model.cells[..GRANULES as usize / 2].fill(Cell::Free);
        model.check();
        for step in &steps {
            model.step(step);
        }
    }
}
