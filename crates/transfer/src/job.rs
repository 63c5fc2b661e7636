//! One transfer.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use vram_gpu::Pattern;
use vram_guest_memory::SpanList;

use crate::{Part, TransferError};

/// Whose work it is. Lanes take turns among flows, so that none waits for all another has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flow {
    /// The requests of the slice with this number.
    Requests(u32),
    /// What is done to its memory between owners.
    Upkeep(u32),
}

/// What keeps device memory from being taken away while a job touches it.
pub type Lease = Arc<dyn Any + Send + Sync>;

/// Finds out where a job's bytes are.
pub trait Locate: Send {
    /// Asked when the job's turn comes, with a lock of its stream held: must not block, nor call `again` from within.
    fn locate(&mut self, again: Again) -> Located;
}

/// To be called once when it is worth asking again where bytes are, on any thread, with no lock held.
pub type Again = Box<dyn FnOnce() + Send>;

/// Where a job's bytes are.
pub enum Located {
    /// Here: the work, and what keeps the bytes there until it is done.
    Here(Work, Lease),
    /// The first of them are here, the others are to be located when these are through. To everybody else the job stays
    /// one: it is answered once, and nothing behind it begins before.
    Piece {
        /// What can be done now: at least one byte.
        work: Work,
        /// Keeps these bytes there; dropped when they are through, before the rest is located.
        lease: Lease,
        /// Finds out where the other bytes are.
        rest: Box<dyn Locate>,
    },
    /// On their way; `again` will be called.
    Moving,
    /// Nowhere any more.
    Gone(TransferError),
}

/// What to move. Lengths on both sides are the same. Parts follow each other in the order of the bytes, and what is
/// written does not overlap what is read. [`Part::Cold`] is only ever read; a job that would write there is a
/// [`TransferError::Mismatch`].
pub enum Work {
    /// What is found out when the job's turn comes.
    Located(Box<dyn Locate>),
    /// From the host, where somebody else has the bytes.
    Write {
        /// Where to.
        to: Vec<Part>,
        /// Where from.
        from: SpanList,
    },
    /// To the host, where somebody else wants the bytes.
    Read {
        /// Where from.
        from: Vec<Part>,
        /// Where to.
        to: SpanList,
    },
    /// From parts to parts. What is cold goes to a GPU by way of a buffer of the engine.
    Copy {
        /// Where to.
        to: Vec<Part>,
        /// Where from.
        from: Vec<Part>,
    },
    /// A pattern, whose size divides the length of every part.
    Fill {
        /// Where to.
        to: Vec<Part>,
        /// What.
        pattern: Pattern,
    },
    /// Nothing: done when everything before it on its stream is.
    Barrier,
    /// Nothing: done when everything before it on all streams of its group is. What follows on its own stream waits.
    GroupBarrier,
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Located(_) => "Located",
            Self::Write { .. } => "Write",
            Self::Read { .. } => "Read",
            Self::Copy { .. } => "Copy",
            Self::Fill { .. } => "Fill",
            Self::Barrier => "Barrier",
            Self::GroupBarrier => "GroupBarrier",
        })
    }
}

/// How a job ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Bytes from the start that surely arrived.
    pub moved_bytes: u64,
    /// Whether that is all.
    pub result: Result<(), TransferError>,
}

impl Outcome {
    /// The outcome of a job of which `bytes` were moved before.
    pub(crate) fn after(self, bytes: u64) -> Self {
        Self { moved_bytes: self.moved_bytes.saturating_add(bytes), ..self }
    }
}

/// Called exactly once, on a thread of the engine or on the submitting one; must not block.
pub type Done = Box<dyn FnOnce(Outcome) + Send>;

/// A transfer to be made.
pub struct Job {
    /// What to move.
    pub work: Work,
    /// Held until the job is done.
    pub leases: Vec<Lease>,
    /// Told how it ended.
    pub done: Done,
}

/// A job under way on one or more lanes.
pub(crate) struct Running {
    total_bytes: u64,
    lanes_left: AtomicUsize,
    first_failure: Mutex<Option<(u64, TransferError)>>,
    end: Mutex<Option<End>>,
}

/// What happens when the last lane is through.
struct End {
    leases: Vec<Lease>,
    done: Done,
    then: Box<dyn FnOnce() + Send>,
}

impl Running {
    /// A job on `lanes` lanes; `then` runs after `done`.
    pub(crate) fn new(
        total_bytes: u64,
        lanes: usize,
        leases: Vec<Lease>,
        done: Done,
        then: Box<dyn FnOnce() + Send>,
    ) -> Arc<Self> {
        Arc::new(Self {
            total_bytes,
            lanes_left: AtomicUsize::new(lanes),
            first_failure: Mutex::new(None),
            end: Mutex::new(Some(End { leases, done, then })),
        })
    }

    /// Whether the job has failed so early that it does not matter what becomes of its bytes from `at` on.
    pub(crate) fn failed_before(&self, at: u64) -> bool {
        let first = self.first_failure.lock().unwrap_or_else(PoisonError::into_inner);
        first.as_ref().is_some_and(|(offset, _)| *offset <= at)
    }

    /// One lane is through; on failure nothing from byte `at` on is sure.
    pub(crate) fn lane_done(&self, at: u64, result: Result<(), TransferError>) {
        if let Err(error) = result {
            let mut first = self.first_failure.lock().unwrap_or_else(PoisonError::into_inner);
            if first.as_ref().is_none_or(|(offset, _)| at < *offset) {
                *first = Some((at, error));
            }
        }
        if self.lanes_left.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let Some(end) = self.end.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let failure = self.first_failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        let outcome = match failure {
            None => Outcome { moved_bytes: self.total_bytes, result: Ok(()) },
            Some((at, error)) => Outcome { moved_bytes: at, result: Err(error) },
        };
        // The memory is let go before the answer, so that who hears the answer finds it free.
        drop(end.leases);
        (end.done)(outcome);
        (end.then)();
    }
}
