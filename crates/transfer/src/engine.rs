//! The engine: all lanes of all GPUs.

use std::collections::HashMap;
use std::sync::{Arc, mpsc};

use vram_gpu::{Backend, GpuError, Pattern};
use vram_sandbox::SpawnError;

use crate::lane::Lane;
use crate::plan::{Direction, LaneId, LanePlan};
use crate::{Flow, Group, Job, Lease, Part, Stream, TransferError, Work};

/// Why the engine cannot start.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A lane's stream cannot be made.
    #[error("A stream for a lane cannot be made")]
    Gpu(#[from] GpuError),
    /// A lane's thread cannot be started.
    #[error("A thread for a lane cannot be started")]
    Thread(#[source] SpawnError),
}

/// Moves bytes for everybody.
pub struct Engine {
    lanes: HashMap<LaneId, Lane>,
}

impl Engine {
    /// Makes three lanes for each GPU: in, out, peer.
    pub fn new(backend: &Arc<dyn Backend>) -> Result<Arc<Self>, EngineError> {
        let mut lanes = HashMap::new();
        for device in backend.devices() {
            for direction in [Direction::In, Direction::Out, Direction::Peer] {
                let id = LaneId { gpu: device.id, direction };
                lanes.insert(id, Lane::new(Arc::clone(backend), id)?);
            }
        }
        Ok(Arc::new(Self { lanes }))
    }

    /// A new group of streams of a flow.
    pub fn group(self: &Arc<Self>, flow: Flow) -> Group {
        Group::new(Arc::clone(self), flow)
    }

    /// A new stream of a flow, in a group of its own.
    pub fn stream(self: &Arc<Self>, flow: Flow) -> Stream {
        self.group(flow).stream()
    }

    /// Zeroes device memory and waits for it: the way pages are scrubbed before somebody else gets them.
    pub fn scrub(
        self: &Arc<Self>,
        flow: Flow,
        to: Vec<Part>,
        leases: Vec<Lease>,
    ) -> Result<(), TransferError> {
        self.run(flow, Work::Fill { to, pattern: Pattern::U8(0) }, leases)
    }

    /// Does work on a stream of its own and waits for it.
    pub fn run(self: &Arc<Self>, flow: Flow, work: Work, leases: Vec<Lease>) -> Result<(), TransferError> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let done = Box::new(move |outcome: crate::Outcome| {
            let _ = sender.send(outcome.result);
        });
        self.stream(flow).submit(Job { work, leases, done });
        receiver.recv().unwrap_or(Err(TransferError::Cancelled))
    }

    /// The lane of a plan, if there is such a GPU.
    pub(crate) fn lane(&self, plan: &LanePlan) -> Result<&Lane, TransferError> {
        let gpu = plan.lane.gpu;
        self.lanes.get(&plan.lane).ok_or(TransferError::Gpu(GpuError::NoSuchGpu { gpu }))
    }
}
