//! Order, overlap, cancellation and failure of jobs on streams, over simulated GPUs.

mod rig;

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rig::{MIB, WAIT, host, job, outcome, rig};
use vram_gpu::{GpuId, Pattern};
use vram_guest_memory::{HostBuffer, SpanList};
use vram_transfer::{
    Again, CloseWait, Flow, Job, Lease, Locate, Located, Outcome, Part, TransferError, Work,
};

#[test]
fn jobs_of_one_stream_over_every_lane_run_in_order() {
    let rig = rig();
    rig.sim.faults().delay_copies(Duration::from_millis(2));
    let stream = rig.engine.stream(Flow::Requests(0));
    let mut ends = Vec::new();
    for round in 0..20u8 {
        // Write over both GPUs, copy from one to the other, fill a byte, read: each depends on the one before.
        let back = host(&vec![0; MIB as usize]);
        let works = [
            Work::Write { to: rig.parts(MIB + MIB / 2, MIB), from: host(&vec![round; MIB as usize]) },
            Work::Copy { to: rig.parts(0, MIB), from: rig.parts(MIB + MIB / 2, MIB) },
            Work::Fill { to: rig.parts(5, 1), pattern: Pattern::U8(!round) },
            Work::Read { from: rig.parts(0, MIB), to: back.clone() },
        ];
        for work in works {
            let (job, end) = job(work);
            stream.submit(job);
            ends.push(end);
        }
        let (barrier, end) = job(Work::Barrier);
        stream.submit(barrier);
        assert!(outcome(&end).result.is_ok());
        let mut bytes = vec![0; MIB as usize];
        back.read_into(&mut bytes);
        assert_eq!(bytes[5], !round);
        assert!(bytes[..5].iter().chain(&bytes[6..]).all(|byte| *byte == round));
    }
    for end in ends {
        assert!(outcome(&end).result.is_ok());
    }
}

#[test]
fn completions_of_one_stream_come_in_order() {
    let rig = rig();
    let stream = rig.engine.stream(Flow::Requests(0));
    let order = Arc::new(Mutex::new(Vec::new()));
    let (last, ended) = channel();
    for number in 0..200u64 {
        let work = match number % 4 {
            0 => Work::Write { to: rig.parts(number * 64, 64), from: host(&[1; 64]) },
            1 => Work::Fill { to: rig.parts(3 * MIB, 64), pattern: Pattern::U32(1) },
            2 => Work::Barrier,
            _ => Work::Read { from: rig.parts(2 * MIB - 32, 64), to: host(&[0; 64]) },
        };
        let (order, last) = (Arc::clone(&order), last.clone());
        let done = Box::new(move |outcome: Outcome| {
            assert!(outcome.result.is_ok());
            order.lock().unwrap().push(number);
            if number == 199 {
                last.send(()).unwrap();
            }
        });
        stream.submit(Job { work, leases: Vec::new(), done });
    }
    ended.recv_timeout(WAIT).unwrap();
    assert_eq!(*order.lock().unwrap(), (0..200).collect::<Vec<_>>());
}

#[test]
fn streams_do_not_wait_for_each_other() {
    let rig = rig();
    let (slow, quick) = (rig.engine.stream(Flow::Requests(0)), rig.engine.stream(Flow::Requests(0)));
    rig.sim.faults().pause(GpuId(0));
    let (held, held_end) = job(Work::Fill { to: rig.parts(0, 64), pattern: Pattern::U8(1) });
    slow.submit(held);
    let (free, free_end) = job(Work::Fill { to: rig.parts(3 * MIB, 64), pattern: Pattern::U8(1) });
    quick.submit(free);
    assert!(outcome(&free_end).result.is_ok());
    assert!(held_end.try_recv().is_err());
    rig.sim.faults().resume(GpuId(0));
    assert!(outcome(&held_end).result.is_ok());
}

