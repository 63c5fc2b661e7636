//! A bound on bytes, and the part of it each holder has taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that may be taken, and are.
#[derive(Debug)]
pub(crate) struct Budget {
    limit_bytes: Option<u64>,
    taken_bytes: AtomicU64,
}

/// Bytes taken of a budget, until dropped.
#[derive(Debug)]
pub(crate) struct Reserved {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    pub(crate) fn new(limit_bytes: Option<u64>) -> Arc<Self> {
        Arc::new(Self { limit_bytes, taken_bytes: AtomicU64::new(0) })
    }

    /// Takes bytes, or says how many are free.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> Result<Reserved, u64> {
        let limit = self.limit_bytes.unwrap_or(u64::MAX);
        let taken = |taken: u64| taken.checked_add(bytes).filter(|taken| *taken <= limit);
        match self.taken_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken) {
            Ok(_) => Ok(Reserved { budget: Arc::clone(self), bytes }),
            Err(taken) => Err(limit.saturating_sub(taken)),
        }
    }

    pub(crate) fn taken_bytes(&self) -> u64 {
        self.taken_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn limit_bytes(&self) -> Option<u64> {
        self.limit_bytes
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.budget.taken_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn take_over_the_limit_is_refused_until_bytes_come_back() {
        let budget = Budget::new(Some(100));
        let first = budget.take(60).unwrap();
        assert_eq!(budget.take(41).unwrap_err(), 40);
        let second = budget.take(40).unwrap();
        assert_eq!(budget.take(u64::MAX).unwrap_err(), 0);
        drop(first);
        assert_eq!(budget.taken_bytes(), 40);
        drop(second);
        assert!(budget.take(100).is_ok());
        assert!(Budget::new(None).take(u64::MAX).is_ok());
    }
}
