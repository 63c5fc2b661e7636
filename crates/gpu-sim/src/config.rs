//! What the simulated GPUs are.

use std::time::Duration;

use vram_gpu::{FreshMemory, GpuId, Link, PciAddress, Topology};

use crate::faults::Plan;
use crate::pace::Rates;

/// Shard sizes and map addresses are multiples of this: what CUDA has on every GPU so far.
pub const GRANULARITY_BYTES: u64 = 2 << 20;

/// How the name of every simulated GPU starts, so that nobody takes it for a real one.
pub const SIMULATED_NAME_PREFIX: &str = "vram simulated GPU";

/// Which GPUs can be given access to each other's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PeerAccess {
    /// All pairs.
    #[default]
    All,
    /// Pairs joined by NVLink.
    NvLink,
    /// None: every copy between two GPUs has to be a peer copy.
    None,
}

/// One simulated GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimGpuConfig {
    /// Bytes of memory.
    pub total_bytes: u64,
    /// Product name; should start with [`SIMULATED_NAME_PREFIX`].
    pub name: String,
    /// Stable identity.
    pub uuid: [u8; 16],
    /// Where it pretends to sit.
    pub pci: PciAddress,
    /// NUMA node it pretends to hang on.
    pub numa_node: u32,
}

impl SimGpuConfig {
    /// The GPU with this number, in the ordinary way: name, identity and PCI address follow from the number.
    pub fn numbered(index: u16, total_bytes: u64) -> Self {
        let mut uuid = *b"vram-simulated\0\0";
        let number = index.to_be_bytes();
        uuid[14] = number[0];
        uuid[15] = number[1];
        Self {
            total_bytes,
            name: format!("{SIMULATED_NAME_PREFIX} {index}"),
            uuid,
            pci: PciAddress { domain: 0, bus: 0x10u8.saturating_add((index & 0x7f) as u8), device: 0 },
            numa_node: 0,
        }
    }
}

/// What [`SimBackend`](crate::SimBackend) is made of.
///
/// [`SimConfig::uniform`] is what most tests want; [`SimConfig::parse`] reads the text an operator writes.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// The GPUs, by number: 1 to 64.
    pub gpus: Vec<SimGpuConfig>,
    /// How they reach each other; as many GPUs as above.
    pub topology: Topology,
    /// Who can touch whose memory directly.
    pub peer_access: PeerAccess,
    /// What fresh shards hold. `Unspecified` fills them with a pattern that is not zero, to prove scrubbing.
    pub fresh_memory: FreshMemory,
    /// Bytes per second of the links; unlimited by default.
    pub rates: Rates,
    /// Time every copy and fill takes at least.
    pub copy_delay: Duration,
    pub(crate) plan: Plan,
}

impl SimConfig {
    /// Equal GPUs, every pair joined by NVLink, zeroed memory, no limits, no faults.
    pub fn uniform(count: usize, bytes_each: u64) -> Self {
        let numbers = (0..count).map(|index| u16::try_from(index).unwrap_or(u16::MAX));
        Self::of(numbers.map(|index| SimGpuConfig::numbered(index, bytes_each)).collect())
    }

    /// These GPUs, with everything else as in [`Self::uniform`].
    pub fn of(gpus: Vec<SimGpuConfig>) -> Self {
        let topology = Topology::uniform(gpus.len(), Link::NvLink(4));
        Self {
            gpus,
            topology,
            peer_access: PeerAccess::All,
            fresh_memory: FreshMemory::Zeroed,
            rates: Rates::default(),
            copy_delay: Duration::ZERO,
            plan: Plan::default(),
        }
    }

    /// Whether `from` can be given access to memory of `to`.
    pub fn can_access_peer(&self, from: GpuId, to: GpuId) -> bool {
        match self.topology.link(from, to) {
            Link::Same => true,
            Link::NvLink(_) => self.peer_access != PeerAccess::None,
            Link::Pix | Link::Pxb | Link::Phb | Link::Node | Link::Sys => self.peer_access == PeerAccess::All,
        }
    }
}