#[test]
fn close_cancels_what_has_not_begun_and_waits_for_what_has() {
    let rig = rig();
    let stream = rig.engine.stream(Flow::Requests(0));
    rig.sim.faults().pause(GpuId(0));
    let (running, running_end) = job(Work::Fill { to: rig.parts(0, 64), pattern: Pattern::U8(1) });
    stream.submit(running);
    // Another lane, so it has to wait for the first.
    let (waiting, waiting_end) = job(Work::Fill { to: rig.parts(3 * MIB, 64), pattern: Pattern::U8(1) });
    stream.submit(waiting);
    stream.close();
    assert!(matches!(outcome(&waiting_end).result, Err(TransferError::Cancelled)));
    let (late, late_end) = job(Work::Barrier);
    stream.submit(late);
    assert!(matches!(outcome(&late_end).result, Err(TransferError::Cancelled)));
    assert_eq!(stream.wait_idle(Duration::from_millis(20)), CloseWait::StillRunning);
    rig.sim.faults().resume(GpuId(0));
    assert_eq!(stream.wait_idle(WAIT), CloseWait::Idle);
    assert!(outcome(&running_end).result.is_ok());
}

#[test]
fn lease_is_held_until_the_copy_has_run_and_dropped_before_the_answer() {
    struct Dropped(Arc<Mutex<bool>>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            *self.0.lock().unwrap() = true;
        }
    }
    let rig = rig();
    let dropped = Arc::new(Mutex::new(false));
    let lease: Lease = Arc::new(Dropped(Arc::clone(&dropped)));
    rig.sim.faults().pause(GpuId(0));
    let (sender, receiver) = channel();
    let seen = Arc::clone(&dropped);
    let done = Box::new(move |_| sender.send(*seen.lock().unwrap()).unwrap());
    let work = Work::Fill { to: rig.parts(0, 64), pattern: Pattern::U8(1) };
    rig.engine.stream(Flow::Requests(0)).submit(Job { work, leases: vec![lease], done });
    std::thread::sleep(Duration::from_millis(20));
    assert!(!*dropped.lock().unwrap());
    rig.sim.faults().resume(GpuId(0));
    assert!(receiver.recv_timeout(WAIT).unwrap());
}

#[test]
fn failed_copy_says_how_far_it_got_and_the_next_job_is_fine() {
    let rig = rig();
    let stream = rig.engine.stream(Flow::Requests(0));
    rig.sim.faults().fail_copy(2);
    // Two parts on two GPUs: whichever copy is second fails.
    let (failing, end) =
        job(Work::Write { to: rig.parts(MIB, 2 * MIB), from: host(&vec![3; 2 * MIB as usize]) });
    stream.submit(failing);
    let failed = outcome(&end);
    assert!(matches!(failed.result, Err(TransferError::Gpu(_))));
    assert!(failed.moved_bytes == 0 || failed.moved_bytes == MIB);
    let (fine, end) =
        job(Work::Write { to: rig.parts(MIB, 2 * MIB), from: host(&vec![3; 2 * MIB as usize]) });
    stream.submit(fine);
    let fine = outcome(&end);
    assert!(fine.result.is_ok());
    assert_eq!(fine.moved_bytes, 2 * MIB);
}

#[test]
fn more_steps_than_a_lane_keeps_enqueued_all_run() {
    let rig = rig();
    let stream = rig.engine.stream(Flow::Requests(0));
    // Every other byte pair of a buffer: nothing merges, so each job has 1000 steps.
    let buffer = HostBuffer::new(4000).unwrap();
    buffer.span().write_from(&[0xab; 4000]);
    let mut ends = Vec::new();
    for number in 0..50u64 {
        let mut from = SpanList::new();
        for i in 0..1000 {
            from.push(buffer.span().part(i * 4, 2).unwrap());
        }
        let (job, end) = job(Work::Write { to: rig.parts(number * 2000, 2000), from });
        stream.submit(job);
        ends.push(end);
    }
    for end in ends {
        let outcome = outcome(&end);
        assert!(outcome.result.is_ok(), "{:?}", outcome.result);
    }
    let back = host(&[0; 100_000]);
    let (read, end) = job(Work::Read { from: rig.parts(0, 100_000), to: back.clone() });
    stream.submit(read);
    assert!(outcome(&end).result.is_ok());
    let mut bytes = vec![0; 100_000];
    back.read_into(&mut bytes);
    assert!(bytes.iter().all(|byte| *byte == 0xab));
}

