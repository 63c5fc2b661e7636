//! Descriptors received from a frontend.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

/// What the kernel calls an eventfd.
const EVENTFD: &str = "anon_inode:[eventfd]";

/// Takes a received event descriptor. It must be an eventfd: a file would be readable for ever and keep a thread busy
/// for nothing. It is made non-blocking, so that nothing the frontend does with its own end can hold a thread of ours.
pub(crate) fn event_fd(file: File) -> io::Result<OwnedFd> {
    let kind = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    if kind.as_os_str() != EVENTFD {
        let message = format!("expected an eventfd, got {}", kind.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let fd = OwnedFd::from(file);
    let flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?);
    fcntl(&fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(fd)
}
