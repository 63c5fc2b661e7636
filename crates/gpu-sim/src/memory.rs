//! The memory behind shards and the address ranges behind bands.
//!
//! A shard is a memory file sealed against changes of its size, so that no holder of a descriptor can take pages away
//! under a mapping. Behind the shard's bytes lies one more page, never mapped, that says what the file is: an import
//! trusts nothing else.
//!
//! Every holder in every process keeps a shared `flock` on an open file of its own (an exported descriptor carries
//! one too), so whoever wants to know whether somebody else still holds the memory only has to try for the exclusive
//! one.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicU64, Ordering};

use vram_gpu::{DeviceAddress, DeviceRange, GpuId};

/// What every byte of a dirty fresh shard is.
pub(crate) const DIRT: u8 = 0xdb;

const TRAILER_BYTES: u64 = 4096;
const MAGIC: [u8; 8] = *b"vramsim1";
/// Where bands are looked for first: far from where programs and libraries are put, so that a restarted process
/// finds the same range free again.
const BANDS_FROM: u64 = 0x2000_0000_0000;
const BANDS_UP_TO: u64 = 0x5000_0000_0000;

/// Identity of a memory file, the same in every process.
pub(crate) type MemoryId = [u8; 16];

/// What stands behind the bytes of a shard.
#[derive(Default)]
struct Trailer {
    magic: [u8; 8],
    len: [u8; 8],
    gpu: [u8; 8],
    id: MemoryId,
}

/// A memory file with the bytes of one shard.
#[derive(Debug)]
pub(crate) struct MemoryFile {
    file: File,
    pub(crate) gpu: GpuId,
    pub(crate) len_bytes: u64,
    pub(crate) id: MemoryId,
}

