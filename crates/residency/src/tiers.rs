//! The tiers below the GPUs, and what they hold for whom.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::{info, warn};
use vram_guest_memory::{HostBuffer, HostSpan};
use vram_pool::{Extent, PoolTime, RegionIndex, SliceId};
use vram_tier::{HostStore, Meter, Remedy, Store, Stored, TierError, TierKind};

use crate::kept::{Body, Kept, zero};

/// How long a tier that fails is left alone.
const PAUSE: Duration = Duration::from_secs(5);

/// A tier, opened.
#[derive(Clone)]
pub enum Tier {
    /// Host RAM, whose slots are read and written in place.
    Host(Arc<HostStore>),
    /// Another, whose regions are read and written as a whole.
    Chunked(Arc<dyn Store>),
}

impl Tier {
    fn store(&self) -> &dyn Store {
        match self {
            Self::Host(store) => store.as_ref(),
            Self::Chunked(store) => store.as_ref(),
        }
    }
}

/// What one tier holds and does.
#[derive(Clone, Copy, Debug)]
pub struct TierReport {
    /// Its kind.
    pub kind: TierKind,
    /// Its counts.
    pub meter: Meter,
    /// Whether it failed lately and is left alone for a while.
    pub paused: bool,
}

/// A region of a slice.
pub(crate) type Key = (SliceId, RegionIndex);

/// The region the bytes of an extent are in.
pub(crate) fn key_of(extent: &Extent) -> Key {
    (extent.origin.slice, extent.origin.region)
}

/// A tier and how it is doing.
struct Rung {
    tier: Tier,
    paused_until: Mutex<Option<Instant>>,
}

impl Rung {
    fn is_paused(&self) -> bool {
        let mut until = self.paused_until.lock().unwrap_or_else(PoisonError::into_inner);
        let paused = until.is_some_and(|until| Instant::now() < until);
        if !paused && until.take().is_some() {
            info!(tier = %self.tier.store().kind(), "the tier is tried again");
        }
        paused
    }

    fn pause(&self, error: &TierError) {
        let mut until = self.paused_until.lock().unwrap_or_else(PoisonError::into_inner);
        *until = Instant::now().checked_add(PAUSE);
        warn!(
            tier = %self.tier.store().kind(), error = %Chain(error), pause_s = PAUSE.as_secs(),
            "a tier fails and is left alone for a while; what it would have taken stays where it is"
        );
    }
}

/// All tiers, fastest first.
pub(crate) struct Tiers {
    rungs: Vec<Rung>,
    kept: Mutex<HashMap<Key, Arc<Kept>>>,
    started: Instant,
}

