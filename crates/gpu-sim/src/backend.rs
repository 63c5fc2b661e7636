//! The backend itself: checks what a call asks for and hands it to the part that does it.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use vram_gpu::{
    Backend, DeviceAddress, DeviceInfo, DeviceRange, EventHandle, FreshMemory, GpuError, GpuId, GpuSet,
    HostSpan, Identity, Mapping, MemoryInfo, Pattern, Pinning, RegistrationHandle, Resolved, ShardHandle,
    StreamHandle, Topology,
};

use crate::config::{GRANULARITY_BYTES, SimConfig};
use crate::event::{Event, Mark};
use crate::faults::{Doom, Faults};
use crate::host::{HostBytes, RawBytes, Registrations};
use crate::memory::MemoryFile;
use crate::pace::Pace;
use crate::shards::Shards;
use crate::space::Space;
use crate::stream::{Stream, Work};

/// Handles are unique in the process, so that one of another backend is never mistaken for one of ours.
static NEXT_HANDLE: AtomicU64 = AtomicU64::new(1);

/// What is alive in a backend: all zero after everything has been given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reserved bands.
    pub bands: usize,
    /// Mapped shards.
    pub mappings: usize,
    /// Shard handles.
    pub shards: usize,
    /// Streams.
    pub streams: usize,
    /// Events.
    pub events: usize,
    /// Registered pieces of host memory.
    pub registrations: usize,
}

/// Simulated GPUs. Dropping it runs what is enqueued, without delays, and then frees everything but exports.
#[derive(Debug)]
pub struct SimBackend {
    identity: Identity,
    config: SimConfig,
    devices: Vec<DeviceInfo>,
    space: Arc<Space>,
    shards: Shards,
    faults: Faults,
    streams: Mutex<HashMap<StreamHandle, Arc<Stream>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    events: Mutex<HashMap<EventHandle, Arc<Event>>>,
    registrations: Mutex<Registrations>,
}

impl SimBackend {
    /// Makes the GPUs a configuration describes; `Unavailable` if it describes none that can be.
    pub fn new(config: SimConfig) -> Result<Self, GpuError> {
        let unavailable = |reason: String| GpuError::Unavailable { backend: "sim", reason };
        if config.gpus.is_empty() || config.gpus.len() > GpuSet::CAPACITY {
            return Err(unavailable(format!("{} GPUs are configured, use 1 to 64", config.gpus.len())));
        }
        if config.topology.gpu_count() != config.gpus.len() {
            return Err(unavailable(format!(
                "the topology knows {} GPUs, the configuration {}",
                config.topology.gpu_count(),
                config.gpus.len()
            )));
        }
        let numbers = (0..config.gpus.len()).map(|index| GpuId(u16::try_from(index).unwrap_or(u16::MAX)));
        let devices = numbers
            .zip(&config.gpus)
            .map(|(id, gpu)| DeviceInfo {
                id,
                name: gpu.name.clone(),
                uuid: gpu.uuid,
                total_bytes: gpu.total_bytes,
                pci: Some(gpu.pci),
                numa_node: Some(gpu.numa_node),
            })
            .collect();
        let pace = Arc::new(Pace::new(config.rates, config.gpus.len()));
        let version = concat!("simulator ", env!("CARGO_PKG_VERSION")).to_owned();
        Ok(Self {
            identity: Identity { backend: "sim", simulated: true, version },
            devices,
            space: Arc::new(Space::new()),
            shards: Shards::new(config.gpus.iter().map(|gpu| gpu.total_bytes)),
            faults: Faults::new(&config.plan, config.copy_delay, pace),
            streams: Mutex::default(),
            threads: Mutex::default(),
            events: Mutex::default(),
            registrations: Mutex::default(),
            config,
        })
    }

    /// The switchboard of faults.
    pub fn faults(&self) -> Faults {
        self.faults.clone()
    }

    /// What the backend was made of.
    pub fn config(&self) -> &SimConfig {
        &self.config
    }

    /// What is alive.
    pub fn counts(&self) -> Counts {
        let (bands, mappings) = self.space.counts();
        Counts {
            bands,
            mappings,
            shards: self.shards.handle_count(),
            streams: lock(&self.streams).len(),
            events: lock(&self.events).len(),
            registrations: lock(&self.registrations).count(),
        }
    }

    /// `copy_in` from memory that no span holds.
    ///
    /// # Safety
    ///
    /// `from` is good for reads of `len` bytes until an event recorded on the stream after this call is reached.
    pub unsafe fn copy_in_raw(
        &self,
        stream: StreamHandle,
        to: DeviceAddress,
        from: *const u8,
        len: usize,
    ) -> Result<(), GpuError> {
        self.enqueue_in(stream, to, HostBytes::Raw(RawBytes { start: from.cast_mut(), len }))
    }

