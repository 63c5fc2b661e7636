//! Moving regions between GPUs.

use std::sync::{PoisonError, Weak};
use std::time::{Duration, Instant};

use tracing::{error, info, warn};
use vram_gpu::{DeviceAddress, DeviceRange, GpuError, GpuId, ShardHandle};
use vram_pool::{DrainError, Relocation};
use vram_transfer::{Flow, Part, TransferError, Work};

use crate::Residency;

/// How long a region that is to move waits for those who use it, and holds up those who come.
const QUIET_WAIT: Duration = Duration::from_secs(2);
/// How long after a move that failed, or for want of room, the next one is tried.
const RETRY: Duration = Duration::from_millis(500);

/// The thread that moves regions, one at a time.
pub(crate) fn relocate_all(residency: &Weak<Residency>) {
    loop {
        let Some(residency) = residency.upgrade() else { return };
        let next = residency.pool().next_relocation();
        let moved = next.is_some_and(|relocation| residency.relocate(relocation));
        if moved {
            continue;
        }
        let pool = residency.pool();
        // Woken when there is something to do, or in a while: whoever frees memory does not say so here.
        drop(residency.quiet.wait_timeout(pool, RETRY).unwrap_or_else(PoisonError::into_inner));
    }
}

impl Residency {
    /// Begins to move everything off a GPU; see [`vram_pool::Pool::begin_drain`]. It goes on in the background.
    pub fn begin_drain(&self, gpu: GpuId) -> Result<(), DrainError> {
        self.pool().begin_drain(gpu)?;
        info!(%gpu, "the GPU is drained: all that is on it moves to others");
        self.quiet.notify_all();
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
    fn relocate(&self, relocation: Relocation) -> bool {
        let outcome = self.wait_quiet(&relocation).and_then(|()| {
            self.set_in_motion(Some(relocation.from().range.start));
            let outcome = self.move_bytes(&relocation);
            self.set_in_motion(None);
            outcome
        });
        let (moved, refused) = match &outcome {
            Ok(()) => (true, false),
            Err(MoveError::Refused) => (false, true),
            Err(_) => (false, false),
        };
        if let Err(error) = &outcome {
            self.report(&relocation, error);
        }
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
        self.released.notify_all();
        self.wake_accesses();
        moved
    }

    fn set_in_motion(&self, region: Option<DeviceAddress>) {
        *self.in_motion.lock().unwrap_or_else(PoisonError::into_inner) = region;
        self.in_place.notify_all();
    }

    /// Waits while the region at an address is being moved. Its GPU may be lost meanwhile, and then nothing else keeps it
    /// from being taken away under the move.
    pub(crate) fn wait_in_place(&self, region: DeviceAddress) {
        let mut in_motion = self.in_motion.lock().unwrap_or_else(PoisonError::into_inner);
        while *in_motion == Some(region) {
            in_motion = self.in_place.wait(in_motion).unwrap_or_else(PoisonError::into_inner);
        }
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
                if let TransferError::Gpu(failure) = failure {
                    self.note(failure);
                }
            }
        }
    }

    /// Waits until nobody uses the region any more.
    fn wait_quiet(&self, relocation: &Relocation) -> Result<(), MoveError> {
        let started = Instant::now();
        let mut pool = self.pool();
        while !pool.is_quiet(relocation.slice(), relocation.from().region) {
            let left = QUIET_WAIT.saturating_sub(started.elapsed());
            if left.is_zero() || !pool.is_possible(relocation) {
                return Err(MoveError::Busy);
            }
            pool = self.quiet.wait_timeout(pool, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
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
            self.discard(shard);
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
            self.discard(discarded);
        }
        swapped.map_err(Into::into)
    }

    /// Copies the region's bytes into a shard.
    fn fill(&self, relocation: &Relocation, shard: &ShardHandle) -> Result<(), MoveError> {
        let from = relocation.from();
        self.backend.map(self.landing.start, shard)?;
        let filled =
            self.backend.set_access(self.landing, &self.reaching(relocation.to())).map_err(Into::into);
        let filled = filled.and_then(|()| {
            let work = Work::Copy {
                to: vec![Part::gpu(self.landing, relocation.to())],
                from: vec![Part::gpu(from.range, from.gpu)],
            };
            let flow = Flow::Upkeep(relocation.slice().0);
            self.engine.run(flow, work, Vec::new()).map_err(MoveError::Failed)
        });
        self.backend.unmap(self.landing)?;
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

    fn discard(&self, shard: ShardHandle) {
        let gpu = shard.gpu;
        if let Err(failure) = self.backend.release_shard(shard) {
            error!(error = %failure, %gpu, "a shard could not be given back");
        }
    }
}

/// Why a region stays where it is.
enum MoveError {
    /// Somebody uses it, or its GPU was lost meanwhile.
    Busy,
    /// The other GPU has no memory.
    Refused,
    /// Anything else.
    Failed(TransferError),
}

impl From<GpuError> for MoveError {
    fn from(error: GpuError) -> Self {
        Self::Failed(error.into())
    }
}
