//! The holder itself: one thread, one `poll`, no waiting for any client.
//!
//! A probe that connects and says nothing does not count as use. A client that sends a line that is too long, or does not read its replies, is dropped; what it was filling is freed.
//! The wait in `poll` has no deadline while something is held or somebody is connected: there is nothing else to do.

use std::{
    collections::BTreeMap,
    fs::{self, File, TryLockError},
    io::{self, Read, Write},
    os::{
        fd::AsFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{getsockopt, sockopt::PeerCredentials},
    unistd::geteuid,
};

use super::{
    place::{Place, PlaceError},
    protocol::{MAX_LINE_BYTES, PROTOCOL, Refusal, Reply, Request},
    table::{Client, Memory, Table},
};
use crate::fd;

/// Connections at once; more wait in the listener's queue.
const MAX_CLIENTS: usize = 64;
/// How long a holder that nobody has used yet waits for its first client.
const GRACE: Duration = Duration::from_secs(10);
/// How long to wait for another holder to let go of the lock: one that is ending needs a moment.
const LOCK_WAIT: Duration = Duration::from_millis(500);

/// How a holder began.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// This process is the holder.
    Holding,
    /// Another one is.
    AnotherHolds,
}

/// Why a holder cannot be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error("The holder cannot use {}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("The holder cannot wait for its clients")]
    Poll(#[source] nix::Error),
}

/// Serves until nothing is held and nobody is connected. `ready` is called once clients can connect, or at once when
/// another holder serves this place. Removes the socket at the end.
pub(crate) fn serve<M: Memory + AsFd>(
    place: &Place,
    memory: M,
    device: String,
    ready: impl FnOnce(Readiness) -> io::Result<()>,
) -> Result<(), ServeError> {
    let file_error = |path: &PathBuf| {
        let path = path.clone();
        move |source| ServeError::File { path, source }
    };
    place.prepare()?;
    let lock = File::create(&place.lock).map_err(file_error(&place.lock))?;
    if !take(&lock, place).map_err(file_error(&place.lock))? {
        return ready(Readiness::AnotherHolds).map_err(file_error(&place.socket));
    }
    match fs::remove_file(&place.socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(file_error(&place.socket)(error));
        }
        _ => {}
    }
    let listener = UnixListener::bind(&place.socket).map_err(file_error(&place.socket))?;
    listener.set_nonblocking(true).map_err(file_error(&place.socket))?;
    ready(Readiness::Holding).map_err(file_error(&place.socket))?;

    let mut holder =
        Holder { listener, table: Table::new(memory), clients: BTreeMap::new(), device, used: false };
    let served = holder.run();
    // While the lock is still ours, so that the next holder's socket is not the one removed.
    let removed = fs::remove_file(&place.socket).map_err(file_error(&place.socket));
    drop(holder);
    drop(lock);
    if let Some(Farewell { mut stream, reply }) = served? {
        // Who does not read it has ended.
        let _ = stream.write_all(&reply);
    }
    removed
}

/// Takes the lock, unless a living holder has it.
fn take(lock: &File, place: &Place) -> io::Result<bool> {
    let deadline = Instant::now() + LOCK_WAIT;
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => return Ok(false),
            Err(TryLockError::WouldBlock) => {}
        }
        if UnixStream::connect(&place.socket).is_ok() {
            return Ok(false);
        }
        thread::sleep(Duration::from_millis(10));
    }
}

struct Connection {
    client: Client,
    stream: UnixStream,
    /// What has come of a line so far.
    inbox: Vec<u8>,
}

struct Holder<M> {
    listener: UnixListener,
    table: Table<M>,
    clients: BTreeMap<u64, Connection>,
    device: String,
    /// Whether anyone has asked for anything yet.
    used: bool,
}

