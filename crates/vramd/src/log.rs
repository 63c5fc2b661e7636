//! The log, on standard error.

use std::io::{IsTerminal, stderr};

use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

use crate::args::LogLevel;

/// Names the environment's variable that chooses what is logged in more detail than a level can.
const FILTER_VARIABLE: &str = "VRAMD_LOG";

/// Lines that wait for a reader who takes his time; what comes beyond them is lost.
const WAITING_LINES: usize = 8192;

/// Starts logging; once. What cannot be written is lost: a full disk, a reader that has gone or one that does not read ends
/// no guest and holds up nobody. What waits is written when the guard is dropped, as far as that takes no second.
#[must_use = "nothing is written any more when the guard is dropped"]
pub fn start(level: LogLevel) -> WorkerGuard {
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(WAITING_LINES)
        .thread_name("log")
        .finish(stderr());
    let filter =
        EnvFilter::try_from_env(FILTER_VARIABLE).unwrap_or_else(|_| EnvFilter::new(level.to_string()));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .with_ansi(stderr().is_terminal())
        // Told on standard error otherwise, which panics where that is what cannot be written.
        .log_internal_errors(false)
        .init();
    guard
}
