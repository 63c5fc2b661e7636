//! The pool: its GPUs, its slices, and who may join.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use vram_gpu::{DeviceRange, GpuId};

use crate::address_map::AddressMap;
use crate::attachment::Attachments;
use crate::band::{Band, shards_up};
use crate::config::{GRANULARITY_BYTES, MAX_SHARD_BYTES, MIN_SHARD_BYTES};
use crate::gpu::{Gpus, Promise, ShardCounts, unpromised_shards};
use crate::share::Share;
use crate::slice::Slice;
use crate::span::Span;
use crate::{
    AllocRequest, GpuUsage, Heat, HeatConfig, LostRegions, Placement, PoolConfig, PoolError, RegionIndex,
    RegionState, ShareId, SliceConfig, SliceId,
};

/// In what time a slice's traffic is forgotten by half, in the pool's time: milliseconds.
const TRAFFIC_WINDOW_MS: u64 = 1000;

/// The memory of all GPUs, and who holds it. Plain data: whoever shares it between threads puts a lock around it, and
/// holds the lock for one call, never while a decision is carried out.
#[derive(Debug)]
pub struct Pool {
    pub(crate) shard_bytes: u64,
    pub(crate) gpus: Gpus,
    pub(crate) slices: BTreeMap<SliceId, Slice>,
    /// What slices export, and what of it that was revoked is still shown somewhere.
    pub(crate) shares: BTreeMap<ShareId, Share>,
    pub(crate) next_share: u64,
    /// Regions the lower tiers take.
    pub(crate) tier_regions: u32,
    next_slice: u32,
}

impl Pool {
    /// A pool of whole GPUs, with no slices.
    pub fn new(config: PoolConfig) -> Result<Self, PoolError> {
        let PoolConfig { shard_bytes, tier_regions, .. } = config;
        let fits = (MIN_SHARD_BYTES..=MAX_SHARD_BYTES).contains(&shard_bytes);
        if !fits || !shard_bytes.is_multiple_of(GRANULARITY_BYTES) {
            return Err(PoolError::BadShardSize { shard_bytes });
        }
        Ok(Self {
            shard_bytes,
            gpus: Gpus::new(config)?,
            slices: BTreeMap::new(),
            shares: BTreeMap::new(),
            next_share: 0,
            tier_regions,
            next_slice: 0,
        })
    }

    /// Bytes of a shard and of a region.
    pub fn shard_bytes(&self) -> u64 {
        self.shard_bytes
    }

    /// Bytes of device address space to reserve for a slice of this limit; `None` for no limit, or one beyond any
    /// address space.
    ///
    /// Twice what the slice can ever hold, and 1 GiB more. Allocations never move, so the free addresses are in pieces
    /// while the free shards are not: with as many spare regions as backed ones, a run of unbacked regions remains even
    /// if backed and unbacked ones alternate. The 1 GiB lets the largest alignment find a place in the smallest band.
    /// Addresses cost nothing but a small record a region.
    pub fn band_bytes(&self, limit_bytes: u64) -> Option<u64> {
        let most_bytes = self.most_bytes(limit_bytes);
        if most_bytes == 0 {
            return None;
        }
        let band_bytes = most_bytes
            .checked_mul(2)?
            .checked_add(AllocRequest::MAX_ALIGNMENT_BYTES)?
            .checked_next_multiple_of(self.shard_bytes)?;
        u32::try_from(band_bytes.checked_div(self.shard_bytes)?).ok().map(|_| band_bytes)
    }

    /// Whether a slice may join: its limit and guarantee make sense, and the guarantee fits what is not guaranteed to
    /// others. Memory that others have borrowed counts as not guaranteed, so it may take until they gave it back before
    /// the slice finds its guarantee free.
    pub fn admit(&self, config: &SliceConfig) -> Result<(), PoolError> {
        self.choose_home(config).map(|_| ())
    }

