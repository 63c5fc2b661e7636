//! The tiers that keep regions in coded chunks: compressed RAM, disk, server.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use vram_guest_memory::HostSpan;

use crate::aligned::AlignedBuffer;
use crate::chunk::{Bench, ChunkHead, Coding, Damage, Format};
use crate::codec::max_coded_len;
use crate::config::{CHUNK_BYTES, CodecConfig, MAX_REGION_BYTES};
use crate::disk::DiskMedium;
use crate::faults::{Faults, FaultyMedium};
use crate::host::fill_span;
use crate::judge::{Judge, Verdict};
use crate::medium::{Medium, Piece, ReadFailure, Trial};
use crate::memory::MemoryMedium;
use crate::meter::Counters;
use crate::remote::RemoteMedium;
use crate::sample::Sample;
use crate::seal::{Sealer, random_bytes};
use crate::store::StoreId;
use crate::stored::{Body, Chunk, ChunkTable};
use crate::{
    CompressedConfig, DiskConfig, LinkSpeed, Meter, OpenError, Pattern, RemoteConfig, Store, Stored,
    TierError, TierKind,
};

/// Rooms for work that are kept when nobody uses them; more are made while more threads are at it.
const IDLE_ROOMS: usize = 8;

/// Chunks that are looked at before a region is compressed that might be refused.
const LOOKS: u64 = 4;

/// Chunks coded like the one before them until one is looked at again.
const HABIT_CHUNKS: u32 = 7;

/// Two ratios that differ by less than this factor are of chunks that are alike.
const ALIKE: f64 = 1.1;

/// Writes and reads of fewer bytes say how long a link takes to answer, and not how fast it is.
const LINK_BYTES: usize = 256 << 10;

/// What a chunked store is to be.
#[derive(Clone, Debug, PartialEq)]
pub enum TierConfig {
    /// In host RAM.
    Compressed(CompressedConfig),
    /// On a local disk.
    Disk(DiskConfig),
    /// On a server.
    Remote(RemoteConfig),
}

/// A tier of coded chunks.
pub struct ChunkedStore {
    id: StoreId,
    medium: Box<dyn Medium>,
    format: Format,
    judge: Judge,
    chunk_bytes: usize,
    /// Regions that shrink less are refused.
    min_ratio: Option<f64>,
    counters: Arc<Counters>,
    rooms: Mutex<Vec<Room>>,
}

/// What one thread needs to code chunks.
struct Room {
    bench: Bench,
    sample: Sample,
    segment: AlignedBuffer,
}

/// Settings all kinds have.
struct Common {
    codec: CodecConfig,
    chunk_bytes: u32,
    encrypt: bool,
    min_ratio: Option<f64>,
}

impl ChunkedStore {
    /// Opens a store, tries what lies below it, and measures its speed and the codecs'. Blocks meanwhile.
    pub fn open(config: &TierConfig) -> Result<Self, OpenError> {
        Self::open_medium(config, |medium| medium)
    }

    /// Opens a store that fails on purpose once it is open.
    pub fn open_with_faults(config: &TierConfig, faults: Faults) -> Result<Self, OpenError> {
        Self::open_medium(config, |medium| Box::new(FaultyMedium::new(medium, faults)))
    }

    fn open_medium(
        config: &TierConfig,
        wrap: impl FnOnce(Box<dyn Medium>) -> Box<dyn Medium>,
    ) -> Result<Self, OpenError> {
        match config {
            TierConfig::Compressed(CompressedConfig { bytes, min_ratio, codec, chunk_bytes }) => {
                let (codec, chunk_bytes) = (*codec, *chunk_bytes);
                let common = Common { codec, chunk_bytes, encrypt: false, min_ratio: Some(*min_ratio) };
                Self::new(wrap(Box::new(MemoryMedium::new(*bytes))), &common, None)
            }
            TierConfig::Disk(config) => {
                let DiskConfig { codec, chunk_bytes, encrypt, .. } = *config;
                let common = Common { codec, chunk_bytes, encrypt, min_ratio: None };
                let (medium, trial) = DiskMedium::open(config)?;
                Self::new(wrap(Box::new(medium)), &common, Some(trial))
            }
            TierConfig::Remote(config) => {
                let RemoteConfig { codec, chunk_bytes, encrypt, .. } = *config;
                let common = Common { codec, chunk_bytes, encrypt, min_ratio: None };
                let (medium, trial) = RemoteMedium::open(config)?;
                Self::new(wrap(Box::new(medium)), &common, Some(trial))
            }
        }
    }

