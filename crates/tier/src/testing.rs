//! For tests, here and in other crates: stores that fail on purpose, and chunks of foreign bytes.

use crate::chunk::{Bench, ChunkHead, Coding, Format};
use crate::codec::{Codec, max_coded_len};
use crate::planes::{Planes, Width};
use crate::seal::Sealer;

pub use crate::faults::Faults;

/// Most raw bytes of a chunk [`ForeignChunk`] makes.
const MAX_RAW_BYTES: usize = 64 << 10;

/// Chunks whose stored bytes come from somebody else.
pub struct ForeignChunk {
    plain: Format,
    sealed: Option<Format>,
    bench: Bench,
}

impl Default for ForeignChunk {
    fn default() -> Self {
        let sealer = Sealer::new().ok();
        Self {
            plain: Format { seed: 1, sealer: None },
            sealed: sealer.map(|sealer| Format { seed: 2, sealer: Some(sealer) }),
            bench: Bench::new(MAX_RAW_BYTES),
        }
    }
}

impl ForeignChunk {
    /// Takes foreign bytes for those of a chunk, coded in a way that their first four bytes choose. Whether they pass
    /// for the chunk, which without its checksum they must not.
    pub fn decode(&mut self, bytes: &[u8]) -> bool {
        let Some(([how, planes, low, high], stored)) = bytes.split_first_chunk::<4>() else { return false };
        let raw_bytes = u32::from(u16::from_le_bytes([*low, *high]));
        let coding = coding(*how, *planes);
        let mut stored = stored.to_vec();
        let Ok(stored_bytes) = u32::try_from(stored.len()) else { return false };
        let head = ChunkHead { raw_bytes, stored_bytes, coding, check: 0x5eed, seal: None };
        self.plain.decode(&mut self.bench, &head, &mut stored).is_ok()
    }

    /// Codes bytes as their first two bytes choose, changes what is stored as the next three say, and decodes that:
    /// whether what comes out, if anything, is what went in.
    pub fn damage(&mut self, bytes: &[u8]) -> bool {
        let Some(([how, planes, low, high, flip], raw)) = bytes.split_first_chunk::<5>() else { return true };
        let len = raw.len().min(MAX_RAW_BYTES);
        let Some(raw) = raw.get(..len).filter(|raw| !raw.is_empty()) else { return true };
        let format = match &self.sealed {
            Some(sealed) if how & 0x80 != 0 => sealed,
            _ => &self.plain,
        };
        let Some(bench) = self.bench.raw.get_mut(..len) else { return false };
        bench.copy_from_slice(raw);
        let mut out = vec![0; max_coded_len(len)];
        let Some(head) = format.encode(&mut self.bench, len, coding(*how, *planes), 1, &mut out) else {
            return false;
        };
        let at = usize::from(u16::from_le_bytes([*low, *high]));
        let stored = out.get_mut(..head.stored_bytes as usize).unwrap_or_default();
        let changed = stored.get_mut(at).map(|byte| *byte ^= flip).is_some() && *flip != 0;
        match format.decode(&mut self.bench, &head, stored) {
            Ok(()) => self.bench.raw.get(..len) == Some(raw),
            Err(_) => changed,
        }
    }
}

fn coding(how: u8, planes: u8) -> Coding {
    let codec = match how & 3 {
        0 => return Coding::Raw,
        1 => Codec::Lz4,
        2 => Codec::Zstd,
        _ => Codec::Zlib,
    };
    let width = match planes & 3 {
        0 => Width::One,
        1 => Width::Two,
        _ => Width::Four,
    };
    let coded = (0..4usize).filter(|plane| {
        (planes >> 2).checked_shr(u32::try_from(*plane).unwrap_or(8)).is_some_and(|bits| bits & 1 == 1)
    });
    Coding::Coded { codec, planes: Planes::new(width, coded) }
}
