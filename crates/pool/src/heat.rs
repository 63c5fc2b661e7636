//! Heat: how much use each region of a slice gets, which one to evict, and which move is worth its cost.
//!
//! A region's heat is the bytes touched in it, where older bytes count less: after the slice has touched
//! [`HeatConfig::memory_fills`] times what it holds in GPU memory, a byte counts 1/e. That clock is the slice's own
//! traffic, so a slow slice remembers as well as a busy one, and no touch reads a clock. Instead of ageing every heat,
//! new bytes are weighted more and more; regions that are not touched keep their order, so a heap needs to move only the
//! region that is.
//!
//! Rules:
//!
//! - The coldest evictable region is the victim. A pinned one never is.
//! - A region in a tier is served from there until its heat exceeds the victim's by what the exchange costs: the read
//!   of the region from its tier, and the write-back of the victim if its copy in a lower tier is not valid, each times
//!   [`HeatConfig::margin_moves`]. Heat is bytes, and so is the cost. Evicted, a region is no hotter than those that
//!   stay; so between two promotions of a region at least that much of it is asked for while it is in its tier, whatever
//!   the accesses are: promotions cannot thrash. One pass over a region is not enough, so a scan displaces nothing.
//! - A victim without any use, in 5.5 memories or ever, goes for a region with some. Else a memory full of bytes that are
//!   dead would stay, if no other region alone is asked for often enough to outweigh the exchange.
//! - Between slices, [`Demand`] compares: heat as a part of the slice's traffic, times that traffic.
//!
//! Which slice pays, whether there is room, and the moves themselves are decided and done elsewhere. What was measured
//! against other policies: `docs/decisions/0013-eviction-policy.md`.

mod heap;
mod traffic;

use crate::RegionIndex;
use heap::Heap;
use traffic::Traffic;

pub use traffic::{Demand, PoolTime};

/// The part of a region's bytes that is no use at all, and the part that is some. From the one down to the other takes
/// 5.5 memories: so often, at most, a place in GPU memory changes hands for no more than some use.
const NO_USE: f64 = 1.0 / 1024.0;
const SOME_USE: f64 = 1.0 / 4.0;

/// Weights are scaled down when they reach this. Powers of two, so that scaling rounds nothing.
const UNIT_LIMIT: f64 = f64::from_bits((1023 + 512) << 52);
const UNIT_SCALE: f64 = f64::from_bits((1023 - 512) << 52);

/// How heat is kept. [`HeatConfig::new`] has what was found best.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeatConfig {
    /// Bytes of a region.
    pub shard_bytes: u64,
    /// How long a touch counts: so many times the bytes the slice holds in GPU memory.
    pub memory_fills: f64,
    /// How much hotter than its victim a region must be to be promoted: so many times the bytes the exchange moves
    /// between GPU and tier.
    pub margin_moves: f64,
    /// What an access to a tier costs besides its bytes, in bytes: its latency at its bandwidth.
    pub access_bytes: u64,
    /// In what time of the pool a slice's traffic is forgotten by half.
    pub traffic_window: u64,
}

impl HeatConfig {
    /// The measured defaults. `traffic_window` is in the unit of the clock the pool uses.
    #[must_use]
    pub fn new(shard_bytes: u64, traffic_window: u64) -> Self {
        Self { shard_bytes, memory_fills: 4.0, margin_moves: 1.25, access_bytes: 32 << 10, traffic_window }
    }
}

/// Whether a tier below the GPU holds the bytes of a region as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierCopy {
    /// It does: evicting the region moves nothing.
    Valid,
    /// It does not: evicting the region writes it back.
    Stale,
}

/// Where a region's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residence {
    /// In GPU memory.
    Gpu(TierCopy),
    /// In a tier below.
    Tier,
}

/// What an access does to the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// READ, or the source of a COPY.
    Read,
    /// WRITE, FILL, or the destination of a COPY.
    Write,
}

