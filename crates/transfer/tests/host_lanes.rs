//! What needs no GPU: pieces, turns, failures.

mod rig;

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rig::{Gate, MIB, Store, bytes_in, host, job, noise, outcome, rig, rig_of};
use vram_gpu::Pattern;
use vram_guest_memory::{GuestMap, HostBuffer, HostSpan, RegionSpec, SpanList, sigbus};
use vram_transfer::{ColdSource, Flow, Part, TransferError, Work};

fn span_of(len: u64) -> HostSpan {
    HostBuffer::new(len as usize).unwrap().span().part(0, len as usize).unwrap()
}

/// A store with a fault behind some of its bytes.
struct Faulty {
    good_bytes: u64,
    fault: fn() -> Result<(), TransferError>,
    asked: AtomicUsize,
}

impl Faulty {
    fn new(good_bytes: u64, fault: fn() -> Result<(), TransferError>) -> Arc<Self> {
        Arc::new(Self { good_bytes, fault, asked: AtomicUsize::new(0) })
    }
}

impl ColdSource for Faulty {
    fn read(&self, offset_bytes: u64, to: &HostSpan) -> Result<(), TransferError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        to.write_from(&vec![1; to.len_bytes()]);
        if offset_bytes + to.len_bytes() as u64 > self.good_bytes { (self.fault)() } else { Ok(()) }
    }
}

#[test]
fn long_jobs_are_cut_into_pieces_that_lose_no_byte() {
    let rig = rig_of(12 * MIB);
    let stream = rig.engine.stream(Flow::Requests(0));
    let len = 20 * MIB + 7;
    let bytes = noise(len + 5);
    let (memory, back) = (span_of(len), host(&vec![0; len as usize]));
    let store = Arc::new(Store(bytes.clone()));
    let cold = || Part::cold(Arc::<Store>::clone(&store), 5, len);
    let works = [
        // From a store to both GPUs, from there to memory, within memory, and back again to a GPU.
        Work::Copy { to: rig.parts(3, len), from: vec![cold()] },
        Work::Copy { to: vec![Part::Host(memory.clone())], from: rig.parts(3, len) },
        Work::Read { from: vec![Part::Host(memory.clone())], to: back.clone() },
    ];
    for work in works {
        let (job, end) = job(work);
        stream.submit(job);
        let outcome = outcome(&end);
        assert!(outcome.result.is_ok(), "{:?}", outcome.result);
        assert_eq!(outcome.moved_bytes, len);
    }
    assert!(bytes_in(&back) == bytes[5..]);
    let fill = Work::Fill {
        to: vec![Part::Host(memory.part(1, 20 << 20).unwrap())],
        pattern: Pattern::U32(0x0403_0201),
    };
    let direct = Work::Read { from: vec![cold()], to: back.clone() };
    for work in [fill, direct] {
        rig.engine.run(Flow::Requests(0), work, Vec::new()).unwrap();
    }
    assert!(bytes_in(&back) == bytes[5..]);
    let mut filled = vec![0; len as usize];
    memory.read_into(&mut filled);
    assert_eq!(filled[0], bytes[5]);
    assert!(filled[1..1 + (20 << 20)].chunks(4).all(|value| value == [1, 2, 3, 4]));
    assert!(filled[1 + (20 << 20)..] == bytes[6 + (20 << 20)..5 + len as usize]);
}

#[test]
fn slow_stores_of_one_flow_hold_up_neither_copies_nor_reads_of_others() {
    let rig = rig();
    let gate = Arc::new(Gate::default());
    let mut held = Vec::new();
    for _ in 0..6 {
        // Two pieces each.
        let stream = rig.engine.stream(Flow::Requests(1));
        let (job, end) = job(Work::Read { from: vec![gate.part(8 * MIB)], to: host(&vec![0; 8 << 20]) });
        stream.submit(job);
        held.push(end);
    }
    gate.wait_asked(2);
    let bytes = noise(3 * MIB);
    let memory = span_of(3 * MIB);
    for flow in [Flow::Requests(2), Flow::Upkeep(1)] {
        let works = [
            Work::Copy {
                to: vec![Part::Host(memory.clone())],
                from: vec![Store(bytes.clone()).part(0, 3 * MIB)],
            },
            Work::Copy { to: rig.parts(MIB, 3 * MIB), from: vec![Store(bytes.clone()).part(0, 3 * MIB)] },
            Work::Write { to: vec![Part::Host(memory.clone())], from: host(&bytes) },
        ];
        for work in works {
            let (job, end) = job(work);
            rig.engine.stream(flow).submit(job);
            assert!(outcome(&end).result.is_ok());
        }
    }
    // Not even the slow tenant's own copies wait.
    let (own, own_end) = job(Work::Write { to: vec![Part::Host(memory)], from: host(&bytes) });
    rig.engine.stream(Flow::Requests(1)).submit(own);
    assert!(outcome(&own_end).result.is_ok());
    assert_eq!(gate.asked(), 2, "no more of one flow at once");
    assert!(held.iter().all(|end| end.try_recv().is_err()));
    gate.open();
    for end in held {
        assert!(outcome(&end).result.is_ok());
    }
    assert_eq!(gate.asked(), 12);
}

#[test]
fn many_slow_flows_leave_room_for_another() {
    let rig = rig();
    let gate = Arc::new(Gate::default());
    let mut held = Vec::new();
    for flow in 0..12 {
        let (job, end) =
            job(Work::Copy { to: vec![Part::Host(span_of(12 * MIB))], from: vec![gate.part(12 * MIB)] });
        rig.engine.stream(Flow::Requests(flow)).submit(job);
        held.push(end);
    }
    gate.wait_asked(24);
    let (other, end) = job(Work::Read { from: vec![Store(noise(64)).part(0, 64)], to: host(&[0; 64]) });
    rig.engine.stream(Flow::Requests(99)).submit(other);
    assert!(outcome(&end).result.is_ok());
    gate.open();
    for end in held {
        assert!(outcome(&end).result.is_ok());
    }
}