impl Tiers {
    pub(crate) fn new(tiers: Vec<Tier>) -> Self {
        let mut rungs: Vec<_> =
            tiers.into_iter().map(|tier| Rung { tier, paused_until: Mutex::default() }).collect();
        rungs.sort_by_key(|rung| rung.tier.store().kind());
        Self { rungs, kept: Mutex::default(), started: Instant::now() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rungs.is_empty()
    }

    /// Regions all tiers take together.
    pub(crate) fn regions(&self, shard_bytes: u64) -> u32 {
        let of = |rung: &Rung| {
            let region_bytes = match rung.tier {
                Tier::Host(_) => shard_bytes,
                Tier::Chunked(_) => largest_stored(shard_bytes),
            };
            let limit_bytes = rung.tier.store().meter().limit_bytes;
            limit_bytes.map_or(u64::MAX, |bytes| bytes.checked_div(region_bytes).unwrap_or(0))
        };
        let regions = self.rungs.iter().fold(0u64, |sum, rung| sum.saturating_add(of(rung)));
        // Room for all slices' limits must remain countable.
        u32::try_from(regions).unwrap_or(u32::MAX).min(u32::MAX / 4)
    }

    /// The pool's time.
    pub(crate) fn now(&self) -> PoolTime {
        PoolTime(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    pub(crate) fn reports(&self) -> Vec<TierReport> {
        let report = |rung: &Rung| {
            let store = rung.tier.store();
            TierReport { kind: store.kind(), meter: store.meter(), paused: rung.is_paused() }
        };
        self.rungs.iter().map(report).collect()
    }

    pub(crate) fn kind(&self, kept: &Kept) -> Option<TierKind> {
        match &kept.body {
            Body::Zeros => self.rungs.first().map(|rung| rung.tier.store().kind()),
            Body::Stored { rung, .. } => self.rungs.get(*rung).map(|rung| rung.tier.store().kind()),
        }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<Key, Arc<Kept>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, key: Key) -> Option<Arc<Kept>> {
        self.table().get(&key).cloned()
    }

    /// Notes where a region's bytes are. What was there before is removed once nobody reads it.
    pub(crate) fn keep(&self, key: Key, kept: Kept) {
        let before = self.table().insert(key, Arc::new(kept));
        drop(before);
    }

    /// Forgets a region. Its room is free once nobody reads it any more. To be called without the pool locked.
    pub(crate) fn forget(&self, key: Key) {
        let before = self.table().remove(&key);
        drop(before);
    }

    /// All regions whose bytes take a slot of the host tier.
    pub(crate) fn in_slots(&self) -> Vec<Key> {
        let table = self.table();
        table.iter().filter(|(_, kept)| self.in_place(kept).is_some()).map(|(key, _)| *key).collect()
    }

    /// All regions a tier has something of that takes room.
    pub(crate) fn keys(&self) -> Vec<Key> {
        self.table().iter().filter(|(_, kept)| kept.pattern().is_none()).map(|(key, _)| *key).collect()
    }

    /// The host tier, if there is one.
    pub(crate) fn host(&self) -> Option<&Arc<HostStore>> {
        self.rungs.iter().find_map(|rung| match &rung.tier {
            Tier::Host(store) => Some(store),
            Tier::Chunked(_) => None,
        })
    }

    /// Whether there is a tier below the host tier.
    pub(crate) fn has_below_host(&self) -> bool {
        let mut rungs = self.rungs.iter().skip_while(|rung| matches!(rung.tier, Tier::Chunked(_)));
        rungs.next().is_some() && rungs.next().is_some()
    }

    fn slot(&self, rung: usize, stored: &Stored) -> Option<HostSpan> {
        match &self.rungs.get(rung)?.tier {
            Tier::Host(store) => store.span(stored),
            Tier::Chunked(_) => None,
        }
    }

    /// The bytes of a region, where they can be read and written in place.
    pub(crate) fn in_place(&self, kept: &Kept) -> Option<HostSpan> {
        match &kept.body {
            Body::Zeros => None,
            Body::Stored { rung, stored } => self.slot(*rung, stored),
        }
    }

    /// Overwrites bytes of a region that were freed.
    pub(crate) fn scrub(&self, key: Key, offset_bytes: u64, len_bytes: u64) {
        let Some(kept) = self.get(key) else { return };
        let in_place = self.in_place(&kept).and_then(|span| {
            span.part(usize::try_from(offset_bytes).ok()?, usize::try_from(len_bytes).ok()?).ok()
        });
        match in_place {
            Some(bytes) => zero(&bytes),
            None => kept.add_hole(offset_bytes..offset_bytes.saturating_add(len_bytes)),
        }
    }

    /// Reads a region's bytes from an offset on. Blocks.
    pub(crate) fn read(&self, kept: &Kept, offset_bytes: u64, to: &HostSpan) -> Result<(), TierError> {
        match &kept.body {
            Body::Zeros => zero(to),
            Body::Stored { rung, stored } => {
                if let Some(rung) = self.rungs.get(*rung) {
                    rung.tier.store().get(stored, offset_bytes, to)?;
                    kept.cut_holes(offset_bytes, to);
                }
            }
        }
        Ok(())
    }

    /// A free, zeroed slot of the host tier, made into a region of this many bytes that can be used in place.
    pub(crate) fn take_slot<E: From<TierError>>(
        &self,
        fill: impl FnOnce(&HostSpan) -> Result<(), E>,
        len_bytes: u64,
    ) -> Result<Option<Kept>, E> {
        for (number, rung) in self.rungs.iter().enumerate() {
            let Tier::Host(store) = &rung.tier else { continue };
            if rung.is_paused() {
                continue;
            }
            let Ok(slot) = store.take() else { continue };
            fill(&slot.span())?;
            let stored = store.keep_as_is(slot, len_bytes)?;
            return Ok(Some(Kept::stored(number, stored)));
        }
        Ok(None)
    }

    /// Stores a region in the fastest tier that takes it, `first` or below. The bytes are brought into host memory by
    /// `bring`, at most once for a slot and once for all other tiers.
    pub(crate) fn put<E: From<TierError>>(
        &self,
        first: usize,
        len_bytes: u64,
        mut bring: impl FnMut(&HostSpan) -> Result<(), E>,
    ) -> Result<Kept, E> {
        let mut staged: Option<HostBuffer> = None;
        let mut last = None;
        for (number, rung) in self.rungs.iter().enumerate().skip(first) {
            if rung.is_paused() {
                continue;
            }
            let tier = rung.tier.store().kind();
            let stored = match &rung.tier {
                Tier::Host(store) => match store.take() {
                    Ok(slot) => {
                        bring(&slot.span())?;
                        store.keep(slot, len_bytes)
                    }
                    Err(error) => Err(error),
                },
                Tier::Chunked(store) => {
                    let buffer = match staged.take() {
                        Some(buffer) => buffer,
                        None => {
                            let len = usize::try_from(len_bytes).unwrap_or(usize::MAX);
                            let buffer = HostBuffer::new(len)
                                .map_err(|_| TierError::OutOfMemory { tier, bytes: len_bytes })?;
                            bring(&buffer.span())?;
                            buffer
                        }
                    };
                    let stored = store.put(&buffer.span());
                    staged = Some(buffer);
                    stored
                }
            };
            match stored {
                Ok(stored) => return Ok(Kept::stored(number, stored)),
                Err(error) => {
                    if error.remedy() == Remedy::Later || matches!(error, TierError::NoRoomBelow { .. }) {
                        rung.pause(&error);
                    }
                    last = Some(error);
                }
            }
        }
        let none = || TierError::Full { tier: TierKind::Remote, needed_bytes: len_bytes, free_bytes: 0 };
        Err(last.unwrap_or_else(none).into())
    }
}

/// Bytes a region takes that cannot be compressed: its own, and for each chunk a seal and what aligns it.
fn largest_stored(shard_bytes: u64) -> u64 {
    shard_bytes.saturating_add(shard_bytes >> 6).saturating_add(64 << 10)
}

/// An error with its causes, on one line.
pub(crate) struct Chain<'a>(pub(crate) &'a dyn std::error::Error);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}
