//! Host RAM, one slot for each region.
//!
//! A GPU copies into a slot directly: [`HostStore::take`], the copy, [`HostStore::keep`]; and out of it:
//! [`HostStore::span`]. The whole arena ([`HostStore::arena`]) can be registered with the GPUs once. Bytes stay as
//! they are, and in RAM, so there is no checksum; only a region that is one pattern gives its slot back.

use std::sync::Arc;
use std::time::Instant;

use vram_guest_memory::{ArenaSpec, HostArena, HostSlot, HostSpan};

use crate::faults::{Faults, on_purpose};
use crate::meter::Counters;
use crate::store::StoreId;
use crate::stored::Body;
use crate::{HostConfig, Meter, OpenError, Pattern, Store, Stored, TierError, TierKind};

const TIER: TierKind = TierKind::Host;

/// Bytes looked at at once when a slot is searched for a pattern.
const LOOK_BYTES: usize = 64 << 10;

/// The host tier.
pub struct HostStore {
    id: StoreId,
    arena: HostArena,
    counters: Arc<Counters>,
    faults: Faults,
}

impl HostStore {
    /// Makes the slots.
    pub fn open(config: &HostConfig) -> Result<Self, OpenError> {
        Self::open_with_faults(config, Faults::new())
    }

    /// Makes the slots of a store that fails on purpose.
    pub fn open_with_faults(config: &HostConfig, faults: Faults) -> Result<Self, OpenError> {
        let slots = config.bytes.checked_div(config.slot_bytes).and_then(|slots| u32::try_from(slots).ok());
        let arena = HostArena::new(ArenaSpec {
            slot_bytes: config.slot_bytes,
            slots: slots.unwrap_or(0),
            preallocate: config.preallocate,
            huge_pages: config.huge_pages,
        })?;
        if config.huge_pages && !arena.huge_pages() {
            tracing::warn!("the host has too few huge pages in reserve; the host tier uses ordinary ones");
        }
        Ok(Self { id: StoreId::next(), arena, counters: Arc::default(), faults })
    }

    /// The memory of all slots.
    pub fn arena(&self) -> &HostArena {
        &self.arena
    }

    /// A free slot, zeroed, to copy a region into; a region of fewer bytes begins at its start.
    pub fn take(&self) -> Result<HostSlot, TierError> {
        let full = || TierError::Full { tier: TIER, needed_bytes: self.arena.slot_bytes(), free_bytes: 0 };
        let result = self.arena.take().ok_or_else(full);
        if result.is_err() {
            self.counters.note_full();
        }
        result
    }

    /// Keeps the region of `len_bytes` bytes a slot has been filled with, once no copy writes to it any more. Gives
    /// the slot back if the region is one pattern. A slot of another store is given back and refused.
    pub fn keep(&self, slot: HostSlot, len_bytes: u64) -> Result<Stored, TierError> {
        let started = Instant::now();
        let result = self.keep_slot(slot, len_bytes);
        self.counters.note_put(&result, len_bytes, started.elapsed());
        result
    }

    /// Keeps a region that is to be used where it is: the slot is not given back, whatever is in it.
    pub fn keep_as_is(&self, slot: HostSlot, len_bytes: u64) -> Result<Stored, TierError> {
        let started = Instant::now();
        let result = self.check_slot(&slot, len_bytes).map(|_| self.in_slot(slot, len_bytes));
        self.counters.note_put(&result, len_bytes, started.elapsed());
        result
    }

    /// The bytes of a region that lies in a slot, to be copied from directly. `None` if it is one pattern
    /// ([`Stored::uniform`]) or not of this store.
    pub fn span(&self, stored: &Stored) -> Option<HostSpan> {
        match &stored.body {
            Body::Slot(slot) if stored.store == self.id => {
                slot.span().part(0, usize::try_from(stored.len_bytes()).ok()?).ok()
            }
            Body::Slot(_) | Body::Uniform(_) | Body::Chunks(_) => None,
        }
    }

    fn keep_slot(&self, slot: HostSlot, len_bytes: u64) -> Result<Stored, TierError> {
        let span = self.check_slot(&slot, len_bytes)?;
        Ok(match uniform(&span) {
            Some(pattern) => Stored::new(self.id, len_bytes, Body::Uniform(pattern), &self.counters),
            None => self.in_slot(slot, len_bytes),
        })
    }

    /// Whether a slot can be kept, and the region in it.
    fn check_slot(&self, slot: &HostSlot, len_bytes: u64) -> Result<HostSpan, TierError> {
        if !slot.is_of(&self.arena) {
            return Err(TierError::ForeignHandle { tier: TIER });
        }
        let span = self.part(&slot.span(), len_bytes)?;
        self.fail_on_purpose("write")?;
        Ok(span)
    }

    fn in_slot(&self, slot: HostSlot, len_bytes: u64) -> Stored {
        Stored::new(self.id, len_bytes, Body::Slot(slot), &self.counters)
    }

