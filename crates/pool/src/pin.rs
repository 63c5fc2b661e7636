//! Pins: bytes that are used stay where they are.
//!
//! Whoever reads or writes bytes of a slice pins their regions first ([`Pool::pin`]) and unpins them afterwards. A
//! region that is to move can no longer be pinned; when the last pin is gone its bytes are moved, and it can be pinned
//! again. Where a region shows bytes of another slice, the region they are in is pinned along with it.

use vram_gpu::{DeviceRange, GpuId};

use crate::band::Region;
use crate::{AccessKind, Extent, Place, Pool, PoolTime, RegionIndex, RegionState, Rights, SliceId};

/// Why bytes cannot be used now. Nothing was pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinError {
    /// They are on their way to another place; ask again when that is over.
    Moving,
    /// Some of them were in this region of a lower tier, and are damaged there.
    Damaged(RegionIndex),
    /// They were on this GPU, which is lost.
    Lost(GpuId),
    /// There is no memory behind some of them.
    Unbacked,
    /// They are another slice's, which has revoked them.
    Revoked,
    /// They are another slice's, and to be read only.
    ReadOnly,
    /// They are another slice's, and this region needs a copy of them before it is written to: see
    /// [`Pool::plan_privatization`].
    NotPrivate(RegionIndex),
}

/// What ended with the use of some bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unpinned {
    /// Whether a region that is to move waited for that.
    pub awaited: bool,
    /// What was revoked and is now no longer used, and whose it is: it may be that its release waited for that.
    pub cut_off: Vec<(SliceId, DeviceRange)>,
}

impl Pool {
    /// Keeps the bytes of a range where they are, on GPUs and in lower tiers, until [`Self::unpin`] is called with the
    /// same range. Returns where they are.
    pub fn pin(
        &mut self,
        slice: SliceId,
        range: DeviceRange,
        kind: AccessKind,
    ) -> Result<Vec<Extent>, PinError> {
        let extents: Vec<_> = self.extents(slice, range).collect();
        let covered = extents.iter().fold(0u64, |sum, extent| sum.saturating_add(extent.range.len_bytes));
        let lost = extents.iter().find_map(|extent| match extent.place {
            Place::Lost(gpu) => Some(gpu),
            _ => None,
        });
        if let Some(gpu) = lost {
            return Err(PinError::Lost(gpu));
        }
        for extent in &extents {
            self.check_use(slice, extent, kind)?;
        }
        if covered != range.len_bytes || !self.slices.contains_key(&slice) {
            return Err(PinError::Unbacked);
        }
        for extent in &extents {
            let Some(found) = self.slices.get_mut(&slice) else { continue };
            if let Some(region) = found.band.region_mut(extent.region) {
                region.pins = region.pins.saturating_add(1);
            }
            if let Some(source) = found.source(extent.region) {
                self.begin_use(source);
            }
        }
        Ok(extents)
    }

    /// Whether the bytes of an extent can be used.
    fn check_use(&self, slice: SliceId, extent: &Extent, kind: AccessKind) -> Result<(), PinError> {
        let state = self.region(slice, extent.region);
        let (Some(rights), Some(RegionState::Shared)) = (extent.shown, state) else {
            return usable(state, extent.region);
        };
        let written = kind == AccessKind::Write;
        if written && rights == Rights::Read {
            return Err(PinError::ReadOnly);
        }
        usable(self.region(extent.origin.slice, extent.origin.region), extent.region)?;
        if written && rights == Rights::CopyOnWrite {
            return Err(PinError::NotPrivate(extent.region));
        }
        Ok(())
    }

    /// Ends [`Self::pin`].
    pub fn unpin(&mut self, slice: SliceId, range: DeviceRange) -> Unpinned {
        let mut unpinned = Unpinned::default();
        let Some(found) = self.slices.get(&slice) else { return unpinned };
        for index in found.band.touched(Self::clipped(found, range)) {
            let Some(found) = self.slices.get_mut(&slice) else { continue };
            let Some(region) = found.band.region_mut(index) else { continue };
            unpinned.awaited |= region.unpin();
            if let Some(source) = found.source(index) {
                self.end_use(source, &mut unpinned);
            }
        }
        unpinned
    }

    /// Counts an access to a range that is pinned, where its bytes are. Returns the regions on GPUs whose copies in a lower
    /// tier are no longer true because of it. `now` is in milliseconds and never goes back.
    pub fn touch(
        &mut self,
        slice: SliceId,
        range: DeviceRange,
        kind: AccessKind,
        now: PoolTime,
    ) -> Vec<(SliceId, RegionIndex)> {
        let mut stale = Vec::new();
        let Some(found) = self.slices.get(&slice).filter(|_| self.tier_regions > 0) else { return stale };
        let inside = Self::clipped(found, range);
        for index in found.band.touched(inside) {
            let extent = self.slices.get(&slice).and_then(|slice| self.extent(slice, index, inside));
            let Some(Extent { range, origin, .. }) = extent else { continue };
            let Some(owner) = self.slices.get_mut(&origin.slice) else { continue };
            let before = owner.copy_below(origin.region);
            owner.heat.touch(origin.region, kind, range.len_bytes, now);
            if before != owner.copy_below(origin.region) {
                stale.push((origin.slice, origin.region));
            }
        }
        stale
    }

    /// Whether nobody uses the region any more, so that its bytes can be copied.
    pub fn is_quiet(&self, slice: SliceId, region: RegionIndex) -> bool {
        let found = self.slices.get(&slice).and_then(|slice| slice.band.region(region));
        found.is_none_or(|region| region.pins == 0)
    }

    /// Keeps a region where it is, if it is anywhere and its slice's own, until its addresses, which are returned, are
    /// unpinned.
    pub fn hold(&mut self, slice: SliceId, region: RegionIndex) -> Option<DeviceRange> {
        let band = &mut self.slices.get_mut(&slice)?.band;
        let found = band.region_mut(region)?;
        if !matches!(found.state, RegionState::Backed(_) | RegionState::Stored) {
            return None;
        }
        found.pins = found.pins.saturating_add(1);
        Some(band.region_span(region).range())
    }
}

impl Region {
    /// Takes a pin away. True if a move waited for that.
    pub(crate) fn unpin(&mut self) -> bool {
        self.pins = self.pins.saturating_sub(1);
        self.pins == 0 && self.state.is_moving()
    }
}

/// Whether bytes can be used that are in a region of this state. `region` is where they are asked for.
pub(crate) fn usable(state: Option<RegionState>, region: RegionIndex) -> Result<(), PinError> {
    match state {
        Some(state) if state.is_moving() => Err(PinError::Moving),
        Some(RegionState::Damaged) => Err(PinError::Damaged(region)),
        Some(RegionState::Lost(gpu)) => Err(PinError::Lost(gpu)),
        Some(RegionState::Revoked) => Err(PinError::Revoked),
        Some(RegionState::Backed(_) | RegionState::Stored) => Ok(()),
        _ => Err(PinError::Unbacked),
    }
}
