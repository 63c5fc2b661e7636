//! The folders sockets lie in.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use crate::SocketFileError;

/// Everybody may look for a socket, the owner alone may put one there.
const FOLDER_MODE: u32 = 0o755;

/// Makes the folder a path lies in, and those above it. One that exists keeps its rights; one that is made gets 0755,
/// less what the process's umask takes.
pub fn make_folder_of(path: &Path) -> Result<(), SocketFileError> {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => DirBuilder::new()
            .recursive(true)
            .mode(FOLDER_MODE)
            .create(folder)
            .map_err(|source| SocketFileError::Folder { folder: folder.to_owned(), source }),
        _ => Ok(()),
    }
}
