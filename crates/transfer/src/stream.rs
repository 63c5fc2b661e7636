//! Streams: what orders jobs.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::engine::Engine;
use crate::job::Running;
use crate::ledger::{Ledger, Ticket};
use crate::plan::{LaneId, Plan};
use crate::{Done, Flow, Job, Lease, Locate, Located, Outcome, TransferError, Work};

/// Streams that can be waited for together.
#[derive(Clone)]
pub struct Group {
    engine: Arc<Engine>,
    flow: Flow,
    ledger: Arc<Ledger>,
}

impl Group {
    pub(crate) fn new(engine: Arc<Engine>, flow: Flow) -> Self {
        Self { engine, flow, ledger: Arc::default() }
    }

    /// A new stream of the group.
    pub fn stream(&self) -> Stream {
        let group = self.clone();
        Stream { shared: Arc::new(Shared { group, state: Mutex::default(), idle: Condvar::new() }) }
    }
}

/// A lane of jobs that begin and end in order. Different streams run at the same time.
///
/// Cloning gives another handle to the same stream.
#[derive(Clone)]
pub struct Stream {
    shared: Arc<Shared>,
}

struct Shared {
    group: Group,
    state: Mutex<State>,
    idle: Condvar,
}

#[derive(Default)]
struct State {
    /// Planned jobs that have not begun.
    waiting: VecDeque<Planned>,
    running: usize,
    /// The lane all running jobs are on, if there is one such.
    running_lane: Option<LaneId>,
    /// Whether the bytes of the first waiting job are on their way, and somebody will say when to ask again.
    locating: bool,
    closed: bool,
}

struct Planned {
    plan: Planning,
    /// Of a barrier over the group.
    barrier: Option<Ticket>,
    pending: Pending,
}

/// What a job needs at its end.
struct Pending {
    leases: Vec<Lease>,
    done: Done,
    /// What earlier pieces of the job moved.
    moved_bytes: u64,
    /// If the plan is not of the job's last piece.
    piece: Option<Piece>,
}

/// What is particular to a piece of a job behind which there are others.
struct Piece {
    lease: Lease,
    rest: Box<dyn Locate>,
}

enum Planning {
    /// Not yet: where the bytes are is asked when the job is the first that waits.
    Unlocated(Box<dyn Locate>),
    Done(Result<Plan, TransferError>),
}

impl Planning {
    fn into_plan(self) -> Result<Plan, TransferError> {
        match self {
            Self::Unlocated(_) => Err(TransferError::Cancelled),
            Self::Done(plan) => plan,
        }
    }
}

/// What waiting for a stream's end came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseWait {
    /// Nothing is under way any more.
    Idle,
    /// Something still is, after all that time.
    StillRunning,
}

impl Stream {
    /// Adds a job at the end. On a closed stream it is cancelled at once.
    pub fn submit(&self, job: Job) {
        let Job { work, leases, done } = job;
        let is_barrier = matches!(work, Work::GroupBarrier);
        let plan = match work {
            Work::Located(locate) => Planning::Unlocated(locate),
            work => Planning::Done(Plan::of(work)),
        };
        let mut state = self.shared.lock();
        if state.closed {
            drop(state);
            drop(leases);
            done(Outcome { moved_bytes: 0, result: Err(TransferError::Cancelled) });
            return;
        }
        let ledger = Arc::clone(&self.shared.group.ledger);
        let ticket = ledger.draw();
        let done = Box::new(move |outcome| {
            done(outcome);
            ledger.end(ticket);
        });
        let barrier = is_barrier.then_some(ticket);
        let pending = Pending { leases, done, moved_bytes: 0, piece: None };
        let planned = Planned { plan, barrier, pending };
        state.waiting.push_back(planned);
        Shared::dispatch(&self.shared, state);
    }

    /// Cancels what has not begun; nothing begins any more. What is under way goes on.
    pub fn close(&self) {
        let mut state = self.shared.lock();
        state.closed = true;
        let cancelled: Vec<_> = state.waiting.drain(..).collect();
        drop(state);
        for planned in cancelled {
            planned.pending.cancel();
        }
    }

    /// Blocks until nothing is under way, or the time is up.
    pub fn wait_idle(&self, timeout: Duration) -> CloseWait {
        let deadline = Instant::now().checked_add(timeout);
        let mut state = self.shared.lock();
        while state.running > 0 || !state.waiting.is_empty() {
            let left =
                deadline.map_or(timeout, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return CloseWait::StillRunning;
            }
            state = self.shared.idle.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        CloseWait::Idle
    }

    /// Whether nothing is waiting or under way, nor can be soon: nobody else has a handle to submit by.
    pub fn is_unused(&self) -> bool {
        let state = self.shared.lock();
        state.running == 0 && state.waiting.is_empty() && Arc::strong_count(&self.shared) == 1
    }
}

impl Pending {
    fn cancel(self) {
        self.end(Err(TransferError::Cancelled));
    }

    /// Answers a job of which nothing is under way, nor will be.
    fn end(self, result: Result<(), TransferError>) {
        let Self { leases, done, moved_bytes, piece } = self;
        drop((leases, piece));
        done(Outcome { moved_bytes, result });
    }

