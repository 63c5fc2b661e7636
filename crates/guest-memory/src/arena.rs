//! An arena of equal slots in shared memory of our own, for bytes that wait in host RAM.
//!
//! The memory is a memfd, sealed in its size: it can be registered with a GPU as one piece ([`HostArena::span`]),
//! copied into and out of directly, and handed to another process. A slot comes back when its [`HostSlot`] and every
//! span made of it are gone, so a copy that is still under way can never meet the slot's next owner; and it is zeroed
//! before it is given out again.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::span::{HostSpan, Mapping};

/// Slots are whole pieces of this, which is a huge page.
const SLOT_UNIT_BYTES: u64 = 2 << 20;

/// What an arena is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaSpec {
    /// Bytes of a slot, a multiple of 2 MiB.
    pub slot_bytes: u64,
    /// Number of slots.
    pub slots: u32,
    /// Takes all the memory now. Without it pages come at first use, and a host that has none left by then ends the
    /// process.
    pub preallocate: bool,
    /// Asks for 2 MiB pages of the host's reserve, and does with ordinary ones if there are too few.
    pub huge_pages: bool,
}

/// Why an arena cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// The slots are no whole pages, there are none, or all together are more than an address space holds.
    #[error(
        "{slots} slots of {slot_bytes} bytes make no arena; take multiples of 2 MiB, at least one slot, and fewer \
         bytes than this machine can address"
    )]
    Layout {
        /// Bytes of a slot.
        slot_bytes: u64,
        /// Number of slots.
        slots: u32,
    },
    /// The host has not that much memory.
    #[error("The host has no {len_bytes} bytes of memory for the arena; make it smaller")]
    NoMemory {
        /// Bytes of all slots.
        len_bytes: u64,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A memory file cannot be made or sealed.
    #[error("A memory file for the arena cannot be made")]
    File(#[source] io::Error),
}

/// Slots of memory. Clones are the same arena; its memory lives as long as any of them, a slot, or a span.
#[derive(Clone)]
pub struct HostArena {
    memory: Arc<ArenaMemory>,
}

struct ArenaMemory {
    file: File,
    start: *mut u8,
    len: usize,
    slot_len: usize,
    slots: u32,
    huge_pages: bool,
    free: Mutex<Free>,
}

/// Free slots by number.
#[derive(Default)]
struct Free {
    zeroed: Vec<u32>,
    dirty: Vec<u32>,
}

// SAFETY: the mapping belongs to this value alone, its address never changes, and all access is by raw copies.
unsafe impl Send for ArenaMemory {}
// SAFETY: as above; which slots are free is behind a lock.
unsafe impl Sync for ArenaMemory {}

// SAFETY: `start` and `len` describe a mapping made in `HostArena::new`, of a file whose size is sealed, and unmapped
// only in `drop`.
unsafe impl Mapping for ArenaMemory {
    fn start(&self) -> *mut u8 {
        self.start
    }
    fn len(&self) -> usize {
        self.len
    }
}

impl Drop for ArenaMemory {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `HostArena::new` and nobody else unmaps it.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

impl ArenaMemory {
    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bytes_of_a_slot(&self) -> usize {
        self.slot_len
    }

    fn slot_start(&self, index: u32) -> *mut u8 {
        // Within the mapping, whose length is that of all slots.
        self.start.wrapping_add(self.slot_len.wrapping_mul(index as usize))
    }

    fn zero(&self, index: u32) {
        // SAFETY: the slot lies in the mapping, and the caller has taken it from the free ones, so that nobody else
        // reads or writes it.
        unsafe { std::ptr::write_bytes(self.slot_start(index), 0, self.slot_len) };
    }
}

/// The bytes of one slot, in use.
struct SlotMemory {
    arena: Arc<ArenaMemory>,
    index: u32,
}

// SAFETY: a slot is a part of its arena's mapping, which it keeps alive.
unsafe impl Mapping for SlotMemory {
    fn start(&self) -> *mut u8 {
        self.arena.slot_start(self.index)
    }
    fn len(&self) -> usize {
        self.arena.bytes_of_a_slot()
    }
}

impl Drop for SlotMemory {
    fn drop(&mut self) {
        self.arena.free().dirty.push(self.index);
    }
}

/// A slot in use. It is free again once this and every span made of it are dropped.
pub struct HostSlot {
    memory: Arc<SlotMemory>,
}

impl HostSlot {
    /// The slot's bytes.
    pub fn span(&self) -> HostSpan {
        let mapping: Arc<dyn Mapping> = Arc::<SlotMemory>::clone(&self.memory);
        whole(mapping)
    }

    /// Whether it is a slot of this arena.
    pub fn is_of(&self, arena: &HostArena) -> bool {
        Arc::ptr_eq(&self.memory.arena, &arena.memory)
    }
}

impl std::fmt::Debug for HostSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostSlot").field("index", &self.memory.index).finish_non_exhaustive()
    }
}