    /// `copy_out` to memory that no span holds.
    ///
    /// # Safety
    ///
    /// `to` is good for writes of `len` bytes until an event recorded on the stream after this call is reached.
    pub unsafe fn copy_out_raw(
        &self,
        stream: StreamHandle,
        to: *mut u8,
        from: DeviceAddress,
        len: usize,
    ) -> Result<(), GpuError> {
        self.enqueue_out(stream, HostBytes::Raw(RawBytes { start: to, len }), from)
    }

    /// `register_host` for memory that no span holds. It is only noted, never touched.
    pub fn register_host_raw(&self, start: *mut u8, len: usize) -> Result<RegistrationHandle, GpuError> {
        self.register(HostBytes::Raw(RawBytes { start, len }))
    }

    /// How a run of bytes of this process lies relative to registered memory.
    pub fn pinning(&self, start: *const u8, len: usize) -> Pinning {
        lock(&self.registrations).pinning(start.addr(), len)
    }

    /// What lies behind a device range.
    pub fn resolve(&self, range: DeviceRange) -> Result<Resolved, GpuError> {
        self.space.resolve(range)
    }

    /// The whole shards that make up a device range.
    pub fn mappings(&self, range: DeviceRange) -> Result<Vec<Mapping>, GpuError> {
        self.space.whole(range)
    }

    /// `import_shard` for a caller that does not know what the descriptor is of: the memory file says.
    pub fn import_any(&self, fd: BorrowedFd<'_>) -> Result<ShardHandle, GpuError> {
        let file = MemoryFile::open(fd).map_err(|error| not_imported(error.to_string()))?;
        self.import(file)
    }

    /// The registration that starts at an address of this process.
    pub fn registration_at(&self, start: *const u8) -> Option<RegistrationHandle> {
        lock(&self.registrations).handle_at(start.addr()).map(RegistrationHandle)
    }

    /// Enqueues a call of a function on the stream's own thread.
    pub fn call(
        &self,
        stream: StreamHandle,
        function: impl FnOnce() + Send + 'static,
    ) -> Result<(), GpuError> {
        self.stream(stream)?.enqueue(Work::Call(Box::new(function)), Doom::default())
    }

    fn enqueue_in(&self, stream: StreamHandle, to: DeviceAddress, from: HostBytes) -> Result<(), GpuError> {
        let stream = self.stream(stream)?;
        if from.len() == 0 {
            return Ok(());
        }
        self.check_host(&from)?;
        self.check_own(stream.gpu, DeviceRange { start: to, len_bytes: from.len() as u64 })?;
        self.enqueue_copy(&stream, Work::CopyIn { to, from })
    }

    fn enqueue_out(&self, stream: StreamHandle, to: HostBytes, from: DeviceAddress) -> Result<(), GpuError> {
        let stream = self.stream(stream)?;
        if to.len() == 0 {
            return Ok(());
        }
        self.check_host(&to)?;
        self.check_own(stream.gpu, DeviceRange { start: from, len_bytes: to.len() as u64 })?;
        self.enqueue_copy(&stream, Work::CopyOut { to, from })
    }

    fn enqueue_copy(&self, stream: &Stream, work: Work) -> Result<(), GpuError> {
        self.faults.check_alive(stream.gpu)?;
        stream.enqueue(work, self.faults.number_copy(stream.gpu))
    }

    fn import(&self, file: MemoryFile) -> Result<ShardHandle, GpuError> {
        let (gpu, len_bytes, raw) = (file.gpu, file.len_bytes, next_handle());
        self.check_gpu(gpu)?;
        self.faults.check_alive(gpu)?;
        self.shards.import(file, raw)?;
        Ok(ShardHandle { gpu, len_bytes, raw })
    }

    fn register(&self, bytes: HostBytes) -> Result<RegistrationHandle, GpuError> {
        let handle = next_handle();
        lock(&self.registrations).insert(bytes, handle)?;
        Ok(RegistrationHandle(handle))
    }

    /// Host memory is registered as a whole or not at all, as CUDA wants it.
    fn check_host(&self, bytes: &HostBytes) -> Result<(), GpuError> {
        match self.pinning(bytes.as_ptr(), bytes.len()) {
            Pinning::Registered | Pinning::Pageable => Ok(()),
            Pinning::Mixed => Err(GpuError::Driver {
                call: "copy",
                reason: "the host range crosses the edge of a registration".to_owned(),
            }),
        }
    }

    /// A range that the stream's own GPU may touch.
    fn check_own(&self, gpu: GpuId, range: DeviceRange) -> Result<(), GpuError> {
        let resolved = self.space.resolve(range)?;
        if resolved.access.contains(gpu) { Ok(()) } else { Err(inaccessible(range)) }
    }

