//! Making an allocation.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tracing::warn;
use vram_gpu::{FreshMemory, GpuId};
use vram_pool::{AllocError, AllocRequest, Backing, Grant, Pool, SliceId};
use vram_transfer::{Flow, Part, TransferError};

use crate::kept::Kept;
use crate::moves::MoveError;
use crate::{AllocateError, MemoryLease, Residency};

/// How long an allocation waits for memory its slice has freed and that is being scrubbed.
pub(crate) const RELEASE_WAIT_MS: u64 = 5000;
const RELEASE_WAIT: Duration = Duration::from_millis(RELEASE_WAIT_MS);

impl Residency {
    /// Allocates zeroed memory for a slice. Blocks while GPUs set it up, and while memory the slice freed before is
    /// still being scrubbed if it is needed.
    pub fn allocate(
        self: &Arc<Self>,
        slice: SliceId,
        request: AllocRequest,
    ) -> Result<MemoryLease, AllocateError> {
        let started = Instant::now();
        loop {
            let grant = self.plan(slice, request, started)?;
            match self.back(&grant) {
                Ok(()) => {
                    let allocation = self.pool().commit(grant);
                    // Somebody of the same slice may wait for its turn.
                    self.released.notify_all();
                    return Ok(MemoryLease::new(self, slice, allocation.range));
                }
                Err(BackError::Refused { gpu }) => {
                    warn!(%gpu, "the GPU has less memory than it said; the pool now counts on less");
                    self.abort(grant, Some(gpu));
                }
                Err(BackError::Failed(error)) => {
                    let lost = error.gpu_error().is_some_and(|error| self.note(error));
                    self.abort(grant, None);
                    if !lost {
                        return Err(error);
                    }
                }
            }
        }
    }

    fn plan(&self, slice: SliceId, request: AllocRequest, started: Instant) -> Result<Grant, AllocateError> {
        self.once_released(started, |pool| match pool.plan_alloc(slice, request) {
            // Busy: a session of the slice that has ended is still at it.
            Err(AllocError::QuarantinePending { .. } | AllocError::Busy { .. }) => None,
            other => Some(other.map_err(AllocateError::from)),
        })
        .unwrap_or(Err(AllocateError::ReleaseStuck { waited_ms: RELEASE_WAIT_MS }))
    }

    /// Asks the pool again and again while it says nothing, whenever memory was released. `None` if the time is up.
    pub(crate) fn once_released<T>(
        &self,
        started: Instant,
        mut ask: impl FnMut(&mut Pool) -> Option<T>,
    ) -> Option<T> {
        let mut pool = self.pool();
        loop {
            if let answer @ Some(_) = ask(&mut pool) {
                return answer;
            }
            let left = RELEASE_WAIT.saturating_sub(started.elapsed());
            if left.is_zero() {
                return None;
            }
            pool = self.released.wait_timeout(pool, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn abort(&self, grant: Grant, refused: Option<GpuId>) {
        let (slice, born) = (grant.slice(), grant.born_stored().to_vec());
        let plan = self.pool().abort(grant, refused);
        for region in born {
            self.tiers.forget((slice, region));
        }
        if let Some(plan) = plan {
            self.carry_out(plan);
        }
        self.released.notify_all();
    }

    /// Makes and maps the shards a grant needs; on failure takes away again what was made.
    fn back(&self, grant: &Grant) -> Result<(), BackError> {
        let backings = grant.backings();
        for region in grant.born_stored() {
            self.tiers.keep((grant.slice(), *region), Kept::zeros());
        }
        for (done, backing) in backings.iter().enumerate() {
            if let Err(error) = self.back_region(backing) {
                for backing in backings.iter().take(done) {
                    self.unback(backing);
                }
                return Err(error);
            }
        }
        if backings.is_empty() || self.backend.fresh_memory() == FreshMemory::Zeroed {
            return Ok(());
        }
        let parts = backings.iter().map(|backing| Part::gpu(backing.range, backing.gpu)).collect();
        self.engine.scrub(Flow::Upkeep(grant.slice().0), parts, Vec::new()).map_err(|error| {
            for backing in backings {
                self.unback(backing);
            }
            BackError::Failed(error.into())
        })
    }

    fn back_region(&self, backing: &Backing) -> Result<(), BackError> {
        self.map_new_shard(backing.gpu, backing.range).map_err(|error| match error {
            MoveError::Failed(TransferError::Gpu(error)) => BackError::Failed(error.into()),
            _ => BackError::Refused { gpu: backing.gpu },
        })
    }
}

enum BackError {
    /// The GPU has no memory: the pool plans anew without it.
    Refused { gpu: GpuId },
    /// Anything else.
    Failed(AllocateError),
}
