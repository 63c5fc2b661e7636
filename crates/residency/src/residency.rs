//! The state shared by everybody who holds GPU memory.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Sender, unbounded};
use tracing::error;
use vram_gpu::{Backend, DeviceAddress, DeviceRange, GpuId, ShardHandle};
use vram_pool::{Backing, GpuCapacity, Pool, PoolConfig, SliceConfig, SliceId};
use vram_transfer::{Engine, Part};

use crate::release::{Releasing, release_all};
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
    pub(crate) releases: Sender<Releasing>,
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
        // One entry per freed allocation that is not scrubbed yet, so bounded by the allocations there were.
        let (releases, receiver) = unbounded();
        let residency = Arc::new(Self {
            backend,
            engine,
            pool: Mutex::new(pool),
            shards: Mutex::default(),
            released: Condvar::new(),
            releases,
        });
        let weak = Arc::downgrade(&residency);
        vram_sandbox::spawn_named("release", move || release_all(&weak, &receiver))
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

    /// Makes a slice and reserves its band.
    pub fn add_slice(&self, config: SliceConfig) -> Result<SliceId, SliceError> {
        let limit_bytes = config.limit_bytes;
        let (band_bytes, alignment_bytes) = {
            let pool = self.pool();
            pool.admit(&config)?;
            (pool.band_bytes(limit_bytes).ok_or(SliceError::TooLarge { limit_bytes })?, pool.shard_bytes())
        };
        let band = self.backend.reserve_band(band_bytes, alignment_bytes.next_power_of_two())?;
        let added = self.pool().add_slice(config, band);
        added.map_err(|error| {
            if let Err(error) = self.backend.free_band(band) {
                error!(%error, "a band could not be given back");
            }
            error.into()
        })
    }

    /// The pieces of a range of a slice, one per shard. Shorter than the range where memory was lost.
    pub fn parts(&self, slice: SliceId, range: DeviceRange) -> Vec<Part> {
        let pool = self.pool();
        let extents = pool.extents(slice, range).filter(|extent| !extent.lost);
        extents.map(|extent| Part { range: extent.range, gpu: extent.gpu }).collect()
    }

    pub(crate) fn keep_shard(&self, at: DeviceAddress, shard: ShardHandle) {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner).insert(at, shard);
    }

    /// Unmaps a region and gives its shard back. Errors are logged: there is nobody to tell, and what the GPU keeps
    /// is found missing when it refuses the next shard.
    pub(crate) fn unback(&self, backing: &Backing) {
        let shard = self.shards.lock().unwrap_or_else(PoisonError::into_inner).remove(&backing.range.start);
        let Some(shard) = shard else { return };
        if let Err(error) = self.backend.unmap(backing.range) {
            error!(%error, gpu = %backing.gpu, "a shard could not be unmapped");
        }
        if let Err(error) = self.backend.release_shard(shard) {
            error!(%error, gpu = %backing.gpu, "a shard could not be given back");
        }
    }

    /// The GPUs that are to reach memory on `gpu`: all that can, so that copies between GPUs need no detour.
    pub(crate) fn reaching(&self, gpu: GpuId) -> Vec<GpuId> {
        let ids = self.backend.devices().iter().map(|device| device.id);
        ids.filter(|from| self.backend.can_access(*from, gpu)).collect()
    }
}
