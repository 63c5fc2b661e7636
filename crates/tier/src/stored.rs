//! The handle of a region that is put away.

use std::fmt;
use std::sync::Arc;

use vram_guest_memory::HostSlot;

use crate::Pattern;
use crate::chunk::ChunkHead;
use crate::medium::Piece;
use crate::meter::Counters;
use crate::store::StoreId;

/// A region in a tier: where its bytes are and how to know them. Small, and nothing at all for a region of one
/// pattern. Dropping it frees the room; [`Store::remove`](crate::Store::remove) also says how that went.
pub struct Stored {
    pub(crate) store: StoreId,
    pub(crate) body: Body,
    presence: Presence,
}

/// Where the bytes are.
pub(crate) enum Body {
    /// Nowhere: they are this pattern.
    Uniform(Pattern),
    /// In a slot.
    Slot(HostSlot),
    /// In chunks.
    Chunks(ChunkTable),
}

/// The chunks of a region, in order.
pub(crate) struct ChunkTable {
    pub(crate) chunk_bytes: u32,
    pub(crate) chunks: Box<[Chunk]>,
    pub(crate) segments: Vec<Piece>,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Chunk {
    /// Takes no room.
    Pattern(Pattern),
    /// Lies in a segment.
    Stored { head: ChunkHead, segment: u32, offset: u32 },
}

/// A run of bytes of a region that repeats a pattern and is stored nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatternRun {
    /// First byte.
    pub offset_bytes: u64,
    /// Bytes.
    pub len_bytes: u64,
    /// What it repeats.
    pub pattern: Pattern,
}

/// Keeps a region counted while it is held.
struct Presence {
    counters: Arc<Counters>,
    len_bytes: u64,
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.counters.leave(self.len_bytes);
    }
}

impl Stored {
    pub(crate) fn new(store: StoreId, len_bytes: u64, body: Body, counters: &Arc<Counters>) -> Self {
        counters.enter(len_bytes);
        Self { store, body, presence: Presence { counters: Arc::clone(counters), len_bytes } }
    }

    /// Bytes of the region.
    pub fn len_bytes(&self) -> u64 {
        self.presence.len_bytes
    }

    /// The pattern the whole region repeats, if it takes no room at all.
    pub fn uniform(&self) -> Option<Pattern> {
        match &self.body {
            Body::Uniform(pattern) => Some(*pattern),
            Body::Slot(_) | Body::Chunks(_) => None,
        }
    }

    /// The runs of patterns in it, which a GPU fills faster than they are copied. Runs of one pattern that follow
    /// each other are one run.
    pub fn pattern_runs(&self) -> Vec<PatternRun> {
        let region_bytes = self.len_bytes();
        let table = match &self.body {
            Body::Uniform(pattern) => {
                return vec![PatternRun { offset_bytes: 0, len_bytes: region_bytes, pattern: *pattern }];
            }
            Body::Slot(_) => return Vec::new(),
            Body::Chunks(table) => table,
        };
        let mut runs: Vec<PatternRun> = Vec::new();
        let mut offset_bytes = 0u64;
        for chunk in &table.chunks {
            let len_bytes = region_bytes.saturating_sub(offset_bytes).min(u64::from(table.chunk_bytes));
            if let Chunk::Pattern(pattern) = *chunk {
                match runs.last_mut() {
                    Some(run)
                        if run.pattern == pattern
                            && run.offset_bytes.saturating_add(run.len_bytes) == offset_bytes =>
                    {
                        run.len_bytes = run.len_bytes.saturating_add(len_bytes);
                    }
                    _ => runs.push(PatternRun { offset_bytes, len_bytes, pattern }),
                }
            }
            offset_bytes = offset_bytes.saturating_add(len_bytes);
        }
        runs
    }
}

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stored").field("len_bytes", &self.len_bytes()).finish_non_exhaustive()
    }
}
