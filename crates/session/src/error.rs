//! What the guest is told of errors below.

use vram_gpu::GpuError;
use vram_pool::AllocError;
use vram_protocol::Status;
use vram_residency::{AdviseError, AllocateError};
use vram_transfer::TransferError;

/// The status of a failed allocation.
pub(crate) fn allocate_status(error: &AllocateError) -> Status {
    match error {
        AllocateError::Pool(error) => match error {
            AllocError::BadAlignment { .. } => Status::BadAlignment,
            // Zero was refused before; what is left is a length so large that rounding it up wraps.
            AllocError::BadLength { .. } | AllocError::OverLimit { .. } => Status::OverLimit,
            AllocError::OutOfMemory { .. }
            | AllocError::Fragmented { .. }
            | AllocError::QuarantinePending { .. } => Status::OutOfMemory,
            AllocError::NoSuchSlice { .. } | AllocError::Busy { .. } => Status::Internal,
        },
        AllocateError::Gpu(error) => gpu_status(error),
        AllocateError::Scrub(error) => transfer_status(error),
        AllocateError::ReleaseStuck { .. } => Status::OutOfMemory,
    }
}

/// The status of an advice that is refused.
pub(crate) fn advise_status(error: &AdviseError) -> Status {
    match error {
        AdviseError::NoSuchGpu { .. } => Status::BadRequest,
        AdviseError::OverGuarantee => Status::OverLimit,
    }
}

/// The status of a failed transfer.
pub(crate) fn transfer_status(error: &TransferError) -> Status {
    match error {
        TransferError::Cancelled => Status::Cancelled,
        TransferError::Mismatch => Status::Internal,
        TransferError::HostMemoryLost | TransferError::Unavailable { .. } => Status::TransferFailed,
        TransferError::DataLost => Status::DataLost,
        TransferError::NoRoom => Status::OutOfMemory,
        // No guest is shown bytes of another yet.
        TransferError::Revoked | TransferError::ReadOnly => Status::BadAddress,
        TransferError::Gpu(error) => gpu_status(error),
    }
}

fn gpu_status(error: &GpuError) -> Status {
    match error {
        GpuError::DeviceLost { .. } => Status::DeviceLost,
        GpuError::OutOfMemory { .. } => Status::OutOfMemory,
        GpuError::OutOfAddressSpace { .. }
        | GpuError::NoSuchGpu { .. }
        | GpuError::BadHandle { .. }
        | GpuError::BadRange { .. }
        | GpuError::CopyFailed { .. }
        | GpuError::Driver { .. }
        | GpuError::Unavailable { .. } => Status::TransferFailed,
    }
}
