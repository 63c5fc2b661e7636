//! What a case works with: a backend, and short ways to set up and to look.

use std::sync::Arc;
use std::time::Duration;

use vram_gpu::{
    Backend, DeviceAddress, DeviceRange, EventHandle, GpuError, GpuId, HostSpan, ShardHandle, StreamHandle,
};
use vram_guest_memory::HostBuffer;

/// Long enough for anything that will happen at all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Ways to make a backend stall or fail.
pub trait Injection: Send + Sync {
    /// Holds all copies and fills of streams on a GPU.
    fn pause(&self, gpu: GpuId);
    /// Lets them go on.
    fn resume(&self, gpu: GpuId);
    /// The next copy enqueued fails.
    fn fail_next_copy(&self);
}

/// A backend to try.
pub struct Rig {
    backend: Arc<dyn Backend>,
    injection: Option<Box<dyn Injection>>,
}

impl Rig {
    /// A backend nothing can be injected into.
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        Self { backend, injection: None }
    }

    /// A backend that can be made to stall and fail.
    pub fn with_injection(backend: Arc<dyn Backend>, injection: Box<dyn Injection>) -> Self {
        Self { backend, injection: Some(injection) }
    }

    /// The backend.
    pub fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    pub(crate) fn injection(&self) -> Option<&dyn Injection> {
        self.injection.as_deref()
    }

    /// Holds copies on a GPU until what is returned is dropped, where that can be done.
    pub(crate) fn pause(&self, gpu: GpuId) -> Option<Paused<'_>> {
        let injection = self.injection()?;
        injection.pause(gpu);
        Some(Paused { injection, gpu })
    }

    /// The first GPU.
    pub(crate) fn gpu(&self) -> GpuId {
        self.backend.devices()[0].id
    }

    /// Another GPU, or the first where there is no other.
    pub(crate) fn other_gpu(&self) -> GpuId {
        self.backend.devices().last().unwrap().id
    }

    /// A GPU there is not.
    pub(crate) fn no_gpu(&self) -> GpuId {
        GpuId(u16::try_from(self.backend.devices().len()).unwrap())
    }

    /// The smallest shard.
    pub(crate) fn unit(&self) -> u64 {
        self.backend.granularity_bytes()
    }

    /// GPUs that can be given access to both GPUs' memory, for tests that are not about access.
    pub(crate) fn ground(&self, homes: &[GpuId]) -> Ground<'_> {
        self.ground_of(homes, self.unit(), |home| vec![home])
    }

    /// Shards side by side in one band, one on each of these GPUs.
    pub(crate) fn ground_of(
        &self,
        homes: &[GpuId],
        shard_bytes: u64,
        access: impl Fn(GpuId) -> Vec<GpuId>,
    ) -> Ground<'_> {
        let backend = self.backend();
        let band = backend.reserve_band(shard_bytes * homes.len() as u64, self.unit()).unwrap();
        let mut ground = Ground { backend, band, shard_bytes, mapped: Vec::new() };
        for (index, home) in homes.iter().enumerate() {
            let shard = backend.create_shard(*home, shard_bytes).unwrap();
            let range = ground.shard(index);
            backend.map(range.start, &shard).unwrap();
            ground.mapped.push((range, shard));
            backend.set_access(range, &access(*home)).unwrap();
        }
        ground
    }

    /// A stream on a GPU.
    pub(crate) fn lane(&self, gpu: GpuId) -> Lane<'_> {
        Lane { backend: self.backend(), stream: self.backend.create_stream(gpu).unwrap() }
    }
}

/// A GPU that is held, also when a test fails meanwhile: nothing must wait for it for ever.
pub(crate) struct Paused<'a> {
    injection: &'a dyn Injection,
    gpu: GpuId,
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.injection.resume(self.gpu);
    }
}

/// Mapped memory, given back when dropped.
pub(crate) struct Ground<'a> {
    backend: &'a dyn Backend,
    pub(crate) band: DeviceRange,
    shard_bytes: u64,
    mapped: Vec<(DeviceRange, ShardHandle)>,
}

