//! Coded bytes in one file on a local disk.
//!
//! The file never has a name that outlives its opening, so nothing is left behind however the process ends. Its blocks
//! are taken at the start, so that a full disk is met at the start too, and it is read and written past the page cache,
//! so that bytes that were put away to save memory do not take it again. Where the file system can do neither, that is
//! said in the log.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, OFlag, fallocate, fcntl};
use nix::sys::statvfs::fstatvfs;
use tracing::warn;

use crate::aligned::{AlignedBuffer, BLOCK_BYTES};
use crate::blocks::{BlockMap, Blocks, Extent};
use crate::medium::{Medium, Piece, ReadFailure, Trial};
use crate::seal::random_bytes;
use crate::{DiskConfig, OpenError, TierError, TierKind};

const SEGMENT_BYTES: usize = 4 << 20;
const TIER: TierKind = TierKind::Disk;

/// The file.
pub(crate) struct DiskMedium {
    file: File,
    map: Arc<BlockMap>,
    direct: AtomicBool,
    punch_holes: bool,
}

impl DiskMedium {
    /// Makes the file and tries it.
    pub(crate) fn open(config: &DiskConfig) -> Result<(Self, Trial), OpenError> {
        let dir = &config.dir;
        let block_bytes = BLOCK_BYTES as u64;
        let blocks = config.bytes.checked_div(block_bytes).unwrap_or_default();
        let bytes = blocks.saturating_mul(block_bytes);
        if blocks == 0 {
            return Err(OpenError::BadConfig {
                tier: TIER,
                what: "a file size of",
                value: config.bytes.into(),
                allowed: "one block of 4096 bytes or more",
            });
        }
        match fs::metadata(dir) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => {
                let source = io::ErrorKind::NotADirectory.into();
                return Err(OpenError::NoFolder { dir: dir.clone(), source });
            }
            Err(source) => return Err(OpenError::NoFolder { dir: dir.clone(), source }),
        }
        let file = nameless(dir).map_err(|source| OpenError::NotWritable { dir: dir.clone(), source })?;
        reserve(&file, bytes, dir)?;
        let direct = config.direct && set_direct(&file, true).is_ok();
        let medium = Self {
            file,
            map: BlockMap::new(blocks),
            direct: AtomicBool::new(direct),
            punch_holes: config.punch_holes,
        };
        let trial = medium
            .trial(bytes)
            .map_err(|source| OpenError::Unusable { dir: dir.clone(), source: Box::new(source) })?;
        if config.direct && !medium.is_direct() {
            warn!(
                dir = %dir.display(),
                "the file system has no direct I/O; the disk tier goes through the page cache and is slower"
            );
        }
        Ok((medium, trial))
    }

    /// Whether it goes past the page cache.
    pub(crate) fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Relaxed)
    }

    /// Writes and reads a little, without direct I/O if that turns out not to work.
    fn trial(&self, bytes: u64) -> Result<Trial, TierError> {
        let first = self.try_out(bytes);
        match first {
            Err(TierError::Io { source, .. })
                if self.is_direct() && source.raw_os_error() == Some(Errno::EINVAL as i32) =>
            {
                set_direct(&self.file, false).map_err(|errno| failed("open its file", errno.into()))?;
                self.direct.store(false, Ordering::Relaxed);
                self.try_out(bytes)
            }
            other => other,
        }
    }

    fn try_out(&self, bytes: u64) -> Result<Trial, TierError> {
        let len = usize::try_from(bytes).unwrap_or(SEGMENT_BYTES).min(SEGMENT_BYTES);
        let mut buffer = AlignedBuffer::new(len);
        let content = buffer.bytes();
        content.iter_mut().zip((0..=250u8).cycle()).for_each(|(to, from)| *to = from);
        let started = Instant::now();
        let piece = self.write(content)?;
        let write = started.elapsed();
        content.fill(0);
        let started = Instant::now();
        match self.read(&piece, 0, content) {
            Ok(()) => {}
            Err(ReadFailure::Tier(error)) => return Err(error),
            Err(ReadFailure::Short) => {
                return Err(failed("read its file", io::ErrorKind::UnexpectedEof.into()));
            }
        }
        let read = started.elapsed();
        if content.iter().zip((0..=250u8).cycle()).any(|(is, was)| *is != was) {
            return Err(failed("read what it wrote", io::ErrorKind::InvalidData.into()));
        }
        Ok(Trial { bytes: len, write, read })
    }
}

fn failed(action: &'static str, source: io::Error) -> TierError {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            TierError::NoRoomBelow { tier: TIER, source }
        }
        _ => TierError::Io { tier: TIER, action, source },
    }
}

/// A file in a folder, without a name.
fn nameless(dir: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    match options.clone().custom_flags(libc::O_TMPFILE).open(dir) {
        // Not every file system has files without names: then it loses its name at once.
        Err(error)
            if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::ENOENT)) =>
        {
            let random: [u8; 8] = random_bytes().map_err(io::Error::other)?;
            let path = dir.join(format!("vram-tier-{:016x}", u64::from_le_bytes(random)));
            let file = options.create_new(true).open(&path)?;
            fs::remove_file(&path)?;
            Ok(file)
        }
        other => other,
    }
}

