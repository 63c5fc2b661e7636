//! Numbers that must not be mixed up.

use std::fmt;

/// An address in GPU memory. Never a pointer: the CPU cannot reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceAddress(pub u64);

impl DeviceAddress {
    /// The address `offset_bytes` further on, or `None` past the end of the address space.
    pub fn checked_add(self, offset_bytes: u64) -> Option<Self> {
        self.0.checked_add(offset_bytes).map(Self)
    }
}

impl fmt::Display for DeviceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The number of a stream of a context: 0 to 1023. Streams need not be created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {}", self.0)
    }
}
