//! The functions.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use vram_gpu::{GpuId, Link, PciAddress};
use vram_gpu_sim::{SimConfig, SimGpuConfig};

use crate::abi::{Device, Done, Failure, Memory, Out, PciInfo, api, put_text, text};
use crate::links::{FarEnd, links_of};

const SPECIFICATION: &str = "VRAM_SIMCUDA_GPUS";
const VERSION: &str = "simulated";
const CUDA_VERSION: c_int = 12_090;

static CONFIG: OnceLock<Option<SimConfig>> = OnceLock::new();
static STARTED: AtomicBool = AtomicBool::new(false);

/// Reads the specification; without a good one there is no driver to manage.
fn start() -> Done {
    let config = CONFIG.get_or_init(|| SimConfig::parse(&std::env::var(SPECIFICATION).ok()?).ok());
    if config.is_none() {
        return Err(Failure::DriverNotLoaded);
    }
    STARTED.store(true, Ordering::Relaxed);
    Ok(())
}

fn config() -> Result<&'static SimConfig, Failure> {
    let config = CONFIG.get().and_then(Option::as_ref).filter(|_| STARTED.load(Ordering::Relaxed));
    config.ok_or(Failure::Uninitialized)
}

fn device_of(gpu: GpuId) -> Device {
    std::ptr::without_provenance_mut(gpu.index() + 1)
}

fn gpu_of(device: Device) -> Result<(GpuId, &'static SimGpuConfig), Failure> {
    let config = config()?;
    let index = device.addr().checked_sub(1).ok_or(Failure::InvalidArgument)?;
    let gpu = config.gpus.get(index).ok_or(Failure::InvalidArgument)?;
    Ok((GpuId(u16::try_from(index).map_err(|_too_large| Failure::InvalidArgument)?), gpu))
}

fn find(wanted: impl Fn(&SimGpuConfig) -> bool) -> Result<Device, Failure> {
    let index = config()?.gpus.iter().position(wanted).ok_or(Failure::NotFound)?;
    Ok(device_of(GpuId(u16::try_from(index).map_err(|_too_large| Failure::NotFound)?)))
}

fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// A PCI address in any of the ways it is written: 4 or 8 digits of domain, either case.
fn parse_pci(text: &str) -> Option<PciAddress> {
    let mut parts = text.split([':', '.']);
    let mut number = || u32::from_str_radix(parts.next()?, 16).ok();
    let (domain, bus, device) = (number()?, number()?, number()?);
    Some(PciAddress { domain, bus: u8::try_from(bus).ok()?, device: u8::try_from(device).ok()? })
}

fn far_end(device: Device, link: c_uint) -> Result<FarEnd, Failure> {
    let (gpu, _) = gpu_of(device)?;
    let links = links_of(&config()?.topology, gpu);
    let index = usize::try_from(link).map_err(|_too_large| Failure::InvalidArgument)?;
    // Where a GPU has links at all, one it could have is inactive; beyond, and without any, it is an error.
    match links.get(index) {
        Some(far_end) => Ok(*far_end),
        None if links.is_empty() => Err(Failure::NotSupported),
        None => Err(Failure::InvalidArgument),
    }
}