/// What a guest says about a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Not needed soon: as cold as one that was never touched.
    Cold,
    /// Needed soon: hot enough to be promoted in place of the slice's own coldest region, and no hotter.
    Prefetch,
}

/// A region that may be evicted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Victim {
    /// Which, in its slice.
    pub region: RegionIndex,
    /// Whether it must be written back.
    pub copy: TierCopy,
    /// What its slice loses, comparable between slices: the lowest is the one to evict.
    pub demand: Demand,
}

/// One region's entry: 16 bytes, and 4 in a heap.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Bytes, weighted by the unit of their time.
    heat: f64,
    /// Where in its heap, unless pinned.
    slot: u32,
    pins: u16,
    residence: Option<Residence>,
}

impl Entry {
    const ABSENT: Self = Self { heat: 0.0, slot: 0, pins: 0, residence: None };
}

/// The heat of one slice's regions.
#[derive(Debug)]
pub struct Heat {
    config: HeatConfig,
    /// By region index.
    entries: Vec<Entry>,
    /// Regions in GPU memory that are not pinned, coldest first.
    evictable: Heap,
    /// Regions in a tier that are not pinned, hottest first.
    promotable: Heap,
    /// Regions in GPU memory.
    resident: u32,
    /// What a byte touched now weighs.
    unit: f64,
    traffic: Traffic,
}

impl Heat {
    /// For a band of so many regions, none of them inserted yet. Takes 24 bytes for each, and no more later.
    #[must_use]
    pub fn new(config: HeatConfig, regions: u32) -> Self {
        let regions = usize::try_from(regions).unwrap_or(usize::MAX);
        Self {
            config,
            entries: vec![Entry::ABSENT; regions],
            evictable: Heap::coldest_first(regions),
            promotable: Heap::hottest_first(regions),
            resident: 0,
            unit: 1.0,
            traffic: Traffic::new(config.traffic_window),
        }
    }

    /// A region is now here: it came to be, or arrived from elsewhere. Its heat and
    /// its pins stay what they were; a new one has none. An index outside the band is ignored, as everywhere here.
    pub fn insert(&mut self, region: RegionIndex, residence: Residence) {
        self.replace(region, Some(residence));
    }

    /// Forgets a region: it has no bytes any more. It is no longer pinned.
    pub fn remove(&mut self, region: RegionIndex) {
        self.replace(region, None);
        if let Some(entry) = self.entry_mut(region) {
            *entry = Entry::ABSENT;
        }
    }

    /// Where a region is; `None` if it was not inserted.
    #[must_use]
    pub fn residence(&self, region: RegionIndex) -> Option<Residence> {
        self.entry(region).and_then(|entry| entry.residence)
    }

    /// Whether it is for a band of no regions, and so keeps nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Regions in GPU memory.
    #[must_use]
    pub fn resident(&self) -> u32 {
        self.resident
    }

    /// Counts an access to a part of a region, wherever it was served from. A write to a region in GPU memory makes
    /// the copy below it stale. `now` never goes back. O(log n).
    pub fn touch(&mut self, region: RegionIndex, kind: AccessKind, len_bytes: u64, now: PoolTime) {
        let unit = self.unit;
        let cost = approximate(len_bytes.saturating_add(self.config.access_bytes));
        let Some(entry) = self.present_mut(region) else { return };
        entry.heat += cost * unit;
        if kind == AccessKind::Write && entry.residence == Some(Residence::Gpu(TierCopy::Valid)) {
            entry.residence = Some(Residence::Gpu(TierCopy::Stale));
        }
        self.reorder(region);
        self.traffic.add(len_bytes, now);
        self.age(cost);
    }

    /// The copy in a tier below is valid again: a region in GPU memory was written back and stays.
    pub fn written_back(&mut self, region: RegionIndex) {
        if let Some(entry) = self.entry_mut(region)
            && entry.residence == Some(Residence::Gpu(TierCopy::Stale))
        {
            entry.residence = Some(Residence::Gpu(TierCopy::Valid));
        }
    }

