//! What can go wrong on a GPU.

use crate::{DeviceAddress, GpuId};

/// An error of a backend. None of them is the fault of a guest: what a guest may ask is checked before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// The GPU has no memory left for a shard.
    #[error("{gpu} has no {requested_bytes} bytes left")]
    OutOfMemory {
        /// Which.
        gpu: GpuId,
        /// Bytes asked for.
        requested_bytes: u64,
    },
    /// The address space has no room for a band.
    #[error("No {len_bytes} bytes of device address space are left")]
    OutOfAddressSpace {
        /// Bytes asked for.
        len_bytes: u64,
    },
    /// There is no such GPU.
    #[error("{gpu} does not exist")]
    NoSuchGpu {
        /// Which.
        gpu: GpuId,
    },
    /// A handle is stale or from elsewhere.
    #[error("A {what} handle is not alive")]
    BadHandle {
        /// Kind of handle.
        what: &'static str,
    },
    /// A range is not reserved, not mapped, not accessible, or not aligned as the call wants.
    #[error("The range {start}+{len_bytes:#x} is {problem}")]
    BadRange {
        /// First address.
        start: DeviceAddress,
        /// Bytes.
        len_bytes: u64,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Enqueued work failed. Covers everything enqueued on the stream since the event before.
    #[error("A copy on {gpu} failed: {reason}")]
    CopyFailed {
        /// Where.
        gpu: GpuId,
        /// What the driver said.
        reason: String,
    },
    /// The GPU is gone; nothing on it can be reached again.
    #[error("{gpu} is lost: {reason}")]
    DeviceLost {
        /// Which.
        gpu: GpuId,
        /// What the driver said.
        reason: String,
    },
    /// The driver refused a call for another reason.
    #[error("{call} failed: {reason}")]
    Driver {
        /// The driver's name of the call.
        call: &'static str,
        /// What the driver said.
        reason: String,
    },
    /// The backend cannot be used at all.
    #[error("The {backend} backend cannot start: {reason}")]
    Unavailable {
        /// Its name.
        backend: &'static str,
        /// Why, and what would help.
        reason: String,
    },
}
