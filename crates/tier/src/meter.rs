//! Counts of one tier.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::TierError;

/// What a tier holds and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Meter {
    /// Regions it holds.
    pub regions: u64,
    /// Bytes of these regions.
    pub logical_bytes: u64,
    /// Bytes they take.
    pub stored_bytes: u64,
    /// Most bytes it takes, if there is a limit.
    pub limit_bytes: Option<u64>,
    /// Regions stored.
    pub puts: u64,
    /// Bytes of them.
    pub put_bytes: u64,
    /// Time spent storing, failures included, all threads together.
    pub put_time: Duration,
    /// Reads.
    pub gets: u64,
    /// Bytes read.
    pub get_bytes: u64,
    /// Time spent reading, failures included, all threads together.
    pub get_time: Duration,
    /// Regions removed.
    pub removes: u64,
    /// Puts refused for lack of room.
    pub full: u64,
    /// Puts refused because the region does not shrink.
    pub incompressible: u64,
    /// Puts that failed for another reason.
    pub put_errors: u64,
    /// Reads that failed, damaged bytes left out.
    pub get_errors: u64,
    /// Reads that met damaged bytes.
    pub corrupt: u64,
    /// Removals that could not be carried out at once.
    pub remove_errors: u64,
    /// Chunks noted as a pattern.
    pub pattern_chunks: u64,
    /// Chunks stored as they are.
    pub raw_chunks: u64,
    /// Chunks stored compressed.
    pub coded_chunks: u64,
}

/// The counters behind a [`Meter`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    regions: AtomicU64,
    logical_bytes: AtomicU64,
    puts: AtomicU64,
    put_bytes: AtomicU64,
    put_ns: AtomicU64,
    gets: AtomicU64,
    get_bytes: AtomicU64,
    get_ns: AtomicU64,
    removes: AtomicU64,
    full: AtomicU64,
    incompressible: AtomicU64,
    put_errors: AtomicU64,
    get_errors: AtomicU64,
    corrupt: AtomicU64,
    remove_errors: AtomicU64,
    pattern_chunks: AtomicU64,
    raw_chunks: AtomicU64,
    coded_chunks: AtomicU64,
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Counters {
    pub(crate) fn note_put<T>(&self, result: &Result<T, TierError>, len_bytes: u64, time: Duration) {
        add(&self.put_ns, ns(time));
        match result {
            Ok(_) => {
                add(&self.puts, 1);
                add(&self.put_bytes, len_bytes);
            }
            Err(TierError::Full { .. } | TierError::NoRoomBelow { .. }) => add(&self.full, 1),
            Err(TierError::Incompressible { .. }) => add(&self.incompressible, 1),
            Err(_) => add(&self.put_errors, 1),
        }
    }

    pub(crate) fn note_full(&self) {
        add(&self.full, 1);
    }

    pub(crate) fn note_get<T>(&self, result: &Result<T, TierError>, len_bytes: u64, time: Duration) {
        add(&self.get_ns, ns(time));
        match result {
            Ok(_) => {
                add(&self.gets, 1);
                add(&self.get_bytes, len_bytes);
            }
            Err(TierError::Corrupt { .. }) => add(&self.corrupt, 1),
            Err(_) => add(&self.get_errors, 1),
        }
    }

    pub(crate) fn note_remove<T>(&self, result: &Result<T, TierError>) {
        match result {
            Ok(_) => add(&self.removes, 1),
            Err(_) => add(&self.remove_errors, 1),
        }
    }

    pub(crate) fn note_chunks(&self, patterns: u64, raw: u64, coded: u64) {
        add(&self.pattern_chunks, patterns);
        add(&self.raw_chunks, raw);
        add(&self.coded_chunks, coded);
    }

    /// A region is held from now on.
    pub(crate) fn enter(&self, len_bytes: u64) {
        add(&self.regions, 1);
        add(&self.logical_bytes, len_bytes);
    }

    /// A region is held no longer.
    pub(crate) fn leave(&self, len_bytes: u64) {
        self.regions.fetch_sub(1, Ordering::Relaxed);
        self.logical_bytes.fetch_sub(len_bytes, Ordering::Relaxed);
    }

    pub(crate) fn read(&self, stored_bytes: u64, limit_bytes: Option<u64>) -> Meter {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Meter {
            regions: get(&self.regions),
            logical_bytes: get(&self.logical_bytes),
            stored_bytes,
            limit_bytes,
            puts: get(&self.puts),
            put_bytes: get(&self.put_bytes),
            put_time: Duration::from_nanos(get(&self.put_ns)),
            gets: get(&self.gets),
            get_bytes: get(&self.get_bytes),
            get_time: Duration::from_nanos(get(&self.get_ns)),
            removes: get(&self.removes),
            full: get(&self.full),
            incompressible: get(&self.incompressible),
            put_errors: get(&self.put_errors),
            get_errors: get(&self.get_errors),
            corrupt: get(&self.corrupt),
            remove_errors: get(&self.remove_errors),
            pattern_chunks: get(&self.pattern_chunks),
            raw_chunks: get(&self.raw_chunks),
            coded_chunks: get(&self.coded_chunks),
        }
    }
}
