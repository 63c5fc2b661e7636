//! The event queue's thread: puts what happened to the guest's memory into the buffers the guest posts.
//!
//! A buffer is taken only when there is something to put into it, so that nothing is ever under way here, and a ring that
//! is stopped goes on where it was. What waits for a buffer waits in the session, bounded.

use std::sync::Arc;

use vram_guest_memory::GuestMap;
use vram_protocol::EVENT_BYTES;
use vram_virtqueue::{Chain, Ring, RingError};

use crate::DeviceFailure;
use crate::queue::{Napper, QueueSetup, Serve};

pub(crate) struct EventWorker {
    setup: QueueSetup,
    napper: Napper,
}

impl EventWorker {
    pub(crate) fn new(setup: QueueSetup, napper: Napper) -> Self {
        Self { setup, napper }
    }

    /// Tells as many events as there are buffers. The map is taken anew for each ringful, as for other queues.
    fn round(&mut self) -> Result<(), DeviceFailure> {
        loop {
            let map = self.setup.memory.get();
            self.setup.ring.disable_kicks(&map)?;
            let mut given_back = false;
            for _ in 0..self.setup.ring.size() {
                if self.napper.is_stopping() || !self.setup.session.has_events() {
                    break;
                }
                let Some(chain) = self.setup.ring.pop(&map)? else { break };
                self.fill(&map, &chain)?;
                given_back = true;
            }
            // Buffers matter only to somebody who has something to tell.
            let more = self.setup.session.has_events() && self.setup.ring.enable_kicks(&map)?;
            if given_back && self.setup.ring.needs_notification(&map)? {
                self.setup.call.signal();
            }
            if map.poisoned() {
                return Err(DeviceFailure::GuestMemoryLost);
            }
            if !more || self.napper.is_stopping() {
                return Ok(());
            }
        }
    }

    /// Gives a chain back, with an event in it if it can hold one.
    fn fill(&mut self, map: &GuestMap, chain: &Chain) -> Result<(), RingError> {
        let holds_one = chain.fault.is_none()
            && chain.readable.is_empty()
            && chain.writable.len_bytes() >= EVENT_BYTES as u64;
        // The session may have ended since it was looked at.
        let event = if holds_one { self.setup.session.next_event() } else { None };
        let written = event.map_or(0, |event| chain.writable.write_from(&event.to_bytes()));
        self.setup.ring.complete(map, chain.head, u32::try_from(written).unwrap_or(u32::MAX))
    }
}

impl Serve for EventWorker {
    fn run(&mut self) -> Result<(), DeviceFailure> {
        let waker = self.napper.waker();
        self.setup.session.wake_for_events(Some(Arc::new(move || waker.wake())));
        while !self.napper.is_stopping() {
            self.round()?;
            self.napper.nap(None);
        }
        self.setup.session.wake_for_events(None);
        Ok(())
    }

    fn into_ring(self: Box<Self>) -> Ring {
        self.setup.ring
    }
}
