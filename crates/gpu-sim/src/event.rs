//! Marks in streams.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use vram_gpu::GpuError;

/// The longest one wait lasts before the time is looked at again: not every duration can be waited for at once.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// One recorded mark: not reached, or reached with what happened since the mark before.
#[derive(Debug, Default)]
pub(crate) struct Event {
    outcome: Mutex<Option<Result<(), GpuError>>>,
    reached: Condvar,
}

impl Event {
    pub(crate) fn reach(&self, outcome: Result<(), GpuError>) {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        self.reached.notify_all();
    }

    pub(crate) fn query(&self) -> Result<bool, GpuError> {
        let outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        outcome.clone().map_or(Ok(false), |outcome| outcome.map(|()| true))
    }

    pub(crate) fn wait(&self, timeout: Duration) -> Result<bool, GpuError> {
        let started = Instant::now();
        let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(outcome) = &*outcome {
                return outcome.clone().map(|()| true);
            }
            let left = timeout.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Ok(false);
            }
            outcome = self
                .reached
                .wait_timeout(outcome, left.min(LONGEST_WAIT))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Blocks until the event is reached, whatever the outcome.
    pub(crate) fn wait_reached(&self) {
        let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        while outcome.is_none() {
            outcome = self.reached.wait(outcome).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The duty to reach an event. Dropped undone (its stream's thread is gone), it reaches the event with an error, so
/// that nobody waits for ever.
#[derive(Debug)]
pub(crate) struct Mark(Option<Arc<Event>>);

impl Mark {
    pub(crate) fn new(event: &Arc<Event>) -> Self {
        Self(Some(Arc::clone(event)))
    }

    pub(crate) fn reach(mut self, outcome: Result<(), GpuError>) {
        if let Some(event) = self.0.take() {
            event.reach(outcome);
        }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if let Some(event) = self.0.take() {
            let reason = "the stream's thread is gone".to_owned();
            event.reach(Err(GpuError::Driver { call: "record", reason }));
        }
    }
}
