//! `vramd`: pools the GPUs of this host and serves slices of them to virtual machines.
#![forbid(unsafe_code)]

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Parser;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use tracing::info;
use tracing_subscriber::EnvFilter;
use vram_control_server::{ControlServer, ControlState};
use vramd::args::{Args, LogLevel};
use vramd::config::Config;
use vramd::daemon::{Daemon, check_gpu_choice};

/// Wrong command line or configuration.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    let checked = Config::load(Args::parse()).map_err(anyhow::Error::from);
    let config = match checked.and_then(|config| check_gpu_choice(&config).map(|()| config)) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("vramd: {error:#}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    match run(&config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vramd: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(config: &Config) -> Result<()> {
    let filter =
        EnvFilter::try_from_env("VRAMD_LOG").unwrap_or_else(|_| EnvFilter::new(level(config.log_level)));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    // Blocked before the first thread is made, so that every thread inherits it and only the wait below sees them.
    let mut stop = SigSet::empty();
    stop.add(Signal::SIGINT);
    stop.add(Signal::SIGTERM);
    stop.thread_block().context("Signals cannot be blocked")?;

    raise_descriptor_limit()?;

    let daemon = Daemon::start(config)?;
    let state: Arc<dyn ControlState> = Arc::<vramd::state::DaemonState>::clone(daemon.state());
    let control =
        ControlServer::start(&config.control, state).context("The operator API cannot be served")?;
    info!(control = %config.control.display(), "vramd is ready");
    let signal = stop.wait().context("Signals cannot be waited for")?;
    info!(%signal, "stopping");
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

fn level(level: LogLevel) -> &'static str {
    match level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "info",
        LogLevel::Debug => "debug",
        LogLevel::Trace => "trace",
    }
}
