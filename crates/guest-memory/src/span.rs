//! Spans of host memory that keep their mapping alive.

use std::fmt;
use std::sync::Arc;

/// Something mapped into this process for as long as it lives: a region of guest RAM or a buffer of our own.
///
/// # Safety
///
/// `start()..start() + len()` must be mapped readable and writable from construction until the value is dropped,
/// and both methods must always return the same values.
pub(crate) unsafe trait Mapping: Send + Sync {
    /// First byte.
    fn start(&self) -> *mut u8;
    /// Bytes.
    fn len(&self) -> usize;
    /// Whether a page of the mapping was lost (its file was truncated by its owner).
    fn poisoned(&self) -> bool {
        false
    }
}

/// Why a span cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpanError {
    /// The range leaves the mapping.
    #[error("Range {offset:#x}+{len_bytes:#x} leaves a mapping of {mapping_bytes:#x} bytes")]
    OutOfRange {
        /// First byte asked for.
        offset: usize,
        /// Bytes asked for.
        len_bytes: usize,
        /// Bytes there are.
        mapping_bytes: usize,
    },
}

/// A run of bytes in this process that stay mapped while the span, or any clone or part of it, lives.
///
/// The bytes are shared with a guest: they may change at any time. Only a GPU backend or this crate dereferences
/// the pointer, by raw copies.
#[derive(Clone)]
pub struct HostSpan {
    mapping: Arc<dyn Mapping>,
    offset: usize,
    len: usize,
}

impl HostSpan {
    pub(crate) fn new(mapping: Arc<dyn Mapping>, offset: usize, len: usize) -> Result<Self, SpanError> {
        let mapping_bytes = mapping.len();
        match offset.checked_add(len) {
            Some(end) if end <= mapping_bytes => Ok(Self { mapping, offset, len }),
            _ => Err(SpanError::OutOfRange { offset, len_bytes: len, mapping_bytes }),
        }
    }

    /// First byte. Valid for reads and writes of [`Self::len_bytes`] bytes while the span lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.start().wrapping_add(self.offset)
    }

    /// Bytes.
    pub fn len_bytes(&self) -> usize {
        self.len
    }

    /// Whether the span names no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The `len` bytes at `offset` of this span.
    pub fn part(&self, offset: usize, len: usize) -> Result<Self, SpanError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(Self {
                mapping: Arc::clone(&self.mapping),
                offset: self.offset.saturating_add(offset),
                len,
            }),
            _ => Err(SpanError::OutOfRange { offset, len_bytes: len, mapping_bytes: self.len }),
        }
    }

    /// Lengthens this span by `next` if that continues it in the same mapping; says whether it did.
    pub fn try_append(&mut self, next: &Self) -> bool {
        let continues = self.offset.checked_add(self.len) == Some(next.offset)
            && self.mapping.start() == next.mapping.start()
            && self.mapping.len() == next.mapping.len();
        if continues {
            self.len = self.len.saturating_add(next.len);
        }
        continues
    }

    /// Whether the memory was lost under us: its bytes mean nothing any more and its owner is to be cut off.
    pub fn poisoned(&self) -> bool {
        self.mapping.poisoned()
    }

    /// Copies bytes out; the shorter of the two lengths decides how many.
    pub fn read_into(&self, out: &mut [u8]) -> usize {
        let len = self.len.min(out.len());
        // SAFETY: the span keeps `len` bytes mapped, `out` is ours and distinct; the guest may change the source
        // meanwhile, which a byte copy through raw pointers tolerates.
        unsafe { std::ptr::copy_nonoverlapping(self.as_ptr(), out.as_mut_ptr(), len) };
        len
    }

    /// Copies bytes in; the shorter of the two lengths decides how many.
    pub fn write_from(&self, bytes: &[u8]) -> usize {
        let len = self.len.min(bytes.len());
        // SAFETY: as in `read_into`, the other way round.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.as_ptr(), len) };
        len
    }

    /// Copies bytes of another span in; the shorter of the two lengths decides how many. They may overlap.
    pub fn copy_from(&self, other: &Self) -> usize {
        let len = self.len.min(other.len);
        // SAFETY: both spans keep `len` bytes mapped, `copy` allows them to overlap, and others may change them
        // meanwhile, which a byte copy through raw pointers tolerates.
        unsafe { std::ptr::copy(other.as_ptr(), self.as_ptr(), len) };
        len
    }
}

impl fmt::Debug for HostSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The address of guest RAM in this process is nobody's business in a log.
        f.debug_struct("HostSpan").field("len", &self.len).finish_non_exhaustive()
    }
}
