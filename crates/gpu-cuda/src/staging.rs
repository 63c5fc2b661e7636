//! Copies of host memory the driver does not know, without making their caller wait.
//!
//! The driver copies pageable memory itself, but blocks its caller meanwhile. So each stream that needs it has one
//! page-locked buffer, and a copy is pieces in stream order: a host function fills the buffer and a copy empties it,
//! or a copy fills it and a host function empties it. A piece reuses the buffer of the piece before because the
//! stream runs them one after the other. It is the slow way, for small and rare copies: what is large or lasting is
//! registered.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use vram_gpu::HostSpan;

use crate::api::{Api, Refusal, check};

/// Bytes of a buffer, and so of a piece.
pub(crate) const STAGING_BYTES: usize = 4 << 20;
/// Usable in every context.
const PORTABLE: u32 = 1;

/// A page-locked buffer.
pub(crate) struct Staging {
    api: Arc<Api>,
    start: *mut u8,
}

// SAFETY: plain memory, touched only by work of the one stream that has it.
unsafe impl Send for Staging {}
// SAFETY: as above.
unsafe impl Sync for Staging {}

impl Staging {
    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // SAFETY: allocated by `StagingPool::take`; whoever drops a buffer has seen its stream's work end.
        unsafe { (self.api.symbols.mem_free_host)(self.start.cast()) };
    }
}

/// Buffers no stream has. Freeing one would wait for the whole GPU, so they are kept.
#[derive(Default)]
pub(crate) struct StagingPool {
    idle: Mutex<Vec<Staging>>,
}

impl StagingPool {
    /// A buffer; the current context allocates it where there is none.
    pub(crate) fn take(&self, api: &Arc<Api>) -> Result<Staging, Refusal> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(staging) = idle {
            return Ok(staging);
        }
        let mut start: *mut c_void = std::ptr::null_mut();
        // SAFETY: the pointer is ours for the call.
        let code = unsafe { (api.symbols.mem_host_alloc)(&raw mut start, STAGING_BYTES, PORTABLE) };
        check("cuMemHostAlloc", code)?;
        Ok(Staging { api: Arc::clone(api), start: start.cast() })
    }

    pub(crate) fn give_back(&self, staging: Staging) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(staging);
    }

    /// Frees every buffer.
    pub(crate) fn clear(&self) {
        let idle = std::mem::take(&mut *self.idle.lock().unwrap_or_else(PoisonError::into_inner));
        drop(idle);
    }
}

/// What a host function does: moves bytes between a span and a buffer. Held by the stream until it has run.
pub(crate) struct HostCopy {
    pub(crate) span: HostSpan,
    pub(crate) buffer: *mut u8,
    pub(crate) direction: Direction,
}

// SAFETY: the span is, and the buffer belongs to the stream that holds this.
unsafe impl Send for HostCopy {}

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the span into the buffer.
    ToBuffer,
    /// From the buffer into the span.
    ToSpan,
}

/// Called by the driver on a thread of its own, in stream order.
///
/// # Safety
///
/// `argument` is a `HostCopy` that its stream holds until an event behind this call has been reached.
pub(crate) unsafe extern "C" fn run_host_copy(argument: *mut c_void) {
    // SAFETY: as the function's contract says.
    let copy = unsafe { &*argument.cast::<HostCopy>() };
    let (host, len) = (copy.span.as_ptr(), copy.span.len_bytes());
    let (from, to) = match copy.direction {
        Direction::ToBuffer => (host.cast_const(), copy.buffer),
        Direction::ToSpan => (copy.buffer.cast_const(), host),
    };
    // SAFETY: the span keeps its bytes mapped, and no span of a piece is longer than the buffer; a guest may change
    // its side meanwhile, which a byte copy through raw pointers tolerates.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
}
