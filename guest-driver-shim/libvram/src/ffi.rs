//! The C ABI, as `include/vram.h` documents it.
//!
//! Each function checks its pointers for NULL, turns them into borrows for the time of the call, runs the Rust function
//! and returns 0 or a negative errno. A panic ends at [`guarded`] as -ENOTRECOVERABLE and never unwinds into C.

use std::{
    ffi::{CStr, OsStr, c_char, c_int, c_void},
    os::{
        fd::{AsFd, AsRawFd},
        unix::ffi::OsStrExt,
    },
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use crate::{
    Advice, Device, DeviceAddress, Error, Pattern, StreamId,
    c_structures::{ALL_STREAMS, CEvent, CExtent, CGpu, CInfo, CPlacement, CVersion, count},
    error,
};

/// A negative errno.
struct Failure(c_int);

const BAD_POINTER: Failure = Failure(libc::EFAULT);
const INVALID: Failure = Failure(libc::EINVAL);

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(error.errno())
    }
}

/// Runs the body of a C function. Nothing unwinds out of it.
fn guarded(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    // A device is unchanged by a panic in between: it is a descriptor and has no state of its own.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(Failure(errno))) => errno.saturating_neg(),
        Err(_) => -libc::ENOTRECOVERABLE,
    }
}

/// # Safety
/// `device` is NULL or from `vram_open` and not closed, and stays so for `'a`.
unsafe fn device<'a>(device: *const Device) -> Result<&'a Device, Failure> {
    // SAFETY: as_ref wants NULL or a valid pointer; vram.h asks callers to pass what vram_open returned. Shared
    // borrows from several threads are fine: Device is Sync.
    unsafe { device.as_ref() }.ok_or(BAD_POINTER)
}

/// # Safety
/// `place` is NULL or valid for writing a `T`.
unsafe fn put<T>(place: *mut T, value: T) -> Result<(), Failure> {
    if place.is_null() {
        return Err(BAD_POINTER);
    }
    // SAFETY: write wants an aligned, writable place; vram.h asks callers for a pointer to that type. It need not be
    // initialised, and nothing there has a destructor.
    unsafe { place.write(value) };
    Ok(())
}

/// Writes as many of `values` as there is room for.
///
/// # Safety
/// `places` is valid for writing `capacity` values, or `capacity` is 0.
unsafe fn put_all<T>(places: *mut T, capacity: u32, values: impl Iterator<Item = T>) {
    for (index, value) in values.take(capacity as usize).enumerate() {
        // SAFETY: `index` is below `capacity`, so this is a place of the caller's array, which vram.h asks to be as
        // long as the capacity says.
        unsafe { places.add(index).write(value) };
    }
}

/// Reports how far a transfer got, to a caller who wants to know.
///
/// # Safety
/// `moved` is NULL or valid for writing.
unsafe fn report(moved: *mut u64, len_bytes: u64, result: Result<(), Error>) -> Result<(), Failure> {
    let moved_bytes = match &result {
        Ok(()) => len_bytes,
        Err(error) => error.attempt().map_or(0, |attempt| attempt.moved_bytes),
    };
    if !moved.is_null() {
        // SAFETY: not NULL, and the caller vouches for the rest.
        unsafe { moved.write(moved_bytes) };
    }
    Ok(result?)
}

/// # Safety
/// See `vram.h`: `path` is NULL or a string, `out` writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn vram_open(path: *const c_char, out: *mut *mut Device) -> c_int {
    guarded(|| {
        if out.is_null() {
            return Err(BAD_POINTER);
        }
        let opened = if path.is_null() {
            Device::open_default()?
        } else {
            // SAFETY: from_ptr wants a NUL-terminated string that does not change; vram.h asks callers for one, and it
            // is used only during the call.
            let path = unsafe { CStr::from_ptr(path) };
            Device::open(OsStr::from_bytes(path.to_bytes()))?
        };
        let handle = Box::into_raw(Box::new(opened));
        // SAFETY: `out` is not NULL and vram.h asks for a writable pointer.
        unsafe { put(out, handle) }
    })
}

/// # Safety
/// See `vram.h`: `handle` is NULL or from `vram_open`, not closed before and not in use by another thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn vram_close(handle: *mut Device) -> c_int {
    guarded(|| {
        if !handle.is_null() {
            // SAFETY: from_raw wants what into_raw gave, once; vram_open got it there, and vram.h forbids closing twice.
            drop(unsafe { Box::from_raw(handle) });
        }
        Ok(())
    })
}

