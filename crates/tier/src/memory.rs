//! Coded bytes in memory of this process.

use std::sync::Arc;

use crate::budget::Budget;
use crate::medium::{Medium, Piece, ReadFailure};
use crate::{TierError, TierKind};

/// Keeps each chunk in an allocation of its own length.
pub(crate) struct MemoryMedium {
    budget: Arc<Budget>,
}

impl MemoryMedium {
    pub(crate) fn new(limit_bytes: Option<u64>) -> Self {
        Self { budget: Budget::new(limit_bytes) }
    }
}

impl Medium for MemoryMedium {
    fn kind(&self) -> TierKind {
        TierKind::Compressed
    }

    fn unit_bytes(&self) -> usize {
        1
    }

    fn segment_bytes(&self) -> usize {
        0
    }

    fn write(&self, bytes: &[u8]) -> Result<Piece, TierError> {
        let needed_bytes = bytes.len() as u64;
        let tier = self.kind();
        let reserved = self.budget.take(needed_bytes).map_err(|free_bytes| TierError::Full {
            tier,
            needed_bytes,
            free_bytes,
        })?;
        let mut copy = Vec::new();
        if copy.try_reserve_exact(bytes.len()).is_err() {
            return Err(TierError::OutOfMemory { tier, bytes: needed_bytes });
        }
        copy.extend_from_slice(bytes);
        Ok(Piece::Memory { bytes: copy.into_boxed_slice(), _reserved: reserved })
    }

    fn read(&self, piece: &Piece, offset: usize, out: &mut [u8]) -> Result<(), ReadFailure> {
        let Piece::Memory { bytes, .. } = piece else {
            return Err(TierError::ForeignHandle { tier: self.kind() }.into());
        };
        let from = bytes.get(offset..).and_then(|rest| rest.get(..out.len())).ok_or(ReadFailure::Short)?;
        out.copy_from_slice(from);
        Ok(())
    }

    fn remove(&self, piece: Piece) -> Result<(), TierError> {
        drop(piece);
        Ok(())
    }

    fn stored_bytes(&self) -> u64 {
        self.budget.taken_bytes()
    }

    fn limit_bytes(&self) -> Option<u64> {
        self.budget.limit_bytes()
    }

    fn is_link(&self) -> bool {
        false
    }

    fn close(&self) -> Result<(), TierError> {
        Ok(())
    }
}
