//! Bringing regions back to the GPUs.

use tracing::{debug, error, warn};
use vram_gpu::{DeviceRange, FreshMemory, Pattern};
use vram_guest_memory::HostBuffer;
use vram_pool::{AllocError, Promotion, RegionIndex, SliceId, TierCopy};
use vram_tier::{Remedy, TierError};
use vram_transfer::{Flow, Part, TransferError, Work};

use crate::Residency;
use crate::evict::spans;
use crate::kept::Kept;
use crate::moves::{MoveError, read_failure};
use crate::tiers::Chain;

/// How many victims are tried, each of which may turn out to be in use or have no tier to go to.
pub(crate) const VICTIMS: usize = 8;

/// How a promotion ended.
#[derive(Debug)]
pub(crate) enum Promoted {
    /// The region is on a GPU, or need not be any more.
    Yes,
    /// It is not worth the place of another.
    NotWorth,
    /// There is no room, and none can be made.
    NoRoom,
    /// It cannot be read, or a GPU failed.
    Failed(TransferError),
}

/// Whether others are to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Only if the region is worth more than they are.
    IfWorth,
    /// In any case.
    Must,
}

impl Residency {
    /// Brings a region to a GPU, in the place of a colder one if there is no room. `keep` are regions of the slice that
    /// must stay.
    pub(crate) fn promote(
        &self,
        slice: SliceId,
        region: RegionIndex,
        need: Need,
        keep: &[RegionIndex],
    ) -> Promoted {
        for _ in 0..VICTIMS {
            let mut pool = self.pool();
            let now = self.tiers.now();
            if need == Need::IfWorth && !pool.is_worth_promoting(slice, region, keep, now) {
                return Promoted::NotWorth;
            }
            let victim = match pool.plan_promotion(slice, region) {
                Ok(Some(promotion)) => {
                    drop(pool);
                    match self.bring(promotion) {
                        Err(MoveError::Refused) => continue,
                        outcome => return promoted(outcome),
                    }
                }
                Ok(None) => return Promoted::Yes,
                Err(AllocError::OutOfMemory { .. }) => pool.victim_for(slice, keep, now),
                Err(_) => None,
            };
            drop(pool);
            let Some((payer, victim)) = victim else {
                debug!(%slice, %region, "nothing can make room for a region");
                return Promoted::NoRoom;
            };
            self.evict(payer, victim.region);
        }
        Promoted::NoRoom
    }

    /// Carries a promotion out.
    fn bring(&self, promotion: Promotion) -> Result<(), MoveError> {
        let (slice, to) = (promotion.slice(), promotion.to());
        let outcome = self
            .wait_quiet(slice, to.region, |pool| pool.can_come(&promotion))
            .and_then(|()| self.in_motion(to.range.start, || self.fetch(slice, &promotion)));
        let mut pool = self.pool();
        let came = outcome.is_ok() && pool.can_come(&promotion);
        let plan = match &outcome {
            Ok(copy) => pool.finish_promotion(promotion, *copy),
            Err(MoveError::Tier(error)) if error.remedy() == Remedy::BytesLost => {
                let plan = pool.mark_damaged(slice, to.region);
                // Changes nothing any more.
                let _ = pool.abort_promotion(promotion, false);
                plan
            }
            Err(error) => pool.abort_promotion(promotion, matches!(error, MoveError::Refused)),
        };
        drop(pool);
        if outcome.is_ok() && !came {
            self.take_away_shard(to.range);
        }
        if matches!(outcome, Ok(TierCopy::Stale)) && came {
            self.tiers.forget((slice, to.region));
        }
        if let Some(plan) = plan {
            self.carry_out(plan);
        }
        self.moved(slice, to.region);
        match outcome {
            Ok(_) => {
                debug!(%slice, region = %to.region, gpu = %to.gpu, "a region is back on a GPU");
                Ok(())
            }
            Err(error) => {
                self.report_fetch(slice, to.region, &error);
                Err(error)
            }
        }
    }

