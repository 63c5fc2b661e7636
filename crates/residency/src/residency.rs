//! The state shared by everybody who holds GPU memory.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Sender, unbounded};
use tracing::error;
use vram_gpu::{Backend, DeviceAddress, DeviceRange, GpuError, GpuId, ShardHandle};
use vram_pool::{Backing, Extent, Freeing, GpuCapacity, Pool, PoolConfig, PoolError, SliceConfig, SliceId};
use vram_transfer::{Again, Engine, Part};

use crate::release::release_all;
use crate::relocate::relocate_all;
use crate::{SliceError, StartError};

/// How the memory of the GPUs is taken into the pool.
#[derive(Clone, Copy, Debug)]
pub struct MemoryConfig {
    /// Bytes of a shard.
    pub shard_bytes: u64,
    /// Bytes of each GPU that stay out of the pool, for the driver and others.
    pub reserve_bytes: u64,
}

/// The memory of all GPUs: the pool's books and the shards behind them.
pub struct Residency {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) engine: Arc<Engine>,
    pool: Mutex<Pool>,
    /// Shards by the device address they are mapped at.
    shards: Mutex<HashMap<DeviceAddress, ShardHandle>>,
    /// Signalled whenever released memory is free again.
    pub(crate) released: Condvar,
    /// Signalled whenever nobody uses a region any more that is to move, or something else might be moved.
    pub(crate) quiet: Condvar,
    /// Who waits for bytes that are moving. Looked at with the pool locked, so that nobody comes too late.
    waiting_accesses: Mutex<Vec<Again>>,
    /// Addresses the new shard of a region that moves is mapped at while it is filled: one shard long.
    pub(crate) landing: DeviceRange,
    /// The region whose shard is being exchanged just now, and the signal that it no longer is.
    pub(crate) in_motion: Mutex<Option<DeviceAddress>>,
    pub(crate) in_place: Condvar,
    /// To the release thread of each slice.
    releases: Mutex<HashMap<SliceId, Sender<Freeing>>>,
}

impl Residency {
    /// Takes the free memory of every GPU into a pool.
    pub fn new(backend: Arc<dyn Backend>, config: MemoryConfig) -> Result<Arc<Self>, StartError> {
        let MemoryConfig { shard_bytes, reserve_bytes } = config;
        let granularity_bytes = backend.granularity_bytes();
        if granularity_bytes == 0 || shard_bytes.checked_rem(granularity_bytes) != Some(0) {
            return Err(StartError::ShardSize { shard_bytes, granularity_bytes });
        }
        let mut gpus = Vec::new();
        for device in backend.devices() {
            let usable_bytes = backend.memory(device.id)?.free_bytes.saturating_sub(reserve_bytes);
            let shards =
                u32::try_from(usable_bytes.checked_div(shard_bytes).unwrap_or(0)).unwrap_or(u32::MAX);
            gpus.push(GpuCapacity { id: device.id, shards });
        }
        let pool = Pool::new(PoolConfig { shard_bytes, gpus, topology: backend.topology().clone() })?;
        let engine = Engine::new(&backend)?;
        let landing = backend.reserve_band(shard_bytes, granularity_bytes)?;
        let residency = Arc::new(Self {
            backend,
            engine,
            pool: Mutex::new(pool),
            shards: Mutex::default(),
            released: Condvar::new(),
            quiet: Condvar::new(),
            waiting_accesses: Mutex::default(),
            landing,
            in_motion: Mutex::default(),
            in_place: Condvar::new(),
            releases: Mutex::default(),
        });
        let weak = Arc::downgrade(&residency);
        vram_sandbox::spawn_named("relocate".to_owned(), move || relocate_all(&weak))
            .map_err(StartError::Thread)?;
        Ok(residency)
    }

