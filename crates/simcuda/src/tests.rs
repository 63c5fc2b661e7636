//! The library as a C program would use it, without loading it: one driver for all tests of this process.

use std::ffi::{CString, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Once;

use crate::abi::{AccessDescription, AllocationProperties, Handle, In, Location, Out};
use crate::context::*;
use crate::copy::*;
use crate::device::*;
use crate::event::*;
use crate::host::*;
use crate::memory::*;
use crate::proc_address::{self, cuGetProcAddress};
use crate::status::Status;
use crate::stream::*;
use crate::vmm::*;

const OK: u32 = 0;
const UNIT: usize = 2 << 20;

/// Starts the driver and makes the primary context of device 0 current on this thread.
fn set_up() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the first thing any test of this process does, under the lock of `Once`; nothing else here reads
        // the environment before.
        unsafe { std::env::set_var("VRAM_SIMCUDA_GPUS", "2x64MiB") };
        assert_eq!(cuInit(0), OK);
    });
    let mut context: Handle = null_mut();
    assert_eq!(cuDevicePrimaryCtxRetain(Out::to(&mut context), 0), OK);
    assert_eq!(cuCtxSetCurrent(context), OK);
}

fn allocate(len: usize) -> u64 {
    let mut pointer = 0;
    assert_eq!(cuMemAlloc_v2(Out::to(&mut pointer), len), OK);
    pointer
}

fn properties(kind: u32, id: c_int) -> AllocationProperties {
    AllocationProperties {
        kind,
        handle_types: 1,
        location: Location { kind: 1, id },
        win32_metadata: null_mut(),
        flags: [0; 8],
    }
}

#[test]
fn copies_without_a_context_are_refused() {
    set_up();
    let pointer = allocate(4096);
    assert_eq!(cuCtxSetCurrent(null_mut()), OK);
    assert_eq!(cuMemsetD8_v2(pointer, 0, 16), Status::INVALID_CONTEXT as u32);
    let mut free = 0;
    assert_eq!(cuMemGetInfo_v2(Out::to(&mut free), Out::to(&mut 0)), Status::INVALID_CONTEXT as u32);
    assert_eq!(cuCtxSetCurrent(std::ptr::without_provenance_mut(77)), Status::INVALID_CONTEXT as u32);
}

#[test]
fn bytes_come_back_through_pageable_and_page_locked_memory() {
    set_up();
    let pointer = allocate(100_000);
    let source: Vec<u8> = (0..100_000u32).map(|index| index as u8).collect();
    assert_eq!(cuMemcpyHtoD_v2(pointer, source.as_ptr().cast(), source.len()), OK);
    let mut target = vec![0u8; source.len()];
    assert_eq!(cuMemcpyDtoH_v2(target.as_mut_ptr().cast(), pointer, target.len()), OK);
    assert!(source == target);

    let mut locked: *mut c_void = null_mut();
    assert_eq!(cuMemHostAlloc(Out::to(&mut locked), 100_000, 0), OK);
    let mut stream: Handle = null_mut();
    assert_eq!(cuStreamCreate(Out::to(&mut stream), 1), OK);
    assert_eq!(cuMemcpyDtoHAsync_v2(locked, pointer, 100_000, stream), OK);
    assert_eq!(cuStreamSynchronize(stream), OK);
    // SAFETY: the allocation has as many bytes, and the stream that wrote them has finished.
    let found = unsafe { std::slice::from_raw_parts(locked.cast::<u8>(), 100_000) };
    assert!(found == source);
    assert_eq!(cuStreamDestroy_v2(stream), OK);
    assert_eq!(cuStreamDestroy_v2(stream), Status::INVALID_HANDLE as u32);
    assert_eq!(cuMemFreeHost(locked), OK);
    assert_eq!(cuMemFree_v2(pointer), OK);
    assert_eq!(cuMemFree_v2(pointer), Status::INVALID_VALUE as u32);
}

#[test]
fn host_ranges_partly_registered_are_invalid() {
    set_up();
    let pointer = allocate(64 << 10);
    let buffer = vram_guest_memory::HostBuffer::new(64 << 10).unwrap();
    let start: *mut c_void = buffer.span().as_ptr().cast();
    assert_eq!(cuMemHostRegister_v2(start, 32 << 10, 0), OK);
    assert_eq!(cuMemHostRegister_v2(start, 4096, 0), Status::HOST_MEMORY_ALREADY_REGISTERED as u32);
    assert_eq!(cuMemcpyHtoD_v2(pointer, start, 64 << 10), Status::INVALID_VALUE as u32);
    assert_eq!(cuMemcpyHtoD_v2(pointer, start, 32 << 10), OK);
    assert_eq!(cuMemHostUnregister(start), OK);
    assert_eq!(cuMemHostUnregister(start), Status::HOST_MEMORY_NOT_REGISTERED as u32);
    assert_eq!(cuMemFree_v2(pointer), OK);
}

