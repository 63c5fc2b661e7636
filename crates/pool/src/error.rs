//! What the pool refuses.

use vram_gpu::{DeviceAddress, DeviceRange, GpuId};

use crate::{ShareId, SliceId};

/// A refusal about the pool, a slice or an address. Nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The shard size is outside what GPUs can map.
    #[error(
        "A shard of {shard_bytes} bytes is not a multiple of 2 MiB from 2 MiB to 1 GiB; set another shard size"
    )]
    BadShardSize {
        /// Bytes asked for.
        shard_bytes: u64,
    },
    /// A pool needs at least one GPU.
    #[error("The pool has no GPU; name at least one")]
    NoGpus,
    /// A GPU is named twice.
    #[error("{gpu} is listed twice; list each GPU once")]
    DuplicateGpu {
        /// Which.
        gpu: GpuId,
    },
    /// The topology does not cover a GPU of the pool.
    #[error("The topology of {topology_gpus} GPUs does not know {gpu}")]
    UnknownToTopology {
        /// Which.
        gpu: GpuId,
        /// GPUs it knows.
        topology_gpus: usize,
    },
    /// The GPU is not part of the pool.
    #[error("{gpu} is not part of the pool; choose one that is")]
    NoSuchGpu {
        /// Which.
        gpu: GpuId,
    },
    /// The limit is zero or beyond any address space.
    #[error("A limit of {limit_bytes} bytes cannot be served; set one above zero that fits the pool")]
    BadLimit {
        /// Bytes asked for.
        limit_bytes: u64,
    },
    /// The guarantee is above the limit.
    #[error("The guarantee of {guarantee_bytes} bytes is above the limit of {limit_bytes} bytes; lower it")]
    GuaranteeAboveLimit {
        /// Guarantee asked for.
        guarantee_bytes: u64,
        /// Limit asked for.
        limit_bytes: u64,
    },
    /// A slice's addresses are too few for the limit; they were reserved when the slice was made.
    #[error(
        "A limit of {limit_bytes} bytes does not fit the {band_bytes} bytes of addresses reserved for the slice; \
         restart the daemon with the limit in its configuration"
    )]
    LimitBeyondBand {
        /// Limit asked for.
        limit_bytes: u64,
        /// The largest limit these addresses serve.
        band_bytes: u64,
    },
    /// The guarantee does not fit what is not guaranteed yet.
    #[error(
        "A guarantee of {requested_bytes} bytes does not fit the {free_bytes} bytes not yet guaranteed; \
         lower it, or lower another"
    )]
    GuaranteeDoesNotFit {
        /// Bytes asked for, in whole shards.
        requested_bytes: u64,
        /// Bytes that could still be guaranteed to a slice of this placement.
        free_bytes: u64,
    },
    /// The band is unaligned, too small, or overlaps another.
    #[error("The band {band} is {problem}")]
    BadBand {
        /// The band.
        band: DeviceRange,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// All slice numbers are used up.
    #[error("No slice numbers are left; restart the daemon")]
    OutOfSliceIds,
    /// There is no such slice.
    #[error("{slice} does not exist")]
    NoSuchSlice {
        /// Which.
        slice: SliceId,
    },
    /// The slice still has something in it.
    #[error(
        "{slice} still has {allocations} allocations, {quarantined_bytes} quarantined bytes, {returning_regions} \
         returning regions and {grants} pending grants; free them first"
    )]
    SliceInUse {
        /// Which.
        slice: SliceId,
        /// Live allocations.
        allocations: u64,
        /// Bytes freed and not yet released.
        quarantined_bytes: u64,
        /// Regions whose shard is being taken away.
        returning_regions: u32,
        /// Pending grants: zero or one.
        grants: u32,
    },
    /// No allocation starts at the address.
    #[error("{slice} has no allocation at {address}")]
    NoSuchAllocation {
        /// Where.
        slice: SliceId,
        /// What was taken for the start of an allocation.
        address: DeviceAddress,
    },
}

