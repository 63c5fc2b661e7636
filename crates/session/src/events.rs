//! What a guest is to be told without having asked.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vram_gpu::{DeviceRange, GpuId};
use vram_protocol::{EVENT_DATA_LOST, EVENT_GPU_LOST, EVENT_LIMIT_CHANGED, EVENT_MISSED, EventMessage};
use vram_residency::{MemoryEvent, MemoryWatch};

use crate::Session;

/// Events that wait for a buffer of the guest's; what does not fit is counted.
const MAX_WAITING: usize = 32;

/// Called when there is an event, on any thread; must not block.
pub type EventWaker = Arc<dyn Fn() + Send + Sync>;

/// The events of one session. Its lock is the innermost there is.
#[derive(Default)]
pub(crate) struct Events(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    /// Whether there is a driver that has said HELLO.
    is_open: bool,
    events: VecDeque<MemoryEvent>,
    missed: u64,
    waker: Option<EventWaker>,
}

/// What is told next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Missed(u64),
    Event(MemoryEvent),
}

impl Waiting {
    /// Makes one of this event and one that waits, if they say the same.
    fn joins(&mut self, event: MemoryEvent) -> bool {
        self.events.iter_mut().any(|waiting| match (waiting, event) {
            (MemoryEvent::DataLost(waiting), MemoryEvent::DataLost(range)) => match joined(*waiting, range) {
                Some(both) => {
                    *waiting = both;
                    true
                }
                None => false,
            },
            (waiting, event) => *waiting == event,
        })
    }
}

/// Two ranges as one, if they touch.
fn joined(one: DeviceRange, other: DeviceRange) -> Option<DeviceRange> {
    let (one_end, other_end) = (one.end()?, other.end()?);
    if one.start > other_end || other.start > one_end {
        return None;
    }
    let (start, end) = (one.start.min(other.start), one_end.max(other_end));
    Some(DeviceRange { start, len_bytes: end.0.checked_sub(start.0)? })
}

impl Events {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A driver has opened the session: from now on events wait for its buffers.
    pub(crate) fn open(&self) {
        self.waiting().is_open = true;
    }

    /// The driver's session is over, and nobody is to be told what happened in it.
    pub(crate) fn close(&self) {
        let mut waiting = self.waiting();
        waiting.is_open = false;
        waiting.events.clear();
        waiting.missed = 0;
    }

    fn next(&self) -> Option<Next> {
        let mut waiting = self.waiting();
        match std::mem::take(&mut waiting.missed) {
            0 => waiting.events.pop_front().map(Next::Event),
            missed => Some(Next::Missed(missed)),
        }
    }
}

impl MemoryWatch for Events {
    fn happened(&self, event: MemoryEvent) {
        let waker = {
            let mut waiting = self.waiting();
            if !waiting.is_open || waiting.joins(event) {
                return;
            }
            if waiting.events.len() < MAX_WAITING {
                waiting.events.push_back(event);
            } else {
                waiting.missed = waiting.missed.saturating_add(1);
            }
            waiting.waker.clone()
        };
        if let Some(waker) = waker {
            waker();
        }
    }
}

impl Session {
    /// Calls this whenever there is an event to be told, instead of what was called until now.
    pub fn wake_for_events(&self, waker: Option<EventWaker>) {
        self.events.waiting().waker = waker;
    }

    /// Whether there is an event to be told.
    pub fn has_events(&self) -> bool {
        let waiting = self.events.waiting();
        waiting.missed > 0 || !waiting.events.is_empty()
    }

    /// Takes the next event. Whoever takes it tells it.
    pub fn next_event(&self) -> Option<EventMessage> {
        let (kind, value, extra) = match self.events.next()? {
            Next::Missed(missed) => (EVENT_MISSED, missed, 0),
            Next::Event(MemoryEvent::GpuLost(GpuId(gpu))) => (EVENT_GPU_LOST, u64::from(gpu), 0),
            Next::Event(MemoryEvent::DataLost(range)) => (EVENT_DATA_LOST, range.start.0, range.len_bytes),
            Next::Event(MemoryEvent::LimitChanged) => {
                // As it is now: an older event cannot overtake a newer one.
                let usage = self.config.residency.pool().usage(self.config.slice)?;
                (EVENT_LIMIT_CHANGED, usage.limit_bytes, usage.guarantee_bytes)
            }
        };
        Some(EventMessage { kind, reserved0: 0, epoch: self.config.boot_epoch, value, extra })
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "a test that overflows fails, as it should")]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use vram_gpu::DeviceAddress;

    use super::*;

    fn lost(start: u64, len_bytes: u64) -> MemoryEvent {
        MemoryEvent::DataLost(DeviceRange { start: DeviceAddress(start), len_bytes })
    }

    fn open() -> Events {
        let events = Events::default();
        events.open();
        events
    }

    fn all(events: &Events) -> Vec<Next> {
        std::iter::from_fn(|| events.next()).collect()
    }

    #[test]
    fn happened_before_hello_or_after_the_end_is_not_told() {
        let events = Events::default();
        events.happened(MemoryEvent::LimitChanged);
        assert_eq!(events.next(), None);
        events.open();
        for gpu in 0..50 {
            events.happened(MemoryEvent::GpuLost(GpuId(gpu)));
        }
        events.close();
        events.open();
        assert_eq!(events.next(), None);
    }

    #[test]
    fn happened_again_or_beside_is_told_as_one() {
        let events = open();
        for event in [
            lost(100, 10),
            MemoryEvent::LimitChanged,
            MemoryEvent::GpuLost(GpuId(1)),
            MemoryEvent::LimitChanged,
            lost(110, 5),
            lost(90, 10),
            lost(200, 1),
            lost(95, 1),
            MemoryEvent::GpuLost(GpuId(1)),
            MemoryEvent::GpuLost(GpuId(2)),
            lost(u64::MAX, 1),
        ] {
            events.happened(event);
        }
        let told = [
            lost(90, 25),
            MemoryEvent::LimitChanged,
            MemoryEvent::GpuLost(GpuId(1)),
            lost(200, 1),
            MemoryEvent::GpuLost(GpuId(2)),
            lost(u64::MAX, 1),
        ];
        assert_eq!(all(&events), told.map(Next::Event));
    }

    #[test]
    fn happened_beyond_the_bound_is_counted_and_told_first() {
        let events = open();
        for at in 0..MAX_WAITING as u64 + 7 {
            events.happened(lost(at * 100, 1));
        }
        let told = all(&events);
        assert_eq!(told.len(), 1 + MAX_WAITING);
        assert_eq!(told[..2], [Next::Missed(7), Next::Event(lost(0, 1))]);
        events.happened(lost(0, 1));
        assert_eq!(all(&events), [Next::Event(lost(0, 1))], "what was told is not counted again");
    }

    #[test]
    fn happened_wakes_once_for_each_event_that_waits() {
        let events = open();
        let woken = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&woken);
        events.waiting().waker = Some(Arc::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        }));
        events.happened(lost(0, 1));
        events.happened(lost(1, 1));
        events.happened(MemoryEvent::LimitChanged);
        assert_eq!(woken.load(Ordering::Relaxed), 2);
    }
}
