//! The backend itself: checks what a call asks for and hands it to the part that does it.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vram_gpu::{
    Backend, DeviceAddress, DeviceInfo, DeviceRange, EventHandle, FreshMemory, GpuError, GpuId, HostSpan,
    Identity, MemoryInfo, Pattern, Pinning, RegistrationHandle, ShardHandle, StreamHandle, Topology,
};

use crate::api::{self, Api, check};
use crate::event::{Event, RawEvent};
use crate::host::Registrations;
use crate::memory::Memory;
use crate::staging::{Direction, StagingPool};
use crate::stream::Stream;
use crate::{device, topology};

/// Handles are unique in the process, so that one of another backend is never mistaken for one of ours.
static NEXT_HANDLE: AtomicU64 = AtomicU64::new(1);

/// All GPUs the CUDA driver shows this process (`CUDA_VISIBLE_DEVICES` counts).
///
/// Dropping it waits for what is enqueued and gives everything back.
pub struct CudaBackend {
    api: Arc<Api>,
    identity: Identity,
    devices: Vec<DeviceInfo>,
    topology: Topology,
    memory: Memory,
    registrations: Registrations,
    staging: Arc<StagingPool>,
    streams: Mutex<HashMap<StreamHandle, Arc<Stream>>>,
    events: Mutex<HashMap<EventHandle, Arc<Event>>>,
    draining: Mutex<Vec<Draining>>,
}

/// A destroyed stream with work left.
struct Draining {
    stream: Arc<Stream>,
    /// Behind the last of its work.
    end: Arc<RawEvent>,
    /// The last of its holds before that.
    upto: u64,
}

impl CudaBackend {
    /// Loads the driver and opens every GPU; `Unavailable` says what is missing and what would help.
    pub fn new() -> Result<Self, GpuError> {
        let (symbols, version) = api::load()?;
        let (gpus, devices) = device::open(&symbols)?;
        let peers = device::peers(&symbols, &gpus);
        let api = Arc::new(Api { symbols, gpus });
        let (topology, source) = topology::read(&devices);
        let simulated = api::is_simulated_driver() || devices.iter().any(device::is_simulated);
        let kind = if simulated { "simulated driver" } else { "driver" };
        let version = format!("{kind}, {}, {source}", api::version_text(version));
        let memory = Memory::new(&api, peers).inspect_err(|_| release_contexts(&api))?;
        Ok(Self {
            memory,
            api,
            identity: Identity { backend: "cuda", simulated, version },
            devices,
            topology,
            registrations: Registrations::default(),
            staging: Arc::default(),
            streams: Mutex::default(),
            events: Mutex::default(),
            draining: Mutex::default(),
        })
    }

    fn stream(&self, stream: StreamHandle) -> Result<Arc<Stream>, GpuError> {
        lock(&self.streams).get(&stream).cloned().ok_or(GpuError::BadHandle { what: "stream" })
    }

    fn event(&self, event: EventHandle) -> Result<Arc<Event>, GpuError> {
        lock(&self.events).get(&event).cloned().ok_or(GpuError::BadHandle { what: "event" })
    }

    /// Checks a range that the stream's own GPU is to touch.
    fn check_own(&self, gpu: GpuId, range: DeviceRange) -> Result<(), GpuError> {
        let resolved = self.memory.resolve(range)?;
        if resolved.access.contains(gpu) { Ok(()) } else { Err(inaccessible(range)) }
    }

    /// The GPU that reaches a range for a copy: the stream's own, or else the one whose memory it is.
    fn reached_by(&self, gpu: GpuId, range: DeviceRange) -> Result<GpuId, GpuError> {
        let resolved = self.memory.resolve(range)?;
        let reaching = [gpu, resolved.home].into_iter().find(|gpu| resolved.access.contains(*gpu));
        reaching.ok_or_else(|| inaccessible(range))
    }

    /// Copies between host and device, one way or the other.
    fn copy_host(
        &self,
        stream: StreamHandle,
        device: DeviceAddress,
        span: HostSpan,
        direction: Direction,
    ) -> Result<(), GpuError> {
        let stream = self.stream(stream)?;
        if span.is_empty() {
            return Ok(());
        }
        self.check_own(stream.gpu, DeviceRange { start: device, len_bytes: span.len_bytes() as u64 })?;
        let pinning = self.registrations.pinning(&span);
        if pinning == Pinning::Mixed {
            let reason = "the host range crosses the edge of a registration".to_owned();
            return Err(GpuError::Driver { call: "copy", reason });
        }
        self.api.within(stream.gpu, |_| match (pinning, direction) {
            (Pinning::Registered, Direction::ToBuffer) => stream.copy_in(device, span),
            (Pinning::Registered, Direction::ToSpan) => stream.copy_out(span, device),
            (Pinning::Pageable | Pinning::Mixed, _) => stream.copy_staged(device, &span, direction),
        })
    }

