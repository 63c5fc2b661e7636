//! `vram hold`: the holder as a process.

use std::{fs::OpenOptions, path::Path};

use anyhow::Result;
use nix::unistd::{dup2_stderr, setsid};

use super::Context;
use crate::holder::{Readiness, serve};

/// Holds until nothing is held. In the background it leaves its terminal and folder, and closes standard error once
/// clients can connect, which is what the command that started it waits for.
pub(crate) fn hold(context: &mut Context<'_>, background: bool) -> Result<()> {
    let device = context.open()?;
    let place = context.place()?;
    if background {
        std::env::set_current_dir("/")?;
        // Fails only for the leader of a process group, which is one that no terminal's signals reach by accident.
        let _ = setsid();
    }
    let name = Path::display(&context.device).to_string();
    let out = &mut *context.out;
    serve(&place, device, name, |readiness| {
        if background {
            let nowhere = OpenOptions::new().write(true).open("/dev/null")?;
            return Ok(dup2_stderr(nowhere)?);
        }
        match readiness {
            Readiness::Holding => writeln!(out, "Holding at {}.", place.socket.display())?,
            Readiness::AnotherHolds => writeln!(out, "Another process holds at {}.", place.socket.display())?,
        }
        out.flush()
    })?;
    Ok(())
}
