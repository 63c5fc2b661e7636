//! Taking regions off the GPUs.

use tracing::{debug, warn};
use vram_gpu::DeviceRange;
use vram_guest_memory::{HostSpan, SpanList};
use vram_pool::{Eviction, RegionIndex, SliceId, TierCopy};
use vram_tier::Remedy;
use vram_transfer::{Flow, Part, Work};

use crate::Residency;
use crate::kept::Kept;
use crate::moves::MoveError;
use crate::tiers::Chain;

impl Residency {
    /// Evicts a region. False if it stays where it is.
    pub(crate) fn evict(&self, slice: SliceId, region: RegionIndex) -> bool {
        let Some(eviction) = self.pool().plan_eviction(slice, region) else { return false };
        let from = eviction.from();
        let outcome = self
            .wait_quiet(slice, region, |pool| pool.can_leave(&eviction))
            .and_then(|()| self.in_motion(from.range.start, || self.put_away(&eviction)));
        let left = outcome.is_ok();
        match outcome {
            Ok(()) => debug!(%slice, %region, gpu = %from.gpu, "a region was evicted"),
            Err(MoveError::Busy) => {
                debug!(%slice, %region, "a region is in use for too long to be evicted now")
            }
            Err(MoveError::Tier(error)) => {
                debug!(%slice, %region, error = %Chain(&error), "no tier takes a region");
            }
            Err(MoveError::Failed(error)) => {
                warn!(%slice, %region, %error, "a region could not be copied off its GPU");
                self.note_failure(&error);
            }
            Err(MoveError::Refused) => {}
        }
        let mut pool = self.pool();
        let gone = !pool.can_leave(&eviction);
        let plan = if left { pool.finish_eviction(eviction) } else { pool.abort_eviction(eviction) };
        drop(pool);
        if left && gone {
            // Lost with its GPU in the last moment: what was stored is nobody's.
            self.tiers.forget((slice, region));
        }
        if let Some(plan) = plan {
            self.carry_out(plan);
        }
        self.moved(slice, region);
        left
    }

    /// The bytes go to a tier and the shard back to its GPU. On failure all is as it was.
    fn put_away(&self, eviction: &Eviction) -> Result<(), MoveError> {
        let (slice, from) = (eviction.slice(), eviction.from());
        if eviction.copy() == TierCopy::Stale {
            let kept = self.put_copy(slice, Part::gpu(from.range, from.gpu), from.range)?;
            self.tiers.keep((slice, from.region), kept);
        }
        self.take_away_shard(from.range);
        Ok(())
    }

    fn put_copy(&self, slice: SliceId, part: Part, range: DeviceRange) -> Result<Kept, MoveError> {
        let bring = |to: &HostSpan| -> Result<(), MoveError> {
            let work = Work::Read { from: vec![part.clone()], to: spans(to, range.len_bytes)? };
            Ok(self.engine.run(Flow::Upkeep(slice.0), work, Vec::new())?)
        };
        loop {
            match self.tiers.put(0, range.len_bytes, bring) {
                Err(MoveError::Tier(error)) if error.remedy() == Remedy::NextTier && self.drop_a_copy() => {}
                other => return other,
            }
        }
    }

    /// Makes room in the tiers: forgets what they have of a region that is on a GPU as well.
    pub(crate) fn drop_a_copy(&self) -> bool {
        for key in self.tiers.keys() {
            let (slice, region) = key;
            if self.pool().drop_copy(slice, region) {
                self.tiers.forget(key);
                return true;
            }
        }
        false
    }
}

/// The first bytes of host memory as a list.
pub(crate) fn spans(span: &HostSpan, len_bytes: u64) -> Result<SpanList, MoveError> {
    let mut list = SpanList::new();
    let len = usize::try_from(len_bytes).unwrap_or(usize::MAX);
    list.push(span.part(0, len).map_err(|_| MoveError::Failed(vram_transfer::TransferError::Mismatch))?);
    Ok(list)
}
