//! What the device writes.

use crate::wire::wire_struct;
use crate::{EVENT_BYTES, RESPONSE_BYTES, Status};

wire_struct! {
    pub(crate) struct ResponseWire("virtio_vram_response", RESPONSE_BYTES) {
        0 => status: u32,
        4 => reserved0: u32,
        8 => tag: u64,
        16 => moved: u64,
        24 => value: u64,
        32 => epoch: u64,
    }
}

/// The head of every answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// Outcome.
    pub status: Status,
    /// The request's tag.
    pub tag: u64,
    /// Bytes really moved, or bytes of reply payload behind this head.
    pub moved: u64,
    /// ALLOC: the address. CONTEXT_OPEN: the context. BUFFER_TOO_SMALL: payload bytes needed. Otherwise zero.
    pub value: u64,
    /// The daemon's boot epoch.
    pub epoch: u64,
}

impl Response {
    /// The little-endian form.
    pub fn to_bytes(&self) -> [u8; RESPONSE_BYTES] {
        ResponseWire {
            status: self.status.code(),
            reserved0: 0,
            tag: self.tag,
            moved: self.moved,
            value: self.value,
            epoch: self.epoch,
        }
        .to_bytes()
    }

    /// Reads a response; `None` for a status this version does not know.
    pub fn from_bytes(bytes: &[u8; RESPONSE_BYTES]) -> Option<Self> {
        let wire = ResponseWire::from_bytes(bytes);
        let status = Status::from_code(wire.status)?;
        Some(Self { status, tag: wire.tag, moved: wire.moved, value: wire.value, epoch: wire.epoch })
    }
}

wire_struct! {
    /// Payload of an accepted HELLO.
    pub struct HelloReply("virtio_vram_hello_reply", 64) {
        /// Major version both sides now speak.
        0 => abi_major: u16,
        /// Minor version both sides now speak: the smaller of the two.
        2 => abi_minor: u16,
        /// [`crate::MAX_CONTEXTS`].
        4 => max_contexts: u32,
        /// [`crate::MAX_ALLOCATIONS`].
        8 => max_allocations: u32,
        /// [`crate::MAX_STREAMS`].
        12 => max_streams: u32,
        /// First address of the slice's band.
        16 => band_base: u64,
        /// Bytes of the band; every allocation lies in it.
        24 => band_length: u64,
        /// Most bytes the slice may hold.
        32 => limit_bytes: u64,
        /// Most bytes one WRITE or READ may move.
        40 => max_transfer_bytes: u64,
        /// [`crate::MIN_ALIGNMENT`].
        48 => min_alignment: u32,
        /// GPU entries in an INFO answer.
        52 => gpu_count: u32,
        /// `DEVICE_*` flags.
        56 => flags: u32,
        /// Zero.
        60 => reserved0: u32,
    }
}

wire_struct! {
    /// Payload of an INFO answer, followed by `gpu_count` GPU entries.
    pub struct InfoReply("virtio_vram_info_reply", 96) {
        /// Most bytes the slice may hold.
        0 => limit_bytes: u64,
        /// Bytes the slice can always have.
        8 => guarantee_bytes: u64,
        /// Bytes in live allocations.
        16 => allocated_bytes: u64,
        /// Bytes of shards the slice holds; this is what the limit counts.
        24 => backed_bytes: u64,
        /// Bytes of a shard.
        32 => shard_bytes: u64,
        /// GPU entries that follow.
        40 => gpu_count: u32,
        /// `DEVICE_*` flags.
        44 => flags: u32,
        /// Live allocations of the session.
        48 => allocations: u32,
        /// Open contexts of the session.
        52 => contexts: u32,
        /// Zero.
        56 => reserved0: u64,
        /// Slice name, UTF-8, padded with zeros.
        64 => slice_name: [u8; 32],
    }
}

wire_struct! {
    /// One GPU in an INFO answer.
    pub struct GpuEntry("virtio_vram_gpu_entry", 64) {
        /// Number of the GPU, as extents name it.
        0 => index: u32,
        /// `GPU_*` flags.
        4 => flags: u32,
        /// Bytes of shards the slice holds here.
        8 => slice_bytes: u64,
        /// Bytes of memory the GPU gives to the pool.
        16 => total_bytes: u64,
        /// Zero.
        24 => reserved0: u64,
        /// Product name, UTF-8, padded with zeros.
        32 => name: [u8; 32],
    }
}

wire_struct! {
    /// Payload of a QUERY answer, followed by `extent_count` extents.
    pub struct QueryReply("virtio_vram_query_reply", 32) {
        /// First address of the allocation.
        0 => base: u64,
        /// Bytes of the allocation.
        8 => length: u64,
        /// Extents that follow.
        16 => extent_count: u32,
        /// Extents the whole allocation has.
        20 => extent_total: u32,
        /// Zero.
        24 => reserved0: u64,
    }
}

wire_struct! {
    /// A run of an allocation whose bytes lie in one place.
    pub struct Extent("virtio_vram_extent", 32) {
        /// First address.
        0 => address: u64,
        /// Bytes.
        8 => length: u64,
        /// Number of the GPU; [`crate::GPU_NONE`] where the bytes are on none, and were lost with none.
        16 => gpu: u32,
        /// `TIER_*`.
        20 => tier: u32,
        /// Zero.
        24 => reserved0: u64,
    }
}

wire_struct! {
    /// What the device writes into a buffer of the event queue.
    pub struct EventMessage("virtio_vram_event", EVENT_BYTES) {
        /// `EVENT_*`; drivers ignore kinds they do not know. ABI 1.0 defines none.
        0 => kind: u32,
        /// Zero.
        4 => reserved0: u32,
        /// The daemon's boot epoch.
        8 => epoch: u64,
        /// Meaning by kind.
        16 => value: u64,
        /// Meaning by kind.
        24 => extra: u64,
    }
}
