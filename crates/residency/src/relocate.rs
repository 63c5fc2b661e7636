//! Moving regions between GPUs.

use std::sync::{PoisonError, Weak};
use std::time::Duration;

use tracing::{error, info, warn};
use vram_gpu::{DeviceRange, GpuError, GpuId, ShardHandle};
use vram_pool::{DrainError, Relocation};
use vram_transfer::{Flow, Part, Work};

use crate::Residency;
use crate::bell::Bell;
use crate::moves::MoveError;

/// How long after a move that failed, or for want of room, the next one is tried.
const RETRY: Duration = Duration::from_millis(500);

/// The thread that moves regions off GPUs that are drained, one at a time.
pub(crate) fn relocate_all(residency: &Weak<Residency>, bell: &Bell) {
    loop {
        let moved = {
            let Some(residency) = residency.upgrade() else { return };
            let next = residency.pool().next_relocation();
            next.is_some_and(|relocation| residency.relocate(relocation))
        };
        if !moved {
            // In a while at the latest: whoever frees memory does not say so here.
            bell.wait(RETRY);
        }
    }
}

impl Residency {
    /// Begins to move everything off a GPU; see [`vram_pool::Pool::begin_drain`]. It goes on in the background.
    pub fn begin_drain(&self, gpu: GpuId) -> Result<(), DrainError> {
        self.pool().begin_drain(gpu)?;
        info!(%gpu, "the GPU is drained: all that is on it moves to others");
        self.relocating.ring();
        self.tending.ring();
        Ok(())
    }

    /// Takes a GPU back into use that was drained, or is being drained.
    pub fn end_drain(&self, gpu: GpuId) -> Result<(), DrainError> {
        self.pool().end_drain(gpu)?;
        info!(%gpu, "the GPU is in use again");
        self.released.notify_all();
        Ok(())
    }

    /// Moves one region. False if it stays where it is.
    pub(crate) fn relocate(&self, relocation: Relocation) -> bool {
        let from = relocation.from();
        let outcome = self
            .wait_quiet(relocation.slice(), from.region, |pool| pool.is_possible(&relocation))
            .and_then(|()| self.in_motion(from.range.start, || self.move_bytes(&relocation)));
        let (moved, refused) = match &outcome {
            Ok(()) => (true, false),
            Err(MoveError::Refused) => (false, true),
            Err(_) => (false, false),
        };
        if let Err(error) = &outcome {
            self.report(&relocation, error);
        }
        let (slice, region) = (relocation.slice(), from.region);
        let plan = {
            let mut pool = self.pool();
            if moved {
                pool.finish_relocation(relocation)
            } else {
                pool.abort_relocation(relocation, refused)
            }
        };
        if let Some(plan) = plan {
            self.carry_out(plan);
        }
        self.moved(slice, region);
        moved
    }

    fn report(&self, relocation: &Relocation, error: &MoveError) {
        let (slice, region) = (relocation.slice(), relocation.from().region);
        let (from, to) = (relocation.from().gpu, relocation.to());
        match error {
            MoveError::Busy => {
                warn!(%slice, %region, %from, "a region is in use for too long to be moved now")
            }
            MoveError::Refused => {
                warn!(%to, "the GPU has less memory than it said; the pool now counts on less")
            }
            MoveError::Failed(failure) => {
                warn!(%slice, %region, %from, %to, error = %failure, "a region could not be moved");
                self.note_failure(failure);
            }
            MoveError::Tier(_) => {}
        }
    }

    /// Fills a shard of the other GPU and puts it behind the region's addresses. On failure all is as it was, or the
    /// region's GPU is lost.
    fn move_bytes(&self, relocation: &Relocation) -> Result<(), MoveError> {
        let DeviceRange { start, len_bytes } = relocation.from().range;
        let to = relocation.to();
        let shard = self.backend.create_shard(to, len_bytes).map_err(|error| match error {
            GpuError::OutOfMemory { .. } => MoveError::Refused,
            error => error.into(),
        })?;
        if let Err(error) = self.fill(relocation, &shard) {
            self.discard_shard(shard);
            return Err(error);
        }
        let swapped = self.backend.unmap(relocation.from().range).and_then(|()| {
            self.backend.map(start, &shard)?;
            self.backend.set_access(relocation.from().range, &self.reaching(to))
        });
        let old = self.take_shard(start);
        let (kept, discarded) = if swapped.is_ok() { (Some(shard), old) } else { (old, Some(shard)) };
        if swapped.is_err()
            && let Some(old) = &kept
        {
            self.restore(relocation, old);
        }
        if let Some(kept) = kept {
            self.keep_shard(start, kept);
        }
        if let Some(discarded) = discarded {
            self.discard_shard(discarded);
        }
        swapped.map_err(Into::into)
    }

    /// Copies the region's bytes into a shard.
    fn fill(&self, relocation: &Relocation, shard: &ShardHandle) -> Result<(), MoveError> {
        let from = relocation.from();
        let landing = self.landing.lock().unwrap_or_else(PoisonError::into_inner);
        self.backend.map(landing.start, shard)?;
        let filled = self.backend.set_access(*landing, &self.reaching(relocation.to())).map_err(Into::into);
        let filled = filled.and_then(|()| {
            let work = Work::Copy {
                to: vec![Part::gpu(*landing, relocation.to())],
                from: vec![Part::gpu(from.range, from.gpu)],
            };
            let flow = Flow::Upkeep(relocation.slice().0);
            self.engine.run(flow, work, Vec::new()).map_err(MoveError::Failed)
        });
        self.backend.unmap(*landing)?;
        filled
    }

    /// Puts the shard the region had behind its addresses again, when another is there that cannot be used, or none.
    fn restore(&self, relocation: &Relocation, old: &ShardHandle) {
        let from = relocation.from();
        // Fails if nothing is mapped.
        let _ = self.backend.unmap(from.range);
        let restored = self
            .backend
            .map(from.range.start, old)
            .and_then(|()| self.backend.set_access(from.range, &self.reaching(from.gpu)));
        if let Err(failure) = restored {
            error!(error = %failure, range = %from.range, "the addresses of a region lead nowhere any more");
        }
    }
}
