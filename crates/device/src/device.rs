//! The device as a transport sees it.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use tracing::warn;
use vram_protocol::{ConfigSpace, MAX_SEGMENTS, QUEUE_FIRST_REQUEST};
use vram_session::Session;
use vram_virtqueue::{Ring, RingAddresses, RingError};

use crate::memory::MemoryCell;
use crate::queue::{CallCell, QueueHandle, QueueSetup};

/// Why a session cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum DeviceFailure {
    /// The guest broke a ring.
    #[error("The guest broke a ring")]
    Ring(#[from] RingError),
    /// The frontend truncated guest memory.
    #[error("The frontend took guest memory away without saying so")]
    GuestMemoryLost,
    /// Requests did not end while a queue was being stopped.
    #[error("{count} requests did not end in time while their queue was being stopped")]
    StuckRequests {
        /// How many.
        count: usize,
    },
    /// A bug of ours.
    #[error("A queue's thread panicked")]
    Panicked,
}

/// Why a queue cannot be stopped cleanly.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// The queue has failed, or requests under way did not end in time.
    #[error("Queue {index} did not come to an end")]
    DidNotEnd {
        /// Which.
        index: u16,
    },
}

/// What a device is made of.
pub struct DeviceSetup {
    /// The slice's name, for thread names and logs.
    pub name: String,
    /// The guest's world.
    pub session: Arc<Session>,
    /// Request queues to serve.
    pub request_queues: u16,
    /// Called once, on whatever thread, when the session cannot go on.
    pub failed: Box<dyn Fn(&DeviceFailure) + Send + Sync>,
}

/// The two event descriptors of a queue.
pub struct QueueEvents {
    /// The guest kicks here. Non-blocking.
    pub kick: OwnedFd,
    /// The guest is interrupted here.
    pub call: Arc<CallCell>,
}

/// A virtio-vram device.
pub struct Device {
    name: String,
    session: Arc<Session>,
    config: ConfigSpace,
    request_queues: u16,
    memory: Arc<MemoryCell>,
    queues: Mutex<HashMap<u16, QueueHandle>>,
    failed: Arc<dyn Fn(&DeviceFailure) + Send + Sync>,
}

impl Device {
    /// A device with no memory and no queue running.
    pub fn new(setup: DeviceSetup) -> Self {
        let DeviceSetup { name, session, request_queues, failed } = setup;
        let config = ConfigSpace::new(request_queues, session.boot_epoch());
        Self {
            name,
            session,
            config,
            request_queues,
            memory: Arc::default(),
            queues: Mutex::default(),
            failed: Arc::from(failed),
        }
    }

    /// Queues there are: control, events, requests.
    pub fn queue_count(&self) -> u16 {
        self.request_queues.saturating_add(QUEUE_FIRST_REQUEST)
    }

    /// Answers a read of the configuration space, at any offset and of any size.
    pub fn read_config(&self, offset: u32, out: &mut [u8]) {
        self.config.read(offset, out);
    }

    /// Guest memory, for the transport to change.
    pub fn memory(&self) -> &Arc<MemoryCell> {
        &self.memory
    }

    /// Starts serving a queue at `next_avail`. One that runs already is stopped first.
    pub fn start_queue(
        &self,
        index: u16,
        addresses: RingAddresses,
        next_avail: u16,
        event_idx: bool,
        events: QueueEvents,
    ) -> Result<(), StartQueueError> {
        self.stop_queue(index).map_err(StartQueueError::Stop)?;
        let max_descriptors = MAX_SEGMENTS.saturating_add(2);
        let ring = Ring::new(&self.memory.get(), addresses, next_avail, event_idx, max_descriptors)
            .map_err(StartQueueError::Ring)?;
        let failed = Arc::clone(&self.failed);
        let name = self.name.clone();
        let tell = Box::new(move |failure: DeviceFailure| {
            warn!(slice = %name, queue = index, failure = %Chain(&failure), "the session ends");
            failed(&failure);
        });
        let setup = QueueSetup {
            index,
            ring,
            kick: events.kick,
            call: events.call,
            memory: Arc::clone(&self.memory),
            session: Arc::clone(&self.session),
        };
        // Linux shows 15 bytes of a thread's name: the queue comes first.
        let thread_name = format!("q{index}-{}", self.name);
        let running = QueueHandle::start(setup, &thread_name, tell)?;
        self.queues.lock().unwrap_or_else(PoisonError::into_inner).insert(index, running);
        Ok(())
    }

    /// Stops serving a queue and returns the index of the next chain it would have taken; `None` if it did not run.
    /// Requests under way are finished and answered first.
    pub fn stop_queue(&self, index: u16) -> Result<Option<u16>, StopError> {
        let running = self.queues.lock().unwrap_or_else(PoisonError::into_inner).remove(&index);
        match running {
            None => Ok(None),
            Some(handle) => match handle.stop() {
                Some(ring) => Ok(Some(ring.next_avail())),
                None => Err(StopError::DidNotEnd { index }),
            },
        }
    }

    /// Stops every queue and ends the session: all its memory is freed. The end of a connection.
    pub fn shut_down(&self) {
        let indices: Vec<u16> = {
            let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
            // All at once, so that waiting for stuck ones does not add up.
            for handle in queues.values() {
                handle.begin_stop();
            }
            queues.keys().copied().collect()
        };
        for index in indices {
            if let Err(error) = self.stop_queue(index) {
                warn!(slice = %self.name, %error, "while the session ends");
            }
        }
        self.memory.set(vram_guest_memory::GuestMap::new());
        self.session.end();
    }
}

/// Why a queue cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartQueueError {
    /// The ring is not one.
    #[error("The ring is not valid")]
    Ring(#[source] RingError),
    /// The queue ran already and did not end.
    #[error("The queue ran already")]
    Stop(#[source] StopError),
    /// No descriptor is left to wake the thread with.
    #[error("The queue's eventfd cannot be made")]
    Eventfd(#[source] io::Error),
    /// No thread can be started.
    #[error("The queue's thread cannot be started")]
    Thread(#[source] vram_sandbox::SpawnError),
}

/// An error with everything behind it, in one line.
struct Chain<'a>(&'a dyn std::error::Error);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}
