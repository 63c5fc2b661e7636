//! Waking a thread that has nothing to do.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Rung when there may be something to do. Whoever waits for it holds nothing else meanwhile, so that what he works for
/// can come to its end.
#[derive(Default)]
pub(crate) struct Bell {
    rung: Mutex<bool>,
    ringing: Condvar,
}

impl Bell {
    pub(crate) fn ring(&self) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.ringing.notify_all();
    }

    /// Waits until it is rung, or has been since the last time, or for a while.
    pub(crate) fn wait(&self, timeout: Duration) {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.ringing.wait_timeout_while(rung, timeout, |rung| !*rung);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}
