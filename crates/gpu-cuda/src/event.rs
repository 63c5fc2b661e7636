//! Marks in streams.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUevent;
use vram_gpu::GpuError;

use crate::api::{Api, NOT_READY, Refusal, check};
use crate::stream::Stream;

/// No timing: half the cost, and nobody reads it.
const DISABLE_TIMING: u32 = 2;
/// How long a wait spins before it sleeps.
const SPIN: Duration = Duration::from_micros(20);
/// The longest a wait sleeps between two looks.
const LONGEST_SLEEP: Duration = Duration::from_micros(500);

/// An event of the driver, destroyed when dropped.
pub(crate) struct RawEvent {
    api: Arc<Api>,
    raw: CUevent,
}

// SAFETY: the driver API is thread safe; an event is an opaque handle that any thread may use.
unsafe impl Send for RawEvent {}
// SAFETY: as above.
unsafe impl Sync for RawEvent {}

impl RawEvent {
    /// Makes an event in the current context.
    pub(crate) fn create(api: &Arc<Api>) -> Result<Self, Refusal> {
        let mut raw: CUevent = std::ptr::null_mut();
        // SAFETY: the pointer is ours for the call.
        check("cuEventCreate", unsafe { (api.symbols.event_create)(&raw mut raw, DISABLE_TIMING) })?;
        Ok(Self { api: Arc::clone(api), raw })
    }

    pub(crate) fn raw(&self) -> CUevent {
        self.raw
    }

    /// Whether it has been reached; an error is that of the work before it, or of the context.
    pub(crate) fn query(&self) -> Result<bool, Refusal> {
        // SAFETY: the event lives as long as `self`.
        match unsafe { (self.api.symbols.event_query)(self.raw) } {
            NOT_READY => Ok(false),
            code => check("cuEventQuery", code).map(|()| true),
        }
    }
}

impl Drop for RawEvent {
    fn drop(&mut self) {
        // SAFETY: nobody has the handle any more; work that waits for the event still does (the driver keeps it).
        unsafe { (self.api.symbols.event_destroy)(self.raw) };
    }
}

/// An event the backend's user knows.
pub(crate) struct Event {
    pub(crate) mark: Arc<RawEvent>,
    pub(crate) stream: Arc<Stream>,
    /// What the stream holds up to here is no longer needed once the event is reached.
    pub(crate) upto: u64,
    outcome: OnceLock<Result<(), GpuError>>,
}

impl Event {
    pub(crate) fn new(mark: Arc<RawEvent>, stream: Arc<Stream>, upto: u64) -> Self {
        Self { mark, stream, upto, outcome: OnceLock::new() }
    }

    /// Looks once. What was found stays: a failure is reported as often as asked.
    pub(crate) fn query(&self, api: &Api) -> Result<bool, GpuError> {
        if let Some(outcome) = self.outcome.get() {
            return outcome.clone().map(|()| true);
        }
        // On a lost GPU nothing runs any more, so nothing is needed any more.
        let gpu = api.alive(self.stream.gpu).inspect_err(|_| self.stream.release(self.upto))?;
        let looked = api.enter(gpu).and_then(|()| self.mark.query());
        let outcome = match looked {
            Ok(false) => return Ok(false),
            Ok(true) => Ok(()),
            Err(refusal) => Err(api.explain_work(gpu, refusal)),
        };
        // Reached, or never to be reached: either way the work before is over.
        self.stream.release(self.upto);
        self.outcome.get_or_init(|| outcome).clone().map(|()| true)
    }

    /// Looks until it is reached or the time is up.
    pub(crate) fn wait(&self, api: &Api, timeout: Duration) -> Result<bool, GpuError> {
        let started = Instant::now();
        let mut sleep = Duration::from_micros(5);
        loop {
            if self.query(api)? {
                return Ok(true);
            }
            let passed = started.elapsed();
            if passed >= timeout {
                return Ok(false);
            }
            if passed < SPIN {
                std::hint::spin_loop();
                continue;
            }
            std::thread::sleep(sleep.min(timeout.saturating_sub(passed)));
            sleep = sleep.saturating_mul(2).min(LONGEST_SLEEP);
        }
    }
}
