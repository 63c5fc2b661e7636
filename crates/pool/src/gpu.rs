//! The GPUs of a pool: how many shards each has, and who counts on them.

use std::cmp::Reverse;

use vram_gpu::{GpuId, Topology};

use crate::{GpuUsage, PoolConfig, PoolError};

/// A number of shards for each GPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShardCounts {
    /// By GPU number.
    counts: Vec<u32>,
}

impl ShardCounts {
    pub(crate) fn of(&self, gpu: GpuId) -> u32 {
        self.counts.get(gpu.index()).copied().unwrap_or(0)
    }

    pub(crate) fn set(&mut self, gpu: GpuId, shards: u32) {
        if self.counts.len() <= gpu.index() {
            self.counts.resize(gpu.index().saturating_add(1), 0);
        }
        if let Some(count) = self.counts.get_mut(gpu.index()) {
            *count = shards;
        }
    }

    pub(crate) fn add(&mut self, gpu: GpuId, shards: u32) {
        self.set(gpu, self.of(gpu).saturating_add(shards));
    }

    pub(crate) fn subtract(&mut self, gpu: GpuId, shards: u32) {
        self.set(gpu, self.of(gpu).saturating_sub(shards));
    }

    /// Whether both count the same for every GPU.
    pub(crate) fn equal(&self, other: &Self) -> bool {
        let longest = self.counts.len().max(other.counts.len());
        (0..longest)
            .all(|index| self.counts.get(index).unwrap_or(&0) == other.counts.get(index).unwrap_or(&0))
    }

    pub(crate) fn total(&self) -> u32 {
        self.counts.iter().fold(0, |total, &count| total.saturating_add(count))
    }
}

/// What is promised to one slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise {
    pub(crate) home: GpuId,
    pub(crate) shards: u32,
    /// Whether only the home GPU will do.
    pub(crate) local: bool,
}

/// The GPUs of a pool.
#[derive(Debug)]
pub(crate) struct Gpus {
    /// In order of id.
    usages: Vec<GpuUsage>,
    configured: ShardCounts,
    topology: Topology,
}

impl Gpus {
    pub(crate) fn new(config: PoolConfig) -> Result<Self, PoolError> {
        let PoolConfig { gpus: mut capacities, topology, .. } = config;
        if capacities.is_empty() {
            return Err(PoolError::NoGpus);
        }
        capacities.sort_by_key(|gpu| gpu.id);
        let twice = capacities.iter().zip(capacities.iter().skip(1)).find(|(a, b)| a.id == b.id);
        if let Some((gpu, _)) = twice {
            return Err(PoolError::DuplicateGpu { gpu: gpu.id });
        }
        let topology_gpus = topology.gpu_count();
        if let Some(gpu) = capacities.iter().find(|gpu| gpu.id.index() >= topology_gpus) {
            return Err(PoolError::UnknownToTopology { gpu: gpu.id, topology_gpus });
        }
        let mut configured = ShardCounts::default();
        let mut usages = Vec::with_capacity(capacities.len());
        for gpu in capacities {
            configured.set(gpu.id, gpu.shards);
            usages.push(GpuUsage {
                id: gpu.id,
                capacity_shards: gpu.shards,
                used_shards: 0,
                promised_shards: 0,
                draining: false,
                lost: false,
            });
        }
        Ok(Self { usages, configured, topology })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &GpuUsage> + '_ {
        self.usages.iter()
    }

    pub(crate) fn get(&self, gpu: GpuId) -> Option<&GpuUsage> {
        let index = self.usages.binary_search_by_key(&gpu, |usage| usage.id).ok()?;
        self.usages.get(index)
    }

    fn get_mut(&mut self, gpu: GpuId) -> Option<&mut GpuUsage> {
        let index = self.usages.binary_search_by_key(&gpu, |usage| usage.id).ok()?;
        self.usages.get_mut(index)
    }

    /// Shards of all GPUs as configured, whatever became of them.
    pub(crate) fn configured_total(&self) -> u32 {
        self.configured.total()
    }

    /// Shards of all GPUs as far as they are there, those that are drained too.
    pub(crate) fn present_total(&self) -> u32 {
        self.usages.iter().fold(0, |total, usage| total.saturating_add(usage.capacity_shards))
    }

