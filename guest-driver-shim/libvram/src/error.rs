//! What can go wrong, told apart by the errno table of the ABI. Each message says what to do next.

use std::{fmt, io, path::PathBuf};

use crate::{DeviceAddress, driver::Errno};

/// What was asked of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The versions.
    Version,
    /// The state of the slice.
    Info,
    /// Memory.
    Allocate,
    /// Memory taken back.
    Free,
    /// Where memory lies.
    Query,
    /// Advice about the use of memory.
    Advise,
    /// What happened.
    NextEvent,
    /// Bytes to the device.
    Write,
    /// Bytes from the device.
    Read,
    /// Bytes within the device.
    Copy,
    /// A pattern in device memory.
    Fill,
    /// A wait for a stream.
    Fence,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Version => "Asking for the version",
            Self::Info => "Asking for the slice",
            Self::Allocate => "Allocate",
            Self::Free => "Free",
            Self::Query => "Query",
            Self::Advise => "Advise",
            Self::NextEvent => "Waiting for an event",
            Self::Write => "Write",
            Self::Read => "Read",
            Self::Copy => "Copy",
            Self::Fill => "Fill",
            Self::Fence => "Fence",
        })
    }
}

/// A call that failed: what it was, and how far it got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// What was asked.
    pub operation: Operation,
    /// The device address it was about, the destination's for a copy.
    pub address: Option<DeviceAddress>,
    /// Bytes it was about; 0 where there are none.
    pub len_bytes: u64,
    /// Bytes that surely are where they should be, although the call failed. Those after them may have any value.
    pub moved_bytes: u64,
}

impl Attempt {
    pub(crate) fn new(operation: Operation) -> Self {
        Self { operation, address: None, len_bytes: 0, moved_bytes: 0 }
    }

    pub(crate) fn at(self, address: DeviceAddress) -> Self {
        Self { address: Some(address), ..self }
    }

    pub(crate) fn len(self, len_bytes: u64) -> Self {
        Self { len_bytes, ..self }
    }

    pub(crate) fn moved(self, moved_bytes: u64) -> Self {
        Self { moved_bytes, ..self }
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.operation)?;
        if self.len_bytes > 0 {
            write!(f, " of {} bytes", self.len_bytes)?;
        }
        if let Some(address) = self.address {
            write!(f, " at {address}")?;
        }
        f.write_str(" failed")?;
        if self.moved_bytes > 0 {
            write!(f, " after {} bytes", self.moved_bytes)?;
        }
        Ok(())
    }
}