    /// Whether a region is pinned.
    #[must_use]
    pub fn is_pinned(&self, region: RegionIndex) -> bool {
        self.entry(region).is_some_and(|entry| entry.pins > 0)
    }

    /// Number of pinned regions.
    #[must_use]
    pub fn pinned(&self) -> u32 {
        let pinned = self.entries.iter().filter(|entry| entry.pins > 0).count();
        u32::try_from(pinned).unwrap_or(u32::MAX)
    }

    /// Keeps a region where it is until it was unpinned as often. Returns whether it is known, and not pinned too often.
    #[must_use]
    pub fn pin(&mut self, region: RegionIndex) -> bool {
        let Some(entry) = self.present_mut(region) else { return false };
        let Some(pins) = entry.pins.checked_add(1) else { return false };
        if pins == 1 {
            self.leave_heap(region);
        }
        self.set_pins(region, pins);
        true
    }

    /// Takes one pin away.
    pub fn unpin(&mut self, region: RegionIndex) {
        let Some(pins) = self.present_mut(region).and_then(|entry| entry.pins.checked_sub(1)) else { return };
        self.set_pins(region, pins);
        if pins == 0 {
            self.enter_heap(region);
        }
    }

    /// Takes a guest's word about a region.
    pub fn advise(&mut self, region: RegionIndex, advice: Advice) {
        let wanted = match advice {
            Advice::Cold => 0.0,
            Advice::Prefetch => self.prefetched_heat(),
        };
        let Some(entry) = self.present_mut(region) else { return };
        entry.heat = match advice {
            Advice::Cold => wanted,
            Advice::Prefetch => entry.heat.max(wanted),
        };
        self.reorder(region);
    }

    /// The coldest evictable region of those a condition admits. O(1) if it admits the coldest, else it grows with the
    /// number refused.
    #[must_use]
    pub fn victim(&self, now: PoolTime, admits: impl FnMut(RegionIndex) -> bool) -> Option<Victim> {
        let region = self.evictable.first(&self.entries, admits)?;
        match self.entry(region)?.residence? {
            Residence::Gpu(copy) => Some(Victim { region, copy, demand: self.demand(region, now) }),
            Residence::Tier => None,
        }
    }

    /// The hottest region in a tier of those a condition admits: the one to promote when there is room. Costs as
    /// [`Heat::victim`].
    #[must_use]
    pub fn candidate(&self, admits: impl FnMut(RegionIndex) -> bool) -> Option<RegionIndex> {
        self.promotable.first(&self.entries, admits)
    }

    /// Whether to promote a region that was just touched, or is the [`Heat::candidate`], in place of a victim of this
    /// slice or another; or, with no victim, into room that is free. If not, its tier serves it.
    #[must_use]
    pub fn should_promote(&self, region: RegionIndex, victim: Option<Victim>, now: PoolTime) -> bool {
        let promotable = self
            .entry(region)
            .is_some_and(|entry| entry.residence == Some(Residence::Tier) && entry.pins == 0);
        promotable && victim.is_none_or(|victim| self.outweighs(region, victim, now))
    }

    fn outweighs(&self, region: RegionIndex, victim: Victim, now: PoolTime) -> bool {
        let demand = self.demand(region, now);
        let part = |part: f64| self.demand_of(part * approximate(self.config.shard_bytes), now);
        let margin = self.demand_of(self.margin_bytes(victim.copy), now);
        let unused = victim.demand <= part(NO_USE) && demand >= part(SOME_USE);
        unused || demand >= victim.demand.plus(margin)
    }

    /// How many bytes a region can be expected to be asked for while the pool's traffic window passes. Comparable
    /// between slices that are asked at the same time and have the same window.
    #[must_use]
    pub fn demand(&self, region: RegionIndex, now: PoolTime) -> Demand {
        self.demand_of(self.entry(region).map_or(0.0, |entry| entry.heat / self.unit), now)
    }

