//! The driver's functions, looked up once.
//!
//! Typed pointers that return `u32`: `CUresult` grows with every release, and a code the enum of cudarc lacks would be
//! an invalid value of it.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdeviceptr, CUevent, CUmemAccessDesc, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUstream, CUuuid,
};

/// A function of ours that the driver calls in stream order.
pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);

/// What the driver lacks.
#[derive(Debug)]
pub(crate) struct Missing {
    /// Names of functions.
    pub(crate) names: Vec<&'static str>,
    /// The version it says it is, if even that can be asked.
    pub(crate) driver_version: Option<c_int>,
}

macro_rules! symbols {
    ($($field:ident: $name:literal ($($argument:ty),* $(,)?);)*) => {
        /// One pointer per function.
        pub(crate) struct Symbols {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> u32,)*
        }

        impl Symbols {
            /// Looks every function up.
            ///
            /// # Safety
            ///
            /// The library is there (`sys::is_culib_present`): else this panics.
            pub(crate) unsafe fn load() -> Result<Self, Missing> {
                // SAFETY: loading runs the library's own constructors, which is what having a driver means.
                let library = unsafe { sys::culib() };
                let mut names = Vec::new();
                $(
                    // SAFETY: the type is the one the driver API documents for this name, with `CUresult` taken for
                    // the integer it is in C; the library is never unloaded.
                    let found = unsafe {
                        library.get::<unsafe extern "C" fn($($argument),*) -> u32>($name.as_bytes())
                    };
                    let $field = found.ok().map(|symbol| *symbol);
                    if $field.is_none() {
                        names.push($name);
                    }
                )*
                if let ($(Some($field),)*) = ($($field,)*) {
                    return Ok(Self { $($field),* });
                }
                // SAFETY: as above.
                let version = unsafe {
                    library.get::<unsafe extern "C" fn(*mut c_int) -> u32>(b"cuDriverGetVersion")
                };
                Err(Missing { names, driver_version: version.ok().and_then(|symbol| version_of(*symbol)) })
            }
        }
    };
}

fn version_of(function: unsafe extern "C" fn(*mut c_int) -> u32) -> Option<c_int> {
    let mut version = 0;
    // SAFETY: the one function of the API that may be called before `cuInit`; the pointer is ours.
    let code = unsafe { function(&raw mut version) };
    (code == 0).then_some(version)
}

symbols! {
    init: "cuInit" (c_uint);
    driver_get_version: "cuDriverGetVersion" (*mut c_int);
    get_error_name: "cuGetErrorName" (u32, *mut *const c_char);
    device_get_count: "cuDeviceGetCount" (*mut c_int);
    device_get: "cuDeviceGet" (*mut CUdevice, c_int);
    device_get_name: "cuDeviceGetName" (*mut c_char, c_int, CUdevice);
    device_get_uuid: "cuDeviceGetUuid_v2" (*mut CUuuid, CUdevice);
    device_total_mem: "cuDeviceTotalMem_v2" (*mut usize, CUdevice);
    device_get_attribute: "cuDeviceGetAttribute" (*mut c_int, c_int, CUdevice);
    device_can_access_peer: "cuDeviceCanAccessPeer" (*mut c_int, CUdevice, CUdevice);
    primary_ctx_retain: "cuDevicePrimaryCtxRetain" (*mut CUcontext, CUdevice);
    primary_ctx_release: "cuDevicePrimaryCtxRelease_v2" (CUdevice);
    ctx_set_current: "cuCtxSetCurrent" (CUcontext);
    mem_get_info: "cuMemGetInfo_v2" (*mut usize, *mut usize);
    mem_get_allocation_granularity: "cuMemGetAllocationGranularity"
        (*mut usize, *const CUmemAllocationProp, c_uint);
    mem_address_reserve: "cuMemAddressReserve" (*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
    mem_address_free: "cuMemAddressFree" (CUdeviceptr, usize);
    mem_create: "cuMemCreate"
        (*mut CUmemGenericAllocationHandle, usize, *const CUmemAllocationProp, c_ulonglong);
    mem_release: "cuMemRelease" (CUmemGenericAllocationHandle);
    mem_map: "cuMemMap" (CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, c_ulonglong);
    mem_unmap: "cuMemUnmap" (CUdeviceptr, usize);
    mem_set_access: "cuMemSetAccess" (CUdeviceptr, usize, *const CUmemAccessDesc, usize);
    mem_export: "cuMemExportToShareableHandle"
        (*mut c_void, CUmemGenericAllocationHandle, c_uint, c_ulonglong);
    mem_import: "cuMemImportFromShareableHandle" (*mut CUmemGenericAllocationHandle, *mut c_void, c_uint);
    mem_get_allocation_properties: "cuMemGetAllocationPropertiesFromHandle"
        (*mut CUmemAllocationProp, CUmemGenericAllocationHandle);
    mem_host_register: "cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
    mem_host_unregister: "cuMemHostUnregister" (*mut c_void);
    mem_host_alloc: "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
    mem_free_host: "cuMemFreeHost" (*mut c_void);
    memcpy_htod_async: "cuMemcpyHtoDAsync_v2" (CUdeviceptr, *const c_void, usize, CUstream);
    memcpy_dtoh_async: "cuMemcpyDtoHAsync_v2" (*mut c_void, CUdeviceptr, usize, CUstream);
    memcpy_dtod_async: "cuMemcpyDtoDAsync_v2" (CUdeviceptr, CUdeviceptr, usize, CUstream);
    memcpy_peer_async: "cuMemcpyPeerAsync"
        (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, usize, CUstream);
    memset_d8_async: "cuMemsetD8Async" (CUdeviceptr, u8, usize, CUstream);
    memset_d16_async: "cuMemsetD16Async" (CUdeviceptr, u16, usize, CUstream);
    memset_d32_async: "cuMemsetD32Async" (CUdeviceptr, c_uint, usize, CUstream);
    stream_create: "cuStreamCreate" (*mut CUstream, c_uint);
    stream_destroy: "cuStreamDestroy_v2" (CUstream);
    stream_synchronize: "cuStreamSynchronize" (CUstream);
    stream_wait_event: "cuStreamWaitEvent" (CUstream, CUevent, c_uint);
    launch_host_func: "cuLaunchHostFunc" (CUstream, HostFunction, *mut c_void);
    event_create: "cuEventCreate" (*mut CUevent, c_uint);
    event_destroy: "cuEventDestroy_v2" (CUevent);
    event_record: "cuEventRecord" (CUevent, CUstream);
    event_query: "cuEventQuery" (CUevent);
}
