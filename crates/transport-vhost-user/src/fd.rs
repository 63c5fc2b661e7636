//! Descriptors received from a frontend.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use nix::fcntl::{FcntlArg, OFlag, fcntl};

/// Makes a received event descriptor non-blocking, so that nothing the frontend does with its own end can hold a
/// thread of ours.
pub(crate) fn event_fd(file: File) -> io::Result<OwnedFd> {
    let fd = OwnedFd::from(file);
    let flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?);
    fcntl(&fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(fd)
}
