//! Structures and constants of the C ABI. A test holds them against `vram.h`.

use crate::{Event, Extent, Gpu, Info, Tier, Version, uapi};

/// `VRAM_ALL_STREAMS`
pub(crate) const ALL_STREAMS: u32 = u32::MAX;

/// `struct vram_version`
#[repr(C)]
pub(crate) struct CVersion {
    pub(crate) ioctl_version: u32,
    pub(crate) abi_major: u16,
    pub(crate) abi_minor: u16,
    pub(crate) boot_epoch: u64,
    pub(crate) band_base: u64,
    pub(crate) band_bytes: u64,
    pub(crate) max_transfer_bytes: u64,
    pub(crate) request_queues: u32,
    pub(crate) interrupt_vectors: u32,
}

impl From<Version> for CVersion {
    fn from(version: Version) -> Self {
        Self {
            ioctl_version: version.ioctl_version,
            abi_major: version.abi.0,
            abi_minor: version.abi.1,
            boot_epoch: version.boot_epoch,
            band_base: version.band_base.0,
            band_bytes: version.band_bytes,
            max_transfer_bytes: version.max_transfer_bytes,
            request_queues: version.request_queues,
            interrupt_vectors: version.interrupt_vectors,
        }
    }
}

/// `struct vram_info`
#[repr(C)]
pub(crate) struct CInfo {
    pub(crate) limit_bytes: u64,
    pub(crate) guarantee_bytes: u64,
    pub(crate) allocated_bytes: u64,
    pub(crate) backed_bytes: u64,
    pub(crate) shard_bytes: u64,
    pub(crate) allocations: u32,
    pub(crate) contexts: u32,
    pub(crate) simulated: u32,
    pub(crate) gpu_count: u32,
    pub(crate) slice_name: [u8; 33],
    pub(crate) reserved: [u8; 7],
}

impl From<&Info> for CInfo {
    fn from(info: &Info) -> Self {
        Self {
            limit_bytes: info.limit_bytes,
            guarantee_bytes: info.guarantee_bytes,
            allocated_bytes: info.allocated_bytes,
            backed_bytes: info.backed_bytes,
            shard_bytes: info.shard_bytes,
            allocations: info.allocations,
            contexts: info.contexts,
            simulated: info.simulated.into(),
            gpu_count: count(info.gpus.len()),
            slice_name: c_name(&info.slice_name),
            reserved: [0; 7],
        }
    }
}

/// `struct vram_gpu`
#[repr(C)]
pub(crate) struct CGpu {
    pub(crate) index: u32,
    pub(crate) home: u32,
    pub(crate) slice_bytes: u64,
    pub(crate) total_bytes: u64,
    pub(crate) name: [u8; 33],
    pub(crate) reserved: [u8; 7],
}

impl From<&Gpu> for CGpu {
    fn from(gpu: &Gpu) -> Self {
        Self {
            index: gpu.index,
            home: gpu.home.into(),
            slice_bytes: gpu.slice_bytes,
            total_bytes: gpu.total_bytes,
            name: c_name(&gpu.name),
            reserved: [0; 7],
        }
    }
}

/// `struct vram_placement`
#[repr(C)]
pub(crate) struct CPlacement {
    pub(crate) base: u64,
    pub(crate) length: u64,
    pub(crate) extent_total: u32,
    pub(crate) reserved: u32,
}

/// `struct vram_extent`
#[repr(C)]
pub(crate) struct CExtent {
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) gpu: u32,
    pub(crate) tier: u32,
}

impl From<&Extent> for CExtent {
    fn from(extent: &Extent) -> Self {
        let tier = match extent.tier {
            Tier::Gpu => uapi::TIER_GPU,
            Tier::Host => uapi::TIER_HOST,
            Tier::Compressed => uapi::TIER_COMPRESSED,
            Tier::Disk => uapi::TIER_DISK,
            Tier::Remote => uapi::TIER_REMOTE,
            Tier::Damaged => uapi::TIER_DAMAGED,
            Tier::Lost => uapi::TIER_LOST,
            Tier::Other(number) => number,
        };
        let gpu = extent.gpu.unwrap_or(uapi::GPU_NONE);
        Self { address: extent.address.0, length: extent.len_bytes, gpu, tier }
    }
}

