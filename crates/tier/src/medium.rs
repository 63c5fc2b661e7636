//! What keeps the coded bytes of a chunked tier.

use std::time::Duration;

use crate::blocks::Blocks;
use crate::budget::Reserved;
use crate::remote::Object;
use crate::{TierError, TierKind};

/// Keeps runs of coded bytes, each written at once and read in parts.
pub(crate) trait Medium: Send + Sync {
    /// What kind of tier it makes.
    fn kind(&self) -> TierKind;

    /// Offsets and lengths of what is read and written are multiples of this, and memory is on [`Self::unit_bytes`]
    /// boundaries.
    fn unit_bytes(&self) -> usize;

    /// Bytes it likes to be given at once.
    fn segment_bytes(&self) -> usize;

    /// Keeps bytes. After an error nothing is kept.
    fn write(&self, bytes: &[u8]) -> Result<Piece, TierError>;

    /// Fills `out` with the bytes of a piece from `offset` on.
    fn read(&self, piece: &Piece, offset: usize, out: &mut [u8]) -> Result<(), ReadFailure>;

    /// Forgets a piece, aloud. Dropping it does so silently.
    fn remove(&self, piece: Piece) -> Result<(), TierError>;

    /// Bytes kept.
    fn stored_bytes(&self) -> u64;

    /// Most bytes it keeps.
    fn limit_bytes(&self) -> Option<u64>;

    /// Whether its speed matters to what is coded: it is a disk or a network and not memory.
    fn is_link(&self) -> bool;

    /// Deletes all there is outside this process.
    fn close(&self) -> Result<(), TierError>;
}

/// Bytes kept by a medium. Its room is free when it is dropped.
pub(crate) enum Piece {
    /// In memory of this process.
    Memory { bytes: Box<[u8]>, _reserved: Reserved },
    /// In blocks of the file.
    Blocks(Blocks),
    /// An object on a server.
    Object(Object),
}

/// Why a read did not fill its buffer.
#[derive(Debug)]
pub(crate) enum ReadFailure {
    /// There are fewer bytes than were written.
    Short,
    /// Anything else.
    Tier(TierError),
}

impl From<TierError> for ReadFailure {
    fn from(error: TierError) -> Self {
        Self::Tier(error)
    }
}

/// How long a trial of writing and reading took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trial {
    pub(crate) bytes: usize,
    pub(crate) write: Duration,
    pub(crate) read: Duration,
}