    fn put_copy(&self, from: &HostSpan) -> Result<Stored, TierError> {
        let len_bytes = from.len_bytes() as u64;
        self.check_length(len_bytes)?;
        self.fail_on_purpose("write")?;
        let body = match uniform(from) {
            Some(pattern) => Body::Uniform(pattern),
            None => {
                let full =
                    || TierError::Full { tier: TIER, needed_bytes: self.arena.slot_bytes(), free_bytes: 0 };
                let slot = self.arena.take().ok_or_else(full)?;
                self.part(&slot.span(), len_bytes)?.copy_from(from);
                Body::Slot(slot)
            }
        };
        Ok(Stored::new(self.id, len_bytes, body, &self.counters))
    }

    fn get_copy(&self, stored: &Stored, offset_bytes: u64, to: &HostSpan) -> Result<(), TierError> {
        if stored.store != self.id {
            return Err(TierError::ForeignHandle { tier: TIER });
        }
        let (len_bytes, region_bytes) = (to.len_bytes() as u64, stored.len_bytes());
        let out_of_range = TierError::OutOfRange { offset_bytes, len_bytes, region_bytes };
        let end = offset_bytes.checked_add(len_bytes).filter(|end| *end <= region_bytes);
        let (Some(_), Ok(offset)) = (end, usize::try_from(offset_bytes)) else { return Err(out_of_range) };
        if self.faults.on_read().fails {
            return Err(on_purpose(TIER, "read"));
        }
        match &stored.body {
            Body::Uniform(pattern) => fill_span(*pattern, offset_bytes, to),
            Body::Slot(slot) => {
                let Ok(from) = slot.span().part(offset, to.len_bytes()) else { return Err(out_of_range) };
                to.copy_from(&from);
            }
            Body::Chunks(_) => return Err(TierError::ForeignHandle { tier: TIER }),
        }
        Ok(())
    }

    fn check_length(&self, len_bytes: u64) -> Result<(), TierError> {
        let max_bytes = self.arena.slot_bytes();
        if len_bytes == 0 || len_bytes > max_bytes {
            return Err(TierError::BadLength { tier: TIER, len_bytes, max_bytes });
        }
        Ok(())
    }

    /// The first bytes of a slot.
    fn part(&self, slot: &HostSpan, len_bytes: u64) -> Result<HostSpan, TierError> {
        self.check_length(len_bytes)?;
        let max_bytes = self.arena.slot_bytes();
        let bad = TierError::BadLength { tier: TIER, len_bytes, max_bytes };
        usize::try_from(len_bytes).ok().and_then(|len| slot.part(0, len).ok()).ok_or(bad)
    }

    fn fail_on_purpose(&self, action: &'static str) -> Result<(), TierError> {
        let doom = self.faults.on_write(TIER)?;
        if doom.fails { Err(on_purpose(TIER, action)) } else { Ok(()) }
    }
}

impl Store for HostStore {
    fn kind(&self) -> TierKind {
        TIER
    }

    fn put(&self, from: &HostSpan) -> Result<Stored, TierError> {
        let started = Instant::now();
        let result = self.put_copy(from);
        self.counters.note_put(&result, from.len_bytes() as u64, started.elapsed());
        result
    }

    fn get(&self, stored: &Stored, offset_bytes: u64, to: &HostSpan) -> Result<(), TierError> {
        let started = Instant::now();
        let result = self.get_copy(stored, offset_bytes, to);
        self.counters.note_get(&result, to.len_bytes() as u64, started.elapsed());
        result
    }

    fn remove(&self, stored: Stored) -> Result<(), TierError> {
        let ours = stored.store == self.id;
        drop(stored);
        let result = if ours { Ok(()) } else { Err(TierError::ForeignHandle { tier: TIER }) };
        self.counters.note_remove(&result);
        result
    }

    fn meter(&self) -> Meter {
        let bytes_of = |slots: u32| u64::from(slots).saturating_mul(self.arena.slot_bytes());
        let used = self.arena.slots().saturating_sub(self.arena.free_slots());
        self.counters.read(bytes_of(used), Some(bytes_of(self.arena.slots())))
    }

    fn close(&self) -> Result<(), TierError> {
        Ok(())
    }
}

/// The pattern all bytes of a span repeat, if they do.
fn uniform(span: &HostSpan) -> Option<Pattern> {
    let mut buffer = vec![0; LOOK_BYTES.min(span.len_bytes())];
    let mut pattern = None;
    for offset in (0..span.len_bytes()).step_by(LOOK_BYTES) {
        let len = LOOK_BYTES.min(span.len_bytes().saturating_sub(offset));
        let bytes = buffer.get_mut(..len)?;
        span.part(offset, len).ok()?.read_into(bytes);
        match pattern {
            None => pattern = Some(Pattern::of(bytes)?),
            Some(pattern) if Pattern::continues(pattern, bytes) => {}
            Some(_) => return None,
        }
    }
    pattern
}

/// Fills a span with what a run of a pattern holds from `offset_bytes` on.
pub(crate) fn fill_span(pattern: Pattern, offset_bytes: u64, to: &HostSpan) {
    let mut buffer = vec![0; LOOK_BYTES.min(to.len_bytes())];
    // A whole number of repetitions, so that every piece begins alike.
    pattern.fill(offset_bytes, &mut buffer);
    for offset in (0..to.len_bytes()).step_by(LOOK_BYTES) {
        let len = LOOK_BYTES.min(to.len_bytes().saturating_sub(offset));
        if let Ok(part) = to.part(offset, len) {
            part.write_from(&buffer);
        }
    }
}
