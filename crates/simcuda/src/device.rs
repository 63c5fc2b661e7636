//! Devices: how many, what they are, how they reach each other.

use std::ffi::{c_char, c_int, c_uint};

use vram_gpu::{Backend as _, Link};

use crate::abi::{Out, Uuid, api, put_text, text};
use crate::driver::Driver;
use crate::status::Status;

/// 12.9, the version whose behaviour is followed.
const DRIVER_VERSION: c_int = 12_090;

fn attribute(driver: &Driver, attribute: c_int, device: c_int) -> Result<c_int, Status> {
    let gpu = driver.gpu(device)?;
    let info = &driver.sim.devices()[gpu.index()];
    let pci = info.pci.ok_or(Status::INVALID_DEVICE)?;
    Ok(match attribute {
        // MAX_THREADS_PER_BLOCK, MAX_BLOCK_DIM_X/Y/Z, MAX_GRID_DIM_X/Y/Z
        1..=3 => 1024,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65_535,
        // WARP_SIZE
        10 => 32,
        // MULTIPROCESSOR_COUNT
        16 => 1,
        // PCI_BUS_ID, PCI_DEVICE_ID, PCI_DOMAIN_ID
        33 => c_int::from(pci.bus),
        34 => c_int::from(pci.device),
        50 => c_int::try_from(pci.domain).map_err(|_too_large| Status::INVALID_VALUE)?,
        // ASYNC_ENGINE_COUNT
        40 => 3,
        // UNIFIED_ADDRESSING
        41 => 1,
        // COMPUTE_CAPABILITY_MAJOR
        75 => 9,
        // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, HOST_REGISTER_SUPPORTED
        91 | 99 => 1,
        // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
        102 | 103 => 1,
        // HOST_NUMA_ID
        134 => info.numa_node.and_then(|node| c_int::try_from(node).ok()).unwrap_or(-1),
        // Everything else there is says no or none: managed memory, memory pools, graphs, kernels of any kind.
        _ if (1..=160).contains(&attribute) => 0,
        _ => return Err(Status::INVALID_VALUE),
    })
}

api! {
    fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        Driver::start()
    }

    fn cuDriverGetVersion(version: Out<c_int>) {
        version.put(DRIVER_VERSION)
    }

    fn cuGetErrorName(code: u32, name: Out<*const c_char>) {
        match Status::describe(code) {
            Some((found, _)) => name.put(found.as_ptr()),
            None => {
                name.put(std::ptr::null())?;
                Err(Status::INVALID_VALUE)
            }
        }
    }

    fn cuGetErrorString(code: u32, string: Out<*const c_char>) {
        match Status::describe(code) {
            Some((_, found)) => string.put(found.as_ptr()),
            None => {
                string.put(std::ptr::null())?;
                Err(Status::INVALID_VALUE)
            }
        }
    }

    fn cuDeviceGetCount(count: Out<c_int>) {
        let gpus = Driver::get()?.sim.devices().len();
        count.put(c_int::try_from(gpus).unwrap_or(c_int::MAX))
    }

    fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) {
        Driver::get()?.gpu(ordinal)?;
        device.put(ordinal)
    }

    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) {
        let driver = Driver::get()?;
        let gpu = driver.gpu(device)?;
        put_text(name, len, &driver.sim.devices()[gpu.index()].name)
    }

    fn cuDeviceGetUuid(uuid: Out<Uuid>, device: c_int) {
        let driver = Driver::get()?;
        let gpu = driver.gpu(device)?;
        uuid.put(Uuid { bytes: driver.sim.devices()[gpu.index()].uuid })
    }

    fn cuDeviceGetUuid_v2(uuid: Out<Uuid>, device: c_int) {
        let driver = Driver::get()?;
        let gpu = driver.gpu(device)?;
        uuid.put(Uuid { bytes: driver.sim.devices()[gpu.index()].uuid })
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: c_int) {
        let driver = Driver::get()?;
        let gpu = driver.gpu(device)?;
        let total_bytes = driver.sim.devices()[gpu.index()].total_bytes;
        bytes.put(usize::try_from(total_bytes).unwrap_or(usize::MAX))
    }

    fn cuDeviceGetAttribute(value: Out<c_int>, name: c_int, device: c_int) {
        value.put(attribute(Driver::get()?, name, device)?)
    }

    fn cuDeviceComputeCapability(major: Out<c_int>, minor: Out<c_int>, device: c_int) {
        Driver::get()?.gpu(device)?;
        major.put(9)?;
        minor.put(0)
    }

    fn cuDeviceGetPCIBusId(bus_id: *mut c_char, len: c_int, device: c_int) {
        let driver = Driver::get()?;
        let gpu = driver.gpu(device)?;
        let pci = driver.sim.devices()[gpu.index()].pci.ok_or(Status::INVALID_DEVICE)?;
        put_text(bus_id, len, &pci.to_string())
    }

    fn cuDeviceGetByPCIBusId(device: Out<c_int>, bus_id: *const c_char) {
        let driver = Driver::get()?;
        let wanted = text(bus_id)?;
        let found = driver.sim.devices().iter().find(|info| info.pci.is_some_and(|pci| pci.to_string() == wanted));
        device.put(c_int::from(found.ok_or(Status::INVALID_VALUE)?.id.0))
    }

    fn cuDeviceCanAccessPeer(can: Out<c_int>, device: c_int, peer: c_int) {
        let driver = Driver::get()?;
        let (from, to) = (driver.gpu(device)?, driver.gpu(peer)?);
        can.put(c_int::from(from != to && driver.sim.config().can_access_peer(from, to)))
    }

    fn cuDeviceGetP2PAttribute(value: Out<c_int>, name: c_int, source: c_int, target: c_int) {
        let driver = Driver::get()?;
        let (from, to) = (driver.gpu(source)?, driver.gpu(target)?);
        if from == to {
            return Err(Status::INVALID_DEVICE);
        }
        let reachable = c_int::from(driver.sim.config().can_access_peer(from, to));
        let by_nvlink = c_int::from(matches!(driver.sim.topology().link(from, to), Link::NvLink(_)));
        value.put(match name {
            // PERFORMANCE_RANK: lower is better.
            1 => 1 - by_nvlink,
            // ACCESS_SUPPORTED
            2 => reachable,
            // NATIVE_ATOMIC_SUPPORTED
            3 => reachable * by_nvlink,
            // CUDA_ARRAY_ACCESS_SUPPORTED
            4 => 0,
            _ => return Err(Status::INVALID_VALUE),
        })
    }

    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let driver = Driver::get()?;
        let (_, gpu) = crate::context::current(driver)?;
        let info = driver.sim.memory(gpu)?;
        free.put_if_wanted(usize::try_from(info.free_bytes).unwrap_or(usize::MAX))?;
        total.put_if_wanted(usize::try_from(info.total_bytes).unwrap_or(usize::MAX))
    }
}
