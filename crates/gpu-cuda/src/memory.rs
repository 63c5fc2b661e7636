//! Bands and shards: virtual memory management.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{
    CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType,
};
use vram_gpu::{
    Bands, DeviceAddress, DeviceRange, GpuError, GpuId, GpuSet, Mapping, MemoryInfo, Resolved, ShardHandle,
};

use crate::api::{Api, Gpu, OUT_OF_MEMORY, Refusal, check};

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`, as the functions take it.
const POSIX_FD: u32 = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0;

/// Memory of a backend.
pub(crate) struct Memory {
    granularity_bytes: u64,
    /// For each GPU, whose memory it can be given access to.
    peers: Vec<GpuSet>,
    bands: Mutex<Bands>,
    shards: Mutex<HashMap<u64, Shard>>,
}

#[derive(Clone, Copy)]
struct Shard {
    gpu: GpuId,
    len_bytes: u64,
    handle: CUmemGenericAllocationHandle,
}

impl Memory {
    /// Asks the driver for the granularity, the largest of all GPUs'.
    pub(crate) fn new(api: &Api, peers: Vec<GpuSet>) -> Result<Self, GpuError> {
        let mut granularity_bytes = 1;
        for gpu in &api.gpus {
            let mut granularity = 0usize;
            let minimum = 0;
            let properties = properties(gpu);
            // SAFETY: both pointers are ours for the call.
            let code = unsafe {
                (api.symbols.mem_get_allocation_granularity)(
                    &raw mut granularity,
                    &raw const properties,
                    minimum,
                )
            };
            check("cuMemGetAllocationGranularity", code).map_err(|refusal| api.explain(gpu, refusal))?;
            granularity_bytes = granularity_bytes.max(granularity as u64);
        }
        Ok(Self {
            granularity_bytes,
            peers,
            bands: Mutex::new(Bands::new(granularity_bytes)),
            shards: Mutex::default(),
        })
    }

    pub(crate) fn granularity_bytes(&self) -> u64 {
        self.granularity_bytes
    }

    pub(crate) fn info(&self, api: &Api, gpu: GpuId) -> Result<MemoryInfo, GpuError> {
        let (free_bytes, total_bytes) = api.within(gpu, |_| api.memory_info())?;
        Ok(MemoryInfo { free_bytes, total_bytes })
    }

    pub(crate) fn reserve(&self, api: &Api, len_bytes: u64, alignment: u64) -> Result<DeviceRange, GpuError> {
        self.bands().check_reservation(0, len_bytes, alignment)?;
        let alignment = alignment.max(self.granularity_bytes);
        let start = reserve(api, DeviceRange { start: DeviceAddress(0), len_bytes }, alignment)?;
        let band = DeviceRange { start: DeviceAddress(start), len_bytes };
        self.bands().insert_band(band);
        Ok(band)
    }

    pub(crate) fn reserve_at(&self, api: &Api, band: DeviceRange) -> Result<(), GpuError> {
        self.bands().check_reservation(band.start.0, band.len_bytes, 1)?;
        // The driver takes the address for a hint and gives another one where it is taken.
        let start = reserve(api, band, self.granularity_bytes)?;
        if start != band.start.0 {
            let elsewhere = DeviceRange { start: DeviceAddress(start), ..band };
            unreserve(api, elsewhere)?;
            return Err(GpuError::OutOfAddressSpace { len_bytes: band.len_bytes });
        }
        self.bands().insert_band(band);
        Ok(())
    }

    pub(crate) fn free(&self, api: &Api, band: DeviceRange) -> Result<(), GpuError> {
        self.bands().claim_band(band)?;
        unreserve(api, band).inspect_err(|_| self.bands().insert_band(band))
    }

    pub(crate) fn create(
        &self,
        api: &Api,
        gpu: GpuId,
        len_bytes: u64,
        raw: u64,
    ) -> Result<ShardHandle, GpuError> {
        let out_of_memory = GpuError::OutOfMemory { gpu, requested_bytes: len_bytes };
        api.alive(gpu)?;
        self.check_shard_len(len_bytes)?;
        // More than a GPU has is refused in different ways by different drivers.
        if len_bytes > self.info(api, gpu)?.total_bytes {
            return Err(out_of_memory);
        }
        let found = api.alive(gpu)?;
        let mut handle = 0;
        let properties = properties(found);
        api.enter(found).map_err(|refusal| api.explain(found, refusal))?;
        // SAFETY: both pointers are ours for the call.
        let code =
            unsafe { (api.symbols.mem_create)(&raw mut handle, length(len_bytes), &raw const properties, 0) };
        match check("cuMemCreate", code) {
            Ok(()) => Ok(self.keep(Shard { gpu, len_bytes, handle }, raw)),
            Err(Refusal { code: OUT_OF_MEMORY, .. }) => Err(out_of_memory),
            Err(refusal) => Err(api.explain(found, refusal)),
        }
    }

    pub(crate) fn export(&self, api: &Api, shard: &ShardHandle) -> Result<OwnedFd, GpuError> {
        let shard = self.shard(shard.raw)?;
        let mut fd: c_int = -1;
        api.within(shard.gpu, |_| {
            // SAFETY: for this handle type the driver writes an int, and the pointer is to ours.
            let code = unsafe {
                (api.symbols.mem_export)((&raw mut fd).cast::<c_void>(), shard.handle, POSIX_FD, 0)
            };
            check("cuMemExportToShareableHandle", code)
        })?;
        // SAFETY: the driver made the descriptor for us; nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // A duplicate is closed in programs this one starts, whatever the driver's own is.
        fd.try_clone().map_err(|error| GpuError::Driver {
            call: "cuMemExportToShareableHandle",
            reason: error.to_string(),
        })
    }

    pub(crate) fn import(
        &self,
        api: &Api,
        gpu: GpuId,
        len_bytes: u64,
        fd: BorrowedFd<'_>,
        raw: u64,
    ) -> Result<ShardHandle, GpuError> {
        api.alive(gpu)?;
        self.check_shard_len(len_bytes)?;
        let number = usize::try_from(fd.as_raw_fd()).unwrap_or(usize::MAX);
        let os_handle = std::ptr::without_provenance_mut::<c_void>(number);
        let mut handle = 0;
        let (home, device) = api.within(gpu, |found| {
            // SAFETY: the pointer is ours for the call, and for this handle type the other argument is no pointer but
            // the number of a descriptor, which is open as long as it is borrowed.
            let code = unsafe { (api.symbols.mem_import)(&raw mut handle, os_handle, POSIX_FD) };
            check("cuMemImportFromShareableHandle", code)?;
            let mut found_properties = properties(found);
            // SAFETY: the pointer is ours for the call, and the handle was made just now.
            let code =
                unsafe { (api.symbols.mem_get_allocation_properties)(&raw mut found_properties, handle) };
            check("cuMemGetAllocationPropertiesFromHandle", code)?;
            Ok((found_properties.location.id, found.device))
        })?;
        if home != device {
            release(api, gpu, handle)?;
            let reason = format!("the memory is of device {home}");
            return Err(GpuError::Driver { call: "cuMemImportFromShareableHandle", reason });
        }
        Ok(self.keep(Shard { gpu, len_bytes, handle }, raw))
    }

    pub(crate) fn release(&self, api: &Api, shard: ShardHandle) -> Result<(), GpuError> {
        let released = self.shards().remove(&shard.raw).ok_or(GpuError::BadHandle { what: "shard" })?;
        release(api, released.gpu, released.handle)
    }

    pub(crate) fn map(&self, api: &Api, at: DeviceAddress, shard: &ShardHandle) -> Result<(), GpuError> {
        let found = self.shard(shard.raw)?;
        let range = DeviceRange { start: at, len_bytes: found.len_bytes };
        self.bands().claim_map(range, found.gpu, shard.raw)?;
        let mapped = api.within(found.gpu, |_| {
            // SAFETY: the claim succeeded, so the range lies in a band of ours and nothing is mapped there.
            let code = unsafe { (api.symbols.mem_map)(at.0, length(range.len_bytes), 0, found.handle, 0) };
            check("cuMemMap", code)
        });
        let mut bands = self.bands();
        match mapped {
            Ok(()) => bands.settle(range),
            Err(_) => bands.forget(range),
        }
        mapped
    }

    pub(crate) fn set_access(&self, api: &Api, range: DeviceRange, gpus: &[GpuId]) -> Result<(), GpuError> {
        for gpu in gpus {
            api.alive(*gpu)?;
        }
        let wanted = GpuSet::of(gpus);
        let mappings = self.bands().whole(range)?;
        for mapping in &mappings {
            if let Some(gpu) = gpus.iter().find(|gpu| !self.reaches(**gpu, mapping.gpu)) {
                let reason = format!("{gpu} cannot be given access to memory of {}", mapping.gpu);
                return Err(GpuError::Driver { call: "cuMemSetAccess", reason });
            }
        }
        for mapping in &mappings {
            set_access(api, mapping, wanted)?;
            self.bands().set_access(mapping.range, wanted)?;
        }
        Ok(())
    }

    pub(crate) fn unmap(&self, api: &Api, range: DeviceRange) -> Result<(), GpuError> {
        let mappings = self.bands().claim_unmap(range)?;
        for mapping in &mappings {
            let unmapped = unmap(api, mapping.gpu, mapping.range);
            if unmapped.is_err() {
                // What has gone has been forgotten; the rest is as it was.
                self.bands().settle(range);
                return unmapped;
            }
            self.bands().forget(mapping.range);
        }
        Ok(())
    }

    /// What lies behind a range.
    pub(crate) fn resolve(&self, range: DeviceRange) -> Result<Resolved, GpuError> {
        self.bands().resolve(range)
    }

    /// Whether a GPU can be given access to memory of another.
    pub(crate) fn reaches(&self, from: GpuId, to: GpuId) -> bool {
        self.peers.get(from.index()).is_some_and(|reached| reached.contains(to))
    }

    /// Gives everything back. Called when nothing runs any more.
    pub(crate) fn clear(&self, api: &Api) {
        let Some(any) = api.gpus.first().map(|gpu| gpu.id) else { return };
        // On the way out there is nobody to tell what is refused.
        for (band, mapped) in self.bands().take_all() {
            for range in mapped {
                let _ = unmap(api, any, range);
            }
            let _ = unreserve(api, band);
        }
        for shard in std::mem::take(&mut *self.shards()).into_values() {
            let _ = release(api, shard.gpu, shard.handle);
        }
    }

    fn check_shard_len(&self, len_bytes: u64) -> Result<(), GpuError> {
        if len_bytes > 0 && len_bytes.is_multiple_of(self.granularity_bytes) {
            return Ok(());
        }
        let problem = "not a multiple of the granularity";
        Err(GpuError::BadRange { start: DeviceAddress(0), len_bytes, problem })
    }

    fn keep(&self, shard: Shard, raw: u64) -> ShardHandle {
        self.shards().insert(raw, shard);
        ShardHandle { gpu: shard.gpu, len_bytes: shard.len_bytes, raw }
    }

    fn shard(&self, raw: u64) -> Result<Shard, GpuError> {
        self.shards().get(&raw).copied().ok_or(GpuError::BadHandle { what: "shard" })
    }

    fn bands(&self) -> MutexGuard<'_, Bands> {
        self.bands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shards(&self) -> MutexGuard<'_, HashMap<u64, Shard>> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn location(device: c_int) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

/// Page-locked memory of a GPU that can be exported as a descriptor.
fn properties(gpu: &Gpu) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location: location(gpu.device),
        win32HandleMetaData: std::ptr::null_mut(),
        // SAFETY: plain numbers, for which zero is a value and the default.
        allocFlags: unsafe { std::mem::zeroed() },
    }
}

fn reserve(api: &Api, hint: DeviceRange, alignment: u64) -> Result<u64, GpuError> {
    let out_of_space = GpuError::OutOfAddressSpace { len_bytes: hint.len_bytes };
    let gpu = api.gpus.first().ok_or(out_of_space.clone())?;
    api.enter(api.alive(gpu.id)?).map_err(|refusal| api.explain(gpu, refusal))?;
    let mut start = 0;
    // SAFETY: the pointer is ours for the call.
    let code = unsafe {
        (api.symbols.mem_address_reserve)(
            &raw mut start,
            length(hint.len_bytes),
            length(alignment),
            hint.start.0,
            0,
        )
    };
    // Every refusal means that these addresses cannot be had: the arguments were checked before.
    if code == 0 { Ok(start) } else { Err(out_of_space) }
}

fn unreserve(api: &Api, band: DeviceRange) -> Result<(), GpuError> {
    let Some(gpu) = api.gpus.first() else { return Ok(()) };
    api.within(gpu.id, |_| {
        // SAFETY: the band was reserved with this start and length, and nothing is mapped in it.
        let code = unsafe { (api.symbols.mem_address_free)(band.start.0, length(band.len_bytes)) };
        check("cuMemAddressFree", code)
    })
}

fn release(api: &Api, gpu: GpuId, handle: CUmemGenericAllocationHandle) -> Result<(), GpuError> {
    api.within(gpu, |_| {
        // SAFETY: the handle was made by the driver and is given back once.
        check("cuMemRelease", unsafe { (api.symbols.mem_release)(handle) })
    })
}

fn unmap(api: &Api, gpu: GpuId, range: DeviceRange) -> Result<(), GpuError> {
    api.within(gpu, |_| {
        // SAFETY: exactly this range was mapped, and the caller says that no work touches it.
        check("cuMemUnmap", unsafe { (api.symbols.mem_unmap)(range.start.0, length(range.len_bytes)) })
    })
}

/// Tells the driver who may touch a mapping: those wanted may, those who could before and are not may not.
fn set_access(api: &Api, mapping: &Mapping, wanted: GpuSet) -> Result<(), GpuError> {
    let describe = |gpu: &Gpu| {
        let flags = match (wanted.contains(gpu.id), mapping.access.contains(gpu.id)) {
            (true, _) => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            (false, true) => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE,
            (false, false) => return None,
        };
        Some(CUmemAccessDesc { location: location(gpu.device), flags })
    };
    let descriptions: Vec<CUmemAccessDesc> = api.gpus.iter().filter_map(describe).collect();
    if descriptions.is_empty() {
        return Ok(());
    }
    let range = mapping.range;
    api.within(mapping.gpu, |_| {
        // SAFETY: the range is mapped; the descriptions are ours and as many as said.
        let code = unsafe {
            (api.symbols.mem_set_access)(
                range.start.0,
                length(range.len_bytes),
                descriptions.as_ptr(),
                descriptions.len(),
            )
        };
        check("cuMemSetAccess", code)
    })
}

/// A length as the driver takes it. Devices only have addresses of 64 bits, and so do the hosts this is built for.
fn length(len_bytes: u64) -> usize {
    usize::try_from(len_bytes).unwrap_or(usize::MAX)
}