impl HostArena {
    /// Maps the memory. All of it is zeros.
    pub fn new(spec: ArenaSpec) -> Result<Self, ArenaError> {
        let ArenaSpec { slot_bytes, slots, .. } = spec;
        let layout = || ArenaError::Layout { slot_bytes, slots };
        let len_bytes = slot_bytes.checked_mul(u64::from(slots)).ok_or_else(layout)?;
        let mapped_len = isize::try_from(len_bytes).ok().filter(|len| *len > 0).ok_or_else(layout)?;
        let slot_len =
            usize::try_from(slot_bytes).ok().filter(|_| slot_bytes.is_multiple_of(SLOT_UNIT_BYTES));
        let (len, slot_len) = (mapped_len.unsigned_abs(), slot_len.ok_or_else(layout)?);

        let huge = if spec.huge_pages { map(len, libc::MFD_HUGETLB | libc::MFD_HUGE_2MB).ok() } else { None };
        let huge_pages = huge.is_some();
        let (file, start) = match huge {
            Some(made) => made,
            None => map(len, 0).map_err(|error| error.into_arena_error(len_bytes))?,
        };
        let free = Free { zeroed: (0..slots).rev().collect(), dirty: Vec::new() };
        let memory = ArenaMemory { file, start, len, slot_len, slots, huge_pages, free: Mutex::new(free) };
        if spec.preallocate {
            reserve(&memory.file, len_bytes).map_err(|source| ArenaError::NoMemory { len_bytes, source })?;
        }
        Ok(Self { memory: Arc::new(memory) })
    }

    /// A free slot, all zeros; `None` if there is none. Zeroes it first if that has not been done since its last use.
    pub fn take(&self) -> Option<HostSlot> {
        let (index, dirty) = {
            let mut free = self.memory.free();
            match free.zeroed.pop() {
                Some(index) => (index, false),
                None => (free.dirty.pop()?, true),
            }
        };
        if dirty {
            self.memory.zero(index);
        }
        Some(HostSlot { memory: Arc::new(SlotMemory { arena: Arc::clone(&self.memory), index }) })
    }

    /// Zeroes one free slot that still holds what its last owner left; whether there was one. For a thread that has
    /// nothing better to do, so that [`Self::take`] need not.
    pub fn scrub_one(&self) -> bool {
        let Some(index) = self.memory.free().dirty.pop() else { return false };
        self.memory.zero(index);
        self.memory.free().zeroed.push(index);
        true
    }

    /// Free slots, zeroed or not.
    pub fn free_slots(&self) -> u32 {
        let free = self.memory.free();
        u32::try_from(free.zeroed.len().saturating_add(free.dirty.len())).unwrap_or(u32::MAX)
    }

    /// Slots there are.
    pub fn slots(&self) -> u32 {
        self.memory.slots
    }

    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> u64 {
        self.memory.slot_len as u64
    }

    /// Whether the memory lies in huge pages of the host's reserve.
    pub fn huge_pages(&self) -> bool {
        self.memory.huge_pages
    }

    /// All the memory, to be registered with a GPU as one piece. Whose bytes it names is for slots to say.
    pub fn span(&self) -> HostSpan {
        let mapping: Arc<dyn Mapping> = Arc::<ArenaMemory>::clone(&self.memory);
        whole(mapping)
    }

    /// The memory file, for a process that is to keep it.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.memory.file.as_fd()
    }
}

fn whole(mapping: Arc<dyn Mapping>) -> HostSpan {
    let len = mapping.len();
    match HostSpan::new(mapping, 0, len) {
        Ok(span) => span,
        // The range is the mapping itself, so it cannot leave it.
        Err(_) => unreachable!("a whole mapping is a valid span"),
    }
}

enum MapFailure {
    File(io::Error),
    Memory(io::Error),
}

