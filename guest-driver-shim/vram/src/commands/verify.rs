//! `vram verify`.

use std::{
    fmt::{self, Display},
    io,
    path::Path,
};

use anyhow::{Result, bail};
use serde::Serialize;

use super::{Context, Different};
use crate::{
    file::Source,
    holder::{Digest, Handle, Name},
    pipeline,
    report::{self, Rate},
};

#[derive(Serialize)]
struct Report {
    name: Name,
    bytes: u64,
    same: bool,
    /// Of the allocation, where all of it was read.
    sha256: Option<Digest>,
    expected_sha256: Option<Digest>,
    expected_bytes: Option<u64>,
    first_difference: Option<u64>,
    rate: Option<Rate>,
}

/// Reads an allocation back and compares it with a file, a digest, or the digest of what was put.
pub(crate) fn verify(
    context: &mut Context<'_>,
    handle: &Handle,
    file: Option<&Path>,
    sha256: Option<Digest>,
) -> Result<()> {
    let mut session = context.session()?;
    let (entry, address) = session.open(handle)?;
    let mut report = Report {
        name: entry.name.clone(),
        bytes: entry.bytes,
        same: false,
        sha256: None,
        expected_sha256: sha256.or(entry.sha256),
        expected_bytes: None,
        first_difference: None,
        rate: None,
    };
    let rate = |moved: &pipeline::Moved| Some(Rate::new(entry.bytes, moved.elapsed, moved.on_device));
    if let Some(path) = file {
        let source = Source::open(path)?;
        let file_bytes = source.len_bytes.unwrap_or(entry.bytes);
        let common_bytes = entry.bytes.min(file_bytes);
        report.expected_bytes = Some(file_bytes);
        report.expected_sha256 = None;
        match pipeline::compare(source.file, session.device(), address, common_bytes)? {
            Err(offset) => report.first_difference = Some(offset),
            Ok(_) if file_bytes != entry.bytes => report.first_difference = Some(common_bytes),
            Ok(moved) => {
                report.same = true;
                report.sha256 = Some(moved.sha256);
                report.rate = rate(&moved);
            }
        }
    } else {
        let Some(expected) = report.expected_sha256 else {
            bail!("What {} should hold is not known; say with --file or --sha256", entry.name);
        };
        let (moved, _) = pipeline::download(session.device(), address, entry.bytes, io::sink())?;
        report.same = moved.sha256 == expected;
        report.sha256 = Some(moved.sha256);
        report.rate = rate(&moved);
    }
    report::print(context.out, context.format, &report)?;
    if report.same { Ok(()) } else { bail!(Different) }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.name)?;
        if self.same {
            write!(f, "{} bytes are the same", self.bytes)?;
        } else if let Some(offset) = self.first_difference {
            write!(f, "DIFFERENT from byte {offset} ({offset:#x}) on")?;
            if let Some(expected) = self.expected_bytes.filter(|expected| *expected != self.bytes) {
                write!(f, "; it has {} bytes and the file {expected}", self.bytes)?;
            }
        } else {
            f.write_str("DIFFERENT digest")?;
        }
        if let Some(sha256) = &self.sha256 {
            write!(f, "\nsha256      {sha256}")?;
        }
        if let Some(expected) = self.expected_sha256.filter(|_| !self.same) {
            write!(f, "\nexpected    {expected}")?;
        }
        if let Some(rate) = &self.rate {
            write!(f, "\nthroughput  {rate}")?;
        }
        Ok(())
    }
}