#[test]
fn default_stream_and_blocking_streams_wait_for_each_other() {
    set_up();
    let pointer = allocate(1 << 20);
    let mut stream: Handle = null_mut();
    assert_eq!(cuStreamCreate(Out::to(&mut stream), 0), OK);
    for round in 0..50u8 {
        assert_eq!(cuMemsetD8Async(pointer, round, 1 << 20, stream), OK);
        assert_eq!(cuMemsetD8Async(pointer + 7, 0xee, 1, null_mut()), OK);
        assert_eq!(cuMemsetD8Async(pointer + 8, 0xdd, 1, stream), OK);
        let mut found = [0u8; 3];
        assert_eq!(cuMemcpyDtoH_v2(found.as_mut_ptr().cast(), pointer + 6, 3), OK);
        assert_eq!(found, [round, 0xee, 0xdd]);
    }
    assert_eq!(cuStreamDestroy_v2(stream), OK);
    assert_eq!(cuMemFree_v2(pointer), OK);
}

#[test]
fn events_know_unrecorded_reached_and_time() {
    set_up();
    let mut event: Handle = null_mut();
    assert_eq!(cuEventCreate(Out::to(&mut event), 0), OK);
    assert_eq!(cuEventQuery(event), OK);
    assert_eq!(cuEventRecord(event, null_mut()), OK);
    assert_eq!(cuEventSynchronize(event), OK);
    let mut milliseconds = -1.0;
    assert_eq!(cuEventElapsedTime(Out::to(&mut milliseconds), event, event), OK);
    assert_eq!(milliseconds, 0.0);
    assert_eq!(cuEventDestroy_v2(event), OK);
    assert_eq!(cuEventQuery(event), Status::INVALID_HANDLE as u32);
}

#[test]
fn physical_memory_is_mapped_shared_and_counted() {
    set_up();
    let mut handle = 0;
    let good = [properties(1, 0)];
    for wrong in [[properties(0, 0)], [properties(1, 9)], [properties(1, -1)]] {
        assert_ne!(cuMemCreate(Out::to(&mut handle), UNIT, In::from(&wrong), 0), OK);
    }
    assert_eq!(cuMemCreate(Out::to(&mut handle), UNIT + 1, In::from(&good), 0), Status::INVALID_VALUE as u32);
    assert_eq!(cuMemCreate(Out::to(&mut handle), 65 << 20, In::from(&good), 0), Status::INVALID_VALUE as u32);
    assert_eq!(cuMemCreate(Out::to(&mut handle), 66 << 20, In::from(&good), 0), Status::OUT_OF_MEMORY as u32);
    assert_eq!(cuMemCreate(Out::to(&mut handle), UNIT, In::from(&good), 0), OK);
    let mut band = 0;
    assert_eq!(cuMemAddressReserve(Out::to(&mut band), UNIT * 2, 0, 0, 0), OK);
    assert_eq!(cuMemMap(band, UNIT, 1, handle, 0), Status::INVALID_VALUE as u32);
    assert_eq!(cuMemMap(band, UNIT, 0, handle, 0), OK);
    assert_eq!(cuMemsetD8_v2(band, 1, UNIT), Status::INVALID_VALUE as u32);
    let access = [AccessDescription { location: Location { kind: 1, id: 0 }, flags: 3 }];
    assert_eq!(cuMemSetAccess(band, UNIT, In::from(&access), 1), OK);
    assert_eq!(cuMemsetD8_v2(band, 1, UNIT), OK);

    let mut fd: c_int = -1;
    let place: *mut c_void = (&raw mut fd).cast();
    assert_eq!(cuMemExportToShareableHandle(place, handle, 1, 0), OK);
    let mut import = 0;
    let os_handle = std::ptr::without_provenance_mut(usize::try_from(fd).unwrap());
    assert_eq!(cuMemImportFromShareableHandle(Out::to(&mut import), os_handle, 1), OK);
    // SAFETY: the descriptor was given to us by the export and is closed once.
    assert_eq!(unsafe { libc::close(fd) }, 0);
    assert_eq!(
        cuMemImportFromShareableHandle(Out::to(&mut 0), std::ptr::without_provenance_mut(999_999), 1),
        Status::INVALID_VALUE as u32
    );
    assert_eq!(cuMemMap(band + UNIT as u64, UNIT, 0, import, 0), OK);
    assert_eq!(cuMemSetAccess(band, UNIT * 2, In::from(&access), 1), OK);
    let mut bytes = [0u8; 4];
    assert_eq!(cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), band + UNIT as u64, 4), OK);
    assert_eq!(bytes, [1; 4]);

    let mut retained = 0;
    let address = std::ptr::without_provenance_mut(usize::try_from(band).unwrap());
    assert_eq!(cuMemRetainAllocationHandle(Out::to(&mut retained), address), OK);
    assert_eq!(retained, handle);
    for _ in 0..2 {
        assert_eq!(cuMemRelease(handle), OK);
    }
    assert_eq!(cuMemRelease(handle), Status::INVALID_VALUE as u32);
    assert_eq!(cuMemRelease(import), OK);
    assert_eq!(cuMemAddressFree(band, UNIT * 2), Status::INVALID_VALUE as u32);
    assert_eq!(cuMemUnmap(band, UNIT * 2), OK);
    assert_eq!(cuMemAddressFree(band, UNIT * 2), OK);
}

