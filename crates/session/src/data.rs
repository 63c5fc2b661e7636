//! Data requests: WRITE, READ, COPY, FILL, FENCE.

use std::sync::Arc;

use vram_gpu::{DeviceAddress, DeviceRange, Pattern};
use vram_guest_memory::SpanList;
use vram_protocol::{Copy, Fill, Header, Range, Request, Status};
use vram_residency::Access;
use vram_transfer::{Job, Lease, Outcome, Stream, TransferError, Work};

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
        // Where the bytes are is asked when the request's turn comes.
        let (access, moved) = match request {
            Request::Write(range) => {
                let to = device_range(&range);
                lease(context.covering(to)?);
                (Some(Access::Write { to, from: data }), Moved::Written)
            }
            Request::Read(range) => {
                let from = device_range(&range);
                lease(context.covering(from)?);
                (Some(Access::Read { from, to: data }), Moved::Read)
            }
            Request::Copy(Copy { destination, source, length }) => {
                let to = DeviceRange { start: DeviceAddress(destination), len_bytes: length };
                let from = DeviceRange { start: DeviceAddress(source), len_bytes: length };
                lease(context.covering(to)?);
                lease(context.covering(from)?);
                (Some(Access::Copy { to, from }), Moved::Copied)
            }
            Request::Fill(fill) => {
                let (to, pattern) = (device_range(&fill.range), pattern(&fill)?);
                lease(context.covering(to)?);
                (Some(Access::Fill { to, pattern }), Moved::Filled)
            }
            Request::Fence { .. } => (None, Moved::Nothing),
            Request::Hello(_)
            | Request::Info
            | Request::ContextOpen(_)
            | Request::ContextClose
            | Request::Alloc(_)
            | Request::Free(_)
            | Request::Query(_)
            | Request::Advise(_) => return Err(Status::WrongQueue),
        };
        let stream = context.stream(header.stream);
        drop(state);
        let work = match access {
            Some(access) => self.config.residency.access(self.config.slice, access),
            None if matches!(request, Request::Fence { all_streams: true }) => Work::GroupBarrier,
            None => Work::Barrier,
        };
        Ok(Prepared { stream, work, leases, moved })
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