    fn demand_of(&self, heat_bytes: f64, now: PoolTime) -> Demand {
        self.traffic.share(heat_bytes / self.memory_bytes(), now)
    }

    /// Heat that makes the exchange with a victim worthwhile.
    fn margin_bytes(&self, copy: TierCopy) -> f64 {
        let moves = match copy {
            TierCopy::Valid => 1.0,
            TierCopy::Stale => 2.0,
        };
        moves * self.config.margin_moves * approximate(self.config.shard_bytes)
    }

    /// The least weighted heat that would be promoted in place of the coldest region.
    fn prefetched_heat(&self) -> f64 {
        let coldest = self.evictable.first(&self.entries, |_| true).and_then(|region| self.entry(region));
        coldest.map_or(0.0, |entry| entry.heat) + 1.01 * self.margin_bytes(TierCopy::Stale) * self.unit
    }

    /// The traffic after which a touch counts 1/e.
    fn memory_bytes(&self) -> f64 {
        self.config.memory_fills
            * f64::from(self.resident.max(1))
            * approximate(self.config.shard_bytes.max(1))
    }

    fn age(&mut self, bytes: f64) {
        self.unit *= 1.0 + bytes / self.memory_bytes();
        if self.unit >= UNIT_LIMIT {
            self.unit *= UNIT_SCALE;
            // The order stays: heats that become equal were next to each other.
            self.entries.iter_mut().for_each(|entry| entry.heat *= UNIT_SCALE);
        }
    }

    fn replace(&mut self, region: RegionIndex, residence: Option<Residence>) {
        self.leave_heap(region);
        let Some(entry) = self.entry_mut(region) else { return };
        let was_resident = matches!(entry.residence, Some(Residence::Gpu(_)));
        entry.residence = residence;
        let is_resident = matches!(residence, Some(Residence::Gpu(_)));
        self.resident =
            self.resident.saturating_sub(u32::from(was_resident)).saturating_add(u32::from(is_resident));
        self.enter_heap(region);
    }

    fn set_pins(&mut self, region: RegionIndex, pins: u16) {
        if let Some(entry) = self.entry_mut(region) {
            entry.pins = pins;
        }
    }

    fn reorder(&mut self, region: RegionIndex) {
        self.with_heap(region, Heap::reorder);
    }

    fn leave_heap(&mut self, region: RegionIndex) {
        self.with_heap(region, Heap::remove);
    }

    fn enter_heap(&mut self, region: RegionIndex) {
        self.with_heap(region, Heap::push);
    }

    /// Does something to the heap a region belongs in, if it does in any.
    fn with_heap(&mut self, region: RegionIndex, act: impl FnOnce(&mut Heap, &mut [Entry], RegionIndex)) {
        let Some(entry) = self.entry(region).filter(|entry| entry.pins == 0) else { return };
        match entry.residence {
            Some(Residence::Gpu(_)) => act(&mut self.evictable, &mut self.entries, region),
            Some(Residence::Tier) => act(&mut self.promotable, &mut self.entries, region),
            None => {}
        }
    }

    fn entry(&self, region: RegionIndex) -> Option<&Entry> {
        heap::entry(&self.entries, region)
    }

    fn entry_mut(&mut self, region: RegionIndex) -> Option<&mut Entry> {
        self.entries.get_mut(usize::try_from(region.0).ok()?)
    }

    fn present_mut(&mut self, region: RegionIndex) -> Option<&mut Entry> {
        self.entry_mut(region).filter(|entry| entry.residence.is_some())
    }
}

/// A number of bytes to calculate with; above 2^53 not exact, which no decision depends on.
#[expect(clippy::cast_precision_loss, reason = "heat is an estimate")]
fn approximate(bytes: u64) -> f64 {
    bytes as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_with_its_heap_slots_fits_the_budget() {
        assert!(size_of::<Entry>() + 2 * size_of::<RegionIndex>() <= 24);
    }
}
