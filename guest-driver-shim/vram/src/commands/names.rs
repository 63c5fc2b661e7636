//! `vram list`, `free` and `release`: what is held, by name.

use anyhow::Result;

use super::Context;
use crate::{
    holder::{Handle, HolderError},
    report::{self, Freed, Listing},
};

/// Frees one allocation.
pub(crate) fn free(context: &mut Context<'_>, handle: &Handle) -> Result<()> {
    let (allocations, bytes) = context.session()?.free(handle)?;
    report::print(context.out, context.format, &Freed { allocations, bytes })?;
    Ok(())
}

/// Frees all, which ends the holder. Where none runs there is nothing to free.
pub(crate) fn free_all(context: &mut Context<'_>, force: bool) -> Result<()> {
    let place = context.place()?;
    let freed = crate::holder::Session::connect(&place, &context.device)
        .and_then(|mut session| session.free_all(force));
    let (allocations, bytes) = match freed {
        Err(HolderError::NotRunning { .. }) => (0, 0),
        freed => freed?,
    };
    report::print(context.out, context.format, &Freed { allocations, bytes })?;
    Ok(())
}

/// Lists what is held.
pub(crate) fn list(context: &mut Context<'_>) -> Result<()> {
    let place = context.place()?;
    let listed =
        crate::holder::Session::connect(&place, &context.device).and_then(|mut session| session.list());
    let entries = match listed {
        Err(HolderError::NotRunning { .. }) => Vec::new(),
        listed => listed?,
    };
    report::print(context.out, context.format, &Listing(entries))?;
    Ok(())
}
