//! Jobs that are located piece by piece.

mod rig;

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rig::{Gate, MIB, Rig, WAIT, bytes_in, host, job, outcome, rig};
use vram_gpu::{GpuId, Pattern};
use vram_transfer::{Again, CloseWait, Flow, Lease, Locate, Located, Outcome, Stream, TransferError, Work};

/// What a job does when it is located for the nth time.
enum Answer {
    Piece(Work),
    Moving,
    Here(Work),
    Gone,
}

/// What happened, in order.
#[derive(Clone, Debug, PartialEq)]
enum Event {
    Located,
    Let,
    Done,
    Behind,
}

#[derive(Clone, Default)]
struct Log {
    events: Arc<Mutex<Vec<Event>>>,
    again: Arc<Mutex<Option<Again>>>,
}

impl Log {
    fn note(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }

    fn again(&self) {
        let again = self.again.lock().unwrap().take().expect("nothing moves");
        again();
    }

    fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }
}

/// A job that has its answers ready.
struct Scripted {
    answers: std::vec::IntoIter<Answer>,
    log: Log,
}

struct Held(Log);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.note(Event::Let);
    }
}

impl Locate for Scripted {
    fn locate(&mut self, again: Again) -> Located {
        self.log.note(Event::Located);
        let lease: Lease = Arc::new(Held(self.log.clone()));
        match self.answers.next().expect("asked too often") {
            Answer::Piece(work) => {
                let rest = Self { answers: std::mem::take(&mut self.answers), log: self.log.clone() };
                Located::Piece { work, lease, rest: Box::new(rest) }
            }
            Answer::Moving => {
                drop(lease);
                self.log.events.lock().unwrap().pop();
                *self.log.again.lock().unwrap() = Some(again);
                Located::Moving
            }
            Answer::Here(work) => Located::Here(work, lease),
            Answer::Gone => {
                drop(lease);
                self.log.events.lock().unwrap().pop();
                Located::Gone(TransferError::NoRoom)
            }
        }
    }
}

fn submit(stream: &Stream, log: &Log, answers: Vec<Answer>) -> Receiver<Outcome> {
    let located = Scripted { answers: answers.into_iter(), log: log.clone() };
    let (sender, receiver) = channel();
    let log = log.clone();
    let done = Box::new(move |outcome| {
        log.note(Event::Done);
        sender.send(outcome).unwrap();
    });
    stream.submit(vram_transfer::Job { work: Work::Located(Box::new(located)), leases: Vec::new(), done });
    receiver
}

/// A job behind, on the same stream.
fn behind(rig: &Rig, stream: &Stream, log: &Log) -> Receiver<Outcome> {
    let (sender, receiver) = channel();
    let log = log.clone();
    let done = Box::new(move |outcome| {
        log.note(Event::Behind);
        sender.send(outcome).unwrap();
    });
    stream.submit(vram_transfer::Job { work: fill(rig, 0, 64, 9), leases: Vec::new(), done });
    receiver
}

fn fill(rig: &Rig, offset: u64, len: u64, byte: u8) -> Work {
    Work::Fill { to: rig.parts(offset, len), pattern: Pattern::U8(byte) }
}

fn bytes(rig: &Rig, offset: u64, len: u64) -> Vec<u8> {
    let back = host(&vec![0; len as usize]);
    let work = Work::Read { from: rig.parts(offset, len), to: back.clone() };
    rig.engine.run(Flow::Upkeep(0), work, Vec::new()).unwrap();
    bytes_in(&back)
}

