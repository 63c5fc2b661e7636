//! Jobs over every kind of parts, against a model that is bytes and nothing else.

mod rig;

use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use rig::{Rig, Store, bytes_in, host, job, noise, outcome, rig};
use vram_gpu::{DeviceAddress, DeviceRange, GpuId, Pattern};
use vram_guest_memory::{HostBuffer, SpanList};
use vram_transfer::{Flow, Part, TransferError, Work};

/// Bytes of each place; the first half of them is written by a job and the second read, or the other way round.
const PLACE: usize = 4096;
const HALF: usize = PLACE / 2;
const GPU_0: usize = 0;
const GPU_1: usize = 1;
const HOST: usize = 2;
const COLD: usize = 3;
/// Where the spans of writes and reads are.
const GUEST: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Write,
    Read,
    Copy,
    Fill(Pattern),
}

/// A job: how its bytes are cut on each side, and the place of each cut.
#[derive(Clone, Debug)]
struct Plan {
    kind: Kind,
    to_is_low: bool,
    to: Vec<(usize, usize)>,
    from: Vec<(usize, usize)>,
}

/// Runs of bytes: place, offset, length.
type Runs = Vec<(usize, usize, usize)>;

impl Plan {
    /// Runs that do not touch each other, in one half of their places.
    fn runs(cuts: &[(usize, usize)], low: bool) -> Runs {
        let mut next = [if low { 0 } else { HALF }; 5];
        let run = |&(place, len): &(usize, usize)| {
            let at = next[place];
            // A gap, so that spans do not merge.
            next[place] += len + 4;
            (place, at, len)
        };
        cuts.iter().map(run).collect()
    }

    fn to(&self) -> Runs {
        Self::runs(&self.to, self.to_is_low)
    }

    fn from(&self) -> Runs {
        Self::runs(&self.from, !self.to_is_low)
    }

    fn refused(&self) -> bool {
        let cold = |cuts: &[(usize, usize)]| cuts.iter().any(|(place, _)| *place == COLD);
        // Where a pattern begins is not asked of GPUs here: all cuts are multiples of four then.
        cold(&self.to)
    }
}

fn cuts(units: usize, unit: usize, places: BoxedStrategy<usize>) -> BoxedStrategy<Vec<(usize, usize)>> {
    prop::collection::vec((1..units, places.clone()), 0..5)
        .prop_flat_map(move |mut edges| {
            edges.sort_unstable();
            edges.dedup_by_key(|(edge, _)| *edge);
            (Just(edges), places.clone())
        })
        .prop_map(move |(mut edges, last)| {
            edges.push((units, last));
            let mut at = 0;
            let cut = |(edge, place)| (place, (edge - std::mem::replace(&mut at, edge)) * unit);
            edges.into_iter().map(cut).collect()
        })
        .boxed()
}

fn plan() -> impl Strategy<Value = Plan> {
    let pattern = prop_oneof![
        any::<u8>().prop_map(Pattern::U8),
        any::<u16>().prop_map(Pattern::U16),
        any::<u32>().prop_map(Pattern::U32),
    ];
    let kind =
        prop_oneof![Just(Kind::Write), Just(Kind::Read), Just(Kind::Copy), pattern.prop_map(Kind::Fill)];
    (kind, any::<bool>(), 2usize..450).prop_flat_map(|(kind, to_is_low, units)| {
        let unit = if matches!(kind, Kind::Fill(_)) { 4 } else { 1 };
        let guest = || Just(GUEST).boxed();
        let written = || prop_oneof![20 => GPU_0..COLD, 1 => Just(COLD)].boxed();
        let read = || (GPU_0..GUEST).boxed();
        let (to, from) = match kind {
            Kind::Write => (written(), guest()),
            Kind::Read => (guest(), read()),
            Kind::Copy => (written(), read()),
            Kind::Fill(_) => (written(), guest()),
        };
        let sides = (cuts(units, unit, to), cuts(units, unit, from));
        sides.prop_map(move |(to, from)| Plan { kind, to_is_low, to, from })
    })
}

/// The places, for real.
struct Places {
    rig: Rig,
    host: HostBuffer,
    guest: HostBuffer,
    store: Arc<Store>,
}

impl Places {
    fn part(&self, (place, at, len): (usize, usize, usize)) -> Part {
        let gpu = |offset: u64, gpu| {
            let start = DeviceAddress(self.rig.band.start.0 + offset + at as u64);
            Part::gpu(DeviceRange { start, len_bytes: len as u64 }, GpuId(gpu))
        };
        match place {
            GPU_0 => gpu(0, 0),
            GPU_1 => gpu(2 * rig::MIB, 1),
            HOST => Part::Host(self.host.span().part(at, len).unwrap()),
            COLD => Part::cold(Arc::<Store>::clone(&self.store), at as u64, len as u64),
            _ => unreachable!("the guest's memory is no part"),
        }
    }

    fn parts(&self, runs: &Runs) -> Vec<Part> {
        runs.iter().map(|run| self.part(*run)).collect()
    }

