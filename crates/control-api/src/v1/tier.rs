//! The tiers below the GPUs.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A place for memory that is not used now: slower than the GPUs, and larger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Tier {
    /// What it is. There is at most one tier of each kind.
    pub kind: TierKind,
    /// Whether memory moves to it.
    pub state: TierState,
    /// Most bytes it takes, if there is a limit.
    pub limit_bytes: Option<u64>,
    /// Bytes it takes now.
    pub stored_bytes: u64,
    /// Bytes of guests' memory it holds: more than it takes where they are compressed.
    pub logical_bytes: u64,
    /// Pieces of guests' memory it holds, each as large as a shard.
    pub regions: u64,
    /// What it has done since the daemon started.
    pub counters: TierCounters,
}

/// A kind of tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TierKind {
    /// Host RAM.
    Host,
    /// Host RAM, compressed.
    Compressed,
    /// A local disk.
    Disk,
    /// A server.
    Remote,
    /// A kind this program does not know yet.
    #[serde(other)]
    Unknown,
}

impl fmt::Display for TierKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Host => "host",
            Self::Compressed => "compressed",
            Self::Disk => "disk",
            Self::Remote => "remote",
            Self::Unknown => "unknown",
        })
    }
}

/// Whether memory moves to a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TierState {
    /// It does, as long as there is room.
    Ready,
    /// It failed lately and is left alone for a while; what it holds can be read if it answers.
    Paused,
    /// A state this program does not know yet.
    #[serde(other)]
    Unknown,
}

impl fmt::Display for TierState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ready => "ready",
            Self::Paused => "paused",
            Self::Unknown => "unknown",
        })
    }
}

/// What a tier has done since the daemon started. Counters only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct TierCounters {
    /// Pieces stored.
    pub puts: u64,
    /// Bytes of guests' memory in them.
    pub put_bytes: u64,
    /// Reads of pieces, or of parts of them.
    pub gets: u64,
    /// Bytes of guests' memory read.
    pub get_bytes: u64,
    /// Pieces it had no room for.
    pub full: u64,
    /// What failed otherwise, damage left out: storing, reading, removing.
    pub errors: u64,
    /// Reads that met damaged bytes, which are lost.
    pub corrupt: u64,
}

/// All tiers, the fastest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Tiers {
    /// The tiers.
    pub tiers: Vec<Tier>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tier_words_nobody_knows_yet_are_read() {
        assert_eq!(serde_json::from_str::<TierKind>("\"tape\"").unwrap(), TierKind::Unknown);
        assert_eq!(serde_json::from_str::<TierState>("\"rewinding\"").unwrap(), TierState::Unknown);
        assert_eq!(serde_json::to_string(&TierKind::Compressed).unwrap(), "\"compressed\"");
        assert_eq!(serde_json::to_string(&TierState::Paused).unwrap(), "\"paused\"");
    }
}
