//! A host lane: threads that do what needs no GPU. They keep no order, not even within a job.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tracing::warn;
use vram_sandbox::{Outcome, SpawnError, Worker, contain, spawn_named};

use crate::backlog::Backlog;
use crate::engine::Lanes;
use crate::host_piece::{HostLaneId, HostPiece};
use crate::job::Running;
use crate::{Flow, TransferError};

/// Pieces of one flow that are under way at once. Less than there are threads: a tenant whose store is slow leaves some
/// to the others.
const MAX_RUNNING_PER_FLOW: usize = 2;

impl HostLaneId {
    /// Most threads. Memory is as fast as it is; behind stores that do not answer there must be room for others.
    fn max_threads(self) -> usize {
        match self {
            Self::Memory => 4,
            Self::Cold => 32,
        }
    }
}

/// One kind of work without a GPU. Its threads are started when there is something to do.
pub(crate) struct HostLane {
    shared: Arc<Shared>,
}

struct Shared {
    id: HostLaneId,
    lanes: Arc<Lanes>,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    backlog: Backlog<(HostPiece, Arc<Running>)>,
    /// Pieces under way of each flow; none is zero.
    running: HashMap<Flow, usize>,
    workers: Vec<Worker<()>>,
    /// Whether the log says that there are too few threads.
    starved: bool,
    closed: bool,
}

impl State {
    /// What a free thread does next.
    fn begin(&mut self) -> Option<(Flow, (HostPiece, Arc<Running>))> {
        let running = &self.running;
        let (flow, next) = self
            .backlog
            .pop_of(|flow| running.get(&flow).copied().unwrap_or_default() < MAX_RUNNING_PER_FLOW)?;
        let count = self.running.entry(flow).or_default();
        *count = count.saturating_add(1);
        Some((flow, next))
    }

    fn end(&mut self, flow: Flow) {
        let Some(count) = self.running.get_mut(&flow) else { return };
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.running.remove(&flow);
        }
    }

    /// How many threads would have something to do.
    fn useful_threads(&self) -> usize {
        let busy = self.running.values().fold(0usize, |sum, count| sum.saturating_add(*count));
        self.backlog.waiting().fold(busy, |sum, (flow, waiting)| {
            let running = self.running.get(&flow).copied().unwrap_or_default();
            sum.saturating_add(waiting.min(MAX_RUNNING_PER_FLOW.saturating_sub(running)))
        })
    }
}

impl HostLane {
    pub(crate) fn new(id: HostLaneId, lanes: Arc<Lanes>) -> Self {
        Self { shared: Arc::new(Shared { id, lanes, state: Mutex::default(), wake: Condvar::new() }) }
    }

    /// Sees to it that somebody will do what is issued.
    pub(crate) fn ready(&self) -> Result<(), TransferError> {
        let mut state = self.shared.lock();
        if !state.workers.is_empty() {
            return Ok(());
        }
        Shared::start(&self.shared, &mut state)
            .map_err(|error| TransferError::Unavailable { reason: error.to_string() })
    }

    /// Takes a piece of a job. Its end is reported to `running` by a thread of the lane, never from within this call.
    /// The lane is ready.
    pub(crate) fn issue(&self, flow: Flow, piece: HostPiece, running: &Arc<Running>) {
        let mut state = self.shared.lock();
        state.backlog.push(flow, (piece, Arc::clone(running)));
        if state.useful_threads() > state.workers.len()
            && state.workers.len() < self.shared.id.max_threads()
            && let Err(error) = Shared::start(&self.shared, &mut state)
            && !std::mem::replace(&mut state.starved, true)
        {
            warn!(%error, "A lane has fewer threads than it should");
        }
        self.shared.wake.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(shared: &Arc<Self>, state: &mut State) -> Result<(), SpawnError> {
        let name = format!("{}-{}", shared.id, state.workers.len());
        let (worker, work_name) = (Arc::clone(shared), name.clone());
        state.workers.push(spawn_named(name, move || worker.work(&work_name))?);
        Ok(())
    }

    /// Does what there is to do until the lane is gone.
    fn work(&self, name: &str) {
        let mut state = self.lock();
        while !state.closed {
            let Some((flow, (piece, running))) = state.begin() else {
                // Woken by the next piece, or by the end of the lane. A flow that has enough under way needs no
                // waking: the thread that ends one of its pieces looks here again.
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            self.run(name, flow, piece, &running);
            // The job's last act may close the lane, on this very thread.
            drop(running);
            state = self.lock();
            state.end(flow);
        }
        let cancelled = state.backlog.take_all();
        drop(state);
        for (piece, running) in cancelled {
            running.lane_done(piece.first_offset, Err(TransferError::Cancelled));
        }
    }

    /// Does a piece and reports on it. Neither a panicking store nor a panicking callback takes the thread with it.
    fn run(&self, name: &str, flow: Flow, piece: HostPiece, running: &Running) {
        let mut at = piece.first_offset;
        // A store that does not answer is not asked for what nobody will look at.
        let result = if running.failed_before(at) {
            drop(piece);
            Ok(())
        } else {
            match contain(name, || piece.run(&self.lanes, flow, &mut at)) {
                Outcome::Returned(result) => result,
                Outcome::Panicked(panic) => Err(TransferError::Unavailable { reason: panic.to_string() }),
            }
        };
        let _ = contain(name, || running.lane_done(at, result));
    }
}

impl Drop for HostLane {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        let workers = std::mem::take(&mut state.workers);
        drop(state);
        self.shared.wake.notify_all();
        for worker in workers {
            // A job's last act may drop the engine, on this very thread.
            if worker.thread().id() != std::thread::current().id() {
                let _ = worker.join();
            }
        }
    }
}
