//! `vram put`, `get`, `copy` and `fill`: bytes of held allocations.

use std::{
    io::{self, Write},
    path::Path,
    time::Instant,
};

use anyhow::{Result, bail};
use vram::{Advice, Device, DeviceAddress, Pattern};

use super::{Context, UsageError};
use crate::{
    arguments::{Fill, Put, Width},
    file::{Destination, Source},
    holder::{Entry, Handle, Name, Wish},
    pipeline,
    report::{self, Advised, CopySource, Done, Part, Rate},
};

/// Allocates and fills from a file. If anything fails the holder frees the memory, because this command goes away.
pub(crate) fn put(context: &mut Context<'_>, put: Put) -> Result<()> {
    let source = Source::open(&put.file)?;
    let bytes = source.take(put.size.map(|size| size.0))?;
    let wish = match put.name {
        Some(name) => Wish::Exactly(name),
        None => Wish::Like(Name::from_any(&put.file.file_name().unwrap_or_default().to_string_lossy())),
    };
    let mut session = context.session_or_new()?;
    let (entry, address) = session.reserve(wish, bytes, put.alignment.0)?;
    let moved = pipeline::upload(source.file, session.device(), address, bytes)?;
    session.record(&entry.name, Some(moved.sha256))?;
    let done = Done {
        sha256: Some(moved.sha256),
        rate: Rate::new(bytes, moved.elapsed, moved.on_device),
        placement: place(session.device(), address)?,
        ..of(&entry)
    };
    report::print(context.out, context.format, &done)?;
    Ok(())
}

/// Writes an allocation to a file, but never other bytes than were put. With standard output as the file, the report goes to standard error.
pub(crate) fn get(context: &mut Context<'_>, handle: &Handle, file: &Path) -> Result<()> {
    let mut session = context.session()?;
    let (entry, address) = session.open(handle)?;
    let destination = Destination::create(file)?;
    let (moved, destination) = pipeline::download(session.device(), address, entry.bytes, destination)?;
    if let Some(expected) = entry.sha256.filter(|expected| *expected != moved.sha256) {
        bail!(
            "{} is not what was put: its SHA-256 is {} and not {expected}; no file was replaced. Was it filled meanwhile?",
            entry.name,
            moved.sha256
        );
    }
    destination.finish()?;
    let done = Done {
        sha256: Some(moved.sha256),
        rate: Rate::new(entry.bytes, moved.elapsed, moved.on_device),
        ..of(&entry)
    };
    let mut standard_error = io::stderr();
    let out: &mut dyn Write =
        if Destination::is_standard_output(file) { &mut standard_error } else { context.out };
    report::print(out, context.format, &done)?;
    Ok(())
}

/// Allocates and copies on the device.
pub(crate) fn copy(
    context: &mut Context<'_>,
    source: &Handle,
    name: Option<Name>,
    alignment_bytes: u64,
) -> Result<()> {
    let mut session = context.session()?;
    let (from, from_address) = session.open(source)?;
    let wish = match name {
        Some(name) => Wish::Exactly(name),
        None => Wish::Like(from.name.with_ending("-copy")),
    };
    let (entry, address) = session.reserve(wish, from.bytes, alignment_bytes)?;
    let start = Instant::now();
    session.device().copy(address, from_address, from.bytes)?;
    let elapsed = start.elapsed();
    session.record(&entry.name, from.sha256)?;
    let done = Done {
        sha256: from.sha256,
        rate: Rate::new(from.bytes, elapsed, elapsed),
        placement: place(session.device(), address)?,
        source: Some(CopySource {
            placement: place(session.device(), from_address)?,
            name: from.name,
            address: from.address,
        }),
        ..of(&entry)
    };
    report::print(context.out, context.format, &done)?;
    Ok(())
}

/// Fills an allocation on the device.
pub(crate) fn fill(context: &mut Context<'_>, fill: &Fill) -> Result<()> {
    let pattern = pattern(fill.pattern, fill.width)?;
    let mut session = context.session()?;
    let (entry, address) = session.open(&fill.handle)?;
    // Before the first byte changes: a fill that fails half-way leaves neither the old bytes nor the new ones.
    session.record(&entry.name, None)?;
    let start = Instant::now();
    session.device().fill(address, entry.bytes, pattern)?;
    let elapsed = start.elapsed();
    let done = Done { rate: Rate::new(entry.bytes, elapsed, elapsed), ..of(&entry) };
    report::print(context.out, context.format, &done)?;
    Ok(())
}

/// Tells the host how an allocation will be used, and shows where it is now.
pub(crate) fn advise(context: &mut Context<'_>, handle: &Handle, advice: Advice) -> Result<()> {
    let mut session = context.session()?;
    let (entry, address) = session.open(handle)?;
    session.device().advise(address, entry.bytes, advice)?;
    let placement = place(session.device(), address)?;
    report::print(context.out, context.format, &Advised { name: entry.name, placement })?;
    Ok(())
}

/// The pattern of a number and a width.
pub(crate) fn pattern(pattern: u32, width: Width) -> Result<Pattern, UsageError> {
    let fitting = match width {
        Width::One => u8::try_from(pattern).ok().map(Pattern::U8),
        Width::Two => u16::try_from(pattern).ok().map(Pattern::U16),
        Width::Four => Some(Pattern::U32(pattern)),
    };
    fitting.ok_or(UsageError::PatternTooWide { pattern, width: width.bytes() })
}

fn place(device: &Device, address: DeviceAddress) -> Result<Vec<Part>> {
    Ok(report::parts(&device.query(address)?, &device.info()?))
}

/// A report about an allocation, without what was done.
fn of(entry: &Entry) -> Done {
    Done {
        name: entry.name.clone(),
        address: entry.address.clone(),
        bytes: entry.bytes,
        sha256: None,
        rate: Rate::new(0, Default::default(), Default::default()),
        placement: Vec::new(),
        source: None,
    }
}
