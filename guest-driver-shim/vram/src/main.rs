//! Guest command line of vram.
//!
//! `commands` does what is asked, with `vram` (libvram) for the device and `holder` for what outlives a command.
//! `pipeline` moves bytes between files and the device; `report` is how results look. The program prints results on
//! standard output and one chain of reasons on standard error, and ends with 0 (done), 1 (failed) or 2 (wrong usage).
#![deny(unsafe_code)]

mod arguments;
mod commands;
#[allow(unsafe_code)]
mod fd;
mod file;
mod holder;
mod pipeline;
mod report;
mod size;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::Parser;

use arguments::Arguments;
use commands::{Different, UsageError};
use holder::HolderError;
use pipeline::PipelineError;

const WRONG_USAGE: u8 = 2;

fn main() -> ExitCode {
    let done = match Arguments::try_parse() {
        Ok(arguments) => commands::run(arguments, &mut io::stdout()),
        Err(error) if error.use_stderr() => {
            // The exit status says it too.
            let _ = error.print();
            return ExitCode::from(WRONG_USAGE);
        }
        // Help and version are results.
        Err(error) => error.print().and_then(|()| io::stdout().flush()).map_err(anyhow::Error::from),
    };
    let Err(error) = done else { return ExitCode::SUCCESS };
    if error.is::<UsageError>() {
        tell(&error.to_string());
        return ExitCode::from(WRONG_USAGE);
    }
    // The result has said it already.
    if !error.is::<Different>() && !is_broken_pipe(&error) {
        tell(&format!("{error:#}"));
    }
    if matches!(device_error(&error), Some(vram::Error::Stale(_))) {
        tell("forget what was held with vram release, then put it again");
    }
    ExitCode::FAILURE
}

/// Says something on standard error, if somebody can hear it. The exit status says the most important.
fn tell(words: &str) {
    let _ = writeln!(io::stderr(), "vram: {words}");
}

/// What the device said, if it was the device.
fn device_error(error: &anyhow::Error) -> Option<&vram::Error> {
    match error.downcast_ref() {
        Some(PipelineError::Device(device)) => return Some(device),
        Some(_) => return None,
        None => {}
    }
    match error.downcast_ref() {
        Some(HolderError::Device(device)) => Some(device),
        _ => error.downcast_ref(),
    }
}

/// Whoever read our output has seen enough.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