/// Takes the file's room.
fn reserve(file: &File, bytes: u64, dir: &Path) -> Result<(), OpenError> {
    let no_room = |errno: Errno| OpenError::NoRoom { dir: dir.to_owned(), bytes, source: errno.into() };
    let len = i64::try_from(bytes).map_err(|_too_large| no_room(Errno::EFBIG))?;
    // Some file systems take all there is before they find that it is not enough.
    if fstatvfs(file)
        .is_ok_and(|found| found.blocks_available().saturating_mul(found.fragment_size()) < bytes)
    {
        return Err(no_room(Errno::ENOSPC));
    }
    loop {
        match fallocate(file.as_fd(), FallocateFlags::empty(), 0, len) {
            Ok(()) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => {
                warn!(
                    dir = %dir.display(),
                    "the file system cannot reserve room; the disk tier may meet a full disk later"
                );
                return file.set_len(bytes).map_err(|source| OpenError::NoRoom {
                    dir: dir.to_owned(),
                    bytes,
                    source,
                });
            }
            Err(errno) => return Err(no_room(errno)),
        }
    }
}

fn set_direct(file: &File, direct: bool) -> Result<(), Errno> {
    let now = OFlag::from_bits_retain(fcntl(file.as_fd(), FcntlArg::F_GETFL)?);
    let flags = if direct { now | OFlag::O_DIRECT } else { now & !OFlag::O_DIRECT };
    fcntl(file.as_fd(), FcntlArg::F_SETFL(flags)).map(drop)
}

/// Where in the file the bytes `[offset, offset + len)` of a piece lie: the place of each run, and its length.
fn runs(blocks: &Blocks, offset: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
    let block_bytes = BLOCK_BYTES as u64;
    let end = offset.saturating_add(len);
    let mut at = 0u64;
    blocks.extents().iter().filter_map(move |Extent { start, blocks }| {
        let first = at;
        at = at.saturating_add(blocks.saturating_mul(block_bytes));
        let (from, to) = (offset.max(first), end.min(at));
        let place = start.saturating_mul(block_bytes).saturating_add(from.saturating_sub(first));
        (from < to).then(|| (place, to.saturating_sub(from)))
    })
}

impl Medium for DiskMedium {
    fn kind(&self) -> TierKind {
        TIER
    }

    fn unit_bytes(&self) -> usize {
        BLOCK_BYTES
    }

    fn segment_bytes(&self) -> usize {
        SEGMENT_BYTES
    }

    fn write(&self, bytes: &[u8]) -> Result<Piece, TierError> {
        let needed_bytes = bytes.len() as u64;
        let block_bytes = BLOCK_BYTES as u64;
        let blocks = self.map.take(needed_bytes.div_ceil(block_bytes)).map_err(|free| TierError::Full {
            tier: TIER,
            needed_bytes,
            free_bytes: free.saturating_mul(block_bytes),
        })?;
        let mut rest = bytes;
        for (place, len) in runs(&blocks, 0, needed_bytes) {
            let len = usize::try_from(len).unwrap_or(usize::MAX).min(rest.len());
            let (now, later) = rest.split_at_checked(len).unwrap_or((rest, &[]));
            self.file.write_all_at(now, place).map_err(|error| failed("write to its file", error))?;
            rest = later;
        }
        if !self.is_direct() {
            // Else the page cache would grow by what is put away, and the speed measured would be that of memory.
            self.file.sync_data().map_err(|error| failed("write to its file", error))?;
        }
        Ok(Piece::Blocks(blocks))
    }

    fn read(&self, piece: &Piece, offset: usize, out: &mut [u8]) -> Result<(), ReadFailure> {
        let Piece::Blocks(blocks) = piece else {
            return Err(TierError::ForeignHandle { tier: TIER }.into());
        };
        let mut rest = out;
        for (place, len) in runs(blocks, offset as u64, rest.len() as u64) {
            let len = usize::try_from(len).unwrap_or(usize::MAX).min(rest.len());
            let (now, later) = rest.split_at_mut_checked(len).ok_or(ReadFailure::Short)?;
            match self.file.read_exact_at(now, place) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(ReadFailure::Short),
                Err(error) => return Err(failed("read its file", error).into()),
            }
            rest = later;
        }
        if rest.is_empty() { Ok(()) } else { Err(ReadFailure::Short) }
    }

    fn remove(&self, piece: Piece) -> Result<(), TierError> {
        let Piece::Blocks(blocks) = &piece else { return Err(TierError::ForeignHandle { tier: TIER }) };
        if !self.punch_holes {
            return Ok(());
        }
        let mut result = Ok(());
        for (place, len) in runs(blocks, 0, u64::MAX) {
            let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            let place = i64::try_from(place).unwrap_or(i64::MAX);
            let len = i64::try_from(len).unwrap_or(i64::MAX);
            if let Err(errno) = fallocate(self.file.as_fd(), flags, place, len) {
                result = Err(failed("give blocks back", errno.into()));
            }
        }
        // Only now are the blocks free for others.
        drop(piece);
        result
    }

    fn stored_bytes(&self) -> u64 {
        let used = self.map.blocks().saturating_sub(self.map.free_blocks());
        used.saturating_mul(BLOCK_BYTES as u64)
    }

    fn limit_bytes(&self) -> Option<u64> {
        Some(self.map.blocks().saturating_mul(BLOCK_BYTES as u64))
    }

    fn is_link(&self) -> bool {
        true
    }

    fn close(&self) -> Result<(), TierError> {
        // The file has no name: it ends with its last descriptor.
        Ok(())
    }
}