    /// Adds a slice. Its band is at least as long as the limit, better [`Self::band_bytes`], starts at a multiple of
    /// 2 MiB, is whole shards long, and overlaps no other. Without a home GPU in the configuration the home is the one
    /// with the most room that is promised to nobody, of several the one that is home to the fewest slices, then the one
    /// with most free shards, then the lowest; for a slice that packs, the fullest that has a free shard.
    pub fn add_slice(&mut self, config: SliceConfig, band: DeviceRange) -> Result<SliceId, PoolError> {
        let home = self.choose_home(&config)?;
        let regions = self.regions_of(band, config.limit_bytes)?;
        let id = SliceId(self.next_slice);
        self.next_slice = self.next_slice.checked_add(1).ok_or(PoolError::OutOfSliceIds)?;
        let slice = Slice {
            id,
            home,
            limit_shards: shards_up(config.limit_bytes, self.shard_bytes),
            most_shards: shards_up(config.limit_bytes, self.shard_bytes),
            guarantee_shards: shards_up(config.guarantee_bytes, self.shard_bytes),
            config,
            band: Band::new(band.start.0, self.shard_bytes, regions),
            map: AddressMap::new(Span::of(band)),
            pending: None,
            live_bytes: 0,
            quarantined_bytes: 0,
            held: ShardCounts::default(),
            stored: 0,
            discarding: 0,
            promoting: 0,
            evicting: ShardCounts::default(),
            heat: Heat::new(
                HeatConfig::new(self.shard_bytes, TRAFFIC_WINDOW_MS),
                if self.tier_regions > 0 { regions } else { 0 },
            ),
            incoming: ShardCounts::default(),
            attachments: Attachments::default(),
            shown: 0,
            exports: BTreeSet::new(),
            returning: ShardCounts::default(),
        };
        self.slices.insert(id, slice);
        self.settle_promises();
        Ok(id)
    }

    /// Changes a slice's limit and guarantee. A slice that holds more than its new limit keeps what it has and gets
    /// no new shard. Its addresses stay, so it cannot grow beyond them. On an error nothing has changed.
    pub fn resize_slice(
        &mut self,
        slice: SliceId,
        limit_bytes: u64,
        guarantee_bytes: u64,
    ) -> Result<(), PoolError> {
        let found = self.slices.get(&slice).ok_or(PoolError::NoSuchSlice { slice })?;
        let config = SliceConfig { limit_bytes, guarantee_bytes, ..found.config.clone() };
        let most_bytes = self.most_bytes(limit_bytes);
        let band_bytes = found.band.span().len_bytes();
        if most_bytes > band_bytes {
            return Err(PoolError::LimitBeyondBand { limit_bytes, band_bytes });
        }
        self.check_sizes(&config)?;
        let home = self.gpus.get(found.home).ok_or(PoolError::NoSuchGpu { gpu: found.home })?;
        let promisable = self.promisable(config.placement, Some(slice))(home);
        let guarantee_shards = shards_up(guarantee_bytes, self.shard_bytes);
        // What was promised before a GPU was lost or drained is not taken back; more is not promised.
        if guarantee_shards > found.guarantee_shards {
            self.check_guarantee(guarantee_shards, promisable)?;
        }
        let limit_shards = shards_up(limit_bytes, self.shard_bytes);
        if let Some(found) = self.slices.get_mut(&slice) {
            found.config = config;
            found.limit_shards = limit_shards;
            found.guarantee_shards = guarantee_shards;
            found.most_shards = found.limit_shards.max(found.footprint());
        }
        self.settle_promises();
        Ok(())
    }

    /// Removes a slice that has nothing in it: no allocation, live or quarantined, no returning region, no grant.
    /// Returns its band: nothing is behind it any more, and its addresses can be given up.
    pub fn remove_slice(&mut self, slice: SliceId) -> Result<DeviceRange, PoolError> {
        let found = self.slices.get(&slice).ok_or(PoolError::NoSuchSlice { slice })?;
        let grants = u32::from(found.pending.is_some());
        let returning_regions = found.returning.total();
        let regions_in_use = found.live_bytes > 0
            || found.is_releasing()
            || found.footprint() > 0
            || found.incoming.total() > 0;
        if regions_in_use || grants > 0 {
            return Err(PoolError::SliceInUse {
                slice,
                allocations: found.allocations(),
                quarantined_bytes: found.quarantined_bytes,
                returning_regions,
                grants,
            });
        }
        let band = found.band.span().range();
        self.slices.remove(&slice);
        self.settle_promises();
        Ok(band)
    }