    fn new(medium: Box<dyn Medium>, common: &Common, trial: Option<Trial>) -> Result<Self, OpenError> {
        let tier = medium.kind();
        if !CHUNK_BYTES.contains(&common.chunk_bytes) || !common.chunk_bytes.is_power_of_two() {
            return Err(OpenError::BadConfig {
                tier,
                what: "a chunk size of",
                value: common.chunk_bytes.into(),
                allowed: "a power of two from 4 KiB to 16 MiB",
            });
        }
        let unknown = |source| OpenError::NoRandomness { tier, source };
        let sealer = if common.encrypt { Some(Sealer::new().map_err(unknown)?) } else { None };
        let format = Format { seed: u64::from_le_bytes(random_bytes().map_err(unknown)?), sealer };
        let judge = Judge::new(common.codec, medium.is_link(), tier)?;
        judge.calibrate(&format);
        if let Some(trial) = trial {
            judge.note_written(trial.bytes, trial.write);
            judge.note_read(trial.bytes, trial.read);
        }
        Ok(Self {
            id: StoreId::next(),
            medium,
            format,
            judge,
            chunk_bytes: common.chunk_bytes as usize,
            min_ratio: common.min_ratio,
            counters: Arc::default(),
            rooms: Mutex::default(),
        })
    }

    /// How fast what lies below is, as one thread sees it: measured at the opening, then kept up. None in memory, and
    /// where compression does not depend on it.
    pub fn link_speed(&self) -> Option<LinkSpeed> {
        self.judge.link_speed()
    }

    /// Whether the store compresses at all, with the speeds as they are now.
    pub fn may_compress(&self) -> bool {
        self.judge.may_code()
    }

    fn put_region(&self, room: &mut Room, from: &HostSpan) -> Result<Stored, TierError> {
        let tier = self.medium.kind();
        let region = from.len_bytes();
        let len_bytes = region as u64;
        if region == 0 || len_bytes > MAX_REGION_BYTES {
            return Err(TierError::BadLength { tier, len_bytes, max_bytes: MAX_REGION_BYTES });
        }
        self.refuse_early(room, from)?;
        let most_bytes = self.min_ratio.map_or(f64::INFINITY, |ratio| len_bytes as f64 / ratio);
        let mut packer = Packer::new(self, region.div_ceil(self.chunk_bytes));
        for offset in (0..region).step_by(self.chunk_bytes) {
            let len = load(&mut room.bench, from, offset, self.chunk_bytes);
            packer.pack(room, len)?;
            if packer.stored_bytes as f64 > most_bytes {
                return Err(TierError::Incompressible { tier, len_bytes, stored_bytes: packer.stored_bytes });
            }
        }
        packer.finish(room, len_bytes)
    }

    /// Refuses a region of which a few chunks already say that it will not shrink.
    fn refuse_early(&self, room: &mut Room, from: &HostSpan) -> Result<(), TierError> {
        let Some(min_ratio) = self.min_ratio else { return Ok(()) };
        let region = from.len_bytes();
        let chunks = region.div_ceil(self.chunk_bytes) as u64;
        if chunks <= LOOKS {
            return Ok(());
        }
        let (mut raw, mut stored) = (0usize, 0f64);
        for look in 0..LOOKS {
            let chunk = usize::try_from(chunks.saturating_mul(look) / LOOKS).unwrap_or_default();
            let offset = chunk.saturating_mul(self.chunk_bytes);
            let len = load(&mut room.bench, from, offset, self.chunk_bytes);
            raw = raw.saturating_add(len);
            if Pattern::of(room.bench.raw.get(..len).unwrap_or_default()).is_none() {
                stored += len as f64 / self.judge.judge(&mut room.bench, len, &mut room.sample).ratio;
            }
        }
        // The few may be worse than the rest: only what is clearly too much is refused by them.
        if stored * min_ratio > raw as f64 * 1.1 {
            let stored_bytes = (stored / raw as f64 * region as f64) as u64;
            let (tier, len_bytes) = (self.medium.kind(), region as u64);
            return Err(TierError::Incompressible { tier, len_bytes, stored_bytes });
        }
        Ok(())
    }

