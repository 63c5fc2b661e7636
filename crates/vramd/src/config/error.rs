//! What can be wrong with a configuration.

use std::path::PathBuf;
use std::{fmt, io};

use nix::errno::Errno;
use vram_control_api::ByteSize;

use super::slice::{FORBIDDEN_IN_SOCKET_PATHS, MAX_LIMIT, MAX_QUEUES, MAX_SOCKET_PATH_BYTES};
use super::tier::{OptionsFileError, TierProblem};
use super::{MAX_SHARD, MAX_VIRTIO_ID, SHARD_STEP};

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("Cannot read the configuration file {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is larger than any configuration.
    #[error("The configuration file {} is larger than {limit}", path.display())]
    FileTooLarge {
        /// The file.
        path: PathBuf,
        /// The most that is read.
        limit: ByteSize,
    },
    /// The file is no text.
    #[error("{origin}: The file is not UTF-8 here; save it as UTF-8")]
    NotUtf8 {
        /// The first line that is none.
        origin: Origin,
    },
    /// The file is no TOML, or does not have the fields of a configuration.
    #[error("{origin}: {problem}{}", Quoted(line_text))]
    Parse {
        /// Where.
        origin: Origin,
        /// What the parser said.
        problem: String,
        /// The line, for people to find it.
        line_text: String,
    },
    /// A value is wrong.
    #[error("{origin}: {problem}")]
    Invalid {
        /// Where it stands.
        origin: Origin,
        /// What is wrong with it.
        problem: Problem,
    },
    /// The options of the remote tier cannot be read.
    #[error("{origin}: The options of the remote tier cannot be taken from their file")]
    OptionsFile {
        /// Where the file is named.
        origin: Origin,
        /// What is wrong with it.
        source: OptionsFileError,
    },
    /// Nothing to serve.
    #[error(
        "No slice is defined: add --slice NAME=LIMIT, as in --slice tenant=2GiB, or a [[slice]] to the file"
    )]
    NoSlice,
}

/// Where a value stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// In this option of the command line, without the dashes.
    Option(&'static str),
    /// In the file.
    File {
        /// The file as it was named.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
    },
    /// In what an operator asked for.
    Request,
    /// Nowhere: it is a default.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Option(name) => write!(f, "--{name}"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Request => f.write_str("request"),
            Self::Default => f.write_str("default"),
        }
    }
}

/// What is wrong with a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// It stands in the file and on the command line.
    #[error("{name} is also given on the command line as --{name}; take one of them out")]
    Twice {
        /// The setting.
        name: &'static str,
    },
    /// Simulated GPUs, but which?
    #[error("gpu.spec must say which GPUs to simulate, as in \"4x1GiB\"")]
    SpecMissing,
    /// There is nothing to describe about real GPUs.
    #[error("gpu.spec is for the backend \"sim\" only; take it out")]
    SpecUnexpected,
    /// The shard size cannot be.
    #[error("shard must be a multiple of {SHARD_STEP} from {SHARD_STEP} to {MAX_SHARD}, not {found:#}")]
    Shard {
        /// What was written.
        found: ByteSize,
    },
    /// The virtio id cannot be.
    #[error("virtio-id must be 1 to {MAX_VIRTIO_ID}, not {found}")]
    VirtioId {
        /// What was written.
        found: i64,
    },
    /// A slice's name cannot be.
    #[error("The slice name {found:?} must be 1 to 31 of a-z, 0-9 and -, and not begin with -")]
    SliceName {
        /// What was written.
        found: String,
    },
    /// Two slices have one name.
    #[error("The slice {slice} is already defined ({first})")]
    SliceTwice {
        /// Its name.
        slice: String,
        /// Where the first one stands.
        first: Origin,
    },
    /// A slice's limit cannot be.
    #[error("The limit of slice {slice} must be more than 0 and at most {MAX_LIMIT}, not {found:#}")]
    Limit {
        /// The slice.
        slice: String,
        /// What was written.
        found: ByteSize,
    },
    /// A slice's guarantee is zero.
    #[error("The guarantee of slice {slice} must be more than 0; leave it out for none")]
    GuaranteeZero {
        /// The slice.
        slice: String,
    },
    /// A slice's guarantee is more than it can have.
    #[error("The guarantee of slice {slice}, {guarantee:#}, must not be more than its limit, {limit:#}")]
    GuaranteeAboveLimit {
        /// The slice.
        slice: String,
        /// Its guarantee.
        guarantee: ByteSize,
        /// Its limit.
        limit: ByteSize,
    },
    /// No such placement.
    #[error("The placement of slice {slice} must be local, spill, spread or pack, not {found:?}")]
    Placement {
        /// The slice.
        slice: String,
        /// What was written.
        found: String,
    },
    /// A number of queues cannot be.
    #[error("The queues of slice {slice} must be 1 to {MAX_QUEUES}, not {found}")]
    Queues {
        /// The slice.
        slice: String,
        /// What was written.
        found: i64,
    },
    /// A GPU cannot have this number.
    #[error("The home of slice {slice} must be the number of a GPU, from 0, not {found}")]
    Home {
        /// The slice.
        slice: String,
        /// What was written.
        found: i64,
    },
    /// A path in a file depends on where the daemon is started.
    #[error("{what} must be an absolute path, not {path:?}")]
    PathNotAbsolute {
        /// The setting.
        what: String,
        /// What was written.
        path: PathBuf,
    },
    /// A path cannot be shown to people and to VMMs as it is.
    #[error("{what} must be UTF-8 without control characters, not {path:?}")]
    PathNotPrintable {
        /// The setting.
        what: String,
        /// What was written.
        path: PathBuf,
    },
    /// A path cannot be written in the options of a VMM.
    #[error(
        "{what} must not contain any of {FORBIDDEN_IN_SOCKET_PATHS}, which mean something in VMM options: {path:?}"
    )]
    PathUnfitForOptions {
        /// The setting.
        what: String,
        /// What was written.
        path: PathBuf,
    },
    /// A path does not fit a socket address.
    #[error("{what} must be at most {MAX_SOCKET_PATH_BYTES} bytes long, not {len_bytes}: {path:?}")]
    PathTooLong {
        /// The setting.
        what: String,
        /// What was written.
        path: PathBuf,
        /// Its length.
        len_bytes: usize,
    },
    /// There is no such group.
    #[error("{what}: There is no group {found:?} on this host; make it, or write the number of another")]
    NoSuchGroup {
        /// The setting.
        what: String,
        /// What was written.
        found: String,
    },
    /// Nobody knows whether there is such a group.
    #[error("{what}: The group {found:?} cannot be looked up: {errno}; write its number")]
    GroupLookup {
        /// The setting.
        what: String,
        /// What was written.
        found: String,
        /// What the system said.
        errno: Errno,
    },
    /// Two slices have one socket.
    #[error("The socket of slice {slice} is already that of slice {other}: {}", socket.display())]
    SocketTwice {
        /// The slice.
        slice: String,
        /// The socket.
        socket: PathBuf,
        /// The slice it belongs to.
        other: String,
    },
    /// A tier cannot be so.
    #[error(transparent)]
    Tier(TierProblem),
    /// A slice has the socket of the operator API.
    #[error("The socket of slice {slice} is already that of the operator API: {}", socket.display())]
    ControlSocket {
        /// The slice.
        slice: String,
        /// The socket.
        socket: PathBuf,
    },
}

/// A line of the file behind a message, where there is one.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, " (in `{}`)", self.0) }
    }
}
