//! What it costs when the working set outgrows the GPUs, and what that costs a neighbour.
//!
//! `cargo bench -p vram-residency --bench spill`. Simulated GPUs, whose copies are made by the CPU: speeds mean nothing by
//! themselves, ratios do. For each pattern and working set: the throughput of reads of 1 MiB, four in flight, and its ratio
//! to what the misses that Belady's MIN (with bypass) has on the same accesses would allow at the raw speeds of GPU and
//! tier, both measured in the same run.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use vram_gpu::{Backend, DeviceAddress, DeviceRange, Pattern};
use vram_gpu_sim::{SimBackend, SimConfig};
use vram_guest_memory::{HostBuffer, SpanList};
use vram_pool::{AllocRequest, Placement, SliceConfig, SliceId};
use vram_residency::{Access, MemoryConfig, MemoryLease, Residency, Tier};
use vram_tier::{ChunkedStore, DiskConfig, HostConfig, HostStore, TierConfig};
use vram_transfer::{Flow, Job, Stream};

const MIB: u64 = 1 << 20;
const SHARD: u64 = 4 * MIB;
const GPU_SHARDS: u64 = 64;
const IN_FLIGHT: usize = 4;
const REQUEST: u64 = MIB;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Below {
    Host,
    Disk,
}

struct Rig {
    residency: Arc<Residency>,
    _dir: tempfile::TempDir,
}

impl Rig {
    fn new(below: Below) -> Self {
        let sim = SimConfig::parse("4x64MiB").expect("a specification");
        let backend: Arc<dyn Backend> = Arc::new(SimBackend::new(sim).expect("simulated GPUs"));
        let dir = tempfile::tempdir().expect("a folder");
        let bytes = 4 * GPU_SHARDS * SHARD;
        let tier = match below {
            Below::Host => {
                let config = HostConfig { bytes, slot_bytes: SHARD, preallocate: true, huge_pages: false };
                Tier::Host(Arc::new(HostStore::open(&config).expect("host memory")))
            }
            Below::Disk => {
                let config = TierConfig::Disk(DiskConfig::new(dir.path(), bytes));
                Tier::Chunked(Arc::new(ChunkedStore::open(&config).expect("a disk")))
            }
        };
        let memory = MemoryConfig { shard_bytes: SHARD, reserve_bytes: 0 };
        let residency = Residency::with_tiers(backend, memory, vec![tier]).expect("a pool");
        Self { residency, _dir: dir }
    }

    fn slice(&self, name: &str, limit_shards: u64, guarantee_shards: u64) -> SliceId {
        let config = SliceConfig {
            name: name.to_owned(),
            guarantee_bytes: guarantee_shards * SHARD,
            limit_bytes: limit_shards * SHARD,
            placement: Placement::Spill,
            home: None,
        };
        self.residency.add_slice(config).expect("a slice")
    }

    /// An allocation full of bytes that do not compress to nothing.
    fn filled(&self, slice: SliceId, shards: u64) -> MemoryLease {
        let request = AllocRequest { length_bytes: shards * SHARD, alignment_bytes: 256 };
        let lease = self.residency.allocate(slice, request).expect("memory");
        let mut bytes = vec![0u8; REQUEST as usize];
        let mut state = 88172645463325252u64;
        for word in bytes.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        let buffer = buffer(REQUEST);
        buffer.write_from(&bytes);
        let stream = self.residency.engine().stream(Flow::Requests(slice.0));
        for nth in 0..shards * SHARD / REQUEST {
            let to = part(&lease, nth * REQUEST, REQUEST);
            wait(&self.submit(&stream, slice, Access::Write { to, from: buffer.clone() }));
        }
        lease
    }

    fn submit(&self, stream: &Stream, slice: SliceId, access: Access) -> Receiver<()> {
        let (sender, receiver) = channel();
        let done = Box::new(move |outcome: vram_transfer::Outcome| {
            outcome.result.expect("nothing fails here");
            let _ = sender.send(());
        });
        stream.submit(Job { work: self.residency.access(slice, access), leases: Vec::new(), done });
        receiver
    }

