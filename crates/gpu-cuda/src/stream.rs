//! Streams, and what they keep alive.
//!
//! Every piece of enqueued work that touches host memory leaves a hold behind, numbered in the order it was enqueued.
//! An event knows the last number before it; once it is reached, the holds up to there go. For a user who records
//! rarely, the stream records marks of its own.
//!
//! A hold is noted after its work is enqueued, and an event's number is read before the event is recorded, so with
//! two threads on one stream a hold is at most kept longer than needed.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::CUstream;
use vram_gpu::{DeviceAddress, GpuId, HostSpan};

use crate::api::{Api, Refusal, check};
use crate::event::RawEvent;
use crate::staging::{Direction, HostCopy, STAGING_BYTES, Staging, StagingPool, run_host_copy};

/// `CU_STREAM_NON_BLOCKING`: no waiting for the default stream.
const NON_BLOCKING: u32 = 1;
/// Holds between two marks of the stream's own.
const MARK_EVERY: u64 = 128;

/// Something work still needs.
enum Hold {
    Span { _span: HostSpan },
    HostCopy { _copy: Box<HostCopy> },
}

#[derive(Default)]
struct Holds {
    /// Number of the last one noted.
    last: u64,
    /// Number up to which marks cover.
    marked: u64,
    waiting: VecDeque<(u64, Hold)>,
    marks: VecDeque<(u64, Arc<RawEvent>)>,
}

/// One stream of the driver. Dropped when nobody knows it any more and its work is over.
pub(crate) struct Stream {
    pub(crate) gpu: GpuId,
    api: Arc<Api>,
    pool: Arc<StagingPool>,
    raw: CUstream,
    holds: Mutex<Holds>,
    /// The buffer for memory the driver does not know. Locked while a copy's pieces are enqueued: the one lock held
    /// across calls of the driver, because pieces of two copies must not mix. Only callers of this stream meet it.
    staging: Mutex<Option<Staging>>,
}

