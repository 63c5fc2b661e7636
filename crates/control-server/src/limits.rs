//! What one caller, and all of them together, may cost.

use std::time::Duration;

/// Bounds of the server. The default is right but for tests that cannot wait so long.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections served at once; more wait in the socket's backlog.
    pub max_connections: usize,
    /// Bytes of a request's head; more are answered with 431.
    pub max_head_bytes: usize,
    /// Header lines of a request; more are answered with 431.
    pub max_headers: usize,
    /// Bytes of a request's body; more are answered with 413.
    pub max_body_bytes: u64,
    /// A request's head arrives within this time, or the connection is closed.
    pub head_timeout: Duration,
    /// A connection lives at most this long, whatever it does.
    pub connection_timeout: Duration,
    /// Answers under way have this long when the server stops.
    pub stop_timeout: Duration,
    /// The thread has this much longer to end; what it waits for then is a question to the daemon.
    pub stop_slack: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 64,
            max_head_bytes: 16 << 10,
            max_headers: 64,
            max_body_bytes: 64 << 10,
            head_timeout: Duration::from_secs(5),
            connection_timeout: Duration::from_secs(60),
            stop_timeout: Duration::from_secs(2),
            stop_slack: Duration::from_secs(3),
        }
    }
}
