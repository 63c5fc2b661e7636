//! The operator's command line: asks a running `vramd` and shows what it says.
//!
//! Results go to the standard output, as a table or as the JSON of the API; notes and errors go to the standard error
//! output. Exit status: 0 done, 1 failed, 2 wrong usage; done means that the result is written too. What cannot be
//! said on the standard error output is left unsaid. Words of the daemon are shown, never obeyed: see [`show`].
#![forbid(unsafe_code)]

mod args;
mod attach;
mod command;
mod failure;
mod show;
mod table;

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use crate::args::Output;
use crate::command::Shown;
use crate::failure::Failure;

const WRONG_USAGE: u8 = 2;

fn main() -> ExitCode {
    let args = match args::parse() {
        Ok(args) => args,
        Err(error) => return explain(&error),
    };
    let output = args.output;
    match command::run(args) {
        Ok(shown) => print(output, &shown),
        Err(error) => fail(output, &error),
    }
}

/// Says what is wrong with the command line, or what it asks about this program.
fn explain(error: &clap::Error) -> ExitCode {
    let written = error.print();
    if error.use_stderr() {
        return ExitCode::from(WRONG_USAGE);
    }
    end(Output::Table, written.and_then(|()| io::stdout().flush()))
}

fn print(output: Output, shown: &Shown) -> ExitCode {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(shown.output.as_bytes()).and_then(|()| stdout.flush());
    for note in &shown.notes {
        tell(&show::line("note", note));
    }
    end(output, written)
}

fn end(output: Output, written: io::Result<()>) -> ExitCode {
    match written {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads has read enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => fail(output, &anyhow::Error::new(error).context("Cannot write the result")),
    }
}

fn fail(output: Output, error: &anyhow::Error) -> ExitCode {
    tell(&Failure::new(error).shown(output));
    ExitCode::FAILURE
}

/// Writes lines to the standard error output, if somebody can hear them.
fn tell(lines: &str) {
    // The exit status says the most important, and there is nowhere else to say more.
    let _ = io::stderr().write_all(lines.as_bytes());
}
