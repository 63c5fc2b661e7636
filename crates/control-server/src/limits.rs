//! What one caller, and all of them together, may cost.

use std::time::Duration;

/// Bounds of the server. The default is right but for tests that cannot wait so long.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections served at once; on more the answer is 503.
    pub max_connections: usize,
    /// Of these, kept for root and the user the daemon runs as.
    pub kept_connections: usize,
    /// Of the others, those that one user may hold.
    pub max_connections_per_user: usize,
    /// Bytes of a request's head; more are answered with 431.
    pub max_head_bytes: usize,
    /// Header lines of a request; more are answered with 431.
    pub max_headers: usize,
    /// Bytes of a request's body; more are answered with 413.
    pub max_body_bytes: u64,
    /// A connection carries one request and lives at most this long: its request arrives and its answer is read.
    pub connection_timeout: Duration,
    /// A connection that is answered 503 lives at most this long.
    pub refusal_timeout: Duration,
    /// Answers under way have this long when the server stops.
    pub stop_timeout: Duration,
    /// The thread has this much longer to end; what it waits for then is a question to the daemon.
    pub stop_slack: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 64,
            kept_connections: 16,
            max_connections_per_user: 32,
            max_head_bytes: 16 << 10,
            max_headers: 64,
            max_body_bytes: 64 << 10,
            connection_timeout: Duration::from_secs(8),
            refusal_timeout: Duration::from_secs(1),
            stop_timeout: Duration::from_secs(2),
            stop_slack: Duration::from_secs(3),
        }
    }
}
