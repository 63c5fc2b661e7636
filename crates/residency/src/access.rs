//! Reading and writing: where bytes are when they are needed, and that they stay there meanwhile.

use std::sync::{Arc, PoisonError, Weak};

use vram_gpu::{DeviceRange, GpuError, Pattern};
use vram_guest_memory::{HostSpan, SpanList};
use vram_pool::{AccessKind, Extent, PinError, Place, Pool, RegionIndex, Rights, SliceId, Unpinned};
use vram_tier::Remedy;
use vram_transfer::{Again, ColdSource, Lease, Locate, Located, Part, TransferError, Work};

use crate::Residency;
use crate::fetch::{Fetch, Needed, Verdict};
use crate::kept::Kept;
use crate::moves::read_failure;
use crate::residency::part_of;
use crate::tiers::{Key, key_of};

/// How often bytes that were brought may be gone again before they are used.
const FETCHES: u32 = 16;

/// What is to be done with bytes of a slice.
pub enum Access {
    /// Host memory is written to them.
    Write {
        /// Where to.
        to: DeviceRange,
        /// Where from: as long.
        from: SpanList,
    },
    /// They are read into host memory.
    Read {
        /// Where from.
        from: DeviceRange,
        /// Where to: as long.
        to: SpanList,
    },
    /// They are copied to others of the slice.
    Copy {
        /// Where to.
        to: DeviceRange,
        /// Where from: as long, and elsewhere.
        from: DeviceRange,
    },
    /// They are filled.
    Fill {
        /// Where.
        to: DeviceRange,
        /// With what.
        pattern: Pattern,
    },
}

impl Access {
    /// What is written.
    fn to(&self) -> Option<DeviceRange> {
        match self {
            Self::Write { to, .. } | Self::Copy { to, .. } | Self::Fill { to, .. } => Some(*to),
            Self::Read { .. } => None,
        }
    }

    /// What is read.
    fn from(&self) -> Option<DeviceRange> {
        match self {
            Self::Read { from, .. } | Self::Copy { from, .. } => Some(*from),
            Self::Write { .. } | Self::Fill { .. } => None,
        }
    }

    fn len_bytes(&self) -> u64 {
        self.to().or(self.from()).map_or(0, |range| range.len_bytes)
    }

    /// Cuts it in two; `None` if the host memory is shorter than it should be.
    fn split(self, at: u64) -> Option<(Self, Self)> {
        Some(match self {
            Self::Write { to, from } => {
                let ((to, later_to), (from, later_from)) = (cut(to, at)?, from.split_at(at)?);
                (Self::Write { to, from }, Self::Write { to: later_to, from: later_from })
            }
            Self::Read { from, to } => {
                let ((from, later_from), (to, later_to)) = (cut(from, at)?, to.split_at(at)?);
                (Self::Read { from, to }, Self::Read { from: later_from, to: later_to })
            }
            Self::Copy { to, from } => {
                let ((to, later_to), (from, later_from)) = (cut(to, at)?, cut(from, at)?);
                (Self::Copy { to, from }, Self::Copy { to: later_to, from: later_from })
            }
            Self::Fill { to, pattern } => {
                let (to, later_to) = cut(to, at)?;
                (Self::Fill { to, pattern }, Self::Fill { to: later_to, pattern })
            }
        })
    }

    fn work(self, to_parts: Vec<Part>, from_parts: Vec<Part>) -> Work {
        match self {
            Self::Write { from, .. } => Work::Write { to: to_parts, from },
            Self::Read { to, .. } => Work::Read { from: from_parts, to },
            Self::Copy { .. } => Work::Copy { to: to_parts, from: from_parts },
            Self::Fill { pattern, .. } => Work::Fill { to: to_parts, pattern },
        }
    }
}

fn cut(range: DeviceRange, at: u64) -> Option<(DeviceRange, DeviceRange)> {
    let later =
        DeviceRange { start: range.start.checked_add(at)?, len_bytes: range.len_bytes.checked_sub(at)? };
    Some((DeviceRange { start: range.start, len_bytes: at }, later))
}

/// An access that waits for its turn. The caller holds a lease on the bytes.
struct Waiting {
    residency: Weak<Residency>,
    slice: SliceId,
    access: Option<Access>,
    verdict: Verdict,
    fetches: u32,
}

/// Keeps bytes where they are.
struct Pins {
    residency: Weak<Residency>,
    slice: SliceId,
    ranges: [Option<DeviceRange>; 2],
}

/// Where the bytes of a piece are.
enum Found {
    /// Here, pinned: what is written, what is read, and the regions of it that are in a tier.
    Here { to: Vec<Part>, from: Vec<Part>, in_tiers: Vec<Key> },
    /// Some of them must be brought first.
    Needed(Needed),
}