#[test]
fn pieces_are_done_in_order_as_one_job_and_each_lets_go_before_the_next_is_located() {
    use Event::{Behind, Done, Let, Located};
    let rig = rig();
    let stream = rig.engine.stream(Flow::Requests(0));
    let log = Log::default();
    let gate = Arc::new(Gate::default());
    // All over the same bytes on the same lane, but for one from a store.
    let end = submit(
        &stream,
        &log,
        vec![
            Answer::Piece(fill(&rig, 0, 256, 2)),
            Answer::Piece(Work::Copy { to: rig.parts(64, 64), from: vec![gate.part(64)] }),
            Answer::Moving,
            Answer::Piece(fill(&rig, 100, 10, 3)),
            Answer::Here(fill(&rig, 0, 8, 4)),
        ],
    );
    let behind_end = behind(&rig, &stream, &log);
    gate.wait_asked(1);
    assert_eq!(log.events(), [Located, Let, Located]);
    gate.open();
    while log.again.lock().unwrap().is_none() {
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!(log.events(), [Located, Let, Located, Let, Located]);
    assert_eq!(stream.wait_idle(Duration::ZERO), CloseWait::StillRunning);
    assert!(!stream.is_unused());
    log.again();
    let whole = outcome(&end);
    assert!(whole.result.is_ok());
    assert_eq!(whole.moved_bytes, 256 + 64 + 10 + 8);
    assert!(outcome(&behind_end).result.is_ok());
    assert_eq!(log.events(), [Located, Let, Located, Let, Located, Located, Let, Located, Let, Done, Behind]);
    let mut expected = vec![2; 256];
    expected[64..128].fill(1);
    expected[100..110].fill(3);
    expected[..64].fill(9);
    assert_eq!(bytes(&rig, 0, 256), expected);
    assert_eq!(stream.wait_idle(WAIT), CloseWait::Idle);
}

#[test]
fn piece_that_fails_ends_the_job_with_what_was_moved_before() {
    let rig = rig();
    let stream = rig.engine.stream(Flow::Requests(0));
    let log = Log::default();
    rig.sim.faults().fail_copy(2);
    let write = |offset| Work::Write { to: rig.parts(offset, MIB), from: host(&vec![7; 1 << 20]) };
    let end = submit(
        &stream,
        &log,
        vec![Answer::Piece(write(0)), Answer::Piece(write(MIB)), Answer::Here(write(2 * MIB))],
    );
    let behind_end = behind(&rig, &stream, &log);
    let failed = outcome(&end);
    assert!(matches!(failed.result, Err(TransferError::Gpu(_))));
    assert_eq!(failed.moved_bytes, MIB);
    assert!(outcome(&behind_end).result.is_ok());
    use Event::{Behind, Done, Let, Located};
    assert_eq!(log.events(), [Located, Let, Located, Let, Done, Behind]);
    // Nothing is left of it.
    assert_eq!(stream.wait_idle(WAIT), CloseWait::Idle);
}

#[test]
fn rest_that_is_gone_or_the_last_to_fail_says_what_was_moved_before() {
    let rig = rig();
    let stream = rig.engine.stream(Flow::Requests(0));
    let log = Log::default();
    let end = submit(&stream, &log, vec![Answer::Piece(fill(&rig, 0, 100, 1)), Answer::Gone]);
    let failed = outcome(&end);
    assert!(matches!(failed.result, Err(TransferError::NoRoom)));
    assert_eq!(failed.moved_bytes, 100);
    // The piece counts as a copy.
    rig.sim.faults().fail_copy(2);
    let last = Work::Write { to: rig.parts(0, 64), from: host(&[0; 64]) };
    let end = submit(&stream, &log, vec![Answer::Piece(fill(&rig, 0, 100, 1)), Answer::Here(last)]);
    let failed = outcome(&end);
    assert!(matches!(failed.result, Err(TransferError::Gpu(_))));
    assert_eq!(failed.moved_bytes, 100);
    // A piece that would bring the job no further ends it.
    let none = Work::Fill { to: Vec::new(), pattern: Pattern::U8(0) };
    let end = submit(&stream, &log, vec![Answer::Piece(fill(&rig, 0, 100, 1)), Answer::Piece(none)]);
    let failed = outcome(&end);
    assert!(matches!(failed.result, Err(TransferError::Mismatch)));
    assert_eq!(failed.moved_bytes, 100);
}

#[test]
fn closed_stream_begins_no_further_piece() {
    let rig = rig();
    let log = Log::default();
    // While a piece is under way.
    let stream = rig.engine.stream(Flow::Requests(0));
    rig.sim.faults().pause(GpuId(0));
    let end = submit(
        &stream,
        &log,
        vec![Answer::Piece(fill(&rig, 0, 100, 1)), Answer::Here(fill(&rig, 0, 100, 2))],
    );
    let behind_end = behind(&rig, &stream, &log);
    stream.close();
    assert!(matches!(outcome(&behind_end).result, Err(TransferError::Cancelled)));
    assert_eq!(stream.wait_idle(Duration::from_millis(20)), CloseWait::StillRunning);
    assert!(end.try_recv().is_err());
    rig.sim.faults().resume(GpuId(0));
    let cancelled = outcome(&end);
    assert!(matches!(cancelled.result, Err(TransferError::Cancelled)));
    assert_eq!(cancelled.moved_bytes, 100);
    assert_eq!(stream.wait_idle(WAIT), CloseWait::Idle);
    assert_eq!(bytes(&rig, 0, 100), [1; 100]);
    // While the rest moves.
    let stream = rig.engine.stream(Flow::Requests(0));
    let end = submit(&stream, &log, vec![Answer::Piece(fill(&rig, 0, 50, 1)), Answer::Moving]);
    while log.again.lock().unwrap().is_none() {
        std::thread::yield_now();
    }
    stream.close();
    let cancelled = outcome(&end);
    assert!(matches!(cancelled.result, Err(TransferError::Cancelled)));
    assert_eq!(cancelled.moved_bytes, 50);
    log.again();
    assert_eq!(stream.wait_idle(WAIT), CloseWait::Idle);
}

#[test]
fn barrier_over_the_group_waits_for_all_pieces() {
    let rig = rig();
    let group = rig.engine.group(Flow::Requests(0));
    let (stream, other) = (group.stream(), group.stream());
    let log = Log::default();
    let end = submit(
        &stream,
        &log,
        vec![Answer::Piece(fill(&rig, 0, 8, 1)), Answer::Moving, Answer::Here(fill(&rig, 8, 8, 1))],
    );
    let (barrier, barrier_end) = job(Work::GroupBarrier);
    other.submit(barrier);
    while log.again.lock().unwrap().is_none() {
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(10));
    assert!(barrier_end.try_recv().is_err() && end.try_recv().is_err());
    log.again();
    assert_eq!(outcome(&end).moved_bytes, 16);
    assert!(outcome(&barrier_end).result.is_ok());
}

#[test]
fn pieces_begin_behind_what_runs_and_thousands_of_them_are_no_recursion() {
    let rig = rig();
    let stream = rig.engine.stream(Flow::Requests(0));
    let log = Log::default();
    rig.sim.faults().pause(GpuId(0));
    let before = behind(&rig, &stream, &log);
    let mut answers: Vec<_> = (0..3000).map(|i| Answer::Piece(fill(&rig, i, 1, 1))).collect();
    answers.push(Answer::Here(fill(&rig, 3000, 1, 1)));
    let end = submit(&stream, &log, answers);
    let after = behind(&rig, &stream, &log);
    rig.sim.faults().resume(GpuId(0));
    for end in [before, after] {
        assert!(outcome(&end).result.is_ok());
    }
    let whole: Outcome = outcome(&end);
    assert!(whole.result.is_ok());
    assert_eq!(whole.moved_bytes, 3001);
    assert_eq!(bytes(&rig, 64, 2937), [1; 2937]);
}