/// # Safety
/// See `vram.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn vram_fd(handle: *const Device) -> c_int {
    let mut fd = 0;
    let result = guarded(|| {
        // SAFETY: vram.h asks for an open handle.
        fd = unsafe { device(handle) }?.as_fd().as_raw_fd();
        Ok(())
    });
    if result == 0 { fd } else { result }
}

/// # Safety
/// See `vram.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn vram_version(handle: *const Device, version: *mut CVersion) -> c_int {
    guarded(|| {
        // SAFETY: vram.h asks for an open handle.
        let device = unsafe { device(handle) }?;
        // SAFETY: vram.h asks for a writable structure.
        unsafe { put(version, device.version()?.into()) }
    })
}

/// # Safety
/// See `vram.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn vram_info(
    handle: *const Device,
    info: *mut CInfo,
    gpus: *mut CGpu,
    gpu_capacity: u32,
) -> c_int {
    guarded(|| {
        if info.is_null() || (gpus.is_null() && gpu_capacity > 0) {
            return Err(BAD_POINTER);
        }
        // SAFETY: vram.h asks for an open handle.
        let found = unsafe { device(handle) }?.info()?;
        // SAFETY: vram.h asks for a writable structure.
        unsafe { put(info, CInfo::from(&found)) }?;
        // SAFETY: vram.h asks for room for `gpu_capacity` entries.
        unsafe { put_all(gpus, gpu_capacity, found.gpus.iter().map(CGpu::from)) };
        Ok(())
    })
}

/// # Safety
/// See `vram.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn vram_alloc(
    handle: *const Device,
    length: u64,
    alignment: u64,
    address: *mut u64,
) -> c_int {
    guarded(|| {
        if address.is_null() {
            return Err(BAD_POINTER);
        }
        // SAFETY: vram.h asks for an open handle.
        let got = unsafe { device(handle) }?.allocate_raw(length, alignment)?;
        // SAFETY: not NULL, and vram.h asks for a writable pointer.
        unsafe { put(address, got.0) }
    })
}

/// # Safety
/// See `vram.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn vram_free(handle: *const Device, address: u64) -> c_int {
    guarded(|| {
        // SAFETY: vram.h asks for an open handle.
        Ok(unsafe { device(handle) }?.free(DeviceAddress(address))?)
    })
}

/// # Safety
/// See `vram.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn vram_query(
    handle: *const Device,
    address: u64,
    placement: *mut CPlacement,
    extents: *mut CExtent,
    extent_capacity: u32,
) -> c_int {
    guarded(|| {
        if placement.is_null() || (extents.is_null() && extent_capacity > 0) {
            return Err(BAD_POINTER);
        }
        // SAFETY: vram.h asks for an open handle.
        let found = unsafe { device(handle) }?.query(DeviceAddress(address))?;
        let head = CPlacement {
            base: found.base.0,
            length: found.len_bytes,
            extent_total: count(found.extents.len()),
            reserved: 0,
        };
        // SAFETY: vram.h asks for a writable structure.
        unsafe { put(placement, head) }?;
        // SAFETY: vram.h asks for room for `extent_capacity` entries.
        unsafe { put_all(extents, extent_capacity, found.extents.iter().map(CExtent::from)) };
        Ok(())
    })
}

/// # Safety
/// See `vram.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn vram_advise(
    handle: *const Device,
    address: u64,
    length: u64,
    advice: u32,
    argument: u32,
) -> c_int {
    guarded(|| {
        // SAFETY: vram.h asks for an open handle.
        let device = unsafe { device(handle) }?;
        let advice = Advice::from_codes(advice, argument).ok_or(INVALID)?;
        Ok(device.advise(DeviceAddress(address), length, advice)?)
    })
}

/// # Safety
/// See `vram.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn vram_next_event(handle: *const Device, event: *mut CEvent, timeout_ms: c_int) -> c_int {
    guarded(|| {
        if event.is_null() {
            return Err(BAD_POINTER);
        }
        // Negative: without end.
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        // SAFETY: vram.h asks for an open handle.
        let next = unsafe { device(handle) }?.next_event(timeout)?;
        // SAFETY: not NULL, and vram.h asks for a writable structure.
        unsafe { put(event, next.ok_or(Failure(libc::EAGAIN))?.into()) }
    })
}