    /// A range that the stream's GPU may touch, or that a peer copy reaches through its own GPU.
    fn check_reachable(&self, gpu: GpuId, range: DeviceRange) -> Result<Resolved, GpuError> {
        let resolved = self.space.resolve(range)?;
        if resolved.access.contains(gpu) || resolved.access.contains(resolved.home) {
            Ok(resolved)
        } else {
            Err(inaccessible(range))
        }
    }

    fn check_gpu(&self, gpu: GpuId) -> Result<(), GpuError> {
        if gpu.index() < self.devices.len() { Ok(()) } else { Err(GpuError::NoSuchGpu { gpu }) }
    }

    fn check_shard_len(&self, len_bytes: u64) -> Result<(), GpuError> {
        if len_bytes > 0 && len_bytes.is_multiple_of(GRANULARITY_BYTES) {
            return Ok(());
        }
        Err(GpuError::BadRange {
            start: DeviceAddress(0),
            len_bytes,
            problem: "not a multiple of the granularity",
        })
    }

    fn stream(&self, stream: StreamHandle) -> Result<Arc<Stream>, GpuError> {
        lock(&self.streams).get(&stream).cloned().ok_or(GpuError::BadHandle { what: "stream" })
    }

    fn event(&self, event: EventHandle) -> Result<Arc<Event>, GpuError> {
        lock(&self.events).get(&event).cloned().ok_or(GpuError::BadHandle { what: "event" })
    }
}

impl Backend for SimBackend {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn devices(&self) -> &[DeviceInfo] {
        &self.devices
    }

    fn topology(&self) -> &Topology {
        &self.config.topology
    }

    fn memory(&self, gpu: GpuId) -> Result<MemoryInfo, GpuError> {
        self.check_gpu(gpu)?;
        self.faults.check_alive(gpu)?;
        self.shards.memory(gpu)
    }

    fn granularity_bytes(&self) -> u64 {
        GRANULARITY_BYTES
    }

    fn fresh_memory(&self) -> FreshMemory {
        self.config.fresh_memory
    }

    fn reserve_band(&self, len_bytes: u64, alignment_bytes: u64) -> Result<DeviceRange, GpuError> {
        self.space.reserve(len_bytes, alignment_bytes)
    }

    fn reserve_band_at(&self, band: DeviceRange) -> Result<(), GpuError> {
        self.space.reserve_at(band)
    }

    fn free_band(&self, band: DeviceRange) -> Result<(), GpuError> {
        self.space.free(band)
    }

    fn create_shard(&self, gpu: GpuId, len_bytes: u64) -> Result<ShardHandle, GpuError> {
        self.check_gpu(gpu)?;
        self.check_shard_len(len_bytes)?;
        self.faults.check_alive(gpu)?;
        if self.faults.refuse_create(gpu) {
            return Err(GpuError::OutOfMemory { gpu, requested_bytes: len_bytes });
        }
        let raw = next_handle();
        self.shards.create(gpu, len_bytes, self.config.fresh_memory == FreshMemory::Unspecified, raw)?;
        Ok(ShardHandle { gpu, len_bytes, raw })
    }

    fn export_shard(&self, shard: &ShardHandle) -> Result<OwnedFd, GpuError> {
        let memory = self.shards.get(shard.raw)?;
        let export = memory
            .file
            .export()
            .map_err(|error| GpuError::Driver { call: "export_shard", reason: error.to_string() })?;
        self.shards.note_export(&memory);
        Ok(export)
    }

    fn import_shard(&self, gpu: GpuId, len_bytes: u64, fd: BorrowedFd<'_>) -> Result<ShardHandle, GpuError> {
        self.check_gpu(gpu)?;
        self.check_shard_len(len_bytes)?;
        self.faults.check_alive(gpu)?;
        let file = MemoryFile::open(fd).map_err(|error| not_imported(error.to_string()))?;
        if file.gpu != gpu || file.len_bytes != len_bytes {
            return Err(not_imported(format!("the memory is {} bytes of {}", file.len_bytes, file.gpu)));
        }
        self.import(file)
    }

    fn release_shard(&self, shard: ShardHandle) -> Result<(), GpuError> {
        self.shards.release(shard.raw)
    }

    fn map(&self, at: DeviceAddress, shard: &ShardHandle) -> Result<(), GpuError> {
        self.faults.check_alive(shard.gpu)?;
        let memory = self.shards.get(shard.raw)?;
        self.space.map(at, memory, shard.raw)
    }

    fn can_access(&self, gpu: GpuId, memory_of: GpuId) -> bool {
        self.config.can_access_peer(gpu, memory_of)
    }

