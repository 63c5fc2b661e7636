//! The workspace's own programs, built on demand.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};

/// How a program is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Profile {
    /// Quick to build, with debug assertions.
    Dev,
    /// As users run it.
    Release,
}

/// The checkout's root.
pub fn workspace_root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// Builds the workspace's program `name` for the host and says where it is. An environment variable of the
/// same name in capitals, such as `VRAMD=/usr/bin/vramd`, names a ready one instead.
pub fn cargo_binary(name: &str, profile: Profile) -> Result<PathBuf> {
    build(name, profile, false)
}

/// Builds the workspace's program `name` without any shared library, so that it runs in a guest that has
/// none. `VRAM_STATIC=…` and so on, named after the program, names a ready one instead.
pub fn static_guest_binary(name: &str, profile: Profile) -> Result<PathBuf> {
    build(name, profile, true)
}

#[derive(PartialEq, Eq, Hash)]
struct Build {
    name: String,
    profile: Profile,
    is_static: bool,
}

fn build(name: &str, profile: Profile, is_static: bool) -> Result<PathBuf> {
    let variable =
        format!("{}{}", name.to_uppercase().replace('-', "_"), if is_static { "_STATIC" } else { "" });
    if let Some(path) = std::env::var_os(&variable) {
        let path = PathBuf::from(path);
        ensure!(path.exists(), "{variable} names {}, which does not exist", path.display());
        return Ok(path);
    }
    // One build at a time: cargo would make the others wait as well. What was built once is not asked for again.
    static BUILT: Mutex<Option<HashMap<Build, PathBuf>>> = Mutex::new(None);
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let built = built.get_or_insert_default();
    let key = Build { name: name.to_string(), profile, is_static };
    if let Some(path) = built.get(&key) {
        return Ok(path.clone());
    }
    let path = run_cargo(name, profile, is_static)?;
    built.insert(key, path.clone());
    Ok(path)
}

fn run_cargo(name: &str, profile: Profile, is_static: bool) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(workspace_root())
        .args(["build", "--quiet", "--bin", name, "--message-format=json-render-diagnostics"])
        .stdin(Stdio::null());
    if profile == Profile::Release {
        command.arg("--release");
    }
    if is_static {
        // With an explicit target the flags reach the program only, not build scripts and macros.
        command.args(["--target", "x86_64-unknown-linux-gnu"]);
        command.env("RUSTFLAGS", "-C target-feature=+crt-static");
    }
    let built = command.output().with_context(|| format!("Could not start cargo to build {name}"))?;
    ensure!(
        built.status.success(),
        "cargo could not build {name} ({}):\n{}",
        built.status,
        String::from_utf8_lossy(&built.stderr)
    );
    for line in String::from_utf8_lossy(&built.stdout).lines() {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        let is_it = message["reason"] == "compiler-artifact" && message["target"]["name"] == name;
        if let (true, Some(path)) = (is_it, message["executable"].as_str()) {
            return Ok(PathBuf::from(path));
        }
    }
    bail!("cargo built {name} but named no program; is it a binary target of this workspace?")
}