#[test]
fn stream_keeps_its_order_from_lane_to_lane() {
    let rig = rig();
    let stream = rig.engine.stream(Flow::Requests(0));
    let memory = span_of(MIB);
    let gate = Arc::new(Gate::default());
    let back = host(&vec![0; 1 << 20]);
    let works = [
        Work::Copy { to: rig.parts(MIB, MIB), from: vec![gate.part(MIB)] },
        Work::Copy { to: vec![Part::Host(memory.clone())], from: rig.parts(MIB, MIB) },
        Work::Fill { to: vec![Part::Host(memory.part(0, 1000).unwrap())], pattern: Pattern::U8(2) },
        Work::Copy { to: rig.parts(2 * MIB, MIB), from: vec![Part::Host(memory)] },
        Work::Barrier,
        Work::Read { from: rig.parts(2 * MIB, MIB), to: back.clone() },
    ];
    let ends: Vec<_> = works
        .into_iter()
        .map(|work| {
            let (job, end) = job(work);
            stream.submit(job);
            end
        })
        .collect();
    gate.wait_asked(1);
    assert!(ends.iter().all(|end| end.try_recv().is_err()));
    gate.open();
    for end in ends {
        assert!(outcome(&end).result.is_ok());
    }
    let bytes = bytes_in(&back);
    assert!(bytes[..1000].iter().all(|byte| *byte == 2) && bytes[1000..].iter().all(|byte| *byte == 1));
}

#[test]
fn failing_store_says_how_far_it_surely_got_and_is_not_asked_for_the_rest() {
    let rig = rig_of(64 * MIB);
    let damaged = || Err(TransferError::DataLost);
    // Into scattered memory, a MiB each.
    let source = Faulty::new(5 * MIB + 10, damaged);
    let mut scattered = SpanList::new();
    (0..12).for_each(|_| scattered.push(span_of(MIB)));
    let (read, end) = job(Work::Read { from: vec![Part::cold(source, 0, 12 * MIB)], to: scattered });
    rig.engine.stream(Flow::Requests(0)).submit(read);
    let failed = outcome(&end);
    assert!(matches!(failed.result, Err(TransferError::DataLost)));
    assert_eq!(failed.moved_bytes, 5 * MIB);
    // Behind bytes that are elsewhere, to a GPU.
    let source = Faulty::new(0, damaged);
    let from = vec![Part::Host(span_of(MIB)), Part::cold(Arc::<Faulty>::clone(&source), 0, 60 * MIB)];
    let (copy, end) = job(Work::Copy { to: rig.parts(0, 61 * MIB), from });
    rig.engine.stream(Flow::Requests(0)).submit(copy);
    let failed = outcome(&end);
    assert!(matches!(failed.result, Err(TransferError::DataLost)));
    assert_eq!(failed.moved_bytes, MIB);
    assert!(source.asked.load(Ordering::Relaxed) <= 2, "asked though it had failed");
}

#[test]
fn gpu_that_fails_what_a_store_gave_fails_the_job() {
    let rig = rig();
    rig.sim.faults().fail_copy(1);
    let (copy, end) = job(Work::Copy { to: rig.parts(0, MIB), from: vec![Store(noise(MIB)).part(0, MIB)] });
    rig.engine.stream(Flow::Requests(0)).submit(copy);
    let failed = outcome(&end);
    assert!(matches!(failed.result, Err(TransferError::Gpu(_))), "{:?}", failed.result);
    assert_eq!(failed.moved_bytes, 0);
}

#[test]
fn panicking_store_fails_its_job_and_no_other() {
    let rig = rig();
    let stream = rig.engine.stream(Flow::Requests(0));
    for _ in 0..40 {
        let source = Faulty::new(0, || panic!("told to"));
        let (read, end) = job(Work::Read { from: vec![Part::cold(source, 0, 64)], to: host(&[0; 64]) });
        stream.submit(read);
        assert!(matches!(outcome(&end).result, Err(TransferError::Unavailable { .. })));
    }
    let (fine, end) = job(Work::Read { from: vec![Store(noise(64)).part(0, 64)], to: host(&[0; 64]) });
    stream.submit(fine);
    assert!(outcome(&end).result.is_ok());
}

#[test]
fn guest_memory_that_vanished_is_reported() {
    sigbus::install().unwrap();
    let rig = rig();
    let mut file = tempfile::tempfile_in("/dev/shm").unwrap();
    file.write_all(&[1; 8192]).unwrap();
    let spec = RegionSpec {
        guest_start: 0,
        len_bytes: 8192,
        frontend_start: 0x5000_0000,
        file: file.try_clone().unwrap(),
        file_offset: 0,
    };
    let map = GuestMap::new().with_region(spec).unwrap();
    let mut lost = SpanList::new();
    assert!(map.spans(0, 8192, |span| lost.push(span)));
    file.set_len(4096).unwrap();
    let works = [
        Work::Write { to: vec![Part::Host(span_of(8192))], from: lost.clone() },
        Work::Read { from: vec![Store(noise(8192)).part(0, 8192)], to: lost.clone() },
        Work::Read {
            from: vec![Part::cold(Faulty::new(0, || Err(TransferError::DataLost)), 0, 8192)],
            to: lost,
        },
    ];
    for work in works {
        let result = rig.engine.run(Flow::Requests(0), work, Vec::new());
        assert!(matches!(result, Err(TransferError::HostMemoryLost)), "{result:?}");
    }
}
