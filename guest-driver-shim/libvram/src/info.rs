//! What the device says about itself, the slice and where bytes lie.

use crate::{DeviceAddress, uapi};

/// Versions, and what does not change while the device is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Version of the ioctl ABI.
    pub ioctl_version: u32,
    /// Major and minor version of the virtio-vram ABI in use.
    pub abi: (u16, u16),
    /// Which start of the host's daemon this is.
    pub boot_epoch: u64,
    /// First device address of the slice.
    pub band_base: DeviceAddress,
    /// Bytes of device addresses of the slice.
    pub band_bytes: u64,
    /// Bytes one request carries. Longer transfers are split by the kernel.
    pub max_transfer_bytes: u64,
    /// Request queues in use.
    pub request_queues: u32,
    /// Interrupt vectors in use; 0 for INTx or a shared one.
    pub interrupt_vectors: u32,
}

impl From<uapi::Version> for Version {
    fn from(raw: uapi::Version) -> Self {
        Self {
            ioctl_version: raw.ioctl_version,
            abi: (raw.abi_major, raw.abi_minor),
            boot_epoch: raw.boot_epoch,
            band_base: DeviceAddress(raw.band_base),
            band_bytes: raw.band_length,
            max_transfer_bytes: raw.max_transfer_bytes,
            request_queues: raw.request_queues,
            interrupt_vectors: raw.interrupt_vectors,
        }
    }
}

/// The slice of this virtual machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Its name.
    pub slice_name: String,
    /// Bytes it may have at most.
    pub limit_bytes: u64,
    /// Bytes that are always there for it.
    pub guarantee_bytes: u64,
    /// Bytes allocated, by all processes.
    pub allocated_bytes: u64,
    /// Bytes of shards behind them.
    pub backed_bytes: u64,
    /// Bytes of one shard.
    pub shard_bytes: u64,
    /// Allocations alive, of all processes.
    pub allocations: u32,
    /// Contexts open.
    pub contexts: u32,
    /// The GPUs are simulated: bytes are kept, but nothing here says how fast a GPU is.
    pub simulated: bool,
    /// The GPUs of the pool.
    pub gpus: Vec<Gpu>,
}

/// A GPU of the pool, as this slice sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its number.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Whether the slice's memory is placed here first.
    pub home: bool,
    /// Bytes of the slice on it.
    pub slice_bytes: u64,
    /// Bytes it has.
    pub total_bytes: u64,
}

impl From<&uapi::Gpu> for Gpu {
    fn from(raw: &uapi::Gpu) -> Self {
        Self {
            index: raw.index,
            name: text(&raw.name),
            home: raw.flags & uapi::GPU_HOME != 0,
            slice_bytes: raw.slice_bytes,
            total_bytes: raw.total_bytes,
        }
    }
}

impl Info {
    pub(crate) fn new(raw: &uapi::Info, gpus: &[uapi::Gpu]) -> Self {
        Self {
            slice_name: text(&raw.slice_name),
            limit_bytes: raw.limit_bytes,
            guarantee_bytes: raw.guarantee_bytes,
            allocated_bytes: raw.allocated_bytes,
            backed_bytes: raw.backed_bytes,
            shard_bytes: raw.shard_bytes,
            allocations: raw.allocations,
            contexts: raw.contexts,
            simulated: raw.flags & uapi::INFO_SIMULATED != 0,
            gpus: gpus.iter().map(Gpu::from).collect(),
        }
    }
}

/// Where an allocation lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Its first address.
    pub base: DeviceAddress,
    /// Its bytes, as asked for.
    pub len_bytes: u64,
    /// Its pieces, by address.
    pub extents: Vec<Extent>,
}

/// A piece of an allocation that lies in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its first address.
    pub address: DeviceAddress,
    /// Its bytes.
    pub len_bytes: u64,
    /// The number of the GPU it is on, or was lost with; `None` where the tier has none.
    pub gpu: Option<u32>,
    /// How it lies there.
    pub tier: Tier,
}

/// How bytes are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tier {
    /// In the memory of that GPU.
    Gpu,
    /// In the host's memory.
    Host,
    /// In the host's memory, compressed.
    Compressed,
    /// On a disk of the host.
    Disk,
    /// On another machine.
    Remote,
    /// Damaged in one of these, and lost.
    Damaged,
    /// Lost together with that GPU.
    Lost,
    /// In a way this library does not know, with its number.
    Other(u32),
}

/// What a program knows about its use of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Needed soon: bring it to the GPUs.
    Prefetch,
    /// Not needed soon: it may be the first to leave them.
    Cold,
    /// Keep it on the GPUs, within the slice's guarantee.
    Pin,
    /// It may leave them again.
    Unpin,
    /// Best on the GPU of this number.
    PreferGpu(u32),
}

impl Advice {
    /// Code and argument.
    pub(crate) fn codes(self) -> (u32, u32) {
        match self {
            Self::Prefetch => (uapi::ADVICE_PREFETCH, 0),
            Self::Cold => (uapi::ADVICE_COLD, 0),
            Self::Pin => (uapi::ADVICE_PIN, 0),
            Self::Unpin => (uapi::ADVICE_UNPIN, 0),
            Self::PreferGpu(gpu) => (uapi::ADVICE_PREFER_GPU, gpu),
        }
    }

    /// The advice of a code and its argument, if there is one.
    pub(crate) fn from_codes(advice: u32, argument: u32) -> Option<Self> {
        match (advice, argument) {
            (uapi::ADVICE_PREFETCH, 0) => Some(Self::Prefetch),
            (uapi::ADVICE_COLD, 0) => Some(Self::Cold),
            (uapi::ADVICE_PIN, 0) => Some(Self::Pin),
            (uapi::ADVICE_UNPIN, 0) => Some(Self::Unpin),
            (uapi::ADVICE_PREFER_GPU, gpu) => Some(Self::PreferGpu(gpu)),
            _ => None,
        }
    }
}

impl From<u32> for Tier {
    fn from(raw: u32) -> Self {
        match raw {
            uapi::TIER_GPU => Self::Gpu,
            uapi::TIER_HOST => Self::Host,
            uapi::TIER_COMPRESSED => Self::Compressed,
            uapi::TIER_DISK => Self::Disk,
            uapi::TIER_REMOTE => Self::Remote,
            uapi::TIER_DAMAGED => Self::Damaged,
            uapi::TIER_LOST => Self::Lost,
            other => Self::Other(other),
        }
    }
}

impl From<&uapi::Extent> for Extent {
    fn from(raw: &uapi::Extent) -> Self {
        Self {
            address: DeviceAddress(raw.address),
            len_bytes: raw.length,
            gpu: (raw.gpu != uapi::GPU_NONE).then_some(raw.gpu),
            tier: raw.tier.into(),
        }
    }
}

/// A name padded with zeros. What is not UTF-8 is replaced: the bytes come from outside.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or(bytes)).into_owned()
}
