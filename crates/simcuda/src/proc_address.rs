//! Functions by name and version.
//!
//! A caller asks for a base name and the version it was written for, and gets the newest form not newer than that:
//! `cuMemAlloc` of 3.2 is `cuMemAlloc_v2`. What this library lacks is reported as not found.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use crate::abi::{Out, api, text};
use crate::status::Status;
use crate::{context, copy, device, event, host, memory, stream, vmm};

/// `CU_GET_PROC_ADDRESS_SUCCESS`, `…_SYMBOL_NOT_FOUND`, `…_VERSION_NOT_SUFFICIENT`.
const FOUND: c_uint = 0;
const NOT_FOUND: c_uint = 1;
const TOO_OLD: c_uint = 2;

macro_rules! functions {
    ($($module:ident :: $function:ident, $base:literal, $version:literal;)*) => {
        /// Every function: base name, version it came with, address.
        fn functions() -> Vec<(&'static str, c_int, *mut c_void)> {
            vec![$(($base, $version, $module::$function as *const () as *mut c_void)),*]
        }
    };
}

functions! {
    context::cuCtxCreate_v2, "cuCtxCreate", 3020;
    context::cuCtxDestroy_v2, "cuCtxDestroy", 4000;
    context::cuCtxDisablePeerAccess, "cuCtxDisablePeerAccess", 4000;
    context::cuCtxEnablePeerAccess, "cuCtxEnablePeerAccess", 4000;
    context::cuCtxGetApiVersion, "cuCtxGetApiVersion", 3020;
    context::cuCtxGetCurrent, "cuCtxGetCurrent", 4000;
    context::cuCtxGetDevice, "cuCtxGetDevice", 2000;
    context::cuCtxGetFlags, "cuCtxGetFlags", 7000;
    context::cuCtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange", 5050;
    context::cuCtxPopCurrent_v2, "cuCtxPopCurrent", 4000;
    context::cuCtxPushCurrent_v2, "cuCtxPushCurrent", 4000;
    context::cuCtxSetCurrent, "cuCtxSetCurrent", 4000;
    context::cuCtxSetFlags, "cuCtxSetFlags", 12010;
    context::cuDevicePrimaryCtxGetState, "cuDevicePrimaryCtxGetState", 7000;
    context::cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000;
    context::cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000;
    context::cuDevicePrimaryCtxSetFlags_v2, "cuDevicePrimaryCtxSetFlags", 11000;
    copy::cuMemcpy, "cuMemcpy", 4000;
    copy::cuMemcpyAsync, "cuMemcpyAsync", 4000;
    copy::cuMemcpyDtoDAsync_v2, "cuMemcpyDtoDAsync", 3020;
    copy::cuMemcpyDtoD_v2, "cuMemcpyDtoD", 3020;
    copy::cuMemcpyDtoHAsync_v2, "cuMemcpyDtoHAsync", 3020;
    copy::cuMemcpyDtoH_v2, "cuMemcpyDtoH", 3020;
    copy::cuMemcpyHtoDAsync_v2, "cuMemcpyHtoDAsync", 3020;
    copy::cuMemcpyHtoD_v2, "cuMemcpyHtoD", 3020;
    copy::cuMemcpyPeer, "cuMemcpyPeer", 4000;
    copy::cuMemcpyPeerAsync, "cuMemcpyPeerAsync", 4000;
    copy::cuMemsetD16Async, "cuMemsetD16Async", 3020;
    copy::cuMemsetD16_v2, "cuMemsetD16", 3020;
    copy::cuMemsetD32Async, "cuMemsetD32Async", 3020;
    copy::cuMemsetD32_v2, "cuMemsetD32", 3020;
    copy::cuMemsetD8Async, "cuMemsetD8Async", 3020;
    copy::cuMemsetD8_v2, "cuMemsetD8", 3020;
    device::cuDeviceCanAccessPeer, "cuDeviceCanAccessPeer", 4000;
    device::cuDeviceComputeCapability, "cuDeviceComputeCapability", 2000;
    device::cuDeviceGet, "cuDeviceGet", 2000;
    device::cuDeviceGetAttribute, "cuDeviceGetAttribute", 2000;
    device::cuDeviceGetByPCIBusId, "cuDeviceGetByPCIBusId", 4010;
    device::cuDeviceGetCount, "cuDeviceGetCount", 2000;
    device::cuDeviceGetName, "cuDeviceGetName", 2000;
    device::cuDeviceGetP2PAttribute, "cuDeviceGetP2PAttribute", 8000;
    device::cuDeviceGetPCIBusId, "cuDeviceGetPCIBusId", 4010;
    device::cuDeviceGetUuid, "cuDeviceGetUuid", 9020;
    device::cuDeviceGetUuid_v2, "cuDeviceGetUuid", 11040;
    device::cuDeviceTotalMem_v2, "cuDeviceTotalMem", 3020;
    device::cuDriverGetVersion, "cuDriverGetVersion", 2020;
    device::cuGetErrorName, "cuGetErrorName", 6000;
    device::cuGetErrorString, "cuGetErrorString", 6000;
    device::cuInit, "cuInit", 2000;
    device::cuMemGetInfo_v2, "cuMemGetInfo", 3020;
    event::cuEventCreate, "cuEventCreate", 2000;
    event::cuEventDestroy_v2, "cuEventDestroy", 4000;
    event::cuEventElapsedTime, "cuEventElapsedTime", 2000;
    event::cuEventQuery, "cuEventQuery", 2000;
    event::cuEventRecord, "cuEventRecord", 2000;
    event::cuEventSynchronize, "cuEventSynchronize", 2000;
    host::cuMemAllocHost_v2, "cuMemAllocHost", 3020;
    host::cuMemFreeHost, "cuMemFreeHost", 2000;
    host::cuMemHostAlloc, "cuMemHostAlloc", 2020;
    host::cuMemHostGetDevicePointer_v2, "cuMemHostGetDevicePointer", 3020;
    host::cuMemHostGetFlags, "cuMemHostGetFlags", 2030;
    host::cuMemHostRegister_v2, "cuMemHostRegister", 6050;
    host::cuMemHostUnregister, "cuMemHostUnregister", 4000;
    host::cuPointerGetAttribute, "cuPointerGetAttribute", 4000;
    memory::cuMemAlloc_v2, "cuMemAlloc", 3020;
    memory::cuMemFree_v2, "cuMemFree", 3020;
    memory::cuMemGetAddressRange_v2, "cuMemGetAddressRange", 3020;
    stream::cuCtxSynchronize, "cuCtxSynchronize", 2000;
    stream::cuLaunchHostFunc, "cuLaunchHostFunc", 10000;
    stream::cuStreamCreate, "cuStreamCreate", 2000;
    stream::cuStreamCreateWithPriority, "cuStreamCreateWithPriority", 5050;
    stream::cuStreamDestroy_v2, "cuStreamDestroy", 4000;
    stream::cuStreamQuery, "cuStreamQuery", 2000;
    stream::cuStreamSynchronize, "cuStreamSynchronize", 2000;
    stream::cuStreamWaitEvent, "cuStreamWaitEvent", 3020;
    vmm::cuMemAddressFree, "cuMemAddressFree", 10020;
    vmm::cuMemAddressReserve, "cuMemAddressReserve", 10020;
    vmm::cuMemCreate, "cuMemCreate", 10020;
    vmm::cuMemExportToShareableHandle, "cuMemExportToShareableHandle", 10020;
    vmm::cuMemGetAccess, "cuMemGetAccess", 10020;
    vmm::cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity", 10020;
    vmm::cuMemGetAllocationPropertiesFromHandle, "cuMemGetAllocationPropertiesFromHandle", 10020;
    vmm::cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle", 10020;
    vmm::cuMemMap, "cuMemMap", 10020;
    vmm::cuMemRelease, "cuMemRelease", 10020;
    vmm::cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", 11000;
    vmm::cuMemSetAccess, "cuMemSetAccess", 10020;
    vmm::cuMemUnmap, "cuMemUnmap", 10020;
}

