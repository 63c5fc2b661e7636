//! What can be wrong with a tier.

use std::io;
use std::path::PathBuf;

use vram_control_api::{ByteSize, ByteSizeError};
use vram_tier::TierKind;

use crate::config::Origin;

/// What is wrong with a tier as it is written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TierProblem {
    /// It has no kind.
    #[error("A tier needs a kind: host, compressed, disk or remote")]
    NoKind,
    /// No such kind.
    #[error("There is no kind of tier {found}; the kinds are host, compressed, disk and remote")]
    UnknownKind {
        /// What was written.
        found: String,
    },
    /// Two tiers are of one kind.
    #[error("A {kind} tier is already defined ({first}); there can be one of each kind")]
    Twice {
        /// Its kind.
        kind: TierKind,
        /// Where the first one stands.
        first: Origin,
    },
    /// A field it must have is not there.
    #[error("The {kind} tier needs a {field}, such as {example}")]
    Missing {
        /// The tier.
        kind: TierKind,
        /// The field.
        field: &'static str,
        /// How it could be written.
        example: &'static str,
    },
    /// Its kind has no such field.
    #[error("A {kind} tier has no field {found:?}; its fields are {}", fields.join(", "))]
    UnknownField {
        /// The tier.
        kind: TierKind,
        /// What was written.
        found: String,
        /// The fields it has.
        fields: Vec<&'static str>,
    },
    /// A field cannot have this value.
    #[error("The {field} of the {kind} tier must be {expected}, not {found}")]
    Value {
        /// The tier.
        kind: TierKind,
        /// The field.
        field: &'static str,
        /// What it may be.
        expected: String,
        /// What was written.
        found: String,
    },
    /// A size cannot be read.
    #[error("The {field} of the {kind} tier: {error}")]
    Size {
        /// The tier.
        kind: TierKind,
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        error: ByteSizeError,
    },
    /// Not one region would have room.
    #[error(
        "The host tier keeps whole shards: its size must be at least that of one, {shard:#}, not {size:#}; make it \
         larger, or the shard smaller"
    )]
    SmallerThanShard {
        /// Its size.
        size: ByteSize,
        /// Size of a shard.
        shard: ByteSize,
    },
    /// A level of no codec.
    #[error(
        "The level of the {kind} tier is a codec's: set codec to zstd or zlib too, or take the level out"
    )]
    LevelWithoutCodec {
        /// The tier.
        kind: TierKind,
    },
    /// The options are no table of words. What they are may be secret.
    #[error(
        "The options of the remote tier must be a table of NAME = \"VALUE\"; on the command line, name a file of \
         them with options_file"
    )]
    Options,
    /// One option is no word. What it is may be secret.
    #[error("The option {name:?} of the remote tier must be a text, a whole number, true or false")]
    Option {
        /// Its name.
        name: String,
    },
    /// An option stands in the configuration and in the file it names.
    #[error("The option {name:?} of the remote tier is also in its options_file; take one of them out")]
    OptionTwice {
        /// Its name.
        name: String,
    },
}

/// Why a file of options cannot be used. Nothing says what is in it.
#[derive(Debug, thiserror::Error)]
pub enum OptionsFileError {
    /// It cannot be read.
    #[error("Cannot read the options file {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is a folder, a device or the like.
    #[error("The options file {} is no regular file", path.display())]
    NoFile {
        /// The file.
        path: PathBuf,
    },
    /// Everybody may read it.
    #[error("The options file {} is open to every user; close it with chmod o= {}", path.display(), path.display())]
    OpenToAll {
        /// The file.
        path: PathBuf,
    },
    /// It is larger than any options.
    #[error("The options file {} is larger than {limit}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The most that is read.
        limit: ByteSize,
    },
    /// It is no TOML.
    #[error("The options file {} is not understood in line {line}; write lines of NAME = \"VALUE\"", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
    },
}