    /// Reads 1 MiB at each place, four in flight; bytes per second.
    fn read_all(&self, slice: SliceId, lease: &MemoryLease, places: &[u64]) -> f64 {
        let engine = self.residency.engine();
        let streams: Vec<_> = (0..IN_FLIGHT).map(|_| engine.stream(Flow::Requests(slice.0))).collect();
        let buffers: Vec<_> = (0..IN_FLIGHT).map(|_| buffer(REQUEST)).collect();
        let mut waiting: Vec<Option<Receiver<()>>> = (0..IN_FLIGHT).map(|_| None).collect();
        let started = Instant::now();
        for (nth, place) in places.iter().enumerate() {
            let lane = nth % IN_FLIGHT;
            if let Some(receiver) = waiting[lane].take() {
                wait(&receiver);
            }
            let from = part(lease, place * REQUEST, REQUEST);
            let access = Access::Read { from, to: buffers[lane].clone() };
            waiting[lane] = Some(self.submit(&streams[lane], slice, access));
        }
        waiting.iter().flatten().for_each(wait);
        places.len() as f64 * REQUEST as f64 / started.elapsed().as_secs_f64()
    }
}

fn wait(receiver: &Receiver<()>) {
    receiver.recv_timeout(Duration::from_secs(60)).expect("an access that never ends");
}

fn part(lease: &MemoryLease, offset: u64, len_bytes: u64) -> DeviceRange {
    DeviceRange { start: DeviceAddress(lease.range().start.0 + offset), len_bytes }
}

