//! Waking a queue's thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
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
        // A swap, not a store: whoever found it raised left its message before, and is seen from here on.
        self.raised.swap(false, Ordering::AcqRel);
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// Where a queue's thread sleeps: until a kick of the guest's, or a wake.
///
/// The kick is the frontend's eventfd. It shares the open file with us and can make it blocking again at any time, so
/// it is never read: each kick is an edge, whatever the count.
pub(crate) struct Sleeper(Epoll);

impl Sleeper {
    pub(crate) fn new(kick: &OwnedFd, waker: &Waker) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(kick, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0))?;
        epoll.add(waker.fd(), EpollEvent::new(EpollFlags::EPOLLIN, 1))?;
        Ok(Self(epoll))
    }

    /// A signal or an odd descriptor only means looking once for nothing.
    pub(crate) fn sleep(&self, timeout: Option<Duration>) {
        let timeout = timeout.map_or(EpollTimeout::NONE, |timeout| {
            EpollTimeout::try_from(timeout).unwrap_or(EpollTimeout::ZERO)
        });
        let _ = self.0.wait(&mut [EpollEvent::empty(); 2], timeout);
    }
}

/// Whether a write of one to this eventfd of the frontend's would not wait.
fn takes_one(call: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(call.as_fd(), PollFlags::POLLOUT)];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// Signals an eventfd of the frontend's. One that is full is signalled already. The frontend can still make the write
/// wait, by filling it in the very moment after the look; then [`unblock`] helps.
pub(crate) fn signal(call: &OwnedFd) {
    if takes_one(call) {
        let _ = nix::unistd::write(call, &1u64.to_ne_bytes());
    }
}

/// Lets a writer that waits at a full eventfd of the frontend's go on. No honest frontend lets it become full.
pub(crate) fn unblock(call: &OwnedFd) {
    if takes_one(call) || fcntl(call, FcntlArg::F_SETFL(OFlag::O_RDWR | OFlag::O_NONBLOCK)).is_err() {
        return;
    }
    let mut count = [0u8; 8];
    let _ = nix::unistd::read(call, &mut count);
}