impl<M: Memory + AsFd> Holder<M> {
    /// Returns whom to tell, once nothing is left of the holder, that all is freed.
    fn run(&mut self) -> Result<Option<Farewell>, ServeError> {
        let start = Instant::now();
        let mut next_number = 0;
        loop {
            let grace = GRACE.saturating_sub(start.elapsed());
            let idle = self.table.is_empty() && self.clients.is_empty();
            if idle && (self.used || grace.is_zero()) {
                return Ok(None);
            }
            let (knocked, talking) = self.wait(if idle { grace } else { Duration::MAX })?;
            for number in talking {
                match self.attend(number) {
                    Next::Keep => {}
                    Next::Drop => {
                        if let Some(connection) = self.clients.remove(&number) {
                            self.table.leave(connection.client);
                        }
                    }
                    Next::End { reply } => {
                        let asked = self.clients.remove(&number);
                        return Ok(asked.map(|asked| Farewell { stream: asked.stream, reply }));
                    }
                }
            }
            if knocked {
                self.accept(&mut next_number);
            }
        }
    }

    /// Reads what a client has to say and answers it.
    fn attend(&mut self, number: u64) -> Next {
        let Some(connection) = self.clients.get_mut(&number) else { return Next::Keep };
        let Ok(ended) = receive(connection) else { return Next::Drop };
        self.used |= !connection.inbox.is_empty();
        // What came before the end still counts.
        match answer(connection, &mut self.table, &self.device) {
            Ok(Next::Keep) if ended => Next::Drop,
            Ok(next) => next,
            Err(_) => Next::Drop,
        }
    }

    /// Waits; returns whether someone wants to connect, and the clients that say something or end.
    fn wait(&self, timeout: Duration) -> Result<(bool, Vec<u64>), ServeError> {
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let numbers: Vec<u64> = self.clients.keys().copied().collect();
        let mut polled: Vec<PollFd<'_>> =
            self.clients.values().map(|connection| readable(connection.stream.as_fd())).collect();
        if numbers.len() < MAX_CLIENTS {
            polled.push(readable(self.listener.as_fd()));
        }
        match poll(&mut polled, PollTimeout::try_from(timeout).unwrap_or(PollTimeout::NONE)) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(error) => return Err(ServeError::Poll(error)),
        }
        let happened = |polled: &PollFd<'_>| polled.any().unwrap_or(false);
        let knocked = polled.get(numbers.len()).is_some_and(happened);
        let talking = numbers.into_iter().zip(&polled).filter(|(_, polled)| happened(polled));
        Ok((knocked, talking.map(|(number, _)| number).collect()))
    }

    /// Takes one connection, of the same user or root.
    fn accept(&mut self, next_number: &mut u64) {
        let Ok((stream, _)) = self.listener.accept() else { return };
        let Ok(peer) = getsockopt(&stream, PeerCredentials) else { return };
        if (peer.uid() != geteuid().as_raw() && peer.uid() != 0) || stream.set_nonblocking(true).is_err() {
            return;
        }
        let client = Client { number: *next_number, pid: u32::try_from(peer.pid()).unwrap_or(0) };
        *next_number += 1;
        self.clients.insert(client.number, Connection { client, stream, inbox: Vec::new() });
    }
}

/// What becomes of a connection.
enum Next {
    Keep,
    Drop,
    /// All was freed: nobody shall put anything into this context any more.
    End {
        /// What is still to be said.
        reply: Vec<u8>,
    },
}

/// The last reply. It is sent once the device is closed, so that whoever has it can unload the driver.
struct Farewell {
    stream: UnixStream,
    reply: Vec<u8>,
}

