//! Showing bytes of one slice to another.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tracing::debug;
use vram_gpu::DeviceRange;
use vram_pool::{AllocError, Audience, Rights, ShareError, ShareId, SliceId};

use crate::allocate::RELEASE_WAIT_MS;
use crate::{AttachError, MemoryLease, Residency};

/// Whether what was revoked is still used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revocation {
    /// Nobody uses it any more, and nobody will.
    Complete,
    /// What had begun before goes on. Until it ends the bytes stay where they are, even if they are freed.
    InUse,
}

impl Residency {
    /// Lets others attach a range that lies in one live allocation of a slice; see [`vram_pool::Pool::export`]. It ends
    /// when it is revoked or the allocation is dropped.
    pub fn export(
        &self,
        owner: SliceId,
        range: DeviceRange,
        rights: Rights,
        audience: Audience,
    ) -> Result<ShareId, ShareError> {
        self.pool().export(owner, range, rights, audience)
    }

    /// Gives a slice an allocation that shows what another exports. To be read and written as any other, as far as the
    /// rights go: else it is answered [`ReadOnly`](vram_transfer::TransferError::ReadOnly), and once it was revoked
    /// [`Revoked`](vram_transfer::TransferError::Revoked). Blocks while memory the slice freed before is still being
    /// released, if the limit needs it.
    pub fn attach(self: &Arc<Self>, slice: SliceId, share: ShareId) -> Result<MemoryLease, AttachError> {
        let attached = self.once_released(Instant::now(), |pool| match pool.attach(slice, share) {
            Err(ShareError::Room(AllocError::QuarantinePending { .. })) => None,
            other => Some(other),
        });
        let allocation = attached.ok_or(AttachError::ReleaseStuck { waited_ms: RELEASE_WAIT_MS })??;
        debug!(%slice, %share, range = %allocation.range, "a slice is shown bytes of another");
        Ok(MemoryLease::new(self, slice, allocation.range))
    }

    /// Ends access to a share: whatever has not begun is refused from now on. Waits until what has begun is done, or the
    /// time is up.
    pub fn revoke(&self, share: ShareId, timeout: Duration) -> Result<Revocation, ShareError> {
        let started = Instant::now();
        let mut pool = self.pool();
        pool.revoke(share)?;
        while pool.share(share).is_some_and(|share| share.in_use) {
            let left = timeout.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Ok(Revocation::InUse);
            }
            pool = self.quiet.wait_timeout(pool, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(Revocation::Complete)
    }
}
