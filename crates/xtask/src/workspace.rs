//! The checkout: its crates as cargo sees them, its files as git does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// The checkout.
#[derive(Debug)]
pub(crate) struct Workspace {
    root: PathBuf,
    packages: Vec<Package>,
}

/// A crate of the workspace.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) manifest_path: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) targets: Vec<Target>,
}

/// A dependency as declared.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// `None` for a normal one, else `dev` or `build`.
    pub(crate) kind: Option<String>,
    /// Where it lies; `None` for those of a registry.
    pub(crate) path: Option<PathBuf>,
}

/// Something cargo builds.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) kind: Vec<String>,
    pub(crate) src_path: PathBuf,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

impl Package {
    /// The folder of the crate.
    pub(crate) fn folder(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(&self.manifest_path)
    }

    /// The name of its library in code.
    pub(crate) fn library(&self) -> Option<&str> {
        let library = self.targets.iter().find(|target| target.kind.iter().any(|kind| kind.ends_with("lib")));
        library.map(|target| target.name.as_str())
    }

    /// The root files of its libraries and programs.
    pub(crate) fn roots(&self) -> impl Iterator<Item = &Path> {
        let is_shipped = |kind: &String| kind.ends_with("lib") || kind == "bin";
        self.targets.iter().filter(move |t| t.kind.iter().any(is_shipped)).map(|t| t.src_path.as_path())
    }
}

impl Workspace {
    /// Asks cargo about the workspace this program was built from.
    pub(crate) fn load() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = root.ancestors().nth(2).context("xtask lies two folders below the root")?.to_path_buf();
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(["metadata", "--no-deps", "--format-version", "1"]).current_dir(&root);
        let metadata: Metadata =
            serde_json::from_str(&output_of(&mut command)?).context("What cargo metadata printed is odd")?;
        Ok(Self { root, packages: metadata.packages })
    }

    pub(crate) fn packages(&self) -> &[Package] {
        &self.packages
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// A path as people write it: from the root on.
    pub(crate) fn relative<'a>(&self, path: &'a Path) -> std::path::Display<'a> {
        path.strip_prefix(&self.root).unwrap_or(path).display()
    }

    /// The text of a file of the checkout.
    pub(crate) fn read(&self, path: &str) -> Result<String> {
        fs::read_to_string(self.root.join(path)).with_context(|| format!("Cannot read {path}"))
    }

    /// The files git tracks and that are there, as paths from the root.
    pub(crate) fn tracked_files(&self) -> Result<Vec<String>> {
        let mut command = Command::new("git");
        command.args(["ls-files", "-z"]).current_dir(&self.root);
        let listed = output_of(&mut command).context("The docs check reads what git tracks")?;
        let names = listed.split('\0').filter(|name| !name.is_empty() && self.root.join(name).is_file());
        Ok(names.map(str::to_owned).collect())
    }

    /// The Rust files below a folder, build outputs and nested workspaces left out.
    pub(crate) fn rust_files(&self, folder: &Path) -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        let mut folders = vec![folder.to_path_buf()];
        while let Some(next) = folders.pop() {
            for entry in fs::read_dir(&next).with_context(|| format!("Cannot list {}", next.display()))? {
                let path = entry?.path();
                if path.is_dir() {
                    if !path.ends_with("target") && !path.join("Cargo.toml").exists() {
                        folders.push(path);
                    }
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    found.push(path);
                }
            }
        }
        found.sort();
        Ok(found)
    }
}

/// What a program prints; its failure is an error that quotes what it said.
pub(crate) fn output_of(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("Cannot start {name}. Is it installed?"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} failed ({}): {}", output.status, said.trim());
    String::from_utf8(output.stdout).with_context(|| format!("{name} printed something that is not text"))
}
