/* SPDX-License-Identifier: (GPL-2.0-only WITH Linux-syscall-note) OR Apache-2.0 */
/*
 * /dev/vramN: the ABI between the virtio_vram kernel module and user space.
 *
 * One open file is one context: its memory is freed when the last descriptor
 * of it is closed. All integers are in the CPU's own byte order; the layout is
 * the same for 32- and 64-bit callers. Reserved fields must be zero.
 *
 * Errors, the same for every call:
 *   EFAULT     a pointer is bad
 *   EINVAL     a reserved field is not zero, or a length, alignment, width,
 *              direction, stream, advice or GPU is not valid, or a COPY
 *              overlaps itself
 *   ENXIO      a device address does not lie in a live allocation of this file
 *   ENOMEM     the pool has no memory left for this slice, or the guest's
 *              kernel has none
 *   EDQUOT     the slice's limit, or for a PIN its guarantee, does not allow it
 *   EMFILE     too many contexts or allocations
 *   EIO        the transfer failed on the GPU, `moved` says how far it got; or
 *              the device broke the protocol
 *   EBADMSG    the bytes were stored off the GPUs and are damaged there, `moved`
 *              says how far it got: they are lost, and never given out wrong
 *   EOPNOTSUPP the device is of an ABI that does not have the call
 *   ENODEV     the device or the GPU that held the bytes is gone
 *   ETIMEDOUT  the device did not answer in time
 *   ESTALE     the session was lost (the daemon was started anew, or its
 *              connection broke) and the memory of this file is gone
 *   EAGAIN     there is no event now
 *   EINTR      a fatal signal arrived
 *   ENOTTY     no such call
 */
#ifndef _VRAM_IOCTL_H
#define _VRAM_IOCTL_H

#include <linux/types.h>
#include <linux/ioctl.h>

#define VRAM_IOCTL_VERSION_NUMBER	1

/* Flags of vram_ioctl_info */
#define VRAM_INFO_SIMULATED		(1u << 0)
/* Flags of vram_ioctl_gpu */
#define VRAM_IOCTL_GPU_HOME		(1u << 0)
/* Directions of vram_ioctl_transfer */
#define VRAM_TO_DEVICE			0
#define VRAM_FROM_DEVICE		1
/* Flags of vram_ioctl_fence */
#define VRAM_IOCTL_FENCE_ALL		(1u << 0)
/* vram_ioctl_extent.tier */
#define VRAM_IOCTL_TIER_GPU		0
#define VRAM_IOCTL_TIER_HOST		1
#define VRAM_IOCTL_TIER_COMPRESSED	2
#define VRAM_IOCTL_TIER_DISK		3
#define VRAM_IOCTL_TIER_REMOTE		4
#define VRAM_IOCTL_TIER_DAMAGED		0xfffffffeu
#define VRAM_IOCTL_TIER_LOST		0xffffffffu
/* vram_ioctl_extent.gpu of bytes in a tier, or damaged there */
#define VRAM_IOCTL_GPU_NONE		0xffffffffu
/* vram_ioctl_advise.advice */
#define VRAM_IOCTL_ADVICE_PREFETCH	1	/* needed soon */
#define VRAM_IOCTL_ADVICE_COLD		2	/* not needed soon */
#define VRAM_IOCTL_ADVICE_PIN		3	/* to stay on GPUs */
#define VRAM_IOCTL_ADVICE_UNPIN		4	/* may leave them again */
#define VRAM_IOCTL_ADVICE_PREFER_GPU	5	/* best on GPU `argument` */

/* vram_ioctl_event.kind */
#define VRAM_IOCTL_EVENT_GPU_LOST	1	/* value: the GPU */
#define VRAM_IOCTL_EVENT_DATA_LOST	2	/* value: address, extra: bytes */
#define VRAM_IOCTL_EVENT_LIMIT_CHANGED	3	/* value: limit, extra: guarantee */
#define VRAM_IOCTL_EVENT_MISSED		4	/* value: how many others */

struct vram_ioctl_version {
	__u32 ioctl_version;		/* out: VRAM_IOCTL_VERSION_NUMBER */
	__u16 abi_major;		/* out: virtio-vram ABI in use */
	__u16 abi_minor;		/* out */
	__u64 boot_epoch;		/* out */
	__u64 band_base;		/* out: first device address of the slice */
	__u64 band_length;		/* out: bytes */
	__u64 max_transfer_bytes;	/* out: bytes one request carries */
	__u32 request_queues;		/* out: request queues in use */
	__u32 interrupt_vectors;	/* out: 0 = INTx or shared, else one per queue */
	__u64 reserved[2];
};

struct vram_ioctl_gpu {
	__u32 index;
	__u32 flags;
	__u64 slice_bytes;
	__u64 total_bytes;
	__u64 reserved;
	__u8 name[32];
};

struct vram_ioctl_info {
	__u64 limit_bytes;		/* out */
	__u64 guarantee_bytes;		/* out */
	__u64 allocated_bytes;		/* out */
	__u64 backed_bytes;		/* out */
	__u64 shard_bytes;		/* out */
	__u32 allocations;		/* out */
	__u32 contexts;			/* out */
	__u32 flags;			/* out: VRAM_INFO_* */
	__u32 gpu_capacity;		/* in: entries at `gpus` */
	__u32 gpu_count;		/* out: entries there are */
	__u32 reserved0;
	__u64 gpus;			/* in: pointer to struct vram_ioctl_gpu */
	__u8 slice_name[32];		/* out */
	__u64 reserved[2];
};

