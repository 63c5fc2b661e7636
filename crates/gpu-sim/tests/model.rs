//! Random work on simulated GPUs against a plain model: bytes in vectors, at once and in order.

use std::time::Duration;

use proptest::prelude::*;
use vram_gpu::{Backend, DeviceAddress, DeviceRange, GpuId, HostSpan, Pattern, ShardHandle, StreamHandle};
use vram_gpu_sim::{Counts, GRANULARITY_BYTES, SimBackend, SimConfig};
use vram_guest_memory::HostBuffer;

const UNIT: u64 = GRANULARITY_BYTES;
const BAND_UNITS: u64 = 5;
const GPUS: u16 = 2;
/// Room for this many units on each GPU: few enough to run out.
const GPU_UNITS: u64 = 5;

#[derive(Clone, Debug)]
enum Step {
    Create { gpu: u16, units: u64 },
    Release { shard: usize },
    Map { shard: usize, unit: u64 },
    Unmap { unit: u64, units: u64 },
    Access { unit: u64, units: u64, gpus: Vec<u16> },
    Write { stream: u16, at: u64, len: usize, seed: u8 },
    Read { stream: u16, at: u64, len: usize },
    Copy { stream: u16, to: u64, from: u64, len: usize },
    Fill { stream: u16, at: u64, len: usize, pattern: u8 },
}

/// Addresses close to where shards meet, where mistakes are.
fn place() -> impl Strategy<Value = u64> {
    (0..=BAND_UNITS, -3000i64..3000).prop_map(|(unit, delta)| (unit * UNIT).saturating_add_signed(delta))
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![1usize..64, 1usize..6000, Just(2usize << 20)]
}

fn step() -> impl Strategy<Value = Step> {
    let unit = || 0..BAND_UNITS;
    let units = || 1..3u64;
    let gpu = || 0..GPUS;
    let access = prop_oneof![Just(vec![0]), Just(vec![1]), Just(vec![0, 1]), Just(vec![])];
    prop_oneof![
        2 => (gpu(), units()).prop_map(|(gpu, units)| Step::Create { gpu, units }),
        1 => (0..8usize).prop_map(|shard| Step::Release { shard }),
        4 => (0..8usize, unit()).prop_map(|(shard, unit)| Step::Map { shard, unit }),
        1 => (unit(), units()).prop_map(|(unit, units)| Step::Unmap { unit, units }),
        4 => (unit(), units(), access).prop_map(|(unit, units, gpus)| Step::Access { unit, units, gpus }),
        4 => (gpu(), place(), length(), any::<u8>())
            .prop_map(|(stream, at, len, seed)| Step::Write { stream, at, len, seed }),
        4 => (gpu(), place(), length()).prop_map(|(stream, at, len)| Step::Read { stream, at, len }),
        3 => (gpu(), place(), place(), length())
            .prop_map(|(stream, to, from, len)| Step::Copy { stream, to, from, len }),
        2 => (gpu(), place(), length(), any::<u8>())
            .prop_map(|(stream, at, len, pattern)| Step::Fill { stream, at, len, pattern }),
    ]
}

struct Shard {
    gpu: u16,
    units: u64,
    handle: Option<ShardHandle>,
    bytes: Vec<u8>,
}

/// One unit of the band: which shard's, which unit of it, who may touch it.
#[derive(Clone)]
struct Slot {
    shard: usize,
    unit_of_shard: u64,
    access: Vec<u16>,
}

struct Model {
    shards: Vec<Shard>,
    slots: Vec<Option<Slot>>,
}

impl Model {
    fn used_units(&self, gpu: u16) -> u64 {
        let mapped = |index| self.slots.iter().flatten().any(|slot| slot.shard == index);
        let alive =
            |(index, shard): &(usize, &Shard)| shard.gpu == gpu && (shard.handle.is_some() || mapped(*index));
        self.shards.iter().enumerate().filter(alive).map(|(_, shard)| shard.units).sum()
    }

    /// Slots of a unit range, if it is whole shards and nothing else.
    fn whole(&self, unit: u64, units: u64) -> Option<std::ops::Range<usize>> {
        let range = usize::try_from(unit).unwrap()..usize::try_from(unit + units).unwrap();
        let slots: Option<Vec<&Slot>> = self.slots.get(range.clone())?.iter().map(Option::as_ref).collect();
        let slots = slots?;
        let last = slots.last()?;
        let whole =
            slots.first()?.unit_of_shard == 0 && last.unit_of_shard + 1 == self.shards[last.shard].units;
        whole.then_some(range)
    }

    /// Home GPU and common access of a byte range.
    fn resolve(&self, at: u64, len: usize) -> Option<(u16, Vec<u16>)> {
        let first = usize::try_from(at / UNIT).unwrap();
        let last = usize::try_from((at + len as u64 - 1) / UNIT).unwrap();
        let slots: Option<Vec<&Slot>> = self.slots.get(first..=last)?.iter().map(Option::as_ref).collect();
        let slots = slots?;
        let home = self.shards[slots[0].shard].gpu;
        let one_home = slots.iter().all(|slot| self.shards[slot.shard].gpu == home);
        let access = (0..GPUS).filter(|gpu| slots.iter().all(|slot| slot.access.contains(gpu))).collect();
        one_home.then_some((home, access))
    }