/// # Safety
/// See `vram.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn vram_write(
    handle: *const Device,
    stream: u32,
    address: u64,
    source: *const c_void,
    length: usize,
    moved: *mut u64,
) -> c_int {
    guarded(|| {
        // SAFETY: vram.h asks for an open handle.
        let device = unsafe { device(handle) }?;
        check_buffer(source, length)?;
        let bytes = if length == 0 {
            &[]
        } else {
            // SAFETY: from_raw_parts wants a non-NULL pointer to at most isize::MAX readable bytes, both checked as
            // far as they can be; vram.h asks that nobody changes them during the call.
            unsafe { std::slice::from_raw_parts(source.cast::<u8>(), length) }
        };
        let result = device.stream(StreamId(stream)).write(DeviceAddress(address), bytes);
        // SAFETY: vram.h asks for NULL or a writable pointer.
        unsafe { report(moved, length as u64, result) }
    })
}

/// # Safety
/// See `vram.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn vram_read(
    handle: *const Device,
    stream: u32,
    address: u64,
    destination: *mut c_void,
    length: usize,
    moved: *mut u64,
) -> c_int {
    guarded(|| {
        // SAFETY: vram.h asks for an open handle.
        let device = unsafe { device(handle) }?;
        check_buffer(destination, length)?;
        let bytes = if length == 0 {
            &mut []
        } else {
            // SAFETY: from_raw_parts_mut wants a non-NULL pointer to at most isize::MAX writable bytes, both checked as
            // far as they can be; vram.h asks that nobody else uses them during the call. Their values are not read.
            unsafe { std::slice::from_raw_parts_mut(destination.cast::<u8>(), length) }
        };
        let result = device.stream(StreamId(stream)).read(DeviceAddress(address), bytes);
        // SAFETY: vram.h asks for NULL or a writable pointer.
        unsafe { report(moved, length as u64, result) }
    })
}

fn check_buffer(buffer: *const c_void, length: usize) -> Result<(), Failure> {
    if buffer.is_null() && length > 0 {
        return Err(BAD_POINTER);
    }
    if isize::try_from(length).is_err() {
        return Err(INVALID);
    }
    Ok(())
}

/// # Safety
/// See `vram.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn vram_copy(
    handle: *const Device,
    stream: u32,
    destination: u64,
    source: u64,
    length: u64,
    moved: *mut u64,
) -> c_int {
    guarded(|| {
        // SAFETY: vram.h asks for an open handle.
        let stream = unsafe { device(handle) }?.stream(StreamId(stream));
        let result = stream.copy(DeviceAddress(destination), DeviceAddress(source), length);
        // SAFETY: vram.h asks for NULL or a writable pointer.
        unsafe { report(moved, length, result) }
    })
}

/// # Safety
/// See `vram.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn vram_fill(
    handle: *const Device,
    stream: u32,
    address: u64,
    length: u64,
    pattern: u32,
    width: u32,
    moved: *mut u64,
) -> c_int {
    guarded(|| {
        // SAFETY: vram.h asks for an open handle.
        let stream = unsafe { device(handle) }?.stream(StreamId(stream));
        let pattern = match width {
            1 => u8::try_from(pattern).ok().map(Pattern::U8),
            2 => u16::try_from(pattern).ok().map(Pattern::U16),
            4 => Some(Pattern::U32(pattern)),
            _ => None,
        };
        let result = stream.fill(DeviceAddress(address), length, pattern.ok_or(INVALID)?);
        // SAFETY: vram.h asks for NULL or a writable pointer.
        unsafe { report(moved, length, result) }
    })
}

