//! Streams: one worker thread each, fed by a bounded queue.
//!
//! A full queue refuses the next piece of work; it never makes the caller wait.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use vram_gpu::{DeviceAddress, DeviceRange, GpuError, GpuId, Pattern};

use crate::event::{Event, Mark};
use crate::faults::{Doom, Faults};
use crate::host::HostBytes;
use crate::memory::pointer;
use crate::pace::Path;
use crate::space::Space;

/// Pieces of work a stream holds before it refuses more.
const QUEUE_LEN: usize = 4096;
/// Bytes moved under one lease.
const CHUNK_BYTES: u64 = 4 << 20;

/// A piece of work.
pub(crate) enum Work {
    CopyIn { to: DeviceAddress, from: HostBytes },
    CopyOut { to: HostBytes, from: DeviceAddress },
    Copy { to: DeviceAddress, from: DeviceAddress, len_bytes: u64 },
    Fill { range: DeviceRange, pattern: Pattern },
    Record(Mark),
    Wait(Arc<Event>),
    Call(Box<dyn FnOnce() + Send>),
}

/// The sending end of a stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) gpu: GpuId,
    queue: SyncSender<(Work, Doom)>,
}

impl Stream {
    /// Starts a stream; it ends when the `Stream` is dropped and what was enqueued has run.
    pub(crate) fn start(
        gpu: GpuId,
        number: u64,
        space: Arc<Space>,
        faults: Faults,
    ) -> Result<(Self, JoinHandle<()>), GpuError> {
        let (queue, work) = sync_channel(QUEUE_LEN);
        let worker = Worker { gpu, space, faults, failure: None };
        let thread = std::thread::Builder::new()
            .name(format!("sim-{gpu}-s{number}"))
            .spawn(move || worker.run(&work))
            .map_err(|error| GpuError::Driver { call: "create_stream", reason: error.to_string() })?;
        Ok((Self { gpu, queue }, thread))
    }

    pub(crate) fn enqueue(&self, work: Work, doom: Doom) -> Result<(), GpuError> {
        self.queue.try_send((work, doom)).map_err(|error| match error {
            TrySendError::Full(_) => GpuError::Driver {
                call: "enqueue",
                reason: format!("{QUEUE_LEN} pieces of work are pending on the stream"),
            },
            TrySendError::Disconnected(_) => GpuError::BadHandle { what: "stream" },
        })
    }
}

struct Worker {
    gpu: GpuId,
    space: Arc<Space>,
    faults: Faults,
    /// The first failure since the last event.
    failure: Option<GpuError>,
}

impl Worker {
    fn run(mut self, work: &Receiver<(Work, Doom)>) {
        while let Ok((work, doom)) = work.recv() {
            match work {
                Work::Record(mark) => {
                    let lost = self.faults.check_alive(self.gpu);
                    mark.reach(self.failure.take().map_or(lost, Err));
                }
                Work::Wait(event) => event.wait_reached(),
                Work::Call(function) => {
                    // Whatever the function does, the stream goes on.
                    let _ = std::panic::catch_unwind(AssertUnwindSafe(function));
                }
                copy => {
                    if let Err(error) = self.copy_or_fill(&copy, doom) {
                        self.failure.get_or_insert(error);
                    }
                }
            }
        }
    }

    fn copy_or_fill(&self, work: &Work, doom: Doom) -> Result<(), GpuError> {
        self.faults.hold_copy(self.gpu);
        if doom.loses_gpu {
            self.faults.lose_gpu(self.gpu);
        }
        self.faults.check_alive(self.gpu)?;
        let asked = match work {
            Work::CopyIn { from, .. } => from.len() as u64,
            Work::CopyOut { to, .. } => to.len() as u64,
            Work::Copy { len_bytes, .. } => *len_bytes,
            Work::Fill { range, .. } => range.len_bytes,
            Work::Record(_) | Work::Wait(_) | Work::Call(_) => 0,
        };
        let len_bytes = if doom.fails { asked / 2 } else { asked };
        let mut done = 0;
        while done < len_bytes {
            let chunk = CHUNK_BYTES.min(len_bytes.saturating_sub(done));
            self.chunk(work, done, chunk)?;
            done = done.saturating_add(chunk);
        }
        if doom.fails {
            let reason = format!("made to fail after {done} of {asked} bytes");
            return Err(GpuError::CopyFailed { gpu: self.gpu, reason });
        }
        Ok(())
    }