#[test]
fn peers_copy_with_access_or_as_peers() {
    set_up();
    let mut second: Handle = null_mut();
    let mut first: Handle = null_mut();
    assert_eq!(cuCtxGetCurrent(Out::to(&mut first)), OK);
    assert_eq!(cuDevicePrimaryCtxRetain(Out::to(&mut second), 1), OK);
    let here = allocate(4096);
    assert_eq!(cuCtxSetCurrent(second), OK);
    let there = allocate(4096);
    assert_eq!(cuMemsetD32_v2(there, 7, 1024), OK);
    assert_eq!(cuCtxSetCurrent(first), OK);
    assert_eq!(cuMemcpyDtoD_v2(here, there, 4096), Status::INVALID_VALUE as u32);
    assert_eq!(cuMemcpyPeer(here, first, there, second, 4096), OK);
    let mut word = 0u32;
    assert_eq!(cuMemcpyDtoH_v2((&raw mut word).cast(), here + 4092, 4), OK);
    assert_eq!(word, 7);
    assert_eq!(cuCtxEnablePeerAccess(second, 0), OK);
    assert_eq!(cuCtxEnablePeerAccess(second, 0), Status::PEER_ACCESS_ALREADY_ENABLED as u32);
    assert_eq!(cuMemcpyDtoD_v2(here, there, 4096), OK);
    assert_eq!(cuCtxDisablePeerAccess(second), OK);
    assert_eq!(cuMemcpyDtoD_v2(here, there, 4096), Status::INVALID_VALUE as u32);
    assert_eq!(cuMemFree_v2(here), OK);
    assert_eq!(cuMemFree_v2(there), OK);
}

#[test]
fn functions_are_found_by_name_and_version() {
    let (address, status) = proc_address::find("cuMemAlloc", 3020);
    assert_eq!(address, Some(cuMemAlloc_v2 as *const () as *mut c_void));
    assert_eq!(status, 0);
    assert_eq!(proc_address::find("cuMemAlloc", 2000), (None, 2));
    assert_eq!(proc_address::find("", 0), (None, 1));
    assert_eq!(proc_address::find("cuLaunchKernel", 13000), (None, 1));
    assert_eq!(
        proc_address::find("cuDeviceGetUuid", 9020).0,
        Some(cuDeviceGetUuid as *const () as *mut c_void)
    );
    assert_eq!(
        proc_address::find("cuDeviceGetUuid", 13000).0,
        Some(cuDeviceGetUuid_v2 as *const () as *mut c_void)
    );
    let name = CString::new("cuInit").unwrap();
    let mut function: *mut c_void = null_mut();
    assert_eq!(cuGetProcAddress(name.as_ptr(), Out::to(&mut function), 12000, 0), OK);
    assert_eq!(function, cuInit as *const () as *mut c_void);
}

#[test]
fn null_pointers_are_invalid_values_and_no_faults() {
    set_up();
    assert_eq!(cuMemcpyHtoD_v2(0, std::ptr::null(), 8), Status::INVALID_VALUE as u32);
    assert_eq!(cuMemcpyDtoH_v2(null_mut(), 0, 8), Status::INVALID_VALUE as u32);
    assert_eq!(cuDeviceGetName(null_mut(), 10, 0), Status::INVALID_VALUE as u32);
    assert_eq!(cuPointerGetAttribute(null_mut(), 2, 0), Status::INVALID_VALUE as u32);
    assert_eq!(cuMemExportToShareableHandle(null_mut(), 0, 1, 0), Status::INVALID_VALUE as u32);
    assert_eq!(cuLaunchHostFunc(null_mut(), None, null_mut()), Status::INVALID_VALUE as u32);
    assert_eq!(cuMemHostRegister_v2(null_mut(), 4096, 0), Status::INVALID_VALUE as u32);
}
