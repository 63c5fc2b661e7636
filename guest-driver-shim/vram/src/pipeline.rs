//! Bytes between a file and the device, with two buffers: while one is on its way to or from the device, the other is
//! read or written, and hashed, on a thread of its own. Memory use does not depend on the size of the file.

use std::{
    io::{self, Read, Write},
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use sha2::{Digest as _, Sha256};
use vram::{Device, DeviceAddress};

use crate::holder::Digest;

/// Bytes of one buffer.
pub(crate) const BUFFER_BYTES: usize = 8 << 20;
const BUFFERS: usize = 2;
/// Buffers begin on a page, so that the kernel pins no page of two.
const PAGE_BYTES: usize = 4096;

/// What was moved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Moved {
    /// Of the bytes as the file's end saw them.
    pub(crate) sha256: Digest,
    /// From the first byte to the last.
    pub(crate) elapsed: Duration,
    /// Of that, in calls of the device.
    pub(crate) on_device: Duration,
}

/// What stopped the bytes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PipelineError {
    #[error("The file cannot be read")]
    Read(#[source] io::Error),
    #[error("The file cannot be written")]
    Write(#[source] io::Error),
    #[error("The file ended after {found_bytes} of {wanted_bytes} bytes; was it changed meanwhile?")]
    Short { found_bytes: u64, wanted_bytes: u64 },
    #[error("A thread for the file could not be started")]
    Thread(#[source] io::Error),
    #[error("The thread for the file broke down, which is a defect of this program; please report it")]
    Broken,
    #[error(transparent)]
    Device(#[from] vram::Error),
}

/// Bytes that begin on a page.
pub(crate) struct PageBuffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl PageBuffer {
    pub(crate) fn new(capacity: usize) -> Self {
        let bytes = vec![0; capacity.saturating_add(PAGE_BYTES)];
        // `usize::MAX` means that it cannot be known; then any start is right, only slower.
        let start = bytes.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES);
        Self { bytes, start, len: capacity }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(self.start..).and_then(|bytes| bytes.get(..self.len)).unwrap_or(&[])
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.start..).and_then(|bytes| bytes.get_mut(..self.len)).unwrap_or(&mut [])
    }

    /// Makes it shorter, or as long as it was made.
    fn resize(&mut self, len: usize) {
        self.len = len.min(self.bytes.len().saturating_sub(PAGE_BYTES));
    }
}

/// The length of the next buffer when `left` bytes are left.
fn next_len(left: u64) -> usize {
    usize::try_from(left).map_or(BUFFER_BYTES, |left| left.min(BUFFER_BYTES))
}

/// Moves `len_bytes` from `file` to the device.
pub(crate) fn upload(
    file: impl Read + Send + 'static,
    device: &Device,
    address: DeviceAddress,
    len_bytes: u64,
) -> Result<Moved, PipelineError> {
    let start = Instant::now();
    let mut on_device = Duration::ZERO;
    let sha256 = from_file(file, len_bytes, |offset, bytes| {
        let call = Instant::now();
        device.write(at(address, offset), bytes)?;
        on_device += call.elapsed();
        Ok(())
    })?;
    Ok(Moved { sha256, elapsed: start.elapsed(), on_device })
}

/// The offset of the first byte of the device that is not the one in `file`, and the digest of the file, if all are
/// the same.
pub(crate) fn compare(
    file: impl Read + Send + 'static,
    device: &Device,
    address: DeviceAddress,
    len_bytes: u64,
) -> Result<Result<Moved, u64>, PipelineError> {
    let start = Instant::now();
    let mut on_device = Duration::ZERO;
    let mut buffer = PageBuffer::new(next_len(len_bytes));
    let mut difference = None;
    let sha256 = from_file(file, len_bytes, |offset, bytes| {
        if difference.is_some() {
            return Ok(());
        }
        buffer.resize(bytes.len());
        let call = Instant::now();
        device.read(at(address, offset), buffer.bytes_mut())?;
        on_device += call.elapsed();
        difference = first_difference(buffer.bytes(), bytes).map(|index| offset.saturating_add(index));
        Ok(())
    })?;
    Ok(match difference {
        Some(offset) => Err(offset),
        None => Ok(Moved { sha256, elapsed: start.elapsed(), on_device }),
    })
}

fn first_difference(one: &[u8], other: &[u8]) -> Option<u64> {
    if one == other {
        return None;
    }
    let equal = one.iter().zip(other).take_while(|(one, other)| one == other).count();
    Some(equal as u64)
}

/// Reads `len_bytes` from `file` on a thread, and hands them on in order. Ends at once when `each` fails; the thread is
/// then left to itself, because it may be waiting for a pipe.
fn from_file(
    mut file: impl Read + Send + 'static,
    len_bytes: u64,
    mut each: impl FnMut(u64, &[u8]) -> Result<(), PipelineError>,
) -> Result<Digest, PipelineError> {
    let (full, filled) = sync_channel::<PageBuffer>(BUFFERS);
    let (empty, emptied) = buffers(len_bytes);
    let reader = spawn("file-reader", move || {
        let mut hash = Sha256::new();
        let mut done = 0u64;
        while done < len_bytes {
            let Ok(mut buffer) = emptied.recv() else { break };
            buffer.resize(next_len(len_bytes.saturating_sub(done)));
            let len = read_full(&mut file, buffer.bytes_mut()).map_err(PipelineError::Read)?;
            if len < buffer.bytes().len() {
                let found_bytes = done.saturating_add(len as u64);
                return Err(PipelineError::Short { found_bytes, wanted_bytes: len_bytes });
            }
            hash.update(buffer.bytes());
            done = done.saturating_add(len as u64);
            if full.send(buffer).is_err() {
                break;
            }
        }
        Ok(Digest(hash.finalize().into()))
    })?;
    let mut offset = 0u64;
    for buffer in filled {
        each(offset, buffer.bytes())?;
        offset = offset.saturating_add(buffer.bytes().len() as u64);
        // The reader may have read everything and be gone.
        let _ = empty.send(buffer);
    }
    join(reader)
}

/// Moves `len_bytes` from the device to `file`, on a thread. Returns the file too.
pub(crate) fn download<W: Write + Send + 'static>(
    device: &Device,
    address: DeviceAddress,
    len_bytes: u64,
    mut file: W,
) -> Result<(Moved, W), PipelineError> {
    let start = Instant::now();
    let (full, filled) = sync_channel::<PageBuffer>(BUFFERS);
    let (empty, emptied) = buffers(len_bytes);
    let writer = spawn("file-writer", move || {
        let mut hash = Sha256::new();
        for buffer in filled {
            hash.update(buffer.bytes());
            file.write_all(buffer.bytes()).map_err(PipelineError::Write)?;
            // The device may have given everything and be done.
            let _ = empty.send(buffer);
        }
        file.flush().map_err(PipelineError::Write)?;
        Ok((Digest(hash.finalize().into()), file))
    })?;
    let mut offset = 0u64;
    let mut on_device = Duration::ZERO;
    while offset < len_bytes {
        // When the writer is gone, joining it says why.
        let Ok(mut buffer) = emptied.recv() else { break };
        buffer.resize(next_len(len_bytes.saturating_sub(offset)));
        let call = Instant::now();
        device.read(at(address, offset), buffer.bytes_mut())?;
        on_device += call.elapsed();
        offset = offset.saturating_add(buffer.bytes().len() as u64);
        if full.send(buffer).is_err() {
            break;
        }
    }
    drop(full);
    let (sha256, file) = join(writer)?;
    Ok((Moved { sha256, elapsed: start.elapsed(), on_device }, file))
}

