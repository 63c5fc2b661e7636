//! Events.

use std::ffi::c_uint;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use vram_gpu::{Backend as _, EventHandle};

use crate::abi::{Handle, Out, api};
use crate::context::current;
use crate::driver::{Driver, enqueue, lock};
use crate::status::Status;
use crate::stream;

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: c_uint = 2;

static NEXT: AtomicUsize = AtomicUsize::new(0x1000);

/// One event: its last mark, and when that was reached.
#[derive(Debug, Default)]
pub(crate) struct EventEntry {
    gpu: Option<vram_gpu::GpuId>,
    timed: bool,
    mark: Option<EventHandle>,
    reached_at: Arc<OnceLock<Instant>>,
}

/// The last mark of an event, if it was ever recorded.
pub(crate) fn recorded(driver: &Driver, event: Handle) -> Result<Option<EventHandle>, Status> {
    lock(&driver.events).get(&event.addr()).map(|entry| entry.mark).ok_or(Status::INVALID_HANDLE)
}

fn time_of(driver: &Driver, event: Handle) -> Result<Instant, Status> {
    let events = lock(&driver.events);
    let entry = events.get(&event.addr()).filter(|entry| entry.timed && entry.mark.is_some());
    let entry = entry.ok_or(Status::INVALID_HANDLE)?;
    entry.reached_at.get().copied().ok_or(Status::NOT_READY)
}

api! {
    fn cuEventCreate(event: Out<Handle>, flags: c_uint) {
        let driver = Driver::get()?;
        let (_, gpu) = current(driver)?;
        if flags > 7 {
            return Err(Status::INVALID_VALUE);
        }
        event.check()?;
        let handle = NEXT.fetch_add(0x10, Ordering::Relaxed);
        let timed = flags & DISABLE_TIMING == 0;
        lock(&driver.events).insert(handle, EventEntry { gpu: Some(gpu), timed, ..EventEntry::default() });
        event.put(std::ptr::without_provenance_mut(handle))
    }

    fn cuEventDestroy_v2(event: Handle) {
        let driver = Driver::get()?;
        let entry = lock(&driver.events).remove(&event.addr()).ok_or(Status::INVALID_HANDLE)?;
        if let Some(mark) = entry.mark {
            driver.sim.destroy_event(mark)?;
        }
        Ok(())
    }

    fn cuEventRecord(event: Handle, stream: Handle) {
        let driver = Driver::get()?;
        let stream = stream::ready(driver, stream)?;
        let same_device = lock(&driver.events).get(&event.addr()).map(|entry| entry.gpu == Some(stream.gpu));
        match same_device {
            Some(true) => {}
            // An event is recorded on streams of the context it was made in.
            Some(false) | None => return Err(Status::INVALID_HANDLE),
        }
        let reached_at = Arc::new(OnceLock::new());
        enqueue(|| {
            let reached_at = Arc::clone(&reached_at);
            driver.sim.call(stream.sim, move || {
                let _ = reached_at.set(Instant::now());
            })
        })?;
        let mark = stream::mark(driver, stream)?;
        let before = lock(&driver.events).get_mut(&event.addr()).and_then(|entry| {
            entry.reached_at = reached_at;
            entry.mark.replace(mark)
        });
        if let Some(before) = before {
            driver.sim.destroy_event(before)?;
        }
        Ok(())
    }

    fn cuEventQuery(event: Handle) {
        let driver = Driver::get()?;
        match recorded(driver, event)? {
            Some(mark) if !driver.sim.query(mark)? => Err(Status::NOT_READY),
            _ => Ok(()),
        }
    }

    fn cuEventSynchronize(event: Handle) {
        let driver = Driver::get()?;
        if let Some(mark) = recorded(driver, event)? {
            driver.sim.synchronize(mark, Duration::MAX)?;
        }
        Ok(())
    }

    fn cuEventElapsedTime(milliseconds: Out<f32>, start: Handle, end: Handle) {
        let driver = Driver::get()?;
        let (start, end) = (time_of(driver, start)?, time_of(driver, end)?);
        milliseconds.put(end.saturating_duration_since(start).as_secs_f32() * 1000.0)
    }
}
