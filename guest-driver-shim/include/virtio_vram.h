/* SPDX-License-Identifier: (GPL-2.0-only WITH Linux-syscall-note) OR Apache-2.0 */
/*
 * virtio-vram: the ABI between the device and its driver.
 *
 * docs/protocol.md is the contract in words. Everything is little-endian. The
 * Rust crate vram-protocol holds the same tables; `cargo run -p xtask -- abi`
 * compares the two field by field.
 */
#ifndef _VIRTIO_VRAM_H
#define _VIRTIO_VRAM_H

#include <linux/types.h>

#define VRAM_CONFIG_MAGIC		0x4d415256u	/* "VRAM" */
#define VRAM_ABI_MAJOR			1
#define VRAM_ABI_MINOR			1
#define VRAM_VIRTIO_ID_DEFAULT		37
#define VRAM_VIRTIO_ID_ALTERNATE	63

#define VRAM_QUEUE_CONTROL		0
#define VRAM_QUEUE_EVENT		1
#define VRAM_QUEUE_FIRST_REQUEST	2
#define VRAM_QUEUES_MIN			3

#define VRAM_CONFIG_BYTES		64
#define VRAM_REQUEST_BYTES		64
#define VRAM_RESPONSE_BYTES		40
#define VRAM_EVENT_BYTES		32

#define VRAM_MAX_SEGMENTS		1024
#define VRAM_MAX_TRANSFER_BYTES		4194304
#define VRAM_MIN_ALIGNMENT		256
#define VRAM_MAX_ALIGNMENT		1073741824
#define VRAM_MAX_CONTEXTS		1024
#define VRAM_MAX_ALLOCATIONS		1048576
#define VRAM_MAX_STREAMS		1024

#define VRAM_OP_HELLO			0x0001
#define VRAM_OP_INFO			0x0002
#define VRAM_OP_CONTEXT_OPEN		0x0003
#define VRAM_OP_CONTEXT_CLOSE		0x0004
#define VRAM_OP_ALLOC			0x0010
#define VRAM_OP_FREE			0x0011
#define VRAM_OP_QUERY			0x0012
#define VRAM_OP_ADVISE			0x0013
#define VRAM_OP_WRITE			0x0020
#define VRAM_OP_READ			0x0021
#define VRAM_OP_COPY			0x0022
#define VRAM_OP_FILL			0x0023
#define VRAM_OP_FENCE			0x0024

#define VRAM_FENCE_ALL_STREAMS		0x0001
#define VRAM_DEVICE_SIMULATED		0x00000001
#define VRAM_DEVICE_RESUMED		0x00000002
#define VRAM_GPU_HOME			0x00000001
#define VRAM_GPU_NONE			0xffffffffu
#define VRAM_TIER_GPU			0
#define VRAM_TIER_HOST			1
#define VRAM_TIER_COMPRESSED		2
#define VRAM_TIER_DISK			3
#define VRAM_TIER_REMOTE		4
#define VRAM_TIER_DAMAGED		0xfffffffeu
#define VRAM_TIER_LOST			0xffffffffu

#define VRAM_EVENT_GPU_LOST		1
#define VRAM_EVENT_DATA_LOST		2
#define VRAM_EVENT_LIMIT_CHANGED	3
#define VRAM_EVENT_MISSED		4

#define VRAM_ADVICE_PREFETCH		1
#define VRAM_ADVICE_COLD		2
#define VRAM_ADVICE_PIN			3
#define VRAM_ADVICE_UNPIN		4
#define VRAM_ADVICE_PREFER_GPU		5

#define VRAM_STATUS_OK			0
#define VRAM_STATUS_BAD_CHAIN		1
#define VRAM_STATUS_BAD_REQUEST		2
#define VRAM_STATUS_UNSUPPORTED		3
#define VRAM_STATUS_WRONG_QUEUE		4
#define VRAM_STATUS_NOT_READY		5
#define VRAM_STATUS_BAD_VERSION		6
#define VRAM_STATUS_NO_CONTEXT		7
#define VRAM_STATUS_BAD_ADDRESS		8
#define VRAM_STATUS_BAD_LENGTH		9
#define VRAM_STATUS_BAD_ALIGNMENT	10
#define VRAM_STATUS_BAD_STREAM		11
#define VRAM_STATUS_BUFFER_TOO_SMALL	12
#define VRAM_STATUS_OUT_OF_MEMORY	13
#define VRAM_STATUS_OVER_LIMIT		14
#define VRAM_STATUS_TOO_MANY		15
#define VRAM_STATUS_OVERLAP		16
#define VRAM_STATUS_DEVICE_LOST		17
#define VRAM_STATUS_TRANSFER_FAILED	18
#define VRAM_STATUS_CANCELLED		19
#define VRAM_STATUS_INTERNAL		20
#define VRAM_STATUS_DATA_LOST		21

