//! Addresses in the one device address space all GPUs of a host share.

use std::fmt;

/// A device address: what a CUDA device pointer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceAddress(pub u64);

impl DeviceAddress {
    /// The address `offset_bytes` further on, unless it wraps.
    pub fn checked_add(self, offset_bytes: u64) -> Option<Self> {
        self.0.checked_add(offset_bytes).map(Self)
    }

    /// Bytes from `base` to here, unless `base` lies behind.
    pub fn offset_from(self, base: Self) -> Option<u64> {
        self.0.checked_sub(base.0)
    }
}

impl fmt::Display for DeviceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A run of device addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceRange {
    /// First address.
    pub start: DeviceAddress,
    /// Bytes.
    pub len_bytes: u64,
}

impl DeviceRange {
    /// One past the last address, unless it wraps.
    pub fn end(&self) -> Option<DeviceAddress> {
        self.start.checked_add(self.len_bytes)
    }

    /// Whether `other` lies wholly inside.
    pub fn contains(&self, other: &Self) -> bool {
        match (self.end(), other.end()) {
            (Some(end), Some(other_end)) => self.start <= other.start && other_end <= end,
            _ => false,
        }
    }
}

impl fmt::Display for DeviceRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{:#x}", self.start, self.len_bytes)
    }
}