/// # Safety
/// See `vram.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn vram_fence(handle: *const Device, stream: u32) -> c_int {
    guarded(|| {
        // SAFETY: vram.h asks for an open handle.
        let device = unsafe { device(handle) }?;
        match stream {
            ALL_STREAMS => device.fence_all()?,
            number => device.stream(StreamId(number)).fence()?,
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn vram_strerror(error: c_int) -> *const c_char {
    error::describe(error.saturating_abs()).as_ptr()
}

#[cfg(test)]
mod tests {
    use std::{ptr, sync::Arc};

    use super::*;
    use crate::model::Model;

    fn model(model: Model) -> *mut Device {
        Box::into_raw(Box::new(Device::with_driver(Arc::new(model)).unwrap()))
    }

    #[test]
    fn transfers_through_the_c_abi_move_bytes_and_count_them() {
        let device = model(Model::default());
        let (mut address, mut moved) = (0, 0);
        let mut back = [0u8; 5];

        // SAFETY: `device` is an open handle until the close at the end, and all places are local and large enough.
        unsafe {
            assert_eq!(vram_alloc(device, 4096, 0, &mut address), 0);
            assert_eq!(vram_fill(device, 0, address, 4096, 0x2e, 1, &mut moved), 0);
            assert_eq!(moved, 4096);
            assert_eq!(vram_write(device, 1, address, b"hey".as_ptr().cast(), 3, &mut moved), 0);
            assert_eq!(moved, 3);
            assert_eq!(vram_copy(device, 2, address + 100, address, 5, ptr::null_mut()), 0);
            assert_eq!(vram_read(device, 3, address + 100, back.as_mut_ptr().cast(), 5, &mut moved), 0);
            assert_eq!(vram_fence(device, ALL_STREAMS), 0);
            assert_eq!(vram_advise(device, address, 4096, 5, 1), 0);
            assert_eq!(vram_advise(device, address, 4096, 3, 1), -libc::EINVAL);
            assert_eq!(vram_advise(device, address, 4096, 6, 0), -libc::EINVAL);
            assert_eq!(vram_advise(device, address, 4097, 3, 0), -libc::ENXIO);
            assert_eq!(vram_free(device, address), 0);
            assert_eq!(vram_free(device, address), -libc::ENXIO);
            assert_eq!(vram_close(device), 0);
        }

        assert_eq!(&back, b"hey..");
    }

    #[test]
    fn arguments_that_are_null_or_not_valid_are_refused() {
        let device = model(Model::default());

        // SAFETY: `device` is an open handle until the close at the end; NULL is what is tested.
        unsafe {
            assert_eq!(vram_open(c"/dev/null".as_ptr(), ptr::null_mut()), -libc::EFAULT);
            assert_eq!(vram_alloc(ptr::null(), 1, 0, &mut 0), -libc::EFAULT);
            assert_eq!(vram_alloc(device, 1, 0, ptr::null_mut()), -libc::EFAULT);
            assert_eq!(vram_write(device, 0, 0, ptr::null(), 1, ptr::null_mut()), -libc::EFAULT);
            assert_eq!(vram_write(device, 0, 0, ptr::null(), 0, ptr::null_mut()), 0);
            assert_eq!(
                vram_read(device, 0, 0, ptr::dangling_mut(), usize::MAX, ptr::null_mut()),
                -libc::EINVAL
            );
            assert_eq!(vram_info(device, ptr::null_mut(), ptr::null_mut(), 0), -libc::EFAULT);
            assert_eq!(vram_query(device, 0, ptr::null_mut(), ptr::null_mut(), 0), -libc::EFAULT);
            let mut head = CPlacement { base: 0, length: 0, extent_total: 0, reserved: 0 };
            assert_eq!(vram_query(device, 0, &mut head, ptr::null_mut(), 1), -libc::EFAULT);
            assert_eq!(vram_query(device, 0, &mut head, ptr::null_mut(), 0), -libc::ENXIO);
            assert_eq!(vram_fill(device, 0, 0, 4, 1, 3, ptr::null_mut()), -libc::EINVAL);
            assert_eq!(vram_fill(device, 0, 0, 4, 256, 1, ptr::null_mut()), -libc::EINVAL);
            assert_eq!(vram_fd(ptr::null()), -libc::EFAULT);
            assert_eq!(vram_close(device), 0);
            assert_eq!(vram_close(ptr::null_mut()), 0);
        }
    }

    #[test]
    fn query_with_less_room_than_extents_fills_what_there_is() {
        let device = model(Model { extent_bytes: 256, ..Model::default() });
        let mut address = 0;
        let mut placement = CPlacement { base: 0, length: 0, extent_total: 0, reserved: 1 };
        let mut extents = [const { CExtent { address: 0, length: 0, gpu: 9, tier: 9 } }; 3];

        // SAFETY: `device` is open until the close; `extents` has room for one entry more than is said.
        unsafe {
            assert_eq!(vram_alloc(device, 1024, 0, &mut address), 0);
            assert_eq!(vram_query(device, address, &mut placement, extents.as_mut_ptr(), 2), 0);
            assert_eq!(vram_close(device), 0);
        }

        assert_eq!((placement.base, placement.length, placement.extent_total), (address, 1024, 4));
        assert_eq!((extents[1].gpu, extents[1].tier), (1, 0));
        assert_eq!(extents[2].gpu, 9);
    }

    #[test]
    fn panic_inside_is_contained() {
        assert_eq!(guarded(|| panic!("on purpose")), -libc::ENOTRECOVERABLE);
    }
}
