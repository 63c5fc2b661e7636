//! Streams, the default stream among them.
//!
//! The default stream of a context and its blocking streams wait for each other, as the API has it: what is enqueued
//! on the default stream runs after everything enqueued on blocking streams before, and the other way round.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Condvar, Mutex};

use vram_gpu::{Backend as _, EventHandle, GpuId, StreamHandle};

use crate::abi::{Done, Handle, Out, api};
use crate::context::current;
use crate::driver::{Driver, enqueue, lock};
use crate::event;
use crate::status::Status;

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;
/// Handles that name the default stream: none, `CU_STREAM_LEGACY`, `CU_STREAM_PER_THREAD`.
const DEFAULT_HANDLES: std::ops::RangeInclusive<usize> = 0..=2;

/// One stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamEntry {
    pub(crate) context: usize,
    pub(crate) gpu: GpuId,
    pub(crate) sim: StreamHandle,
    order: Order,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// The default stream of its context.
    Default,
    /// Waits for the default stream and is waited for.
    Blocking,
    /// On its own.
    NonBlocking,
}

/// Opens when it is dropped, so that nobody waits for a thread that is gone.
struct Latch(Arc<(Mutex<bool>, Condvar)>);

impl Drop for Latch {
    fn drop(&mut self) {
        *lock(&self.0.0) = true;
        self.0.1.notify_all();
    }
}

/// Makes one stream wait for another without touching what the other's next event reports.
fn wait_for(driver: &Driver, waiting: StreamHandle, other: StreamHandle) -> Done {
    let shared = Arc::new((Mutex::new(false), Condvar::new()));
    let latch = Arc::new(Latch(Arc::clone(&shared)));
    enqueue(|| {
        let latch = Arc::clone(&latch);
        driver.sim.call(other, move || drop(latch))
    })?;
    drop(latch);
    enqueue(|| {
        let shared = Arc::clone(&shared);
        driver.sim.call(waiting, move || {
            let mut open = lock(&shared.0);
            while !*open {
                open = shared.1.wait(open).unwrap_or_else(std::sync::PoisonError::into_inner);
            }
        })
    })
}

/// The stream a handle names, ready for work: it must belong to the current context.
pub(crate) fn ready(driver: &Driver, handle: Handle) -> Result<StreamEntry, Status> {
    let (context, gpu) = current(driver)?;
    let stream = find(driver, handle, context, gpu)?;
    let others: Vec<StreamEntry> = {
        let streams = lock(&driver.streams);
        let of_context = streams.values().filter(|other| other.context == context);
        match stream.order {
            Order::NonBlocking => Vec::new(),
            Order::Blocking => of_context.filter(|other| other.order == Order::Default).copied().collect(),
            Order::Default => of_context.filter(|other| other.order == Order::Blocking).copied().collect(),
        }
    };
    for other in others {
        wait_for(driver, stream.sim, other.sim)?;
    }
    Ok(stream)
}

/// The stream a handle names.
pub(crate) fn find(
    driver: &Driver,
    handle: Handle,
    context: usize,
    gpu: GpuId,
) -> Result<StreamEntry, Status> {
    let mut streams = lock(&driver.streams);
    if !DEFAULT_HANDLES.contains(&handle.addr()) {
        let stream = streams.get(&handle.addr()).copied().ok_or(Status::INVALID_HANDLE)?;
        return if stream.context == context { Ok(stream) } else { Err(Status::INVALID_HANDLE) };
    }
    let existing =
        streams.values().find(|stream| stream.context == context && stream.order == Order::Default);
    if let Some(stream) = existing {
        return Ok(*stream);
    }
    let stream = StreamEntry { context, gpu, sim: driver.sim.create_stream(gpu)?, order: Order::Default };
    streams.insert(key(stream.sim), stream);
    Ok(stream)
}

/// Handles are addresses well apart from those of the default stream.
fn key(stream: StreamHandle) -> usize {
    usize::try_from(stream.0).unwrap_or(usize::MAX).saturating_add(0x1000)
}