    fn chunk(&self, work: &Work, offset: u64, len_bytes: u64) -> Result<(), GpuError> {
        let part = |start: DeviceAddress| DeviceRange {
            start: DeviceAddress(start.0.saturating_add(offset)),
            len_bytes,
        };
        let len = usize::try_from(len_bytes).unwrap_or(0);
        // Offsets into host bytes are below their length, which is a usize.
        let host_offset = usize::try_from(offset).unwrap_or(0);
        match work {
            Work::CopyIn { to, from } => {
                self.travel(Path::In(self.gpu), len_bytes);
                let (_, _lease) = self.space.lease(part(*to))?;
                // SAFETY: the lease keeps the device range mapped; the span (or the promise behind raw bytes) keeps
                // the host range mapped; they are different mappings. Both may change meanwhile, which a byte copy
                // through raw pointers tolerates.
                unsafe {
                    libc::memcpy(pointer(part(*to).start).cast(), from.as_ptr().add(host_offset).cast(), len)
                };
            }
            Work::CopyOut { to, from } => {
                self.travel(Path::Out(self.gpu), len_bytes);
                let (_, _lease) = self.space.lease(part(*from))?;
                // SAFETY: as for copying in, the other way round.
                unsafe {
                    libc::memcpy(to.as_ptr().add(host_offset).cast(), pointer(part(*from).start).cast(), len)
                };
            }
            Work::Copy { to, from, .. } => {
                let (target, source) = (self.space.resolve(part(*to))?, self.space.resolve(part(*from))?);
                let path = if target.home == source.home {
                    Path::Local
                } else {
                    Path::Peer(target.home, source.home)
                };
                self.travel(path, len_bytes);
                let (_, _to_lease) = self.space.lease(part(*to))?;
                let (_, _from_lease) = self.space.lease(part(*from))?;
                // SAFETY: both leases keep their ranges mapped, and enqueueing saw to it that they are apart.
                unsafe {
                    libc::memcpy(pointer(part(*to).start).cast(), pointer(part(*from).start).cast(), len);
                }
            }
            Work::Fill { range, pattern } => {
                let (_, _lease) = self.space.lease(part(range.start))?;
                fill(pointer(part(range.start).start), len, *pattern);
            }
            Work::Record(_) | Work::Wait(_) | Work::Call(_) => {}
        }
        Ok(())
    }

    fn travel(&self, path: Path, len_bytes: u64) {
        self.faults.sleep(self.faults.pace().book(path, len_bytes));
    }
}

/// Repeats a pattern over leased device memory. Chunks are multiples of every pattern's size.
fn fill(start: *mut u8, len: usize, pattern: Pattern) {
    let bytes: [u8; 4] = match pattern {
        Pattern::U8(byte) => [byte; 4],
        Pattern::U16(half) => {
            let [low, high] = half.to_le_bytes();
            [low, high, low, high]
        }
        Pattern::U32(word) => word.to_le_bytes(),
    };
    if bytes.iter().all(|byte| *byte == bytes[0]) {
        // SAFETY: the caller's lease keeps `len` bytes mapped writable.
        unsafe { libc::memset(start.cast(), i32::from(bytes[0]), len) };
        return;
    }
    let block: Vec<u8> = bytes.iter().copied().cycle().take(64 << 10).collect();
    let mut done = 0;
    while done < len {
        let run = block.len().min(len.saturating_sub(done));
        // SAFETY: `done + run <= len`, all of it mapped under the caller's lease; the block is ours and distinct.
        unsafe { libc::memcpy(start.add(done).cast(), block.as_ptr().cast(), run) };
        done = done.saturating_add(run);
    }
}
