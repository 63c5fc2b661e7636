//! Copies and fills.
//!
//! As documented for the API: work with device memory and page-locked host memory is asynchronous. A copy from
//! pageable memory first waits for the stream, then sets the bytes aside, and returns; a copy to pageable memory
//! returns when it is done. A host range that is partly page-locked is invalid.

use std::ffi::{c_uchar, c_uint, c_ushort, c_void};

use vram_gpu::{Backend as _, DeviceAddress, GpuId, Pattern, Pinning};
use vram_guest_memory::HostBuffer;

use crate::abi::{Done, Handle, api};
use crate::context::{current, device_of};
use crate::driver::{Driver, enqueue, range};
use crate::status::Status;
use crate::stream::{StreamEntry, finish, ready};

/// The default stream.
const DEFAULT: Handle = std::ptr::null_mut();

fn pinned(driver: &Driver, start: *const c_void, len: usize) -> Result<bool, Status> {
    if start.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    match driver.sim.pinning(start.cast(), len) {
        Pinning::Registered => Ok(true),
        Pinning::Pageable => Ok(false),
        Pinning::Mixed => Err(Status::INVALID_VALUE),
    }
}

fn copy_in(driver: &Driver, stream: StreamEntry, to: u64, from: *const c_void, len: usize) -> Done {
    if len == 0 {
        return Ok(());
    }
    if pinned(driver, from, len)? {
        // SAFETY: page-locked bytes; the API requires its caller to keep them until the stream has passed the copy.
        return enqueue(|| unsafe {
            driver.sim.copy_in_raw(stream.sim, DeviceAddress(to), from.cast(), len)
        });
    }
    driver.sim.resolve(range(to, len))?;
    finish(driver, stream)?;
    let aside = HostBuffer::new(len).map_err(|_no_room| Status::OUT_OF_MEMORY)?.span();
    let aside = aside.part(0, len).map_err(|_too_short| Status::UNKNOWN)?;
    // SAFETY: the API requires `from` to be good for reading `len` bytes now; the span has as many and is our own.
    unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), aside.as_ptr(), len) };
    enqueue(|| driver.sim.copy_in(stream.sim, DeviceAddress(to), aside.clone()))
}

fn copy_out(driver: &Driver, stream: StreamEntry, to: *mut c_void, from: u64, len: usize) -> Done {
    if len == 0 {
        return Ok(());
    }
    let pinned = pinned(driver, to, len)?;
    // SAFETY: page-locked bytes are kept by the API's caller until the stream has passed the copy; pageable ones
    // until the end of this call, which waits for it.
    enqueue(|| unsafe { driver.sim.copy_out_raw(stream.sim, to.cast(), DeviceAddress(from), len) })?;
    if pinned { Ok(()) } else { finish(driver, stream) }
}

/// A copy within what the stream's own device can touch.
fn copy(driver: &Driver, stream: StreamEntry, to: u64, from: u64, len: usize) -> Done {
    if len == 0 {
        return Ok(());
    }
    for side in [range(to, len), range(from, len)] {
        if !driver.sim.resolve(side)?.access.contains(stream.gpu) {
            return Err(Status::INVALID_VALUE);
        }
    }
    enqueue(|| driver.sim.copy(stream.sim, DeviceAddress(to), DeviceAddress(from), len as u64))
}

/// A copy that each side's device does its part of.
fn copy_peer(
    driver: &Driver,
    stream: StreamEntry,
    to: (u64, Handle),
    from: (u64, Handle),
    len: usize,
) -> Done {
    if len == 0 {
        return Ok(());
    }
    let reach = |(address, context): (u64, Handle)| -> Result<GpuId, Status> {
        let gpu = device_of(driver, context)?;
        let resolved = driver.sim.resolve(range(address, len))?;
        if resolved.access.contains(gpu) { Ok(gpu) } else { Err(Status::INVALID_VALUE) }
    };
    reach(to)?;
    reach(from)?;
    enqueue(|| driver.sim.copy(stream.sim, DeviceAddress(to.0), DeviceAddress(from.0), len as u64))
}

