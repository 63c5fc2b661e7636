//! The operator API's socket, and the lock that keeps two daemons apart.
//!
//! Next to the socket lies a lock file, `<socket>.lock`, held for as long as the socket is served. It tells a dead
//! daemon's socket from a live one's without a gap in which two daemons could both start. It stays when the daemon
//! ends: one that removed it could remove the file another has opened and is about to lock, and a third would make and
//! lock a new one beside it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use vram_socket_file::{Gid, SocketFile, make_folder_of};

use crate::ServerError;

/// Where the operator API is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlSocket {
    /// The path.
    pub path: PathBuf,
    /// The group whose members are operators, if it is not the one the system chooses.
    pub group: Option<Gid>,
}

impl<P: Into<PathBuf>> From<P> for ControlSocket {
    fn from(path: P) -> Self {
        Self { path: path.into(), group: None }
    }
}

/// A socket this process serves. Drop removes its file, unless somebody has put another one in its place.
#[derive(Debug)]
pub(crate) struct Served {
    socket: SocketFile,
    _lock: File,
}

impl Served {
    /// Listens at a path, where a dead daemon may have left its socket.
    pub(crate) fn listen(at: &ControlSocket) -> Result<Self, ServerError> {
        make_folder_of(&at.path)?;
        let lock = take_lock(&at.path)?;
        Ok(Self { socket: SocketFile::listen(&at.path, at.group)?, _lock: lock })
    }

    /// What listens, for an event loop.
    pub(crate) fn listener(&self) -> io::Result<UnixListener> {
        let listener = self.socket.listener().try_clone()?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    }
}

fn take_lock(socket: &Path) -> Result<File, ServerError> {
    let mut lock = socket.as_os_str().to_owned();
    lock.push(".lock");
    let lock = PathBuf::from(lock);
    let opened = open_lock(&lock).and_then(|file| Ok((file.metadata()?.is_file(), file)));
    match opened {
        Err(source) => Err(ServerError::Lock { lock, source }),
        Ok((false, _)) => Err(ServerError::NotALock { lock }),
        Ok((true, file)) => match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => Err(ServerError::InUse { socket: socket.to_owned() }),
            Err(TryLockError::Error(source)) => Err(ServerError::Lock { lock, source }),
        },
    }
}

/// Opens without waiting, whatever is there.
fn open_lock(lock: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits())
        .open(lock)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    fn socket() -> (tempfile::TempDir, ControlSocket) {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("made/control.sock").into();
        (folder, socket)
    }

    #[test]
    fn listen_twice_is_refused_and_the_first_left_alone() {
        let (_folder, socket) = socket();
        let _served = Served::listen(&socket).unwrap();

        let error = Served::listen(&socket).unwrap_err();

        assert!(matches!(error, ServerError::InUse { .. }), "{error:?}");
        UnixStream::connect(&socket.path).unwrap();
    }

    #[test]
    fn drop_leaves_the_lock_free() {
        let (_folder, socket) = socket();

        drop(Served::listen(&socket).unwrap());

        assert!(!socket.path.exists());
        Served::listen(&socket).unwrap();
    }

    #[test]
    fn listen_with_a_fifo_for_a_lock_is_refused() {
        let (_folder, socket) = socket();
        make_folder_of(&socket.path).unwrap();
        mkfifo(&socket.path.with_extension("sock.lock"), Mode::S_IRWXU).unwrap();

        let error = Served::listen(&socket).unwrap_err();

        assert!(matches!(error, ServerError::NotALock { .. }), "{error:?}");
        assert!(!socket.path.exists());
    }
}