    /// Lets go of destroyed streams whose work is over.
    fn reap(&self) {
        let drained: Vec<Draining> = {
            let mut draining = lock(&self.draining);
            let all = std::mem::take(&mut *draining);
            let (running, over) = all.into_iter().partition(|stream| stream.end.query() == Ok(false));
            *draining = running;
            over
        };
        for Draining { stream, upto, .. } in drained {
            stream.release(upto);
        }
    }
}

impl Backend for CudaBackend {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn devices(&self) -> &[DeviceInfo] {
        &self.devices
    }

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn memory(&self, gpu: GpuId) -> Result<MemoryInfo, GpuError> {
        self.memory.info(&self.api, gpu)
    }

    fn granularity_bytes(&self) -> u64 {
        self.memory.granularity_bytes()
    }

    fn fresh_memory(&self) -> FreshMemory {
        // The driver scrubs what goes back to the kernel, and promises nothing about what it recycles itself.
        FreshMemory::Unspecified
    }

    fn reserve_band(&self, len_bytes: u64, alignment_bytes: u64) -> Result<DeviceRange, GpuError> {
        self.memory.reserve(&self.api, len_bytes, alignment_bytes)
    }

    fn reserve_band_at(&self, band: DeviceRange) -> Result<(), GpuError> {
        self.memory.reserve_at(&self.api, band)
    }

    fn free_band(&self, band: DeviceRange) -> Result<(), GpuError> {
        self.memory.free(&self.api, band)
    }

    fn create_shard(&self, gpu: GpuId, len_bytes: u64) -> Result<ShardHandle, GpuError> {
        self.memory.create(&self.api, gpu, len_bytes, next_handle())
    }

    fn export_shard(&self, shard: &ShardHandle) -> Result<OwnedFd, GpuError> {
        self.memory.export(&self.api, shard)
    }

    fn import_shard(&self, gpu: GpuId, len_bytes: u64, fd: BorrowedFd<'_>) -> Result<ShardHandle, GpuError> {
        self.memory.import(&self.api, gpu, len_bytes, fd, next_handle())
    }

    fn release_shard(&self, shard: ShardHandle) -> Result<(), GpuError> {
        self.memory.release(&self.api, shard)
    }

    fn map(&self, at: DeviceAddress, shard: &ShardHandle) -> Result<(), GpuError> {
        self.memory.map(&self.api, at, shard)
    }

    fn can_access(&self, gpu: GpuId, memory_of: GpuId) -> bool {
        self.memory.reaches(gpu, memory_of)
    }

    fn set_access(&self, range: DeviceRange, gpus: &[GpuId]) -> Result<(), GpuError> {
        self.memory.set_access(&self.api, range, gpus)
    }

    fn unmap(&self, range: DeviceRange) -> Result<(), GpuError> {
        self.memory.unmap(&self.api, range)
    }

    fn create_stream(&self, gpu: GpuId) -> Result<StreamHandle, GpuError> {
        self.reap();
        let stream = self.api.within(gpu, |found| Stream::create(&self.api, &self.staging, found.id))?;
        let handle = StreamHandle(next_handle());
        lock(&self.streams).insert(handle, Arc::new(stream));
        Ok(handle)
    }

    fn destroy_stream(&self, stream: StreamHandle) -> Result<(), GpuError> {
        self.reap();
        let ended = lock(&self.streams).remove(&stream).ok_or(GpuError::BadHandle { what: "stream" })?;
        // A GPU that takes no more marks is lost: nothing runs on it any more, and the stream can go at once.
        if let Ok((end, upto)) = self.api.within(ended.gpu, |_| ended.record()) {
            lock(&self.draining).push(Draining { stream: ended, end, upto });
        }
        Ok(())
    }

    fn copy_in(&self, stream: StreamHandle, to: DeviceAddress, from: HostSpan) -> Result<(), GpuError> {
        self.copy_host(stream, to, from, Direction::ToBuffer)
    }

    fn copy_out(&self, stream: StreamHandle, to: HostSpan, from: DeviceAddress) -> Result<(), GpuError> {
        self.copy_host(stream, from, to, Direction::ToSpan)
    }

    fn copy(
        &self,
        stream: StreamHandle,
        to: DeviceAddress,
        from: DeviceAddress,
        len_bytes: u64,
    ) -> Result<(), GpuError> {
        let stream = self.stream(stream)?;
        if len_bytes == 0 {
            return Ok(());
        }
        let source = self.reached_by(stream.gpu, DeviceRange { start: from, len_bytes })?;
        let target = self.reached_by(stream.gpu, DeviceRange { start: to, len_bytes })?;
        if to.0.abs_diff(from.0) < len_bytes {
            return Err(GpuError::BadRange { start: to, len_bytes, problem: "overlapping the source" });
        }
        // Mapped ranges are no longer than the address space.
        let len = usize::try_from(len_bytes).unwrap_or(usize::MAX);
        if source == stream.gpu && target == stream.gpu {
            return self.api.within(stream.gpu, |_| {
                // SAFETY: both ranges are mapped and accessible to the stream's GPU, and do not overlap.
                let code = unsafe { (self.api.symbols.memcpy_dtod_async)(to.0, from.0, len, stream.raw()) };
                check("cuMemcpyDtoDAsync", code)
            });
        }
        let (source, target) = (self.api.alive(source)?, self.api.alive(target)?);
        self.api.within(stream.gpu, |_| {
            // SAFETY: each range is mapped and accessible in the context given with it, and they do not overlap.
            let code = unsafe {
                (self.api.symbols.memcpy_peer_async)(
                    to.0,
                    target.context.0,
                    from.0,
                    source.context.0,
                    len,
                    stream.raw(),
                )
            };
            check("cuMemcpyPeerAsync", code)
        })
    }

