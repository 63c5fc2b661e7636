//! What is at a path already.

use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

/// What is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occupant {
    /// Nothing.
    Nobody,
    /// A socket nobody listens on.
    Dead,
    /// A socket somebody listens on.
    Living,
    /// No socket.
    Other,
}

impl Occupant {
    /// Looks, and does not wait: a listener too busy to accept lives.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::Nobody),
            Err(error) => return Err(error),
            Ok(found) if !found.file_type().is_socket() => return Ok(Self::Other),
            Ok(_) => {}
        }
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let probe = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        match connect(probe.as_raw_fd(), &UnixAddr::new(path)?) {
            Err(Errno::ECONNREFUSED) => Ok(Self::Dead),
            Err(Errno::ENOENT) => Ok(Self::Nobody),
            // Its backlog is full, or it is of another type than ours.
            Ok(()) | Err(Errno::EAGAIN | Errno::EPROTOTYPE) => Ok(Self::Living),
            Err(error) => Err(error.into()),
        }
    }
}

/// Which file it is, for as long as somebody holds it open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        fs::symlink_metadata(path).map(|found: Metadata| Self { device: found.dev(), inode: found.ino() })
    }
}
