//! The thread that serves.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use nix::unistd::geteuid;
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{sleep, timeout};
use vram_sandbox::{Outcome, Worker, spawn_supervised};

use crate::admission::Admission;
use crate::socket::Served;
use crate::{ControlSocket, ControlState, Limits, ServerError, routes};

/// After a failure to accept (no descriptors left, most often) the server waits this long.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// A running server. Drop tells it to stop, and does not wait; [`ControlServer::stop`] does.
#[derive(Debug)]
pub struct ControlServer {
    socket: PathBuf,
    stop_deadline: Duration,
    stop: oneshot::Sender<()>,
    ended: Receiver<()>,
    worker: Worker<()>,
}

impl ControlServer {
    /// Starts to serve at a path; when it returns, the socket is listening. The folder is made if it does not exist, a
    /// dead daemon's socket is replaced, a live one's is an error.
    pub fn start(
        socket: impl Into<ControlSocket>,
        state: Arc<dyn ControlState>,
    ) -> Result<Self, ServerError> {
        Self::start_with(socket, state, Limits::default())
    }

    /// The same with other bounds.
    pub fn start_with(
        socket: impl Into<ControlSocket>,
        state: Arc<dyn ControlState>,
        limits: Limits,
    ) -> Result<Self, ServerError> {
        let socket = socket.into();
        let served = Served::listen(&socket)?;
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|source| ServerError::EventLoop { source })?;
        let listener = adopt(&runtime, &served)?;
        let router = routes::router(state, limits.max_body_bytes);
        let (stop, stopped) = oneshot::channel();
        let (end, ended) = sync_channel(1);
        let work = move || {
            runtime.block_on(serve(listener, router, limits, stopped, served));
        };
        // Nobody listens after the server was dropped.
        let on_end = move |_: Option<&_>| {
            let _ = end.try_send(());
        };
        let worker =
            spawn_supervised("vram-control", work, on_end).map_err(|source| ServerError::Spawn { source })?;
        let stop_deadline = limits.stop_timeout.saturating_add(limits.stop_slack);
        Ok(Self { socket: socket.path, stop_deadline, stop, ended, worker })
    }

    /// Where it serves.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Stops to accept, removes the socket, lets the answers under way go out for two seconds, and ends the thread.
    /// Takes five seconds at most.
    pub fn stop(self) -> Result<(), ServerError> {
        // The server may have ended by itself; joining it says so.
        let _ = self.stop.send(());
        if self.ended.recv_timeout(self.stop_deadline).is_err() {
            return Err(ServerError::Stuck);
        }
        match self.worker.join() {
            Outcome::Returned(()) => Ok(()),
            Outcome::Panicked(source) => Err(ServerError::Panicked { source }),
        }
    }
}

fn adopt(runtime: &Runtime, served: &Served) -> Result<UnixListener, ServerError> {
    let _context = runtime.enter();
    served.listener().and_then(UnixListener::from_std).map_err(|source| ServerError::EventLoop { source })
}

/// Serves until told to stop, or until the handle is gone.
async fn serve(
    listener: UnixListener,
    router: Router,
    limits: Limits,
    mut stopped: oneshot::Receiver<()>,
    served: Served,
) {
    let admission = Admission::new(&limits, geteuid().as_raw());
    // As many as are served are told that they are not; beyond that they are only closed.
    let refusals = Arc::new(Semaphore::new(limits.max_connections));
    let connections = GracefulShutdown::new();
    loop {
        let stream = tokio::select! {
            _ = &mut stopped => break,
            stream = accept(&listener) => stream,
        };
        let watcher = connections.watcher();
        if let Some(slot) = admission.admit(user_of(&stream)) {
            let router = router.clone();
            let connection = serve_connection(stream, router, limits, limits.connection_timeout, watcher);
            tokio::spawn(hold(slot, connection));
        } else if let Ok(refusal) = refusals.clone().try_acquire_owned() {
            let connection =
                serve_connection(stream, routes::busy(), limits, limits.refusal_timeout, watcher);
            tokio::spawn(hold(refusal, connection));
        }
    }
    // Nobody finds the socket any more, and those in its backlog learn that nobody will answer.
    drop(served);
    drop(listener);
    if timeout(limits.stop_timeout, connections.shutdown()).await.is_err() {
        tracing::warn!("Gave up on operators that were still reading their answers");
    }
}

async fn accept(listener: &UnixListener) -> UnixStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => {
                tracing::warn!(%error, "Cannot accept a connection to the operator API");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn hold<T>(held: T, work: impl Future<Output = ()>) {
    work.await;
    drop(held);
}

/// Who made the connection.
fn user_of(stream: &UnixStream) -> Option<u32> {
    match stream.peer_cred() {
        Ok(peer) => {
            tracing::debug!(uid = peer.uid(), gid = peer.gid(), pid = peer.pid(), "An operator connected");
            Some(peer.uid())
        }
        Err(error) => {
            tracing::debug!(%error, "An operator connected, nobody knows who");
            None
        }
    }
}

async fn serve_connection(
    stream: UnixStream,
    router: Router,
    limits: Limits,
    time: Duration,
    watcher: Watcher,
) {
    let connection = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(limits.max_head_bytes)
        .max_headers(limits.max_headers)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    match timeout(time, watcher.watch(connection)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "Closed an operator's connection"),
        Err(_elapsed) => tracing::debug!("Closed an operator's connection after its time"),
    }
}
