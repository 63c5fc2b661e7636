//! The operator's command line: asks a running `vramd` and shows what it says.
//!
//! Results go to the standard output, as a table or as the JSON of the API; notes and errors go to the standard error
//! output. Exit status: 0 done, 1 failed, 2 wrong usage.
#![forbid(unsafe_code)]

mod args;
mod attach;
mod command;
mod table;

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use clap::Parser;
use vram_control_api::ClientError;

fn main() -> ExitCode {
    match command::run(args::Args::parse()) {
        Ok(shown) => write(&shown),
        Err(error) => fail(&error),
    }
}

fn write(shown: &command::Shown) -> ExitCode {
    let mut output = io::stdout().lock();
    let written = output.write_all(shown.output.as_bytes()).and_then(|()| output.flush());
    for note in &shown.notes {
        eprintln!("note: {note}");
    }
    match written {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads has read enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => fail(&anyhow::Error::new(error).context("Cannot write the result")),
    }
}

fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("error: {error:#}");
    if let Some(hint) = error.downcast_ref().and_then(ClientError::hint) {
        eprintln!("hint: {hint}");
    }
    ExitCode::FAILURE
}