fn buffer(len: u64) -> SpanList {
    let mut list = SpanList::new();
    let buffer = HostBuffer::new(len as usize).expect("memory");
    list.push(buffer.span().part(0, len as usize).expect("all of it"));
    list
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

#[derive(Clone, Copy, Debug)]
enum Shape {
    /// From the first to the last byte, again and again.
    Cycle,
    /// Any place as often as any other.
    Uniform,
    /// Nine in ten in a fifth of the set, the others on a scan through all of it.
    HotAndScan,
    /// As hot and scan, and the hot fifth is another after each quarter.
    Phases,
}

/// Places of so many reads in a set of so many shards.
fn places(shape: Shape, shards: u64, count: usize) -> Vec<u64> {
    let all = shards * SHARD / REQUEST;
    let fifth = all / 5;
    let mut dice = Dice(0x2545_f491_4f6c_dd1d);
    let mut scan = 0;
    (0..count)
        .map(|nth| match shape {
            Shape::Cycle => nth as u64 % all,
            Shape::Uniform => dice.below(all),
            Shape::HotAndScan | Shape::Phases => {
                let phase = if matches!(shape, Shape::Phases) { (nth * 4 / count) as u64 } else { 0 };
                if dice.below(10) < 9 {
                    (phase * fifth + dice.below(fifth)) % all
                } else {
                    scan = (scan + 1) % all;
                    scan
                }
            }
        })
        .collect()
}

/// The part of the second half of accesses that misses with Belady's MIN, which may also leave a region out.
fn belady_misses(places: &[u64]) -> f64 {
    let regions: Vec<u64> = places.iter().map(|place| place * REQUEST / SHARD).collect();
    let mut next = vec![usize::MAX; regions.len()];
    let mut last = std::collections::HashMap::new();
    for (at, region) in regions.iter().enumerate().rev() {
        next[at] = last.insert(*region, at).unwrap_or(usize::MAX);
    }
    let mut resident: BTreeSet<(usize, u64)> = BTreeSet::new();
    let mut misses = 0;
    for (at, region) in regions.iter().enumerate() {
        let hit = resident.remove(&(at, *region));
        if !hit && at >= regions.len() / 2 {
            misses += 1;
        }
        resident.insert((next[at], *region));
        if resident.len() as u64 > GPU_SHARDS {
            resident.pop_last();
        }
    }
    f64::from(misses) / (regions.len() - regions.len() / 2) as f64
}

fn spill_curve(below: Below, count: usize) {
    // Raw speeds: all on the GPUs, and all in the tier, because somebody else is promised all there is.
    let rig = Rig::new(below);
    let slice = rig.slice("gpu", GPU_SHARDS / 2, 0);
    let lease = rig.filled(slice, GPU_SHARDS / 2);
    let reads = places(Shape::Uniform, GPU_SHARDS / 2, count / 2);
    rig.read_all(slice, &lease, &reads);
    let hit = rig.read_all(slice, &lease, &reads);
    let rig = Rig::new(below);
    let (slice, others) = (rig.slice("tier", GPU_SHARDS, 0), rig.slice("others", GPU_SHARDS, GPU_SHARDS - 1));
    let lease = rig.filled(slice, GPU_SHARDS / 2);
    let _all = rig.filled(others, GPU_SHARDS - 1);
    rig.read_all(slice, &lease, &reads);
    let miss = rig.read_all(slice, &lease, &reads);
    println!(
        "\n{below:?} below the GPUs: {:.2} GB/s on the GPUs, {:.2} GB/s in the tier",
        hit / 1e9,
        miss / 1e9
    );
    println!("{:<12} {:>5} {:>8} {:>10} {:>8} {:>8}", "pattern", "set", "GB/s", "of 0.5", "Belady", "ratio");
    for shape in [Shape::Cycle, Shape::HotAndScan, Shape::Uniform, Shape::Phases] {
        let mut half = None;
        for percent in [50u64, 90, 110, 150, 200] {
            let shards = GPU_SHARDS * percent / 100;
            let rig = Rig::new(below);
            let slice = rig.slice("a", shards, 0);
            let lease = rig.filled(slice, shards);
            let all = places(shape, shards, count);
            let (warm, timed) = all.split_at(count / 2);
            rig.read_all(slice, &lease, warm);
            let speed = rig.read_all(slice, &lease, timed);
            let misses = if percent < 100 { 0.0 } else { belady_misses(&all) };
            let ideal = 1.0 / ((1.0 - misses) / hit + misses / miss);
            let half = *half.get_or_insert(speed);
            println!(
                "{:<12} {percent:>4}% {:>8.2} {:>10.2} {:>7.0}% {:>8.2}",
                format!("{shape:?}"),
                speed / 1e9,
                speed / half,
                misses * 100.0,
                speed / ideal
            );
        }
    }
}

/// The 99th percentile of reads of 64 KiB by a slice inside its guarantee.
fn p99(rig: &Rig, slice: SliceId, lease: &MemoryLease, count: usize) -> Duration {
    let stream = rig.residency.engine().stream(Flow::Requests(slice.0));
    let to = buffer(64 << 10);
    let mut dice = Dice(7);
    let blocks = lease.range().len_bytes / (64 << 10);
    let mut took: Vec<Duration> = (0..count)
        .map(|_| {
            let from = part(lease, dice.below(blocks) * (64 << 10), 64 << 10);
            let started = Instant::now();
            wait(&rig.submit(&stream, slice, Access::Read { from, to: to.clone() }));
            started.elapsed()
        })
        .collect();
    took.sort_unstable();
    took[took.len() * 99 / 100]
}

fn neighbour(below: Below, count: usize) {
    let rig = Rig::new(below);
    let inside = rig.slice("inside", 16, 16);
    let kept = rig.filled(inside, 16);
    let alone = p99(&rig, inside, &kept, count);
    let greedy = rig.slice("greedy", 2 * (GPU_SHARDS - 16), 0);
    let many = rig.filled(greedy, 2 * (GPU_SHARDS - 16));
    let stop = AtomicBool::new(false);
    let beside = std::thread::scope(|scope| {
        scope.spawn(|| {
            let stream = rig.residency.engine().stream(Flow::Requests(greedy.0));
            let mut dice = Dice(11);
            while !stop.load(Ordering::Relaxed) {
                let place = dice.below(many.range().len_bytes / REQUEST);
                let to = part(&many, place * REQUEST, REQUEST);
                wait(&rig.submit(&stream, greedy, Access::Fill { to, pattern: Pattern::U8(place as u8) }));
            }
        });
        let beside = p99(&rig, inside, &kept, count);
        stop.store(true, Ordering::Relaxed);
        beside
    });
    println!(
        "{below:?}: p99 of 64 KiB reads inside the guarantee: {alone:?} alone, {beside:?} beside a slice that uses twice what it \
         gets: {:.2} times",
        beside.as_secs_f64() / alone.as_secs_f64()
    );
}

fn main() {
    let quick = std::env::args().any(|arg| arg == "--quick");
    let count = if quick { 1000 } else { 8000 };
    println!("{GPU_SHARDS} shards of {} MiB on 4 GPUs, reads of 1 MiB, {IN_FLIGHT} in flight", SHARD / MIB);
    for below in [Below::Host, Below::Disk] {
        spill_curve(below, if below == Below::Disk { count / 4 } else { count });
    }
    println!();
    for below in [Below::Host, Below::Disk] {
        neighbour(below, count);
    }
}
