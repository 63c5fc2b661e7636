//! A socket that listens at a path.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::sys::socket::{
    AddressFamily, Backlog, Shutdown, SockFlag, SockType, UnixAddr, bind, listen, shutdown, socket,
};
use nix::sys::stat::{FchmodatFlags, Mode, fchmod, fchmodat};
use nix::unistd::{Gid, fchownat};
use tracing::{info, warn};

use crate::SocketFileError;
use crate::folder::make_folder_of;
use crate::occupant::{Identity, Occupant};

/// Owner and group may connect.
const MODE: Mode = Mode::from_bits_truncate(0o660);
/// Until the group is the right one, the owner alone may.
const FIRST_MODE: Mode = Mode::from_bits_truncate(0o600);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// A socket that listens at a path. Drop removes the file, unless somebody has put another one in its place.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// What was bound. Its number is not given to another file before the listener is closed, which is after the file
    /// is removed.
    identity: Identity,
    listener: UnixListener,
}

impl SocketFile {
    /// Listens. The folder is made if it is missing. A socket nobody listens on is replaced; what else is there stays,
    /// and is an error. The file belongs to the group that is given, or to the one the system chooses; this process must
    /// be root or a member. Does not block.
    pub fn listen(path: &Path, group: Option<Gid>) -> Result<Self, SocketFileError> {
        let cannot_listen = |source| SocketFileError::Listen { socket: path.to_owned(), source };
        make_folder_of(path)?;
        make_room(path)?;
        let file = Self::bind(path).map_err(cannot_listen)?;
        if let Some(group) = group {
            fchownat(AT_FDCWD, path, None, Some(group), AtFlags::AT_SYMLINK_NOFOLLOW).map_err(|errno| {
                SocketFileError::Group { socket: path.to_owned(), group, source: errno.into() }
            })?;
        }
        fchmodat(AT_FDCWD, path, MODE, FchmodatFlags::NoFollowSymlink)
            .map_err(|errno| cannot_listen(errno.into()))?;
        Ok(file)
    }

    /// Linux takes the rights of the file from the socket's own, less the umask: it is never open to more.
    fn bind(path: &Path) -> io::Result<Self> {
        let fd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        fchmod(&fd, FIRST_MODE)?;
        bind(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
        let identity = Identity::at(path)?;
        let file = Self { path: path.to_owned(), identity, listener: UnixListener::from(fd) };
        listen(&file.listener, Backlog::new(BACKLOG)?)?;
        Ok(file)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What listens.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Stops listening: whoever waits in accept gets an error, and so does everybody from then on. The file stays.
    pub fn shut_down(&self) {
        if let Err(error) = shutdown(self.listener.as_raw_fd(), Shutdown::Both) {
            warn!(socket = %self.path.display(), %error, "the socket cannot be shut down");
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let still_ours = Identity::at(&self.path).is_ok_and(|found| found == self.identity);
        if still_ours && let Err(error) = fs::remove_file(&self.path) {
            warn!(socket = %self.path.display(), %error, "the socket's file cannot be removed");
        }
    }
}

/// Removes a socket nobody listens on.
fn make_room(path: &Path) -> Result<(), SocketFileError> {
    let socket = || path.to_owned();
    let cannot_listen = |source| SocketFileError::Listen { socket: socket(), source };
    match Occupant::of(path).map_err(cannot_listen)? {
        Occupant::Nobody => Ok(()),
        Occupant::Living => Err(SocketFileError::InUse { socket: socket() }),
        Occupant::Other => Err(SocketFileError::NotASocket { socket: socket() }),
        Occupant::Dead => {
            info!(socket = %path.display(), "replacing the socket of a process that is gone");
            fs::remove_file(path).map_err(cannot_listen)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::*;

    fn socket_path() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("made/x.sock");
        (folder, path)
    }

    fn socket_path_in_folder() -> (tempfile::TempDir, PathBuf) {
        let (folder, path) = socket_path();
        fs::create_dir(path.parent().unwrap()).unwrap();
        (folder, path)
    }

    #[test]
    fn listen_new_path_makes_folder_and_socket_of_owner_and_group() {
        let (_folder, path) = socket_path();

        let file = SocketFile::listen(&path, None).unwrap();

        let metadata = fs::symlink_metadata(&path).unwrap();
        assert!(metadata.file_type().is_socket());
        assert_eq!(metadata.permissions().mode() & 0o777, 0o660);
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn bind_leaves_the_file_to_its_owner_alone() {
        let (_folder, path) = socket_path_in_folder();

        let _file = SocketFile::bind(&path).unwrap();

        assert_eq!(fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn listen_with_own_group_gives_the_socket_to_it() {
        let (_folder, path) = socket_path();
        let group = nix::unistd::getegid();

        let _file = SocketFile::listen(&path, Some(group)).unwrap();

        assert_eq!(fs::symlink_metadata(&path).unwrap().gid(), group.as_raw());
    }

    #[test]
    fn listen_socket_of_the_dead_replaces_it() {
        let (_folder, path) = socket_path_in_folder();
        drop(UnixListener::bind(&path).unwrap());

        let _file = SocketFile::listen(&path, None).unwrap();

        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn listen_socket_of_the_living_is_refused_and_left_alone() {
        let (_folder, path) = socket_path_in_folder();
        let _listener = UnixListener::bind(&path).unwrap();

        let error = SocketFile::listen(&path, None).unwrap_err();

        assert!(matches!(error, SocketFileError::InUse { .. }), "{error:?}");
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn listen_socket_of_another_type_is_refused_and_left_alone() {
        let (_folder, path) = socket_path_in_folder();
        let _socket = UnixDatagram::bind(&path).unwrap();

        let error = SocketFile::listen(&path, None).unwrap_err();

        assert!(matches!(error, SocketFileError::InUse { .. }), "{error:?}");
        assert!(path.exists());
    }

    #[test]
    fn listen_other_files_is_refused_and_leaves_them() {
        let (_folder, path) = socket_path_in_folder();
        fs::write(&path, "precious").unwrap();

        let error = SocketFile::listen(&path, None).unwrap_err();

        assert!(matches!(error, SocketFileError::NotASocket { .. }), "{error:?}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn listen_impossible_paths_is_an_error() {
        let folder = tempfile::tempdir().unwrap();

        let no_folder = SocketFile::listen(Path::new("/proc/nowhere/x.sock"), None).unwrap_err();
        let too_long = SocketFile::listen(&folder.path().join("x".repeat(120)), None).unwrap_err();

        assert!(matches!(no_folder, SocketFileError::Folder { .. }), "{no_folder:?}");
        assert!(matches!(too_long, SocketFileError::Listen { .. }), "{too_long:?}");
    }

    #[test]
    fn shut_down_ends_an_accept_that_waits() {
        let (_folder, path) = socket_path();
        let file = SocketFile::listen(&path, None).unwrap();
        fs::remove_file(&path).unwrap();

        let accepted = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| file.listener().accept());
            std::thread::sleep(std::time::Duration::from_millis(50));
            file.shut_down();
            waiting.join().unwrap()
        });

        assert!(accepted.is_err(), "{accepted:?}");
    }

    #[test]
    fn drop_leaves_a_socket_that_took_its_place() {
        let (_folder, path) = socket_path();
        let file = SocketFile::listen(&path, None).unwrap();
        fs::remove_file(&path).unwrap();
        let _usurper = UnixListener::bind(&path).unwrap();

        drop(file);

        UnixStream::connect(&path).unwrap();
    }
}
