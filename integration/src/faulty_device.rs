//! A vram device for tests that does wrong what it is told to do wrong.
//!
//! It lives in the test's process: a vhost-user server on the `vhost` crate's message layer, rings from
//! `vram-virtqueue`, requests decoded by `vram-protocol`, and allocations that are plain vectors. Until a test arms a
//! [`Fault`] it behaves well. Faults befall requests only; the frontend's messages are always answered, because QEMU
//! holds the whole guest while it waits for one.
//!
//! One thread serves everything, one frontend at a time, and carries requests out in the order they come. A ring that
//! is stopped forgets what it has not answered.

mod fault;
mod frontend;
mod store;

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use tempfile::TempDir;
use vhost::vhost_user::{BackendReqHandler, Error};
use vram_protocol::{ConfigSpace, EventMessage, QUEUE_FIRST_REQUEST};

use fault::Plan;
pub use fault::{Fault, Requests, When};
use frontend::Frontend;
use store::Store;

/// A device, listening. Dropping it disconnects its frontend.
#[derive(Debug)]
pub struct FaultyDevice {
    shared: Arc<Shared>,
    server: Option<JoinHandle<Result<()>>>,
    socket: PathBuf,
    _folder: TempDir,
}

#[derive(Debug)]
struct Shared {
    /// Virtqueues there are, whatever the configuration space says.
    queues: u16,
    state: Mutex<State>,
    /// Gets the serving thread out of its wait.
    wake: EventFd,
    is_closing: AtomicBool,
}

#[derive(Debug)]
struct State {
    config: ConfigSpace,
    store: Store,
    plan: Plan,
    /// Not posted yet.
    events: VecDeque<EventMessage>,
    unanswered: u64,
}

impl FaultyDevice {
    /// A device with this many request queues, which behaves well.
    pub fn start(request_queues: u16) -> Result<FaultyDevice> {
        let folder = tempfile::Builder::new()
            .prefix("vram-faulty.")
            .tempdir()
            .context("Could not create a temporary folder for the device's socket")?;
        let socket = folder.path().join("device.sock");
        let listener = UnixListener::bind(&socket)
            .with_context(|| format!("Could not listen on {}", socket.display()))?;
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .context("Could not create an event descriptor")?;
        let store = Store::new();
        let state = State {
            config: ConfigSpace::new(request_queues, store.boot_epoch()),
            store,
            plan: Plan::default(),
            events: VecDeque::new(),
            unanswered: 0,
        };
        let shared = Arc::new(Shared {
            queues: QUEUE_FIRST_REQUEST + request_queues,
            state: Mutex::new(state),
            wake,
            is_closing: AtomicBool::new(false),
        });
        let serving = Arc::clone(&shared);
        let server = thread::Builder::new()
            .name("faulty-device".into())
            .spawn(move || serve_all(&serving, &listener))
            .context("Could not start the device's thread")?;
        Ok(FaultyDevice { shared, server: Some(server), socket, _folder: folder })
    }

    /// Where a frontend connects.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Virtqueues there are.
    pub fn queues(&self) -> u16 {
        self.shared.queues
    }

    /// From now on this happens to these requests. Of several faults for one request the first armed counts.
    pub fn arm(&self, fault: Fault, requests: Requests, when: When) {
        self.shared.lock().plan.arm(fault, requests, when);
    }

    /// Behaves well again. What was not answered stays unanswered.
    pub fn behave(&self) {
        self.shared.lock().plan.clear();
    }

    /// Changes what the guest reads from the configuration space; the epoch in it always is the true one.
    pub fn change_config(&self, change: impl FnOnce(&mut ConfigSpace)) {
        change(&mut self.shared.lock().config);
    }

    /// Loses the session under the same epoch, as after a broken connection.
    pub fn forget_session(&self) {
        self.shared.lock().store.forget();
    }

    /// Loses the session and takes a new epoch, as a daemon does that was started anew.
    pub fn start_anew(&self) {
        self.shared.lock().store.start_anew();
    }

    /// Sends an event of this kind with the epoch of now, once the guest has room for it.
    pub fn send_event(&self, kind: u32) {
        let mut state = self.shared.lock();
        let epoch = state.store.boot_epoch();
        state.events.push_back(EventMessage { kind, reserved0: 0, epoch, value: 1, extra: 2 });
        drop(state);
        self.shared.wake();
    }

    /// Events the guest has not had room for.
    pub fn events_waiting(&self) -> usize {
        self.shared.lock().events.len()
    }

