//! Virtual memory management: addresses, physical memory, and how they come together.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd as _};

use vram_gpu::{Backend as _, DeviceAddress, DeviceRange, GpuId, GpuSet, ShardHandle};
use vram_gpu_sim::GRANULARITY_BYTES;

use crate::abi::{
    ACCESS_READ_WRITE, ALLOCATION_PINNED, AccessDescription, AllocationProperties, HANDLE_POSIX_FD, In,
    LOCATION_DEVICE, Location, Out, api,
};
use crate::driver::{Driver, Physical, lock, range};
use crate::status::Status;

fn gpu_of(driver: &Driver, location: Location) -> Result<GpuId, Status> {
    if location.kind != LOCATION_DEVICE {
        return Err(Status::INVALID_VALUE);
    }
    driver.gpu(location.id)
}

fn checked(driver: &Driver, properties: In<AllocationProperties>) -> Result<(GpuId, bool), Status> {
    let properties = properties.get(0)?;
    if properties.kind != ALLOCATION_PINNED || properties.handle_types & !HANDLE_POSIX_FD != 0 {
        return Err(Status::INVALID_VALUE);
    }
    Ok((gpu_of(driver, properties.location)?, properties.handle_types == HANDLE_POSIX_FD))
}

fn keep(driver: &Driver, shard: ShardHandle, exportable: bool) -> u64 {
    let handle = shard.raw;
    lock(&driver.physical).insert(handle, Physical { shard, exportable, references: 1, maps: 0 });
    handle
}

/// Changes the counts of physical memory, which goes when nothing refers to it and nothing is mapped of it.
fn count(driver: &Driver, handle: u64, change: impl FnOnce(&mut Physical)) -> Result<(), Status> {
    let mut physical = lock(&driver.physical);
    let entry = physical.get_mut(&handle).ok_or(Status::INVALID_VALUE)?;
    change(entry);
    let gone = entry.references == 0 && entry.maps == 0;
    let gone = if gone { physical.remove(&handle) } else { None };
    drop(physical);
    if let Some(entry) = gone {
        driver.sim.release_shard(entry.shard)?;
    }
    Ok(())
}

