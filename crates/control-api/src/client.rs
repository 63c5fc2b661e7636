//! A client that blocks.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, CONNECTION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::time::sleep;

use crate::ClientError;
use crate::v1::{self, Daemon, Gpu, Gpus, NewSlice, Slice, SliceChange, Slices, Tiers};

/// How long a client waits for a whole answer unless told otherwise.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// The part of a client's time that is kept for an answer, when the rest went by with asking whether it may.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// How often it asks.
const BUSY_PAUSE: Duration = Duration::from_millis(50);
/// Larger answers are refused; ten thousand slices are a tenth of it.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// Fetches from one daemon. Every call makes its own connection, so a client outlives restarts of the daemon.
///
/// Calls block the thread for at most the timeout. They must not be made from inside a tokio runtime.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
    timeout: Duration,
}

impl Client {
    /// A client of the daemon that listens at this path. Nothing is connected yet.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into(), timeout: DEFAULT_TIMEOUT }
    }

    /// The same client with another bound on each call, connecting included.
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Where it connects to.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What is running, and on what.
    pub fn daemon(&self) -> Result<Daemon, ClientError> {
        self.get(v1::DAEMON_PATH)
    }

    /// The GPUs of the pool.
    pub fn gpus(&self) -> Result<Gpus, ClientError> {
        self.get(v1::GPUS_PATH)
    }

    /// All slices.
    pub fn slices(&self) -> Result<Slices, ClientError> {
        self.get(v1::SLICES_PATH)
    }

    /// The slice of this name; [`ClientError::Refused`] if there is none.
    pub fn slice(&self, name: &str) -> Result<Slice, ClientError> {
        self.get(&v1::slice_path(name))
    }

    /// The tiers below the GPUs.
    pub fn tiers(&self) -> Result<Tiers, ClientError> {
        self.get(v1::TIERS_PATH)
    }

    /// Begins to move everything off a GPU; returns it as it is now.
    pub fn drain_gpu(&self, index: u16) -> Result<Gpu, ClientError> {
        self.ask(Method::POST, &v1::gpu_drain_path(index), Vec::new())
    }

    /// Takes a GPU back into use.
    pub fn undrain_gpu(&self, index: u16) -> Result<Gpu, ClientError> {
        self.ask(Method::POST, &v1::gpu_undrain_path(index), Vec::new())
    }

    /// Changes limit and guarantee of a slice.
    pub fn change_slice(&self, name: &str, change: &SliceChange) -> Result<Slice, ClientError> {
        let body = serde_json::to_vec(change).map_err(|source| ClientError::Encode { source })?;
        self.ask(Method::PATCH, &v1::slice_path(name), body)
    }

    /// Makes a slice.
    pub fn create_slice(&self, slice: &NewSlice) -> Result<Slice, ClientError> {
        let body = serde_json::to_vec(slice).map_err(|source| ClientError::Encode { source })?;
        self.ask(Method::POST, v1::SLICES_PATH, body)
    }

    /// Removes a slice; returns it as it was.
    pub fn remove_slice(&self, name: &str) -> Result<Slice, ClientError> {
        self.ask(Method::DELETE, &v1::slice_path(name), Vec::new())
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.ask(Method::GET, path, Vec::new())
    }

    fn ask<T: DeserializeOwned>(&self, method: Method, path: &str, body: Vec<u8>) -> Result<T, ClientError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|source| ClientError::Start { source })?;
        let (status, body) =
            runtime.block_on(self.within_timeout(self.exchange_when_admitted(method, path, body.into())))?;
        if status.is_success() {
            serde_json::from_slice(&body).map_err(|source| self.not_vram(status, source))
        } else {
            let body = serde_json::from_slice(&body).map_err(|source| self.not_vram(status, source))?;
            Err(ClientError::Refused { status: status.as_u16(), body })
        }
    }

    async fn within_timeout<T>(
        &self,
        exchange: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        match tokio::time::timeout(self.timeout, exchange).await {
            Ok(result) => result,
            Err(_elapsed) => {
                Err(ClientError::TimedOut { socket: self.socket.clone(), timeout: self.timeout })
            }
        }
    }

    /// Asks again for as long as too many others are asking. A request that is turned away did nothing.
    async fn exchange_when_admitted(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let patience = self.timeout.saturating_sub(ANSWER_TIME);
        let start = Instant::now();
        loop {
            let exchanged = self.exchange(method.clone(), path, body.clone()).await;
            let turned_away = match &exchanged {
                Ok((status, _)) => *status == StatusCode::SERVICE_UNAVAILABLE,
                // The socket's backlog is full.
                Err(ClientError::Connect { source, .. }) => source.kind() == ErrorKind::WouldBlock,
                Err(_) => false,
            };
            if !turned_away || start.elapsed() >= patience {
                return exchanged;
            }
            sleep(BUSY_PAUSE).await;
        }
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|source| self.cannot_connect(source))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| self.http(e))?;
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = hyper::Uri::try_from(path).unwrap_or_default();
        let headers = request.headers_mut();
        headers.insert(HOST, hyper::header::HeaderValue::from_static("localhost"));
        headers.insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, hyper::header::HeaderValue::from_static("application/json"));
        headers.insert(CONNECTION, hyper::header::HeaderValue::from_static("close"));
        // Its error is the exchange's error too; the task ends with the runtime.
        let driver = tokio::spawn(connection);
        let response = sender.send_request(request).await.map_err(|e| self.http(e))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES)
            .collect()
            .await
            .map_err(|source| ClientError::Body { socket: self.socket.clone(), source })?;
        driver.abort();
        Ok((status, body.to_bytes()))
    }

    fn cannot_connect(&self, source: io::Error) -> ClientError {
        let socket = self.socket.clone();
        match source.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => ClientError::SocketMissing { socket },
            ErrorKind::PermissionDenied => ClientError::PermissionDenied { socket },
            ErrorKind::ConnectionRefused => ClientError::NobodyListens { socket },
            _ => ClientError::Connect { socket, source },
        }
    }

    fn http(&self, source: hyper::Error) -> ClientError {
        ClientError::Http { socket: self.socket.clone(), source }
    }

    fn not_vram(&self, status: StatusCode, source: serde_json::Error) -> ClientError {
        ClientError::NotVram { socket: self.socket.clone(), status: status.as_u16(), source }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use std::thread::{self, JoinHandle};

    use super::*;

    /// A server that reads one request head and answers these bytes.
    fn answer_once(folder: &Path, answer: &'static [u8]) -> (Client, JoinHandle<String>) {
        let socket = folder.join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
                head.push(byte[0]);
            }
            stream.write_all(answer).unwrap();
            String::from_utf8(head).unwrap()
        });
        (Client::new(socket).with_timeout(Duration::from_secs(5)), server)
    }

    #[test]
    fn client_missing_socket_is_told_apart() {
        let folder = tempfile::tempdir().unwrap();

        let error = Client::new(folder.path().join("none")).daemon().unwrap_err();

        assert!(matches!(error, ClientError::SocketMissing { .. }), "{error:?}");
        assert!(error.hint().unwrap().contains("--control"));
    }

    #[test]
    fn client_dead_socket_is_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        drop(UnixListener::bind(&socket).unwrap());

        let error = Client::new(&socket).daemon().unwrap_err();

        assert!(matches!(error, ClientError::NobodyListens { .. }), "{error:?}");
    }

    #[test]
    fn client_too_long_path_is_an_error() {
        let error = Client::new("/x".repeat(200)).daemon().unwrap_err();

        assert!(matches!(error, ClientError::Connect { .. }), "{error:?}");
    }

    #[test]
    fn client_silent_server_times_out() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let _listener = UnixListener::bind(&socket).unwrap();

        let error = Client::new(&socket).with_timeout(Duration::from_millis(50)).daemon().unwrap_err();

        assert!(matches!(error, ClientError::TimedOut { .. }), "{error:?}");
    }

    #[test]
    fn client_server_that_hangs_up_is_an_http_error() {
        let folder = tempfile::tempdir().unwrap();
        let (client, server) = answer_once(folder.path(), b"");

        let error = client.daemon().unwrap_err();

        assert!(matches!(error, ClientError::Http { .. }), "{error:?}");
        assert_eq!(server.join().unwrap().lines().next(), Some("GET /v1/daemon HTTP/1.1"));
    }

    #[test]
    fn client_garbage_is_an_http_error() {
        let folder = tempfile::tempdir().unwrap();
        let (client, _server) = answer_once(folder.path(), b"\x00\xffnonsense\r\n\r\n");

        let error = client.gpus().unwrap_err();

        assert!(matches!(error, ClientError::Http { .. }), "{error:?}");
    }

    #[test]
    fn client_cut_body_is_a_body_error() {
        let folder = tempfile::tempdir().unwrap();
        let (client, _server) = answer_once(folder.path(), b"HTTP/1.1 200 OK\r\ncontent-length: 90\r\n\r\n{");

        let error = client.slices().unwrap_err();

        assert!(matches!(error, ClientError::Body { .. }), "{error:?}");
    }

    #[test]
    fn client_another_server_is_not_vram() {
        let folder = tempfile::tempdir().unwrap();
        let (client, _server) = answer_once(folder.path(), b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi");

        let error = client.slice("x").unwrap_err();

        assert!(matches!(error, ClientError::NotVram { status: 200, .. }), "{error:?}");
    }

    /// A server that says it is busy so many times, then what is running.
    fn busy_server(folder: &Path, times: usize) -> (Client, JoinHandle<()>) {
        let socket = folder.join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = thread::spawn(move || {
            for (answered, stream) in listener.incoming().enumerate() {
                let mut stream = stream.unwrap();
                let (status, body) = if answered < times {
                    ("503 x", r#"{"code":"busy","message":"Too many"}"#)
                } else {
                    ("200 OK", r#"{"gpus":[]}"#)
                };
                // Some of the request is enough to know that it is one.
                stream.read_exact(&mut [0; 16]).unwrap();
                write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
                if answered == times {
                    break;
                }
            }
        });
        (Client::new(socket), server)
    }

    #[test]
    fn client_asks_a_busy_server_again() {
        let folder = tempfile::tempdir().unwrap();
        let (client, server) = busy_server(folder.path(), 3);

        assert_eq!(client.gpus().unwrap().gpus, []);

        server.join().unwrap();
    }

    #[test]
    fn client_gives_up_on_a_server_that_stays_busy_and_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let (client, _server) = busy_server(folder.path(), usize::MAX);
        let start = Instant::now();

        let error = client.with_timeout(ANSWER_TIME + Duration::from_millis(200)).gpus().unwrap_err();

        assert!(
            matches!(&error, ClientError::Refused { body, .. } if body.code == v1::ErrorCode::Busy),
            "{error:?}"
        );
        assert!(start.elapsed() >= Duration::from_millis(200));
    }

    #[test]
    fn client_waits_for_a_place_in_a_full_backlog() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listening = tokio::net::UnixSocket::new_stream().unwrap();
        listening.bind(&socket).unwrap();
        let listener = runtime.block_on(async { listening.listen(2) }).unwrap().into_std().unwrap();
        listener.set_nonblocking(false).unwrap();
        let connect = || runtime.block_on(UnixStream::connect(&socket)).ok();
        // As many as the backlog takes.
        let crowd: Vec<UnixStream> = std::iter::from_fn(connect).collect();
        let server = thread::spawn(move || {
            thread::sleep(Duration::from_millis(200));
            for _ in 0..crowd.len() {
                drop(listener.accept().unwrap());
            }
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 16]).unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n{\"gpus\":[]}").unwrap();
        });

        assert_eq!(Client::new(&socket).gpus().unwrap().gpus, []);

        server.join().unwrap();
    }

    #[test]
    fn client_refusal_keeps_the_words_of_the_server() {
        let folder = tempfile::tempdir().unwrap();
        let answer = b"HTTP/1.1 418 x\r\ncontent-length: 60\r\n\r\n{\"code\":\"from_the_future\",\"message\":\"No tea\",\"hint\":\"Brew\"}  ";
        let (client, _server) = answer_once(folder.path(), answer);

        let error = client.slice("x").unwrap_err();

        assert_eq!((error.to_string(), error.hint()), ("No tea".into(), Some("Brew".into())));
        assert!(
            matches!(error, ClientError::Refused { status: 418, body } if body.code == v1::ErrorCode::Unknown)
        );
    }
}
