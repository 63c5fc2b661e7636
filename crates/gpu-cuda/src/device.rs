//! What the GPUs are, asked once at the start.

use std::ffi::{CStr, c_int};

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::sys::{CUcontext, CUdevice, CUuuid};
use vram_gpu::{DeviceInfo, GpuError, GpuId, GpuSet, PciAddress};

use crate::api::{Context, Gpu, Refusal, check, name_of, unavailable};
use crate::symbols::Symbols;
use crate::sysfs;

/// How the names of GPUs begin that are not there.
const SIMULATED_NAME_PREFIX: &str = "vram simulated GPU";

/// Whether a GPU says that it is not there.
pub(crate) fn is_simulated(device: &DeviceInfo) -> bool {
    device.name.starts_with(SIMULATED_NAME_PREFIX)
}

/// All GPUs, each with its primary context retained.
pub(crate) fn open(symbols: &Symbols) -> Result<(Vec<Gpu>, Vec<DeviceInfo>), GpuError> {
    let refused =
        |refusal: Refusal| unavailable(format!("{} says {}", refusal.call, name_of(symbols, refusal.code)));
    let mut count = 0;
    // SAFETY: the pointer is ours for the call.
    let code = unsafe { (symbols.device_get_count)(&raw mut count) };
    check("cuDeviceGetCount", code).map_err(refused)?;
    let count = usize::try_from(count).unwrap_or(0);
    if count == 0 {
        return Err(unavailable("the driver knows no GPU: look at `nvidia-smi`".to_owned()));
    }
    if count > GpuSet::CAPACITY {
        return Err(unavailable(format!("{count} GPUs are more than {}", GpuSet::CAPACITY)));
    }
    let mut opened = Opened { symbols, gpus: Vec::new() };
    let mut infos = Vec::new();
    for number in 0..count {
        let id = GpuId(u16::try_from(number).unwrap_or(u16::MAX));
        let (device, info) = describe(symbols, id).map_err(refused)?;
        for needed in [
            Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
            Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
        ] {
            if attribute(symbols, device, needed).map_err(refused)? != 1 {
                return Err(unavailable(format!("{id} ({}) lacks {needed:?}", info.name)));
            }
        }
        let mut context: CUcontext = std::ptr::null_mut();
        // SAFETY: the pointer is ours for the call, and the device is one the driver gave.
        let code = unsafe { (symbols.primary_ctx_retain)(&raw mut context, device) };
        check("cuDevicePrimaryCtxRetain", code).map_err(refused)?;
        opened.gpus.push(Gpu::new(id, device, Context(context)));
        infos.push(info);
    }
    Ok((std::mem::take(&mut opened.gpus), infos))
}

/// Contexts retained so far; released again if opening fails half way.
struct Opened<'a> {
    symbols: &'a Symbols,
    gpus: Vec<Gpu>,
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        for gpu in &self.gpus {
            // SAFETY: retained by `open`, and nothing uses the context any more.
            unsafe { (self.symbols.primary_ctx_release)(gpu.device) };
        }
    }
}

fn describe(symbols: &Symbols, id: GpuId) -> Result<(CUdevice, DeviceInfo), Refusal> {
    let mut device = 0;
    // SAFETY: the pointer is ours for the call.
    check("cuDeviceGet", unsafe { (symbols.device_get)(&raw mut device, c_int::from(id.0)) })?;
    let mut name = [0; 256];
    // SAFETY: the buffer is ours and as long as said, with a byte to spare for the end.
    check("cuDeviceGetName", unsafe { (symbols.device_get_name)(name.as_mut_ptr(), 255, device) })?;
    // SAFETY: the array ends with a zero byte, whatever the driver wrote before it.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    let mut uuid = CUuuid { bytes: [0; 16] };
    // SAFETY: the pointer is ours for the call.
    check("cuDeviceGetUuid", unsafe { (symbols.device_get_uuid)(&raw mut uuid, device) })?;
    let mut total = 0usize;
    // SAFETY: the pointer is ours for the call.
    check("cuDeviceTotalMem", unsafe { (symbols.device_total_mem)(&raw mut total, device) })?;
    let ask = |name| attribute(symbols, device, name);
    let pci = PciAddress {
        domain: ask(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?.cast_unsigned(),
        bus: u8::try_from(ask(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?).unwrap_or(0),
        device: u8::try_from(ask(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?).unwrap_or(0),
    };
    // Older drivers do not know the attribute; the kernel knows the node all the same.
    let node =
        ask(Attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID).ok().and_then(|node| u32::try_from(node).ok());
    let info = DeviceInfo {
        id,
        name,
        uuid: uuid.bytes.map(|byte| byte.cast_unsigned()),
        total_bytes: total as u64,
        pci: Some(pci),
        numa_node: node.or_else(|| sysfs::numa_node(pci)),
    };
    Ok((device, info))
}

fn attribute(symbols: &Symbols, device: CUdevice, name: Attribute) -> Result<c_int, Refusal> {
    let mut value = 0;
    // SAFETY: the pointer is ours for the call; a number the driver does not know is refused by it.
    let code = unsafe { (symbols.device_get_attribute)(&raw mut value, name as c_int, device) };
    check("cuDeviceGetAttribute", code)?;
    Ok(value)
}

/// For each GPU, whose memory it can be given access to, its own included.
pub(crate) fn peers(symbols: &Symbols, gpus: &[Gpu]) -> Vec<GpuSet> {
    let can = |from: &Gpu, to: &Gpu| {
        let mut can = 0;
        // SAFETY: the pointer is ours for the call, and the devices are ones the driver gave.
        let code = unsafe { (symbols.device_can_access_peer)(&raw mut can, from.device, to.device) };
        from.id == to.id || (code == 0 && can == 1)
    };
    let reached = |from: &Gpu| gpus.iter().filter(|to| can(from, to)).map(|to| to.id).collect::<Vec<_>>();
    gpus.iter().map(|from| GpuSet::of(&reached(from))).collect()
}
