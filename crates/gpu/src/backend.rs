//! The trait every kind of GPU implements.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::{DeviceAddress, DeviceInfo, DeviceRange, GpuError, GpuId, HostSpan, Topology};

/// A physical piece of one GPU's memory. Not `Clone`: it is given back with [`Backend::release_shard`], once.
#[derive(Debug, PartialEq, Eq)]
pub struct ShardHandle {
    /// The GPU it lies on.
    pub gpu: GpuId,
    /// Bytes.
    pub len_bytes: u64,
    /// The backend's own name for it.
    pub raw: u64,
}

/// A lane of work on one GPU; what is enqueued on it runs in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamHandle(pub u64);

/// A mark in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventHandle(pub u64);

/// Host memory made known to the GPUs, so that copies run without staging.
#[derive(Debug, PartialEq, Eq)]
pub struct RegistrationHandle(pub u64);

/// A backend in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `sim` or `cuda`.
    pub backend: &'static str,
    /// Whether no GPU is really there. Never guessed: a CUDA backend that runs on a simulated driver says so.
    pub simulated: bool,
    /// Driver version or the like, for people.
    pub version: String,
}

/// Memory of one GPU right now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes nobody holds.
    pub free_bytes: u64,
    /// Bytes there are.
    pub total_bytes: u64,
}

/// What a new shard holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreshMemory {
    /// Zeros, guaranteed.
    Zeroed,
    /// Anything, another tenant's bytes included.
    Unspecified,
}

/// What a fill repeats. Address and length are multiples of its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// One byte.
    U8(u8),
    /// Two bytes, little-endian.
    U16(u16),
    /// Four bytes, little-endian.
    U32(u32),
}

impl Pattern {
    /// Bytes of one repetition.
    pub fn size_bytes(self) -> u64 {
        match self {
            Self::U8(_) => 1,
            Self::U16(_) => 2,
            Self::U32(_) => 4,
        }
    }
}