impl MapFailure {
    fn into_arena_error(self, len_bytes: u64) -> ArenaError {
        match self {
            Self::File(source) => ArenaError::File(source),
            Self::Memory(source) => ArenaError::NoMemory { len_bytes, source },
        }
    }
}

/// A memory file of this length, sealed and mapped.
fn map(len: usize, flags: libc::c_uint) -> Result<(File, *mut u8), MapFailure> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | flags;
    // SAFETY: the name is a valid C string and the call returns a new descriptor or an error.
    let fd = unsafe { libc::memfd_create(c"vram-host-tier".as_ptr(), flags) };
    if fd < 0 {
        return Err(MapFailure::File(io::Error::last_os_error()));
    }
    // SAFETY: the descriptor was just made and nobody else owns it.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(len as u64).map_err(MapFailure::Memory)?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: F_ADD_SEALS takes an int and touches no memory of ours.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
        return Err(MapFailure::File(io::Error::last_os_error()));
    }
    // SAFETY: a shared mapping at an address the kernel chooses touches nothing that exists.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(MapFailure::Memory(io::Error::last_os_error()));
    }
    Ok((file, start.cast()))
}

/// Gives the file all its pages.
fn reserve(file: &File, len_bytes: u64) -> io::Result<()> {
    let len = i64::try_from(len_bytes).map_err(io::Error::other)?;
    loop {
        // SAFETY: fallocate takes a descriptor and numbers, and touches no memory of ours.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: u64 = 2 << 20;

    fn arena(slots: u32, preallocate: bool) -> HostArena {
        HostArena::new(ArenaSpec { slot_bytes: SLOT, slots, preallocate, huge_pages: false }).unwrap()
    }

    #[test]
    fn slots_of_an_arena_do_not_overlap_and_run_out() {
        let arena = arena(3, true);
        let slots: Vec<_> = std::iter::from_fn(|| arena.take()).collect();
        assert_eq!(slots.len(), 3);
        let mut starts: Vec<_> = slots.iter().map(|slot| slot.span().as_ptr() as usize).collect();
        starts.sort_unstable();
        assert!(starts.windows(2).all(|pair| pair[1] - pair[0] == SLOT as usize));
        assert!(starts.iter().all(|start| start.is_multiple_of(4096)));
        let whole = arena.span();
        assert_eq!((whole.as_ptr() as usize, whole.len_bytes() as u64), (starts[0], 3 * SLOT));
        drop(slots);
        assert_eq!(arena.free_slots(), 3);
    }

    #[test]
    fn slot_that_a_span_still_names_is_not_given_out_again() {
        let arena = arena(1, false);
        let slot = arena.take().unwrap();
        let span = slot.span().part(4096, 10).unwrap();
        drop(slot);
        assert!(arena.take().is_none());
        drop(span);
        assert!(arena.take().is_some());
    }

    #[test]
    fn slot_given_out_again_is_zeros_scrubbed_ahead_or_not() {
        let arena = arena(1, false);
        for ahead in [true, false] {
            let slot = arena.take().unwrap();
            assert_eq!(slot.span().write_from(&vec![0xaa; SLOT as usize]), SLOT as usize);
            drop(slot);
            assert!(!ahead || arena.scrub_one());
            let mut found = vec![1; SLOT as usize];
            arena.take().unwrap().span().read_into(&mut found);
            assert!(found.iter().all(|byte| *byte == 0));
        }
        assert!(arena.scrub_one() && !arena.scrub_one());
    }

    #[test]
    fn new_of_a_layout_that_cannot_be_is_refused() {
        for (slot_bytes, slots) in [(0, 1), (SLOT, 0), (SLOT + 4096, 1), (1 << 62, 4), (u64::MAX, u32::MAX)] {
            let spec = ArenaSpec { slot_bytes, slots, preallocate: false, huge_pages: false };
            assert!(matches!(HostArena::new(spec), Err(ArenaError::Layout { .. })), "{slot_bytes} {slots}");
        }
    }

    #[test]
    fn huge_pages_that_are_missing_are_done_without() {
        let spec = ArenaSpec { slot_bytes: SLOT, slots: 1, preallocate: true, huge_pages: true };
        let arena = HostArena::new(spec).unwrap();
        // Whichever it is, the memory is there.
        assert_eq!(arena.take().unwrap().span().write_from(&[7; 100]), 100);
    }
}
