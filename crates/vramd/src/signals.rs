//! What signals do to the daemon.
//!
//! Those that ask for an end end it cleanly, SIGQUIT too: a daemon that leaves no core has its log. SIGHUP, which asks
//! other daemons to read their configuration again and comes when a terminal goes, and SIGUSR1 and SIGUSR2, which mean
//! something different everywhere, are remarked on and change nothing: none is worth the memory of all guests. SIGPIPE
//! is ignored before `main`.

use nix::sys::signal::{SigSet, Signal};
use tracing::{info, warn};

const STOP: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGQUIT];
const IGNORED: [Signal; 3] = [Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGUSR2];

/// Signals that are held back until they are waited for.
#[derive(Debug)]
pub struct Signals {
    held_back: SigSet,
}

impl Signals {
    /// Holds them back from this thread and those it starts later: to be called before there are others.
    pub fn hold_back() -> nix::Result<Self> {
        let held_back: SigSet = STOP.into_iter().chain(IGNORED).collect();
        held_back.thread_block()?;
        Ok(Self { held_back })
    }

    /// Waits for a signal that asks for the end.
    pub fn wait_for_stop(&self) -> nix::Result<()> {
        loop {
            let signal = self.held_back.wait()?;
            if STOP.contains(&signal) {
                info!(%signal, "stopping");
                return Ok(());
            }
            warn!(%signal, "the signal is ignored; a changed configuration takes a restart, SIGTERM stops vramd");
        }
    }
}