struct vram_ioctl_alloc {
	__u64 length;			/* in: bytes */
	__u64 alignment;		/* in: power of two, 0 = default */
	__u64 address;			/* out */
	__u64 reserved;
};

struct vram_ioctl_free {
	__u64 address;			/* in: as ALLOC returned it */
	__u64 reserved;
};

struct vram_ioctl_extent {
	__u64 address;
	__u64 length;
	__u32 gpu;
	__u32 tier;
};

struct vram_ioctl_query {
	__u64 address;			/* in: any address in the allocation */
	__u64 base;			/* out */
	__u64 length;			/* out */
	__u32 first_extent;		/* in: extents to skip */
	__u32 extent_capacity;		/* in: entries at `extents` */
	__u32 extent_count;		/* out: entries written */
	__u32 extent_total;		/* out: entries there are */
	__u64 extents;			/* in: pointer to struct vram_ioctl_extent */
	__u64 reserved;
};

struct vram_ioctl_advise {
	__u64 address;			/* in */
	__u64 length;			/* in: bytes, in one allocation */
	__u32 advice;			/* in: VRAM_IOCTL_ADVICE_* */
	__u32 argument;			/* in: of PREFER_GPU, else 0 */
	__u64 reserved;
};

/*
 * Something that happened without being asked for; unknown kinds are to be
 * ignored. A file hears of what happens after it was opened. Each open file
 * has a place of its own among the last 64 events: who falls behind is told
 * once how many it missed.
 */
struct vram_ioctl_event {
	__u32 kind;			/* out: VRAM_IOCTL_EVENT_* */
	__u32 reserved0;
	__u64 value;			/* out: by kind */
	__u64 extra;			/* out: by kind, else 0 */
	__u64 boot_epoch;		/* out: when the device told it */
};

struct vram_ioctl_transfer {
	__u64 device_address;		/* in */
	__u64 user_pointer;		/* in */
	__u64 length;			/* in: bytes, any number */
	__u64 moved;			/* out: bytes surely moved, also on error */
	__u32 direction;		/* in: VRAM_TO_DEVICE, VRAM_FROM_DEVICE */
	__u32 stream;			/* in */
	__u64 reserved;
};

struct vram_ioctl_copy {
	__u64 destination;		/* in */
	__u64 source;			/* in */
	__u64 length;			/* in: bytes */
	__u64 moved;			/* out */
	__u32 stream;			/* in */
	__u32 reserved0;
	__u64 reserved;
};

struct vram_ioctl_fill {
	__u64 address;			/* in */
	__u64 length;			/* in: bytes */
	__u64 moved;			/* out */
	__u32 pattern;			/* in */
	__u32 width;			/* in: 1, 2, 4 */
	__u32 stream;			/* in */
	__u32 reserved0;
	__u64 reserved;
};

struct vram_ioctl_fence {
	__u32 stream;			/* in */
	__u32 flags;			/* in: VRAM_IOCTL_FENCE_ALL */
	__u64 reserved;
};

#define VRAM_IOCTL_BASE		0xb7

/*
 * EVENT never waits: EAGAIN says that there is none. poll() tells POLLIN when
 * there is one, and POLLERR when a call on the file would fail for good.
 */

#define VRAM_IOCTL_VERSION	_IOR(VRAM_IOCTL_BASE, 0x00, struct vram_ioctl_version)
#define VRAM_IOCTL_INFO		_IOWR(VRAM_IOCTL_BASE, 0x01, struct vram_ioctl_info)
#define VRAM_IOCTL_ALLOC	_IOWR(VRAM_IOCTL_BASE, 0x10, struct vram_ioctl_alloc)
#define VRAM_IOCTL_FREE		_IOW(VRAM_IOCTL_BASE, 0x11, struct vram_ioctl_free)
#define VRAM_IOCTL_QUERY	_IOWR(VRAM_IOCTL_BASE, 0x12, struct vram_ioctl_query)
#define VRAM_IOCTL_ADVISE	_IOW(VRAM_IOCTL_BASE, 0x13, struct vram_ioctl_advise)
#define VRAM_IOCTL_TRANSFER	_IOWR(VRAM_IOCTL_BASE, 0x20, struct vram_ioctl_transfer)
#define VRAM_IOCTL_COPY		_IOWR(VRAM_IOCTL_BASE, 0x22, struct vram_ioctl_copy)
#define VRAM_IOCTL_FILL		_IOWR(VRAM_IOCTL_BASE, 0x23, struct vram_ioctl_fill)
#define VRAM_IOCTL_FENCE	_IOW(VRAM_IOCTL_BASE, 0x24, struct vram_ioctl_fence)
#define VRAM_IOCTL_EVENT	_IOR(VRAM_IOCTL_BASE, 0x30, struct vram_ioctl_event)

#endif /* _VRAM_IOCTL_H */
