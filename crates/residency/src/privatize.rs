//! Giving a region that shows bytes of another slice a copy of its own.

use std::sync::Arc;

use tracing::{debug, warn};
use vram_gpu::{DeviceAddress, DeviceRange, FreshMemory, GpuId};
use vram_guest_memory::HostSpan;
use vram_pool::{AccessKind, AllocError, PinError, PrivateLevel, Privatization, PrivatizeError, RegionIndex};
use vram_transfer::{Flow, Part, TransferError, Work};

use crate::Residency;
use crate::access::gone;
use crate::moves::{MoveError, read_failure};
use crate::promote::VICTIMS;
use crate::residency::part_of;
use crate::tiers::Key;

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    /// The region is private, or who asked for it waits for something else by now.
    Done,
    /// Something changed meanwhile: it is to be tried anew.
    Anew,
    /// There is no room there.
    NoRoom,
}

impl Residency {
    /// Gives a region a copy of the bytes it shows: on a GPU that has room, else in a slot of host memory, else on a GPU in
    /// the place of a colder region. `keep` are regions of the slice that must stay. On failure it shows them as before.
    pub(crate) fn make_private(
        self: &Arc<Self>,
        key: Key,
        keep: &[RegionIndex],
    ) -> Result<(), TransferError> {
        for _ in 0..VICTIMS {
            match self.try_private(key, PrivateLevel::Gpu)? {
                Attempt::Done => return Ok(()),
                Attempt::Anew => continue,
                Attempt::NoRoom => {}
            }
            let has_slots = self.tiers.host().is_some_and(|host| host.arena().free_slots() > 0);
            if has_slots && self.try_private(key, PrivateLevel::Tier)? == Attempt::Done {
                return Ok(());
            }
            let victim = self.pool().victim_for(key.0, keep, self.tiers.now());
            let Some((payer, victim)) = victim else { break };
            self.evict(payer, victim.region);
        }
        Err(TransferError::NoRoom)
    }

    fn try_private(
        self: &Arc<Self>,
        (slice, region): Key,
        level: PrivateLevel,
    ) -> Result<Attempt, TransferError> {
        let planned = self.pool().plan_privatization(slice, region, level);
        match planned {
            Ok(Some(privatization)) => self.carry_out_privatization(privatization),
            Ok(None) | Err(PrivatizeError::Source(PinError::Moving)) => Ok(Attempt::Done),
            Err(PrivatizeError::Source(error)) => Err(gone(error)),
            Err(PrivatizeError::Room(AllocError::OutOfMemory { .. })) => Ok(Attempt::NoRoom),
            Err(PrivatizeError::Room(_)) => Err(TransferError::NoRoom),
        }
    }

    fn carry_out_privatization(
        self: &Arc<Self>,
        privatization: Privatization,
    ) -> Result<Attempt, TransferError> {
        let (slice, region, range) = (privatization.slice(), privatization.region(), privatization.range());
        let gpu = privatization.gpu();
        let outcome =
            self.wait_quiet(slice, region, |pool| pool.can_privatize(&privatization)).and_then(|()| {
                self.in_motion(range.start, || match gpu {
                    Some(gpu) => self.copy_to_gpu(&privatization, gpu),
                    None => self.copy_to_slot(&privatization),
                })
            });
        let mut pool = self.pool();
        let waits = pool.can_privatize(&privatization);
        let unpinned = match &outcome {
            Ok(()) => pool.finish_privatization(privatization),
            Err(error) => pool.abort_privatization(privatization, matches!(error, MoveError::Refused)),
        };
        drop(pool);
        if outcome.is_ok() && !waits {
            self.take_away_shard(range);
        }
        self.after_use(&unpinned);
        self.moved(slice, region);
        match outcome {
            Ok(()) if waits => {
                debug!(%slice, %region, ?gpu, "a region has a copy of its own of what it was shown");
                Ok(Attempt::Done)
            }
            Ok(()) | Err(MoveError::Refused) => Ok(Attempt::Anew),
            Err(MoveError::Busy) if !waits => Ok(Attempt::Anew),
            Err(MoveError::Busy) => Err(TransferError::Unavailable {
                reason: "the region is in use for too long to be copied now".to_owned(),
            }),
            Err(MoveError::Failed(error)) => {
                warn!(%slice, %region, %error, "what a region is shown could not be copied");
                self.note_failure(&error);
                Err(error)
            }
            Err(MoveError::Tier(error)) => Err(read_failure(&error)),
        }
    }

