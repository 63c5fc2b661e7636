//! The engine: all lanes of all GPUs.

use std::collections::HashMap;
use std::sync::{Arc, mpsc};

use vram_gpu::{Backend, GpuError, Pattern};
use vram_sandbox::SpawnError;

use crate::host_lane::HostLane;
use crate::host_piece::{HostLaneId, HostPiece};
use crate::job::Running;
use crate::lane::Lane;
use crate::plan::{Direction, LaneId, LanePlan, Plan};
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
    /// Dropped first: they use the GPUs' lanes.
    memory: HostLane,
    cold: HostLane,
    lanes: Arc<Lanes>,
}

/// The lanes of all GPUs.
pub(crate) struct Lanes(HashMap<LaneId, Lane>);

impl Lanes {
    /// The lane of this name, if there is such a GPU.
    pub(crate) fn lane(&self, id: LaneId) -> Result<&Lane, TransferError> {
        self.0.get(&id).ok_or(TransferError::Gpu(GpuError::NoSuchGpu { gpu: id.gpu }))
    }
}

impl Engine {
    /// Makes three lanes for each GPU: in, out, peer. What needs no GPU gets threads when there is something to do.
    pub fn new(backend: &Arc<dyn Backend>) -> Result<Arc<Self>, EngineError> {
        let mut lanes = HashMap::new();
        for device in backend.devices() {
            for direction in [Direction::In, Direction::Out, Direction::Peer] {
                let id = LaneId { gpu: device.id, direction };
                lanes.insert(id, Lane::new(Arc::clone(backend), id)?);
            }
        }
        let lanes = Arc::new(Lanes(lanes));
        let memory = HostLane::new(HostLaneId::Memory, Arc::clone(&lanes));
        let cold = HostLane::new(HostLaneId::Cold, Arc::clone(&lanes));
        Ok(Arc::new(Self { memory, cold, lanes }))
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

    /// Finds the lane of everything in a plan.
    pub(crate) fn issuable(&self, plan: Plan) -> Result<Issuable<'_>, TransferError> {
        let lanes = plan.lanes.into_iter().map(|plan| Ok((self.lanes.lane(plan.lane)?, plan)));
        let host = plan.host.into_iter().map(|piece| Ok((self.host_lane(piece.lane)?, piece)));
        Ok(Issuable {
            total_bytes: plan.total_bytes,
            lanes: lanes.collect::<Result<_, TransferError>>()?,
            host: host.collect::<Result<_, TransferError>>()?,
        })
    }

    /// A host lane, ready to take pieces.
    fn host_lane(&self, id: HostLaneId) -> Result<&HostLane, TransferError> {
        let lane = match id {
            HostLaneId::Memory => &self.memory,
            HostLaneId::Cold => &self.cold,
        };
        lane.ready()?;
        Ok(lane)
    }
}

/// A plan with the lanes it goes to.
pub(crate) struct Issuable<'a> {
    pub(crate) total_bytes: u64,
    lanes: Vec<(&'a Lane, LanePlan)>,
    host: Vec<(&'a HostLane, HostPiece)>,
}

impl Issuable<'_> {
    /// How many ends will be reported.
    pub(crate) fn pieces(&self) -> usize {
        self.lanes.len().saturating_add(self.host.len())
    }

    /// Hands everything to its lane.
    pub(crate) fn issue(self, flow: Flow, running: &Arc<Running>) {
        for (lane, plan) in self.lanes {
            lane.issue(flow, plan, running);
        }
        for (lane, piece) in self.host {
            lane.issue(flow, piece, running);
        }
    }
}
