//! The simulated CUDA driver, where a program looks for the real one.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A folder with the simulated `libcuda` and `libnvidia-ml` under the names programs ask for; gone when dropped.
///
/// The test crate has `vram-simcuda` and `vram-simnvml` among its dev-dependencies: that alone makes cargo build the
/// two libraries, and puts them beside the test program.
#[derive(Debug)]
pub struct SimulatedDriver {
    folder: TempDir,
}

impl SimulatedDriver {
    /// Finds the libraries beside the running test program.
    pub fn locate() -> io::Result<Self> {
        let program = std::env::current_exe()?;
        let built = program.parent().unwrap_or(Path::new("."));
        let folder = tempfile::tempdir()?;
        // cudarc asks for `libcuda.so` in every folder before it asks for `libcuda.so.1` in any: both lie here.
        for (library, name) in [
            ("libvram_simcuda.so", "libcuda.so"),
            ("libvram_simcuda.so", "libcuda.so.1"),
            ("libvram_simnvml.so", "libnvidia-ml.so.1"),
        ] {
            let library = find(built, library)?;
            symlink(library, folder.path().join(name))?;
        }
        Ok(Self { folder })
    }

    /// Takes one of the libraries away again.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.folder.path().join(name))
    }

    /// What to set `LD_LIBRARY_PATH` to, for a child process. The loader reads it at a program's start only.
    pub fn library_path(&self) -> OsString {
        let mut path = self.folder.path().as_os_str().to_owned();
        if let Some(before) = std::env::var_os("LD_LIBRARY_PATH") {
            path.push(":");
            path.push(before);
        }
        path
    }
}

fn find(built: &Path, library: &str) -> io::Result<PathBuf> {
    // Tests and examples lie in a folder beside the libraries, other programs one above.
    let places = [built.join(library), built.join("deps").join(library), built.join("../deps").join(library)];
    let found = places.into_iter().find(|path| path.exists());
    found.ok_or_else(|| {
        let message = format!("{library} was not built beside {}", built.display());
        io::Error::new(io::ErrorKind::NotFound, message)
    })
}
