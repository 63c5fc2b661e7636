//! The ABI of `/dev/vramN`, as `include/vram_ioctl.h` states it. A test below holds the two against each other.
//!
//! Structures are in the CPU's own byte order. All padding is explicit, so every bit pattern is a valid value and no
//! uninitialised byte reaches the kernel. Pointers are filled in by `driver` alone.

/// `VRAM_IOCTL_VERSION_NUMBER`
pub(crate) const IOCTL_VERSION: u32 = 1;
/// `VRAM_INFO_SIMULATED`
pub(crate) const INFO_SIMULATED: u32 = 1 << 0;
/// `VRAM_IOCTL_GPU_HOME`
pub(crate) const GPU_HOME: u32 = 1 << 0;
/// `VRAM_TO_DEVICE`
pub(crate) const TO_DEVICE: u32 = 0;
/// `VRAM_FROM_DEVICE`
pub(crate) const FROM_DEVICE: u32 = 1;
/// `VRAM_IOCTL_FENCE_ALL`
pub(crate) const FENCE_ALL: u32 = 1 << 0;
/// `VRAM_IOCTL_TIER_GPU`
pub(crate) const TIER_GPU: u32 = 0;
/// `VRAM_IOCTL_TIER_HOST`
pub(crate) const TIER_HOST: u32 = 1;
/// `VRAM_IOCTL_TIER_COMPRESSED`
pub(crate) const TIER_COMPRESSED: u32 = 2;
/// `VRAM_IOCTL_TIER_DISK`
pub(crate) const TIER_DISK: u32 = 3;
/// `VRAM_IOCTL_TIER_REMOTE`
pub(crate) const TIER_REMOTE: u32 = 4;
/// `VRAM_IOCTL_TIER_DAMAGED`
pub(crate) const TIER_DAMAGED: u32 = 0xffff_fffe;
/// `VRAM_IOCTL_TIER_LOST`
pub(crate) const TIER_LOST: u32 = 0xffff_ffff;
/// `VRAM_IOCTL_GPU_NONE`
pub(crate) const GPU_NONE: u32 = 0xffff_ffff;
/// `VRAM_IOCTL_ADVICE_PREFETCH`
pub(crate) const ADVICE_PREFETCH: u32 = 1;
/// `VRAM_IOCTL_ADVICE_COLD`
pub(crate) const ADVICE_COLD: u32 = 2;
/// `VRAM_IOCTL_ADVICE_PIN`
pub(crate) const ADVICE_PIN: u32 = 3;
/// `VRAM_IOCTL_ADVICE_UNPIN`
pub(crate) const ADVICE_UNPIN: u32 = 4;
/// `VRAM_IOCTL_ADVICE_PREFER_GPU`
pub(crate) const ADVICE_PREFER_GPU: u32 = 5;

/// `VRAM_IOCTL_EVENT_GPU_LOST`
pub(crate) const EVENT_GPU_LOST: u32 = 1;
/// `VRAM_IOCTL_EVENT_DATA_LOST`
pub(crate) const EVENT_DATA_LOST: u32 = 2;
/// `VRAM_IOCTL_EVENT_LIMIT_CHANGED`
pub(crate) const EVENT_LIMIT_CHANGED: u32 = 3;
/// `VRAM_IOCTL_EVENT_MISSED`
pub(crate) const EVENT_MISSED: u32 = 4;

/// `struct vram_ioctl_version`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Version {
    pub(crate) ioctl_version: u32,
    pub(crate) abi_major: u16,
    pub(crate) abi_minor: u16,
    pub(crate) boot_epoch: u64,
    pub(crate) band_base: u64,
    pub(crate) band_length: u64,
    pub(crate) max_transfer_bytes: u64,
    pub(crate) request_queues: u32,
    pub(crate) interrupt_vectors: u32,
    pub(crate) reserved: [u64; 2],
}

/// `struct vram_ioctl_gpu`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gpu {
    pub(crate) index: u32,
    pub(crate) flags: u32,
    pub(crate) slice_bytes: u64,
    pub(crate) total_bytes: u64,
    pub(crate) reserved: u64,
    pub(crate) name: [u8; 32],
}

/// `struct vram_ioctl_info`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Info {
    pub(crate) limit_bytes: u64,
    pub(crate) guarantee_bytes: u64,
    pub(crate) allocated_bytes: u64,
    pub(crate) backed_bytes: u64,
    pub(crate) shard_bytes: u64,
    pub(crate) allocations: u32,
    pub(crate) contexts: u32,
    pub(crate) flags: u32,
    pub(crate) gpu_capacity: u32,
    pub(crate) gpu_count: u32,
    pub(crate) reserved0: u32,
    pub(crate) gpus: u64,
    pub(crate) slice_name: [u8; 32],
    pub(crate) reserved: [u64; 2],
}

