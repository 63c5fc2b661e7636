//! How fast the pool allocates and frees, by the number of live allocations: `cargo bench -p vram-pool --bench alloc`.
//!
//! One pair is plan, commit, begin free, plan release, finish release: all the pool does for an allocation's life. The
//! live allocations are of mixed sizes and a random one is freed before each new one, so that the free map is as broken
//! up as random use makes it.

use std::time::Instant;

use vram_gpu::{DeviceAddress, DeviceRange, GpuId, Link, Topology};
use vram_pool::{AllocRequest, GpuCapacity, Placement, Pool, PoolConfig, SliceConfig, SliceId};

const PAIRS: u64 = 1_000_000;

/// A small generator of random numbers (xorshift64*): the same run each time.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}

fn pool() -> (Pool, SliceId) {
    let gpus = (0..8).map(|gpu| GpuCapacity { id: GpuId(gpu), shards: 2200 }).collect();
    let topology = Topology::uniform(8, Link::NvLink(18));
    let shard_bytes = PoolConfig::DEFAULT_SHARD_BYTES;
    let mut pool = Pool::new(PoolConfig { shard_bytes, gpus, topology }).expect("a valid configuration");
    let limit_bytes = 8 * 2200 * shard_bytes;
    let band = DeviceRange {
        start: DeviceAddress(1 << 40),
        len_bytes: pool.band_bytes(limit_bytes).expect("a band of this length exists"),
    };
    let placement = Placement::Spill;
    let config =
        SliceConfig { name: "bench".to_owned(), guarantee_bytes: 0, limit_bytes, placement, home: None };
    let slice = pool.add_slice(config, band).expect("an empty pool takes a slice");
    (pool, slice)
}

fn allocate(pool: &mut Pool, slice: SliceId, random: &mut Random) -> DeviceAddress {
    let length_bytes = 1 + random.below(64 << 10);
    let request = AllocRequest { length_bytes, alignment_bytes: 256 };
    let grant = pool.plan_alloc(slice, request).expect("the pool is large enough");
    pool.commit(grant).range.start
}

fn free(pool: &mut Pool, slice: SliceId, base: DeviceAddress) {
    let freeing = pool.begin_free(slice, base).expect("the allocation is live");
    let plan = pool.plan_release(freeing);
    let mut more = pool.finish_release(plan);
    while let Some(plan) = more {
        more = pool.finish_release(plan);
    }
}

fn main() {
    println!("{:>10} {:>14} {:>10}", "live", "pairs/s", "ns/op");
    for live in [1_000u64, 10_000, 100_000, 1_000_000] {
        let (mut pool, slice) = pool();
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let mut bases: Vec<_> = (0..live).map(|_| allocate(&mut pool, slice, &mut random)).collect();
        let churn = |pool: &mut Pool, bases: &mut Vec<DeviceAddress>, random: &mut Random| {
            let victim = random.below(live) as usize;
            free(pool, slice, bases[victim]);
            bases[victim] = allocate(pool, slice, random);
        };
        (0..live).for_each(|_| churn(&mut pool, &mut bases, &mut random));
        let begin = Instant::now();
        (0..PAIRS).for_each(|_| churn(&mut pool, &mut bases, &mut random));
        let seconds = begin.elapsed().as_secs_f64();
        pool.verify().expect("the books are in order");
        let pairs_per_s = PAIRS as f64 / seconds;
        println!("{live:>10} {pairs_per_s:>14.0} {:>10.0}", 5e8 / pairs_per_s);
    }
}