    fn own(&self, stream: u16, at: u64, len: usize) -> bool {
        self.resolve(at, len).is_some_and(|(_, access)| access.contains(&stream))
    }

    fn reachable(&self, stream: u16, at: u64, len: usize) -> bool {
        self.resolve(at, len).is_some_and(|(home, access)| access.contains(&stream) || access.contains(&home))
    }

    /// Calls with each run of bytes of one unit: shard, offset in it, offset in the range, length.
    fn runs(&self, at: u64, len: usize) -> Vec<(usize, usize, usize, usize)> {
        let mut runs = Vec::new();
        let mut done = 0;
        while done < len {
            let address = at + done as u64;
            let slot = self.slots[usize::try_from(address / UNIT).unwrap()].as_ref().unwrap();
            let inside = address % UNIT;
            let run = (len - done).min(usize::try_from(UNIT - inside).unwrap());
            runs.push((slot.shard, usize::try_from(slot.unit_of_shard * UNIT + inside).unwrap(), done, run));
            done += run;
        }
        runs
    }

    /// Whether two ranges share memory through a shard that is mapped twice.
    fn same_bytes(&self, a: u64, b: u64, len: usize) -> bool {
        let others = self.runs(b, len);
        self.runs(a, len).iter().any(|(shard, start, _, run)| {
            others.iter().any(|(other, other_start, _, other_run)| {
                shard == other && *start < other_start + other_run && *other_start < start + run
            })
        })
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        for (shard, offset, done, run) in self.runs(at, bytes.len()) {
            self.shards[shard].bytes[offset..offset + run].copy_from_slice(&bytes[done..done + run]);
        }
    }

    fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for (shard, offset, done, run) in self.runs(at, len) {
            bytes[done..done + run].copy_from_slice(&self.shards[shard].bytes[offset..offset + run]);
        }
        bytes
    }
}

struct Trial {
    backend: SimBackend,
    band: DeviceRange,
    streams: Vec<StreamHandle>,
    busy: Option<u16>,
    model: Model,
}

impl Trial {
    fn new() -> Self {
        let backend = SimBackend::new(SimConfig::uniform(usize::from(GPUS), GPU_UNITS * UNIT)).unwrap();
        let band = backend.reserve_band(BAND_UNITS * UNIT, UNIT).unwrap();
        let streams = (0..GPUS).map(|gpu| backend.create_stream(GpuId(gpu)).unwrap()).collect();
        let slots = vec![None; usize::try_from(BAND_UNITS).unwrap()];
        Self { backend, band, streams, busy: None, model: Model { shards: Vec::new(), slots } }
    }

    fn address(&self, at: u64) -> DeviceAddress {
        DeviceAddress(self.band.start.0 + at)
    }

    fn range(&self, unit: u64, units: u64) -> DeviceRange {
        DeviceRange { start: self.address(unit * UNIT), len_bytes: units * UNIT }
    }

    /// The stream of a GPU, after the other one has finished: the model knows no time.
    fn stream(&mut self, gpu: u16) -> StreamHandle {
        if self.busy != Some(gpu) {
            self.finish();
            self.busy = Some(gpu);
        }
        self.streams[usize::from(gpu)]
    }