    /// The backend.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// The engine that moves bytes.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The pool's books. Hold the guard briefly and call no GPU meanwhile.
    pub fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a slice, reserves its band, and starts the thread that takes back what it frees.
    pub fn add_slice(self: &Arc<Self>, config: SliceConfig) -> Result<SliceId, SliceError> {
        let limit_bytes = config.limit_bytes;
        let (band_bytes, alignment_bytes) = {
            let pool = self.pool();
            pool.admit(&config)?;
            (pool.band_bytes(limit_bytes).ok_or(SliceError::TooLarge { limit_bytes })?, pool.shard_bytes())
        };
        // One entry per freed allocation that is not scrubbed yet, so bounded by the allocations there were. The thread
        // ends when nobody is left who could send.
        let (sender, receiver) = unbounded();
        let weak = Arc::downgrade(self);
        vram_sandbox::spawn_named(format!("release-{}", config.name), move || release_all(&weak, &receiver))
            .map_err(SliceError::Thread)?;
        let band = self.backend.reserve_band(band_bytes, alignment_bytes.next_power_of_two())?;
        let added = self.pool().add_slice(config, band);
        let slice = added.map_err(|error| {
            if let Err(error) = self.backend.free_band(band) {
                error!(%error, "a band could not be given back");
            }
            SliceError::from(error)
        })?;
        self.releases.lock().unwrap_or_else(PoisonError::into_inner).insert(slice, sender);
        Ok(slice)
    }

    /// Changes a slice's limit and guarantee; see [`Pool::resize_slice`].
    pub fn resize_slice(
        &self,
        slice: SliceId,
        limit_bytes: u64,
        guarantee_bytes: u64,
    ) -> Result<(), PoolError> {
        self.pool().resize_slice(slice, limit_bytes, guarantee_bytes)?;
        self.released.notify_all();
        Ok(())
    }

    /// Hands a freed allocation to its slice's release thread.
    pub(crate) fn release(&self, freeing: Freeing) {
        let releases = self.releases.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = releases.get(&freeing.slice()) {
            // The receiver lives as long as the sender does.
            let _ = sender.send(freeing);
        }
    }

    /// Looks whether an error says that a GPU is gone, and if so, takes it out of the books: nothing new is put on it,
    /// and what was on it can be freed. True if a GPU is known to be gone now.
    pub fn note(&self, error: &GpuError) -> bool {
        let GpuError::DeviceLost { gpu, .. } = error else { return false };
        let mut pool = self.pool();
        if pool.gpus().iter().any(|known| known.id == *gpu && !known.lost) {
            pool.mark_lost(*gpu);
            drop(pool);
            error!(%gpu, %error, "a GPU is lost, and all bytes on it");
            self.released.notify_all();
            self.quiet.notify_all();
        }
        true
    }

    /// The pieces of a range of a slice, one per shard. Shorter than the range where memory was lost.
    pub fn parts(&self, slice: SliceId, range: DeviceRange) -> Vec<Part> {
        let pool = self.pool();
        pool.extents(slice, range).filter_map(|extent| part_of(&extent)).collect()
    }

    pub(crate) fn waiting_accesses(&self) -> MutexGuard<'_, Vec<Again>> {
        self.waiting_accesses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn keep_shard(&self, at: DeviceAddress, shard: ShardHandle) {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner).insert(at, shard);
    }

    pub(crate) fn take_shard(&self, at: DeviceAddress) -> Option<ShardHandle> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner).remove(&at)
    }

    /// Unmaps a region and gives its shard back. Errors are logged: there is nobody to tell, and what the GPU keeps
    /// is found missing when it refuses the next shard.
    pub(crate) fn unback(&self, backing: &Backing) {
        self.wait_in_place(backing.range.start);
        let shard = self.take_shard(backing.range.start);
        let Some(shard) = shard else { return };
        if let Err(error) = self.backend.unmap(backing.range) {
            error!(%error, gpu = %backing.gpu, "a shard could not be unmapped");
        }
        if let Err(error) = self.backend.release_shard(shard) {
            error!(%error, gpu = %backing.gpu, "a shard could not be given back");
        }
    }

    /// The GPUs that are to reach memory on `gpu`: all that are there and can, so that copies between GPUs need no detour.
    pub(crate) fn reaching(&self, gpu: GpuId) -> Vec<GpuId> {
        let known = self.pool().gpus();
        let ids = known.iter().filter(|known| !known.lost).map(|known| known.id);
        ids.filter(|from| self.backend.can_access(*from, gpu)).collect()
    }
}

/// An extent as a piece of device memory, if it is on a GPU.
pub(crate) fn part_of(extent: &Extent) -> Option<Part> {
    extent.place.gpu().map(|gpu| Part::gpu(extent.range, gpu))
}