/// `struct vram_ioctl_alloc`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Alloc {
    pub(crate) length: u64,
    pub(crate) alignment: u64,
    pub(crate) address: u64,
    pub(crate) reserved: u64,
}

/// `struct vram_ioctl_free`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Free {
    pub(crate) address: u64,
    pub(crate) reserved: u64,
}

/// `struct vram_ioctl_extent`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extent {
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) gpu: u32,
    pub(crate) tier: u32,
}

/// `struct vram_ioctl_query`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Query {
    pub(crate) address: u64,
    pub(crate) base: u64,
    pub(crate) length: u64,
    pub(crate) first_extent: u32,
    pub(crate) extent_capacity: u32,
    pub(crate) extent_count: u32,
    pub(crate) extent_total: u32,
    pub(crate) extents: u64,
    pub(crate) reserved: u64,
}

/// `struct vram_ioctl_advise`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Advise {
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) advice: u32,
    pub(crate) argument: u32,
    pub(crate) reserved: u64,
}

/// `struct vram_ioctl_event`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Event {
    pub(crate) kind: u32,
    pub(crate) reserved0: u32,
    pub(crate) value: u64,
    pub(crate) extra: u64,
    pub(crate) boot_epoch: u64,
}

/// `struct vram_ioctl_transfer`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Transfer {
    pub(crate) device_address: u64,
    pub(crate) user_pointer: u64,
    pub(crate) length: u64,
    pub(crate) moved: u64,
    pub(crate) direction: u32,
    pub(crate) stream: u32,
    pub(crate) reserved: u64,
}

/// `struct vram_ioctl_copy`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Copy {
    pub(crate) destination: u64,
    pub(crate) source: u64,
    pub(crate) length: u64,
    pub(crate) moved: u64,
    pub(crate) stream: u32,
    pub(crate) reserved0: u32,
    pub(crate) reserved: u64,
}

/// `struct vram_ioctl_fill`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fill {
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) moved: u64,
    pub(crate) pattern: u32,
    pub(crate) width: u32,
    pub(crate) stream: u32,
    pub(crate) reserved0: u32,
    pub(crate) reserved: u64,
}

/// `struct vram_ioctl_fence`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fence {
    pub(crate) stream: u32,
    pub(crate) flags: u32,
    pub(crate) reserved: u64,
}

/// The number of a call, by the asm-generic encoding (x86-64, arm64, riscv64): direction, size, base, number.
const fn number(direction: u32, number: u32, size: usize) -> u32 {
    const BASE: u32 = 0xb7;
    assert!(size < 1 << 14, "an ioctl number has 14 bits for the size");
    (direction << 30) | ((size as u32) << 16) | (BASE << 8) | number
}

const WRITE: u32 = 1;
const READ: u32 = 2;

