//! Building kernel modules in the lab tree against the headers of one of its kernels.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::workspace_root;
use crate::lab::{Kernel, Lab};

/// A built module.
#[derive(Debug, Clone)]
pub struct KernelModule {
    /// The `.ko` file.
    pub path: PathBuf,
    /// All that the build printed, warnings included.
    pub build_log: String,
}

/// Builds the guest driver, `guest-driver-shim/linux` with the headers beside it, for `kernel`.
pub fn guest_driver(lab: &Lab, kernel: &Kernel) -> Result<KernelModule> {
    let shim = workspace_root().join("guest-driver-shim");
    KernelModule::build(lab, kernel, &[&shim.join("linux"), &shim.join("include")], &[])
}

impl KernelModule {
    /// Builds the module in the first of `folders`. All of them are copied side by side, under their own
    /// names, into a build folder in the lab's cache, so that nothing is written beside the sources and
    /// `../include` works. `make_args` are appended to make's. A build of the same sources is re-used.
    pub fn build(lab: &Lab, kernel: &Kernel, folders: &[&Path], make_args: &[&str]) -> Result<KernelModule> {
        let sources = read_sources(folders)?;
        let mut hasher = DefaultHasher::new();
        (lab.recipe(), &kernel.release, make_args, &sources).hash(&mut hasher);
        let cache = lab.cache().join("modules");
        let finished = cache.join(format!("{}-{:016x}", kernel.release, hasher.finish()));
        let Some(module_folder) = folders.first().and_then(|folder| folder.file_name()) else {
            bail!("No module folder was named");
        };
        if !finished.exists() {
            fs::create_dir_all(&cache).with_context(|| format!("Could not create {}", cache.display()))?;
            let work = tempfile::Builder::new()
                .prefix("building.")
                .tempdir_in(&cache)
                .with_context(|| format!("Could not create a build folder in {}", cache.display()))?;
            for (name, bytes) in &sources {
                let path = work.path().join(name);
                fs::create_dir_all(path.parent().unwrap_or(work.path()))
                    .and_then(|()| fs::write(&path, bytes))
                    .with_context(|| format!("Could not write {}", path.display()))?;
            }
            make(lab, kernel, &work.path().join(module_folder), make_args)?;
            let work = work.keep();
            if let Err(error) = fs::rename(&work, &finished) {
                let _ = fs::remove_dir_all(&work);
                // Another test may have finished the same build first.
                ensure!(finished.exists(), "Could not rename {}: {error}", work.display());
            }
        }
        let folder = finished.join(module_folder);
        let path = only_module(&folder)?;
        let log = folder.join("build.log");
        let build_log =
            fs::read_to_string(&log).with_context(|| format!("Could not read {}", log.display()))?;
        Ok(KernelModule { path, build_log })
    }
}

fn make(lab: &Lab, kernel: &Kernel, folder: &Path, make_args: &[&str]) -> Result<()> {
    let headers = format!("/usr/src/linux-headers-{}", kernel.release);
    let sources = lab.path_in_tree(folder)?;
    let built = lab
        .command("make")
        .args(["-C", &headers, "-j2"])
        .arg(format!("M={}", sources.display()))
        .args(make_args)
        .arg("modules")
        .output()
        .context("Could not start make in the lab tree")?;
    let log = format!("{}{}", String::from_utf8_lossy(&built.stdout), String::from_utf8_lossy(&built.stderr));
    ensure!(
        built.status.success(),
        "The module in {} does not build against kernel {} ({}):\n{log}",
        folder.display(),
        kernel.release,
        built.status
    );
    let path = folder.join("build.log");
    fs::write(&path, log).with_context(|| format!("Could not write {}", path.display()))
}

fn only_module(folder: &Path) -> Result<PathBuf> {
    let mut modules: Vec<PathBuf> = fs::read_dir(folder)
        .with_context(|| format!("Could not list {}", folder.display()))?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "ko"))
        .collect();
    match (modules.pop(), modules.is_empty()) {
        (Some(module), true) => Ok(module),
        (Some(_), false) => bail!("{} holds several modules, expected one", folder.display()),
        (None, _) => bail!("The build in {} made no module; does its Kbuild name one?", folder.display()),
    }
}

/// Every source file with its path from the folders' common parent, sorted. What a build left there by hand
/// is not a source.
fn read_sources(folders: &[&Path]) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut sources = Vec::new();
    for folder in folders {
        let name = folder.file_name().with_context(|| format!("{} has no name", folder.display()))?;
        read_folder(folder, Path::new(name), &mut sources)?;
    }
    sources.sort();
    Ok(sources)
}

fn read_folder(folder: &Path, name: &Path, sources: &mut Vec<(PathBuf, Vec<u8>)>) -> Result<()> {
    let entries = fs::read_dir(folder)
        .with_context(|| format!("Could not list the module's sources in {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let Some(file_name) = path.file_name() else { continue };
        let name = name.join(file_name);
        if path.is_dir() {
            read_folder(&path, &name, sources)?;
        } else if is_source(&file_name.to_string_lossy()) {
            let bytes = fs::read(&path).with_context(|| format!("Could not read {}", path.display()))?;
            sources.push((name, bytes));
        }
    }
    Ok(())
}

fn is_source(name: &str) -> bool {
    name.ends_with(".c")
        || name.ends_with(".h")
        || name.starts_with("Kbuild")
        || name.starts_with("Kconfig")
        || name.starts_with("Makefile")
        || name.ends_with(".sh")
        || name.ends_with(".mk")
}
