//! The socket file: who may use it, who owns it, when it goes.
//!
//! Next to the socket lies a lock file, `<socket>.lock`, held for as long as the socket is served. It tells a dead
//! daemon's socket from a live one's without a gap in which two daemons could both start. It stays when the daemon
//! ends: removing a lock file opens that gap again.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use nix::sys::stat::{Mode, fchmod};

use crate::ServerError;

/// Owner and group may connect.
const SOCKET_MODE: u32 = 0o660;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// A socket file this process serves. Drop removes it, unless somebody has put another one in its place.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
    _lock: File,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let still_ours =
            fs::symlink_metadata(&self.path).is_ok_and(|found| identity(&found) == self.identity);
        if still_ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(socket = %self.path.display(), %error, "Cannot remove the operator API's socket");
        }
    }
}

fn identity(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Listens at a path, where a dead daemon may have left its socket.
pub(crate) fn listen_at(path: &Path) -> Result<(UnixListener, SocketFile), ServerError> {
    let cannot_listen = |source| ServerError::Listen { socket: path.to_owned(), source };
    make_folder(path)?;
    let lock = take_lock(path)?;
    remove_stale(path)?;
    let listener = bind_private(path).map_err(cannot_listen)?;
    let metadata = fs::symlink_metadata(path).map_err(cannot_listen)?;
    let file = SocketFile { path: path.to_owned(), identity: identity(&metadata), _lock: lock };
    fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE)).map_err(cannot_listen)?;
    listener.set_nonblocking(true).map_err(cannot_listen)?;
    Ok((listener, file))
}

fn make_folder(path: &Path) -> Result<(), ServerError> {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(folder)
            .map_err(|source| ServerError::Folder { folder: folder.to_owned(), source }),
        _ => Ok(()),
    }
}

fn take_lock(path: &Path) -> Result<File, ServerError> {
    let mut lock_path = path.as_os_str().to_owned();
    lock_path.push(".lock");
    let lock_path = PathBuf::from(lock_path);
    let opened = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(OFlag::O_NOFOLLOW.bits())
        .open(&lock_path);
    match opened {
        Err(source) => Err(ServerError::Lock { lock: lock_path, source }),
        Ok(file) => match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => Err(ServerError::InUse { socket: path.to_owned() }),
            Err(TryLockError::Error(source)) => Err(ServerError::Lock { lock: lock_path, source }),
        },
    }
}

/// Removes a socket nobody listens on; whatever else is there stays, and is an error.
fn remove_stale(path: &Path) -> Result<(), ServerError> {
    let socket = || path.to_owned();
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(ServerError::Listen { socket: socket(), source }),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(ServerError::NotASocket { socket: socket() });
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            tracing::info!(socket = %path.display(), "Replacing the socket of a daemon that is gone");
            fs::remove_file(path).map_err(|source| ServerError::Listen { socket: socket(), source })
        }
        Err(source) if source.kind() == ErrorKind::PermissionDenied => {
            Err(ServerError::Listen { socket: socket(), source })
        }
        // Also when its backlog is full: somebody is there.
        Ok(_) | Err(_) => Err(ServerError::InUse { socket: socket() }),
    }
}

/// Binds and listens such that the file never has more than [`SOCKET_MODE`]: Linux takes the mode of the file from the
/// socket's own, less the umask.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    let fd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    fchmod(&fd, Mode::from_bits_truncate(SOCKET_MODE))?;
    bind(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    listen(&fd, Backlog::new(BACKLOG)?)?;
    Ok(UnixListener::from(fd))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket_path() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("made/control.sock");
        (folder, path)
    }

    #[test]
    fn listen_at_new_path_makes_folder_and_private_socket() {
        let (_folder, path) = socket_path();

        let (_listener, file) = listen_at(&path).unwrap();

        let metadata = fs::symlink_metadata(&path).unwrap();
        assert!(metadata.file_type().is_socket());
        assert_eq!(metadata.permissions().mode() & 0o777, 0o660);
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn listen_at_socket_of_the_dead_replaces_it() {
        let (_folder, path) = socket_path();
        fs::create_dir(path.parent().unwrap()).unwrap();
        drop(UnixListener::bind(&path).unwrap());

        let (_listener, _file) = listen_at(&path).unwrap();

        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn listen_at_socket_of_the_living_is_refused_and_left_alone() {
        let (_folder, path) = socket_path();
        let (_listener, _file) = listen_at(&path).unwrap();

        let error = listen_at(&path).unwrap_err();

        assert!(matches!(error, ServerError::InUse { .. }), "{error:?}");
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn listen_at_socket_of_another_program_is_refused_and_left_alone() {
        let (_folder, path) = socket_path();
        fs::create_dir(path.parent().unwrap()).unwrap();
        let _listener = UnixListener::bind(&path).unwrap();

        let error = listen_at(&path).unwrap_err();

        assert!(matches!(error, ServerError::InUse { .. }), "{error:?}");
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn listen_at_other_files_is_refused_and_leaves_them() {
        let (_folder, path) = socket_path();
        fs::create_dir(path.parent().unwrap()).unwrap();
        fs::write(&path, "precious").unwrap();

        let error = listen_at(&path).unwrap_err();

        assert!(matches!(error, ServerError::NotASocket { .. }), "{error:?}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn listen_at_impossible_paths_is_an_error() {
        let too_long = tempfile::tempdir().unwrap();

        let no_folder = listen_at(Path::new("/proc/nowhere/control.sock")).unwrap_err();
        let too_long = listen_at(&too_long.path().join("x".repeat(120))).unwrap_err();

        assert!(matches!(no_folder, ServerError::Folder { .. }), "{no_folder:?}");
        assert!(matches!(too_long, ServerError::Listen { .. }), "{too_long:?}");
    }

    #[test]
    fn drop_leaves_a_socket_that_took_its_place() {
        let (_folder, path) = socket_path();
        let (_listener, file) = listen_at(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let _usurper = UnixListener::bind(&path).unwrap();

        drop(file);

        UnixStream::connect(&path).unwrap();
    }
}