/// Empty buffers, no larger than needed, and the way back for them.
fn buffers(len_bytes: u64) -> (SyncSender<PageBuffer>, Receiver<PageBuffer>) {
    let (sender, receiver) = sync_channel(BUFFERS);
    for _ in 0..BUFFERS {
        // There is room for all, and the receiver is here.
        let _ = sender.send(PageBuffer::new(next_len(len_bytes)));
    }
    (sender, receiver)
}

type Task<T> = JoinHandle<Result<T, PipelineError>>;

fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> Result<T, PipelineError> + Send + 'static,
) -> Result<Task<T>, PipelineError> {
    thread::Builder::new().name(name.to_owned()).spawn(body).map_err(PipelineError::Thread)
}

fn join<T>(task: Task<T>) -> Result<T, PipelineError> {
    task.join().unwrap_or(Err(PipelineError::Broken))
}

/// The address of a byte of an allocation. One past the address space is in no allocation, and the device says so.
fn at(address: DeviceAddress, offset_bytes: u64) -> DeviceAddress {
    address.checked_add(offset_bytes).unwrap_or(DeviceAddress(u64::MAX))
}

/// Reads until the buffer is full or the file ends; returns how many bytes.
fn read_full(file: &mut impl Read, mut buffer: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while !buffer.is_empty() {
        match file.read(buffer) {
            Ok(0) => break,
            Ok(len) => {
                done += len;
                buffer = buffer.get_mut(len..).unwrap_or(&mut []);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Gives its bytes in pieces of a given size.
    struct Dripping {
        bytes: Vec<u8>,
        done: usize,
        piece: usize,
    }

    impl Read for Dripping {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let len = buffer.len().min(self.piece).min(self.bytes.len() - self.done);
            buffer[..len].copy_from_slice(&self.bytes[self.done..self.done + len]);
            self.done += len;
            Ok(len)
        }
    }

    #[test]
    fn page_buffer_begins_on_a_page() {
        let buffer = PageBuffer::new(10_000);

        assert_eq!(buffer.bytes().len(), 10_000);
        assert_eq!(buffer.bytes().as_ptr() as usize % PAGE_BYTES, 0);
    }

    #[test]
    fn from_file_larger_than_the_buffers_hands_on_each_byte_once() {
        let bytes: Vec<u8> = (0..BUFFER_BYTES * 3 + 17).map(|index| (index / 251) as u8).collect();
        let file = Dripping { bytes: bytes.clone(), done: 0, piece: 1 << 20 };
        let mut seen = Vec::new();

        let sha256 = from_file(file, bytes.len() as u64, |offset, piece| {
            assert_eq!(offset, seen.len() as u64);
            seen.extend_from_slice(piece);
            Ok(())
        })
        .unwrap();

        assert!(seen == bytes);
        assert_eq!(sha256, Digest(Sha256::digest(&bytes).into()));
    }

    #[test]
    fn from_file_that_ends_early_says_after_how_many_bytes() {
        let file = Dripping { bytes: vec![1; 100], done: 0, piece: 7 };

        let error = from_file(file, 101, |_, _| Ok(())).unwrap_err();

        assert!(matches!(error, PipelineError::Short { found_bytes: 100, wanted_bytes: 101 }), "{error}");
    }

    #[test]
    fn from_file_whose_bytes_are_refused_ends_without_waiting_for_the_file() {
        let (reader, _writer) = io::pipe().unwrap();
        let endless = io::Cursor::new(vec![0; BUFFER_BYTES]).chain(reader);

        let error = from_file(endless, u64::MAX, |_, _| Err(PipelineError::Broken)).unwrap_err();

        assert!(matches!(error, PipelineError::Broken));
    }

    proptest! {
        #[test]
        fn read_full_in_any_pieces_reads_all(len in 0usize..300, piece in 1usize..50, room in 0usize..400) {
            let bytes: Vec<u8> = (0..len).map(|index| index as u8).collect();
            let mut file = Dripping { bytes: bytes.clone(), done: 0, piece };
            let mut buffer = vec![0; room];

            let got = read_full(&mut file, &mut buffer).unwrap();

            prop_assert_eq!(got, len.min(room));
            prop_assert_eq!(&buffer[..got], &bytes[..got]);
        }

        #[test]
        fn first_difference_is_the_first(mut bytes in prop::collection::vec(any::<u8>(), 1..200), index: prop::sample::Index) {
            let original = bytes.clone();
            prop_assert_eq!(first_difference(&bytes, &original), None);
            let index = index.index(bytes.len());
            bytes[index] ^= 1;
            prop_assert_eq!(first_difference(&bytes, &original), Some(index as u64));
        }
    }
}