impl Ground<'_> {
    /// The range of one shard.
    pub(crate) fn shard(&self, index: usize) -> DeviceRange {
        DeviceRange { start: self.at(index as u64 * self.shard_bytes), len_bytes: self.shard_bytes }
    }

    /// An address in the band.
    pub(crate) fn at(&self, offset: u64) -> DeviceAddress {
        self.band.start.checked_add(offset).unwrap()
    }
}

impl Drop for Ground<'_> {
    fn drop(&mut self) {
        for (range, shard) in self.mapped.drain(..) {
            let unmapped = self.backend.unmap(range);
            let released = self.backend.release_shard(shard);
            if !std::thread::panicking() {
                unmapped.unwrap();
                released.unwrap();
            }
        }
        let freed = self.backend.free_band(self.band);
        if !std::thread::panicking() {
            freed.unwrap();
        }
    }
}

/// A stream, ended when dropped.
pub(crate) struct Lane<'a> {
    backend: &'a dyn Backend,
    pub(crate) stream: StreamHandle,
}

impl Lane<'_> {
    /// Enqueues a copy of these bytes to the device.
    pub(crate) fn send(&self, to: DeviceAddress, bytes: &[u8]) -> Result<(), GpuError> {
        self.backend.copy_in(self.stream, to, span_of(bytes))
    }

    /// Copies bytes to the device and waits for that.
    pub(crate) fn write(&self, to: DeviceAddress, bytes: &[u8]) {
        self.send(to, bytes).unwrap();
        self.finish().unwrap();
    }

    /// Copies bytes from the device and waits for them.
    pub(crate) fn read(&self, from: DeviceAddress, len: usize) -> Vec<u8> {
        let buffer = HostBuffer::new(len).unwrap();
        let span = buffer.span().part(0, len).unwrap();
        self.backend.copy_out(self.stream, span.clone(), from).unwrap();
        self.finish().unwrap();
        bytes_of(&span)
    }

    pub(crate) fn record(&self) -> EventHandle {
        self.backend.record(self.stream).unwrap()
    }

    /// Waits until everything enqueued has run; says whether it went well.
    pub(crate) fn finish(&self) -> Result<(), GpuError> {
        let event = self.record();
        let outcome = self.backend.synchronize(event, PATIENCE);
        self.backend.destroy_event(event).unwrap();
        outcome.map(|reached| assert!(reached, "work still runs after {PATIENCE:?}"))
    }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.backend.destroy_stream(self.stream);
            return;
        }
        // A failure has been looked at by the test, or is not its business.
        let _ = self.finish();
        self.backend.destroy_stream(self.stream).unwrap();
    }
}

/// Host memory with these bytes.
pub(crate) fn span_of(bytes: &[u8]) -> HostSpan {
    let buffer = HostBuffer::new(bytes.len()).unwrap();
    let span = buffer.span().part(0, bytes.len()).unwrap();
    span.write_from(bytes);
    span
}

/// The bytes of host memory.
pub(crate) fn bytes_of(span: &HostSpan) -> Vec<u8> {
    let mut bytes = vec![0; span.len_bytes()];
    span.read_into(&mut bytes);
    bytes
}

/// Bytes that differ from place to place and from seed to seed.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend(next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

#[track_caller]
pub(crate) fn assert_bad_range<T: std::fmt::Debug>(outcome: Result<T, GpuError>) {
    assert!(matches!(outcome, Err(GpuError::BadRange { .. })), "{outcome:?}");
}

#[track_caller]
pub(crate) fn assert_bad_handle<T: std::fmt::Debug>(outcome: Result<T, GpuError>) {
    assert!(matches!(outcome, Err(GpuError::BadHandle { .. })), "{outcome:?}");
}

#[track_caller]
pub(crate) fn assert_same(found: &[u8], wanted: &[u8], what: impl std::fmt::Display) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    if let Some(at) = (0..found.len()).find(|at| found[*at] != wanted[*at]) {
        panic!("{what}: byte {at} of {} is {:#x}, not {:#x}", found.len(), found[at], wanted[at]);
    }
}
