//! How fast the pool allocates and frees, by the number of live allocations: `cargo bench -p vram-pool --bench alloc`.
//!
//! One pair is plan, commit, begin free, plan release, finish release: all the pool does for an allocation's life. The
//! live allocations are of mixed sizes and a random one is freed before each new one, so that the free addresses are as
//! broken up as random use makes them.
//!
//! The crate `offset-allocator` replays the same trace, to have something to compare with. It does less: one step to
//! allocate and one to free, bins instead of the best fit, no alignment, at most 2^32 units; and its caller keeps the
//! length of each allocation.

use std::hint::black_box;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use offset_allocator::Allocator;
use vram_gpu::{DeviceAddress, DeviceRange, GpuId, Link, Topology};
use vram_pool::{AllocRequest, GpuCapacity, Placement, Pool, PoolConfig, SliceConfig, SliceId};

const LIVE: [usize; 4] = [1_000, 10_000, 100_000, 1_000_000];
/// Runs of each allocator, in turns.
const RUNS: usize = 5;
const PAIRS_A_RUN: usize = 1_000_000;
const GRANULE_BYTES: u64 = 256;

/// A small generator of random numbers (xorshift64*): the same run each time.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }

    fn length_bytes(&mut self) -> u64 {
        1 + self.below(64 << 10)
    }
}

/// Frees one of the live allocations and makes another of this length in its place.
#[derive(Clone, Copy)]
struct Exchange {
    victim: u32,
    length_bytes: u32,
}

/// What is replayed: first so many allocations, then exchanges among them.
struct Trace {
    lengths_bytes: Vec<u64>,
    exchanges: Vec<Exchange>,
}

impl Trace {
    fn of(live: usize) -> Self {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let lengths_bytes = (0..live).map(|_| random.length_bytes()).collect();
        let exchange = |_| Exchange {
            victim: random.below(live as u64) as u32,
            length_bytes: random.length_bytes() as u32,
        };
        // As many exchanges as live allocations before the first run: then their places are random.
        Self { lengths_bytes, exchanges: (0..live + RUNS * PAIRS_A_RUN).map(exchange).collect() }
    }

    /// The exchanges of a run.
    fn run(&self, run: usize) -> &[Exchange] {
        let warm_up = self.lengths_bytes.len();
        &self.exchanges[warm_up + run * PAIRS_A_RUN..][..PAIRS_A_RUN]
    }
}

/// An allocator with what is live in it.
struct Filled<A: Subject> {
    allocator: A,
    live: Vec<A::Handle>,
}

/// What is measured.
trait Subject {
    type Handle: Copy;
    fn allocate(&mut self, length_bytes: u64) -> Self::Handle;
    fn free(&mut self, handle: Self::Handle);
}

impl<A: Subject> Filled<A> {
    fn new(mut allocator: A, trace: &Trace) -> Self {
        let live = trace.lengths_bytes.iter().map(|&length_bytes| allocator.allocate(length_bytes)).collect();
        let mut filled = Self { allocator, live };
        filled.replay(&trace.exchanges[..trace.lengths_bytes.len()]);
        filled
    }

    fn replay(&mut self, exchanges: &[Exchange]) {
        let next = exchanges.iter().skip(1).chain(exchanges.last());
        for (&Exchange { victim, length_bytes }, next) in exchanges.iter().zip(next) {
            // Finding out what to free is not the allocator's work: let it be in the cache.
            black_box(self.live[next.victim as usize]);
            let handle = &mut self.live[victim as usize];
            self.allocator.free(*handle);
            *handle = self.allocator.allocate(u64::from(length_bytes));
        }
    }

    fn ns_a_pair(&mut self, exchanges: &[Exchange]) -> f64 {
        let begin = cpu_time();
        self.replay(black_box(exchanges));
        (cpu_time() - begin).as_secs_f64() * 1e9 / exchanges.len() as f64
    }
}