#[test]
fn engine_dropped_with_jobs_under_way_ends_every_one() {
    let rig = rig();
    rig.sim.faults().delay_copies(Duration::from_millis(5));
    let mut ends = Vec::new();
    for i in 0..20 {
        let stream = rig.engine.stream(Flow::Requests(0));
        let (job, end) = job(Work::Fill { to: rig.parts(i * 64, 64), pattern: Pattern::U8(1) });
        stream.submit(job);
        ends.push(end);
    }
    drop(rig.engine);
    for end in ends {
        outcome(&end);
    }
}

/// Says that bytes are on their way until it is told where they are, and counts how often it is asked.
#[derive(Clone, Default)]
struct Moving(Arc<Mutex<MovingState>>);

#[derive(Default)]
struct MovingState {
    place: Option<Vec<Part>>,
    asked: usize,
    again: Vec<Again>,
}

impl Locate for Moving {
    fn locate(&mut self, again: Again) -> Located {
        let mut state = self.0.lock().unwrap();
        state.asked += 1;
        match &state.place {
            Some(to) => Located::Here(
                Work::Fill { to: to.clone(), pattern: Pattern::U8(5) },
                Arc::new("the bytes stay where they are") as Lease,
            ),
            None => {
                state.again.push(again);
                Located::Moving
            }
        }
    }
}

impl Moving {
    fn arrive(&self, place: Vec<Part>) {
        let mut state = self.0.lock().unwrap();
        state.place = Some(place);
        let again = std::mem::take(&mut state.again);
        drop(state);
        again.into_iter().for_each(|again| again());
    }
}

#[test]
fn job_on_moving_bytes_holds_its_stream_and_no_other_until_they_arrive() {
    let rig = rig();
    let group = rig.engine.group(Flow::Requests(0));
    let (stream, other) = (group.stream(), group.stream());
    let moving = Moving::default();
    let (located, end) = job(Work::Located(Box::new(moving.clone())));
    stream.submit(located);
    let mut behind = Vec::new();
    for _ in 0..50 {
        let (next, end) = job(Work::Fill { to: rig.parts(0, 64), pattern: Pattern::U8(6) });
        stream.submit(next);
        behind.push(end);
    }
    let (beside, beside_end) = job(Work::Fill { to: rig.parts(128, 64), pattern: Pattern::U8(7) });
    other.submit(beside);
    assert!(beside_end.recv_timeout(WAIT).unwrap().result.is_ok());
    assert!(end.try_recv().is_err() && behind.iter().all(|end| end.try_recv().is_err()));
    assert_eq!(stream.wait_idle(Duration::ZERO), CloseWait::StillRunning);
    moving.arrive(rig.parts(0, 64));
    for end in std::iter::once(end).chain(behind) {
        assert!(end.recv_timeout(WAIT).unwrap().result.is_ok());
    }
    // Once in vain, and once when they were there.
    assert_eq!(moving.0.lock().unwrap().asked, 2);
}

#[test]
fn bytes_are_not_located_behind_a_barrier_that_may_wait_for_them() {
    let rig = rig();
    let group = rig.engine.group(Flow::Requests(0));
    let (stream, other) = (group.stream(), group.stream());
    let (first, second) = (Moving::default(), Moving::default());
    let (waits, waits_end) = job(Work::Located(Box::new(first.clone())));
    other.submit(waits);
    let (barrier, barrier_end) = job(Work::GroupBarrier);
    stream.submit(barrier);
    let (behind, behind_end) = job(Work::Located(Box::new(second.clone())));
    second.arrive(rig.parts(64, 64));
    stream.submit(behind);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(second.0.lock().unwrap().asked, 0);
    first.arrive(rig.parts(0, 64));
    for end in [waits_end, barrier_end, behind_end] {
        assert!(end.recv_timeout(WAIT).unwrap().result.is_ok());
    }
}

#[test]
fn stream_closed_while_bytes_move_cancels_and_may_be_asked_again() {
    let rig = rig();
    let stream = rig.engine.stream(Flow::Requests(0));
    let moving = Moving::default();
    let (located, end) = job(Work::Located(Box::new(moving.clone())));
    stream.submit(located);
    stream.close();
    assert!(matches!(end.recv_timeout(WAIT).unwrap().result, Err(TransferError::Cancelled)));
    assert_eq!(stream.wait_idle(WAIT), CloseWait::Idle);
    moving.arrive(rig.parts(0, 64));
    assert_eq!(moving.0.lock().unwrap().asked, 1);
}
