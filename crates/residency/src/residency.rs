//! The state shared by everybody who holds GPU memory.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use crossbeam_channel::{Sender, unbounded};
use tracing::error;
use vram_gpu::{Backend, DeviceAddress, DeviceRange, GpuError, GpuId, ShardHandle};
use vram_pool::{
    Backing, Extent, Freeing, GpuCapacity, Pool, PoolConfig, PoolError, RegionIndex, SliceConfig, SliceId,
};
use vram_transfer::{Again, Engine, Part, TransferError};

use crate::bell::Bell;
use crate::fetch::{Fetch, fetch_all};
use crate::image::Images;
use crate::release::{Upkeep, release_all};
use crate::relocate::relocate_all;
use crate::tend::tend_all;
use crate::tiers::{Tier, TierReport, Tiers};
use crate::{MemoryEvent, MemoryWatch, SliceError, StartError};

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
    /// Signalled whenever nobody uses a region any more that is to move.
    pub(crate) quiet: Condvar,
    /// Who waits for bytes that are moving. Looked at with the pool locked, so that nobody comes too late.
    waiting_accesses: Mutex<Vec<Again>>,
    /// Addresses the new shard of a region that moves is mapped at while it is filled: one shard long,
    /// for one at a time.
    pub(crate) landing: Mutex<DeviceRange>,
    /// The regions whose shards are being exchanged just now, and the signal that one no longer is.
    regions_in_motion: Mutex<HashSet<DeviceAddress>>,
    pub(crate) in_place: Condvar,
    /// The tiers below the GPUs.
    pub(crate) tiers: Tiers,
    /// Regions that are asked for to be promoted if that is worth it.
    pub(crate) worthwhile: Mutex<HashSet<(SliceId, RegionIndex)>>,
    pub(crate) images: Mutex<Images>,
    /// Who is told what happens to the memory of which slice.
    pub(crate) watches: Mutex<Vec<(SliceId, Weak<dyn MemoryWatch>)>>,
    /// Rung when something is to leave a GPU.
    pub(crate) relocating: Arc<Bell>,
    /// Rung when tiers should be tended to at once.
    pub(crate) tending: Arc<Bell>,
    /// To the threads of each slice.
    slices: Mutex<HashMap<SliceId, SliceThreads>>,
}

/// The ways to a slice's threads.
struct SliceThreads {
    /// To its release thread.
    releases: Sender<Upkeep>,
    /// To the thread that brings its regions to where they are needed.
    fetches: Sender<Fetch>,
}

impl Residency {
    /// Takes the free memory of every GPU into a pool.
    pub fn new(backend: Arc<dyn Backend>, config: MemoryConfig) -> Result<Arc<Self>, StartError> {
        Self::with_tiers(backend, config, Vec::new())
    }