impl Residency {
    /// Work on bytes of a slice that finds out where they are when its turn comes.
    pub fn access(self: &Arc<Self>, slice: SliceId, access: Access) -> Work {
        Work::Located(Box::new(Waiting {
            residency: Arc::downgrade(self),
            slice,
            access: Some(access),
            verdict: Verdict::default(),
            fetches: 0,
        }))
    }

    /// Asks again, for everybody who waited for bytes that moved.
    pub(crate) fn wake_accesses(&self) {
        let waiting = std::mem::take(&mut *self.waiting_accesses());
        for again in waiting {
            again();
        }
    }

    /// Lets go of ranges that were pinned, or of regions that were held.
    pub(crate) fn unpin(&self, slice: SliceId, ranges: &[DeviceRange]) {
        for range in ranges {
            let unpinned = self.pool().unpin(slice, *range);
            self.after_use(&unpinned);
        }
    }

    /// Tells those who waited for the end of a use. The pool is not locked.
    pub(crate) fn after_use(&self, unpinned: &Unpinned) {
        if unpinned.awaited || !unpinned.cut_off.is_empty() {
            self.quiet.notify_all();
        }
        for (owner, range) in &unpinned.cut_off {
            self.look_at_freed(*owner, *range);
        }
    }

    /// Pins ranges, what is written and what is read, and finds their parts. The pool stays locked.
    fn find(
        self: &Arc<Self>,
        pool: &mut Pool,
        [to, from]: [Option<DeviceRange>; 2],
        pins: &mut Pins,
    ) -> Result<Found, PinError> {
        let slice = pins.slice;
        let [to_pinned, from_pinned] = &mut pins.ranges;
        let (mut in_tiers, mut needed) = (Vec::new(), Needed::default());
        let mut find = |range: Option<DeviceRange>, pinned: &mut Option<DeviceRange>, usage| {
            let Some(range) = range else { return Ok(Vec::new()) };
            let extents = pool.pin(slice, range, usage)?;
            *pinned = Some(range);
            let mut parts = Vec::with_capacity(extents.len());
            for extent in &extents {
                let part = if extent.place == Place::Tier {
                    in_tiers.push(key_of(extent));
                    self.tier_part(pool, extent, usage)
                } else {
                    part_of(extent)
                };
                match part {
                    Some(part) => {
                        parts.push(part);
                        needed.beside.push(key_of(extent));
                    }
                    None => needed.bring.push(key_of(extent)),
                }
            }
            Ok(parts)
        };
        let to = find(to, to_pinned, AccessKind::Write)?;
        let from = find(from, from_pinned, AccessKind::Read)?;
        if needed.bring.is_empty() {
            Ok(Found::Here { to, from, in_tiers })
        } else {
            Ok(Found::Needed(needed))
        }
    }

    /// The part of an extent that lies in a tier, if it can be used there.
    pub(crate) fn tier_part(
        self: &Arc<Self>,
        pool: &Pool,
        extent: &Extent,
        usage: AccessKind,
    ) -> Option<Part> {
        let (slice, region) = key_of(extent);
        let kept = self.tiers.get((slice, region))?;
        let start = pool.region_range(slice, region)?.start;
        let offset_bytes = extent.origin.start.0.checked_sub(start.0)?;
        let len_bytes = extent.range.len_bytes;
        if let Some(span) = self.tiers.in_place(&kept) {
            let (offset, len) = (usize::try_from(offset_bytes).ok()?, usize::try_from(len_bytes).ok()?);
            return span.part(offset, len).ok().map(Part::Host);
        }
        let residency = Arc::downgrade(self);
        (usage == AccessKind::Read).then(|| {
            let source = Arc::new(TierSource { residency, slice, region, kept });
            Part::cold(source, offset_bytes, len_bytes)
        })
    }
}

impl Waiting {
    /// How much of two ranges, what is written and what is read, can be used at once: all if it is on GPUs; otherwise what
    /// lies in one region, for what has to be brought or copied may not all fit.
    fn piece_bytes(pool: &Pool, slice: SliceId, [to, from]: [Option<DeviceRange>; 2]) -> u64 {
        let ranges = || [to, from].into_iter().flatten();
        let whole = ranges().map(|range| range.len_bytes).min().unwrap_or(0);
        if !pool.has_stored(slice) && !pool.has_attached(slice) {
            return whole;
        }
        let on_gpus = |range| pool.extents(slice, range).all(|extent| extent.place != Place::Tier);
        let copied = |extent: Extent| extent.shown == Some(Rights::CopyOnWrite);
        let is_copied = to.is_some_and(|to| pool.extents(slice, to).any(copied));
        if ranges().all(on_gpus) && !is_copied {
            return whole;
        }
        let to_edge = |range| pool.extents(slice, range).next().map(|extent| extent.range.len_bytes);
        ranges().filter_map(to_edge).min().unwrap_or(whole)
    }

