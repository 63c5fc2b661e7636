//! SIGBUS in guest RAM becomes zeros and a poisoned region.
//!
//! Guest RAM is a file of the frontend's. If the frontend shrinks it, touching what is gone raises SIGBUS in whoever
//! touches it. The handler installed here looks the address up among the regions we mapped; if it is one of ours it
//! puts an anonymous zero page there, marks the region poisoned and returns, so the access continues; otherwise it
//! restores the former handler and lets the access fault again.
//!
//! The table is a fixed array of atomics because a signal handler may neither lock nor allocate.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Regions that can be watched at once in one process: sixty-four sessions with all the slots a transport gives them,
/// twice. More are refused, since a fault in a region that is not watched would end the process.
const SLOTS: usize = 1 << 16;

struct Slot {
    start: AtomicUsize,
    end: AtomicUsize,
    /// Bytes of a page there; a power of two.
    page: AtomicUsize,
    /// The `AtomicBool` to set, as an address; valid while `start` is not zero.
    flag: AtomicUsize,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        page: AtomicUsize::new(0),
        flag: AtomicUsize::new(0),
    }
}; SLOTS];
static WRITERS: Mutex<()> = Mutex::new(());
static INSTALLED: Mutex<bool> = Mutex::new(false);

/// A watched range; dropping it ends the watch.
pub(crate) struct Watch {
    slot: &'static Slot,
    flag: Arc<AtomicBool>,
}

impl Watch {
    /// Watches `len` bytes at `start`, in pages of `page` bytes, a power of two; `None` when the table is full.
    pub(crate) fn new(start: usize, len: usize, page: usize) -> Option<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        let _guard = WRITERS.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = TABLE.iter().find(|slot| slot.start.load(Ordering::Relaxed) == 0)?;
        slot.flag.store(Arc::as_ptr(&flag).addr(), Ordering::Relaxed);
        slot.page.store(page, Ordering::Relaxed);
        slot.end.store(start.saturating_add(len), Ordering::Relaxed);
        slot.start.store(start, Ordering::Release);
        Some(Self { slot, flag })
    }

    pub(crate) fn poisoned(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _guard = WRITERS.lock().unwrap_or_else(PoisonError::into_inner);
        self.slot.start.store(0, Ordering::Release);
        self.slot.end.store(0, Ordering::Relaxed);
        self.slot.flag.store(0, Ordering::Relaxed);
    }
}

/// Installs the handler for this process. Call once, early; later calls do nothing.
pub fn install() -> io::Result<()> {
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if *installed {
        return Ok(());
    }
    // SAFETY: an all-zero sigaction is a valid value to fill in.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction =
        (on_sigbus as extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void)) as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
    // SAFETY: `action` is fully initialised and `on_sigbus` only does what a signal handler may do.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    *installed = true;
    Ok(())
}

extern "C" fn on_sigbus(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel hands a valid siginfo to a SA_SIGINFO handler; SIGBUS carries an address.
    let address = unsafe { (*info).si_addr() }.addr();
    for slot in &TABLE {
        let start = slot.start.load(Ordering::Acquire);
        if start == 0 || address < start || address >= slot.end.load(Ordering::Relaxed) {
            continue;
        }
        let flag = slot.flag.load(Ordering::Relaxed);
        if flag != 0 {
            // SAFETY: the flag lives as long as its watch, whose range lives as long as the mapping being accessed
            // right now by the interrupted code, which holds the mapping.
            unsafe {
                (*std::ptr::with_exposed_provenance::<AtomicBool>(flag)).store(true, Ordering::Relaxed)
            };
        }
        // A huge page can only be replaced as a whole.
        let page_bytes = slot.page.load(Ordering::Relaxed);
        let page = address & !page_bytes.wrapping_sub(1);
        // SAFETY: `page` lies in a mapping of guest RAM that the interrupted access holds, which is whole pages long;
        // replacing one of them, which no longer has anything behind it, is what this handler is for. mmap is a plain
        // system call.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::with_exposed_provenance_mut(page),
                page_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if mapped != libc::MAP_FAILED {
            return;
        }
    }
    // Not ours: let it end the process as it would have without us.
    // SAFETY: restoring the default action and returning makes the access fault again.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
}
