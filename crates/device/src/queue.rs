//! A queue's thread.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use tracing::{debug, warn};
use vram_guest_memory::GuestMap;
use vram_protocol::{QueueKind, Response, Status};
use vram_session::{Answer, Session};
use vram_virtqueue::{Finished, Post, Ring, RingError, Token};

use crate::event_queue::EventWorker;
use crate::memory::MemoryCell;
use crate::request::{AnswerPlace, Taken, take};
use crate::waker::{Sleeper, Waker, signal, unblock};
use crate::{DeviceFailure, StartQueueError};

/// How long a stopping queue waits for requests under way.
const DRAIN_WAIT: Duration = Duration::from_secs(8);

/// How often a stopping queue looks at the time.
const DRAIN_LOOK: Duration = Duration::from_millis(100);

/// How long a stopping queue is waited for before its call descriptor is looked at.
const NUDGE_WAIT: Duration = Duration::from_millis(100);

/// The descriptor that interrupts the guest; the frontend may change it at any time, or take it away.
///
/// The lock is never held while the descriptor is written: a frontend can make that block for a while.
#[derive(Default)]
pub struct CallCell(Mutex<Option<Arc<OwnedFd>>>);

impl CallCell {
    /// Replaces the descriptor.
    pub fn set(&self, call: Option<OwnedFd>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = call.map(Arc::new);
    }

    fn get(&self) -> Option<Arc<OwnedFd>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Interrupts the guest, if it wants that.
    pub(crate) fn signal(&self) {
        if let Some(call) = self.get() {
            signal(&call);
        }
    }

    /// Frees a thread that is stuck in [`Self::signal`].
    fn unblock(&self) {
        if let Some(call) = self.get() {
            unblock(&call);
        }
    }
}

/// What a finished request says: the response, and the bytes behind it.
struct Result {
    response: Response,
    following_bytes: u64,
}

/// Where other threads leave finished requests.
struct Mailbox {
    sender: Sender<Finished<Result>>,
    waker: Arc<Waker>,
}

impl Post<Result> for Mailbox {
    fn post(&self, finished: Finished<Result>) {
        // The channel holds one entry per ring slot and a slot is in flight once, so it is never full; it is closed
        // when the queue gave up on what was under way, and then nobody waits for the answer.
        if self.sender.try_send(finished).is_ok() {
            self.waker.wake();
        }
    }
}

/// What a queue's thread works with.
pub(crate) struct QueueSetup {
    pub(crate) index: u16,
    pub(crate) ring: Ring,
    pub(crate) kick: OwnedFd,
    pub(crate) call: Arc<CallCell>,
    pub(crate) memory: Arc<MemoryCell>,
    pub(crate) session: Arc<Session>,
}

/// The handle to a running queue.
pub(crate) struct QueueHandle {
    waker: Arc<Waker>,
    stopping: Arc<AtomicBool>,
    call: Arc<CallCell>,
    ended: Receiver<Ring>,
}

impl QueueHandle {
    /// Starts the thread. `failed` is called, on that thread, if the session cannot go on.
    pub(crate) fn start(
        setup: QueueSetup,
        name: &str,
        failed: Box<dyn FnOnce(DeviceFailure) + Send>,
    ) -> std::result::Result<Self, StartQueueError> {
        let waker = Arc::new(Waker::new().map_err(StartQueueError::Eventfd)?);
        let sleeper = Sleeper::new(&setup.kick, &waker).map_err(StartQueueError::Eventfd)?;
        let call = Arc::clone(&setup.call);
        let stopping = Arc::new(AtomicBool::new(false));
        let napper = Napper { waker: Arc::clone(&waker), sleeper, stopping: Arc::clone(&stopping) };
        let (ring_back, ended) = bounded(1);
        let mut worker: Box<dyn Serve> = match QueueKind::of(setup.index) {
            QueueKind::Event => Box::new(EventWorker::new(setup, napper)),
            kind => Box::new(Worker::new(kind, setup, napper)),
        };
        vram_sandbox::spawn_named(name, move || {
            // A panic in here must reach the transport as a failure, hence the guard rather than the result alone.
            let guard = FailOnUnwind(Some(failed));
            let result = worker.run();
            let failed = guard.disarm();
            match result {
                Ok(()) => {
                    let _ = ring_back.send(worker.into_ring());
                }
                Err(failure) => {
                    drop(ring_back);
                    if let Some(failed) = failed {
                        failed(failure);
                    }
                }
            }
        })
        .map_err(StartQueueError::Thread)?;
        Ok(Self { waker, stopping, call, ended })
    }

