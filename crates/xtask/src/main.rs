//! Checks as code: what reviewers would have to look for by hand.
//!
//! `cargo run -p xtask -- CHECK…` runs the named checks, `check` (or nothing) all of them:
//!
//! | check | what it looks at |
//! |---|---|
//! | `layers` | which crate imports which, where unsafe code may stand, the lints each crate carries |
//! | `abi` | the guest ABI in Rust, in the C header and in `docs/protocol.md` |
//! | `docs` | links, printed commands, file sizes, addresses and paths of single machines |
//!
//! A finding says where, what is wrong and what to do. The status is 0 without findings, 1 with some, 2 when a check
//! could not be carried out. Nothing is changed, and nothing is fetched.
#![forbid(unsafe_code)]

mod abi;
mod commands;
mod contract;
mod docs;
mod finding;
mod header;
mod layers;
mod markdown;
mod rules;
mod source;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;

use crate::finding::Report;
use crate::workspace::Workspace;

type Check = fn(&Workspace) -> Result<Report>;

const CHECKS: [(&str, Check); 3] = [("layers", layers::check), ("abi", abi::check), ("docs", docs::check)];

fn main() -> ExitCode {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let all = asked.is_empty() || asked == ["check"];
    if let Some(unknown) = asked.iter().find(|name| !all && CHECKS.iter().all(|(check, _)| check != name)) {
        let names: Vec<&str> = CHECKS.iter().map(|(name, _)| *name).collect();
        eprintln!("xtask: there is no check '{unknown}'. Choose from: check (all), {}.", names.join(", "));
        return ExitCode::from(2);
    }
    let checks = CHECKS.iter().filter(|(name, _)| all || asked.iter().any(|asked| asked == name));
    match run(checks) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs checks and prints what they found; the number of findings.
fn run<'a>(checks: impl Iterator<Item = &'a (&'static str, Check)>) -> Result<usize> {
    let workspace = Workspace::load()?;
    let mut total = 0;
    for (name, check) in checks {
        let report = check(&workspace)?;
        print!("{}", report.render(name));
        total += report.findings().len();
    }
    Ok(total)
}