    /// What is to be copied, where it is pinned.
    fn source_part(self: &Arc<Self>, privatization: &Privatization) -> Result<Part, MoveError> {
        let extent = privatization.source();
        let part = match part_of(&extent) {
            Some(part) => Some(part),
            None => self.tier_part(&self.pool(), &extent, AccessKind::Read),
        };
        part.ok_or(MoveError::Failed(TransferError::DataLost))
    }

    /// Puts a shard with a copy behind the region's addresses. On failure nothing is there.
    fn copy_to_gpu(self: &Arc<Self>, privatization: &Privatization, gpu: GpuId) -> Result<(), MoveError> {
        let range = privatization.range();
        let from = self.source_part(privatization)?;
        self.map_new_shard(gpu, range)?;
        self.fill_copy(privatization, gpu, from).inspect_err(|_| self.take_away_shard(range))
    }

    fn fill_copy(&self, privatization: &Privatization, gpu: GpuId, from: Part) -> Result<(), MoveError> {
        let flow = Flow::Upkeep(privatization.slice().0);
        let shown = privatization.source().range;
        if self.backend.fresh_memory() != FreshMemory::Zeroed {
            let beside = around(privatization.range(), shown);
            let beside = beside.into_iter().flatten().map(|range| Part::gpu(range, gpu)).collect();
            self.engine.scrub(flow, beside, Vec::new())?;
        }
        let work = Work::Copy { to: vec![Part::gpu(shown, gpu)], from: vec![from] };
        Ok(self.engine.run(flow, work, Vec::new())?)
    }

    /// Puts a copy into a slot of host memory.
    fn copy_to_slot(self: &Arc<Self>, privatization: &Privatization) -> Result<(), MoveError> {
        let (slice, range) = (privatization.slice(), privatization.range());
        let shown = privatization.source().range;
        let from = self.source_part(privatization)?;
        let fill = |slot: &HostSpan| -> Result<(), MoveError> {
            let work = Work::Copy { to: vec![part_within(slot, range, shown)?], from: vec![from] };
            Ok(self.engine.run(Flow::Upkeep(slice.0), work, Vec::new())?)
        };
        let kept = self.tiers.take_slot(fill, range.len_bytes)?.ok_or(MoveError::Refused)?;
        self.tiers.keep((slice, privatization.region()), kept);
        Ok(())
    }
}

/// What of a range lies before and after a part of it.
fn around(whole: DeviceRange, part: DeviceRange) -> [Option<DeviceRange>; 2] {
    let between = |start: Option<DeviceAddress>, end: Option<DeviceAddress>| {
        let (start, end) = (start?, end?);
        let len_bytes = end.0.checked_sub(start.0).filter(|len_bytes| *len_bytes > 0)?;
        Some(DeviceRange { start, len_bytes })
    };
    [between(Some(whole.start), Some(part.start)), between(part.end(), whole.end())]
}

/// The bytes of a slot that stand for a part of a region.
fn part_within(slot: &HostSpan, region: DeviceRange, part: DeviceRange) -> Result<Part, MoveError> {
    let mismatch = || MoveError::Failed(TransferError::Mismatch);
    let offset = part.start.0.checked_sub(region.start.0).and_then(|offset| usize::try_from(offset).ok());
    let len = usize::try_from(part.len_bytes).ok();
    let span = slot.part(offset.ok_or_else(mismatch)?, len.ok_or_else(mismatch)?);
    span.map(Part::Host).map_err(|_| mismatch())
}
