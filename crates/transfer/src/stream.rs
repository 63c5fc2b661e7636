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
    leases: Vec<Lease>,
    done: Done,
    /// Of a barrier over the group.
    barrier: Option<Ticket>,
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
        let planned = Planned { plan, leases, done, barrier: is_barrier.then_some(ticket) };
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
            planned.cancel();
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

impl Planned {
    fn cancel(self) {
        drop(self.leases);
        (self.done)(Outcome { moved_bytes: 0, result: Err(TransferError::Cancelled) });
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
            let issuable = planned.plan.into_plan().and_then(|plan| {
                let total_bytes = plan.total_bytes;
                let lanes = plan.lanes.into_iter().map(|lane| Ok((shared.group.engine.lane(&lane)?, lane)));
                Ok((total_bytes, lanes.collect::<Result<Vec<_>, TransferError>>()?))
            });
            match issuable {
                Ok((total_bytes, lanes)) if !lanes.is_empty() => {
                    state.running = state.running.saturating_add(1);
                    state.running_lane = lane;
                    let again = Arc::clone(shared);
                    let then = Box::new(move || Self::ended(&again));
                    let running = Running::new(total_bytes, lanes.len(), planned.leases, planned.done, then);
                    for (lane, lane_plan) in lanes {
                        lane.issue(shared.group.flow, lane_plan, &running);
                    }
                }
                // Nothing to move, or no sense in it: over at once. Counted as running meanwhile, so that what the
                // callback submits, or another thread does, stays behind it.
                nothing => {
                    let result = nothing.map(|_| ());
                    state.running = state.running.saturating_add(1);
                    state.running_lane = None;
                    drop(state);
                    drop(planned.leases);
                    (planned.done)(Outcome { moved_bytes: 0, result });
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
                first.leases.push(lease);
                first.plan = Planning::Done(Plan::of(work));
            }
            Located::Gone(error) => first.plan = Planning::Done(Err(error)),
            Located::Moving => state.locating = true,
        }
    }

    /// A barrier over the group is at the front: given back if it is open, else kept until it is.
    fn arrive(shared: &Arc<Self>, ticket: Ticket, planned: Planned) -> Option<Planned> {
        let mut planned = Some(planned);
        let again = Arc::clone(shared);
        let first = shared.group.ledger.arrive(ticket, || {
            let planned = planned.take();
            Box::new(move || {
                if let Some(Planned { leases, done, .. }) = planned {
                    drop(leases);
                    done(Outcome { moved_bytes: 0, result: Ok(()) });
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