    /// What is held while the plan is carried out, and what then happens.
    fn into_end(self, shared: &Arc<Shared>) -> (Vec<Lease>, Done) {
        let Self { leases, done, moved_bytes, piece } = self;
        let Some(Piece { lease, rest }) = piece else {
            if moved_bytes == 0 {
                return (leases, done);
            }
            return (leases, Box::new(move |outcome: Outcome| done(outcome.after(moved_bytes))));
        };
        let shared = Arc::clone(shared);
        let piece_done = move |outcome: Outcome| {
            let Outcome { moved_bytes, result } = outcome.after(moved_bytes);
            let pending = Self { leases, done, moved_bytes, piece: None };
            match result {
                Ok(()) => shared.put_back(rest, pending),
                failure => {
                    drop(rest);
                    pending.end(failure);
                }
            }
        };
        (vec![lease], Box::new(piece_done))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins every job that may begin. The stream's lock is held while a job is handed to its lanes, so that one
    /// thread at a time decides what comes next; it is not held while `done` runs.
    fn dispatch<'a>(shared: &'a Arc<Self>, mut state: MutexGuard<'a, State>) {
        while !state.locating && !state.waiting.is_empty() {
            // Behind a barrier, or a job of several lanes, nothing can begin; and a job that is located keeps bytes where
            // they are, which what it waits for may need to move.
            if state.running > 0 && state.running_lane.is_none() {
                return;
            }
            Self::locate(shared, &mut state);
            let Some(Planned { plan: Planning::Done(plan), .. }) = state.waiting.front() else { break };
            let lane = plan.as_ref().ok().and_then(Plan::only_lane);
            // The lane's own order is enough between jobs of the same lane; else wait for all before.
            if state.running > 0 && (lane.is_none() || lane != state.running_lane) {
                return;
            }
            let Some(planned) = state.waiting.pop_front() else { return };
            let planned = match planned.barrier {
                Some(ticket) => {
                    let Some(open) = Self::arrive(shared, ticket, planned) else {
                        state.running = state.running.saturating_add(1);
                        state.running_lane = None;
                        return;
                    };
                    open
                }
                None => planned,
            };
            let Planned { plan, pending, .. } = planned;
            match plan.into_plan().and_then(|plan| shared.group.engine.issuable(plan)) {
                Ok(issuable) if issuable.pieces() > 0 => {
                    state.running = state.running.saturating_add(1);
                    // Behind a piece comes the rest of its job.
                    state.running_lane = if pending.piece.is_none() { lane } else { None };
                    let (leases, done) = pending.into_end(shared);
                    let again = Arc::clone(shared);
                    let then = Box::new(move || Self::ended(&again));
                    let running = Running::new(issuable.total_bytes, issuable.pieces(), leases, done, then);
                    issuable.issue(shared.group.flow, &running);
                }
                // Nothing to move, or no sense in it: over at once. Counted as running meanwhile, so that what the
                // callback submits, or another thread does, stays behind it.
                nothing => {
                    let result = nothing.map(|_| ());
                    state.running = state.running.saturating_add(1);
                    state.running_lane = None;
                    drop(state);
                    pending.end(result);
                    state = shared.lock();
                    state.running = state.running.saturating_sub(1);
                }
            }
        }
        if state.running == 0 && state.waiting.is_empty() {
            shared.idle.notify_all();
        }
    }

    /// Finds out where the bytes of the first waiting job are, if that is not known.
    fn locate(shared: &Arc<Self>, state: &mut State) {
        let Some(first) = state.waiting.front_mut() else { return };
        let Planning::Unlocated(locate) = &mut first.plan else { return };
        let again = Arc::clone(shared);
        let again = Box::new(move || {
            let mut state = again.lock();
            state.locating = false;
            Self::dispatch(&again, state);
        });
        match locate.locate(again) {
            Located::Here(work, lease) => {
                first.pending.leases.push(lease);
                first.plan = Planning::Done(Plan::of(work));
            }
            Located::Piece { work, lease, rest } => {
                // A piece without bytes would bring the job no further.
                first.plan = Planning::Done(match Plan::of(work) {
                    Ok(plan) if plan.is_empty() => Err(TransferError::Mismatch),
                    plan => plan,
                });
                first.pending.piece = Some(Piece { lease, rest });
            }
            Located::Gone(error) => first.plan = Planning::Done(Err(error)),
            Located::Moving => state.locating = true,
        }
    }

    /// A piece of a job is through, and nothing begins before the job that it was the first of is seen to: the rest is
    /// the first in the row.
    fn put_back(&self, rest: Box<dyn Locate>, pending: Pending) {
        let mut state = self.lock();
        if state.closed {
            drop(state);
            pending.cancel();
        } else {
            let plan = Planning::Unlocated(rest);
            state.waiting.push_front(Planned { plan, barrier: None, pending });
        }
    }

    /// A barrier over the group is at the front: given back if it is open, else kept until it is.
    fn arrive(shared: &Arc<Self>, ticket: Ticket, planned: Planned) -> Option<Planned> {
        let mut planned = Some(planned);
        let again = Arc::clone(shared);
        let first = shared.group.ledger.arrive(ticket, || {
            let planned = planned.take();
            Box::new(move || {
                if let Some(planned) = planned {
                    planned.pending.end(Ok(()));
                }
                Self::ended(&again);
            })
        });
        if first { planned } else { None }
    }

    fn ended(shared: &Arc<Self>) {
        let mut state = shared.lock();
        state.running = state.running.saturating_sub(1);
        Self::dispatch(shared, state);
    }
}
