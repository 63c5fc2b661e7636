//! The session.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tracing::warn;
use vram_pool::SliceId;
use vram_protocol::{Header, Response, Status};
use vram_residency::Residency;

use crate::Counters;
use crate::context::Context;
use crate::events::Events;

/// How long the end of contexts waits for their transfers, however many end at once.
const CLOSE_WAIT: Duration = Duration::from_secs(5);

/// What a session is made of.
#[derive(Clone)]
pub struct SessionConfig {
    /// The slice it serves.
    pub slice: SliceId,
    /// Its name.
    pub slice_name: String,
    /// The daemon's boot epoch.
    pub boot_epoch: u64,
    /// Memory.
    pub residency: Arc<Residency>,
    /// Where it counts.
    pub counters: Arc<Counters>,
    /// Contexts of the slice so far, over all its sessions: a number is not given out twice, so that a driver which
    /// missed the end of a session cannot name somebody else's context.
    pub contexts: Arc<AtomicU32>,
}

/// The answer to a control request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Its head.
    pub response: Response,
    /// What follows it.
    pub payload: Vec<u8>,
}

/// One connected guest.
pub struct Session {
    pub(crate) config: SessionConfig,
    state: Mutex<State>,
    /// What the guest is to be told.
    pub(crate) events: Arc<Events>,
}

/// What HELLO begins and the end of the session ends.
#[derive(Default)]
pub(crate) struct State {
    /// The driver that said HELLO.
    pub(crate) driver_epoch: Option<u64>,
    pub(crate) contexts: BTreeMap<u32, Context>,
}

impl State {
    pub(crate) fn context(&mut self, header: &Header) -> Result<&mut Context, Status> {
        self.contexts.get_mut(&header.context).ok_or(Status::NoContext)
    }

    pub(crate) fn allocation_count(&self) -> usize {
        self.contexts.values().map(Context::allocation_count).fold(0, usize::saturating_add)
    }
}

impl Session {
    /// A session nobody has said HELLO to.
    pub fn new(config: SessionConfig) -> Arc<Self> {
        let events = Arc::<Events>::default();
        let watch: Weak<Events> = Arc::downgrade(&events);
        config.residency.subscribe(config.slice, watch);
        Arc::new(Self { config, state: Mutex::default(), events })
    }

    /// Whether HELLO was accepted.
    pub fn is_ready(&self) -> bool {
        self.state().driver_epoch.is_some()
    }

    /// The daemon's boot epoch.
    pub fn boot_epoch(&self) -> u64 {
        self.config.boot_epoch
    }

    /// Where the session counts.
    pub fn counters(&self) -> &Counters {
        &self.config.counters
    }

    /// The answer to a request that is refused with a status.
    pub fn refusal(&self, tag: u64, status: Status) -> Response {
        Response { status, tag, moved: 0, value: 0, epoch: self.config.boot_epoch }
    }

    /// Ends the session: every context is closed and all memory freed. Called when the frontend is gone.
    pub fn end(&self) {
        self.close_all();
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes every context; the session is not ready until the next HELLO.
    pub(crate) fn close_all(&self) {
        let contexts = {
            let mut state = self.state();
            state.driver_epoch = None;
            std::mem::take(&mut state.contexts)
        };
        self.events.close();
        self.config.counters.set_contexts(0);
        let deadline = close_deadline();
        for (number, context) in contexts {
            self.close(number, context, deadline);
        }
    }

    pub(crate) fn close(&self, number: u32, context: Context, deadline: Instant) {
        if !context.close(deadline) {
            warn!(slice = %self.config.slice_name, context = number, "a context's transfers outlast it");
        }
    }
}

/// Until when contexts that are closed now wait for their transfers.
pub(crate) fn close_deadline() -> Instant {
    let now = Instant::now();
    now.checked_add(CLOSE_WAIT).unwrap_or(now)
}

impl Drop for Session {
    fn drop(&mut self) {
        self.close_all();
    }
}
