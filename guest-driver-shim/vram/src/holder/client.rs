//! A command's end of the connection to the holder.

use std::{
    io::{self, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use nix::{
    sys::socket::{getsockopt, sockopt::PeerCredentials},
    unistd::geteuid,
};
use vram::{Device, DeviceAddress};

use super::{
    place::{Place, PlaceError},
    protocol::{Digest, Entry, Handle, MAX_LINE_BYTES, Name, PROTOCOL, Refusal, Reply, Request, Wish},
    start::{StartError, start},
};
use crate::fd;

/// How long the holder may take for one answer: as long as the device may take for an allocation, and more.
const ANSWER_WAIT: Duration = Duration::from_secs(120);
/// How often connecting is tried again when a holder ends or starts at that very moment.
const TRIES: u32 = 50;

/// Why the holder is of no help.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HolderError {
    #[error("Nothing is held: no holder runs at {}; put something first (vram put FILE)", socket.display())]
    NotRunning { socket: PathBuf },
    #[error("The holder at {} was killed, and all that it held was freed with it; put the data again (vram put FILE)", socket.display())]
    Died { socket: PathBuf },
    #[error("The holder at {} went away meanwhile, and all that it held was freed with it; put the data again (vram put FILE)", socket.display())]
    Vanished { socket: PathBuf },
    #[error("The holder at {} cannot be reached", socket.display())]
    Unreachable { socket: PathBuf, source: io::Error },
    #[error("The holder at {} is of user {uid}; set VRAM_RUNTIME_DIR to a folder of your own", socket.display())]
    Foreign { socket: PathBuf, uid: u32 },
    #[error("The holder did not answer within {} s; see whether the device answers (vram info)", ANSWER_WAIT.as_secs())]
    Silent,
    #[error("The holder holds {found} and not {}; set VRAM_RUNTIME_DIR to another folder for one of them", wanted.display())]
    OtherDevice { found: String, wanted: PathBuf },
    #[error("The holder's answer makes no sense; use the vram program of one release everywhere")]
    Nonsense,
    #[error("The holder's answer cannot be read; use the vram program of one release everywhere")]
    NotJson(#[source] serde_json::Error),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Device(#[from] vram::Error),
}

/// What the command works with: the holder for names, the device for bytes, in the same context.
pub(crate) struct Session {
    wire: Wire,
    device: Device,
}

impl Session {
    /// Connects to the holder that runs.
    pub(crate) fn connect(place: &Place, device: &Path) -> Result<Self, HolderError> {
        place.check()?;
        let stream = UnixStream::connect(&place.socket).map_err(|source| {
            let socket = place.socket.clone();
            match source.kind() {
                io::ErrorKind::NotFound => HolderError::NotRunning { socket },
                io::ErrorKind::ConnectionRefused => HolderError::Died { socket },
                _ => HolderError::Unreachable { socket, source },
            }
        })?;
        let mut wire = Wire::new(stream, place.socket.clone())?;
        let (found, descriptor) = wire.hello()?;
        if Path::new(&found) != device {
            return Err(HolderError::OtherDevice { found, wanted: device.to_path_buf() });
        }
        Ok(Self { wire, device: Device::from_fd(descriptor)? })
    }

    /// Connects to the holder, and starts one where none runs. `note` is told when an earlier one was killed.
    pub(crate) fn connect_or_start(
        place: &Place,
        device: &Path,
        mut note: impl FnMut(&HolderError),
    ) -> Result<Self, HolderError> {
        let mut noted = false;
        let mut tries = 0;
        loop {
            tries += 1;
            let error = match Self::connect(place, device) {
                Ok(session) => return Ok(session),
                Err(error) => error,
            };
            match error {
                HolderError::NotRunning { .. } | HolderError::Died { .. } if tries < TRIES => {
                    if matches!(error, HolderError::Died { .. }) && !noted {
                        note(&error);
                        noted = true;
                    }
                    start(device)?;
                }
                // It ended between our connecting and its answer, because nothing was held: there is a next one.
                HolderError::Vanished { .. } if tries < TRIES => {}
                error => return Err(error),
            }
            if tries > 1 {
                thread::sleep(Duration::from_millis(20));
            }
        }
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn reserve(
        &mut self,
        name: Wish,
        bytes: u64,
        alignment_bytes: u64,
    ) -> Result<(Entry, DeviceAddress), HolderError> {
        self.entry(&Request::Reserve { name, bytes, alignment_bytes })
    }

    pub(crate) fn record(&mut self, name: &Name, sha256: Option<Digest>) -> Result<(), HolderError> {
        self.entry(&Request::Record { name: name.clone(), sha256 }).map(drop)
    }

    pub(crate) fn open(&mut self, handle: &Handle) -> Result<(Entry, DeviceAddress), HolderError> {
        self.entry(&Request::Open { handle: handle.clone() })
    }

    fn entry(&mut self, request: &Request) -> Result<(Entry, DeviceAddress), HolderError> {
        match self.wire.call(request)? {
            Reply::Entry(entry) => {
                let address = entry.device_address().ok_or(HolderError::Nonsense)?;
                Ok((entry, address))
            }
            _ => Err(HolderError::Nonsense),
        }
    }

    /// Frees one; returns how many allocations and bytes.
    pub(crate) fn free(&mut self, handle: &Handle) -> Result<(u64, u64), HolderError> {
        self.freed(&Request::Free { handle: handle.clone() })
    }

    /// Frees all; returns how many allocations and bytes.
    pub(crate) fn free_all(&mut self, force: bool) -> Result<(u64, u64), HolderError> {
        self.freed(&Request::FreeAll { force })
    }

    fn freed(&mut self, request: &Request) -> Result<(u64, u64), HolderError> {
        match self.wire.call(request)? {
            Reply::Freed { allocations, bytes } => Ok((allocations, bytes)),
            _ => Err(HolderError::Nonsense),
        }
    }

    pub(crate) fn list(&mut self) -> Result<Vec<Entry>, HolderError> {
        let mut all: Vec<Entry> = Vec::new();
        loop {
            let after = all.last().map(|entry| entry.name.clone());
            match self.wire.call(&Request::List { after: after.clone() })? {
                Reply::Entries { entries, more } => {
                    // Names that do not advance would never end.
                    let advances = entries.last().map(|entry| &entry.name) > after.as_ref();
                    all.extend(entries);
                    if !more {
                        return Ok(all);
                    }
                    if !advances {
                        return Err(HolderError::Nonsense);
                    }
                }
                _ => return Err(HolderError::Nonsense),
            }
        }
    }
}

/// Lines both ways.
struct Wire {
    stream: UnixStream,
    socket: PathBuf,
    inbox: Vec<u8>,
}

impl Wire {
    /// Trusts a holder of the same user or of root only: it gives us the device.
    fn new(stream: UnixStream, socket: PathBuf) -> Result<Self, HolderError> {
        let unreachable = |source| HolderError::Unreachable { socket: socket.clone(), source };
        let peer = getsockopt(&stream, PeerCredentials).map_err(|error| unreachable(error.into()))?;
        if peer.uid() != geteuid().as_raw() && peer.uid() != 0 {
            return Err(HolderError::Foreign { socket, uid: peer.uid() });
        }
        stream.set_read_timeout(Some(ANSWER_WAIT)).map_err(unreachable)?;
        stream.set_write_timeout(Some(ANSWER_WAIT)).map_err(unreachable)?;
        Ok(Self { stream, socket, inbox: Vec::new() })
    }

    fn hello(&mut self) -> Result<(String, OwnedFd), HolderError> {
        self.send(&Request::Hello { protocol: PROTOCOL })?;
        let (reply, descriptor) = self.receive()?;
        match (reply, descriptor) {
            (Reply::Welcome { device, .. }, Some(descriptor)) => Ok((device, descriptor)),
            (Reply::Refused(refusal), _) => Err(refusal.into()),
            _ => Err(HolderError::Nonsense),
        }
    }

    fn call(&mut self, request: &Request) -> Result<Reply, HolderError> {
        self.send(request)?;
        match self.receive()?.0 {
            Reply::Refused(refusal) => Err(refusal.into()),
            reply => Ok(reply),
        }
    }

    fn send(&mut self, request: &Request) -> Result<(), HolderError> {
        let mut line = serde_json::to_vec(request).map_err(HolderError::NotJson)?;
        line.push(b'\n');
        self.stream.write_all(&line).map_err(|source| self.broken(source))
    }

    /// One line, and the descriptor that came with it.
    fn receive(&mut self) -> Result<(Reply, Option<OwnedFd>), HolderError> {
        let mut descriptor = None;
        loop {
            if let Some(end) = self.inbox.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.inbox.drain(..=end).collect();
                let reply = serde_json::from_slice(&line).map_err(HolderError::NotJson)?;
                return Ok((reply, descriptor));
            }
            if self.inbox.len() >= MAX_LINE_BYTES {
                return Err(HolderError::Nonsense);
            }
            let mut bytes = [0; MAX_LINE_BYTES];
            let (len, came) = fd::receive(&self.stream, &mut bytes).map_err(|source| self.broken(source))?;
            if len == 0 {
                return Err(HolderError::Vanished { socket: self.socket.clone() });
            }
            self.inbox.extend(bytes.iter().take(len));
            descriptor = came.or(descriptor);
        }
    }

    fn broken(&self, source: io::Error) -> HolderError {
        let socket = self.socket.clone();
        match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => HolderError::Silent,
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => HolderError::Vanished { socket },
            _ => HolderError::Unreachable { socket, source },
        }
    }
}
