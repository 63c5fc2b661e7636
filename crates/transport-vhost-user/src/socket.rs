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
    /// The connection being served, to cut it off.
    active: Mutex<Option<UnixStream>>,
    left: Condvar,
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
            active: Mutex::new(None),
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
        if self.shared.active().is_some() { SocketState::Connected } else { SocketState::Waiting }
    }
}

impl Shared {
    fn active(&self) -> MutexGuard<'_, Option<UnixStream>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the place of the active connection, waiting for its holder to be gone.
    fn enter(&self, stream: &UnixStream) -> io::Result<bool> {
        let own = stream.try_clone()?;
        let active = self.active();
        let waited = self.left.wait_timeout_while(active, TAKEOVER_WAIT, |active| active.is_some());
        let (mut active, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if active.is_some() || self.closing.load(Ordering::Acquire) {
            return Ok(false);
        }
        *active = Some(own);
        Ok(true)
    }

    fn leave(&self) {
        *self.active() = None;
        self.left.notify_all();
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
        if let Some(stream) = self.shared.active().as_ref() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // The acceptor sits in accept: this gets it out, and tells those in the backlog that nobody will answer.
        self.shared.file.shut_down();
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        let active = self.shared.active();
        let _ = self.shared.left.wait_timeout_while(active, TAKEOVER_WAIT, |active| active.is_some());
    }
}
