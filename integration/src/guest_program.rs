//! Programs for the guest in C, compiled with the lab tree's compiler without any shared library.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::cargo::workspace_root;
use crate::lab::Lab;

/// Where `vram_ioctl.h` is, from the workspace's root.
const INCLUDE: &str = "guest-driver-shim/include";

/// Compiles a C source of the workspace for the guest, with the ABI headers at hand and every warning an error. A
/// program of the same sources is re-used.
pub fn guest_program(lab: &Lab, source: &str) -> Result<PathBuf> {
    let root = workspace_root();
    let source = root.join(source);
    let name = source.file_stem().with_context(|| format!("{} names no file", source.display()))?;
    let mut hasher = DefaultHasher::new();
    lab.recipe().hash(&mut hasher);
    for path in [&source, &root.join(INCLUDE).join("vram_ioctl.h")] {
        fs::read(path).with_context(|| format!("Could not read {}", path.display()))?.hash(&mut hasher);
    }
    let folder = lab.cache().join("programs").join(format!("{:016x}", hasher.finish()));
    let finished = folder.join(name);
    if finished.exists() {
        return Ok(finished);
    }
    fs::create_dir_all(&folder).with_context(|| format!("Could not create {}", folder.display()))?;
    let work = tempfile::NamedTempFile::new_in(&folder)
        .context("Could not create a file for a program")?
        .into_temp_path();
    let in_tree = |path: &Path| lab.path_in_tree(path);
    let compiled = lab
        .command("gcc-14")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-static", "-pthread", "-I"])
        .arg(in_tree(&root.join(INCLUDE))?)
        .arg("-o")
        .arg(in_tree(&work)?)
        .arg(in_tree(&source)?)
        .output()
        .context("Could not start the compiler in the lab tree")?;
    ensure!(
        compiled.status.success(),
        "{} does not compile ({}):\n{}",
        source.display(),
        compiled.status,
        String::from_utf8_lossy(&compiled.stderr)
    );
    work.persist(&finished).with_context(|| format!("Could not create {}", finished.display()))?;
    Ok(finished)
}