    fn get_region(
        &self,
        room: &mut Room,
        stored: &Stored,
        offset_bytes: u64,
        to: &HostSpan,
    ) -> Result<(), TierError> {
        let tier = self.medium.kind();
        if stored.store != self.id {
            return Err(TierError::ForeignHandle { tier });
        }
        let (len_bytes, region_bytes) = (to.len_bytes() as u64, stored.len_bytes());
        if offset_bytes.checked_add(len_bytes).is_none_or(|end| end > region_bytes) {
            return Err(TierError::OutOfRange { offset_bytes, len_bytes, region_bytes });
        }
        match &stored.body {
            Body::Uniform(pattern) => {
                fill_span(*pattern, offset_bytes, to);
                Ok(())
            }
            Body::Slot(_) => Err(TierError::ForeignHandle { tier }),
            Body::Chunks(table) => {
                let offset = usize::try_from(offset_bytes).unwrap_or(usize::MAX);
                Reader { store: self, table, region: usize::try_from(region_bytes).unwrap_or(0), offset, to }
                    .read(room)
            }
        }
    }

    fn with_room<T>(&self, work: impl FnOnce(&mut Room) -> T) -> T {
        let idle = self.rooms.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut room = idle.unwrap_or_else(|| {
            // A segment is flushed before a chunk could leave no room for the next.
            let segment = self.medium.segment_bytes().max(self.chunk_bytes);
            let most = segment.saturating_add(max_coded_len(self.chunk_bytes));
            Room {
                bench: Bench::new(self.chunk_bytes),
                sample: Sample::new(),
                segment: AlignedBuffer::new(most.saturating_add(self.medium.unit_bytes())),
            }
        });
        let done = work(&mut room);
        let mut rooms = self.rooms.lock().unwrap_or_else(PoisonError::into_inner);
        if rooms.len() < IDLE_ROOMS {
            rooms.push(room);
        }
        done
    }
}

impl Store for ChunkedStore {
    fn kind(&self) -> TierKind {
        self.medium.kind()
    }

    fn put(&self, from: &HostSpan) -> Result<Stored, TierError> {
        let started = Instant::now();
        let result = self.with_room(|room| self.put_region(room, from));
        self.counters.note_put(&result, from.len_bytes() as u64, started.elapsed());
        result
    }

    fn get(&self, stored: &Stored, offset_bytes: u64, to: &HostSpan) -> Result<(), TierError> {
        let started = Instant::now();
        let result = self.with_room(|room| self.get_region(room, stored, offset_bytes, to));
        self.counters.note_get(&result, to.len_bytes() as u64, started.elapsed());
        result
    }

    fn remove(&self, mut stored: Stored) -> Result<(), TierError> {
        let mut result = Ok(());
        if stored.store != self.id {
            result = Err(TierError::ForeignHandle { tier: self.medium.kind() });
        } else if let Body::Chunks(table) = &mut stored.body {
            for piece in std::mem::take(&mut table.segments) {
                if let Err(error) = self.medium.remove(piece)
                    && result.is_ok()
                {
                    result = Err(error);
                }
            }
        }
        self.counters.note_remove(&result);
        result
    }

    fn meter(&self) -> Meter {
        self.counters.read(self.medium.stored_bytes(), self.medium.limit_bytes())
    }

    fn close(&self) -> Result<(), TierError> {
        self.medium.close()
    }
}

/// Puts a chunk's raw bytes on the bench; how many there are.
fn load(bench: &mut Bench, from: &HostSpan, offset: usize, chunk_bytes: usize) -> usize {
    let len = chunk_bytes.min(from.len_bytes().saturating_sub(offset));
    match (from.part(offset, len), bench.raw.get_mut(..len)) {
        (Ok(part), Some(raw)) => part.read_into(raw),
        // The chunk lies in the span and the bench is as long as a chunk.
        _ => 0,
    }
}

/// Codes the chunks of one region, in order, and writes them in segments.
struct Packer<'a> {
    store: &'a ChunkedStore,
    chunks: Vec<Chunk>,
    segments: Vec<Piece>,
    /// Bytes of the segment that is being filled.
    used: usize,
    stored_bytes: u64,
    patterns: u64,
    coded: u64,
    habit: Option<Habit>,
}

/// The coding of the chunk before, which is used again as long as it does as well: neighbours are mostly alike, and
/// looking costs time.
struct Habit {
    verdict: Verdict,
    /// What it did for the chunk that was looked at.
    ratio: f64,
    /// Chunks until the next look.
    left: u32,
}

fn ratio_of(head: &ChunkHead) -> f64 {
    f64::from(head.raw_bytes) / f64::from(head.stored_bytes.max(1))
}

impl<'a> Packer<'a> {
    fn new(store: &'a ChunkedStore, chunks: usize) -> Self {
        let chunks = Vec::with_capacity(chunks);
        Self {
            store,
            chunks,
            segments: Vec::new(),
            used: 0,
            stored_bytes: 0,
            patterns: 0,
            coded: 0,
            habit: None,
        }
    }