/// Reads what is there; returns whether the client has ended.
fn receive(connection: &mut Connection) -> io::Result<bool> {
    let mut bytes = [0; MAX_LINE_BYTES];
    match connection.stream.read(&mut bytes) {
        Ok(0) => Ok(true),
        Ok(len) => {
            connection.inbox.extend(bytes.iter().take(len));
            Ok(false)
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Answers each whole line. An error means that the client is to be dropped.
fn answer<M: Memory + AsFd>(
    connection: &mut Connection,
    table: &mut Table<M>,
    device: &str,
) -> io::Result<Next> {
    while let Some(end) = connection.inbox.iter().position(|byte| *byte == b'\n') {
        let line: Vec<u8> = connection.inbox.drain(..=end).collect();
        let request: Option<Request> = serde_json::from_slice(&line).ok();
        let frees_all = matches!(request, Some(Request::FreeAll { .. }));
        let reply = match request {
            Some(request) => reply(connection.client, request, table, device),
            None => Reply::Refused(Refusal::NotUnderstood),
        };
        let mut bytes = serde_json::to_vec(&reply)?;
        bytes.push(b'\n');
        if frees_all && matches!(reply, Reply::Freed { .. }) {
            return Ok(Next::End { reply: bytes });
        }
        match reply {
            Reply::Welcome { .. } => fd::send(&connection.stream, &bytes, table.memory().as_fd())?,
            _ => connection.stream.write_all(&bytes)?,
        }
    }
    if connection.inbox.len() >= MAX_LINE_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(Next::Keep)
}

fn reply<M: Memory>(client: Client, request: Request, table: &mut Table<M>, device: &str) -> Reply {
    let reply = match request {
        Request::Hello { protocol: PROTOCOL } => {
            Ok(Reply::Welcome { protocol: PROTOCOL, pid: std::process::id(), device: device.to_owned() })
        }
        Request::Hello { protocol } => Err(Refusal::WrongProtocol { holder: PROTOCOL, client: protocol }),
        Request::Reserve { name, bytes, alignment_bytes } => {
            table.reserve(client, name, bytes, alignment_bytes).map(Reply::Entry)
        }
        Request::Record { name, sha256 } => table.record(client, name, sha256).map(Reply::Entry),
        Request::Open { handle } => table.open(client, handle).map(Reply::Entry),
        Request::Free { handle } => table.free(client, handle),
        Request::FreeAll { force } => table.free_all(client, force),
        Request::List { after } => Ok(table.list(after)),
    };
    reply.unwrap_or_else(Reply::Refused)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader},
        os::fd::BorrowedFd,
        sync::{
            Arc,
            atomic::{AtomicU64, Ordering},
            mpsc,
        },
    };

    use vram::DeviceAddress;

    use super::*;

    /// Counts what is alive, behind a descriptor of nothing.
    struct Counter(Arc<AtomicU64>, File);

    impl Memory for Counter {
        fn allocate(&self, _: u64, _: u64) -> Result<DeviceAddress, vram::Error> {
            Ok(DeviceAddress(0x1000 + self.0.fetch_add(1, Ordering::SeqCst)))
        }

        fn free(&self, _: DeviceAddress) -> Result<(), vram::Error> {
            self.0.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        }
    }

    impl AsFd for Counter {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.1.as_fd()
        }
    }

    struct Running {
        place: Place,
        alive: Arc<AtomicU64>,
        thread: thread::JoinHandle<Result<(), ServeError>>,
        _folder: tempfile::TempDir,
    }

    fn start() -> Running {
        let folder = tempfile::tempdir().unwrap();
        let place = Place {
            folder: folder.path().to_owned(),
            socket: folder.path().join("s"),
            lock: folder.path().join("l"),
        };
        let alive = Arc::new(AtomicU64::new(0));
        let memory = Counter(alive.clone(), File::open("/dev/null").unwrap());
        let (sender, receiver) = mpsc::channel();
        let thread = thread::spawn({
            let place = place.clone();
            move || serve(&place, memory, "dev".into(), |ready| sender.send(ready).map_err(io::Error::other))
        });
        assert_eq!(receiver.recv().unwrap(), Readiness::Holding);
        Running { place, alive, thread, _folder: folder }
    }

    fn connect(running: &Running) -> BufReader<UnixStream> {
        let stream = UnixStream::connect(&running.place.socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        BufReader::new(stream)
    }

    fn say(client: &mut BufReader<UnixStream>, line: &str) -> String {
        client.get_mut().write_all(line.as_bytes()).unwrap();
        client.get_mut().write_all(b"\n").unwrap();
        let mut reply = String::new();
        client.read_line(&mut reply).unwrap();
        reply
    }

    const RESERVE: &str = r#"{"reserve":{"name":{"exactly":"x"},"bytes":5,"alignment_bytes":0}}"#;

    #[test]
    fn serve_until_the_last_is_freed_then_ends_and_removes_the_socket() {
        let running = start();
        let mut client = connect(&running);

        assert!(say(&mut client, RESERVE).contains(r#""address":"0x1000""#));
        assert!(
            say(&mut client, r#"{"record":{"name":"x","sha256":null}}"#).contains(r#""filling_pid":null"#)
        );
        drop(client);
        let mut client = connect(&running);
        assert!(
            say(&mut client, r#"{"free":{"handle":"x"}}"#)
                .contains(r#"{"freed":{"allocations":1,"bytes":5}}"#)
        );
        drop(client);

        running.thread.join().unwrap().unwrap();
        assert!(!running.place.socket.exists());
    }

    #[test]
    fn client_gone_while_filling_has_its_memory_freed() {
        let running = start();
        let mut client = connect(&running);
        say(&mut client, RESERVE);
        assert_eq!(running.alive.load(Ordering::SeqCst), 1);

        drop(client);

        running.thread.join().unwrap().unwrap();
        assert_eq!(running.alive.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn free_all_ends_the_holder_although_others_are_connected() {
        let running = start();
        let mut client = connect(&running);
        let mut other = connect(&running);
        say(&mut other, r#"{"list":{"after":null}}"#);
        say(&mut client, RESERVE);

        let reply = say(&mut client, r#"{"free_all":{"force":false}}"#);

        assert_eq!(reply, "{\"freed\":{\"allocations\":1,\"bytes\":5}}\n");
        // Whoever is told that all is freed may unload the driver: nothing of the holder is left.
        assert_eq!(Arc::strong_count(&running.alive), 1);
        assert!(!running.place.socket.exists());
        running.thread.join().unwrap().unwrap();
        assert_eq!(other.read_line(&mut String::new()).unwrap(), 0);
    }

    #[test]
    fn line_that_is_nonsense_is_answered_and_one_too_long_ends_the_connection() {
        let running = start();
        let mut client = connect(&running);

        assert_eq!(say(&mut client, "nonsense"), "{\"refused\":\"not_understood\"}\n");
        assert!(say(&mut client, r#"{"hello":{"protocol":9}}"#).contains("wrong_protocol"));
        client.get_mut().write_all(&vec![b'x'; MAX_LINE_BYTES]).unwrap();
        let mut rest = String::new();
        let _ = client.read_line(&mut rest);

        assert_eq!(rest, "");
        running.thread.join().unwrap().unwrap();
    }

    #[test]
    fn second_holder_of_a_place_leaves_the_first_alone() {
        let running = start();
        let mut client = connect(&running);
        let memory = Counter(Arc::default(), File::open("/dev/null").unwrap());
        let mut seen = None;

        serve(&running.place, memory, "dev".into(), |ready| {
            seen = Some(ready);
            Ok(())
        })
        .unwrap();

        assert_eq!(seen, Some(Readiness::AnotherHolds));
        assert!(say(&mut client, r#"{"list":{"after":null}}"#).contains("entries"));
    }

    #[test]
    fn socket_left_by_a_killed_holder_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        drop(UnixListener::bind(&socket).unwrap());
        let place = Place { folder: folder.path().to_owned(), socket, lock: folder.path().join("l") };
        let memory = Counter(Arc::default(), File::open("/dev/null").unwrap());

        let served = serve(&place, memory, "dev".into(), |_| {
            UnixStream::connect(&place.socket)?.write_all(b"nonsense\n")
        });

        served.unwrap();
    }
}