api! {
    fn nvmlInit_v2() {
        start()
    }

    fn nvmlInitWithFlags(_flags: c_uint) {
        start()
    }

    fn nvmlShutdown() {
        config()?;
        STARTED.store(false, Ordering::Relaxed);
        Ok(())
    }

    fn nvmlSystemGetDriverVersion(buffer: *mut c_char, len: c_uint) {
        config()?;
        put_text(buffer, len, VERSION)
    }

    fn nvmlSystemGetNVMLVersion(buffer: *mut c_char, len: c_uint) {
        config()?;
        put_text(buffer, len, VERSION)
    }

    fn nvmlSystemGetCudaDriverVersion(version: Out<c_int>) {
        version.put(CUDA_VERSION)
    }

    fn nvmlSystemGetCudaDriverVersion_v2(version: Out<c_int>) {
        version.put(CUDA_VERSION)
    }

    fn nvmlDeviceGetCount_v2(count: Out<c_uint>) {
        count.put(c_uint::try_from(config()?.gpus.len()).unwrap_or(c_uint::MAX))
    }

    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: Out<Device>) {
        let gpu = u16::try_from(index).ok().map(GpuId).filter(|gpu| gpu.index() < config().map_or(0, |c| c.gpus.len()));
        config()?;
        device.put(device_of(gpu.ok_or(Failure::InvalidArgument)?))
    }

    fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: Out<Device>) {
        let wanted = text(uuid)?;
        device.put(find(|gpu| uuid_text(&gpu.uuid) == wanted)?)
    }

    fn nvmlDeviceGetHandleByPciBusId_v2(bus_id: *const c_char, device: Out<Device>) {
        let wanted = parse_pci(&text(bus_id)?).ok_or(Failure::InvalidArgument)?;
        device.put(find(|gpu| gpu.pci == wanted)?)
    }

    fn nvmlDeviceGetIndex(device: Device, index: Out<c_uint>) {
        index.put(c_uint::from(gpu_of(device)?.0.0))
    }

    fn nvmlDeviceGetName(device: Device, buffer: *mut c_char, len: c_uint) {
        put_text(buffer, len, &gpu_of(device)?.1.name)
    }

    fn nvmlDeviceGetUUID(device: Device, buffer: *mut c_char, len: c_uint) {
        put_text(buffer, len, &uuid_text(&gpu_of(device)?.1.uuid))
    }

    fn nvmlDeviceGetPciInfo_v3(device: Device, info: Out<PciInfo>) {
        info.put(PciInfo::of(gpu_of(device)?.1.pci))
    }

    fn nvmlDeviceGetMemoryInfo_v2(device: Device, memory: Out<Memory>) {
        let total: c_ulonglong = gpu_of(device)?.1.total_bytes;
        let version = c_uint::try_from(size_of::<Memory>()).unwrap_or(0) | 2 << 24;
        memory.put(Memory { version, total, reserved: 0, free: total, used: 0 })
    }

    fn nvmlDeviceGetNumaNodeId(device: Device, node: Out<c_uint>) {
        node.put(gpu_of(device)?.1.numa_node)
    }

    fn nvmlDeviceGetTopologyCommonAncestor(first: Device, second: Device, level: Out<c_uint>) {
        let (first, second) = (gpu_of(first)?.0, gpu_of(second)?.0);
        level.put(match config()?.topology.link(first, second) {
            Link::Same => 0,
            Link::Pix => 10,
            Link::Pxb => 20,
            Link::Phb => 30,
            // NVLink says nothing about PCI: the least that can be.
            Link::Node | Link::NvLink(_) => 40,
            Link::Sys => 50,
        })
    }

    fn nvmlDeviceGetP2PStatus(first: Device, second: Device, capability: c_uint, status: Out<c_uint>) {
        const OK: c_uint = 0;
        const NOT_SUPPORTED: c_uint = 5;
        let (first, second) = (gpu_of(first)?.0, gpu_of(second)?.0);
        if first == second {
            return Err(Failure::InvalidArgument);
        }
        let config = config()?;
        let reachable = config.can_access_peer(first, second);
        let by_nvlink = matches!(config.topology.link(first, second), Link::NvLink(_));
        // READ, WRITE, NVLINK, ATOMICS, PCI
        let yes = match capability {
            0 | 1 => reachable,
            2 => by_nvlink,
            3 => reachable && by_nvlink,
            4 => reachable && !by_nvlink,
            _ => return Err(Failure::InvalidArgument),
        };
        status.put(if yes { OK } else { NOT_SUPPORTED })
    }

    fn nvmlDeviceGetNvLinkState(device: Device, link: c_uint, active: Out<c_uint>) {
        far_end(device, link)?;
        active.put(1)
    }

    fn nvmlDeviceGetNvLinkVersion(device: Device, link: c_uint, version: Out<c_uint>) {
        far_end(device, link)?;
        version.put(4)
    }

    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(device: Device, link: c_uint, info: Out<PciInfo>) {
        info.put(match far_end(device, link)? {
            FarEnd::Gpu(gpu) => PciInfo::of(gpu_of(device_of(gpu))?.1.pci),
            FarEnd::Switch => PciInfo::of(PciAddress { domain: 0, bus: 0xf0, device: 0 }),
        })
    }

    fn nvmlDeviceGetNvLinkRemoteDeviceType(device: Device, link: c_uint, kind: Out<c_uint>) {
        kind.put(match far_end(device, link)? {
            FarEnd::Gpu(_) => 0,
            FarEnd::Switch => 2,
        })
    }
}

/// Not a function of devices: what a result code means.
#[allow(non_snake_case, reason = "the API's name")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlErrorString(code: u32) -> *const c_char {
    match code {
        0 => c"The operation was successful",
        1 => c"Uninitialized",
        2 => c"Invalid argument",
        3 => c"Not supported",
        6 => c"Not found",
        7 => c"Insufficient size",
        9 => c"Driver not loaded",
        _ => c"Unknown error",
    }
    .as_ptr()
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use super::*;

    #[test]
    fn functions_before_init_say_so_and_after_it_describe_the_gpus() {
        let mut count = 0;
        assert_eq!(nvmlDeviceGetCount_v2(Out::to(&mut count)), Failure::Uninitialized as u32);
        // SAFETY: the only test of this process that touches the environment, before anything else reads it.
        unsafe { std::env::set_var(SPECIFICATION, "2x64MiB,links=phb") };
        assert_eq!(nvmlInit_v2(), 0);
        assert_eq!(nvmlDeviceGetCount_v2(Out::to(&mut count)), 0);
        assert_eq!(count, 2);
        let mut devices: [Device; 2] = [null_mut(); 2];
        for (index, device) in devices.iter_mut().enumerate() {
            assert_eq!(nvmlDeviceGetHandleByIndex_v2(index as c_uint, Out::to(device)), 0);
        }
        let mut level = 0;
        assert_eq!(nvmlDeviceGetTopologyCommonAncestor(devices[0], devices[1], Out::to(&mut level)), 0);
        assert_eq!(level, 30);
        let mut uuid = [0u8; 96];
        assert_eq!(nvmlDeviceGetUUID(devices[1], uuid.as_mut_ptr().cast(), 96), 0);
        let mut found: Device = null_mut();
        assert_eq!(nvmlDeviceGetHandleByUUID(uuid.as_ptr().cast(), Out::to(&mut found)), 0);
        assert_eq!(found, devices[1]);
        for spelling in [c"0000:10:00.0", c"00000000:10:00.0"] {
            assert_eq!(nvmlDeviceGetHandleByPciBusId_v2(spelling.as_ptr(), Out::to(&mut found)), 0);
            assert_eq!(found, devices[0]);
        }
        let not_supported = Failure::NotSupported as u32;
        assert_eq!(nvmlDeviceGetNvLinkState(devices[0], 0, Out::to(&mut 0)), not_supported);
        assert_eq!(nvmlDeviceGetName(null_mut(), null_mut(), 0), Failure::InvalidArgument as u32);
    }
}