// SAFETY: the driver API is thread safe; a stream is an opaque handle that any thread may use.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// Makes a stream in the current context.
    pub(crate) fn create(api: &Arc<Api>, pool: &Arc<StagingPool>, gpu: GpuId) -> Result<Self, Refusal> {
        let mut raw: CUstream = std::ptr::null_mut();
        // SAFETY: the pointer is ours for the call.
        check("cuStreamCreate", unsafe { (api.symbols.stream_create)(&raw mut raw, NON_BLOCKING) })?;
        Ok(Self {
            gpu,
            api: Arc::clone(api),
            pool: Arc::clone(pool),
            raw,
            holds: Mutex::default(),
            staging: Mutex::default(),
        })
    }

    pub(crate) fn raw(&self) -> CUstream {
        self.raw
    }

    /// Enqueues a copy from memory the driver knows.
    pub(crate) fn copy_in(&self, to: DeviceAddress, from: HostSpan) -> Result<(), Refusal> {
        self.htod(to, from.as_ptr(), from.len_bytes())?;
        self.hold(Hold::Span { _span: from });
        Ok(())
    }

    /// Enqueues a copy to memory the driver knows.
    pub(crate) fn copy_out(&self, to: HostSpan, from: DeviceAddress) -> Result<(), Refusal> {
        self.dtoh(to.as_ptr(), from, to.len_bytes())?;
        self.hold(Hold::Span { _span: to });
        Ok(())
    }

    /// Enqueues a copy between the device and memory the driver does not know.
    pub(crate) fn copy_staged(
        &self,
        device: DeviceAddress,
        span: &HostSpan,
        direction: Direction,
    ) -> Result<(), Refusal> {
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        let buffer = match &*staging {
            Some(staging) => staging.start(),
            None => staging.insert(self.pool.take(&self.api)?).start(),
        };
        let mut done = 0;
        while done < span.len_bytes() {
            let len = STAGING_BYTES.min(span.len_bytes().saturating_sub(done));
            // The part lies inside the span by the loop's condition.
            let Ok(part) = span.part(done, len) else { break };
            let at = DeviceAddress(device.0.saturating_add(done as u64));
            match direction {
                Direction::ToBuffer => {
                    self.host_copy(HostCopy { span: part, buffer, direction })?;
                    self.htod(at, buffer, len)?;
                }
                Direction::ToSpan => {
                    self.dtoh(buffer, at, len)?;
                    self.host_copy(HostCopy { span: part, buffer, direction })?;
                }
            }
            done = done.saturating_add(len);
        }
        Ok(())
    }

    fn host_copy(&self, copy: HostCopy) -> Result<(), Refusal> {
        let copy = Box::new(copy);
        let argument: *const HostCopy = &raw const *copy;
        // SAFETY: the box is held until an event behind this call is reached, and does not move meanwhile.
        let code = unsafe {
            (self.api.symbols.launch_host_func)(self.raw, run_host_copy, argument.cast_mut().cast::<c_void>())
        };
        check("cuLaunchHostFunc", code)?;
        self.hold(Hold::HostCopy { _copy: copy });
        Ok(())
    }

    fn htod(&self, to: DeviceAddress, from: *const u8, len: usize) -> Result<(), Refusal> {
        // SAFETY: the device range was resolved by the caller; the host bytes are a span this stream holds from here
        // on, or its own buffer.
        let code = unsafe { (self.api.symbols.memcpy_htod_async)(to.0, from.cast(), len, self.raw) };
        check("cuMemcpyHtoDAsync", code)
    }

    fn dtoh(&self, to: *mut u8, from: DeviceAddress, len: usize) -> Result<(), Refusal> {
        // SAFETY: as for the other way.
        let code = unsafe { (self.api.symbols.memcpy_dtoh_async)(to.cast(), from.0, len, self.raw) };
        check("cuMemcpyDtoHAsync", code)
    }

    /// Records a new event behind everything enqueued; says which holds it covers.
    pub(crate) fn record(&self) -> Result<(Arc<RawEvent>, u64), Refusal> {
        let upto = self.holds().last;
        let event = RawEvent::create(&self.api)?;
        // SAFETY: event and stream are alive and of one context.
        let code = unsafe { (self.api.symbols.event_record)(event.raw(), self.raw) };
        check("cuEventRecord", code)?;
        Ok((Arc::new(event), upto))
    }

    /// Lets go of what work up to a number needed: an event behind it has been reached.
    pub(crate) fn release(&self, upto: u64) {
        let mut holds = self.holds();
        let covered = holds.waiting.partition_point(|(number, _)| *number <= upto);
        let released: Vec<_> = holds.waiting.drain(..covered).collect();
        drop(holds);
        // Dropping a span may unmap guest memory: not under the lock.
        drop(released);
    }

    fn hold(&self, hold: Hold) {
        let mut holds = self.holds();
        holds.last = holds.last.saturating_add(1);
        let number = holds.last;
        holds.waiting.push_back((number, hold));
        let mark_due = number.saturating_sub(holds.marked) >= MARK_EVERY;
        if mark_due {
            holds.marked = number;
        }
        drop(holds);
        if mark_due {
            self.release_marked();
            // Without a mark the holds are only kept longer.
            if let Ok((event, upto)) = self.record() {
                self.holds().marks.push_back((upto, event));
            }
        }
    }

    fn release_marked(&self) {
        loop {
            let first = self.holds().marks.front().map(|(upto, event)| (*upto, Arc::clone(event)));
            match first {
                Some((upto, event)) if event.query() != Ok(false) => {
                    self.holds().marks.pop_front();
                    self.release(upto);
                }
                _ => return,
            }
        }
    }

    fn holds(&self) -> MutexGuard<'_, Holds> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let staging = self.staging.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let holds = self.holds.get_mut().unwrap_or_else(PoisonError::into_inner);
        if staging.is_some() || !holds.waiting.is_empty() {
            // The backend keeps a stream until its work is over, so this waits only for work that somebody enqueued
            // while somebody else destroyed the stream. An error means that nothing runs any more.
            // SAFETY: the stream is alive until the next call.
            unsafe { (self.api.symbols.stream_synchronize)(self.raw) };
        }
        // SAFETY: nobody has the handle any more.
        unsafe { (self.api.symbols.stream_destroy)(self.raw) };
        if let Some(staging) = staging {
            self.pool.give_back(staging);
        }
    }
}
