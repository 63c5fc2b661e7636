//! What kind of file a frontend gives as guest RAM.
//!
//! Touching a page of a mapped file waits for the file system to bring it. A frontend that serves a file system itself
//! (FUSE) could let it wait for ever, and with it a thread that works for all guests. So only memory and local disks
//! are taken.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Bytes of an ordinary page.
const PAGE_BYTES: u64 = 4096;

/// File systems of memory (memfd and shared memory) and of local disks, by the number statfs(2) gives.
const ORDINARY: [i64; 4] = [
    libc::TMPFS_MAGIC,
    // ext2 to ext4.
    libc::EXT4_SUPER_MAGIC,
    libc::XFS_SUPER_MAGIC,
    libc::BTRFS_SUPER_MAGIC,
];

/// Bytes of a page of the file; `None` for one that is not fit to be guest RAM.
pub(crate) fn page_bytes(file: &File) -> io::Result<Option<u64>> {
    // SAFETY: an all-zero statfs is a valid value to fill in.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open as long as `file` lives, and `found` is ours to write.
    if unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut found) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if found.f_type == libc::HUGETLBFS_MAGIC {
        // The block size of hugetlbfs is that of its pages.
        return Ok(u64::try_from(found.f_bsize).ok().filter(|bytes| bytes.is_power_of_two()));
    }
    Ok(ORDINARY.contains(&found.f_type).then_some(PAGE_BYTES))
}
