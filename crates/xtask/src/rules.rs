//! What every crate carries: its lints, and unsafe code only where it belongs.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::finding::Report;
use crate::source;
use crate::workspace::{Package, Workspace};

/// Crates whose code foreign bytes reach: they cannot panic.
const REACHED: &[&str] = &[
    "vram-control-api",
    "vram-control-server",
    "vram-device",
    "vram-gpu",
    "vram-gpu-cuda",
    "vram-gpu-sim",
    "vram-guest-memory",
    "vram-pool",
    "vram-protocol",
    "vram-residency",
    "vram-sandbox",
    "vram-session",
    "vram-socket-file",
    "vram-tier",
    "vram-transfer",
    "vram-transport-vhost-user",
    "vram-virtqueue",
];

/// What they deny.
const NO_PANIC: &[&str] = &[
    "clippy::unwrap_used",
    "clippy::expect_used",
    "clippy::panic",
    "clippy::indexing_slicing",
    "clippy::arithmetic_side_effects",
];

/// Crates that may hold unsafe code anywhere.
const UNSAFE: &[&str] =
    &["vram-gpu-cuda", "vram-gpu-sim", "vram-guest-memory", "vram-libvram", "vram-simcuda", "vram-simnvml"];

/// The file in which any crate may hold unsafe code: descriptors that are passed.
const UNSAFE_FILE: &str = "fd.rs";

/// Reports what a crate lacks.
pub(crate) fn check_package(workspace: &Workspace, package: &Package, report: &mut Report) -> Result<()> {
    check_manifest(workspace, package, report)?;
    let files = workspace.rust_files(package.folder())?;
    let mut in_fd = false;
    let mut code = String::new();
    for path in &files {
        let text = fs::read_to_string(path).with_context(|| format!("Cannot read {}", path.display()))?;
        let own = source::code_only(&text);
        let lines = source::lines_with_word(&own, "unsafe");
        if path.ends_with(UNSAFE_FILE) {
            in_fd |= !lines.is_empty();
        } else if !UNSAFE.contains(&package.name.as_str()) {
            for line in lines {
                let place = format!("{}:{line}", workspace.relative(path));
                let mend = format!(
                    "Move it to {UNSAFE_FILE} if it passes descriptors, else to the crate that owns the pointer."
                );
                report.finding(place, "Unsafe code", mend);
            }
        }
        code.push_str(&own);
    }
    for root in package.roots() {
        check_root(workspace, package, root, in_fd, report)?;
    }
    check_unused(workspace, package, &code, report);
    Ok(())
}

fn check_manifest(workspace: &Workspace, package: &Package, report: &mut Report) -> Result<()> {
    let path = &package.manifest_path;
    let text = fs::read_to_string(path).with_context(|| format!("Cannot read {}", path.display()))?;
    let manifest: toml::Table = text.parse().with_context(|| format!("Cannot read {}", path.display()))?;
    let lints = manifest.get("lints").and_then(|lints| lints.get("workspace")).and_then(toml::Value::as_bool);
    if lints != Some(true) {
        let place = workspace.relative(path).to_string();
        report.finding(place, "The workspace's lints are not taken up", "Add [lints] with workspace = true.");
    }
    Ok(())
}

fn check_root(
    workspace: &Workspace,
    package: &Package,
    root: &Path,
    unsafe_in_fd: bool,
    report: &mut Report,
) -> Result<()> {
    let text = fs::read_to_string(root).with_context(|| format!("Cannot read {}", root.display()))?;
    let code = source::code_only(&text);
    let place = workspace.relative(root).to_string();
    if REACHED.contains(&package.name.as_str()) && root.ends_with("lib.rs") {
        let denied = source::lints_at(&code, &["deny", "forbid"]);
        let missing: Vec<&str> =
            NO_PANIC.iter().filter(|lint| denied.iter().all(|denied| denied != *lint)).copied().collect();
        if !missing.is_empty() {
            let wrong =
                format!("Foreign bytes reach this crate, and it does not deny {}", missing.join(", "));
            report.finding(&place, wrong, "Deny them as crates/protocol/src/lib.rs does.");
        }
    }
    if !UNSAFE.contains(&package.name.as_str()) {
        let levels: &[&str] = if unsafe_in_fd { &["forbid", "deny"] } else { &["forbid"] };
        if !source::lints_at(&code, levels).iter().any(|lint| lint == "unsafe_code") {
            let mend = format!("Add #![{}(unsafe_code)].", if unsafe_in_fd { "deny" } else { "forbid" });
            report.finding(&place, "Unsafe code is not refused", mend);
        }
    }
    Ok(())
}

/// Our own crates that are declared and named nowhere: a layer crossed on paper only.
fn check_unused(workspace: &Workspace, package: &Package, code: &str, report: &mut Report) {
    // Libraries that tests load, and need built, are named by no code.
    let loaded = ["vram-simcuda", "vram-simnvml"];
    for dependency in package.dependencies.iter().filter(|dependency| dependency.path.is_some()) {
        let imported = workspace.packages().iter().find(|package| package.name == dependency.name);
        let name = imported.and_then(Package::library).unwrap_or(&dependency.name).replace('-', "_");
        if !loaded.contains(&dependency.name.as_str()) && source::lines_with_word(code, &name).is_empty() {
            let place = workspace.relative(&package.manifest_path).to_string();
            report.finding(place, format!("{} is declared and not used", dependency.name), "Take it out.");
        }
    }
}
