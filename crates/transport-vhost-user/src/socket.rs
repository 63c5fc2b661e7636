//! A slice's socket.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::{error, warn};
use vram_sandbox::{Worker, spawn_named};
use vram_session::Session;
use vram_socket_file::{Gid, SocketFile};

use crate::SocketError;
use crate::connection::serve;

/// How long a new frontend waits for the one before it to be gone. A VM that is started again connects while its
/// former self is still being cleaned up.
const TAKEOVER_WAIT: Duration = Duration::from_secs(15);

/// Makes the session of a new connection.
pub type Factory = Box<dyn Fn() -> Arc<Session> + Send + Sync>;

/// What a slice's socket is made of.
pub struct SocketConfig {
    /// The slice's name.
    pub name: String,
    /// Where to listen.
    pub path: PathBuf,
    /// The group whose members may connect, if it is not the one the system chooses.
    pub group: Option<Gid>,
    /// Request queues of the device.
    pub request_queues: u16,
    /// Makes the session of a new connection.
    pub sessions: Factory,
}

/// Whether a frontend is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketState {
    /// Nobody is connected.
    Waiting,
    /// A frontend is.
    Connected,
}

/// A listening socket and its threads. Dropping it disconnects the frontend and removes the socket.
pub struct SliceSocket {
    shared: Arc<Shared>,
    acceptor: Option<Worker<()>>,
}

struct Shared {
    config: SocketConfig,
    file: SocketFile,
    closing: AtomicBool,
    active: Mutex<Occupant>,
    left: Condvar,
}

/// Who has the socket's one place.
enum Occupant {
    Nobody,
    /// The connection being served, to cut it off.
    Frontend(UnixStream),
    /// Nobody shall have it.
    Reserved,
}

impl Occupant {
    fn is_there(&self) -> bool {
        !matches!(self, Self::Nobody)
    }
}

impl SliceSocket {
    /// Listens. A socket file nobody serves any more is replaced; one that is served is left alone.
    pub fn listen(config: SocketConfig) -> Result<Self, SocketError> {
        let file = SocketFile::listen(&config.path, config.group)?;
        let thread_name = format!("vu-{}", config.name);
        let shared = Arc::new(Shared {
            config,
            file,
            closing: AtomicBool::new(false),
            active: Mutex::new(Occupant::Nobody),
            left: Condvar::new(),
        });
        let accepting = Arc::clone(&shared);
        let acceptor = spawn_named(thread_name, move || accept_all(&accepting))
            .map_err(|source| SocketError::Thread { path: shared.config.path.clone(), source })?;
        Ok(Self { shared, acceptor: Some(acceptor) })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.shared.config.path
    }

    /// Whether a frontend is connected.
    pub fn state(&self) -> SocketState {
        match *self.shared.active() {
            Occupant::Frontend(_) => SocketState::Connected,
            Occupant::Nobody | Occupant::Reserved => SocketState::Waiting,
        }
    }

    /// Keeps frontends away for as long as the reservation lives, or for good if the socket is dropped meanwhile. `None`
    /// if one is connected.
    pub fn reserve(&self) -> Option<Reservation> {
        let mut active = self.shared.active();
        if active.is_there() {
            return None;
        }
        *active = Occupant::Reserved;
        Some(Reservation(Arc::clone(&self.shared)))
    }
}

impl Shared {
    fn active(&self) -> MutexGuard<'_, Occupant> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the place of the active connection, waiting for its holder to be gone.
    fn enter(&self, stream: &UnixStream) -> io::Result<bool> {
        let own = stream.try_clone()?;
        let active = self.active();
        let occupied = |active: &mut Occupant| active.is_there() && !self.closing.load(Ordering::Acquire);
        let waited = self.left.wait_timeout_while(active, TAKEOVER_WAIT, occupied);
        let (mut active, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if active.is_there() || self.closing.load(Ordering::Acquire) {
            return Ok(false);
        }
        *active = Occupant::Frontend(own);
        Ok(true)
    }

    fn leave(&self) {
        *self.active() = Occupant::Nobody;
        self.left.notify_all();
    }
}

/// Nobody connects while this lives.
pub struct Reservation(Arc<Shared>);

impl Drop for Reservation {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Leaves the active place however the connection's thread ends.
struct Place(Arc<Shared>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.leave();
    }
}

fn accept_all(shared: &Arc<Shared>) {
    loop {
        let accepted = shared.file.listener().accept();
        if shared.closing.load(Ordering::Acquire) {
            return;
        }
        let name = &shared.config.name;
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                error!(slice = %name, %error, "no connection can be accepted; trying again");
                std::thread::sleep(Duration::from_millis(200));
                continue;
            }
        };
        match shared.enter(&stream) {
            Ok(true) => {}
            Ok(false) => {
                warn!(slice = %name, "a second frontend is refused while the first is connected");
                continue;
            }
            Err(error) => {
                error!(slice = %name, %error, "a connection cannot be served");
                continue;
            }
        }
        let place = Place(Arc::clone(shared));
        let started = spawn_named(format!("vu-{name}"), move || {
            let shared = Arc::clone(&place.0);
            let session = (shared.config.sessions)();
            if let Err(error) = serve(&shared.config.name, shared.config.request_queues, session, stream) {
                error!(slice = %shared.config.name, %error, "a connection cannot be served");
            }
            drop(place);
        });
        if let Err(error) = started {
            error!(slice = %name, %error, "a connection cannot be served");
        }
    }
}

impl Drop for SliceSocket {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Release);
        if let Occupant::Frontend(stream) = &*self.shared.active() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // One may wait for the place to become free.
        self.shared.left.notify_all();
        // The acceptor sits in accept: this gets it out, and tells those in the backlog that nobody will answer.
        self.shared.file.shut_down();
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        let active = self.shared.active();
        let connected = |active: &mut Occupant| matches!(active, Occupant::Frontend(_));
        let _ = self.shared.left.wait_timeout_while(active, TAKEOVER_WAIT, connected);
    }
}
