//! What tiers are to be.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::codec::Codec;

/// Bytes of the largest region a tier takes.
pub const MAX_REGION_BYTES: u64 = 1 << 30;

/// Bytes of a chunk unless set otherwise; see `docs/decisions/0012-tiers.md` for the measurement.
pub const DEFAULT_CHUNK_BYTES: u32 = 1 << 20;

/// Bytes a chunk may have: powers of two between these.
pub const CHUNK_BYTES: std::ops::RangeInclusive<u32> = (4 << 10)..=(16 << 20);

/// Which codec a tier uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CodecChoice {
    /// The one that gains most, chunk by chunk.
    #[default]
    Auto,
    /// None: everything is stored as it is.
    None,
    /// This one, where it saves something.
    Only(Codec),
}

/// How a tier compresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodecConfig {
    /// Which codec.
    pub choice: CodecChoice,
    /// Its level; the codec's default if none. Only together with [`CodecChoice::Only`].
    pub level: Option<i32>,
    /// Compresses also where the link is faster than the codec, for space rather than speed.
    pub always: bool,
}

/// Host RAM, as it is: slots of one region each.
#[derive(Clone, Debug, PartialEq)]
pub struct HostConfig {
    /// Bytes of all slots; what is no whole slot is left unused.
    pub bytes: u64,
    /// Bytes of a slot: those of a region, a multiple of 2 MiB.
    pub slot_bytes: u64,
    /// Takes the memory at start, so that it cannot be missing later.
    pub preallocate: bool,
    /// Takes huge pages of the host's reserve if there are enough.
    pub huge_pages: bool,
}

/// Host RAM, compressed.
#[derive(Clone, Debug, PartialEq)]
pub struct CompressedConfig {
    /// Most bytes stored; no bound of its own if none.
    pub bytes: Option<u64>,
    /// Regions that do not shrink to one part in this are refused.
    pub min_ratio: f64,
    /// How; `always` is understood.
    pub codec: CodecConfig,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
}

impl CompressedConfig {
    /// A tier of so many bytes, or of as many as there are.
    pub fn new(bytes: Option<u64>) -> Self {
        Self { bytes, min_ratio: 1.2, codec: CodecConfig::default(), chunk_bytes: DEFAULT_CHUNK_BYTES }
    }
}

/// One file on a local disk. It has no name, and is gone when the process is.
#[derive(Clone, Debug, PartialEq)]
pub struct DiskConfig {
    /// The folder the file is made in.
    pub dir: PathBuf,
    /// Bytes of the file, all of them taken at start where the file system can.
    pub bytes: u64,
    /// Encrypts what is written, with a key that lives as long as the store.
    pub encrypt: bool,
    /// Goes past the page cache where the file system can.
    pub direct: bool,
    /// Gives the blocks of removed regions back to the file system. The room is then no longer reserved.
    pub punch_holes: bool,
    /// How it compresses.
    pub codec: CodecConfig,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
}

impl DiskConfig {
    /// A file of so many bytes in this folder: encrypted, direct, compressed where that is faster.
    pub fn new(dir: impl Into<PathBuf>, bytes: u64) -> Self {
        Self {
            dir: dir.into(),
            bytes,
            encrypt: true,
            direct: true,
            punch_holes: false,
            codec: CodecConfig::default(),
            chunk_bytes: DEFAULT_CHUNK_BYTES,
        }
    }
}

/// Objects on a server that speaks S3, or files in a folder.
#[derive(Clone, PartialEq)]
pub struct RemoteConfig {
    /// `s3://BUCKET/PREFIX` or `file:///FOLDER`.
    pub url: String,
    /// Most bytes stored; no bound of its own if none.
    pub bytes: Option<u64>,
    /// Encrypts what is sent, with a key that lives as long as the store.
    pub encrypt: bool,
    /// Options of S3 by the names the crate `object_store` gives them: `aws_access_key_id`, `aws_secret_access_key`,
    /// `aws_endpoint`, `aws_region` and so on.
    pub options: Vec<(String, String)>,
    /// How long one request may take, tries again included.
    pub timeout: Duration,
    /// How it compresses.
    pub codec: CodecConfig,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
}

impl RemoteConfig {
    /// Objects below this address: encrypted, compressed where that is faster.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            bytes: None,
            encrypt: true,
            options: Vec::new(),
            timeout: Duration::from_secs(60),
            codec: CodecConfig::default(),
            chunk_bytes: DEFAULT_CHUNK_BYTES,
        }
    }
}

impl fmt::Debug for RemoteConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values of options are secrets.
        let options: Vec<&str> = self.options.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("RemoteConfig")
            .field("url", &self.url)
            .field("bytes", &self.bytes)
            .field("encrypt", &self.encrypt)
            .field("options", &options)
            .field("timeout", &self.timeout)
            .field("codec", &self.codec)
            .field("chunk_bytes", &self.chunk_bytes)
            .finish()
    }
}