    /// Takes the first `len` raw bytes of the bench.
    fn pack(&mut self, room: &mut Room, len: usize) -> Result<(), TierError> {
        if let Some(pattern) = Pattern::of(room.bench.raw.get(..len).unwrap_or_default()) {
            self.patterns = self.patterns.saturating_add(1);
            self.chunks.push(Chunk::Pattern(pattern));
            return Ok(());
        }
        let store = self.store;
        let failed = || TierError::Coding { tier: store.medium.kind() };
        let head = self.code(room, len)?;
        if head.coding != Coding::Raw {
            self.coded = self.coded.saturating_add(1);
        }
        let segment = u32::try_from(self.segments.len()).map_err(|_too_many| failed())?;
        let offset = u32::try_from(self.used).map_err(|_too_long| failed())?;
        self.chunks.push(Chunk::Stored { head, segment, offset });

        let stored = head.stored_bytes as usize;
        let padded = stored.checked_next_multiple_of(store.medium.unit_bytes()).ok_or_else(failed)?;
        let out = room.segment.bytes().get_mut(self.used..).ok_or_else(failed)?;
        // What was in the buffer before may be another tenant's, and not encrypted.
        out.get_mut(stored..padded).ok_or_else(failed)?.fill(0);
        self.used = self.used.saturating_add(padded);
        self.stored_bytes = self.stored_bytes.saturating_add(padded as u64);
        if self.used.saturating_add(store.chunk_bytes) > store.medium.segment_bytes() {
            self.flush(room)?;
        }
        Ok(())
    }

    /// Codes the chunk on the bench to where the segment ends now.
    fn code(&mut self, room: &mut Room, len: usize) -> Result<ChunkHead, TierError> {
        if let Some(Habit { verdict, ratio, left }) = self.habit.take() {
            let head = self.code_as(room, len, &verdict)?;
            let now = ratio_of(&head);
            if now * ALIKE >= ratio {
                let goes_on = left > 1 && now <= ratio * ALIKE;
                self.habit = goes_on.then(|| Habit { verdict, ratio, left: left.saturating_sub(1) });
                return Ok(head);
            }
        }
        let verdict = self.store.judge.judge(&mut room.bench, len, &mut room.sample);
        let head = self.code_as(room, len, &verdict)?;
        if head.coding != Coding::Raw {
            self.habit = Some(Habit { verdict, ratio: ratio_of(&head), left: HABIT_CHUNKS });
        }
        Ok(head)
    }

    fn code_as(&self, room: &mut Room, len: usize, verdict: &Verdict) -> Result<ChunkHead, TierError> {
        let store = self.store;
        let failed = || TierError::Coding { tier: store.medium.kind() };
        let out = room.segment.bytes().get_mut(self.used..).ok_or_else(failed)?;
        let started = Instant::now();
        let head = store.format.encode(&mut room.bench, len, verdict.coding, verdict.level, out);
        store.judge.note_encoded(verdict.coding, len, started.elapsed());
        head.ok_or_else(failed)
    }

    fn flush(&mut self, room: &mut Room) -> Result<(), TierError> {
        let bytes = room.segment.bytes().get(..self.used).unwrap_or_default();
        if bytes.is_empty() {
            return Ok(());
        }
        let started = Instant::now();
        self.segments.push(self.store.medium.write(bytes)?);
        if bytes.len() >= LINK_BYTES {
            self.store.judge.note_written(bytes.len(), started.elapsed());
        }
        self.used = 0;
        Ok(())
    }

    fn finish(mut self, room: &mut Room, len_bytes: u64) -> Result<Stored, TierError> {
        self.flush(room)?;
        let Self { store, chunks, segments, patterns, coded, .. } = self;
        let raw = (chunks.len() as u64).saturating_sub(patterns).saturating_sub(coded);
        store.counters.note_chunks(patterns, raw, coded);
        let first = chunks.first().copied();
        let body = match first {
            Some(Chunk::Pattern(pattern)) if chunks.iter().all(|chunk| Some(*chunk) == first) => {
                Body::Uniform(pattern)
            }
            _ => Body::Chunks(ChunkTable {
                chunk_bytes: u32::try_from(store.chunk_bytes).unwrap_or(u32::MAX),
                chunks: chunks.into_boxed_slice(),
                segments,
            }),
        };
        Ok(Stored::new(store.id, len_bytes, body, &store.counters))
    }
}