/// Why a GPU cannot be drained. Nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DrainError {
    /// The GPU is not part of the pool.
    #[error("{gpu} is not part of the pool; choose one that is")]
    NoSuchGpu {
        /// Which.
        gpu: GpuId,
    },
    /// It is lost: there is nothing on it that could be saved.
    #[error("{gpu} is lost; what was on it is gone")]
    Lost {
        /// Which.
        gpu: GpuId,
    },
    /// A slice is never to leave it.
    #[error("Slice {slice} is placed on {gpu} only (placement \"local\"); give it another placement first")]
    Local {
        /// Which.
        gpu: GpuId,
        /// Name of the slice, the first of several.
        slice: String,
    },
    /// The other GPUs have less than is guaranteed.
    #[error(
        "Without {gpu} there are {left_bytes} bytes, and {guaranteed_bytes} bytes are guaranteed to slices; \
         lower guarantees first"
    )]
    GuaranteesDoNotFit {
        /// Which.
        gpu: GpuId,
        /// Sum of guarantees.
        guaranteed_bytes: u64,
        /// What the other GPUs have.
        left_bytes: u64,
    },
}

/// A refusal of one allocation. Nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocError {
    /// There is no such slice.
    #[error("{slice} does not exist")]
    NoSuchSlice {
        /// Which.
        slice: SliceId,
    },
    /// The length is zero or wraps.
    #[error("{length_bytes} bytes cannot be allocated")]
    BadLength {
        /// Bytes asked for.
        length_bytes: u64,
    },
    /// The alignment is no power of two, or above [`AllocRequest::MAX_ALIGNMENT_BYTES`](crate::AllocRequest).
    #[error("An alignment of {alignment_bytes} bytes is not a power of two up to 1 GiB")]
    BadAlignment {
        /// Bytes asked for.
        alignment_bytes: u64,
    },
    /// A grant of the slice is pending; commit or abort it first.
    #[error("{slice} has a pending grant")]
    Busy {
        /// Which.
        slice: SliceId,
    },
    /// The slice's limit does not allow it.
    #[error(
        "{requested_bytes} bytes do not fit the limit of {limit_bytes} bytes, of which {in_use_bytes} are in use"
    )]
    OverLimit {
        /// The limit, in whole shards.
        limit_bytes: u64,
        /// Bytes of shards the slice holds.
        in_use_bytes: u64,
        /// Bytes asked for.
        requested_bytes: u64,
    },
    /// The GPUs have no shard for it, or none that is not kept for the guarantee of another slice.
    #[error("{requested_bytes} bytes need more shards than the {free_bytes} bytes the slice may still take")]
    OutOfMemory {
        /// Bytes asked for.
        requested_bytes: u64,
        /// Bytes of shards the slice could be given now.
        free_bytes: u64,
    },
    /// Shards there are, but no run of free addresses in the band is long enough.
    #[error("No run of {requested_bytes} free addresses is left in the slice's band")]
    Fragmented {
        /// Bytes asked for.
        requested_bytes: u64,
    },
    /// It may fit once bytes that are being released are free again: wait for a release to finish and ask again.
    /// Asked when nothing of the slice is quarantined or returning and no shard is on its way back to a GPU, the
    /// answer is never this.
    #[error("{requested_bytes} bytes may fit once released memory is scrubbed")]
    QuarantinePending {
        /// Bytes asked for.
        requested_bytes: u64,
    },
}

/// A refusal about a share. Nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShareError {
    /// There is no such slice.
    #[error("{slice} does not exist")]
    NoSuchSlice {
        /// Which.
        slice: SliceId,
    },
    /// There is no such share, or it was revoked.
    #[error("{share} does not exist, or was revoked")]
    NoSuchShare {
        /// Which.
        share: ShareId,
    },
    /// The range to export does not lie in one live allocation, is empty, or begins at no multiple of 256 bytes.
    #[error("{range} is not a range of one allocation of {slice} that begins at a multiple of 256 bytes")]
    BadRange {
        /// Whose.
        slice: SliceId,
        /// Which.
        range: DeviceRange,
    },
    /// The range to export shows bytes of another slice.
    #[error("{range} shows {slice} bytes of another slice, and only that can export them")]
    NotOwned {
        /// Whose.
        slice: SliceId,
        /// Which.
        range: DeviceRange,
    },
    /// The share is not for the slice.
    #[error("{share} is not for {slice}")]
    NotForSlice {
        /// Which.
        share: ShareId,
        /// Who asked.
        slice: SliceId,
    },
    /// All numbers of shares are used up.
    #[error("No share numbers are left; restart the daemon")]
    OutOfShareIds,
    /// There is no place for it in the slice.
    #[error("The slice has no room for the share")]
    Room(#[from] AllocError),
}
