//! What can go wrong with bytes that are put away.

use std::io;
use std::path::PathBuf;

use vram_guest_memory::ArenaError;

use crate::chunk::Damage;
use crate::store::TierKind;

/// Why a tier cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A number is out of range.
    #[error("The {tier} tier cannot have {what} {value}; it takes {allowed}")]
    BadConfig {
        /// Which tier.
        tier: TierKind,
        /// What the number is.
        what: &'static str,
        /// The number.
        value: i128,
        /// What it may be.
        allowed: &'static str,
    },
    /// The arena cannot be made.
    #[error("The memory of the host tier cannot be had")]
    Arena(#[from] ArenaError),
    /// The folder is missing or is no folder.
    #[error("The disk tier's folder {} cannot be used; create it, or name another", dir.display())]
    NoFolder {
        /// The folder.
        dir: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// No file can be made in the folder.
    #[error(
        "No file can be made in the disk tier's folder {}; let this process's user write there, or name another",
        dir.display()
    )]
    NotWritable {
        /// The folder.
        dir: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The file system has not that much room.
    #[error(
        "The file system of the disk tier's folder {} has no {bytes} bytes left; make the tier smaller, or room",
        dir.display()
    )]
    NoRoom {
        /// The folder.
        dir: PathBuf,
        /// Bytes asked for.
        bytes: u64,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The file was made and cannot be written or read.
    #[error("The disk tier's file in {} does not work", dir.display())]
    Unusable {
        /// The folder.
        dir: PathBuf,
        /// What the first try said.
        #[source]
        source: Box<TierError>,
    },
    /// The address is none we know how to reach.
    #[error("The remote tier's address {url} is {problem}; write s3://BUCKET/PREFIX or file:///FOLDER")]
    BadUrl {
        /// The address.
        url: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// What follows the bucket is no name objects can have.
    #[error("The remote tier's address {url} ends in a prefix no object can have")]
    BadPrefix {
        /// The address.
        url: String,
        /// What is wrong with it.
        #[source]
        source: object_store::path::Error,
    },
    /// This build has no S3.
    #[error(
        "The remote tier's address {url} needs S3, and this build is without it; build with the feature s3"
    )]
    WithoutS3 {
        /// The address.
        url: String,
    },
    /// The options do not make a client.
    #[error("The remote tier cannot be set up for {url}; check its options")]
    Client {
        /// The address.
        url: String,
        /// What the client said.
        #[source]
        source: Box<object_store::Error>,
    },
    /// A trial object cannot be stored and read back.
    #[error(
        "The remote tier cannot store and read an object at {url}; check that it can be reached and written to"
    )]
    Trial {
        /// The address.
        url: String,
        /// What the first try said.
        #[source]
        source: Box<TierError>,
    },
    /// The threads that speak to the server cannot be started.
    #[error("The threads of the remote tier cannot be started")]
    Runtime(#[source] io::Error),
    /// The system has no random numbers.
    #[error("The system gives no random numbers for the keys and names of the {tier} tier")]
    NoRandomness {
        /// Which tier.
        tier: TierKind,
        /// What the system said.
        #[source]
        source: ring::error::Unspecified,
    },
}

/// Why bytes were not put away, brought back or removed. What a failed call has changed is said at
/// [`Store`](crate::Store).
#[derive(Debug, thiserror::Error)]
pub enum TierError {
    /// The tier has no room for it.
    #[error("The {tier} tier is full: {needed_bytes} bytes are needed and {free_bytes} are free")]
    Full {
        /// Which tier.
        tier: TierKind,
        /// Bytes that had no room.
        needed_bytes: u64,
        /// Bytes there were.
        free_bytes: u64,
    },
    /// There is less room below the tier than it was promised: the disk is full, or a quota is.
    #[error("The {tier} tier is not full, but what it lies on is; make room there")]
    NoRoomBelow {
        /// Which tier.
        tier: TierKind,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The region does not shrink enough for this tier.
    #[error(
        "A region of {len_bytes} bytes would shrink to no less than {stored_bytes} bytes in the {tier} tier"
    )]
    Incompressible {
        /// Which tier.
        tier: TierKind,
        /// Bytes of the region.
        len_bytes: u64,
        /// Bytes it would take, as far as it was tried.
        stored_bytes: u64,
    },
    /// The host has no memory.
    #[error("The host has no {bytes} bytes of memory left for the {tier} tier")]
    OutOfMemory {
        /// Which tier.
        tier: TierKind,
        /// Bytes asked for.
        bytes: u64,
    },
    /// A region of this length is not taken.
    #[error("The {tier} tier takes regions of 1 to {max_bytes} bytes, not of {len_bytes}")]
    BadLength {
        /// Which tier.
        tier: TierKind,
        /// Bytes of the region.
        len_bytes: u64,
        /// Most it takes.
        max_bytes: u64,
    },
    /// The bytes asked for are not all in the region.
    #[error("Bytes {offset_bytes}+{len_bytes} are not in a region of {region_bytes} bytes")]
    OutOfRange {
        /// First byte.
        offset_bytes: u64,
        /// Bytes.
        len_bytes: u64,
        /// Bytes of the region.
        region_bytes: u64,
    },
    /// The region was stored by another store.
    #[error("The region was stored elsewhere than in this {tier} tier")]
    ForeignHandle {
        /// Which tier.
        tier: TierKind,
    },
    /// Reading or writing failed.
    #[error("The {tier} tier cannot {action}")]
    Io {
        /// Which tier.
        tier: TierKind,
        /// What was being done.
        action: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The server cannot be reached, or refuses.
    #[error("The {tier} tier cannot {action}: the server does not do it")]
    Unreachable {
        /// Which tier.
        tier: TierKind,
        /// What was being done.
        action: &'static str,
        /// What the client said.
        #[source]
        source: Box<object_store::Error>,
    },
    /// The server did not answer in time.
    #[error("The {tier} tier did not {action} within {waited_ms} ms")]
    TimedOut {
        /// Which tier.
        tier: TierKind,
        /// What was being done.
        action: &'static str,
        /// How long it was waited for.
        waited_ms: u64,
    },
    /// What comes back is not what was stored.
    #[error("Bytes {offset_bytes}+{len_bytes} of a region in the {tier} tier are lost: {}", damage.as_str())]
    Corrupt {
        /// Which tier.
        tier: TierKind,
        /// First byte of the chunk.
        offset_bytes: u64,
        /// Bytes of the chunk.
        len_bytes: u64,
        /// What is wrong.
        damage: Damage,
    },
    /// A region could not be coded: a bug here, or a broken processor.
    #[error("A region cannot be coded for the {tier} tier")]
    Coding {
        /// Which tier.
        tier: TierKind,
    },
}

/// What to do about a [`TierError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Put the bytes into the next tier.
    NextTier,
    /// Try again later, or elsewhere: nothing is lost.
    Later,
    /// These bytes are gone.
    BytesLost,
    /// The call was wrong.
    Mend,
}

impl TierError {
    /// What to do.
    pub fn remedy(&self) -> Remedy {
        match self {
            Self::Full { .. }
            | Self::NoRoomBelow { .. }
            | Self::Incompressible { .. }
            | Self::OutOfMemory { .. }
            | Self::Coding { .. } => Remedy::NextTier,
            Self::Io { .. } | Self::Unreachable { .. } | Self::TimedOut { .. } => Remedy::Later,
            Self::Corrupt { .. } => Remedy::BytesLost,
            Self::BadLength { .. } | Self::OutOfRange { .. } | Self::ForeignHandle { .. } => Remedy::Mend,
        }
    }
}
