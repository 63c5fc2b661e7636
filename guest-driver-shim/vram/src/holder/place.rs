//! Where the holder of a device is found: a socket and a lock in a folder that only its user may enter.
//!
//! The lock says whether a holder lives. A socket that nobody listens on is what a killed holder left behind.

use std::{
    ffi::OsStr,
    fs::{self, DirBuilder},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use nix::unistd::{Uid, geteuid};

/// The environment variable that names another folder.
pub(crate) const FOLDER_VARIABLE: &str = "VRAM_RUNTIME_DIR";

/// The files of one device's holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) folder: PathBuf,
    pub(crate) socket: PathBuf,
    pub(crate) lock: PathBuf,
}

/// Why there is no place for a holder.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlaceError {
    #[error(
        "There is no folder for the holder's socket; set XDG_RUNTIME_DIR or {FOLDER_VARIABLE} to one that is yours"
    )]
    NoFolder,
    #[error("{} cannot be made or read; set {FOLDER_VARIABLE} to a folder that is yours", folder.display())]
    Unusable { folder: PathBuf, source: io::Error },
    #[error("{} may be changed by other users; chmod 700 it, or set {FOLDER_VARIABLE} to a folder that is yours", folder.display())]
    Exposed { folder: PathBuf },
}

impl Place {
    /// The place for the holder of `device`, from the environment.
    pub(crate) fn of(device: &Path) -> Result<Self, PlaceError> {
        let variable =
            |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Self::choose(device, geteuid(), variable(FOLDER_VARIABLE), variable("XDG_RUNTIME_DIR"))
    }

    fn choose(
        device: &Path,
        user: Uid,
        folder: Option<PathBuf>,
        runtime: Option<PathBuf>,
    ) -> Result<Self, PlaceError> {
        let folder = match (folder, user.is_root(), runtime) {
            (Some(folder), _, _) => folder,
            (None, true, _) => PathBuf::from("/run/vram"),
            (None, false, Some(runtime)) => runtime.join("vram"),
            (None, false, None) => return Err(PlaceError::NoFolder),
        };
        let node = device.file_name().unwrap_or(OsStr::new("vram"));
        let file = |ending: &str| {
            let mut name = node.to_owned();
            name.push(ending);
            folder.join(name)
        };
        Ok(Self { socket: file(".hold.sock"), lock: file(".hold.lock"), folder })
    }

    /// Makes the folder where it is not there, and makes sure that no other user can put a socket there.
    pub(crate) fn prepare(&self) -> Result<(), PlaceError> {
        let unusable = |source| PlaceError::Unusable { folder: self.folder.clone(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder).map_err(unusable)?;
        self.check()
    }

    /// Makes sure that no other user can put a socket there. A folder that is not there is safe.
    pub(crate) fn check(&self) -> Result<(), PlaceError> {
        let metadata = match fs::metadata(&self.folder) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(source) => return Err(PlaceError::Unusable { folder: self.folder.clone(), source }),
        };
        let owner_is_trusted = metadata.uid() == geteuid().as_raw() || metadata.uid() == 0;
        if !owner_is_trusted || metadata.permissions().mode() & 0o022 != 0 {
            return Err(PlaceError::Exposed { folder: self.folder.clone() });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(user: u32, folder: Option<&str>, runtime: Option<&str>) -> Result<Place, PlaceError> {
        let path = |text: Option<&str>| text.map(PathBuf::from);
        Place::choose(Path::new("/dev/vram1"), Uid::from_raw(user), path(folder), path(runtime))
    }

    #[test]
    fn place_of_root_is_in_run_and_of_others_in_their_runtime_folder() {
        assert_eq!(choose(0, None, Some("/r")).unwrap().socket, Path::new("/run/vram/vram1.hold.sock"));
        assert_eq!(choose(5, None, Some("/r")).unwrap().lock, Path::new("/r/vram/vram1.hold.lock"));
        assert_eq!(choose(5, Some("/f"), Some("/r")).unwrap().folder, Path::new("/f"));
        assert!(matches!(choose(5, None, None), Err(PlaceError::NoFolder)));
    }

    #[test]
    fn prepare_makes_a_private_folder_and_refuses_one_others_can_write() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("deep/vram");
        let place = choose(5, folder.to_str(), None).unwrap();

        place.prepare().unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);

        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(place.prepare(), Err(PlaceError::Exposed { .. })));
    }
}