/// The newest form of a function that is not newer than asked for.
pub(crate) fn find(name: &str, version: c_int) -> (Option<*mut c_void>, c_uint) {
    let own: [(&str, c_int, *mut c_void); 2] = [
        ("cuGetProcAddress", 11030, cuGetProcAddress as *const () as *mut c_void),
        ("cuGetProcAddress", 12000, cuGetProcAddress_v2 as *const () as *mut c_void),
    ];
    let forms: Vec<_> = functions().into_iter().chain(own).filter(|(base, ..)| *base == name).collect();
    let newest = forms.iter().filter(|(_, since, _)| *since <= version).max_by_key(|(_, since, _)| *since);
    match newest {
        Some((.., address)) => (Some(*address), FOUND),
        None if forms.is_empty() => (None, NOT_FOUND),
        None => (None, TOO_OLD),
    }
}

api! {
    fn cuGetProcAddress(symbol: *const c_char, function: Out<*mut c_void>, version: c_int, _flags: c_ulonglong) {
        let (address, _) = find(&text(symbol)?, version);
        function.put(address.unwrap_or(std::ptr::null_mut()))?;
        address.map(|_| ()).ok_or(Status::NOT_FOUND)
    }

    fn cuGetProcAddress_v2(
        symbol: *const c_char,
        function: Out<*mut c_void>,
        version: c_int,
        _flags: c_ulonglong,
        status: Out<c_uint>,
    ) {
        let (address, found) = find(&text(symbol)?, version);
        function.put(address.unwrap_or(std::ptr::null_mut()))?;
        status.put_if_wanted(found)?;
        address.map(|_| ()).ok_or(Status::NOT_FOUND)
    }
}
