//! Steps that no GPU takes part in, or only at their end, and how they are done: on a thread, one after the other.

use std::fmt;
use std::sync::{Arc, mpsc};

use vram_gpu::{DeviceAddress, GpuId, Pattern};
use vram_guest_memory::{HostBuffer, HostSpan};

use crate::engine::Lanes;
use crate::job::Running;
use crate::plan::{Direction, LaneId, LanePlan, Step};
use crate::{ColdSource, Flow, TransferError};

/// The kinds of host lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostLaneId {
    /// Copies and fills of memory.
    Memory,
    /// Reads of stores, which take their time.
    Cold,
}

impl HostLaneId {
    /// Most bytes of one piece, so that others get in between. For stores also what a staging buffer holds.
    pub(crate) fn max_piece_bytes(self) -> u64 {
        match self {
            Self::Memory => 16 << 20,
            Self::Cold => 4 << 20,
        }
    }
}

impl fmt::Display for HostLaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "host",
            Self::Cold => "cold",
        })
    }
}

/// One thing to do.
pub(crate) enum HostStep {
    /// Memory to memory.
    Copy { to: HostSpan, from: HostSpan },
    /// A pattern to memory whose length it divides.
    Fill { to: HostSpan, pattern: Pattern },
    /// A store to memory.
    Fetch { to: HostSpan, source: Arc<dyn ColdSource>, offset_bytes: u64 },
    /// A store to a GPU, by way of a buffer.
    Stage { to: DeviceAddress, gpu: GpuId, source: Arc<dyn ColdSource>, offset_bytes: u64, len_bytes: u64 },
}

/// Some steps of one job on a host lane. Together they move one run of the job's bytes, in order.
pub(crate) struct HostPiece {
    pub(crate) lane: HostLaneId,
    /// Offset in the job of the first byte these steps move.
    pub(crate) first_offset: u64,
    /// How many these are.
    pub(crate) len_bytes: u64,
    pub(crate) steps: Vec<HostStep>,
}

impl HostPiece {
    /// Does all steps. `at` is kept at the job's first byte that is not sure to have arrived.
    pub(crate) fn run(self, lanes: &Lanes, flow: Flow, at: &mut u64) -> Result<(), TransferError> {
        *at = self.first_offset;
        for step in self.steps {
            let len_bytes = step.len_bytes();
            step.run(lanes, flow)?;
            *at = at.saturating_add(len_bytes);
        }
        Ok(())
    }
}

impl HostStep {
    pub(crate) fn len_bytes(&self) -> u64 {
        match self {
            Self::Copy { to, .. } | Self::Fill { to, .. } | Self::Fetch { to, .. } => to.len_bytes() as u64,
            Self::Stage { len_bytes, .. } => *len_bytes,
        }
    }

    fn run(self, lanes: &Lanes, flow: Flow) -> Result<(), TransferError> {
        match self {
            Self::Copy { to, from } => {
                to.copy_from(&from);
                unless_lost(&[&to, &from], Ok(()))
            }
            Self::Fill { to, pattern } => {
                fill(&to, pattern);
                unless_lost(&[&to], Ok(()))
            }
            Self::Fetch { to, source, offset_bytes } => unless_lost(&[&to], source.read(offset_bytes, &to)),
            Self::Stage { to, gpu, source, offset_bytes, len_bytes } => {
                let buffer = staging(len_bytes)?;
                source.read(offset_bytes, &buffer)?;
                bring_in(lanes, flow, to, gpu, buffer)
            }
        }
    }
}

/// A store that fails to write to memory that vanished is not to blame.
fn unless_lost(spans: &[&HostSpan], result: Result<(), TransferError>) -> Result<(), TransferError> {
    if spans.iter().any(|span| span.poisoned()) { Err(TransferError::HostMemoryLost) } else { result }
}

/// A buffer for one step: new each time, so that no tenant's bytes are in it if a store writes too few.
fn staging(len_bytes: u64) -> Result<HostSpan, TransferError> {
    let len = usize::try_from(len_bytes).ok().ok_or(TransferError::Mismatch)?;
    let buffer = HostBuffer::new(len).map_err(|error| TransferError::Unavailable {
        reason: format!("no memory to stage them: {error}"),
    })?;
    buffer.span().part(0, len).ok().ok_or(TransferError::Mismatch)
}

/// Hands a buffer to a GPU's lane and waits until it is there: that the thread is busy meanwhile is what bounds how
/// many buffers there are. A lane reports on everything it took.
fn bring_in(
    lanes: &Lanes,
    flow: Flow,
    to: DeviceAddress,
    gpu: GpuId,
    from: HostSpan,
) -> Result<(), TransferError> {
    let id = LaneId { gpu, direction: Direction::In };
    let lane = lanes.lane(id)?;
    let len_bytes = from.len_bytes() as u64;
    let plan = LanePlan { lane: id, first_offset: 0, len_bytes, steps: vec![Step::In { to, from }] };
    let (sender, receiver) = mpsc::sync_channel(1);
    let done = Box::new(move |outcome: crate::Outcome| {
        let _ = sender.send(outcome.result);
    });
    lane.issue(flow, plan, &Running::new(len_bytes, 1, Vec::new(), done, Box::new(|| {})));
    receiver.recv().unwrap_or(Err(TransferError::Cancelled))
}

fn fill(to: &HostSpan, pattern: Pattern) {
    let mut block = [0u8; 16 << 10];
    match pattern {
        Pattern::U8(byte) => block.fill(byte),
        Pattern::U16(value) => repeat(&mut block, &value.to_le_bytes()),
        Pattern::U32(value) => repeat(&mut block, &value.to_le_bytes()),
    }
    let mut done = 0;
    while let Some(left) = to.len_bytes().checked_sub(done).filter(|left| *left > 0)
        && let Ok(rest) = to.part(done, left)
    {
        done = done.saturating_add(rest.write_from(&block));
    }
}

fn repeat(block: &mut [u8], value: &[u8]) {
    for place in block.chunks_exact_mut(value.len()) {
        place.copy_from_slice(value);
    }
}