    fn finish(&mut self) {
        if let Some(gpu) = self.busy.take() {
            let event = self.backend.record(self.streams[usize::from(gpu)]).unwrap();
            assert_eq!(self.backend.synchronize(event, Duration::from_secs(60)), Ok(true));
            self.backend.destroy_event(event).unwrap();
        }
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Create { gpu, units } => {
                let fits = self.model.used_units(*gpu) + units <= GPU_UNITS;
                let outcome = self.backend.create_shard(GpuId(*gpu), units * UNIT);
                assert_eq!(outcome.is_ok(), fits, "{outcome:?}");
                if let Ok(handle) = outcome {
                    let bytes = vec![0; usize::try_from(units * UNIT).unwrap()];
                    self.model.shards.push(Shard { gpu: *gpu, units: *units, handle: Some(handle), bytes });
                }
            }
            Step::Release { shard } => {
                if let Some(handle) = self.model.shards.get_mut(*shard).and_then(|shard| shard.handle.take())
                {
                    self.backend.release_shard(handle).unwrap();
                }
            }
            Step::Map { shard, unit } => {
                let at = self.address(unit * UNIT);
                let Some(Shard { units, handle: Some(handle), .. }) = self.model.shards.get(*shard) else {
                    return;
                };
                let start = usize::try_from(*unit).unwrap();
                let end = start + usize::try_from(*units).unwrap();
                let free =
                    self.model.slots.get(start..end).is_some_and(|slots| slots.iter().all(Option::is_none));
                let outcome = self.backend.map(at, handle);
                assert_eq!(outcome.is_ok(), free, "{outcome:?}");
                if free {
                    for (unit_of_shard, slot) in self.model.slots[start..end].iter_mut().enumerate() {
                        let unit_of_shard = unit_of_shard as u64;
                        *slot = Some(Slot { shard: *shard, unit_of_shard, access: Vec::new() });
                    }
                }
            }
            Step::Unmap { unit, units } => {
                self.finish();
                let whole = self.model.whole(*unit, *units);
                let outcome = self.backend.unmap(self.range(*unit, *units));
                assert_eq!(outcome.is_ok(), whole.is_some(), "{outcome:?}");
                if let Some(slots) = whole {
                    self.model.slots[slots].fill(None);
                }
            }
            Step::Access { unit, units, gpus } => {
                self.finish();
                let whole = self.model.whole(*unit, *units);
                let ids: Vec<GpuId> = gpus.iter().copied().map(GpuId).collect();
                let outcome = self.backend.set_access(self.range(*unit, *units), &ids);
                assert_eq!(outcome.is_ok(), whole.is_some(), "{outcome:?}");
                if let Some(slots) = whole {
                    self.model.slots[slots]
                        .iter_mut()
                        .flatten()
                        .for_each(|slot| slot.access.clone_from(gpus));
                }
            }
            Step::Write { stream, at, len, seed } => {
                let bytes: Vec<u8> = (0..*len).map(|index| seed.wrapping_add((index * 7) as u8)).collect();
                let valid = self.model.own(*stream, *at, *len);
                let handle = self.stream(*stream);
                let outcome = self.backend.copy_in(handle, self.address(*at), span_of(&bytes));
                assert_eq!(outcome.is_ok(), valid, "{outcome:?}");
                if valid {
                    self.model.write(*at, &bytes);
                }
            }
            Step::Read { stream, at, len } => {
                let valid = self.model.own(*stream, *at, *len);
                let handle = self.stream(*stream);
                let span = span_of(&vec![0; *len]);
                let outcome = self.backend.copy_out(handle, span.clone(), self.address(*at));
                assert_eq!(outcome.is_ok(), valid, "{outcome:?}");
                if valid {
                    self.finish();
                    let mut found = vec![0; *len];
                    span.read_into(&mut found);
                    assert!(found == self.model.read(*at, *len), "bytes at {at:#x}");
                }
            }
            Step::Copy { stream, to, from, len } => {
                let valid = self.model.reachable(*stream, *to, *len)
                    && self.model.reachable(*stream, *from, *len)
                    && to.abs_diff(*from) >= *len as u64;
                // One shard at two addresses could be copied onto itself, which means nothing on a GPU either.
                if valid && self.model.same_bytes(*to, *from, *len) {
                    return;
                }
                let handle = self.stream(*stream);
                let outcome = self.backend.copy(handle, self.address(*to), self.address(*from), *len as u64);
                assert_eq!(outcome.is_ok(), valid, "{outcome:?}");
                if valid {
                    let bytes = self.model.read(*from, *len);
                    self.model.write(*to, &bytes);
                }
            }
            Step::Fill { stream, at, len, pattern } => {
                let valid = self.model.own(*stream, *at, *len);
                let handle = self.stream(*stream);
                let range = DeviceRange { start: self.address(*at), len_bytes: *len as u64 };
                let outcome = self.backend.fill(handle, range, Pattern::U8(*pattern));
                assert_eq!(outcome.is_ok(), valid, "{outcome:?}");
                if valid {
                    self.model.write(*at, &vec![*pattern; *len]);
                }
            }
        }
        for gpu in 0..GPUS {
            let free_units = GPU_UNITS - self.model.used_units(gpu);
            assert_eq!(self.backend.memory(GpuId(gpu)).unwrap().free_bytes, free_units * UNIT);
        }
    }

    fn give_back(mut self) {
        self.finish();
        for unit in 0..BAND_UNITS {
            for units in 1..3 {
                if let Some(slots) = self.model.whole(unit, units) {
                    self.backend.unmap(self.range(unit, units)).unwrap();
                    self.model.slots[slots].fill(None);
                }
            }
        }
        for handle in self.model.shards.drain(..).filter_map(|shard| shard.handle) {
            self.backend.release_shard(handle).unwrap();
        }
        for stream in self.streams.drain(..) {
            self.backend.destroy_stream(stream).unwrap();
        }
        self.backend.free_band(self.band).unwrap();
        assert_eq!(self.backend.counts(), Counts::default());
    }
}

fn span_of(bytes: &[u8]) -> HostSpan {
    let span = HostBuffer::new(bytes.len()).unwrap().span().part(0, bytes.len()).unwrap();
    span.write_from(bytes);
    span
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn random_work_agrees_with_the_model(steps in proptest::collection::vec(step(), 1..80)) {
        let mut trial = Trial::new();
        for step in &steps {
            trial.run(step);
        }
        trial.give_back();
    }
}