struct virtio_vram_config {
	__le32 magic;
	__le16 abi_major;
	__le16 abi_minor;
	__le16 request_queues;
	__le16 reserved0;
	__le32 max_segments;
	__le64 max_transfer_bytes;
	__le64 boot_epoch;
	__u8 reserved1[32];
};

/* Head of every chain; body is one of the structures below, or zeros. */
struct virtio_vram_request {
	__le16 opcode;
	__le16 flags;
	__le32 context;
	__le64 tag;
	__le32 stream;
	__le32 reserved0;
	__u8 body[40];
};

struct virtio_vram_hello {
	__le16 abi_major;
	__le16 abi_minor;
	__le32 reserved0;
	__le64 driver_epoch;
	__u8 reserved1[24];
};

struct virtio_vram_context_open {
	__u8 label[32];
	__le64 reserved0;
};

struct virtio_vram_alloc {
	__le64 length;
	__le64 alignment;
	__u8 reserved0[24];
};

struct virtio_vram_free {
	__le64 address;
	__u8 reserved0[32];
};

struct virtio_vram_query {
	__le64 address;
	__le32 first_extent;
	__u8 reserved0[28];
};

struct virtio_vram_advise {
	__le64 address;
	__le64 length;
	__le32 advice;
	__le32 argument;
	__u8 reserved0[16];
};

/* WRITE and READ */
struct virtio_vram_range {
	__le64 address;
	__le64 length;
	__u8 reserved0[24];
};

struct virtio_vram_copy {
	__le64 destination;
	__le64 length;
	__le64 source;
	__u8 reserved0[16];
};

struct virtio_vram_fill {
	__le64 address;
	__le64 length;
	__le32 pattern;
	__le32 width;
	__u8 reserved0[16];
};

/* First bytes of the writable part of every chain. */
struct virtio_vram_response {
	__le32 status;
	__le32 reserved0;
	__le64 tag;
	__le64 moved;
	__le64 value;
	__le64 epoch;
};

struct virtio_vram_hello_reply {
	__le16 abi_major;
	__le16 abi_minor;
	__le32 max_contexts;
	__le32 max_allocations;
	__le32 max_streams;
	__le64 band_base;
	__le64 band_length;
	__le64 limit_bytes;
	__le64 max_transfer_bytes;
	__le32 min_alignment;
	__le32 gpu_count;
	__le32 flags;
	__le32 reserved0;
};

/* Followed by gpu_count entries. */
struct virtio_vram_info_reply {
	__le64 limit_bytes;
	__le64 guarantee_bytes;
	__le64 allocated_bytes;
	__le64 backed_bytes;
	__le64 shard_bytes;
	__le32 gpu_count;
	__le32 flags;
	__le32 allocations;
	__le32 contexts;
	__le64 reserved0;
	__u8 slice_name[32];
};

struct virtio_vram_gpu_entry {
	__le32 index;
	__le32 flags;
	__le64 slice_bytes;
	__le64 total_bytes;
	__le64 reserved0;
	__u8 name[32];
};

/* Followed by extent_count extents. */
struct virtio_vram_query_reply {
	__le64 base;
	__le64 length;
	__le32 extent_count;
	__le32 extent_total;
	__le64 reserved0;
};

struct virtio_vram_extent {
	__le64 address;
	__le64 length;
	__le32 gpu;
	__le32 tier;
	__le64 reserved0;
};

/* Written into each buffer of the event queue. */
struct virtio_vram_event {
	__le32 kind;
	__le32 reserved0;
	__le64 epoch;
	__le64 value;
	__le64 extra;
};

#endif /* _VIRTIO_VRAM_H */
