//! Privatization: a region that shows bytes of another slice gets a copy of its own, as the first write to it with
//! [`Rights::CopyOnWrite`] demands.

use vram_gpu::{DeviceRange, GpuId};

use crate::attachment::{Attachment, Source};
use crate::band::Region;
use crate::pin::usable;
use crate::room::{Room, When};
use crate::slice::Slice;
use crate::span::Span;
use crate::{
    AllocError, Extent, PinError, Pool, RegionIndex, RegionState, Rights, SliceId, TierCopy, Unpinned,
};

/// A region that is to have a copy of the bytes it shows. End it with [`Pool::finish_privatization`] or
/// [`Pool::abort_privatization`]; until then nobody can use the region, and what it shows stays where it is.
#[must_use = "a privatization that is neither finished nor aborted keeps its region from being used"]
#[derive(Debug, PartialEq, Eq)]
pub struct Privatization {
    slice: SliceId,
    region: RegionIndex,
    range: DeviceRange,
    gpu: Option<GpuId>,
    extent: Extent,
    source: Source,
}

/// Where the copy is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrivateLevel {
    /// On a GPU, chosen as for a new region.
    Gpu,
    /// In a lower tier.
    Tier,
}

/// Why there can be no copy now. Nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrivatizeError {
    /// There is no room for it.
    Room(AllocError),
    /// What is to be copied cannot be used.
    Source(PinError),
}

impl Privatization {
    /// Whose.
    pub fn slice(&self) -> SliceId {
        self.slice
    }

    /// Which region.
    pub fn region(&self) -> RegionIndex {
        self.region
    }

    /// Its addresses.
    pub fn range(&self) -> DeviceRange {
        self.range
    }

    /// Where the copy's shard is to be; none for a copy in a lower tier.
    pub fn gpu(&self) -> Option<GpuId> {
        self.gpu
    }

    /// What of the region is to be copied, and from where. The rest of it is to be zeros: nobody was shown what the owner
    /// has beside.
    pub fn source(&self) -> Extent {
        self.extent
    }
}

impl Pool {
    /// Begins to give a region a copy of the bytes it shows; `None` if it is private by now, or may not become so. Its bytes
    /// are pinned where they are. The region counted towards its slice's limit before, and nothing else has to make room
    /// for it there, unless the limit was lowered since.
    pub fn plan_privatization(
        &mut self,
        slice: SliceId,
        region: RegionIndex,
        level: PrivateLevel,
    ) -> Result<Option<Privatization>, PrivatizeError> {
        let no_slice = PrivatizeError::Room(AllocError::NoSuchSlice { slice });
        let found = self.slices.get(&slice).ok_or(no_slice)?;
        let window = found.band.region_span(region);
        let shared = |found: &Region| found.state == RegionState::Shared && found.live_bytes > 0;
        let attachment = found.attachment(region).filter(|at| at.rights == Rights::CopyOnWrite);
        let (Some(attachment), true) = (attachment, found.band.region(region).is_some_and(shared)) else {
            return Ok(None);
        };
        let source = attachment.source(region);
        let Some(extent) = self.extent(found, region, window) else { return Ok(None) };
        usable(self.region(source.slice, source.region), region).map_err(PrivatizeError::Source)?;
        if found.footprint() > found.limit_shards {
            return Err(PrivatizeError::Room(found.over_limit(self.shard_bytes, self.shard_bytes)));
        }
        let no_room = AllocError::OutOfMemory { requested_bytes: self.shard_bytes, free_bytes: 0 };
        let gpu = match level {
            PrivateLevel::Gpu => {
                let mut room = Room::of(&self.gpus, self.slices.values(), found, When::Now);
                Some(room.take(&self.gpus, found).ok_or(PrivatizeError::Room(no_room))?)
            }
            PrivateLevel::Tier if self.births_left(When::Now) > 0 => None,
            PrivateLevel::Tier => return Err(PrivatizeError::Room(no_room)),
        };
        let Some(found) = self.slices.get_mut(&slice) else { return Ok(None) };
        found.begin_privatizing(region, gpu);
        if let Some(gpu) = gpu {
            self.gpus.take_shard(gpu);
        }
        self.begin_use(source);
        Ok(Some(Privatization { slice, region, range: window.range(), gpu, extent, source }))
    }

    /// Whether the region still waits for its copy: the GPU that was for is not lost.
    pub fn can_privatize(&self, privatization: &Privatization) -> bool {
        let Privatization { slice, region, gpu, .. } = privatization;
        self.region(*slice, *region) == Some(RegionState::Privatizing(*gpu))
    }

    /// The copy is there, and nobody uses what the region showed any more ([`Pool::is_quiet`]): from now on it is a region
    /// as any other, and what of it nobody was shown is free.
    pub fn finish_privatization(&mut self, privatization: Privatization) -> Unpinned {
        self.end_privatization(&privatization, true)
    }

    /// There is no copy, and the region shows what it did, unless that was revoked meanwhile. If the GPU refused a shard, it
    /// is believed to have no more than is in use.
    pub fn abort_privatization(&mut self, privatization: Privatization, refused: bool) -> Unpinned {
        let unpinned = self.end_privatization(&privatization, false);
        if let Some(gpu) = privatization.gpu.filter(|_| refused) {
            self.shrink_capacity(gpu);
        }
        unpinned
    }

    fn end_privatization(&mut self, privatization: &Privatization, is_there: bool) -> Unpinned {
        let &Privatization { slice, region, gpu, extent, source, .. } = privatization;
        let mut unpinned = Unpinned::default();
        let waits = self.can_privatize(privatization);
        if let Some(found) = self.slices.get_mut(&slice).filter(|_| waits) {
            if is_there {
                let ended = found.become_private(region, gpu, Span::reserved_by(extent.range));
                self.end_attachment(slice, ended);
            } else {
                if let Some(gpu) = gpu {
                    found.held.subtract(gpu, 1);
                    self.gpus.give_back_shard(gpu);
                } else {
                    found.stored = found.stored.saturating_sub(1);
                }
                found.stay_shown(region);
            }
        }
        self.end_use(source, &mut unpinned);
        unpinned
    }
}

impl Slice {
    /// A region that shows what it may copy is to do so.
    fn begin_privatizing(&mut self, region: RegionIndex, gpu: Option<GpuId>) {
        self.band.set_state(region, RegionState::Privatizing(gpu));
        self.shown = self.shown.saturating_sub(1);
        match gpu {
            Some(gpu) => self.held.add(gpu, 1),
            None => self.stored = self.stored.saturating_add(1),
        }
    }

    /// A region has its copy. Returns its attachment if it was the last of it to show anything.
    fn become_private(&mut self, region: RegionIndex, gpu: Option<GpuId>, shown: Span) -> Option<Attachment> {
        let ended = self.stop_showing(region);
        self.open_beside(region, shown);
        match gpu {
            Some(gpu) => self.set_backed(region, gpu, TierCopy::Stale),
            None => self.settle_stored(region),
        }
        ended
    }
}
