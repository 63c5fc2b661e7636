//! Host memory the GPUs know: registered and allocated. Also what a pointer is.

use std::ffi::{c_int, c_uint, c_void};

use vram_gpu::{Backend as _, Pinning};
use vram_guest_memory::HostBuffer;

use crate::abi::{Handle, Out, api};
use crate::context::current;
use crate::driver::{Driver, HostAllocation, lock, range};
use crate::status::Status;

fn allocate(driver: &Driver, len: usize) -> Result<*mut c_void, Status> {
    current(driver)?;
    if len == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let buffer = HostBuffer::new(len).map_err(|_no_room| Status::OUT_OF_MEMORY)?;
    let span = buffer.span();
    let start = span.as_ptr();
    let registration = driver.sim.register_host(span)?;
    let allocation = HostAllocation { registration, len, _buffer: buffer };
    lock(&driver.host_allocations).insert(start.addr(), allocation);
    Ok(start.cast())
}

/// What an attribute of a pointer is, in the eight bytes there may be.
enum Attribute {
    Word(u64),
    Number(c_uint),
}

fn attribute(driver: &Driver, name: c_uint, pointer: u64) -> Result<Attribute, Status> {
    let host = usize::try_from(pointer).map_err(|_too_large| Status::INVALID_VALUE)?;
    let device = driver.sim.resolve(range(pointer, 1)).ok();
    let pinned = driver.sim.pinning(std::ptr::without_provenance(host), 1) == Pinning::Registered;
    if device.is_none() && !pinned {
        return Err(Status::INVALID_VALUE);
    }
    Ok(match (name, device) {
        // MEMORY_TYPE: host 1, device 2
        (2, _) => Attribute::Number(if device.is_some() { 2 } else { 1 }),
        // DEVICE_POINTER
        (3, _) => Attribute::Word(pointer),
        // HOST_POINTER
        (4, None) => Attribute::Word(pointer),
        // IS_MANAGED
        (8, _) => Attribute::Number(0),
        // DEVICE_ORDINAL
        (9, Some(resolved)) => Attribute::Number(c_uint::from(resolved.home.0)),
        (9, None) => Attribute::Number(0),
        _ => return Err(Status::INVALID_VALUE),
    })
}

api! {
    fn cuMemHostRegister_v2(start: *mut c_void, len: usize, _flags: c_uint) {
        let driver = Driver::get()?;
        current(driver)?;
        if start.is_null() || len == 0 {
            return Err(Status::INVALID_VALUE);
        }
        if driver.sim.pinning(start.cast(), len) != Pinning::Pageable {
            return Err(Status::HOST_MEMORY_ALREADY_REGISTERED);
        }
        driver.sim.register_host_raw(start.cast(), len)?;
        Ok(())
    }

    fn cuMemHostUnregister(start: *mut c_void) {
        let driver = Driver::get()?;
        current(driver)?;
        if lock(&driver.host_allocations).contains_key(&start.addr()) {
            return Err(Status::HOST_MEMORY_NOT_REGISTERED);
        }
        let registration = driver.sim.registration_at(start.cast());
        driver.sim.unregister_host(registration.ok_or(Status::HOST_MEMORY_NOT_REGISTERED)?)?;
        Ok(())
    }

    fn cuMemHostAlloc(start: Out<*mut c_void>, len: usize, _flags: c_uint) {
        let driver = Driver::get()?;
        start.check()?;
        start.put(allocate(driver, len)?)
    }

    fn cuMemAllocHost_v2(start: Out<*mut c_void>, len: usize) {
        let driver = Driver::get()?;
        start.check()?;
        start.put(allocate(driver, len)?)
    }

    fn cuMemFreeHost(start: *mut c_void) {
        let driver = Driver::get()?;
        let (_, gpu) = current(driver)?;
        let allocation = lock(&driver.host_allocations).remove(&start.addr()).ok_or(Status::INVALID_VALUE)?;
        crate::stream::finish_device(driver, gpu)?;
        driver.sim.unregister_host(allocation.registration)?;
        Ok(())
    }

    fn cuMemHostGetDevicePointer_v2(device: Out<u64>, start: *mut c_void, flags: c_uint) {
        let driver = Driver::get()?;
        current(driver)?;
        if flags != 0 || driver.sim.pinning(start.cast(), 1) != Pinning::Registered {
            return Err(Status::INVALID_VALUE);
        }
        device.put(start.addr() as u64)
    }

    fn cuMemHostGetFlags(flags: Out<c_uint>, start: *mut c_void) {
        let driver = Driver::get()?;
        let known = lock(&driver.host_allocations)
            .range(..=start.addr())
            .next_back()
            .is_some_and(|(first, allocation)| start.addr() - first < allocation.len);
        if known { flags.put(0) } else { Err(Status::INVALID_VALUE) }
    }

    fn cuPointerGetAttribute(data: Handle, name: c_uint, pointer: u64) {
        let driver = Driver::get()?;
        if data.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        match attribute(driver, name, pointer)? {
            // SAFETY: the API requires `data` to have the attribute's own type, which is eight bytes here.
            Attribute::Word(word) => unsafe { data.cast::<u64>().write_unaligned(word) },
            // SAFETY: as above, with four bytes.
            Attribute::Number(number) => unsafe { data.cast::<c_int>().write_unaligned(number.cast_signed()) },
        }
        Ok(())
    }
}
