//! What the pool's books take: `cargo test --release -p vram-pool --test memory -- --nocapture` prints it.
//!
//! Promised: 64 bytes a region and 64 bytes a live allocation, however broken up the free addresses are, and some KiB a
//! slice; with lower tiers, too. An allocator that counts bytes stands under this test program; it is one test, so that nothing else allocates.

use peak_alloc::PeakAlloc;
use vram_gpu::{DeviceAddress, DeviceRange, GpuId, Link, Topology};
use vram_pool::{
    AccessKind, AllocRequest, GpuCapacity, Placement, Pool, PoolConfig, PoolTime, RegionIndex, SliceConfig,
    SliceId, TierCopy,
};

#[global_allocator]
static COUNTED: PeakAlloc = PeakAlloc;

const SHARD_BYTES: u64 = 64 << 20;
const BYTES_A_REGION: usize = 64;
const BYTES_AN_ALLOCATION: usize = 64;
/// A slice and a pool with nothing in them, and lists that have room for more than is in them.
const FIXED_BYTES: usize = 8 << 10;

/// A small generator of random numbers (xorshift64*): the same run each time.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }
}

/// A pool with one slice that may have all of it, and what was used before it was made.
struct Measured {
    used_before: usize,
    pool: Pool,
    slice: SliceId,
    regions: usize,
}

impl Measured {
    fn new(gpus: u16, shards_a_gpu: u32, tier_regions: u32) -> Self {
        let used_before = COUNTED.current_usage();
        let capacities = (0..gpus).map(|gpu| GpuCapacity { id: GpuId(gpu), shards: shards_a_gpu }).collect();
        let topology = Topology::uniform(usize::from(gpus), Link::NvLink(18));
        let config = PoolConfig { shard_bytes: SHARD_BYTES, gpus: capacities, topology, tier_regions };
        let mut pool = Pool::new(config).unwrap();
        let limit_shards = u64::from(gpus) * u64::from(shards_a_gpu) + u64::from(tier_regions);
        let limit_bytes = limit_shards * SHARD_BYTES;
        let config = SliceConfig {
            name: "tenant".to_owned(),
            guarantee_bytes: 0,
            limit_bytes,
            placement: Placement::Spill,
            home: None,
        };
        let len_bytes = pool.band_bytes(limit_bytes).unwrap();
        let slice = pool.add_slice(config, DeviceRange { start: DeviceAddress(1 << 40), len_bytes }).unwrap();
        Self { used_before, pool, slice, regions: (len_bytes / SHARD_BYTES) as usize }
    }

    fn allocate(&mut self, length_bytes: usize) -> DeviceAddress {
        let request = AllocRequest { length_bytes: length_bytes as u64, alignment_bytes: 0 };
        let grant = self.pool.plan_alloc(self.slice, request).unwrap();
        self.pool.commit(grant).range.start
    }

    fn free(&mut self, base: DeviceAddress) {
        let freeing = self.pool.begin_free(self.slice, base).unwrap();
        let plan = self.pool.plan_release(freeing);
        assert_eq!(self.pool.finish_release(plan), None);
    }

    /// Prints what is used, `apart` of which is the test's own, and checks it.
    fn check(&self, case: &str, apart: usize) -> usize {
        let used_bytes = COUNTED.current_usage() - self.used_before - apart;
        let live = self.pool.usage(self.slice).unwrap().allocations as usize;
        let bound_bytes = FIXED_BYTES + BYTES_A_REGION * self.regions + BYTES_AN_ALLOCATION * live;
        println!(
            "{case:<44} {:>8} regions {live:>8} live {used_bytes:>10} bytes {:>6.1} / live",
            self.regions,
            used_bytes as f64 / live as f64,
        );
        assert!(used_bytes <= bound_bytes, "{case}: {used_bytes} bytes used, {bound_bytes} promised");
        used_bytes
    }
}

/// Bytes a list takes of the heap.
fn heap_bytes<T>(list: &Vec<T>) -> usize {
    list.capacity() * size_of::<T>()
}