    /// Takes the free memory of every GPU into a pool, with tiers below it for what does not fit.
    pub fn with_tiers(
        backend: Arc<dyn Backend>,
        config: MemoryConfig,
        tiers: Vec<Tier>,
    ) -> Result<Arc<Self>, StartError> {
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
        let tiers = Tiers::new(tiers);
        let tier_regions = tiers.regions(shard_bytes);
        let topology = backend.topology().clone();
        let pool = Pool::new(PoolConfig { shard_bytes, gpus, topology, tier_regions })?;
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
            landing: Mutex::new(landing),
            regions_in_motion: Mutex::default(),
            in_place: Condvar::new(),
            tiers,
            worthwhile: Mutex::default(),
            images: Mutex::default(),
            watches: Mutex::default(),
            relocating: Arc::default(),
            tending: Arc::default(),
            slices: Mutex::default(),
        });
        let (weak, bell) = (Arc::downgrade(&residency), Arc::clone(&residency.relocating));
        vram_sandbox::spawn_named("relocate".to_owned(), move || relocate_all(&weak, &bell))
            .map_err(StartError::Thread)?;
        if !residency.tiers.is_empty() {
            let (weak, bell) = (Arc::downgrade(&residency), Arc::clone(&residency.tending));
            vram_sandbox::spawn_named("tiers".to_owned(), move || tend_all(&weak, &bell))
                .map_err(StartError::Thread)?;
        }
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
        let fetches = self.start_fetching(&config.name)?;
        let band = self.backend.reserve_band(band_bytes, alignment_bytes.next_power_of_two())?;
        let added = self.pool().add_slice(config, band);
        let slice = added.map_err(|error| {
            if let Err(error) = self.backend.free_band(band) {
                error!(%error, "a band could not be given back");
            }
            SliceError::from(error)
        })?;
        self.slice_threads().insert(slice, SliceThreads { releases: sender, fetches });
        Ok(slice)
    }

    /// Removes a slice that has nothing in it any more; see [`Pool::remove_slice`]. Its threads end by themselves.
    pub fn remove_slice(&self, slice: SliceId) -> Result<(), PoolError> {
        let band = self.pool().remove_slice(slice)?;
        self.slice_threads().remove(&slice);
        self.worthwhile.lock().unwrap_or_else(PoisonError::into_inner).retain(|(of, _)| *of != slice);
        self.watches.lock().unwrap_or_else(PoisonError::into_inner).retain(|(of, _)| *of != slice);
        if let Err(error) = self.backend.free_band(band) {
            error!(%error, "a band could not be given back");
        }
        Ok(())
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
        self.tending.ring();
        self.tell(Some(slice), MemoryEvent::LimitChanged);
        Ok(())
    }

    fn start_fetching(self: &Arc<Self>, name: &str) -> Result<Sender<Fetch>, SliceError> {
        // One entry for each stream that waits, and for each region worth promoting.
        let (sender, receiver) = unbounded();
        let weak = Arc::downgrade(self);
        vram_sandbox::spawn_named(format!("fetch-{name}"), move || fetch_all(&weak, &receiver))
            .map_err(SliceError::Thread)?;
        Ok(sender)
    }

    fn slice_threads(&self) -> MutexGuard<'_, HashMap<SliceId, SliceThreads>> {
        self.slices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a freed allocation to its slice's release thread.
    pub(crate) fn release(&self, freeing: Freeing) {
        if let Some(threads) = self.slice_threads().get(&freeing.slice()) {
            // The receiver lives as long as the sender does.
            let _ = threads.releases.send(Upkeep::Freed(freeing));
        }
    }

    /// Asks for regions of a slice where they can be used. False if there is nobody to ask.
    pub(crate) fn fetch_soon(&self, slice: SliceId, fetch: Fetch) -> bool {
        self.slice_threads().get(&slice).is_some_and(|threads| threads.fetches.send(fetch).is_ok())
    }

    /// A region of a slice is not on its way any more: whoever waited for that looks again.
    pub(crate) fn moved(&self, slice: SliceId, region: RegionIndex) {
        self.released.notify_all();
        let range = self.pool().region_range(slice, region);
        if let Some(range) = range {
            self.look_at_freed(slice, range);
        }
        self.wake_accesses();
    }

    /// What is freed of a range of a slice may be released by now.
    pub(crate) fn look_at_freed(&self, slice: SliceId, range: DeviceRange) {
        if let Some(threads) = self.slice_threads().get(&slice) {
            let _ = threads.releases.send(Upkeep::Settled(range));
        }
    }

    /// The tiers, fastest first, and what they hold.
    pub fn tiers(&self) -> Vec<TierReport> {
        self.tiers.reports()
    }

    /// Looks whether the failure of a transfer says that a GPU is gone.
    pub(crate) fn note_failure(&self, error: &TransferError) {
        if let TransferError::Gpu(error) = error {
            self.note(error);
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
            self.tell(None, MemoryEvent::GpuLost(*gpu));
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

    /// Unmaps a region and gives its shard back.
    pub(crate) fn unback(&self, backing: &Backing) {
        self.wait_in_place(backing.range.start);
        self.take_away_shard(backing.range);
    }

    pub(crate) fn regions_in_motion(&self) -> MutexGuard<'_, HashSet<DeviceAddress>> {
        self.regions_in_motion.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The GPUs that are to reach memory on `gpu`: all that are there and can, so that copies between GPUs need no detour.
    pub(crate) fn reaching(&self, gpu: GpuId) -> Vec<GpuId> {
        let known = self.pool().gpus();
        let ids = known.iter().filter(|known| !known.lost).map(|known| known.id);
        ids.filter(|from| self.backend.can_access(*from, gpu)).collect()
    }
}

impl Drop for Residency {
    fn drop(&mut self) {
        self.relocating.ring();
        self.tending.ring();
    }
}

/// An extent as a piece of device memory, if it is on a GPU: where its owner has it.
pub(crate) fn part_of(extent: &Extent) -> Option<Part> {
    let range = DeviceRange { start: extent.origin.start, len_bytes: extent.range.len_bytes };
    extent.place.gpu().map(|gpu| Part::gpu(range, gpu))
}
