//! The log, on standard error.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::EnvFilter;

use crate::args::LogLevel;

/// Names the environment's variable that chooses what is logged in more detail than a level can.
const FILTER_VARIABLE: &str = "VRAMD_LOG";

/// Starts logging; once. What cannot be written is lost: a full disk or a reader that has gone ends no guest.
pub fn start(level: LogLevel) {
    let filter =
        EnvFilter::try_from_env(FILTER_VARIABLE).unwrap_or_else(|_| EnvFilter::new(level.to_string()));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr)
        .with_ansi(stderr().is_terminal())
        // Told on standard error otherwise, which panics where that is what cannot be written.
        .log_internal_errors(false)
        .init();
}
