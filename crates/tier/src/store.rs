//! What every tier does.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use vram_guest_memory::HostSpan;

use crate::{Meter, Stored, TierError};

/// A kind of tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TierKind {
    /// Host RAM.
    Host,
    /// Host RAM, compressed.
    Compressed,
    /// A local disk.
    Disk,
    /// A server, or a folder that stands for one.
    Remote,
}

impl fmt::Display for TierKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host",
            Self::Compressed => "compressed",
            Self::Disk => "disk",
            Self::Remote => "remote",
        })
    }
}

/// A place for regions' bytes. Every method blocks until it is done and may be called from any thread, except that no
/// call may be made while holding a lock somebody else's work waits for: disks and servers take their time.
///
/// What always holds:
///
/// - A region comes back exactly or not at all. Every chunk is checked before a byte of it is written to the
///   destination.
/// - A put that fails leaves nothing behind, and the caller still has the bytes.
/// - Bytes are reached by their [`Stored`] only, which cannot be copied or made up. What a removed region leaves on a
///   disk or a server is not read again under another handle: its checksum would be another's, and where encryption is
///   on, its key number too. Slots of the host tier are zeroed before they are given out again.
/// - Dropping a [`Stored`] frees its room as [`Self::remove`] does, but nobody hears of errors, and objects on a
///   server are deleted with the next removal or when the store is closed.
pub trait Store: Send + Sync {
    /// What kind it is.
    fn kind(&self) -> TierKind;

    /// Stores the bytes of a region, which nobody changes meanwhile: if somebody does, what is stored is some mixture
    /// of before and after, and is exact from then on.
    fn put(&self, from: &HostSpan) -> Result<Stored, TierError>;

    /// Reads the bytes of a region from `offset_bytes` on, as many as `to` holds. After an error, every chunk's
    /// part of `to` holds what it held before or the region's true bytes; never anything else.
    fn get(&self, stored: &Stored, offset_bytes: u64, to: &HostSpan) -> Result<(), TierError>;

    /// Removes a region and frees its room. It is gone for the caller also after an error, which then says that
    /// something of it is still there; a server is asked again later, and its room counts until then.
    fn remove(&self, stored: Stored) -> Result<(), TierError>;

    /// Counts, as of now.
    fn meter(&self) -> Meter;

    /// Deletes everything the store has made outside this process. For the end: regions that are still held cannot be
    /// read afterwards. Dropping the store and all its regions does the same, and says nothing of errors.
    fn close(&self) -> Result<(), TierError>;
}

/// Which store a region is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreId(u64);

impl StoreId {
    /// One no other store of this process has.
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