    fn set_access(&self, range: DeviceRange, gpus: &[GpuId]) -> Result<(), GpuError> {
        for gpu in gpus {
            self.check_gpu(*gpu)?;
            self.faults.check_alive(*gpu)?;
        }
        for home in self.space.whole(range)?.iter().map(|mapping| mapping.gpu) {
            if let Some(gpu) = gpus.iter().find(|gpu| !self.config.can_access_peer(**gpu, home)) {
                let reason = format!("{gpu} cannot be given access to memory of {home}");
                return Err(GpuError::Driver { call: "set_access", reason });
            }
        }
        self.space.set_access(range, GpuSet::of(gpus))
    }

    fn unmap(&self, range: DeviceRange) -> Result<(), GpuError> {
        self.space.unmap(range)
    }

    fn create_stream(&self, gpu: GpuId) -> Result<StreamHandle, GpuError> {
        self.check_gpu(gpu)?;
        self.faults.check_alive(gpu)?;
        let handle = StreamHandle(next_handle());
        let (stream, thread) = Stream::start(gpu, handle.0, Arc::clone(&self.space), self.faults.clone())?;
        lock(&self.streams).insert(handle, Arc::new(stream));
        let mut threads = lock(&self.threads);
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(handle)
    }

    fn destroy_stream(&self, stream: StreamHandle) -> Result<(), GpuError> {
        let ended = lock(&self.streams).remove(&stream);
        ended.map(drop).ok_or(GpuError::BadHandle { what: "stream" })
    }

    fn copy_in(&self, stream: StreamHandle, to: DeviceAddress, from: HostSpan) -> Result<(), GpuError> {
        self.enqueue_in(stream, to, HostBytes::Span(from))
    }

    fn copy_out(&self, stream: StreamHandle, to: HostSpan, from: DeviceAddress) -> Result<(), GpuError> {
        self.enqueue_out(stream, HostBytes::Span(to), from)
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
        let target = DeviceRange { start: to, len_bytes };
        let source = self.check_reachable(stream.gpu, DeviceRange { start: from, len_bytes })?;
        let home = self.check_reachable(stream.gpu, target)?.home;
        if to.0.abs_diff(from.0) < len_bytes {
            return Err(GpuError::BadRange { start: to, len_bytes, problem: "overlapping the source" });
        }
        self.faults.check_alive(home)?;
        self.faults.check_alive(source.home)?;
        self.enqueue_copy(&stream, Work::Copy { to, from, len_bytes })
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
        self.enqueue_copy(&stream, Work::Fill { range, pattern })
    }

    fn record(&self, stream: StreamHandle) -> Result<EventHandle, GpuError> {
        let stream = self.stream(stream)?;
        let event = Arc::new(Event::default());
        stream.enqueue(Work::Record(Mark::new(&event)), Doom::default())?;
        let handle = EventHandle(next_handle());
        lock(&self.events).insert(handle, event);
        Ok(handle)
    }

    fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<(), GpuError> {
        let event = self.event(event)?;
        self.stream(stream)?.enqueue(Work::Wait(event), Doom::default())
    }

    fn query(&self, event: EventHandle) -> Result<bool, GpuError> {
        self.event(event)?.query()
    }

    fn synchronize(&self, event: EventHandle, timeout: Duration) -> Result<bool, GpuError> {
        self.event(event)?.wait(timeout)
    }

    fn destroy_event(&self, event: EventHandle) -> Result<(), GpuError> {
        let forgotten = lock(&self.events).remove(&event);
        forgotten.map(drop).ok_or(GpuError::BadHandle { what: "event" })
    }

    fn register_host(&self, span: HostSpan) -> Result<RegistrationHandle, GpuError> {
        self.register(HostBytes::Span(span))
    }

    fn unregister_host(&self, registration: RegistrationHandle) -> Result<(), GpuError> {
        let held = lock(&self.registrations).remove(registration.0);
        held.map(drop).ok_or(GpuError::BadHandle { what: "registration" })
    }
}

impl Drop for SimBackend {
    fn drop(&mut self) {
        self.faults.end();
        lock(&self.streams).clear();
        for thread in std::mem::take(&mut *lock(&self.threads)) {
            // A worker that panicked has nothing left to finish.
            let _ = thread.join();
        }
    }
}

fn inaccessible(range: DeviceRange) -> GpuError {
    GpuError::BadRange { start: range.start, len_bytes: range.len_bytes, problem: "not accessible" }
}

fn not_imported(reason: String) -> GpuError {
    GpuError::Driver { call: "import_shard", reason }
}

fn next_handle() -> u64 {
    NEXT_HANDLE.fetch_add(1, Ordering::Relaxed)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