    /// Tells the thread to stop; [`Self::stop`] waits for it.
    pub(crate) fn begin_stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Stops taking chains, waits for those under way, and gives the ring back; `None` if the thread failed or did
    /// not come to an end in time.
    pub(crate) fn stop(self) -> Option<Ring> {
        self.begin_stop();
        let deadline = Instant::now().checked_add(DRAIN_WAIT.saturating_mul(2))?;
        loop {
            match self.ended.recv_timeout(NUDGE_WAIT) {
                Ok(ring) => return Some(ring),
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => self.call.unblock(),
                Err(_) => return None,
            }
        }
    }
}

struct FailOnUnwind(Option<Box<dyn FnOnce(DeviceFailure) + Send>>);

impl FailOnUnwind {
    fn disarm(mut self) -> Option<Box<dyn FnOnce(DeviceFailure) + Send>> {
        self.0.take()
    }
}

impl Drop for FailOnUnwind {
    fn drop(&mut self) {
        if let Some(failed) = self.0.take() {
            failed(DeviceFailure::Panicked);
        }
    }
}

/// What a queue's thread does.
pub(crate) trait Serve: Send {
    /// Serves the queue until it is told to stop.
    fn run(&mut self) -> std::result::Result<(), DeviceFailure>;

    /// Gives the ring back.
    fn into_ring(self: Box<Self>) -> Ring;
}

/// How a queue's thread sleeps, and learns that it is to stop.
pub(crate) struct Napper {
    waker: Arc<Waker>,
    sleeper: Sleeper,
    stopping: Arc<AtomicBool>,
}

impl Napper {
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Sleeps until there is a kick or a wake, or the time is up.
    pub(crate) fn nap(&self, timeout: Option<Duration>) {
        self.sleeper.sleep(timeout);
        self.waker.lower();
    }

    /// What wakes the thread.
    pub(crate) fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.waker)
    }
}

/// Serves a control or request queue.
struct Worker {
    kind: QueueKind,
    setup: QueueSetup,
    napper: Napper,
    mailbox: Arc<dyn Post<Result>>,
    finished: Receiver<Finished<Result>>,
    /// Where the answer of each chain under way goes, by head.
    in_flight: Vec<Option<(AnswerPlace, u64)>>,
    under_way: usize,
}

impl Serve for Worker {
    fn run(&mut self) -> std::result::Result<(), DeviceFailure> {
        loop {
            self.round()?;
            if self.napper.is_stopping() {
                return self.drain();
            }
            self.napper.nap(None);
        }
    }

    fn into_ring(self: Box<Self>) -> Ring {
        self.setup.ring
    }
}

impl Worker {
    fn new(kind: QueueKind, setup: QueueSetup, napper: Napper) -> Self {
        let (sender, finished) = bounded(usize::from(setup.ring.size()));
        let mailbox: Arc<dyn Post<Result>> = Arc::new(Mailbox { sender, waker: napper.waker() });
        let in_flight = (0..setup.ring.size()).map(|_| None).collect();
        Self { kind, setup, napper, mailbox, finished, in_flight, under_way: 0 }
    }

    /// Takes all there is to take, answers all there is to answer, and says so to the guest.
    ///
    /// A guest can keep this going for as long as it likes, so the map is taken anew for each ringful of chains: memory
    /// that is taken away meanwhile is not used for longer than that.
    fn round(&mut self) -> std::result::Result<(), DeviceFailure> {
        loop {
            let map = self.setup.memory.get();
            let mut answered = self.answer_finished(&map)?;
            self.setup.ring.disable_kicks(&map)?;
            for _ in 0..self.setup.ring.size() {
                if self.napper.is_stopping() {
                    break;
                }
                let Some(chain) = self.setup.ring.pop(&map)? else { break };
                answered |= self.serve(&map, chain)?;
            }
            answered |= self.answer_finished(&map)?;
            let more = self.setup.ring.enable_kicks(&map)?;
            self.notify(&map, answered)?;
            if map.poisoned() {
                return Err(DeviceFailure::GuestMemoryLost);
            }
            if !more || self.napper.is_stopping() {
                return Ok(());
            }
        }
    }

    /// Waits for what is under way, answering it, without taking anything new.
    fn drain(&mut self) -> std::result::Result<(), DeviceFailure> {
        let deadline = Instant::now().checked_add(DRAIN_WAIT);
        while self.under_way > 0 {
            if deadline.is_none_or(|at| Instant::now() >= at) {
                return Err(DeviceFailure::StuckRequests { count: self.under_way });
            }
            self.napper.nap(Some(DRAIN_LOOK));
            let map = self.setup.memory.get();
            let answered = self.answer_finished(&map)?;
            self.notify(&map, answered)?;
        }
        Ok(())
    }

