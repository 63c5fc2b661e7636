//! What a GPU is.

use std::fmt;

/// Number of a GPU in its backend, from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuId(pub u16);

impl GpuId {
    /// The number as an index.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for GpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gpu{}", self.0)
    }
}

/// Where a device sits on PCI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PciAddress {
    /// Domain.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device.
    pub device: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.0", self.domain, self.bus, self.device)
    }
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Number in the backend.
    pub id: GpuId,
    /// Product name.
    pub name: String,
    /// Stable identity, as the vendor gives it.
    pub uuid: [u8; 16],
    /// Bytes of memory on the device.
    pub total_bytes: u64,
    /// Where it sits, if known.
    pub pci: Option<PciAddress>,
    /// NUMA node of the host it hangs on, if known.
    pub numa_node: Option<u32>,
}