/// Marks the end of what is enqueued.
pub(crate) fn mark(driver: &Driver, stream: StreamEntry) -> Result<EventHandle, Status> {
    enqueue(|| driver.sim.record(stream.sim))
}

/// Waits for everything enqueued on a stream.
pub(crate) fn finish(driver: &Driver, stream: StreamEntry) -> Done {
    let mark = mark(driver, stream)?;
    driver.wait(mark)
}

/// Waits for everything enqueued on all streams of a device.
pub(crate) fn finish_device(driver: &Driver, gpu: GpuId) -> Done {
    let streams: Vec<StreamEntry> =
        lock(&driver.streams).values().filter(|stream| stream.gpu == gpu).copied().collect();
    streams.into_iter().try_for_each(|stream| finish(driver, stream))
}

fn create(driver: &Driver, flags: c_uint) -> Result<Handle, Status> {
    let (context, gpu) = current(driver)?;
    let order = match flags {
        0 => Order::Blocking,
        NON_BLOCKING => Order::NonBlocking,
        _ => return Err(Status::INVALID_VALUE),
    };
    let stream = StreamEntry { context, gpu, sim: driver.sim.create_stream(gpu)?, order };
    lock(&driver.streams).insert(key(stream.sim), stream);
    Ok(std::ptr::without_provenance_mut(key(stream.sim)))
}

/// A function of the caller's with its argument.
struct HostFunction {
    function: extern "C" fn(*mut c_void),
    argument: *mut c_void,
}

// SAFETY: the API calls the function on a thread of the driver, and its caller has agreed to that.
unsafe impl Send for HostFunction {}

impl HostFunction {
    fn call(self) {
        (self.function)(self.argument);
    }
}

api! {
    fn cuStreamCreate(stream: Out<Handle>, flags: c_uint) {
        let driver = Driver::get()?;
        stream.check()?;
        stream.put(create(driver, flags)?)
    }

    fn cuStreamCreateWithPriority(stream: Out<Handle>, flags: c_uint, _priority: c_int) {
        let driver = Driver::get()?;
        stream.check()?;
        stream.put(create(driver, flags)?)
    }

    fn cuStreamDestroy_v2(stream: Handle) {
        let driver = Driver::get()?;
        if DEFAULT_HANDLES.contains(&stream.addr()) {
            return Err(Status::INVALID_HANDLE);
        }
        let entry = lock(&driver.streams).remove(&stream.addr()).ok_or(Status::INVALID_HANDLE)?;
        driver.sim.destroy_stream(entry.sim)?;
        Ok(())
    }

    fn cuStreamSynchronize(stream: Handle) {
        let driver = Driver::get()?;
        finish(driver, ready(driver, stream)?)
    }

    fn cuStreamQuery(stream: Handle) {
        let driver = Driver::get()?;
        let mark = mark(driver, ready(driver, stream)?)?;
        // The worker needs a moment to pass a mark even when it has nothing else to do.
        let outcome = driver.sim.synchronize(mark, std::time::Duration::from_millis(1));
        driver.sim.destroy_event(mark)?;
        if outcome? { Ok(()) } else { Err(Status::NOT_READY) }
    }

    fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint) {
        let driver = Driver::get()?;
        let stream = ready(driver, stream)?;
        if flags > 1 {
            return Err(Status::INVALID_VALUE);
        }
        match event::recorded(driver, event)? {
            Some(mark) => enqueue(|| driver.sim.wait_event(stream.sim, mark)),
            None => Ok(()),
        }
    }

    fn cuLaunchHostFunc(stream: Handle, function: Option<extern "C" fn(*mut c_void)>, argument: *mut c_void) {
        let driver = Driver::get()?;
        let stream = ready(driver, stream)?;
        let function = function.ok_or(Status::INVALID_VALUE)?;
        enqueue(|| {
            let call = HostFunction { function, argument };
            driver.sim.call(stream.sim, move || call.call())
        })
    }

    fn cuCtxSynchronize() {
        let driver = Driver::get()?;
        let (_, gpu) = current(driver)?;
        driver.sim.memory(gpu)?;
        finish_device(driver, gpu)
    }
}
