/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libvram: GPU memory of the pool, for a program in a virtual machine.
 *
 * Link with -lvram. Lengths and alignments are bytes, addresses are device
 * addresses: never pointers, the CPU cannot reach them.
 *
 * A handle is one context. Its memory is freed when vram_close() is called or
 * the process ends. A handle may be used by several threads at once; calls on
 * different streams run at the same time, calls on one stream in order. Each
 * call blocks until its bytes are where they should be.
 *
 * Functions return 0, or a negative errno:
 *   -EFAULT           a pointer is NULL or not memory of this process
 *   -EINVAL           a length, alignment, width, pattern, stream, advice or
 *                     GPU is not valid, or a copy overlaps itself
 *   -ENXIO            a range is not inside one live allocation of this handle
 *   -ENOMEM           the pool has no memory left for this slice
 *   -EDQUOT           the slice's limit, or for VRAM_ADVICE_PIN its guarantee,
 *                     does not allow it
 *   -EMFILE           too many contexts or allocations are alive
 *   -EIO              the transfer failed on the GPU
 *   -EBADMSG          the bytes were stored off the GPUs and are damaged there:
 *                     free the allocation and load its data again
 *   -EOPNOTSUPP       the device is too old for the call
 *   -ENODEV           the device, or the GPU that held the bytes, is gone
 *   -ETIMEDOUT        the device did not answer in time
 *   -ESTALE           the host's daemon was started anew and the memory of this
 *                     handle is gone: close it and open the device again
 *   -EINTR            a signal arrived
 *   -EAGAIN           there was no event in time, or the placement changes faster than it can be read
 *   -ENOTTY           the file is no vram device
 *   -EPROTONOSUPPORT  module and library are of releases that do not fit
 *   -ENOTRECOVERABLE  a defect of the library was contained; close the handle
 * vram_open() also returns what open(2) does, such as -ENOENT and -EACCES.
 *
 * Outputs are written on success only, except `moved`.
 */
#ifndef _VRAM_H
#define _VRAM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* For vram_fence(): every stream of the handle. */
#define VRAM_ALL_STREAMS	0xffffffffu

/* vram_extent.tier */
#define VRAM_TIER_GPU		0u		/* on that GPU */
#define VRAM_TIER_HOST		1u		/* in host memory */
#define VRAM_TIER_COMPRESSED	2u		/* there, compressed */
#define VRAM_TIER_DISK		3u		/* on a disk of the host */
#define VRAM_TIER_REMOTE	4u		/* on another machine */
#define VRAM_TIER_DAMAGED	0xfffffffeu	/* damaged there, and lost */
#define VRAM_TIER_LOST		0xffffffffu	/* lost with that GPU */

/* vram_extent.gpu where the tier is not VRAM_TIER_GPU or VRAM_TIER_LOST */
#define VRAM_GPU_NONE		0xffffffffu

/* For vram_advise() */
#define VRAM_ADVICE_PREFETCH	1u		/* needed soon */
#define VRAM_ADVICE_COLD	2u		/* not needed soon */
#define VRAM_ADVICE_PIN		3u		/* to stay on GPUs */
#define VRAM_ADVICE_UNPIN	4u		/* may leave them again */
#define VRAM_ADVICE_PREFER_GPU	5u		/* best on GPU `argument` */

/* An open device. */
struct vram_device;

struct vram_version {
	uint32_t ioctl_version;		/* of the kernel module's ABI */
	uint16_t abi_major;		/* of the virtio-vram ABI in use */
	uint16_t abi_minor;
	uint64_t boot_epoch;		/* which start of the host's daemon */
	uint64_t band_base;		/* first device address of the slice */
	uint64_t band_bytes;
	uint64_t max_transfer_bytes;	/* what one request carries */
	uint32_t request_queues;
	uint32_t interrupt_vectors;	/* 0: INTx or a shared one */
};

/* The slice of this virtual machine: all its processes together. */
struct vram_info {
	uint64_t limit_bytes;
	uint64_t guarantee_bytes;
	uint64_t allocated_bytes;
	uint64_t backed_bytes;		/* of shards behind the allocations */
	uint64_t shard_bytes;		/* of one shard */
	uint32_t allocations;		/* alive */
	uint32_t contexts;		/* open */
	uint32_t simulated;		/* 1: the GPUs are simulated */
	uint32_t gpu_count;		/* there are */
	char slice_name[33];		/* NUL-terminated */
	uint8_t reserved[7];
};

struct vram_gpu {
	uint32_t index;
	uint32_t home;			/* 1: memory is placed here first */
	uint64_t slice_bytes;		/* of this slice on it */
	uint64_t total_bytes;		/* it has */
	char name[33];			/* NUL-terminated */
	uint8_t reserved[7];
};

struct vram_placement {
	uint64_t base;			/* first address of the allocation */
	uint64_t length;		/* as asked for */
	uint32_t extent_total;		/* extents there are */
	uint32_t reserved;
};

