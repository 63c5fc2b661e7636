//! `vramd`: pools the GPUs of this host and serves slices of them to virtual machines.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Parser;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::{Mode, umask};
use tracing::info;
use vram_control_server::{ControlServer, ControlSocket, ControlState};
use vramd::args::Args;
use vramd::complaint::{complain, complain_of_arguments};
use vramd::config::Config;
use vramd::daemon::{Daemon, check_gpu_choice};
use vramd::log;
use vramd::signals::Signals;

/// Wrong command line or configuration.
const EXIT_USAGE: u8 = 2;

/// Takes from others the right to change what is made here, and nothing else: what is made for them to find must be
/// found, whatever the mask vramd was started with.
const UMASK: Mode = Mode::from_bits_truncate(0o022);

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) if error.use_stderr() => {
            complain_of_arguments(&error);
            return ExitCode::from(EXIT_USAGE);
        }
        // Help and the version, asked for.
        Err(asked) => asked.exit(),
    };
    let checked = Config::load(args).map_err(anyhow::Error::from);
    let config = match checked.and_then(|config| check_gpu_choice(&config).map(|()| config)) {
        Ok(config) => config,
        Err(error) => {
            complain(&error);
            return ExitCode::from(EXIT_USAGE);
        }
    };
    match run(&config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(config: &Config) -> Result<()> {
    // Both before the first thread is made, which is the log's.
    umask(UMASK);
    let signals = Signals::hold_back().context("Signals cannot be held back")?;
    let _written_at_the_end = log::start(config.log_level);

    raise_descriptor_limit()?;

    let daemon = Daemon::start(config)?;
    let state: Arc<dyn ControlState> = Arc::<vramd::state::DaemonState>::clone(daemon.state());
    let socket = ControlSocket { path: config.control.clone(), group: config.control_group };
    let control = ControlServer::start(socket, state).context("The operator API cannot be served")?;
    info!(control = %config.control.display(), "vramd is ready");
    signals.wait_for_stop().context("Signals cannot be waited for")?;
    control.stop().context("The operator API did not stop cleanly")?;
    drop(daemon);
    Ok(())
}

/// Guests bring descriptors: one for each memory region, two for each queue. The soft limit, often 1024, is for
/// programs that use select.
fn raise_descriptor_limit() -> Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).context("The limit of open files cannot be read")?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).context("The limit of open files cannot be raised")
}
