//! Failures, damage and slowness on purpose, for tests here and elsewhere.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::medium::{Medium, Piece, ReadFailure};
use crate::{TierError, TierKind};

/// The faults of one store. Clones act on the same store; every method takes effect for what begins from now on and
/// may be called from any thread.
///
/// What is counted are the store's dealings with what lies below it, one for each segment of some mebibytes, or each
/// chunk in memory; in the host tier, which has nothing below it, puts and gets, and what is damaged or cut there is
/// nothing. Patterns, which are stored nowhere, are not counted elsewhere.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    writes: Counted,
    reads: Counted,
    removes: Counted,
    damage_writes: Vec<u64>,
    damage_reads: Vec<u64>,
    cut_reads: Vec<u64>,
    full: bool,
    delay: Duration,
}

/// How often something was done, and which times of it fail.
#[derive(Debug, Default)]
struct Counted {
    done: u64,
    fails: Vec<u64>,
}

impl Counted {
    fn fail(&mut self, nth: u64) {
        self.fails.push(self.done.saturating_add(nth));
    }

    fn count(&mut self) -> bool {
        self.done = self.done.saturating_add(1);
        let fails = self.fails.contains(&self.done);
        self.fails.retain(|nth| *nth > self.done);
        fails
    }
}

impl Faults {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The `nth` write from now on (1 is the next) fails after the bytes have got there.
    pub fn fail_write(&self, nth: u64) {
        self.state().writes.fail(nth);
    }

    /// The `nth` read from now on fails.
    pub fn fail_read(&self, nth: u64) {
        self.state().reads.fail(nth);
    }

    /// The `nth` removal from now on fails, having removed what it was to remove.
    pub fn fail_remove(&self, nth: u64) {
        self.state().removes.fail(nth);
    }

    /// The `nth` write from now on keeps other bytes than it was given, and says nothing.
    pub fn damage_write(&self, nth: u64) {
        let mut state = self.state();
        let number = state.writes.done.saturating_add(nth);
        state.damage_writes.push(number);
    }

    /// The `nth` read from now on brings other bytes than are kept.
    pub fn damage_read(&self, nth: u64) {
        let mut state = self.state();
        let number = state.reads.done.saturating_add(nth);
        state.damage_reads.push(number);
    }

    /// The `nth` read from now on meets fewer bytes than were kept.
    pub fn cut_read(&self, nth: u64) {
        let mut state = self.state();
        let number = state.reads.done.saturating_add(nth);
        state.cut_reads.push(number);
    }

    /// Whether what lies below has no room for anything.
    pub fn fill_up(&self, full: bool) {
        self.state().full = full;
    }

    /// Every write and read takes this much longer.
    pub fn delay(&self, delay: Duration) {
        self.state().delay = delay;
    }

    /// Takes back every fault that has not happened.
    pub fn clear(&self) {
        let mut state = self.state();
        let (writes, reads, removes) = (state.writes.done, state.reads.done, state.removes.done);
        *state = State::default();
        (state.writes.done, state.reads.done, state.removes.done) = (writes, reads, removes);
    }

    /// Writes so far.
    pub fn writes(&self) -> u64 {
        self.state().writes.done
    }

    /// Reads so far.
    pub fn reads(&self) -> u64 {
        self.state().reads.done
    }

    pub(crate) fn on_write(&self, tier: TierKind) -> Result<Doom, TierError> {
        let (doom, full, delay) = {
            let mut state = self.state();
            let fails = state.writes.count();
            let number = state.writes.done;
            let damaged = state.damage_writes.contains(&number);
            state.damage_writes.retain(|nth| *nth > number);
            (Doom { fails, damaged, cut: false }, state.full, state.delay)
        };
        std::thread::sleep(delay);
        if full {
            let source = io::ErrorKind::StorageFull.into();
            return Err(TierError::NoRoomBelow { tier, source });
        }
        Ok(doom)
    }

    pub(crate) fn on_read(&self) -> Doom {
        let (doom, delay) = {
            let mut state = self.state();
            let fails = state.reads.count();
            let number = state.reads.done;
            let damaged = state.damage_reads.contains(&number);
            let cut = state.cut_reads.contains(&number);
            state.damage_reads.retain(|nth| *nth > number);
            state.cut_reads.retain(|nth| *nth > number);
            (Doom { fails, damaged, cut }, state.delay)
        };
        std::thread::sleep(delay);
        doom
    }

    fn on_remove(&self) -> bool {
        self.state().removes.count()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one write or read is in for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Doom {
    pub(crate) fails: bool,
    damaged: bool,
    cut: bool,
}

/// The error of what fails on purpose.
pub(crate) fn on_purpose(tier: TierKind, action: &'static str) -> TierError {
    TierError::Io { tier, action, source: io::Error::other("it fails on purpose") }
}

/// A medium with faults.
pub(crate) struct FaultyMedium {
    inner: Box<dyn Medium>,
    faults: Faults,
}

impl FaultyMedium {
    pub(crate) fn new(inner: Box<dyn Medium>, faults: Faults) -> Self {
        Self { inner, faults }
    }
}

fn damage(bytes: &mut [u8]) {
    // The first byte is never padding.
    if let Some(first) = bytes.first_mut() {
        *first ^= 0x40;
    }
}

impl Medium for FaultyMedium {
    fn kind(&self) -> TierKind {
        self.inner.kind()
    }

    fn unit_bytes(&self) -> usize {
        self.inner.unit_bytes()
    }

    fn segment_bytes(&self) -> usize {
        self.inner.segment_bytes()
    }

    fn write(&self, bytes: &[u8]) -> Result<Piece, TierError> {
        let doom = self.faults.on_write(self.kind())?;
        let piece = if doom.damaged {
            let mut buffer = crate::aligned::AlignedBuffer::new(bytes.len());
            let copy = buffer.bytes().get_mut(..bytes.len()).unwrap_or_default();
            copy.copy_from_slice(bytes);
            damage(copy);
            self.inner.write(copy)?
        } else {
            self.inner.write(bytes)?
        };
        if doom.fails { Err(on_purpose(self.kind(), "write")) } else { Ok(piece) }
    }

    fn read(&self, piece: &Piece, offset: usize, out: &mut [u8]) -> Result<(), ReadFailure> {
        let doom = self.faults.on_read();
        if doom.fails {
            return Err(on_purpose(self.kind(), "read").into());
        }
        if doom.cut {
            return Err(ReadFailure::Short);
        }
        self.inner.read(piece, offset, out)?;
        if doom.damaged {
            damage(out);
        }
        Ok(())
    }

    fn remove(&self, piece: Piece) -> Result<(), TierError> {
        let fails = self.faults.on_remove();
        self.inner.remove(piece)?;
        if fails { Err(on_purpose(self.kind(), "remove")) } else { Ok(()) }
    }

    fn stored_bytes(&self) -> u64 {
        self.inner.stored_bytes()
    }

    fn limit_bytes(&self) -> Option<u64> {
        self.inner.limit_bytes()
    }

    fn is_link(&self) -> bool {
        self.inner.is_link()
    }

    fn close(&self) -> Result<(), TierError> {
        self.inner.close()
    }
}