/// All GPUs of one kind in this host.
///
/// Every method may be called from any thread. Calls that enqueue work (`copy_in`, `copy_out`, `copy`, `fill`,
/// `record`, `wait_event`) return before the work has run, and never wait for other streams; errors of the work
/// itself surface at the next event recorded on that stream. Everything else may block for as long as the driver
/// does. No method panics, whatever its arguments.
///
/// What enqueued work touches is checked when it is enqueued. A device range is mapped as a whole, on one GPU (the
/// caller splits at the edges of shards on different GPUs), and accessible: to the stream's GPU for `copy_in`,
/// `copy_out` and `fill`; for each side of a `copy`, to the stream's GPU or to the GPU whose memory it is. Anything
/// else is `BadRange`. A host span lies inside one registration or outside all of them, else the call is refused with
/// `Driver`. Work on no bytes is `Ok` and does nothing.
///
/// The order to use a piece of memory is the order of the methods: reserve a band, create a shard, map it into the
/// band, set access, copy; and back: unmap, release the shard, free the band.
pub trait Backend: Send + Sync + 'static {
    /// What this is.
    fn identity(&self) -> &Identity;

    /// The GPUs, by number.
    fn devices(&self) -> &[DeviceInfo];

    /// How they reach each other.
    fn topology(&self) -> &Topology;

    /// Memory of a GPU right now.
    fn memory(&self, gpu: GpuId) -> Result<MemoryInfo, GpuError>;

    /// Shard sizes and map addresses are multiples of this.
    fn granularity_bytes(&self) -> u64;

    /// What a new shard holds.
    fn fresh_memory(&self) -> FreshMemory;

    /// Reserves device addresses, a multiple of the granularity, aligned to `alignment_bytes` (a power of two).
    /// No memory is behind them yet.
    fn reserve_band(&self, len_bytes: u64, alignment_bytes: u64) -> Result<DeviceRange, GpuError>;

    /// Reserves exactly these device addresses: how a restarted process gets a band back where it was.
    /// `OutOfAddressSpace` if any of them is taken.
    fn reserve_band_at(&self, band: DeviceRange) -> Result<(), GpuError> {
        Err(GpuError::OutOfAddressSpace { len_bytes: band.len_bytes })
    }

    /// Gives a band back. Nothing may be mapped in it: else `BadRange` and nothing changes.
    fn free_band(&self, band: DeviceRange) -> Result<(), GpuError>;

    /// Takes a shard of a GPU's memory.
    fn create_shard(&self, gpu: GpuId, len_bytes: u64) -> Result<ShardHandle, GpuError>;

    /// A descriptor that keeps the shard's memory alive, also past this process, until it is closed.
    fn export_shard(&self, shard: &ShardHandle) -> Result<OwnedFd, GpuError>;

    /// A shard of this process over exported memory.
    fn import_shard(&self, gpu: GpuId, len_bytes: u64, fd: BorrowedFd<'_>) -> Result<ShardHandle, GpuError>;

    /// Gives a shard back. Its memory lives on while it is mapped, exported or imported elsewhere.
    fn release_shard(&self, shard: ShardHandle) -> Result<(), GpuError>;

    /// Maps a whole shard at an address inside a band where nothing is mapped.
    fn map(&self, at: DeviceAddress, shard: &ShardHandle) -> Result<(), GpuError>;

    /// Whether `gpu` can be given access to memory on `memory_of`; always true for its own. GPUs that cannot still
    /// exchange bytes by [`Self::copy`], through the host.
    fn can_access(&self, gpu: GpuId, memory_of: GpuId) -> bool;

    /// Lets these GPUs, and no others, read and write a mapped range (whole shards).
    fn set_access(&self, range: DeviceRange, gpus: &[GpuId]) -> Result<(), GpuError>;

    /// Takes mapped shards (whole ones) out of a band. The caller sees to it that no enqueued work touches them.
    fn unmap(&self, range: DeviceRange) -> Result<(), GpuError>;

    /// Makes a stream on a GPU.
    fn create_stream(&self, gpu: GpuId) -> Result<StreamHandle, GpuError>;

    /// Ends a stream after what is enqueued on it.
    fn destroy_stream(&self, stream: StreamHandle) -> Result<(), GpuError>;

    /// Enqueues host to device. The span is held until the copy is done.
    fn copy_in(&self, stream: StreamHandle, to: DeviceAddress, from: HostSpan) -> Result<(), GpuError>;

    /// Enqueues device to host. The span is held until the copy is done.
    fn copy_out(&self, stream: StreamHandle, to: HostSpan, from: DeviceAddress) -> Result<(), GpuError>;

    /// Enqueues device to device, on one GPU or between two. The ranges do not overlap.
    fn copy(
        &self,
        stream: StreamHandle,
        to: DeviceAddress,
        from: DeviceAddress,
        len_bytes: u64,
    ) -> Result<(), GpuError>;

    /// Enqueues a fill.
    fn fill(&self, stream: StreamHandle, range: DeviceRange, pattern: Pattern) -> Result<(), GpuError>;

    /// Marks the end of what is enqueued on a stream so far. The event reports the first failure since the event
    /// before on the same stream, at every `query` and `synchronize`; no later event reports that failure again.
    fn record(&self, stream: StreamHandle) -> Result<EventHandle, GpuError>;

    /// Makes a stream wait for an event, of any stream, before what is enqueued on it next.
    fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<(), GpuError>;

    /// Whether an event has been reached: `Ok(true)` reached and all well, `Ok(false)` not yet.
    fn query(&self, event: EventHandle) -> Result<bool, GpuError>;

    /// Blocks until an event is reached or the time is up: `Ok(false)` then.
    fn synchronize(&self, event: EventHandle, timeout: Duration) -> Result<bool, GpuError>;

    /// Forgets an event, reached or not.
    fn destroy_event(&self, event: EventHandle) -> Result<(), GpuError>;

    /// Makes host memory known to the GPUs (page-locks it). The span is held until it is unregistered.
    fn register_host(&self, span: HostSpan) -> Result<RegistrationHandle, GpuError>;

    /// Undoes `register_host`. The caller sees to it that no enqueued copy touches it.
    fn unregister_host(&self, registration: RegistrationHandle) -> Result<(), GpuError>;
}
