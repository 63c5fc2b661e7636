//! The subcommands. Each takes its arguments and writes its result to a given output.

mod bench;
mod bytes;
mod events;
mod hold;
mod info;
mod names;
mod raw;
mod verify;

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::{
    arguments::{Arguments, Command, Format},
    holder::{HolderError, Place, Session},
    size::ByteSize,
    tell,
};

/// Arguments that are each right but do not fit together. Ends the program with the status for wrong usage.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UsageError {
    #[error("Pattern {pattern:#x} does not fit in {width} byte(s); choose a larger --width")]
    PatternTooWide { pattern: u32, width: u32 },
    #[error(
        "A --block of {block} is more than the {share} that each of {streams} stream(s) has of --size {size}: \
         choose a smaller --block or a larger --size"
    )]
    BlockTooLarge { block: ByteSize, share: ByteSize, streams: u32, size: ByteSize },
    #[error("Step {step:?} is not understood: {problem}")]
    Step { step: String, problem: &'static str },
}

/// What is different, found by `verify`. It has been told already; only the exit status is left to say.
#[derive(Debug, thiserror::Error)]
#[error("The bytes differ")]
pub(crate) struct Different;

/// Some steps of `raw` failed, as its output says.
#[derive(Debug, thiserror::Error)]
#[error("{failed} of {steps} steps failed")]
pub(crate) struct StepsFailed {
    failed: usize,
    steps: usize,
}

/// What all commands need.
struct Context<'a> {
    device: PathBuf,
    format: Format,
    out: &'a mut dyn Write,
}

impl Context<'_> {
    fn place(&self) -> Result<Place> {
        Ok(Place::of(&self.device)?)
    }

    fn open(&self) -> Result<vram::Device> {
        Ok(vram::Device::open(&self.device)?)
    }

    /// The holder that runs.
    fn session(&self) -> Result<Session> {
        Ok(Session::connect(&self.place()?, &self.device)?)
    }

    /// The holder that runs, or a new one.
    fn session_or_new(&self) -> Result<Session> {
        let note = |lost: &HolderError| tell(&format!("note: {lost}"));
        Ok(Session::connect_or_start(&self.place()?, &self.device, note)?)
    }
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments, out: &mut dyn Write) -> Result<()> {
    let Arguments { device, output, command } = arguments;
    // The holder works in another folder.
    let device = std::path::absolute(&device)
        .with_context(|| format!("{} is no path of a device", Path::display(&device)))?;
    let mut context = Context { device, format: output, out };
    let context = &mut context;
    match command {
        Command::Info => info::info(context),
        Command::Put(put) => bytes::put(context, put),
        Command::Get { handle, file } => bytes::get(context, &handle, &file),
        Command::Copy { source, name, alignment } => bytes::copy(context, &source, name, alignment.0),
        Command::Fill(fill) => bytes::fill(context, &fill),
        Command::Advise { handle, advice } => bytes::advise(context, &handle, advice.into()),
        Command::Verify { handle, file, sha256 } => verify::verify(context, &handle, file.as_deref(), sha256),
        Command::Free { handle: Some(handle), .. } => names::free(context, &handle),
        Command::Free { handle: None, .. } => names::free_all(context, false),
        Command::List => names::list(context),
        Command::Release { force } => names::free_all(context, force),
        Command::Events { count, seconds } => events::events(context, count, seconds),
        Command::Bench(bench) => bench::bench(context, &bench),
        Command::Hold { background } => hold::hold(context, background),
        Command::Raw { steps } => raw::raw(context, &steps),
    }
}