/// An error of this library.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The node is not there.
    #[error("{} is not there; load the module (modprobe virtio_vram) and see in dmesg whether this VM has a vram device", path.display())]
    NoDevice {
        /// Its path.
        path: PathBuf,
        /// ENOENT, ENXIO or ENODEV.
        source: io::Error,
    },
    /// The node may not be opened.
    #[error("{} may not be opened by this user; use root, or have the administrator give its group to you", path.display())]
    AccessDenied {
        /// Its path.
        path: PathBuf,
        /// EACCES or EPERM.
        source: io::Error,
    },
    /// The node cannot be opened for another reason.
    #[error("{} cannot be opened", path.display())]
    OpenFailed {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// ENOTTY: the file is something else, or the module is older than this library.
    #[error(
        "{0}: the file is no vram device or its module does not know the call; check VRAM_DEVICE, or update the virtio_vram module"
    )]
    NotSupported(Attempt),
    /// The module speaks another version of the ioctl ABI.
    #[error(
        "The virtio_vram module speaks version {found} of the ioctl ABI and this library version {wanted}; install both from the same release"
    )]
    WrongVersion {
        /// The module's.
        found: u32,
        /// This library's.
        wanted: u32,
    },
    /// EFAULT.
    #[error("{0}: the buffer is not memory of this process; check the pointer and the length")]
    BadPointer(Attempt),
    /// EINVAL.
    #[error(
        "{0}: a length, alignment, width, stream, advice, GPU or overlap is not valid; see vram.h for what is"
    )]
    Invalid(Attempt),
    /// ENXIO.
    #[error(
        "{0}: the range does not lie in a live allocation of this context; check the address, and that it was not freed"
    )]
    BadAddress(Attempt),
    /// ENOMEM.
    #[error("{0}: the pool has no memory left for this slice; free some, or try again later")]
    OutOfMemory(Attempt),
    /// EDQUOT.
    #[error(
        "{0}: the slice's limit does not allow it; free some, or ask the host's operator for a higher limit"
    )]
    OverLimit(Attempt),
    /// EDQUOT, of advice.
    #[error("{0}: no more can be pinned than the slice is guaranteed; unpin some, or go on without the pin")]
    OverGuarantee(Attempt),
    /// EMFILE.
    #[error("{0}: too many contexts or allocations are alive; free some, or allocate fewer and larger ones")]
    TooMany(Attempt),
    /// EIO.
    #[error("{0}: the transfer failed on the GPU; try again, and tell the host's operator if it fails again")]
    TransferFailed(Attempt),
    /// EBADMSG.
    #[error(
        "{0}: the bytes were stored off the GPUs and are damaged there; free the allocation and load its data again"
    )]
    DataLost(Attempt),
    /// EOPNOTSUPP.
    #[error(
        "{0}: the host's daemon is too old to know the call; go on without it, or have the daemon updated"
    )]
    TooOld(Attempt),
    /// ENODEV.
    #[error(
        "{0}: the device, or the GPU that held the bytes, is gone; free the allocation and load its data again"
    )]
    DeviceGone(Attempt),
    /// ETIMEDOUT.
    #[error("{0}: the device did not answer in time; try again, and see whether the host's daemon runs")]
    TimedOut(Attempt),
    /// ESTALE.
    #[error(
        "{0}: the host's daemon was started anew and the memory of this context is gone; open the device again and load the data again"
    )]
    Stale(Attempt),
    /// EINTR.
    #[error("{0}: a signal arrived; the call can be made again")]
    Interrupted(Attempt),
    /// The kernel reported success without having moved anything.
    #[error("{0}: the device reported success but moved nothing; update the virtio_vram module")]
    NoProgress(Attempt),
    /// The placement changed each time it was read.
    #[error("{0}: the placement changes faster than it can be read; try again")]
    Unsettled(Attempt),
    /// A range that is not inside an allocation, found before the device was asked.
    #[error(
        "{len_bytes} bytes at offset {offset_bytes} are outside the allocation, which has {allocation_bytes} bytes"
    )]
    OutOfRange {
        /// First byte asked for.
        offset_bytes: u64,
        /// Bytes asked for.
        len_bytes: u64,
        /// Bytes there are.
        allocation_bytes: u64,
    },
    /// An errno that the ABI does not have.
    #[error("{attempt}")]
    Unexpected {
        /// The call.
        attempt: Attempt,
        /// The errno.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn from_errno(errno: Errno, attempt: Attempt) -> Self {
        match errno.0 {
            libc::ENOTTY => Self::NotSupported(attempt),
            libc::EFAULT => Self::BadPointer(attempt),
            libc::EINVAL => Self::Invalid(attempt),
            libc::ENXIO => Self::BadAddress(attempt),
            libc::ENOMEM => Self::OutOfMemory(attempt),
            libc::EDQUOT if attempt.operation == Operation::Advise => Self::OverGuarantee(attempt),
            libc::EDQUOT => Self::OverLimit(attempt),
            libc::EMFILE => Self::TooMany(attempt),
            libc::EIO => Self::TransferFailed(attempt),
            libc::EBADMSG => Self::DataLost(attempt),
            libc::EOPNOTSUPP => Self::TooOld(attempt),
            libc::ENODEV => Self::DeviceGone(attempt),
            libc::ETIMEDOUT => Self::TimedOut(attempt),
            libc::ESTALE => Self::Stale(attempt),
            libc::EINTR => Self::Interrupted(attempt),
            other => Self::Unexpected { attempt, source: io::Error::from_raw_os_error(other) },
        }
    }

    pub(crate) fn opening(path: PathBuf, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => Self::NoDevice { path, source },
            Some(libc::EACCES | libc::EPERM) => Self::AccessDenied { path, source },
            _ => Self::OpenFailed { path, source },
        }
    }

    /// The errno that says the same, positive. What the C ABI returns, negated.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NoDevice { source, .. }
            | Self::AccessDenied { source, .. }
            | Self::OpenFailed { source, .. }
            | Self::Unexpected { source, .. } => source.raw_os_error().unwrap_or(libc::EINVAL),
            Self::NotSupported(_) => libc::ENOTTY,
            Self::WrongVersion { .. } => libc::EPROTONOSUPPORT,
            Self::BadPointer(_) => libc::EFAULT,
            Self::Invalid(_) => libc::EINVAL,
            Self::BadAddress(_) => libc::ENXIO,
            Self::OutOfMemory(_) => libc::ENOMEM,
            Self::OverLimit(_) | Self::OverGuarantee(_) => libc::EDQUOT,
            Self::TooMany(_) => libc::EMFILE,
            Self::TransferFailed(_) | Self::NoProgress(_) => libc::EIO,
            Self::DataLost(_) => libc::EBADMSG,
            Self::TooOld(_) => libc::EOPNOTSUPP,
            Self::DeviceGone(_) => libc::ENODEV,
            Self::TimedOut(_) => libc::ETIMEDOUT,
            Self::Stale(_) => libc::ESTALE,
            Self::Interrupted(_) => libc::EINTR,
            Self::Unsettled(_) => libc::EAGAIN,
            Self::OutOfRange { .. } => libc::ENXIO,
        }
    }

    /// The call that failed, where the device was asked at all.
    pub fn attempt(&self) -> Option<&Attempt> {
        match self {
            Self::NoDevice { .. }
            | Self::AccessDenied { .. }
            | Self::OpenFailed { .. }
            | Self::WrongVersion { .. }
            | Self::OutOfRange { .. } => None,
            Self::NotSupported(attempt)
            | Self::BadPointer(attempt)
            | Self::Invalid(attempt)
            | Self::BadAddress(attempt)
            | Self::OutOfMemory(attempt)
            | Self::OverLimit(attempt)
            | Self::OverGuarantee(attempt)
            | Self::TooMany(attempt)
            | Self::TransferFailed(attempt)
            | Self::DataLost(attempt)
            | Self::TooOld(attempt)
            | Self::DeviceGone(attempt)
            | Self::TimedOut(attempt)
            | Self::Stale(attempt)
            | Self::Interrupted(attempt)
            | Self::NoProgress(attempt)
            | Self::Unsettled(attempt)
            | Self::Unexpected { attempt, .. } => Some(attempt),
        }
    }
}