    /// Asks for regions to be brought, and waits.
    fn fetch(&mut self, residency: &Residency, needed: Needed, again: Again) -> Located {
        self.fetches = self.fetches.saturating_add(1);
        let verdict = Arc::clone(&self.verdict);
        let fetch = Fetch::Needed { needed, verdict, again };
        if self.fetches <= FETCHES && residency.fetch_soon(self.slice, fetch) {
            Located::Moving
        } else {
            Located::Gone(TransferError::NoRoom)
        }
    }

    /// Makes work of the first bytes of the access, and leaves the rest.
    fn work(&mut self, len_bytes: u64, to: Vec<Part>, from: Vec<Part>, lease: Lease) -> Option<Located> {
        let access = self.access.take()?;
        if access.len_bytes() == len_bytes {
            return Some(Located::Here(access.work(to, from), lease));
        }
        let (piece, rest) = access.split(len_bytes)?;
        let rest = Box::new(Self {
            residency: Weak::clone(&self.residency),
            slice: self.slice,
            access: Some(rest),
            verdict: Verdict::default(),
            fetches: 0,
        });
        Some(Located::Piece { work: piece.work(to, from), lease, rest })
    }
}

impl Locate for Waiting {
    fn locate(&mut self, again: Again) -> Located {
        let Some(residency) = self.residency.upgrade() else {
            return Located::Gone(TransferError::Cancelled);
        };
        if let Some(error) = self.verdict.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Located::Gone(error);
        }
        let Some(access) = &self.access else { return Located::Gone(TransferError::Cancelled) };
        let whole = [access.to(), access.from()];
        // Made before the pool is locked, so that what was pinned is unpinned after it is unlocked.
        let mut pins =
            Pins { residency: Weak::clone(&self.residency), slice: self.slice, ranges: [None, None] };
        let mut pool = residency.pool();
        let piece_bytes = Self::piece_bytes(&pool, self.slice, whole);
        let [to, from] =
            whole.map(|range| range.map(|range| DeviceRange { len_bytes: piece_bytes, ..range }));
        let (to_parts, from_parts, in_tiers) = match residency.find(&mut pool, [to, from], &mut pins) {
            Ok(Found::Here { to, from, in_tiers }) => (to, from, in_tiers),
            Ok(Found::Needed(needed)) => {
                drop(pool);
                drop(pins);
                return self.fetch(&residency, needed, again);
            }
            Err(PinError::Moving) => {
                // Whoever moves the bytes holds the pool's lock when it is done, and looks here afterwards.
                residency.waiting_accesses().push(again);
                return Located::Moving;
            }
            Err(PinError::NotPrivate(region)) => {
                drop(pool);
                drop(pins);
                let needed = Needed { private: Some((self.slice, region)), ..Needed::default() };
                return self.fetch(&residency, needed, again);
            }
            Err(error) => return Located::Gone(gone(error)),
        };
        let now = residency.tiers.now();
        let mut stale = Vec::new();
        for (range, kind) in [(to, AccessKind::Write), (from, AccessKind::Read)] {
            if let Some(range) = range {
                stale.extend(pool.touch(self.slice, range, kind, now));
            }
        }
        let worthwhile: Vec<_> = in_tiers
            .into_iter()
            .filter(|(slice, region)| pool.is_worth_promoting(*slice, *region, &[], now))
            .collect();
        drop(pool);
        for key in stale {
            residency.tiers.forget(key);
        }
        for (slice, region) in worthwhile {
            residency.suggest(slice, region);
        }
        self.work(piece_bytes, to_parts, from_parts, Arc::new(pins))
            .unwrap_or(Located::Gone(TransferError::Mismatch))
    }
}

pub(crate) fn gone(error: PinError) -> TransferError {
    match error {
        PinError::Lost(gpu) => GpuError::DeviceLost { gpu, reason: "the bytes were on it".to_owned() }.into(),
        PinError::Damaged(_) => TransferError::DataLost,
        PinError::Revoked => TransferError::Revoked,
        PinError::ReadOnly => TransferError::ReadOnly,
        PinError::Moving | PinError::Unbacked | PinError::NotPrivate(_) => TransferError::Mismatch,
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let Some(residency) = self.residency.upgrade() else { return };
        let ranges: Vec<_> = self.ranges.into_iter().flatten().collect();
        if !ranges.is_empty() {
            residency.unpin(self.slice, &ranges);
        }
    }
}

/// A region in a tier, as something to read from.
struct TierSource {
    residency: Weak<Residency>,
    slice: SliceId,
    region: RegionIndex,
    kept: Arc<Kept>,
}

impl ColdSource for TierSource {
    fn read(&self, offset_bytes: u64, to: &HostSpan) -> Result<(), TransferError> {
        let Some(residency) = self.residency.upgrade() else { return Err(TransferError::Cancelled) };
        residency.tiers.read(&self.kept, offset_bytes, to).map_err(|error| {
            if error.remedy() == Remedy::BytesLost {
                residency.note_damage(self.slice, self.region, &error);
            }
            read_failure(&error)
        })
    }
}
