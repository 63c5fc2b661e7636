//! What a slice was asked for, in numbers.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one slice, over all its sessions.
#[derive(Debug, Default)]
pub struct Counters {
    requests: AtomicU64,
    refused: AtomicU64,
    written_bytes: AtomicU64,
    read_bytes: AtomicU64,
    copied_bytes: AtomicU64,
    filled_bytes: AtomicU64,
    contexts: AtomicU64,
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests answered.
    pub requests: u64,
    /// Of these, with a status other than OK.
    pub refused: u64,
    /// Bytes from guest RAM to GPU memory.
    pub written_bytes: u64,
    /// Bytes from GPU memory to guest RAM.
    pub read_bytes: u64,
    /// Bytes within GPU memory.
    pub copied_bytes: u64,
    /// Bytes filled.
    pub filled_bytes: u64,
    /// Contexts open now.
    pub contexts: u64,
}

/// What a data request moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    Written,
    Read,
    Copied,
    Filled,
    Nothing,
}

impl Counters {
    /// The counters now.
    pub fn totals(&self) -> Totals {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Totals {
            requests: load(&self.requests),
            refused: load(&self.refused),
            written_bytes: load(&self.written_bytes),
            read_bytes: load(&self.read_bytes),
            copied_bytes: load(&self.copied_bytes),
            filled_bytes: load(&self.filled_bytes),
            contexts: load(&self.contexts),
        }
    }

    /// One request was answered, by whatever layer.
    pub fn answered(&self, ok: bool) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if !ok {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn moved(&self, what: Moved, bytes: u64) {
        let counter = match what {
            Moved::Written => &self.written_bytes,
            Moved::Read => &self.read_bytes,
            Moved::Copied => &self.copied_bytes,
            Moved::Filled => &self.filled_bytes,
            Moved::Nothing => return,
        };
        counter.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn set_contexts(&self, open: usize) {
        self.contexts.store(open as u64, Ordering::Relaxed);
    }
}
