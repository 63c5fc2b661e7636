//! What all moves of regions have in common.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use tracing::error;
use vram_gpu::{DeviceAddress, DeviceRange, GpuError, GpuId, ShardHandle};
use vram_pool::{Pool, RegionIndex, SliceId};
use vram_tier::{Remedy, TierError};
use vram_transfer::TransferError;

use crate::Residency;

/// How long a region that is to move waits for those who use it, and holds up those who come.
const QUIET_WAIT: Duration = Duration::from_secs(2);

/// Why a region stays where it is.
#[derive(Debug)]
pub(crate) enum MoveError {
    /// Somebody uses it, or its GPU was lost meanwhile.
    Busy,
    /// The other GPU has no memory.
    Refused,
    /// A GPU or a copy failed.
    Failed(TransferError),
    /// A tier failed.
    Tier(TierError),
}

impl From<GpuError> for MoveError {
    fn from(error: GpuError) -> Self {
        Self::Failed(error.into())
    }
}

impl From<TransferError> for MoveError {
    fn from(error: TransferError) -> Self {
        Self::Failed(error)
    }
}

impl From<TierError> for MoveError {
    fn from(error: TierError) -> Self {
        Self::Tier(error)
    }
}

/// What a guest is told when stored bytes cannot be read.
pub(crate) fn read_failure(error: &TierError) -> TransferError {
    match error.remedy() {
        Remedy::BytesLost => TransferError::DataLost,
        _ => TransferError::Unavailable { reason: crate::tiers::Chain(error).to_string() },
    }
}

impl Residency {
    /// Waits until nobody uses a region any more that can no longer be pinned, as long as a condition holds.
    pub(crate) fn wait_quiet(
        &self,
        slice: SliceId,
        region: RegionIndex,
        possible: impl Fn(&Pool) -> bool,
    ) -> Result<(), MoveError> {
        let started = Instant::now();
        let mut pool = self.pool();
        while !pool.is_quiet(slice, region) {
            let left = QUIET_WAIT.saturating_sub(started.elapsed());
            if left.is_zero() || !possible(&pool) {
                return Err(MoveError::Busy);
            }
            pool = self.quiet.wait_timeout(pool, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        if possible(&pool) { Ok(()) } else { Err(MoveError::Busy) }
    }

    /// Does something to the shard behind a region's addresses. Its GPU may be lost meanwhile, and then nothing else
    /// keeps it from being taken away under the move: see [`Self::wait_in_place`].
    pub(crate) fn in_motion<T>(&self, region: DeviceAddress, act: impl FnOnce() -> T) -> T {
        self.regions_in_motion().insert(region);
        let done = act();
        self.regions_in_motion().remove(&region);
        self.in_place.notify_all();
        done
    }

    /// Waits while the region at an address is being moved.
    pub(crate) fn wait_in_place(&self, region: DeviceAddress) {
        let mut moving = self.regions_in_motion();
        while moving.contains(&region) {
            moving = self.in_place.wait(moving).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Makes a shard and puts it behind addresses nothing is mapped at. On failure nothing is there.
    pub(crate) fn map_new_shard(&self, gpu: GpuId, range: DeviceRange) -> Result<(), MoveError> {
        let shard = self.backend.create_shard(gpu, range.len_bytes).map_err(|error| match error {
            GpuError::OutOfMemory { .. } => MoveError::Refused,
            error => error.into(),
        })?;
        if let Err(error) = self.backend.map(range.start, &shard) {
            self.discard_shard(shard);
            return Err(error.into());
        }
        self.keep_shard(range.start, shard);
        self.backend.set_access(range, &self.reaching(gpu)).map_err(|error| {
            self.take_away_shard(range);
            MoveError::from(error)
        })
    }

    /// Unmaps a region and gives its shard back. Errors are logged: there is nobody to tell, and what the GPU keeps is
    /// found missing when it refuses the next shard.
    pub(crate) fn take_away_shard(&self, range: DeviceRange) {
        let Some(shard) = self.take_shard(range.start) else { return };
        if let Err(error) = self.backend.unmap(range) {
            error!(%error, gpu = %shard.gpu, "a shard could not be unmapped");
        }
        self.discard_shard(shard);
    }

    pub(crate) fn discard_shard(&self, shard: ShardHandle) {
        let gpu = shard.gpu;
        if let Err(error) = self.backend.release_shard(shard) {
            error!(%error, %gpu, "a shard could not be given back");
        }
    }
}
