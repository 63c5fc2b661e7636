//! Waking a queue's thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::eventfd::{EfdFlags, EventFd};

/// An eventfd that is written only when the thread might be asleep.
pub(crate) struct Waker {
    event: EventFd,
    raised: AtomicBool,
}

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        let event = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self { event, raised: AtomicBool::new(false) })
    }

    /// Wakes the thread, once until it has looked.
    pub(crate) fn wake(&self) {
        if !self.raised.swap(true, Ordering::AcqRel) {
            // An eventfd at its maximum is readable all the same.
            let _ = self.event.write(1);
        }
    }

    /// The thread looked; from here on a wake counts again. Look at what you were woken for after this.
    pub(crate) fn lower(&self) {
        let _ = self.event.read();
        self.raised.store(false, Ordering::Release);
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// Empties an eventfd of the frontend's; it is non-blocking, so one that was emptied meanwhile does no harm.
pub(crate) fn drain(kick: &OwnedFd) {
    let mut count = [0u8; 8];
    let _ = nix::unistd::read(kick, &mut count);
}

/// Signals an eventfd of the frontend's.
pub(crate) fn signal(call: &OwnedFd) {
    let _ = nix::unistd::write(call, &1u64.to_ne_bytes());
}
