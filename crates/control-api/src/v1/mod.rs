//! Version 1 of what travels. Every quantity has its unit in its name; memory is counted in bytes.

mod daemon;
mod error_body;
mod gpu;
#[cfg(test)]
mod openapi;
mod paths;
mod slice;
mod tier;

pub use daemon::Daemon;
pub use error_body::{ErrorBody, ErrorCode};
pub use gpu::{Gpu, GpuState, Gpus};
pub use paths::{
    DAEMON_PATH, GPU_DRAIN_PATH, GPU_UNDRAIN_PATH, GPUS_PATH, SLICE_PATH, SLICES_PATH, TIERS_PATH,
    gpu_drain_path, gpu_undrain_path, slice_path,
};
pub use slice::{
    BackedOnGpu, MAX_LIMIT_BYTES, NewSlice, Placement, Slice, SliceChange, SliceCounters, SliceState, Slices,
};
pub use tier::{Tier, TierCounters, TierKind, TierState, Tiers};
