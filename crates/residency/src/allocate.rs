//! Making an allocation.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tracing::warn;
use vram_gpu::{DeviceRange, FreshMemory, GpuError, GpuId};
use vram_pool::{AllocError, AllocRequest, Backing, Grant, SliceId};
use vram_transfer::{Flow, Part};

use crate::{AllocateError, MemoryLease, Residency};

/// How long an allocation waits for memory its slice has freed and that is being scrubbed.
const RELEASE_WAIT: Duration = Duration::from_secs(5);

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
        let mut pool = self.pool();
        loop {
            match pool.plan_alloc(slice, request) {
                // Busy: a session of the slice that has ended is still at it.
                Err(AllocError::QuarantinePending { .. } | AllocError::Busy { .. }) => {}
                other => return Ok(other?),
            }
            let left = RELEASE_WAIT.saturating_sub(started.elapsed());
            if left.is_zero() {
                let waited_ms = u64::try_from(RELEASE_WAIT.as_millis()).unwrap_or(u64::MAX);
                return Err(AllocateError::ReleaseStuck { waited_ms });
            }
            pool = self.released.wait_timeout(pool, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn abort(&self, grant: Grant, refused: Option<GpuId>) {
        let plan = self.pool().abort(grant, refused);
        if let Some(plan) = plan {
            self.carry_out(plan);
        }
        self.released.notify_all();
    }

    /// Makes and maps the shards a grant needs; on failure takes away again what was made.
    fn back(&self, grant: &Grant) -> Result<(), BackError> {
        let backings = grant.backings();
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
        let DeviceRange { start, len_bytes } = backing.range;
        let shard = self.backend.create_shard(backing.gpu, len_bytes).map_err(|error| match error {
            GpuError::OutOfMemory { gpu, .. } => BackError::Refused { gpu },
            error => BackError::Failed(error.into()),
        })?;
        if let Err(error) = self.backend.map(start, &shard) {
            if let Err(error) = self.backend.release_shard(shard) {
                warn!(%error, "a shard that could not be mapped could not be given back either");
            }
            return Err(BackError::Failed(error.into()));
        }
        self.keep_shard(start, shard);
        self.backend.set_access(backing.range, &self.reaching(backing.gpu)).map_err(|error| {
            self.unback(backing);
            BackError::Failed(error.into())
        })
    }
}

enum BackError {
    /// The GPU has no memory: the pool plans anew without it.
    Refused { gpu: GpuId },
    /// Anything else.
    Failed(AllocateError),
}