/// `VRAM_IOCTL_VERSION`
pub(crate) const CALL_VERSION: u32 = number(READ, 0x00, size_of::<Version>());
/// `VRAM_IOCTL_INFO`
pub(crate) const CALL_INFO: u32 = number(READ | WRITE, 0x01, size_of::<Info>());
/// `VRAM_IOCTL_ALLOC`
pub(crate) const CALL_ALLOC: u32 = number(READ | WRITE, 0x10, size_of::<Alloc>());
/// `VRAM_IOCTL_FREE`
pub(crate) const CALL_FREE: u32 = number(WRITE, 0x11, size_of::<Free>());
/// `VRAM_IOCTL_QUERY`
pub(crate) const CALL_QUERY: u32 = number(READ | WRITE, 0x12, size_of::<Query>());
/// `VRAM_IOCTL_ADVISE`
pub(crate) const CALL_ADVISE: u32 = number(WRITE, 0x13, size_of::<Advise>());
/// `VRAM_IOCTL_TRANSFER`
pub(crate) const CALL_TRANSFER: u32 = number(READ | WRITE, 0x20, size_of::<Transfer>());
/// `VRAM_IOCTL_COPY`
pub(crate) const CALL_COPY: u32 = number(READ | WRITE, 0x22, size_of::<Copy>());
/// `VRAM_IOCTL_FILL`
pub(crate) const CALL_FILL: u32 = number(READ | WRITE, 0x23, size_of::<Fill>());
/// `VRAM_IOCTL_FENCE`
pub(crate) const CALL_FENCE: u32 = number(WRITE, 0x24, size_of::<Fence>());
/// `VRAM_IOCTL_EVENT`
pub(crate) const CALL_EVENT: u32 = number(READ, 0x30, size_of::<Event>());

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use crate::layout::{Expectations, expect_struct};

    fn expectations() -> Expectations {
        use super::*;
        let mut all = Expectations::default();
        expect_struct!(
            all,
            "vram_ioctl_version",
            Version,
            [
                ioctl_version,
                abi_major,
                abi_minor,
                boot_epoch,
                band_base,
                band_length,
                max_transfer_bytes,
                request_queues,
                interrupt_vectors,
                reserved
            ]
        );
        expect_struct!(all, "vram_ioctl_gpu", Gpu, [index, flags, slice_bytes, total_bytes, reserved, name]);
        expect_struct!(
            all,
            "vram_ioctl_info",
            Info,
            [
                limit_bytes,
                guarantee_bytes,
                allocated_bytes,
                backed_bytes,
                shard_bytes,
                allocations,
                contexts,
                flags,
                gpu_capacity,
                gpu_count,
                reserved0,
                gpus,
                slice_name,
                reserved
            ]
        );
        expect_struct!(all, "vram_ioctl_alloc", Alloc, [length, alignment, address, reserved]);
        expect_struct!(all, "vram_ioctl_free", Free, [address, reserved]);
        expect_struct!(all, "vram_ioctl_extent", Extent, [address, length, gpu, tier]);
        expect_struct!(
            all,
            "vram_ioctl_query",
            Query,
            [
                address,
                base,
                length,
                first_extent,
                extent_capacity,
                extent_count,
                extent_total,
                extents,
                reserved
            ]
        );
        expect_struct!(all, "vram_ioctl_advise", Advise, [address, length, advice, argument, reserved]);
        expect_struct!(
            all,
            "vram_ioctl_transfer",
            Transfer,
            [device_address, user_pointer, length, moved, direction, stream, reserved]
        );
        expect_struct!(
            all,
            "vram_ioctl_copy",
            Copy,
            [destination, source, length, moved, stream, reserved0, reserved]
        );
        expect_struct!(
            all,
            "vram_ioctl_fill",
            Fill,
            [address, length, moved, pattern, width, stream, reserved0, reserved]
        );
        expect_struct!(all, "vram_ioctl_event", Event, [kind, reserved0, value, extra, boot_epoch]);
        expect_struct!(all, "vram_ioctl_fence", Fence, [stream, flags, reserved]);
        for (name, value) in [
            ("VRAM_IOCTL_VERSION_NUMBER", IOCTL_VERSION),
            ("VRAM_INFO_SIMULATED", INFO_SIMULATED),
            ("VRAM_IOCTL_GPU_HOME", GPU_HOME),
            ("VRAM_TO_DEVICE", TO_DEVICE),
            ("VRAM_FROM_DEVICE", FROM_DEVICE),
            ("VRAM_IOCTL_FENCE_ALL", FENCE_ALL),
            ("VRAM_IOCTL_TIER_GPU", TIER_GPU),
            ("VRAM_IOCTL_TIER_HOST", TIER_HOST),
            ("VRAM_IOCTL_TIER_COMPRESSED", TIER_COMPRESSED),
            ("VRAM_IOCTL_TIER_DISK", TIER_DISK),
            ("VRAM_IOCTL_TIER_REMOTE", TIER_REMOTE),
            ("VRAM_IOCTL_TIER_DAMAGED", TIER_DAMAGED),
            ("VRAM_IOCTL_TIER_LOST", TIER_LOST),
            ("VRAM_IOCTL_GPU_NONE", GPU_NONE),
            ("VRAM_IOCTL_ADVICE_PREFETCH", ADVICE_PREFETCH),
            ("VRAM_IOCTL_ADVICE_COLD", ADVICE_COLD),
            ("VRAM_IOCTL_ADVICE_PIN", ADVICE_PIN),
            ("VRAM_IOCTL_ADVICE_UNPIN", ADVICE_UNPIN),
            ("VRAM_IOCTL_ADVICE_PREFER_GPU", ADVICE_PREFER_GPU),
            ("VRAM_IOCTL_VERSION", CALL_VERSION),
            ("VRAM_IOCTL_INFO", CALL_INFO),
            ("VRAM_IOCTL_ALLOC", CALL_ALLOC),
            ("VRAM_IOCTL_FREE", CALL_FREE),
            ("VRAM_IOCTL_QUERY", CALL_QUERY),
            ("VRAM_IOCTL_ADVISE", CALL_ADVISE),
            ("VRAM_IOCTL_TRANSFER", CALL_TRANSFER),
            ("VRAM_IOCTL_COPY", CALL_COPY),
            ("VRAM_IOCTL_FILL", CALL_FILL),
            ("VRAM_IOCTL_FENCE", CALL_FENCE),
            ("VRAM_IOCTL_EVENT", CALL_EVENT),
            ("VRAM_IOCTL_EVENT_GPU_LOST", EVENT_GPU_LOST),
            ("VRAM_IOCTL_EVENT_DATA_LOST", EVENT_DATA_LOST),
            ("VRAM_IOCTL_EVENT_LIMIT_CHANGED", EVENT_LIMIT_CHANGED),
            ("VRAM_IOCTL_EVENT_MISSED", EVENT_MISSED),
        ] {
            all.value(name, value);
        }
        all
    }

    #[test]
    fn uapi_against_the_c_header_agrees() {
        expectations().check("vram_ioctl.h");
    }
}