    /// Puts a shard with the region's bytes behind its addresses. Says whether the tier keeps a copy.
    fn fetch(&self, slice: SliceId, promotion: &Promotion) -> Result<TierCopy, MoveError> {
        let to = promotion.to();
        let Some(kept) = self.tiers.get((slice, to.region)) else {
            error!(%slice, region = %to.region, "a stored region is in no tier");
            return Err(MoveError::Failed(TransferError::DataLost));
        };
        // Left behind if the region came back from a tier because its GPU was lost.
        self.take_away_shard(to.range);
        self.map_new_shard(to.gpu, to.range)?;
        self.fill_from_tier(slice, Part::gpu(to.range, to.gpu), to.range, &kept).inspect_err(|_| {
            self.take_away_shard(to.range);
        })?;
        Ok(TierCopy::Valid)
    }

    fn fill_from_tier(
        &self,
        slice: SliceId,
        part: Part,
        range: DeviceRange,
        kept: &Kept,
    ) -> Result<(), MoveError> {
        let flow = Flow::Upkeep(slice.0);
        let to = vec![part];
        if let Some(pattern) = kept.pattern() {
            if pattern == Pattern::U8(0) && self.backend.fresh_memory() == FreshMemory::Zeroed {
                return Ok(());
            }
            return Ok(self.engine.run(flow, Work::Fill { to, pattern }, Vec::new())?);
        }
        let (span, _buffer) = match self.tiers.in_place(kept) {
            Some(span) => (span, None),
            None => {
                let buffer = self.staging(range.len_bytes)?;
                let span = buffer.span();
                self.tiers.read(kept, 0, &span)?;
                (span, Some(buffer))
            }
        };
        let work = Work::Write { to, from: spans(&span, range.len_bytes)? };
        Ok(self.engine.run(flow, work, Vec::new())?)
    }

    fn staging(&self, len_bytes: u64) -> Result<HostBuffer, MoveError> {
        let len = usize::try_from(len_bytes).unwrap_or(usize::MAX);
        let none = |_| TierError::OutOfMemory { tier: vram_tier::TierKind::Host, bytes: len_bytes };
        Ok(HostBuffer::new(len).map_err(none)?)
    }

    /// Damaged bytes were met while a region was read in its tier.
    pub(crate) fn note_damage(&self, slice: SliceId, region: RegionIndex, error: &TierError) {
        error!(%slice, %region, error = %Chain(error), "stored bytes of a slice are damaged, and lost");
        // Many may read it at once; its guest hears it once.
        let is_news = self.is_sound(slice, region);
        let plan = self.pool().mark_damaged(slice, region);
        if let Some(plan) = plan {
            self.carry_out(plan);
        }
        self.moved(slice, region);
        if is_news {
            self.tell_damage(slice, region);
        }
    }

    pub(crate) fn report_fetch(&self, slice: SliceId, region: RegionIndex, error: &MoveError) {
        match error {
            MoveError::Tier(error) if error.remedy() == Remedy::BytesLost => {
                error!(%slice, %region, error = %Chain(error), "stored bytes of a slice are damaged, and lost");
                self.tell_damage(slice, region);
            }
            MoveError::Tier(error) => {
                warn!(%slice, %region, error = %Chain(error), "stored bytes cannot be read now");
            }
            MoveError::Failed(error) => {
                warn!(%slice, %region, %error, "a region could not be brought back to a GPU");
                self.note_failure(error);
            }
            MoveError::Busy | MoveError::Refused => {}
        }
    }
}

fn promoted(outcome: Result<(), MoveError>) -> Promoted {
    match outcome {
        Ok(()) => Promoted::Yes,
        Err(MoveError::Busy | MoveError::Refused) => Promoted::NoRoom,
        Err(MoveError::Failed(error)) => Promoted::Failed(error),
        Err(MoveError::Tier(error)) => Promoted::Failed(read_failure(&error)),
    }
}