struct vram_extent {
	uint64_t address;
	uint64_t length;
	uint32_t gpu;			/* vram_gpu.index, or VRAM_GPU_NONE */
	uint32_t tier;			/* VRAM_TIER_* */
};

/* vram_event.kind */
#define VRAM_EVENT_GPU_LOST	1u		/* value: vram_gpu.index */
#define VRAM_EVENT_DATA_LOST	2u		/* value: address, extra: bytes */
#define VRAM_EVENT_LIMIT_CHANGED 3u		/* value: limit, extra: guarantee */
#define VRAM_EVENT_MISSED	4u		/* value: how many others */

/* Something that happened without being asked for. */
struct vram_event {
	uint32_t kind;			/* VRAM_EVENT_*; ignore others */
	uint32_t reserved;
	uint64_t value;
	uint64_t extra;
};

/*
 * Opens a device. `path` may be NULL: then it is what the environment variable
 * VRAM_DEVICE names, or else /dev/vram0.
 */
int vram_open(const char *path, struct vram_device **device);

/*
 * Closes a handle and frees its memory. No call on it may be under way or come
 * after. NULL does nothing.
 */
int vram_close(struct vram_device *device);

/*
 * The file descriptor of a handle, or a negative errno. It stays the handle's:
 * pass it on or duplicate it, but do not close it.
 */
int vram_fd(const struct vram_device *device);

int vram_version(const struct vram_device *device, struct vram_version *version);

/*
 * The state of the slice, and the first `gpu_capacity` of its `gpu_count` GPUs.
 * `gpus` may be NULL if `gpu_capacity` is 0.
 */
int vram_info(const struct vram_device *device, struct vram_info *info,
	      struct vram_gpu *gpus, uint32_t gpu_capacity);

/*
 * Allocates `length` bytes, not 0, which are zero. `alignment` is a power of
 * two up to 1 GiB, or 0 for 256. The address stays valid until vram_free().
 */
int vram_alloc(const struct vram_device *device, uint64_t length,
	       uint64_t alignment, uint64_t *address);

/* Frees an allocation by the address vram_alloc() returned. */
int vram_free(const struct vram_device *device, uint64_t address);

/*
 * Where the allocation around `address` lies, and the first `extent_capacity`
 * of its `extent_total` extents. `extents` may be NULL if that is 0.
 */
int vram_query(const struct vram_device *device, uint64_t address,
	       struct vram_placement *placement, struct vram_extent *extents,
	       uint32_t extent_capacity);

/*
 * Tells the host what is known about the use of a range, which lies in one
 * allocation. `advice` is VRAM_ADVICE_*; `argument` is the number of a GPU for
 * VRAM_ADVICE_PREFER_GPU, else 0. Success says that the host has heard it, not
 * that anything was moved: that happens beside, or not at all. It goes by whole
 * shards, so what lies in the same shard has a part in it.
 */
int vram_advise(const struct vram_device *device, uint64_t address,
		uint64_t length, uint32_t advice, uint32_t argument);

/*
 * Transfers. `stream` is 0 to 1023. `moved` may be NULL; else it says, also on
 * an error of the transfer, how many bytes surely are where they should be. A
 * length of 0 does nothing. No other thread uses the buffer during the call.
 */

/* Moves `length` bytes from `source` to device memory. */
int vram_write(const struct vram_device *device, uint32_t stream,
	       uint64_t address, const void *source, size_t length,
	       uint64_t *moved);

/* Moves `length` bytes of device memory to `destination`. */
int vram_read(const struct vram_device *device, uint32_t stream,
	      uint64_t address, void *destination, size_t length,
	      uint64_t *moved);

/* Moves bytes within device memory. The ranges do not overlap. */
int vram_copy(const struct vram_device *device, uint32_t stream,
	      uint64_t destination, uint64_t source, uint64_t length,
	      uint64_t *moved);

/*
 * Fills device memory with `pattern`, which fits in `width` bytes: 1, 2 or 4.
 * `address` and `length` are multiples of `width`.
 */
int vram_fill(const struct vram_device *device, uint32_t stream,
	      uint64_t address, uint64_t length, uint32_t pattern,
	      uint32_t width, uint64_t *moved);

/*
 * Waits for every transfer on `stream` that was asked for before; with
 * VRAM_ALL_STREAMS, on all streams of the handle.
 */
int vram_fence(const struct vram_device *device, uint32_t stream);

/*
 * The next thing that happened since the handle was opened; waits for it at
 * most `timeout_ms`, without end if that is negative, and returns -EAGAIN if
 * nothing happened. Every program of the virtual machine is told everything.
 * For a loop of one's own: the descriptor of vram_fd() polls readable when
 * there is an event.
 */
int vram_next_event(const struct vram_device *device, struct vram_event *event,
		    int timeout_ms);

/*
 * A sentence for an error, of either sign. Never NULL; do not free it.
 */
const char *vram_strerror(int error);

#ifdef __cplusplus
}
#endif

#endif /* _VRAM_H */