    fn fill(&self, stream: StreamHandle, range: DeviceRange, pattern: Pattern) -> Result<(), GpuError> {
        let stream = self.stream(stream)?;
        if range.len_bytes == 0 {
            return Ok(());
        }
        let size = pattern.size_bytes();
        if !range.start.0.is_multiple_of(size) || !range.len_bytes.is_multiple_of(size) {
            let problem = "not a multiple of the pattern's size";
            return Err(GpuError::BadRange { start: range.start, len_bytes: range.len_bytes, problem });
        }
        self.check_own(stream.gpu, range)?;
        let count = usize::try_from(range.len_bytes.checked_div(size).unwrap_or(0)).unwrap_or(usize::MAX);
        let (symbols, start, raw) = (&self.api.symbols, range.start.0, stream.raw());
        self.api.within(stream.gpu, |_| {
            // SAFETY: the range is mapped and accessible to the stream's GPU, and aligned to the pattern.
            let code = unsafe {
                match pattern {
                    Pattern::U8(value) => (symbols.memset_d8_async)(start, value, count, raw),
                    Pattern::U16(value) => (symbols.memset_d16_async)(start, value, count, raw),
                    Pattern::U32(value) => (symbols.memset_d32_async)(start, value, count, raw),
                }
            };
            check("cuMemsetAsync", code)
        })
    }

    fn record(&self, stream: StreamHandle) -> Result<EventHandle, GpuError> {
        let stream = self.stream(stream)?;
        let (mark, upto) = self.api.within(stream.gpu, |_| stream.record())?;
        let handle = EventHandle(next_handle());
        lock(&self.events).insert(handle, Arc::new(Event::new(mark, stream, upto)));
        Ok(handle)
    }

    fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<(), GpuError> {
        let event = self.event(event)?;
        let stream = self.stream(stream)?;
        self.api.within(stream.gpu, |_| {
            // SAFETY: stream and event are alive; they may be of different GPUs.
            let code = unsafe { (self.api.symbols.stream_wait_event)(stream.raw(), event.mark.raw(), 0) };
            check("cuStreamWaitEvent", code)
        })
    }

    fn query(&self, event: EventHandle) -> Result<bool, GpuError> {
        self.event(event)?.query(&self.api)
    }

    fn synchronize(&self, event: EventHandle, timeout: Duration) -> Result<bool, GpuError> {
        self.event(event)?.wait(&self.api, timeout)
    }

    fn destroy_event(&self, event: EventHandle) -> Result<(), GpuError> {
        self.reap();
        let forgotten = lock(&self.events).remove(&event);
        forgotten.map(drop).ok_or(GpuError::BadHandle { what: "event" })
    }

    fn register_host(&self, span: HostSpan) -> Result<RegistrationHandle, GpuError> {
        let handle = next_handle();
        self.registrations.insert(&self.api, span, handle)?;
        Ok(RegistrationHandle(handle))
    }

    fn unregister_host(&self, registration: RegistrationHandle) -> Result<(), GpuError> {
        self.registrations.remove(&self.api, registration.0)
    }
}

impl Drop for CudaBackend {
    fn drop(&mut self) {
        let streams: Vec<Arc<Stream>> = lock(&self.streams).drain().map(|(_, stream)| stream).collect();
        let draining = std::mem::take(&mut *lock(&self.draining));
        for stream in streams.iter().chain(draining.iter().map(|draining| &draining.stream)) {
            // SAFETY: the stream is alive. An error means that nothing runs any more.
            unsafe { (self.api.symbols.stream_synchronize)(stream.raw()) };
            stream.release(u64::MAX);
        }
        drop(draining);
        drop(streams);
        lock(&self.events).clear();
        self.registrations.clear(&self.api);
        self.memory.clear(&self.api);
        self.staging.clear();
        release_contexts(&self.api);
    }
}

fn release_contexts(api: &Api) {
    for gpu in &api.gpus {
        // SAFETY: retained when the backend was made; nothing of ours uses the context any more.
        unsafe { (api.symbols.primary_ctx_release)(gpu.device) };
    }
}

fn inaccessible(range: DeviceRange) -> GpuError {
    GpuError::BadRange { start: range.start, len_bytes: range.len_bytes, problem: "not accessible" }
}

fn next_handle() -> u64 {
    NEXT_HANDLE.fetch_add(1, Ordering::Relaxed)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