api! {
    fn cuMemGetAllocationGranularity(
        granularity: Out<usize>,
        properties: In<AllocationProperties>,
        option: c_uint,
    ) {
        let driver = Driver::get()?;
        checked(driver, properties)?;
        if option > 1 {
            return Err(Status::INVALID_VALUE);
        }
        granularity.put(usize::try_from(GRANULARITY_BYTES).unwrap_or(usize::MAX))
    }

    fn cuMemAddressReserve(
        pointer: Out<u64>,
        len: usize,
        alignment: usize,
        address: u64,
        flags: c_ulonglong,
    ) {
        let driver = Driver::get()?;
        pointer.check()?;
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        let alignment = if alignment == 0 { GRANULARITY_BYTES } else { alignment as u64 };
        // The address is a hint: taken if it can be had, forgotten otherwise.
        let wanted = range(address, len);
        if address != 0 && address.is_multiple_of(alignment) && driver.sim.reserve_band_at(wanted).is_ok() {
            return pointer.put(address);
        }
        pointer.put(driver.sim.reserve_band(len as u64, alignment)?.start.0)
    }

    fn cuMemAddressFree(pointer: u64, len: usize) {
        Driver::get()?.sim.free_band(range(pointer, len))?;
        Ok(())
    }

    fn cuMemCreate(
        handle: Out<u64>,
        len: usize,
        properties: In<AllocationProperties>,
        flags: c_ulonglong,
    ) {
        let driver = Driver::get()?;
        handle.check()?;
        let (gpu, exportable) = checked(driver, properties)?;
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        let shard = driver.sim.create_shard(gpu, len as u64)?;
        handle.put(keep(driver, shard, exportable))
    }

    fn cuMemRelease(handle: u64) {
        let driver = Driver::get()?;
        let refers = lock(&driver.physical).get(&handle).is_some_and(|entry| entry.references > 0);
        if !refers {
            return Err(Status::INVALID_VALUE);
        }
        count(driver, handle, |entry| entry.references -= 1)
    }

    fn cuMemMap(pointer: u64, len: usize, offset: usize, handle: u64, flags: c_ulonglong) {
        let driver = Driver::get()?;
        let physical = lock(&driver.physical);
        let entry = physical.get(&handle).ok_or(Status::INVALID_VALUE)?;
        if flags != 0 || offset != 0 || entry.references == 0 || entry.shard.len_bytes != len as u64 {
            return Err(Status::INVALID_VALUE);
        }
        driver.sim.map(DeviceAddress(pointer), &entry.shard)?;
        drop(physical);
        count(driver, handle, |entry| entry.maps += 1)
    }

    fn cuMemUnmap(pointer: u64, len: usize) {
        let driver = Driver::get()?;
        let range = range(pointer, len);
        let mappings = driver.sim.mappings(range)?;
        driver.sim.unmap(range)?;
        for mapping in mappings {
            count(driver, mapping.shard, |entry| entry.maps = entry.maps.saturating_sub(1))?;
        }
        Ok(())
    }

    fn cuMemSetAccess(pointer: u64, len: usize, descriptions: In<AccessDescription>, count: usize) {
        let driver = Driver::get()?;
        let mappings = driver.sim.mappings(range(pointer, len))?;
        if count == 0 || count > GpuSet::CAPACITY {
            return Err(Status::INVALID_VALUE);
        }
        let mut changes = Vec::with_capacity(count);
        for index in 0..count {
            let description = descriptions.get(index)?;
            let gpu = gpu_of(driver, description.location)?;
            match description.flags {
                0 => changes.push((gpu, false)),
                ACCESS_READ_WRITE => changes.push((gpu, true)),
                // Read-only access is documented as not supported for device memory.
                _ => return Err(Status::INVALID_VALUE),
            }
        }
        for mapping in mappings {
            let stays = |gpu: &GpuId| changes.iter().all(|(changed, _)| changed != gpu);
            let kept = mapping.access.iter().filter(stays);
            let given = changes.iter().filter(|(_, given)| *given).map(|(gpu, _)| *gpu);
            let access: Vec<GpuId> = kept.chain(given).collect();
            if access.iter().any(|gpu| !driver.sim.config().can_access_peer(*gpu, mapping.gpu)) {
                return Err(Status::INVALID_DEVICE);
            }
            driver.sim.set_access(mapping.range, &access)?;
        }
        Ok(())
    }

    fn cuMemGetAccess(flags: Out<c_ulonglong>, location: In<Location>, pointer: u64) {
        let driver = Driver::get()?;
        let gpu = gpu_of(driver, location.get(0)?)?;
        let resolved = driver.sim.resolve(DeviceRange { start: DeviceAddress(pointer), len_bytes: 1 })?;
        flags.put(if resolved.access.contains(gpu) { c_ulonglong::from(ACCESS_READ_WRITE) } else { 0 })
    }

    fn cuMemExportToShareableHandle(
        shareable: *mut c_void,
        handle: u64,
        handle_type: c_uint,
        flags: c_ulonglong,
    ) {
        let driver = Driver::get()?;
        if shareable.is_null() || handle_type != HANDLE_POSIX_FD || flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        let physical = lock(&driver.physical);
        let entry = physical.get(&handle).filter(|entry| entry.references > 0 && entry.exportable);
        let export = driver.sim.export_shard(&entry.ok_or(Status::INVALID_VALUE)?.shard)?;
        // SAFETY: not null, and for this handle type the API requires it to point at an int.
        unsafe { shareable.cast::<c_int>().write_unaligned(export.into_raw_fd()) };
        Ok(())
    }

    fn cuMemImportFromShareableHandle(handle: Out<u64>, os_handle: *mut c_void, handle_type: c_uint) {
        let driver = Driver::get()?;
        handle.check()?;
        let fd = c_int::try_from(os_handle.addr()).ok().filter(|_| handle_type == HANDLE_POSIX_FD);
        let fd = fd.ok_or(Status::INVALID_VALUE)?;
        // SAFETY: F_GETFD touches no memory; it says whether the number is an open descriptor at all.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: the descriptor is open, and the API requires its caller to keep it so during the call.
        let shard = driver.sim.import_any(unsafe { BorrowedFd::borrow_raw(fd) })?;
        handle.put(keep(driver, shard, true))
    }

    fn cuMemRetainAllocationHandle(handle: Out<u64>, address: *mut c_void) {
        let driver = Driver::get()?;
        handle.check()?;
        let start = DeviceAddress(address.addr() as u64);
        // Ask of each piece of memory whether it is what lies behind the address: there are not many.
        let physical = lock(&driver.physical);
        let found = physical.iter().find_map(|(handle, entry)| {
            let range = DeviceRange { start, len_bytes: entry.shard.len_bytes };
            let mapping = driver.sim.mappings(range).ok()?;
            mapping.first().is_some_and(|mapping| mapping.shard == *handle).then_some(*handle)
        });
        drop(physical);
        let found = found.ok_or(Status::INVALID_VALUE)?;
        count(driver, found, |entry| entry.references += 1)?;
        handle.put(found)
    }

    fn cuMemGetAllocationPropertiesFromHandle(properties: Out<AllocationProperties>, handle: u64) {
        let driver = Driver::get()?;
        let physical = lock(&driver.physical);
        let entry = physical.get(&handle).filter(|entry| entry.references > 0).ok_or(Status::INVALID_VALUE)?;
        properties.put(AllocationProperties {
            kind: ALLOCATION_PINNED,
            handle_types: if entry.exportable { HANDLE_POSIX_FD } else { 0 },
            location: Location { kind: LOCATION_DEVICE, id: c_int::from(entry.shard.gpu.0) },
            win32_metadata: std::ptr::null_mut(),
            flags: [0; 8],
        })
    }
}