/// Mixed lengths, random frees: the steady state of a busy slice. Then most are freed, at random.
fn measure_random_use(live: usize) {
    let mut measured = Measured::new(1, (live / 1000).max(8) as u32, 0);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut bases = Vec::with_capacity(live);
    for _ in 0..live {
        bases.push(measured.allocate(1 + random.below(64 << 10)));
    }
    measured.check("mixed lengths, filled", heap_bytes(&bases));
    for _ in 0..2 * live {
        let victim = random.below(live);
        measured.free(bases[victim]);
        bases[victim] = measured.allocate(1 + random.below(64 << 10));
    }
    measured.check("mixed lengths, random frees and allocations", heap_bytes(&bases));
    while bases.len() > live / 20 {
        let victim = random.below(bases.len());
        measured.free(bases.swap_remove(victim));
    }
    measured.check("mixed lengths, one in twenty left at random", heap_bytes(&bases));
    measured.pool.verify().unwrap();
}

/// As many holes as there are allocations: every other one of the smallest is freed.
fn measure_holes(live: usize) {
    let mut measured = Measured::new(1, 8, 0);
    let bases: Vec<_> = (0..2 * live).map(|_| measured.allocate(256)).collect();
    measured.check("smallest allocations, filled", heap_bytes(&bases));
    for &base in bases.iter().step_by(2) {
        measured.free(base);
    }
    measured.check("smallest allocations, a hole beside each", heap_bytes(&bases));
}

/// A pool of 4 TiB, empty and then with a large allocation in every region.
fn measure_4_tib() {
    const MOST_BYTES: usize = 8 << 20;
    let mut measured = Measured::new(8, 8192, 0);
    assert!(measured.check("4 TiB, empty", 0) < MOST_BYTES);
    let mut bases = Vec::with_capacity(8 * 8192);
    for _ in 0..8 * 8192 {
        bases.push(measured.allocate((48 << 20) + 1));
    }
    assert!(measured.check("4 TiB, an allocation in each region", heap_bytes(&bases)) < MOST_BYTES);
}

/// As much again below the GPUs, and an allocation in every region, half of them born stored. All are used, and some
/// change places.
fn measure_tiers() {
    const REGIONS: usize = 2 * 8192;
    let mut measured = Measured::new(1, 8192, 8192);
    measured.check("512 GiB and tiers, empty", 0);
    let mut bases = Vec::with_capacity(REGIONS);
    for _ in 0..REGIONS - 2 {
        bases.push(measured.allocate(SHARD_BYTES as usize));
    }
    measured.check("512 GiB and tiers, an allocation in each", heap_bytes(&bases));
    for (at, &start) in bases.iter().enumerate() {
        let range = DeviceRange { start, len_bytes: SHARD_BYTES / 2 };
        measured.pool.touch(measured.slice, range, AccessKind::Write, PoolTime(at as u64));
    }
    for at in 0..REGIONS as u32 / 8 {
        let (_, victim) = measured.pool.victim_for(measured.slice, &[], PoolTime(0)).unwrap();
        let eviction = measured.pool.plan_eviction(measured.slice, victim.region).unwrap();
        assert_eq!(measured.pool.finish_eviction(eviction), None);
        let stored = RegionIndex(REGIONS as u32 - 3 - at);
        let promotion = measured.pool.plan_promotion(measured.slice, stored).unwrap().unwrap();
        assert_eq!(measured.pool.finish_promotion(promotion, TierCopy::Valid), None);
    }
    measured.check("512 GiB and tiers, after exchanges", heap_bytes(&bases));
    measured.pool.verify().unwrap();
}

#[test]
fn books_take_64_bytes_a_region_and_64_an_allocation() {
    measure_random_use(20_000);
    measure_random_use(100_000);
    measure_holes(20_000);
    measure_holes(100_000);
    measure_4_tib();
    measure_tiers();
}
