//! How much a slice is used, so that its regions can be compared with those of other slices.

use std::cmp::Ordering;

use super::approximate;

/// A clock all slices of a pool share: any number that grows, such as the bytes the pool has moved or milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PoolTime(pub u64);

/// Bytes a region is expected to be asked for in a traffic window. Never NaN.
#[derive(Clone, Copy, Debug)]
pub struct Demand(f64);

impl Demand {
    pub(super) fn plus(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl PartialEq for Demand {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Demand {}

impl PartialOrd for Demand {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Demand {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// A slice's bytes: those of the present window, half those of the one before, and so on.
#[derive(Debug)]
pub(super) struct Traffic {
    window: u64,
    /// Number of the window the bytes were last counted in.
    latest: u64,
    bytes: u64,
}

impl Traffic {
    pub(super) fn new(window: u64) -> Self {
        Self { window: window.max(1), latest: 0, bytes: 0 }
    }

    pub(super) fn add(&mut self, bytes: u64, now: PoolTime) {
        self.bytes = self.at(now).saturating_add(bytes);
        self.latest = self.latest.max(self.number(now));
    }

    /// A part of the traffic.
    pub(super) fn share(&self, part: f64, now: PoolTime) -> Demand {
        Demand(part * approximate(self.at(now)))
    }

    fn at(&self, now: PoolTime) -> u64 {
        let passed = self.number(now).saturating_sub(self.latest);
        self.bytes.checked_shr(u32::try_from(passed).unwrap_or(u32::MAX)).unwrap_or(0)
    }

    fn number(&self, now: PoolTime) -> u64 {
        now.0.checked_div(self.window).unwrap_or(0)
    }
}
