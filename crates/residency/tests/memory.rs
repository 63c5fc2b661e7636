//! Allocations from plan to shards and back, over simulated GPUs whose fresh memory is full of garbage.

use std::sync::Arc;
use std::time::Duration;

use vram_gpu::{Backend, DeviceRange, GpuId, Pattern};
use vram_gpu_sim::{SimBackend, SimConfig};
use vram_guest_memory::{HostBuffer, SpanList};
use vram_pool::{AllocError, AllocRequest, Placement, SliceConfig, SliceId};
use vram_residency::{AllocateError, MemoryConfig, MemoryLease, Residency};
use vram_transfer::{Flow, Job, Work};

const MIB: u64 = 1 << 20;

fn rig(spec: &str) -> (Arc<SimBackend>, Arc<Residency>) {
    let sim = Arc::new(SimBackend::new(SimConfig::parse(spec).unwrap()).unwrap());
    let backend: Arc<dyn Backend> = Arc::<SimBackend>::clone(&sim);
    let residency = Residency::new(backend, MemoryConfig { shard_bytes: 2 * MIB, reserve_bytes: 0 }).unwrap();
    (sim, residency)
}

fn slice(residency: &Arc<Residency>, name: &str, limit: u64) -> SliceId {
    residency
        .add_slice(SliceConfig {
            name: name.to_owned(),
            guarantee_bytes: 0,
            limit_bytes: limit,
            placement: Placement::Spill,
            home: None,
        })
        .unwrap()
}

fn alloc(residency: &Arc<Residency>, slice: SliceId, length: u64) -> Result<MemoryLease, AllocateError> {
    residency.allocate(slice, AllocRequest { length_bytes: length, alignment_bytes: 256 })
}

/// Reads a whole allocation.
fn read(residency: &Arc<Residency>, slice: SliceId, range: DeviceRange) -> Vec<u8> {
    let buffer = HostBuffer::new(range.len_bytes as usize).unwrap();
    let mut to = SpanList::new();
    to.push(buffer.span().part(0, range.len_bytes as usize).unwrap());
    let (sender, receiver) = std::sync::mpsc::channel();
    let done = Box::new(move |outcome: vram_transfer::Outcome| sender.send(outcome.result).unwrap());
    let work = Work::Read { from: residency.parts(slice, range), to: to.clone() };
    residency.engine().stream(Flow::Requests(0)).submit(Job { work, leases: Vec::new(), done });
    receiver.recv().unwrap().unwrap();
    let mut bytes = vec![1; range.len_bytes as usize];
    to.read_into(&mut bytes);
    bytes
}

fn fill(residency: &Arc<Residency>, slice: SliceId, range: DeviceRange) {
    let (sender, receiver) = std::sync::mpsc::channel();
    let done = Box::new(move |outcome: vram_transfer::Outcome| sender.send(outcome.result).unwrap());
    let work = Work::Fill { to: residency.parts(slice, range), pattern: Pattern::U8(0xcc) };
    residency.engine().stream(Flow::Requests(0)).submit(Job { work, leases: Vec::new(), done });
    receiver.recv().unwrap().unwrap();
}

#[test]
fn allocate_over_gpus_is_zeroed_and_everything_comes_back() {
    let (sim, residency) = rig("3x8MiB,fresh=dirty");
    let slice = slice(&residency, "a", 24 * MIB);
    for round in 0..5 {
        let lease = alloc(&residency, slice, 20 * MIB).unwrap();
        assert!(read(&residency, slice, lease.range()).iter().all(|byte| *byte == 0), "round {round}");
        fill(&residency, slice, lease.range());
    }
    assert!(residency.wait_released(slice, Duration::from_secs(10)));
    let counts = sim.counts();
    assert_eq!((counts.shards, counts.mappings, counts.events), (0, 0, 0));
    assert_eq!(residency.pool().verify().err().map(|violation| violation.to_string()), None);
}

#[test]
fn allocate_out_of_memory_changes_nothing() {
    let (sim, residency) = rig("2x8MiB");
    let (a, b) = (slice(&residency, "a", 16 * MIB), slice(&residency, "b", 16 * MIB));
    let _kept = alloc(&residency, a, 10 * MIB).unwrap();
    let before = sim.counts();
    let error = alloc(&residency, b, 8 * MIB).err().unwrap();
    assert!(matches!(error, AllocateError::Pool(AllocError::OutOfMemory { .. })), "{error}");
    assert_eq!(sim.counts().shards, before.shards);
    alloc(&residency, b, 6 * MIB).unwrap();
}

#[test]
fn gpu_that_refuses_part_of_an_allocation_leaves_no_shard_behind() {
    let (sim, residency) = rig("2x8MiB,fresh=dirty");
    let slice = slice(&residency, "a", 16 * MIB);
    // The home GPU refuses; what was made before is given back and the other GPU takes over.
    sim.faults().fail_creates(GpuId(0), 1);
    let lease = alloc(&residency, slice, 8 * MIB).unwrap();
    assert_eq!(sim.counts().shards, 4);
    drop(lease);
    assert!(residency.wait_released(slice, Duration::from_secs(10)));
    assert_eq!(sim.counts().shards, 0);
}

#[test]
fn many_threads_allocate_and_free_and_nobody_sees_anothers_bytes() {
    let (sim, residency) = rig("4x16MiB,fresh=dirty");
    let threads: Vec<_> = (0..4u64)
        .map(|number| {
            let residency = Arc::clone(&residency);
            std::thread::spawn(move || {
                let slice = slice(&residency, &format!("s{number}"), 16 * MIB);
                let mut held: Vec<MemoryLease> = Vec::new();
                let mut state = number + 1;
                for _ in 0..60 {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    if held.len() > 4 || (state >> 60) > 10 && !held.is_empty() {
                        held.swap_remove((state >> 33) as usize % held.len());
                        continue;
                    }
                    let length = 1 + (state >> 20) % (3 * MIB);
                    match alloc(&residency, slice, length) {
                        Ok(lease) => {
                            assert!(read(&residency, slice, lease.range()).iter().all(|byte| *byte == 0));
                            fill(&residency, slice, lease.range());
                            held.push(lease);
                        }
                        Err(AllocateError::Pool(
                            AllocError::OverLimit { .. } | AllocError::OutOfMemory { .. },
                        )) => {
                            held.pop();
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                drop(held);
                assert!(residency.wait_released(slice, Duration::from_secs(20)));
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(sim.counts().shards, 0);
    assert_eq!(residency.pool().verify().err().map(|violation| violation.to_string()), None);
}
