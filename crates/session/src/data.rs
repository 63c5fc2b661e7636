//! Data requests: WRITE, READ, COPY, FILL, FENCE.

use std::sync::Arc;

use vram_gpu::{DeviceAddress, DeviceRange, Pattern};
use vram_guest_memory::SpanList;
use vram_protocol::{Copy, Fill, Header, Range, Request, Status};
use vram_transfer::{Job, Lease, Outcome, Part, Stream, TransferError, Work};

use crate::Session;
use crate::context::Allocation;
use crate::counters::Moved;
use crate::error::transfer_status;

/// How a data request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Outcome.
    pub status: Status,
    /// Bytes from the start that surely moved.
    pub moved_bytes: u64,
}

/// Called exactly once, on any thread; must not block.
pub type Answered = Box<dyn FnOnce(Answer) + Send>;

impl Session {
    /// Begins a data request. `data` is the chain's data part, already as long as the request says: bytes to write,
    /// or room to read into, or nothing. Never blocks; `answered` may be called before this returns.
    pub fn submit(&self, header: Header, request: Request, data: SpanList, answered: Answered) {
        match self.prepare(&header, request, data) {
            Ok(Prepared { stream, work, leases, moved }) => {
                let counters = Arc::clone(&self.config.counters);
                let residency = Arc::downgrade(&self.config.residency);
                let done = Box::new(move |outcome: Outcome| {
                    if let Err(TransferError::Gpu(error)) = &outcome.result
                        && let Some(residency) = residency.upgrade()
                    {
                        residency.note(error);
                    }
                    counters.moved(moved, outcome.moved_bytes);
                    answered(answer(&outcome));
                });
                stream.submit(Job { work, leases, done });
            }
            Err(status) => answered(Answer { status, moved_bytes: 0 }),
        }
    }

    /// Checks the request against the session's state; afterwards only the GPU can fail it.
    fn prepare(&self, header: &Header, request: Request, data: SpanList) -> Result<Prepared, Status> {
        let mut state = self.state();
        if state.driver_epoch.is_none() {
            return Err(Status::NotReady);
        }
        let context = state.context(header)?;
        let mut leases: Vec<Lease> = Vec::new();
        let mut lease = |allocation: &Arc<Allocation>| {
            let lease: Lease = Arc::<Allocation>::clone(allocation);
            leases.push(lease);
        };
        // First what the context knows, then, without its lock, where the bytes are.
        let ranges = match &request {
            Request::Write(range) | Request::Read(range) => {
                let range = device_range(range);
                lease(context.covering(range)?);
                [Some(range), None]
            }
            Request::Copy(Copy { destination, source, length }) => {
                let to = DeviceRange { start: DeviceAddress(*destination), len_bytes: *length };
                let from = DeviceRange { start: DeviceAddress(*source), len_bytes: *length };
                lease(context.covering(to)?);
                lease(context.covering(from)?);
                [Some(to), Some(from)]
            }
            Request::Fill(fill) => {
                let range = device_range(&fill.range);
                lease(context.covering(range)?);
                [Some(range), None]
            }
            Request::Fence { .. } => [None, None],
            Request::Hello(_)
            | Request::Info
            | Request::ContextOpen(_)
            | Request::ContextClose
            | Request::Alloc(_)
            | Request::Free(_)
            | Request::Query(_) => return Err(Status::WrongQueue),
        };
        let stream = context.stream(header.stream);
        drop(state);
        let [first, second] = ranges.map(|range| range.map(|range| self.parts(range)).transpose());
        let (first, second) = (first?.unwrap_or_default(), second?.unwrap_or_default());
        let (work, moved) = match request {
            Request::Write(_) => (Work::Write { to: first, from: data }, Moved::Written),
            Request::Read(_) => (Work::Read { from: first, to: data }, Moved::Read),
            Request::Copy(_) => (Work::Copy { to: first, from: second }, Moved::Copied),
            Request::Fill(fill) => (Work::Fill { to: first, pattern: pattern(&fill)? }, Moved::Filled),
            Request::Fence { all_streams: true } => (Work::GroupBarrier, Moved::Nothing),
            _ => (Work::Barrier, Moved::Nothing),
        };
        Ok(Prepared { stream, work, leases, moved })
    }

    /// Where the bytes of a range lie; the caller holds a lease on them.
    fn parts(&self, range: DeviceRange) -> Result<Vec<Part>, Status> {
        let parts = self.config.residency.parts(self.config.slice, range);
        let found = parts.iter().fold(0u64, |sum, part| sum.saturating_add(part.range.len_bytes));
        if found == range.len_bytes { Ok(parts) } else { Err(Status::DeviceLost) }
    }
}

struct Prepared {
    stream: Stream,
    work: Work,
    leases: Vec<Lease>,
    moved: Moved,
}

fn device_range(range: &Range) -> DeviceRange {
    DeviceRange { start: DeviceAddress(range.address), len_bytes: range.length }
}

fn pattern(fill: &Fill) -> Result<Pattern, Status> {
    let [b0, b1, ..] = fill.pattern.to_le_bytes();
    match fill.width {
        1 => Ok(Pattern::U8(b0)),
        2 => Ok(Pattern::U16(u16::from_le_bytes([b0, b1]))),
        4 => Ok(Pattern::U32(fill.pattern)),
        _ => Err(Status::BadAlignment),
    }
}

fn answer(outcome: &Outcome) -> Answer {
    let status = match &outcome.result {
        Ok(()) => Status::Ok,
        Err(error) => transfer_status(error),
    };
    Answer { status, moved_bytes: outcome.moved_bytes }
}
