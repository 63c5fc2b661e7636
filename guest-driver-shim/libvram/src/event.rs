//! What the device tells without being asked.

use crate::{DeviceAddress, uapi};

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The GPU of this number is gone, and the bytes on it.
    GpuLost {
        /// Its number.
        gpu: u32,
    },
    /// Bytes that were stored off the GPUs are damaged, and lost: whatever lies in this range.
    DataLost {
        /// First address.
        address: DeviceAddress,
        /// Bytes.
        len_bytes: u64,
    },
    /// The slice was resized.
    LimitChanged {
        /// Bytes it may have at most, now.
        limit_bytes: u64,
        /// Bytes that are always there for it, now.
        guarantee_bytes: u64,
    },
    /// Others came faster than they were read, or than the device could tell them: ask how things are.
    Missed {
        /// How many.
        count: u64,
    },
    /// Something this library does not know.
    Other {
        /// Its number.
        kind: u32,
        /// What comes with it.
        value: u64,
        /// What comes with it.
        extra: u64,
    },
}

impl From<&uapi::Event> for Event {
    fn from(raw: &uapi::Event) -> Self {
        let uapi::Event { kind, value, extra, .. } = *raw;
        match kind {
            // A number that is no GPU's is passed on as the largest, which is none either.
            uapi::EVENT_GPU_LOST => Self::GpuLost { gpu: u32::try_from(value).unwrap_or(u32::MAX) },
            uapi::EVENT_DATA_LOST => Self::DataLost { address: DeviceAddress(value), len_bytes: extra },
            uapi::EVENT_LIMIT_CHANGED => Self::LimitChanged { limit_bytes: value, guarantee_bytes: extra },
            uapi::EVENT_MISSED => Self::Missed { count: value },
            _ => Self::Other { kind, value, extra },
        }
    }
}

impl Event {
    /// As the ABIs have it: kind, value, extra.
    pub(crate) fn codes(self) -> (u32, u64, u64) {
        match self {
            Self::GpuLost { gpu } => (uapi::EVENT_GPU_LOST, gpu.into(), 0),
            Self::DataLost { address, len_bytes } => (uapi::EVENT_DATA_LOST, address.0, len_bytes),
            Self::LimitChanged { limit_bytes, guarantee_bytes } => {
                (uapi::EVENT_LIMIT_CHANGED, limit_bytes, guarantee_bytes)
            }
            Self::Missed { count } => (uapi::EVENT_MISSED, count, 0),
            Self::Other { kind, value, extra } => (kind, value, extra),
        }
    }
}