    fn notify(&mut self, map: &GuestMap, answered: bool) -> std::result::Result<(), RingError> {
        if answered && self.setup.ring.needs_notification(map)? {
            self.setup.call.signal();
        }
        Ok(())
    }

    /// Answers requests that other threads finished; true if there were any.
    fn answer_finished(&mut self, map: &GuestMap) -> std::result::Result<bool, RingError> {
        let mut any = false;
        while let Ok(Finished { head, result }) = self.finished.try_recv() {
            let Some((place, tag)) = self.in_flight.get_mut(usize::from(head)).and_then(Option::take) else {
                continue;
            };
            self.under_way = self.under_way.saturating_sub(1);
            let result = result.unwrap_or_else(|| {
                warn!(queue = self.setup.index, "a request was forgotten; the guest is told INTERNAL");
                Result { response: self.setup.session.refusal(tag, Status::Internal), following_bytes: 0 }
            });
            self.answer(map, head, &place, &result.response, result.following_bytes)?;
            any = true;
        }
        Ok(any)
    }

    fn answer(
        &mut self,
        map: &GuestMap,
        head: u16,
        place: &AnswerPlace,
        response: &Response,
        following_bytes: u64,
    ) -> std::result::Result<(), RingError> {
        self.setup.session.counters().answered(response.status == Status::Ok);
        let used = place.write(response, following_bytes);
        self.setup.ring.complete(map, head, used)
    }

    /// Serves one chain; true if it is answered already.
    fn serve(
        &mut self,
        map: &GuestMap,
        chain: vram_virtqueue::Chain,
    ) -> std::result::Result<bool, RingError> {
        let head = chain.head;
        let fault = chain.fault;
        let Some(Taken { place, request }) = take(chain, self.kind) else {
            self.setup.session.counters().answered(false);
            self.setup.ring.complete(map, head, 0)?;
            return Ok(true);
        };
        let session = Arc::clone(&self.setup.session);
        let refused = match request {
            Err(error) => {
                if let Some(fault) = fault {
                    debug!(queue = self.setup.index, %fault, "malformed chain");
                }
                session.refusal(error.tag, error.status)
            }
            Ok(decoded) => {
                let tag = decoded.header.tag;
                // A request before HELLO is told so, whatever else is wrong with it.
                let hello = matches!(decoded.request, vram_protocol::Request::Hello(_));
                let fits = if !hello && !session.is_ready() {
                    Err(Status::NotReady)
                } else {
                    decoded.check_data(&place)
                };
                match fits {
                    Err(status) => session.refusal(tag, status),
                    Ok(()) if self.kind == QueueKind::Request => {
                        self.begin(&session, head, place, decoded);
                        return Ok(false);
                    }
                    Ok(()) => {
                        let reply = session.control(decoded.header, decoded.request, place.rest.len_bytes());
                        let following_bytes = place.rest.write_from(&reply.payload) as u64;
                        self.answer(map, head, &place, &reply.response, following_bytes)?;
                        return Ok(true);
                    }
                }
            }
        };
        self.answer(map, head, &place, &refused, 0)?;
        Ok(true)
    }

    /// Hands a data request to the session; it comes back through the mailbox.
    fn begin(
        &mut self,
        session: &Arc<Session>,
        head: u16,
        mut place: AnswerPlace,
        decoded: crate::request::Decoded,
    ) {
        let reads = matches!(decoded.request, vram_protocol::Request::Read(_));
        // Room nobody asked for is not held on to.
        let room = std::mem::take(&mut place.rest);
        let data = if reads { room } else { decoded.payload };
        let tag = decoded.header.tag;
        if let Some(slot) = self.in_flight.get_mut(usize::from(head)) {
            *slot = Some((place, tag));
            self.under_way = self.under_way.saturating_add(1);
        }
        let token = Token::new(head, Arc::clone(&self.mailbox));
        let epoch = session.boot_epoch();
        let answered = Box::new(move |answer: Answer| {
            let Answer { status, moved_bytes } = answer;
            token.finish(Result {
                response: Response { status, tag, moved: moved_bytes, value: 0, epoch },
                following_bytes: if reads { moved_bytes } else { 0 },
            });
        });
        session.submit(decoded.header, decoded.request, data, answered);
    }
}
