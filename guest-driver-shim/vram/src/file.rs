//! Files as sources and destinations: of known size, or replaced only when all is there.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Seek, SeekFrom, Write},
    os::fd::AsFd,
    path::{Path, PathBuf},
};

/// The name of standard input or output.
const STANDARD: &str = "-";

/// Why a file is of no use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error("{} cannot be opened", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("The size of {} cannot be known; say how many bytes with --size", path.display())]
    SizeUnknown { path: PathBuf },
    #[error("{} is empty; an allocation has at least one byte", path.display())]
    Empty { path: PathBuf },
    #[error("{} has {found_bytes} bytes, fewer than the {wanted_bytes} asked for", path.display())]
    TooShort { path: PathBuf, found_bytes: u64, wanted_bytes: u64 },
    #[error("{} is a folder; name a file", path.display())]
    Folder { path: PathBuf },
    #[error("{} cannot be written", path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// A file to read from.
pub(crate) struct Source {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    /// Bytes from where it stands to its end, if that can be known.
    pub(crate) len_bytes: Option<u64>,
}

impl Source {
    /// Opens a regular file, a block device, a pipe, or standard input.
    pub(crate) fn open(path: &Path) -> Result<Self, FileError> {
        let failed = |source| FileError::Open { path: path.to_path_buf(), source };
        let mut file = if path.as_os_str() == STANDARD {
            io::stdin().as_fd().try_clone_to_owned().map(File::from).map_err(failed)?
        } else {
            File::open(path).map_err(failed)?
        };
        if file.metadata().map_err(failed)?.is_dir() {
            return Err(FileError::Folder { path: path.to_path_buf() });
        }
        let len_bytes = remaining(&mut file);
        Ok(Self { file, path: path.to_path_buf(), len_bytes })
    }

    /// How many bytes to take: what was asked for, or all there are.
    pub(crate) fn take(&self, asked: Option<u64>) -> Result<u64, FileError> {
        let path = || self.path.clone();
        match (asked, self.len_bytes) {
            (Some(0), _) => Err(FileError::Empty { path: path() }),
            (Some(wanted_bytes), Some(found_bytes)) if wanted_bytes > found_bytes => {
                Err(FileError::TooShort { path: path(), found_bytes, wanted_bytes })
            }
            (Some(wanted_bytes), _) => Ok(wanted_bytes),
            (None, Some(0)) => Err(FileError::Empty { path: path() }),
            (None, Some(found_bytes)) => Ok(found_bytes),
            (None, None) => Err(FileError::SizeUnknown { path: path() }),
        }
    }
}

/// Bytes up to the end. Works for block devices, whose metadata has no size; character devices say 0 or nothing.
fn remaining(file: &mut File) -> Option<u64> {
    use std::os::unix::fs::FileTypeExt;
    if file.metadata().ok()?.file_type().is_char_device() {
        return None;
    }
    let here = file.stream_position().ok()?;
    let end = file.seek(SeekFrom::End(0)).ok()?;
    file.seek(SeekFrom::Start(here)).ok()?;
    Some(end.saturating_sub(here))
}

/// A file to write to. A regular file is written under another name beside it and takes its place in
/// [`finish`](Self::finish); dropped before, it leaves nothing. Devices, pipes and standard output are written at once.
pub(crate) struct Destination {
    file: File,
    path: PathBuf,
    /// The name until all is there.
    temporary: Option<PathBuf>,
}

impl Destination {
    pub(crate) fn is_standard_output(path: &Path) -> bool {
        path.as_os_str() == STANDARD
    }

    pub(crate) fn create(path: &Path) -> Result<Self, FileError> {
        let failed = |source| FileError::Open { path: path.to_path_buf(), source };
        if Self::is_standard_output(path) {
            let file = io::stdout().as_fd().try_clone_to_owned().map(File::from).map_err(failed)?;
            return Ok(Self { file, path: path.to_path_buf(), temporary: None });
        }
        // A link is followed, so that what it points to is replaced and not the link.
        let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => Err(FileError::Folder { path: path.clone() }),
            Ok(metadata) if !metadata.is_file() => {
                let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
                Ok(Self { file, path: path.clone(), temporary: None })
            }
            _ => {
                let mut name = OsString::from(".");
                name.push(path.file_name().unwrap_or_default());
                name.push(format!(".{}.part", std::process::id()));
                let temporary = path.with_file_name(name);
                let file =
                    OpenOptions::new().write(true).create_new(true).open(&temporary).map_err(failed)?;
                Ok(Self { file, path: path.clone(), temporary: Some(temporary) })
            }
        }
    }

    /// Makes the file what was written, on the disk too.
    pub(crate) fn finish(mut self) -> Result<(), FileError> {
        let failed = |source| FileError::Write { path: self.path.clone(), source };
        if let Some(temporary) = &self.temporary {
            self.file.sync_all().map_err(failed)?;
            fs::rename(temporary, &self.path).map_err(failed)?;
            self.temporary = None;
        }
        Ok(())
    }
}

impl Write for Destination {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // Nothing can be done about an error here; what is left has a name that says what it is.
            let _ = fs::remove_file(temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn source_sizes_are_known_or_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        fs::write(&path, [1; 10]).unwrap();
        let source = Source::open(&path).unwrap();

        assert_eq!(source.take(None).unwrap(), 10);
        assert_eq!(source.take(Some(4)).unwrap(), 4);
        assert!(matches!(
            source.take(Some(11)),
            Err(FileError::TooShort { found_bytes: 10, wanted_bytes: 11, .. })
        ));
        assert!(matches!(source.take(Some(0)), Err(FileError::Empty { .. })));

        let zeros = Source::open(Path::new("/dev/zero")).unwrap();
        assert!(matches!(zeros.take(None), Err(FileError::SizeUnknown { .. })));
        assert_eq!(zeros.take(Some(5)).unwrap(), 5);

        fs::write(&path, []).unwrap();
        assert!(matches!(Source::open(&path).unwrap().take(None), Err(FileError::Empty { .. })));
        assert!(matches!(Source::open(folder.path()), Err(FileError::Folder { .. })));
    }

    #[test]
    fn destination_dropped_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        fs::write(&path, "old").unwrap();

        let mut destination = Destination::create(&path).unwrap();
        destination.write_all(b"new").unwrap();
        drop(destination);

        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn destination_finished_replaces_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        fs::write(&path, "old").unwrap();

        let mut destination = Destination::create(&path).unwrap();
        destination.write_all(b"new").unwrap();
        destination.finish().unwrap();

        let mut text = String::new();
        File::open(&path).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn destination_that_is_a_device_is_written_itself() {
        let mut destination = Destination::create(Path::new("/dev/null")).unwrap();

        destination.write_all(b"gone").unwrap();
        destination.finish().unwrap();

        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