struct OurPool {
    pool: Pool,
    slice: SliceId,
}

impl OurPool {
    /// A pool of 8 GPUs of 137 GiB, all for one slice.
    fn new() -> Self {
        let gpus = (0..8).map(|gpu| GpuCapacity { id: GpuId(gpu), shards: 2200 }).collect();
        let topology = Topology::uniform(8, Link::NvLink(18));
        let shard_bytes = PoolConfig::DEFAULT_SHARD_BYTES;
        let mut pool = Pool::new(PoolConfig { shard_bytes, gpus, topology, tier_regions: 0 })
            .expect("a valid configuration");
        let limit_bytes = 8 * 2200 * shard_bytes;
        let band = DeviceRange {
            start: DeviceAddress(1 << 40),
            len_bytes: pool.band_bytes(limit_bytes).expect("a band of this length exists"),
        };
        let placement = Placement::Spill;
        let config =
            SliceConfig { name: "bench".to_owned(), guarantee_bytes: 0, limit_bytes, placement, home: None };
        let slice = pool.add_slice(config, band).expect("an empty pool takes a slice");
        Self { pool, slice }
    }
}

impl Subject for OurPool {
    type Handle = DeviceAddress;

    fn allocate(&mut self, length_bytes: u64) -> DeviceAddress {
        let request = AllocRequest { length_bytes, alignment_bytes: GRANULE_BYTES };
        let grant = self.pool.plan_alloc(self.slice, request).expect("the pool is large enough");
        self.pool.commit(grant).range.start
    }

    fn free(&mut self, base: DeviceAddress) {
        let freeing = self.pool.begin_free(self.slice, base).expect("the allocation is live");
        let plan = self.pool.plan_release(freeing);
        let mut more = self.pool.finish_release(plan);
        while let Some(plan) = more {
            more = self.pool.finish_release(plan);
        }
    }
}

impl Subject for Allocator {
    type Handle = offset_allocator::Allocation;

    fn allocate(&mut self, length_bytes: u64) -> Self::Handle {
        let granules = u32::try_from(length_bytes.div_ceil(GRANULE_BYTES)).expect("a short allocation");
        Allocator::allocate(self, granules).expect("the space is large enough")
    }

    fn free(&mut self, handle: Self::Handle) {
        Allocator::free(self, handle);
    }
}

/// Time this thread has run: what others take of the machine does not count.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("Linux has this clock").into()
}

fn median(mut runs: Vec<f64>) -> f64 {
    runs.sort_by(f64::total_cmp);
    runs[runs.len() / 2]
}

fn main() {
    println!("Medians of {RUNS} runs of {PAIRS_A_RUN} pairs; log2(n) of the live allocations.");
    println!(
        "{:>10} {:>12} {:>12} {:>12} {:>12} {:>24}",
        "live", "pairs/s", "best", "ns/pair", "ns/log2(n)", "offset-allocator pairs/s"
    );
    for live in LIVE {
        let trace = Trace::of(live);
        let mut ours = Filled::new(OurPool::new(), &trace);
        let mut theirs = Filled::new(Allocator::with_max_allocs(u32::MAX, 4 * live as u32), &trace);
        let (mut our_ns, mut their_ns) = (Vec::new(), Vec::new());
        for run in 0..RUNS {
            our_ns.push(ours.ns_a_pair(trace.run(run)));
            their_ns.push(theirs.ns_a_pair(trace.run(run)));
        }
        ours.allocator.pool.verify().expect("the books are in order");
        let best = our_ns.iter().copied().fold(f64::INFINITY, f64::min);
        let (our_ns, their_ns) = (median(our_ns), median(their_ns));
        println!(
            "{live:>10} {:>12.0} {:>12.0} {our_ns:>12.0} {:>12.1} {:>24.0}",
            1e9 / our_ns,
            1e9 / best,
            our_ns / (live as f64).log2(),
            1e9 / their_ns
        );
    }
}
