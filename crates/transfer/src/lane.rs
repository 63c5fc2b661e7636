//! A lane: one stream of the GPU backend, and the thread that waits for what was enqueued on it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use tracing::error;
use vram_gpu::{Backend, EventHandle, GpuError, StreamHandle};
use vram_guest_memory::HostSpan;
use vram_sandbox::{Worker, spawn_named};

use crate::backlog::Backlog;
use crate::job::Running;
use crate::plan::{Direction, LaneId, LanePlan, Step};
use crate::{EngineError, Flow, TransferError};

/// How long one wait for an event lasts before it is begun again; bounds how long a shutdown takes.
const WAIT_SLICE: Duration = Duration::from_millis(200);

/// Steps a lane keeps enqueued: enough to keep a copy engine busy, few enough for any driver's queue.
///
/// The bounds on pieces and bytes are for the others: whoever comes waits for what is enqueued, and then takes turns.
const MAX_OUTSTANDING: Load = Load { pieces: 64, steps: 2048, bytes: 256 << 20 };

/// How much work something is.
#[derive(Clone, Copy, Default)]
struct Load {
    pieces: usize,
    steps: usize,
    bytes: u64,
}

impl Load {
    fn of(plan: &LanePlan) -> Self {
        Self { pieces: 1, steps: plan.steps.len(), bytes: plan.len_bytes }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            pieces: self.pieces.saturating_add(other.pieces),
            steps: self.steps.saturating_add(other.steps),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            pieces: self.pieces.saturating_sub(other.pieces),
            steps: self.steps.saturating_sub(other.steps),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }

    fn fits(self, bound: Self) -> bool {
        self.pieces <= bound.pieces && self.steps <= bound.steps && self.bytes <= bound.bytes
    }
}

/// What the waiting thread needs to know about enqueued work.
struct Enqueued {
    /// The event behind the work, or why there is none.
    event: Result<EventHandle, GpuError>,
    /// Why not all of the work was enqueued. The event is waited for all the same: what was enqueued before must have
    /// run before the job is over.
    refused: Option<GpuError>,
    running: Arc<Running>,
    first_offset: u64,
    load: Load,
    /// Host memory the work touches, to see whether it vanished meanwhile.
    spans: Vec<HostSpan>,
}

/// One direction of traffic of one GPU.
pub(crate) struct Lane {
    shared: Arc<Shared>,
    waiter: Mutex<Option<Worker<()>>>,
}

struct Shared {
    backend: Arc<dyn Backend>,
    stream: StreamHandle,
    /// Held across the enqueue calls of one job, which by the backend's contract do not wait: work and the event that
    /// reports on it must not be interleaved with another tenant's, or one would be told of the other's failure.
    issue: Mutex<Issue>,
}

struct Issue {
    backlog: Backlog<(LanePlan, Arc<Running>)>,
    outstanding: Load,
    /// Gone when the lane is.
    sender: Option<Sender<Enqueued>>,
}

impl Lane {
    pub(crate) fn new(backend: Arc<dyn Backend>, id: LaneId) -> Result<Self, EngineError> {
        let stream = backend.create_stream(id.gpu)?;
        let (sender, receiver) = unbounded();
        let issue = Issue { backlog: Backlog::default(), outstanding: Load::default(), sender: Some(sender) };
        let shared = Arc::new(Shared { backend, stream, issue: Mutex::new(issue) });
        let direction = match id.direction {
            Direction::In => "in",
            Direction::Out => "out",
            Direction::Peer => "peer",
        };
        let waiting = Arc::clone(&shared);
        let waiter = spawn_named(format!("{}-{direction}", id.gpu), move || waiting.wait_all(&receiver))
            .map_err(EngineError::Thread)?;
        Ok(Self { shared, waiter: Mutex::new(Some(waiter)) })
    }

    /// Takes a piece of a job, to be enqueued behind what came before in the same flow. Its end is reported to `running` by the lane's
    /// own thread, never from within this call.
    pub(crate) fn issue(&self, flow: Flow, plan: LanePlan, running: &Arc<Running>) {
        let mut issue = self.shared.lock();
        issue.backlog.push(flow, (plan, Arc::clone(running)));
        self.shared.pump(&mut issue);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Issue> {
        self.issue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enqueues from the backlog while there is room.
    fn pump(&self, issue: &mut Issue) {
        while let Some((plan, _)) = issue.backlog.front() {
            let load = issue.outstanding.plus(Load::of(plan));
            if issue.outstanding.pieces > 0 && !load.fits(MAX_OUTSTANDING) {
                return;
            }
            let (Some(sender), Some((plan, running))) = (&issue.sender, issue.backlog.pop()) else {
                return;
            };
            issue.outstanding = load;
            // The receiver lives as long as the sender is here.
            let _ = sender.send(self.enqueue_all(plan, running));
        }
    }

    fn enqueue_all(&self, plan: LanePlan, running: Arc<Running>) -> Enqueued {
        let load = Load::of(&plan);
        let LanePlan { first_offset, steps: to_do, .. } = plan;
        let mut spans = Vec::new();
        let refused = to_do.into_iter().try_for_each(|step| self.enqueue(step, &mut spans)).err();
        let event = self.backend.record(self.stream);
        Enqueued { event, refused, running, first_offset, load, spans }
    }

    fn enqueue(&self, step: Step, spans: &mut Vec<HostSpan>) -> Result<(), GpuError> {
        match step {
            Step::In { to, from } => {
                spans.push(from.clone());
                self.backend.copy_in(self.stream, to, from)
            }
            Step::Out { to, from } => {
                spans.push(to.clone());
                self.backend.copy_out(self.stream, to, from)
            }
            Step::Copy { to, from, len_bytes } => self.backend.copy(self.stream, to, from, len_bytes),
            Step::Fill { range, pattern } => self.backend.fill(self.stream, range, pattern),
        }
    }

    fn forget(&self, event: EventHandle) {
        if let Err(error) = self.backend.destroy_event(event) {
            error!(%error, "an event could not be destroyed");
        }
    }

    /// Reports on everything that was enqueued, in order, until the lane is gone and all is reported.
    fn wait_all(&self, enqueued: &Receiver<Enqueued>) {
        for work in enqueued {
            let Enqueued { event, refused, running, first_offset, load, spans } = work;
            let result = event.and_then(|event| {
                let reached = loop {
                    match self.backend.synchronize(event, WAIT_SLICE) {
                        Ok(false) => {}
                        other => break other,
                    }
                };
                self.forget(event);
                reached.map(|_| ())
            });
            let result = match result.and(refused.map_or(Ok(()), Err)) {
                Err(error) => {
                    error!(%error, "a GPU failed a transfer");
                    Err(TransferError::Gpu(error))
                }
                Ok(()) if spans.iter().any(HostSpan::poisoned) => Err(TransferError::HostMemoryLost),
                Ok(()) => Ok(()),
            };
            drop(spans);
            {
                let mut issue = self.lock();
                issue.outstanding = issue.outstanding.minus(load);
                self.pump(&mut issue);
            }
            running.lane_done(first_offset, result);
        }
        let cancelled = self.lock().backlog.take_all();
        for (plan, running) in cancelled {
            running.lane_done(plan.first_offset, Err(TransferError::Cancelled));
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.shared.lock().sender.take();
        let waiter = self.waiter.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waiter) = waiter
            // A job's last act may drop the engine, on this very thread.
            && waiter.thread().id() != std::thread::current().id()
        {
            let _ = waiter.join();
        }
        if let Err(error) = self.shared.backend.destroy_stream(self.shared.stream) {
            error!(%error, "a lane's stream could not be destroyed");
        }
    }
}