/// `struct vram_event`
#[repr(C)]
pub(crate) struct CEvent {
    pub(crate) kind: u32,
    pub(crate) reserved: u32,
    pub(crate) value: u64,
    pub(crate) extra: u64,
}

impl From<Event> for CEvent {
    fn from(event: Event) -> Self {
        let (kind, value, extra) = event.codes();
        Self { kind, reserved: 0, value, extra }
    }
}

/// A name with a NUL behind it; what does not fit is cut off.
fn c_name(name: &str) -> [u8; 33] {
    let mut bytes = [0; 33];
    for (to, from) in bytes.iter_mut().take(32).zip(name.bytes()) {
        *to = from;
    }
    bytes
}

/// A count as the ABI can say it.
pub(crate) fn count(entries: usize) -> u32 {
    u32::try_from(entries).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;
    use crate::layout::{Expectations, expect_struct};

    #[test]
    fn structures_against_the_c_header_agree() {
        let mut all = Expectations::default();
        expect_struct!(
            all,
            "vram_version",
            CVersion,
            [
                ioctl_version,
                abi_major,
                abi_minor,
                boot_epoch,
                band_base,
                band_bytes,
                max_transfer_bytes,
                request_queues,
                interrupt_vectors
            ]
        );
        expect_struct!(
            all,
            "vram_info",
            CInfo,
            [
                limit_bytes,
                guarantee_bytes,
                allocated_bytes,
                backed_bytes,
                shard_bytes,
                allocations,
                contexts,
                simulated,
                gpu_count,
                slice_name,
                reserved
            ]
        );
        expect_struct!(all, "vram_gpu", CGpu, [index, home, slice_bytes, total_bytes, name, reserved]);
        expect_struct!(all, "vram_placement", CPlacement, [base, length, extent_total, reserved]);
        expect_struct!(all, "vram_extent", CExtent, [address, length, gpu, tier]);
        expect_struct!(all, "vram_event", CEvent, [kind, reserved, value, extra]);
        all.value("VRAM_EVENT_GPU_LOST", uapi::EVENT_GPU_LOST);
        all.value("VRAM_EVENT_DATA_LOST", uapi::EVENT_DATA_LOST);
        all.value("VRAM_EVENT_LIMIT_CHANGED", uapi::EVENT_LIMIT_CHANGED);
        all.value("VRAM_EVENT_MISSED", uapi::EVENT_MISSED);
        all.value("VRAM_ALL_STREAMS", ALL_STREAMS);
        all.value("VRAM_TIER_GPU", uapi::TIER_GPU);
        all.value("VRAM_TIER_HOST", uapi::TIER_HOST);
        all.value("VRAM_TIER_COMPRESSED", uapi::TIER_COMPRESSED);
        all.value("VRAM_TIER_DISK", uapi::TIER_DISK);
        all.value("VRAM_TIER_REMOTE", uapi::TIER_REMOTE);
        all.value("VRAM_TIER_DAMAGED", uapi::TIER_DAMAGED);
        all.value("VRAM_TIER_LOST", uapi::TIER_LOST);
        all.value("VRAM_GPU_NONE", uapi::GPU_NONE);
        all.value("VRAM_ADVICE_PREFETCH", uapi::ADVICE_PREFETCH);
        all.value("VRAM_ADVICE_COLD", uapi::ADVICE_COLD);
        all.value("VRAM_ADVICE_PIN", uapi::ADVICE_PIN);
        all.value("VRAM_ADVICE_UNPIN", uapi::ADVICE_UNPIN);
        all.value("VRAM_ADVICE_PREFER_GPU", uapi::ADVICE_PREFER_GPU);
        all.check("vram.h");
    }
}
