//! How the GPUs reach each other: from NVML, or from the tree of PCI buses where NVML is missing.

use nvml_wrapper::enum_wrappers::device::{P2pCapabilitiesIndex, P2pStatus, TopologyLevel};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use vram_gpu::{DeviceInfo, Link, Topology};

use crate::sysfs;

/// Links a GPU can have; those beyond what it has answer with an error.
const MAX_LINKS: u32 = 18;

/// The topology, and in words where it is from.
pub(crate) fn read(devices: &[DeviceInfo]) -> (Topology, &'static str) {
    match from_nvml(devices) {
        Ok(topology) => (topology, "topology from NVML"),
        Err(error) => {
            let error: &dyn std::error::Error = &error;
            tracing::warn!(error, "NVML cannot be used: NVLinks stay unknown, the topology is PCI's alone");
            (from_sysfs(devices), "topology from PCI")
        }
    }
}

fn from_nvml(devices: &[DeviceInfo]) -> Result<Topology, NvmlError> {
    let nvml = Nvml::init()?;
    // NVML shows all GPUs of the host, also those this process does not see.
    let gpus: Vec<String> =
        (0..nvml.device_count()?).filter_map(|index| bus_id(&nvml.device_by_index(index).ok()?)).collect();
    let mut known = Vec::with_capacity(devices.len());
    for device in devices {
        let found = nvml.device_by_uuid(uuid_text(&device.uuid))?;
        let links = Links::of(&found, &gpus);
        known.push((found, links));
    }
    let mut failure = None;
    let topology = Topology::from_fn(devices.len(), |a, b| {
        let (Some(first), Some(second)) = (known.get(a.index()), known.get(b.index())) else {
            return Link::Sys;
        };
        nvlink(first, second).unwrap_or_else(|| {
            pci_link(&nvml, &first.0, &second.0).unwrap_or_else(|error| {
                failure.get_or_insert(error);
                Link::Sys
            })
        })
    });
    failure.map_or(Ok(topology), Err)
}

fn pci_link(nvml: &Nvml, a: &Device<'_>, b: &Device<'_>) -> Result<Link, NvmlError> {
    // The call takes the other device for good, so it gets one of its own.
    let other = nvml.device_by_uuid(b.uuid()?)?;
    Ok(match a.topology_common_ancestor(other)? {
        // Two chips of one board are as near as what one bridge joins.
        TopologyLevel::Internal | TopologyLevel::Single => Link::Pix,
        TopologyLevel::Multiple => Link::Pxb,
        TopologyLevel::HostBridge => Link::Phb,
        TopologyLevel::Node => Link::Node,
        TopologyLevel::System => Link::Sys,
    })
}

/// Where a GPU's active NVLinks go.
struct Links {
    /// Bus ids of GPUs, one per link.
    gpus: Vec<String>,
    /// Links to what is no GPU: a switch.
    switches: usize,
}

impl Links {
    fn of(device: &Device<'_>, gpus: &[String]) -> Self {
        let active = (0..MAX_LINKS)
            .map(|number| device.link_wrapper_for(number))
            .filter(|link| link.is_active().unwrap_or(false));
        // Told apart by address: the wrapper's question for the far end's type always answers `Unknown` (0.13.0).
        let far_ends = active.map(|link| link.remote_pci_info().ok().map(|pci| pci.bus_id.to_lowercase()));
        let (gpus, others): (Vec<_>, Vec<_>) =
            far_ends.partition(|far| far.as_ref().is_some_and(|far| gpus.contains(far)));
        Self { gpus: gpus.into_iter().flatten().collect(), switches: others.len() }
    }
}

fn bus_id(device: &Device<'_>) -> Option<String> {
    Some(device.pci_info().ok()?.bus_id.to_lowercase())
}

fn nvlink((a, a_links): &(Device<'_>, Links), (b, b_links): &(Device<'_>, Links)) -> Option<Link> {
    let bus_id = bus_id(b)?;
    let straight = a_links.gpus.iter().filter(|far| **far == bus_id).count();
    let joined = if straight > 0 {
        straight
    } else {
        // Over a switch every link of one reaches every link of the other, if they are in one domain at all.
        let status = a.p2p_status(b, P2pCapabilitiesIndex::NvLink).ok()?;
        if status != P2pStatus::Ok {
            return None;
        }
        a_links.switches.min(b_links.switches)
    };
    u8::try_from(joined).ok().filter(|joined| *joined > 0).map(Link::NvLink)
}

fn from_sysfs(devices: &[DeviceInfo]) -> Topology {
    Topology::from_fn(devices.len(), |a, b| {
        let (Some(first), Some(second)) = (devices.get(a.index()), devices.get(b.index())) else {
            return Link::Sys;
        };
        let same_node = first.numa_node.is_some() && first.numa_node == second.numa_node;
        let places = first.pci.and_then(sysfs::place).zip(second.pci.and_then(sysfs::place));
        places.map_or(Link::Sys, |(first, second)| sysfs::link(&first, &second, same_node))
    })
}

/// An identity as NVML writes it: 8, 4, 4, 4 and 12 digits.
fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = "GPU".to_owned();
    for (index, byte) in uuid.iter().enumerate() {
        if matches!(index, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}