    /// Shards of all GPUs as far as they are there and not drained.
    pub(crate) fn capacity_total(&self) -> u32 {
        let usable = self.usages.iter().filter(|usage| !usage.draining);
        usable.fold(0, |total, usage| total.saturating_add(usage.capacity_shards))
    }

    pub(crate) fn take_shard(&mut self, gpu: GpuId) {
        if let Some(usage) = self.get_mut(gpu) {
            usage.used_shards = usage.used_shards.saturating_add(1);
        }
    }

    pub(crate) fn give_back_shard(&mut self, gpu: GpuId) {
        if let Some(usage) = self.get_mut(gpu) {
            usage.used_shards = usage.used_shards.saturating_sub(1);
        }
    }

    /// Believes a GPU to have no more than is in use.
    pub(crate) fn shrink_capacity(&mut self, gpu: GpuId) {
        if let Some(usage) = self.get_mut(gpu) {
            usage.capacity_shards = usage.used_shards;
        }
    }

    /// Believes a GPU to have what was configured, unless it is lost.
    pub(crate) fn restore_capacity(&mut self, gpu: GpuId) {
        let configured = self.configured.of(gpu);
        if let Some(usage) = self.get_mut(gpu).filter(|usage| !usage.lost) {
            usage.capacity_shards = configured;
        }
    }

    pub(crate) fn mark_lost(&mut self, gpu: GpuId) {
        if let Some(usage) = self.get_mut(gpu) {
            usage.capacity_shards = 0;
            usage.used_shards = 0;
            usage.draining = false;
            usage.lost = true;
        }
    }

    pub(crate) fn set_draining(&mut self, gpu: GpuId, draining: bool) {
        if let Some(usage) = self.get_mut(gpu).filter(|usage| !usage.lost) {
            usage.draining = draining;
        }
    }

    /// Of the GPUs a condition admits, the one nearest to `home`; of several the one that comes first by `order`, then
    /// the lowest.
    pub(crate) fn nearest<T: Ord>(
        &self,
        home: GpuId,
        order: impl Fn(&GpuUsage) -> T,
        admits: impl Fn(&GpuUsage) -> bool,
    ) -> Option<GpuId> {
        self.first_by(home, |usage| (self.topology.distance(home, usage.id), order(usage)), admits)
    }

    /// Of the GPUs a condition admits, the one that comes first by `order`; of several the one nearest to `home`, then
    /// the lowest.
    pub(crate) fn first_by<T: Ord>(
        &self,
        home: GpuId,
        order: impl Fn(&GpuUsage) -> T,
        admits: impl Fn(&GpuUsage) -> bool,
    ) -> Option<GpuId> {
        let rank = |usage: &&GpuUsage| (order(usage), self.topology.distance(home, usage.id), usage.id);
        self.usages.iter().filter(|usage| admits(usage)).min_by_key(rank).map(|usage| usage.id)
    }

    /// Spreads promises over the GPUs anew: those that must stay home first, the others home and then nearest. What fits
    /// nowhere, because a GPU is lost or refused, is on no GPU's account.
    pub(crate) fn settle_promises(&mut self, promises: &[Promise]) {
        for usage in &mut self.usages {
            usage.promised_shards = 0;
        }
        for promise in promises.iter().filter(|promise| promise.local) {
            self.promise(promise.home, promise.shards);
        }
        for promise in promises.iter().filter(|promise| !promise.local) {
            let mut left = promise.shards;
            while left > 0 {
                let roomiest = |usage: &GpuUsage| Reverse(unpromised_shards(usage));
                let Some(gpu) = self.nearest(promise.home, roomiest, |usage| unpromised_shards(usage) > 0)
                else {
                    break;
                };
                left = left.saturating_sub(self.promise(gpu, left));
            }
        }
    }

    /// Promises up to so many shards of a GPU; returns how many it had left.
    fn promise(&mut self, gpu: GpuId, shards: u32) -> u32 {
        let Some(usage) = self.get_mut(gpu) else { return 0 };
        let promised = shards.min(unpromised_shards(usage));
        usage.promised_shards = usage.promised_shards.saturating_add(promised);
        promised
    }
}

/// Shards of a GPU that are promised to nobody.
pub(crate) fn unpromised_shards(usage: &GpuUsage) -> u32 {
    if usage.draining { 0 } else { usage.capacity_shards.saturating_sub(usage.promised_shards) }
}
