//! Which crate may import which.
//!
//! The table is the one place where layering is written as data. A crate imports only crates of lower layers, and of
//! those only the ones named with it. Dependencies of tests may point anywhere; those that point up are listed.

use std::collections::BTreeMap;

use anyhow::Result;

use crate::finding::Report;
use crate::rules;
use crate::workspace::{Package, Workspace};

/// Where a crate stands and what it may import of ours.
struct Place {
    name: &'static str,
    layer: u8,
    imports: Imports,
}

enum Imports {
    /// Only these.
    Only(&'static [&'static str]),
    /// Any crate below: for what puts the whole together.
    AnyBelow,
}

const fn only(name: &'static str, layer: u8, imports: &'static [&'static str]) -> Place {
    Place { name, layer, imports: Imports::Only(imports) }
}

const fn any(name: &'static str, layer: u8) -> Place {
    Place { name, layer, imports: Imports::AnyBelow }
}

const PLACES: &[Place] = &[
    only("vram-protocol", 0, &[]),
    only("vram-control-api", 0, &[]),
    only("vram-guest-memory", 0, &[]),
    only("vram-sandbox", 0, &[]),
    only("vram-socket-file", 0, &[]),
    only("vram-gpu", 1, &["vram-guest-memory"]),
    only("vram-gpu-sim", 2, &["vram-gpu", "vram-guest-memory"]),
    only("vram-gpu-cuda", 2, &["vram-gpu", "vram-guest-memory"]),
    only("vram-tier", 1, &["vram-guest-memory"]),
    only("vram-virtqueue", 2, &["vram-guest-memory"]),
    only("vram-pool", 3, &["vram-gpu"]),
    only("vram-transfer", 3, &["vram-gpu", "vram-guest-memory", "vram-sandbox"]),
    only(
        "vram-residency",
        4,
        &["vram-gpu", "vram-guest-memory", "vram-pool", "vram-sandbox", "vram-tier", "vram-transfer"],
    ),
    only(
        "vram-session",
        5,
        &["vram-gpu", "vram-guest-memory", "vram-pool", "vram-protocol", "vram-residency", "vram-transfer"],
    ),
    only(
        "vram-device",
        6,
        &["vram-guest-memory", "vram-protocol", "vram-sandbox", "vram-session", "vram-virtqueue"],
    ),
    only(
        "vram-transport-vhost-user",
        7,
        &[
            "vram-device",
            "vram-guest-memory",
            "vram-sandbox",
            "vram-session",
            "vram-socket-file",
            "vram-virtqueue",
        ],
    ),
    only("vram-control-server", 7, &["vram-control-api", "vram-sandbox", "vram-socket-file"]),
    any("vramd", 8),
    // Beside the daemon.
    only("vramctl", 1, &["vram-control-api"]),
    only("vram-simcuda", 3, &["vram-gpu", "vram-gpu-sim", "vram-guest-memory"]),
    only("vram-simnvml", 3, &["vram-gpu", "vram-gpu-sim", "vram-guest-memory"]),
    // The guest's side.
    only("vram-libvram", 0, &[]),
    only("vram-cli", 1, &["vram-libvram"]),
    // Tools.
    only("vram-gpu-contract", 2, &["vram-gpu", "vram-guest-memory"]),
    only("xtask", 1, &["vram-protocol"]),
    any("vram-testkit", 8),
    any("vram-tests", 9),
    any("vram-integration", 9),
];

/// What only one crate may name.
const HOMES: &[(&str, &str)] = &[("cudarc", "vram-gpu-cuda"), ("nvml-wrapper", "vram-gpu-cuda")];

const TABLE: &str = "crates/xtask/src/layers.rs";

pub(crate) fn check(workspace: &Workspace) -> Result<Report> {
    let mut report = imports(workspace.packages(), &|package| manifest(workspace, package));
    for package in workspace.packages() {
        rules::check_package(workspace, package, &mut report)?;
    }
    Ok(report)
}

fn manifest(workspace: &Workspace, package: &Package) -> String {
    workspace.relative(&package.manifest_path).to_string()
}

fn imports(packages: &[Package], manifest: &dyn Fn(&Package) -> String) -> Report {
    let mut report = Report::default();
    let places: BTreeMap<&str, &Place> = PLACES.iter().map(|place| (place.name, place)).collect();
    let mut upward = Vec::new();
    for package in packages {
        let file = manifest(package);
        for dependency in &package.dependencies {
            let name = dependency.name.as_str();
            if let Some((_, home)) = HOMES.iter().find(|(held, home)| *held == name && *home != package.name)
            {
                report.finding(
                    &file,
                    format!("{name} is imported outside {home}"),
                    format!("Ask {home} instead."),
                );
            }
        }
        let Some(place) = places.get(package.name.as_str()) else {
            let mend = format!("Give it a line in {TABLE}, with the lowest layer that fits.");
            report.finding(&file, format!("The crate {} has no layer", package.name), mend);
            continue;
        };
        for dependency in package.dependencies.iter().filter(|dependency| dependency.path.is_some()) {
            let name = dependency.name.as_str();
            // A crate without a layer is reported where it stands.
            let Some(imported) = places.get(name) else { continue };
            if dependency.kind.as_deref() == Some("dev") {
                if imported.layer >= place.layer {
                    upward.push(format!("{} -> {name}", package.name));
                }
                continue;
            }
            if imported.layer >= place.layer {
                let wrong = format!(
                    "{} (layer {}) imports {name} (layer {}): imports point down",
                    package.name, place.layer, imported.layer
                );
                report.finding(&file, wrong, "Move the code down, or hand the value in from above.");
            } else if let Imports::Only(allowed) = place.imports
                && !allowed.contains(&name)
            {
                let wrong = format!("{} imports {name}, which is not among what it may import", package.name);
                let mend = format!("Do without it, or change {TABLE} and say why in the commit.");
                report.finding(&file, wrong, mend);
            }
        }
    }
    for name in places.keys().filter(|name| packages.iter().all(|package| package.name != **name)) {
        report.finding(TABLE, format!("There is no crate {name}"), "Take its line out.");
    }
    if !upward.is_empty() {
        report.note(format!("tests only, pointing up: {}", upward.join(", ")));
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Dependency;

    fn package(name: &str, dependencies: &[(&str, Option<&str>)]) -> Package {
        let dependency = |(name, kind): &(&str, Option<&str>)| Dependency {
            name: (*name).to_owned(),
            kind: kind.map(str::to_owned),
            path: name.starts_with("vram").then(|| name.into()),
        };
        Package {
            name: name.to_owned(),
            manifest_path: format!("{name}/Cargo.toml").into(),
            dependencies: dependencies.iter().map(dependency).collect(),
            targets: Vec::new(),
        }
    }

    /// What is wrong with a workspace in which every other crate of the table imports nothing.
    fn wrongs(package: Package) -> Vec<String> {
        let others = PLACES.iter().filter(|place| place.name != package.name);
        let mut packages: Vec<_> = others.map(|place| self::package(place.name, &[])).collect();
        packages.push(package);
        let report = imports(&packages, &|package| package.name.clone());
        report.findings().iter().map(|finding| finding.wrong.clone()).collect()
    }

    #[test]
    fn places_import_only_lower_layers() {
        for place in PLACES {
            let Imports::Only(imports) = place.imports else { continue };
            for name in imports {
                let imported = PLACES.iter().find(|place| place.name == *name).unwrap();
                assert!(imported.layer < place.layer, "{} -> {name}", place.name);
            }
        }
    }

    #[test]
    fn imports_downwards_are_fine_and_others_are_not() {
        assert!(wrongs(package("vram-pool", &[("vram-gpu", None), ("serde", None)])).is_empty());
        assert!(wrongs(package("vram-pool", &[("vram-transfer", None)]))[0].contains("point down"));
        assert!(wrongs(package("vram-session", &[("vram-control-api", None)]))[0].contains("not among"));
        assert!(wrongs(package("vram-pool", &[("vramd", Some("build"))]))[0].contains("point down"));
    }

    #[test]
    fn imports_of_tests_may_point_up() {
        assert!(
            wrongs(package("vram-pool", &[("vram-gpu-sim", Some("dev")), ("vramd", Some("dev"))])).is_empty()
        );
    }

    #[test]
    fn imports_of_cuda_stay_in_one_crate() {
        assert!(wrongs(package("vram-gpu-cuda", &[("cudarc", None)])).is_empty());
        assert!(
            wrongs(package("vram-pool", &[("cudarc", Some("dev"))]))[0].contains("outside vram-gpu-cuda")
        );
    }

    #[test]
    fn crate_without_a_layer_is_reported() {
        assert!(wrongs(package("vram-novel", &[]))[0].contains("no layer"));
    }
}
