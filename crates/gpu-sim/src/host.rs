//! Host memory: what a copy reads or writes, and what has been registered.

use std::collections::BTreeMap;

use vram_gpu::{GpuError, HostSpan, Pinning, RegisteredRanges};

/// Host bytes a stream will touch.
#[derive(Debug)]
pub(crate) enum HostBytes {
    /// Held alive by the span.
    Span(HostSpan),
    /// Held alive by a promise of the caller of one of the `_raw` calls.
    Raw(RawBytes),
}

/// A pointer that may cross threads because somebody promised that its bytes stay.
#[derive(Debug)]
pub(crate) struct RawBytes {
    pub(crate) start: *mut u8,
    pub(crate) len: usize,
}

// SAFETY: the pointer is only dereferenced by raw copies under the promise of `SimBackend::copy_in_raw` and its
// like, which is about time, not about threads.
unsafe impl Send for RawBytes {}

impl HostBytes {
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        match self {
            Self::Span(span) => span.as_ptr(),
            Self::Raw(raw) => raw.start,
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Span(span) => span.len_bytes(),
            Self::Raw(raw) => raw.len,
        }
    }
}

/// Registered host memory.
#[derive(Debug, Default)]
pub(crate) struct Registrations {
    ranges: RegisteredRanges,
    held: BTreeMap<u64, HostBytes>,
}

impl Registrations {
    /// Registers bytes that overlap nothing registered.
    pub(crate) fn insert(&mut self, bytes: HostBytes, handle: u64) -> Result<(), GpuError> {
        if !self.ranges.insert(bytes.as_ptr().addr(), bytes.len(), handle) {
            let reason = "the span is empty, or part of it is already registered".to_owned();
            return Err(GpuError::Driver { call: "register_host", reason });
        }
        self.held.insert(handle, bytes);
        Ok(())
    }

    /// Ends a registration; gives back what it held, to be dropped outside any lock.
    pub(crate) fn remove(&mut self, handle: u64) -> Option<HostBytes> {
        let held = self.held.remove(&handle)?;
        self.ranges.remove(held.as_ptr().addr());
        Some(held)
    }

    /// The registration that starts at an address.
    pub(crate) fn handle_at(&self, start: usize) -> Option<u64> {
        self.ranges.handle_at(start)
    }

    /// How bytes lie relative to registered memory.
    pub(crate) fn pinning(&self, start: usize, len: usize) -> Pinning {
        self.ranges.pinning(start, len)
    }

    pub(crate) fn count(&self) -> usize {
        self.held.len()
    }
}