impl MemoryFile {
    /// New memory: zeros, or all [`DIRT`].
    pub(crate) fn create(gpu: GpuId, len_bytes: u64, dirty: bool) -> io::Result<Self> {
        // SAFETY: the name is a valid C string and the call returns a new descriptor or an error.
        let fd = unsafe {
            libc::memfd_create(c"vram-sim-shard".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and nobody else owns it.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(len_bytes.checked_add(TRAILER_BYTES).ok_or(io::ErrorKind::InvalidInput)?)?;
        if dirty {
            let mut all_dirt = io::repeat(DIRT).take(len_bytes);
            io::copy(&mut all_dirt, &mut &file)?;
        }
        let id = random_id()?;
        let trailer: [&[u8]; 4] = [&MAGIC, &len_bytes.to_le_bytes(), &u64::from(gpu.0).to_le_bytes(), &id];
        file.write_all_at(&trailer.concat(), len_bytes)?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: F_ADD_SEALS takes an int and touches no memory of ours.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(io::Error::last_os_error());
        }
        file.lock_shared()?;
        Ok(Self { file, gpu, len_bytes, id })
    }

    /// Memory made by [`Self::create`] in this or another process; `InvalidInput` for anything else.
    pub(crate) fn open(fd: BorrowedFd<'_>) -> io::Result<Self> {
        // SAFETY: F_GET_SEALS takes no argument and touches no memory of ours.
        let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let file = reopen(fd).or_else(|_| fd.try_clone_to_owned().map(File::from))?;
        let size = file.metadata()?.len();
        let len_bytes = size.checked_sub(TRAILER_BYTES).ok_or(io::ErrorKind::InvalidInput)?;
        let mut trailer = Trailer::default();
        let mut at = len_bytes;
        for part in [&mut trailer.magic[..], &mut trailer.len, &mut trailer.gpu, &mut trailer.id] {
            file.read_exact_at(part, at)?;
            at = at.saturating_add(part.len() as u64);
        }
        let gpu = u16::try_from(u64::from_le_bytes(trailer.gpu))
            .map_err(|_too_large| io::ErrorKind::InvalidInput)?;
        if trailer.magic != MAGIC || u64::from_le_bytes(trailer.len) != len_bytes {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        file.lock_shared()?;
        Ok(Self { file, gpu: GpuId(gpu), len_bytes, id: trailer.id })
    }

    /// A descriptor for somebody else, visible to [`Self::held_elsewhere`] until its last copy is closed.
    pub(crate) fn export(&self) -> io::Result<OwnedFd> {
        use std::os::fd::AsFd as _;
        let export = match reopen(self.file.as_fd()) {
            Ok(file) => {
                file.lock_shared()?;
                file
            }
            Err(_) => self.file.try_clone()?,
        };
        Ok(export.into())
    }

    /// Whether an export, an import of one, or a mapping of one is alive anywhere.
    pub(crate) fn held_elsewhere(&self) -> bool {
        // Turning our shared lock into the exclusive one works only when nobody else has a shared one; a failed try
        // loses ours, so it is taken anew either way.
        let alone = self.file.try_lock().is_ok();
        let _ = self.file.lock_shared();
        !alone
    }

    /// Maps the bytes at a device address.
    ///
    /// # Safety
    ///
    /// `at` and the `len_bytes` bytes after it lie in a [`Reservation`] of ours, and nothing is mapped there.
    pub(crate) unsafe fn map_at(&self, at: DeviceAddress) -> io::Result<()> {
        // SAFETY: the caller says that the range is ours and unused, so replacing it breaks nothing.
        let mapped = unsafe {
            libc::mmap(
                pointer(at).cast(),
                length(self.len_bytes)?,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE,
                self.file.as_raw_fd(),
                0,
            )
        };
        if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// A range of addresses of this process that nothing else uses.
#[derive(Debug)]
pub(crate) struct Reservation {
    range: DeviceRange,
}

impl Reservation {
    /// Somewhere. The arguments have been checked: not zero, a power of two, no wrap.
    pub(crate) fn anywhere(len_bytes: u64, alignment_bytes: u64) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(BANDS_FROM);
        let alignment = alignment_bytes.max(4096);
        let padded = len_bytes.checked_add(alignment).ok_or(io::ErrorKind::OutOfMemory)?;
        if padded > BANDS_UP_TO - BANDS_FROM {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let mut hint = NEXT.fetch_add(padded, Ordering::Relaxed);
        if hint.checked_add(padded).is_none_or(|end| end > BANDS_UP_TO) {
            NEXT.store(BANDS_FROM, Ordering::Relaxed);
            hint = BANDS_FROM;
        }
        let start = reserve(hint, padded, 0)?;
        // Keep the aligned part, give back what is before and behind.
        let end = start.saturating_add(padded);
        let aligned = start.next_multiple_of(alignment);
        let aligned_end = aligned.saturating_add(len_bytes);
        unreserve(start, aligned.saturating_sub(start));
        unreserve(aligned_end, end.saturating_sub(aligned_end));
        Ok(Self { range: DeviceRange { start: DeviceAddress(aligned), len_bytes } })
    }

    /// Exactly there, or not at all.
    pub(crate) fn at(range: DeviceRange) -> io::Result<Self> {
        let start = reserve(range.start.0, range.len_bytes, libc::MAP_FIXED_NOREPLACE)?;
        let reservation = Self { range: DeviceRange { start: DeviceAddress(start), ..range } };
        // Kernels before 4.17 take the address for a hint.
        if reservation.range == range { Ok(reservation) } else { Err(io::ErrorKind::AddrInUse.into()) }
    }

    pub(crate) fn range(&self) -> DeviceRange {
        self.range
    }

    /// Makes part of the range empty again.
    ///
    /// # Safety
    ///
    /// The part lies inside the range and nobody is touching what is mapped there.
    pub(crate) unsafe fn clear(&self, part: DeviceRange) -> io::Result<()> {
        // SAFETY: the caller says that the part is ours and not in use.
        let mapped = unsafe {
            libc::mmap(
                pointer(part.start).cast(),
                length(part.len_bytes)?,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        unreserve(self.range.start.0, self.range.len_bytes);
    }
}

/// Device memory as a pointer of this process. Only good while the range is mapped.
pub(crate) fn pointer(at: DeviceAddress) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(usize::try_from(at.0).unwrap_or(0))
}

fn reserve(hint: u64, len_bytes: u64, flags: libc::c_int) -> io::Result<u64> {
    // SAFETY: without MAP_FIXED the kernel replaces nothing that exists; MAP_FIXED_NOREPLACE promises the same.
    let start = unsafe {
        libc::mmap(
            pointer(DeviceAddress(hint)).cast(),
            length(len_bytes)?,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | flags,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(start.expose_provenance() as u64)
}

fn unreserve(start: u64, len_bytes: u64) {
    if let (true, Ok(len)) = (len_bytes > 0, length(len_bytes)) {
        // SAFETY: the range is part of a reservation that is being given up, and its worker threads are gone or
        // have been refused it.
        unsafe { libc::munmap(pointer(DeviceAddress(start)).cast(), len) };
    }
}

fn length(len_bytes: u64) -> io::Result<usize> {
    usize::try_from(len_bytes).map_err(|_too_large| io::ErrorKind::InvalidInput.into())
}

/// A second open file of the same memory, with locks of its own.
fn reopen(fd: BorrowedFd<'_>) -> io::Result<File> {
    File::options().read(true).write(true).open(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

fn random_id() -> io::Result<MemoryId> {
    let mut id = MemoryId::default();
    // SAFETY: the buffer is ours and as long as said; 16 bytes are never cut short.
    let got = unsafe { libc::getrandom(id.as_mut_ptr().cast(), id.len(), 0) };
    if usize::try_from(got) == Ok(id.len()) { Ok(id) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "a wrong sum is a failed test")]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn export_is_seen_until_its_last_copy_is_closed() {
        let memory = MemoryFile::create(GpuId(3), 2 << 20, false).unwrap();
        assert!(!memory.held_elsewhere());
        let export = memory.export().unwrap();
        let copy = export.try_clone().unwrap();
        assert!(memory.held_elsewhere());
        drop(export);
        assert!(memory.held_elsewhere());
        drop(copy);
        assert!(!memory.held_elsewhere());
    }

    #[test]
    fn open_knows_what_the_memory_is_and_holds_it() {
        let memory = MemoryFile::create(GpuId(3), 2 << 20, true).unwrap();
        let export = memory.export().unwrap();
        let import = MemoryFile::open(export.as_fd()).unwrap();
        drop(export);
        assert_eq!((import.gpu, import.len_bytes, import.id), (GpuId(3), 2 << 20, memory.id));
        assert!(memory.held_elsewhere() && import.held_elsewhere());
        drop(import);
        assert!(!memory.held_elsewhere());
    }

    #[test]
    fn open_of_other_files_is_refused() {
        let null = File::open("/dev/null").unwrap();
        assert!(MemoryFile::open(null.as_fd()).is_err());
        let plain = tempfile::tempfile().unwrap();
        plain.set_len(1 << 20).unwrap();
        assert!(MemoryFile::open(plain.as_fd()).is_err());
    }

    #[test]
    fn reservation_is_aligned_and_its_range_is_free_again_after_drop() {
        let first = Reservation::anywhere(6 << 20, 1 << 30).unwrap();
        let range = first.range();
        assert_eq!(range.start.0 % (1 << 30), 0);
        assert!(Reservation::at(range).is_err());
        drop(first);
        assert_eq!(Reservation::at(range).unwrap().range(), range);
    }
}