    /// All slices, in the order they came.
    pub fn slices(&self) -> impl Iterator<Item = SliceId> + '_ {
        self.slices.keys().copied()
    }

    /// What a slice was made from.
    pub fn slice_config(&self, slice: SliceId) -> Option<&SliceConfig> {
        self.slices.get(&slice).map(|slice| &slice.config)
    }

    /// A slice's band.
    pub fn band(&self, slice: SliceId) -> Option<DeviceRange> {
        self.slices.get(&slice).map(|slice| slice.band.span().range())
    }

    /// What is behind a region.
    pub fn region(&self, slice: SliceId, region: RegionIndex) -> Option<RegionState> {
        self.slices.get(&slice)?.band.region(region).map(|region| region.state)
    }

    /// The GPUs and what is used of each, in order of id.
    pub fn gpus(&self) -> Vec<GpuUsage> {
        self.gpus.iter().copied().collect()
    }

    /// A GPU is gone, and with it all bytes on it. Its regions are lost, but for those a lower tier has a true copy of,
    /// which are stored now; its capacity is none. Allocations with bytes there stay live until freed and say so in their
    /// extents; no new one is put into a lost region until all that was in it is freed and forgotten. Plans and grants
    /// under way are finished as usual. Regions that show lost bytes of another slice are lost as long as those are. Returns the regions lost, by slice; nothing if the GPU is unknown or was lost
    /// before.
    pub fn mark_lost(&mut self, gpu: GpuId) -> Vec<LostRegions> {
        self.gpus.mark_lost(gpu);
        let mut lost = Vec::new();
        for slice in self.slices.values_mut() {
            let regions = slice.lose(gpu);
            if !regions.is_empty() {
                lost.push(LostRegions { slice: slice.id, regions });
            }
        }
        self.settle_promises();
        lost
    }

    /// Believes again that a GPU has the shards it was configured with, after a refusal shrank it. A lost GPU stays
    /// lost.
    pub fn restore_capacity(&mut self, gpu: GpuId) {
        self.gpus.restore_capacity(gpu);
        self.settle_promises();
    }

    /// A GPU refused a shard: believes it to have no more than is in use.
    pub(crate) fn shrink_capacity(&mut self, gpu: GpuId) {
        self.gpus.shrink_capacity(gpu);
        self.settle_promises();
    }

    /// The most regions a slice of this limit can ever have, on GPUs and in tiers, in bytes.
    fn most_bytes(&self, limit_bytes: u64) -> u64 {
        let most_shards = shards_up(limit_bytes, self.shard_bytes).min(self.most_regions());
        self.in_bytes(most_shards)
    }

    /// Regions there can be on all GPUs and in all tiers.
    fn most_regions(&self) -> u32 {
        self.gpus.configured_total().saturating_add(self.tier_regions)
    }

    pub(crate) fn in_bytes(&self, shards: u32) -> u64 {
        u64::from(shards).saturating_mul(self.shard_bytes)
    }

    fn regions_of(&self, band: DeviceRange, limit_bytes: u64) -> Result<u32, PoolError> {
        let bad = |problem| PoolError::BadBand { band, problem };
        let end = band.end().ok_or(bad("beyond the end of the address space"))?;
        if !band.start.0.is_multiple_of(GRANULARITY_BYTES) {
            return Err(bad("not aligned to 2 MiB"));
        }
        if !band.len_bytes.is_multiple_of(self.shard_bytes) {
            return Err(bad("not a multiple of the shard size long"));
        }
        if band.len_bytes < self.most_bytes(limit_bytes) || band.len_bytes == 0 {
            return Err(bad("shorter than the limit"));
        }
        let overlaps = |slice: &Slice| {
            let other = slice.band.span();
            other.start < end.0 && band.start.0 < other.end
        };
        if self.slices.values().any(overlaps) {
            return Err(bad("overlapping another band"));
        }
        let regions =
            band.len_bytes.checked_div(self.shard_bytes).and_then(|regions| u32::try_from(regions).ok());
        regions.ok_or(bad("longer than regions can be counted"))
    }

    /// Checks whether a slice may join, and finds its home.
    fn choose_home(&self, config: &SliceConfig) -> Result<GpuId, PoolError> {
        let placement = config.placement;
        self.check_sizes(config)?;
        if let Some(gpu) = config.home
            && self.gpus.get(gpu).is_none()
        {
            return Err(PoolError::NoSuchGpu { gpu });
        }
        let guarantee_shards = shards_up(config.guarantee_bytes, self.shard_bytes);
        let mut homes = ShardCounts::default();
        for slice in self.slices.values() {
            homes.add(slice.home, 1);
        }
        let promisable = self.promisable(placement, None);
        // By load: what is promised to nobody, then the fewest slices that call it home, then what nobody holds. A slice
        // that packs goes where most is taken already.
        let free = |gpu: &GpuUsage| gpu.capacity_shards.saturating_sub(gpu.used_shards);
        let preference = |gpu: &GpuUsage| match placement {
            Placement::Pack => [u32::from(free(gpu) > 0), u32::MAX.saturating_sub(free(gpu)), 0],
            _ => [unpromised_shards(gpu), u32::MAX.saturating_sub(homes.of(gpu.id)), free(gpu)],
        };
        let rank = |gpu: &&GpuUsage| {
            let fits = promisable(gpu) >= guarantee_shards;
            (!gpu.lost && !gpu.draining, fits, preference(gpu), Reverse(gpu.id))
        };
        let candidates = self.gpus.iter().filter(|gpu| config.home.is_none_or(|home| home == gpu.id));
        let chosen = candidates.max_by_key(rank).ok_or(PoolError::NoGpus)?;
        self.check_guarantee(guarantee_shards, promisable(chosen))?;
        Ok(chosen.id)
    }

    /// Whether limit and guarantee make sense by themselves.
    fn check_sizes(&self, config: &SliceConfig) -> Result<(), PoolError> {
        let &SliceConfig { guarantee_bytes, limit_bytes, .. } = config;
        if self.most_bytes(limit_bytes) == 0 {
            return Err(PoolError::BadLimit { limit_bytes });
        }
        if guarantee_bytes > limit_bytes {
            return Err(PoolError::GuaranteeAboveLimit { guarantee_bytes, limit_bytes });
        }
        Ok(())
    }

    fn check_guarantee(&self, guarantee_shards: u32, promisable_shards: u32) -> Result<(), PoolError> {
        if guarantee_shards <= promisable_shards {
            return Ok(());
        }
        Err(PoolError::GuaranteeDoesNotFit {
            requested_bytes: self.in_bytes(guarantee_shards),
            free_bytes: self.in_bytes(promisable_shards),
        })
    }

    /// How many shards could be guaranteed to a slice at home on a GPU, beside all slices but one.
    fn promisable(&self, placement: Placement, except: Option<SliceId>) -> impl Fn(&GpuUsage) -> u32 {
        // Room on one GPU counts only what cannot leave it: the promises of slices that spill move aside.
        let mut local = ShardCounts::default();
        let mut guaranteed = 0u32;
        for slice in self.slices.values().filter(|slice| Some(slice.id) != except) {
            guaranteed = guaranteed.saturating_add(slice.guarantee_shards);
            if slice.config.placement.stays_home() {
                local.add(slice.home, slice.guarantee_shards);
            }
        }
        let room = self.gpus.capacity_total().saturating_sub(guaranteed);
        move |gpu| {
            if placement.stays_home() {
                let there = if gpu.draining { 0 } else { gpu.capacity_shards };
                room.min(there.saturating_sub(local.of(gpu.id)))
            } else {
                room
            }
        }
    }

    pub(crate) fn settle_promises(&mut self) {
        let promise = |slice: &Slice| Promise {
            home: slice.home,
            shards: slice.guarantee_shards,
            local: slice.config.placement == Placement::Local,
        };
        let promises: Vec<_> = self.slices.values().map(promise).collect();
        self.gpus.settle_promises(&promises);
    }

    /// The addresses of a range that lie in the slice's band.
    pub(crate) fn clipped(slice: &Slice, range: DeviceRange) -> Span {
        Span::of(range).intersection(slice.band.span())
    }
}