/// A sentence for an errno, as `vram_strerror` returns it: NUL-terminated, without the details of one call.
pub(crate) fn describe(errno: i32) -> &'static std::ffi::CStr {
    match errno {
        0 => c"Success",
        libc::ENOENT => c"The device node is not there; load the virtio_vram module",
        libc::EACCES | libc::EPERM => c"The device node may not be opened by this user",
        libc::ENOTTY => c"The file is no vram device, or its module does not know the call",
        libc::EPROTONOSUPPORT => {
            c"The module speaks another version of the ioctl ABI; install both from one release"
        }
        libc::EFAULT => c"A pointer is NULL or not memory of this process",
        libc::EINVAL => c"A length, alignment, width, stream, advice, GPU or overlap is not valid",
        libc::ENXIO => c"The range does not lie in a live allocation of this device handle",
        libc::ENOMEM => c"The pool has no memory left for this slice; free some, or try again later",
        libc::EDQUOT => {
            c"The slice's limit, or for a pin its guarantee, does not allow it; free some, or ask the operator for more"
        }
        libc::EMFILE => c"Too many contexts or allocations are alive; free some",
        libc::EIO => c"The transfer failed on the GPU; the moved count says how far it got",
        libc::EBADMSG => c"The bytes were stored off the GPUs and are damaged there; load the data again",
        libc::EOPNOTSUPP => c"The host's daemon is too old to know the call",
        libc::ENODEV => c"The device, or the GPU that held the bytes, is gone; load the data again",
        libc::ETIMEDOUT => c"The device did not answer in time; see whether the host's daemon runs",
        libc::ESTALE => c"The host's daemon was started anew and the memory is gone; open the device again",
        libc::EINTR => c"A signal arrived; the call can be made again",
        libc::EAGAIN => c"There was no event in time, or the placement changes faster than it can be read",
        libc::ENOTRECOVERABLE => c"A defect of libvram was contained; close the device handle and report it",
        _ => c"An error that the vram ABI does not have",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: [i32; 14] = [
        libc::EFAULT,
        libc::EINVAL,
        libc::ENXIO,
        libc::ENOMEM,
        libc::EDQUOT,
        libc::EMFILE,
        libc::EIO,
        libc::EBADMSG,
        libc::EOPNOTSUPP,
        libc::ENODEV,
        libc::ETIMEDOUT,
        libc::ESTALE,
        libc::EINTR,
        libc::ENOTTY,
    ];

    #[test]
    fn from_errno_of_the_abi_table_keeps_errno_and_says_what_to_do() {
        let attempt = Attempt::new(Operation::Write).at(DeviceAddress(0x1000)).len(4096).moved(512);

        for errno in TABLE {
            let error = Error::from_errno(Errno(errno), attempt);

            assert!(!matches!(error, Error::Unexpected { .. }), "{errno} has no variant");
            assert_eq!(error.errno(), errno);
            assert_eq!(error.attempt().unwrap().moved_bytes, 512);
            let message = error.to_string();
            assert!(
                message.starts_with("Write of 4096 bytes at 0x1000 failed after 512 bytes: "),
                "{message}"
            );
            assert!(message.contains(';') || errno == libc::EINTR, "{message} does not say what to do");
            assert_ne!(describe(errno), describe(i32::MAX), "{errno} has no sentence");
        }
    }

    #[test]
    fn from_errno_unknown_is_kept_as_source() {
        let error = Error::from_errno(Errno(libc::EBUSY), Attempt::new(Operation::Fence));

        assert_eq!(error.errno(), libc::EBUSY);
        assert_eq!(error.to_string(), "Fence failed");
        assert!(std::error::Error::source(&error).is_some());
    }
}
