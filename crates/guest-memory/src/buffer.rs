//! Anonymous memory of our own, for staging, tests and benches.

use std::io;
use std::sync::Arc;

use crate::span::{HostSpan, Mapping};

/// Zeroed, page-aligned anonymous memory of this process.
pub struct HostBuffer {
    mapping: Arc<Anonymous>,
}

struct Anonymous {
    start: *mut u8,
    len: usize,
}

// SAFETY: the mapping is private to this process, its address never changes, and all access is by raw copies.
unsafe impl Send for Anonymous {}
// SAFETY: as above.
unsafe impl Sync for Anonymous {}

// SAFETY: `start` and `len` describe a mapping made in `HostBuffer::new` and unmapped only in `drop`.
unsafe impl Mapping for Anonymous {
    fn start(&self) -> *mut u8 {
        self.start
    }
    fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Anonymous {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `HostBuffer::new` and nobody else unmaps it.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

impl HostBuffer {
    /// Maps `len_bytes` bytes (at least one page).
    pub fn new(len_bytes: usize) -> io::Result<Self> {
        let len = len_bytes.max(4096);
        // SAFETY: an anonymous mapping at an address the kernel chooses touches nothing that exists.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { mapping: Arc::new(Anonymous { start: start.cast(), len }) })
    }

    /// The whole buffer as a span.
    pub fn span(&self) -> HostSpan {
        let mapping: Arc<dyn Mapping> = Arc::<Anonymous>::clone(&self.mapping);
        match HostSpan::new(mapping, 0, self.mapping.len) {
            Ok(span) => span,
            // The range is the mapping itself, so it cannot leave it.
            Err(_) => unreachable!("a whole mapping is a valid span"),
        }
    }
}