/// A copy between two addresses of any kind.
fn copy_any(driver: &Driver, stream: StreamEntry, to: u64, from: u64, len: usize) -> Done {
    if len == 0 {
        return Ok(());
    }
    let on_device = |address: u64| driver.sim.resolve(range(address, 1)).is_ok();
    let host =
        |address: u64| std::ptr::with_exposed_provenance_mut::<c_void>(usize::try_from(address).unwrap_or(0));
    match (on_device(to), on_device(from)) {
        (true, true) => copy(driver, stream, to, from, len),
        (true, false) => copy_in(driver, stream, to, host(from), len),
        (false, true) => copy_out(driver, stream, host(to), from, len),
        (false, false) => Err(Status::INVALID_VALUE),
    }
}

fn fill(driver: &Driver, stream: StreamEntry, start: u64, pattern: Pattern, count: usize) -> Done {
    let size = usize::try_from(pattern.size_bytes()).map_err(|_too_large| Status::INVALID_VALUE)?;
    let len = count.checked_mul(size).ok_or(Status::INVALID_VALUE)?;
    enqueue(|| driver.sim.fill(stream.sim, range(start, len), pattern))
}

/// Runs work on the default stream and waits for it.
fn at_once(work: impl FnOnce(&Driver, StreamEntry) -> Done) -> Done {
    let driver = Driver::get()?;
    let stream = ready(driver, DEFAULT)?;
    work(driver, stream)?;
    finish(driver, stream)
}

/// Runs work on a stream.
fn later(stream: Handle, work: impl FnOnce(&Driver, StreamEntry) -> Done) -> Done {
    let driver = Driver::get()?;
    current(driver)?;
    work(driver, ready(driver, stream)?)
}

api! {
    fn cuMemcpy(to: u64, from: u64, len: usize) {
        at_once(|driver, stream| copy_any(driver, stream, to, from, len))
    }
    fn cuMemcpyAsync(to: u64, from: u64, len: usize, stream: Handle) {
        later(stream, |driver, stream| copy_any(driver, stream, to, from, len))
    }
    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, len: usize) {
        at_once(|driver, stream| copy_in(driver, stream, to, from, len))
    }
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, len: usize, stream: Handle) {
        later(stream, |driver, stream| copy_in(driver, stream, to, from, len))
    }
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, len: usize) {
        at_once(|driver, stream| copy_out(driver, stream, to, from, len))
    }
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, len: usize, stream: Handle) {
        later(stream, |driver, stream| copy_out(driver, stream, to, from, len))
    }
    fn cuMemcpyDtoD_v2(to: u64, from: u64, len: usize) {
        at_once(|driver, stream| copy(driver, stream, to, from, len))
    }
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: Handle) {
        later(stream, |driver, stream| copy(driver, stream, to, from, len))
    }
    fn cuMemcpyPeer(to: u64, to_context: Handle, from: u64, from_context: Handle, len: usize) {
        at_once(|driver, stream| copy_peer(driver, stream, (to, to_context), (from, from_context), len))
    }
    fn cuMemcpyPeerAsync(
        to: u64,
        to_context: Handle,
        from: u64,
        from_context: Handle,
        len: usize,
        stream: Handle,
    ) {
        later(stream, |driver, stream| copy_peer(driver, stream, (to, to_context), (from, from_context), len))
    }
    fn cuMemsetD8_v2(start: u64, value: c_uchar, count: usize) {
        at_once(|driver, stream| fill(driver, stream, start, Pattern::U8(value), count))
    }
    fn cuMemsetD16_v2(start: u64, value: c_ushort, count: usize) {
        at_once(|driver, stream| fill(driver, stream, start, Pattern::U16(value), count))
    }
    fn cuMemsetD32_v2(start: u64, value: c_uint, count: usize) {
        at_once(|driver, stream| fill(driver, stream, start, Pattern::U32(value), count))
    }
    fn cuMemsetD8Async(start: u64, value: c_uchar, count: usize, stream: Handle) {
        later(stream, |driver, stream| fill(driver, stream, start, Pattern::U8(value), count))
    }
    fn cuMemsetD16Async(start: u64, value: c_ushort, count: usize, stream: Handle) {
        later(stream, |driver, stream| fill(driver, stream, start, Pattern::U16(value), count))
    }
    fn cuMemsetD32Async(start: u64, value: c_uint, count: usize, stream: Handle) {
        later(stream, |driver, stream| fill(driver, stream, start, Pattern::U32(value), count))
    }
}