    fn spans(&self, runs: &Runs) -> SpanList {
        let mut list = SpanList::new();
        runs.iter().for_each(|(_, at, len)| list.push(self.guest.span().part(*at, *len).unwrap()));
        list
    }

    fn work(&self, plan: &Plan) -> Work {
        let (to, from) = (plan.to(), plan.from());
        match plan.kind {
            Kind::Write => Work::Write { to: self.parts(&to), from: self.spans(&from) },
            Kind::Read => Work::Read { from: self.parts(&from), to: self.spans(&to) },
            Kind::Copy => Work::Copy { to: self.parts(&to), from: self.parts(&from) },
            Kind::Fill(pattern) => Work::Fill { to: self.parts(&to), pattern },
        }
    }

    /// All bytes of a place.
    fn bytes(&self, place: usize) -> Vec<u8> {
        let whole = host(&[0; PLACE]);
        let mut list = SpanList::new();
        match place {
            GUEST => list.push(self.guest.span()),
            HOST => list.push(self.host.span()),
            _ => {
                let work = Work::Read { from: vec![self.part((place, 0, PLACE))], to: whole.clone() };
                self.rig.engine.run(Flow::Upkeep(0), work, Vec::new()).unwrap();
                list = whole;
            }
        }
        bytes_in(&list)
    }
}

/// What a job does, byte by byte.
fn carry_out(model: &mut [Vec<u8>], plan: &Plan) {
    let bytes =
        |runs: Runs| runs.into_iter().flat_map(|(place, at, len)| (at..at + len).map(move |i| (place, i)));
    let to = bytes(plan.to());
    match plan.kind {
        Kind::Fill(pattern) => {
            let repeated = match pattern {
                Pattern::U8(byte) => [byte; 4],
                Pattern::U16(value) => (u32::from(value) << 16 | u32::from(value)).to_le_bytes(),
                Pattern::U32(value) => value.to_le_bytes(),
            };
            to.for_each(|(place, at)| model[place][at] = repeated[at % 4]);
        }
        _ => to.zip(bytes(plan.from())).for_each(|((place, at), (source, from))| {
            model[place][at] = model[source][from];
        }),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_jobs_in_a_row_do_what_the_model_does(plans in prop::collection::vec(plan(), 1..12)) {
        let mut model: Vec<Vec<u8>> = (0..5u8).map(|place| noise(PLACE as u64).iter().map(|b| b ^ place).collect()).collect();
        let store = Arc::new(Store(model[COLD].clone()));
        let places = Places {
            rig: rig(),
            host: HostBuffer::new(PLACE).unwrap(),
            guest: HostBuffer::new(PLACE).unwrap(),
            store,
        };
        places.host.span().write_from(&model[HOST]);
        places.guest.span().write_from(&model[GUEST]);
        for gpu in [GPU_0, GPU_1] {
            let work = Work::Write { to: vec![places.part((gpu, 0, PLACE))], from: host(&model[gpu]) };
            places.rig.engine.run(Flow::Upkeep(0), work, Vec::new()).unwrap();
        }
        let stream = places.rig.engine.stream(Flow::Requests(0));
        let mut ends = Vec::new();
        for plan in &plans {
            let (job, end) = job(places.work(plan));
            stream.submit(job);
            ends.push(end);
        }
        for (plan, end) in plans.iter().zip(&ends) {
            let outcome = outcome(end);
            if plan.refused() {
                prop_assert!(matches!(outcome.result, Err(TransferError::Mismatch)));
                prop_assert_eq!(outcome.moved_bytes, 0);
                continue;
            }
            outcome.result.map_err(|error| TestCaseError::fail(error.to_string()))?;
            let total = plan.to.iter().map(|(_, len)| *len as u64).sum::<u64>();
            prop_assert_eq!(outcome.moved_bytes, total);
            carry_out(&mut model, plan);
        }
        for (place, expected) in model.iter().enumerate() {
            prop_assert!(places.bytes(place) == *expected, "place {} differs", place);
        }
    }
}

#[test]
fn sides_of_different_lengths_are_refused_whatever_they_are_made_of() {
    let rig = rig();
    let buffer = HostBuffer::new(4096).unwrap();
    let host_part = || Part::Host(buffer.span());
    let cold = |len| Store(noise(8192)).part(0, len);
    let works = [
        Work::Copy { to: vec![host_part()], from: vec![cold(4095)] },
        Work::Copy { to: rig.parts(0, 4095), from: vec![host_part()] },
        Work::Read { from: vec![host_part(), cold(1)], to: host(&[0; 4096]) },
        Work::Write { to: vec![host_part()], from: host(&[0; 4095]) },
        Work::Fill { to: vec![Part::Host(buffer.span().part(0, 6).unwrap())], pattern: Pattern::U32(1) },
    ];
    for work in works {
        let refused = rig.engine.run(Flow::Requests(0), work, Vec::new());
        assert!(matches!(refused, Err(TransferError::Mismatch)));
    }
}