/// Reads a part of one region.
struct Reader<'a> {
    store: &'a ChunkedStore,
    table: &'a ChunkTable,
    /// Bytes of the region.
    region: usize,
    /// First byte wanted.
    offset: usize,
    to: &'a HostSpan,
}

impl Reader<'_> {
    fn read(&self, room: &mut Room) -> Result<(), TierError> {
        if self.to.is_empty() {
            return Ok(());
        }
        let chunk_bytes = self.store.chunk_bytes;
        let first = self.offset.checked_div(chunk_bytes).unwrap_or_default();
        let last = self.offset.saturating_add(self.to.len_bytes()).div_ceil(chunk_bytes);
        let mut number = first;
        while number < last {
            number = match self.table.chunks.get(number) {
                Some(Chunk::Pattern(pattern)) => {
                    if let Some((skip, part)) = self.target(number) {
                        fill_span(*pattern, skip as u64, &part);
                    }
                    number.saturating_add(1)
                }
                Some(Chunk::Stored { segment, .. }) => self.read_segment(room, number, last, *segment)?,
                None => last,
            };
        }
        Ok(())
    }

    /// Reads the chunks from `first` on, below `last`, that lie in a segment; the number of the first that does not.
    fn read_segment(
        &self,
        room: &mut Room,
        first: usize,
        last: usize,
        segment: u32,
    ) -> Result<usize, TierError> {
        let mut wanted: Vec<(usize, ChunkHead, usize)> = Vec::new();
        let mut next = first;
        for chunk in self.table.chunks.get(first..last).unwrap_or_default() {
            match chunk {
                Chunk::Pattern(pattern) => {
                    if let Some((skip, part)) = self.target(next) {
                        fill_span(*pattern, skip as u64, &part);
                    }
                }
                Chunk::Stored { head, segment: its, offset } if *its == segment => {
                    wanted.push((next, *head, *offset as usize));
                }
                Chunk::Stored { .. } => break,
            }
            next = next.saturating_add(1);
        }
        let (Some((_, _, begin)), Some((_, head, end))) = (wanted.first(), wanted.last()) else {
            return Ok(next);
        };
        let (begin, end) = (*begin, end.saturating_add(head.stored_bytes as usize));
        let lost = |number: usize, damage: Damage| TierError::Corrupt {
            tier: self.store.medium.kind(),
            offset_bytes: number.saturating_mul(self.store.chunk_bytes) as u64,
            len_bytes: self.chunk_len(number) as u64,
            damage,
        };
        let unit = self.store.medium.unit_bytes();
        let len = end.saturating_sub(begin).checked_next_multiple_of(unit).unwrap_or(usize::MAX);
        let piece = usize::try_from(segment).ok().and_then(|segment| self.table.segments.get(segment));
        let (Some(piece), Some(bytes)) = (piece, room.segment.bytes().get_mut(..len)) else {
            return Err(lost(first, Damage::Truncated));
        };
        let started = Instant::now();
        self.store.medium.read(piece, begin, bytes).map_err(|failure| match failure {
            ReadFailure::Short => lost(first, Damage::Truncated),
            ReadFailure::Tier(error) => error,
        })?;
        if len >= LINK_BYTES {
            self.store.judge.note_read(len, started.elapsed());
        }

        for (number, head, offset) in wanted {
            let stored = bytes.get_mut(offset.saturating_sub(begin)..).unwrap_or_default();
            let started = Instant::now();
            let decoded = self.store.format.decode(&mut room.bench, &head, stored);
            decoded.map_err(|damage| lost(number, damage))?;
            self.store.judge.note_decoded(head.coding, head.raw_bytes as usize, started.elapsed());
            if let Some((skip, part)) = self.target(number)
                && let Some(raw) = room.bench.raw.get(skip..)
            {
                part.write_from(raw);
            }
        }
        Ok(next)
    }

    /// Which part of a chunk is wanted, as the bytes of it before that part, and where it goes.
    fn target(&self, number: usize) -> Option<(usize, HostSpan)> {
        let chunk_start = number.checked_mul(self.store.chunk_bytes)?;
        let chunk_end = chunk_start.checked_add(self.chunk_len(number))?;
        let from = self.offset.max(chunk_start);
        let to = self.offset.checked_add(self.to.len_bytes())?.min(chunk_end);
        let part = self.to.part(from.checked_sub(self.offset)?, to.checked_sub(from)?).ok()?;
        Some((from.checked_sub(chunk_start)?, part))
    }

    fn chunk_len(&self, number: usize) -> usize {
        let start = number.saturating_mul(self.store.chunk_bytes);
        self.region.saturating_sub(start).min(self.store.chunk_bytes)
    }
}