    /// Requests so far that were not answered when they came.
    pub fn unanswered(&self) -> u64 {
        self.shared.lock().unanswered
    }

    /// Open contexts.
    pub fn contexts(&self) -> usize {
        self.shared.lock().store.contexts()
    }

    /// Live allocations.
    pub fn allocations(&self) -> usize {
        self.shared.lock().store.allocations()
    }

    /// Ends it; an error if serving a frontend ever failed.
    pub fn finish(mut self) -> Result<()> {
        self.close()
    }

    fn close(&mut self) -> Result<()> {
        self.shared.is_closing.store(true, Ordering::Release);
        self.shared.wake();
        match self.server.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(served)) => served,
            Some(Err(_panic)) => Err(anyhow!("The device's thread panicked; what it said is above")),
        }
    }
}

impl Drop for FaultyDevice {
    fn drop(&mut self) {
        // Whoever wants to know calls finish().
        let _ = self.close();
    }
}

impl Shared {
    /// The state is whole after every statement, so a panic elsewhere does not spoil it.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // Fails only when the counter is full, and then the thread is awake.
        let _ = self.wake.write(1);
    }

    fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }
}

/// Serves one frontend after the other until the device is closed.
fn serve_all(shared: &Arc<Shared>, listener: &UnixListener) -> Result<()> {
    while !shared.is_closing() {
        let ready = wait_readable(&[shared.wake.as_fd(), listener.as_fd()], None)?;
        if ready[0] {
            drain(&shared.wake);
        }
        if ready[1] {
            let (stream, _) = listener.accept().context("Could not accept a frontend")?;
            serve(shared, stream)?;
        }
    }
    Ok(())
}

fn serve(shared: &Arc<Shared>, stream: UnixStream) -> Result<()> {
    let socket = stream.try_clone().context("Could not duplicate the frontend's socket")?;
    let frontend = Arc::new(Mutex::new(Frontend::new(Arc::clone(shared))));
    let lock = || frontend.lock().unwrap_or_else(PoisonError::into_inner);
    let mut messages = BackendReqHandler::from_stream(stream, Arc::clone(&frontend));
    while !shared.is_closing() {
        let kicks: Vec<(u16, File)> = lock()
            .kicks()
            .into_iter()
            .map(|(queue, kick)| Ok((queue, kick?)))
            .collect::<std::io::Result<_>>()
            .context("Could not duplicate a kick descriptor")?;
        let mut descriptors = vec![shared.wake.as_fd(), socket.as_fd()];
        descriptors.extend(kicks.iter().map(|(_, kick)| kick.as_fd()));
        let due = lock().next_due();
        let ready = wait_readable(&descriptors, due)?;

        if ready[0] {
            drain(&shared.wake);
        }
        if ready[1] {
            match messages.handle_request() {
                Ok(()) => {}
                Err(Error::Disconnected | Error::PartialMessage | Error::SocketBroken(_)) => break,
                Err(error) => return Err(error).context("A message of the frontend was not understood"),
            }
            // It may have stopped the ring whose kick is ready too.
            continue;
        }
        for ((queue, _), _) in kicks.iter().zip(&ready[2..]).filter(|(_, ready)| **ready) {
            lock().kicked(*queue).context("A ring could not be served")?;
        }
        lock().work().context("A ring could not be served")?;
    }
    // A frontend that connects again meets a new session.
    shared.lock().store.forget();
    Ok(())
}

fn drain(wake: &EventFd) {
    // Nothing to read means that it is drained.
    let _ = wake.read();
}

/// Which of the descriptors can be read, or were closed by their peer.
fn wait_readable(descriptors: &[std::os::fd::BorrowedFd<'_>], until: Option<Instant>) -> Result<Vec<bool>> {
    let mut waited: Vec<PollFd<'_>> =
        descriptors.iter().map(|descriptor| PollFd::new(*descriptor, PollFlags::POLLIN)).collect();
    loop {
        let timeout = match until {
            None => PollTimeout::NONE,
            Some(until) => {
                let left = until.saturating_duration_since(Instant::now());
                // Rounded up, or the last part of a millisecond would be spent turning in circles.
                PollTimeout::try_from(left.as_millis() + 1).context("A wait that is too long")?
            }
        };
        match poll(&mut waited, timeout) {
            Ok(_) => break,
            Err(Errno::EINTR) => {}
            Err(error) => bail!("Could not wait for descriptors: {error}"),
        }
    }
    Ok(waited.iter().map(|fd| fd.revents().is_some_and(|events| !events.is_empty())).collect())
}
