//! A chunk: the unit in which bytes are coded, checked and read.
//!
//! What is known of a chunk stays in memory, in its head; the stored bytes are foreign when they come back. They say
//! nothing about their own length, coding or checksum, so they can be wrong but cannot steer.

use twox_hash::XxHash3_128;

use crate::codec::{Codec, Codecs};
use crate::planes::Planes;
use crate::seal::{Seal, Sealer};

/// Coded bytes are kept only if they are smaller than the raw ones by one part in this many.
const MIN_SAVING: usize = 16;

/// How a chunk's stored bytes are made from its raw ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coding {
    /// They are the same.
    Raw,
    /// Split into planes, some of them compressed.
    Coded { codec: Codec, planes: Planes },
}

/// What is known of a stored chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkHead {
    pub(crate) raw_bytes: u32,
    pub(crate) stored_bytes: u32,
    pub(crate) coding: Coding,
    /// XXH3-128 of the raw bytes.
    pub(crate) check: u128,
    pub(crate) seal: Option<Seal>,
}

/// What is wrong with stored bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Some are missing.
    Truncated,
    /// They are not those that were encrypted.
    Forged,
    /// They cannot be decompressed to their length.
    Undecodable,
    /// What they decompress to is not what was stored.
    Checksum,
}

impl Damage {
    /// In words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Truncated => "bytes are missing",
            Self::Forged => "they are not the bytes that were encrypted",
            Self::Undecodable => "they cannot be decompressed",
            Self::Checksum => "the checksum is wrong",
        }
    }
}

/// What chunks of one store share.
pub(crate) struct Format {
    /// Makes checksums of this store differ from any other's.
    pub(crate) seed: u64,
    pub(crate) sealer: Option<Sealer>,
}

/// Room for one chunk at work.
pub(crate) struct Bench {
    pub(crate) raw: Vec<u8>,
    planes: Vec<u8>,
    pub(crate) codecs: Codecs,
}

impl Bench {
    pub(crate) fn new(chunk_bytes: usize) -> Self {
        Self { raw: vec![0; chunk_bytes], planes: vec![0; chunk_bytes], codecs: Codecs::default() }
    }
}

impl Format {
    /// Codes the first `len` raw bytes of the bench into `out`, which has room for [`crate::codec::max_coded_len`] of
    /// them. Falls back to raw bytes where coding saves too little. `None` if the lengths do not fit, or the cipher
    /// fails, which it does for no length there is.
    pub(crate) fn encode(
        &self,
        bench: &mut Bench,
        len: usize,
        coding: Coding,
        level: i32,
        out: &mut [u8],
    ) -> Option<ChunkHead> {
        let Bench { raw, planes: split, codecs } = bench;
        let raw = raw.get(..len)?;
        let coded = match coding {
            Coding::Raw => None,
            Coding::Coded { codec, planes } => {
                let most = len.saturating_sub(len / MIN_SAVING);
                code(codecs, raw, split.get_mut(..len)?, (codec, level, planes), out)
                    .filter(|stored| *stored < most)
            }
        };
        let (coding, stored) = match coded {
            Some(stored) => (coding, stored),
            None => {
                out.get_mut(..len)?.copy_from_slice(raw);
                (Coding::Raw, len)
            }
        };
        let seal = match &self.sealer {
            Some(sealer) => Some(sealer.seal(out.get_mut(..stored)?).ok()?),
            None => None,
        };
        Some(ChunkHead {
            raw_bytes: u32::try_from(len).ok()?,
            stored_bytes: u32::try_from(stored).ok()?,
            coding,
            check: self.check(raw),
            seal,
        })
    }

    /// Makes a chunk's raw bytes, the first of the bench, from its stored ones, which are spoilt. What the bench
    /// holds after an error means nothing.
    pub(crate) fn decode(
        &self,
        bench: &mut Bench,
        head: &ChunkHead,
        stored: &mut [u8],
    ) -> Result<(), Damage> {
        let Bench { raw, planes: split, codecs } = bench;
        let (raw_len, stored_len) = (head.raw_bytes as usize, head.stored_bytes as usize);
        let stored = stored.get_mut(..stored_len).ok_or(Damage::Truncated)?;
        let raw = raw.get_mut(..raw_len).ok_or(Damage::Undecodable)?;
        match (&self.sealer, head.seal) {
            (Some(sealer), Some(seal)) => {
                if !sealer.open(seal, stored) {
                    return Err(Damage::Forged);
                }
            }
            (None, None) => {}
            (Some(_), None) | (None, Some(_)) => return Err(Damage::Forged),
        }
        match head.coding {
            Coding::Raw if stored.len() == raw.len() => raw.copy_from_slice(stored),
            Coding::Raw => return Err(Damage::Undecodable),
            Coding::Coded { codec, planes } => {
                let target = match planes {
                    Planes::WHOLE => &mut *raw,
                    _ => split.get_mut(..raw_len).ok_or(Damage::Undecodable)?,
                };
                let kept = planes.raw_len(raw_len);
                let (kept_to, coded_to) = target.split_at_mut_checked(kept).ok_or(Damage::Undecodable)?;
                let (kept_from, coded_from) = stored.split_at_checked(kept).ok_or(Damage::Undecodable)?;
                kept_to.copy_from_slice(kept_from);
                if !codecs.decompress(codec, coded_from, coded_to) {
                    return Err(Damage::Undecodable);
                }
                if planes != Planes::WHOLE
                    && !split.get(..raw_len).is_some_and(|split| planes.merge(split, raw))
                {
                    return Err(Damage::Undecodable);
                }
            }
        }
        if self.check(raw) == head.check { Ok(()) } else { Err(Damage::Checksum) }
    }

    pub(crate) fn check(&self, raw: &[u8]) -> u128 {
        XxHash3_128::oneshot_with_seed(self.seed, raw)
    }
}

/// Splits and compresses; how many bytes that makes.
fn code(
    codecs: &mut Codecs,
    raw: &[u8],
    split: &mut [u8],
    (codec, level, planes): (Codec, i32, Planes),
    out: &mut [u8],
) -> Option<usize> {
    if planes == Planes::WHOLE {
        return codecs.compress(codec, level, raw, out);
    }
    if !planes.split(raw, split) {
        return None;
    }
    let (kept, coded) = split.split_at_checked(planes.raw_len(raw.len()))?;
    let (kept_to, coded_to) = out.split_at_mut_checked(kept.len())?;
    kept_to.copy_from_slice(kept);
    codecs.compress(codec, level, coded, coded_to)?.checked_add(kept.len())
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "a wrong sum is a failed test")]
mod tests {
    use super::*;
    use crate::codec::max_coded_len;
    use crate::planes::Width;

    fn codings() -> Vec<Coding> {
        let planes = [Planes::WHOLE, Planes::new(Width::Two, [1]), Planes::new(Width::Four, [0, 3])];
        let coded =
            Codec::ALL.into_iter().flat_map(|codec| planes.map(|planes| Coding::Coded { codec, planes }));
        coded.chain([Coding::Raw]).collect()
    }

    fn encoded(format: &Format, raw: &[u8], coding: Coding) -> (Bench, ChunkHead, Vec<u8>) {
        let mut bench = Bench::new(raw.len());
        bench.raw.copy_from_slice(raw);
        let mut out = vec![0; max_coded_len(raw.len())];
        let head = format.encode(&mut bench, raw.len(), coding, 1, &mut out).unwrap();
        out.truncate(head.stored_bytes as usize);
        bench.raw.fill(0x77);
        (bench, head, out)
    }

    fn sample() -> Vec<u8> {
        (0..4096u32).map(|i| if i % 4 == 3 { 0x3f } else { ((i * i) >> 5) as u8 & 0x1f }).collect()
    }

    #[test]
    fn decode_of_encoded_is_the_same_for_every_coding_sealed_or_not() {
        for sealer in [None, Some(Sealer::new().unwrap())] {
            let format = Format { seed: 1, sealer };
            for coding in codings() {
                let (mut bench, head, mut stored) = encoded(&format, &sample(), coding);
                assert_eq!(head.coding, coding);
                assert!(coding == Coding::Raw || stored.len() < 4096 * 15 / 16);
                format.decode(&mut bench, &head, &mut stored).unwrap();
                assert_eq!(bench.raw, sample(), "{coding:?}");
            }
        }
    }

    #[test]
    fn decode_with_any_byte_changed_or_cut_never_gives_other_bytes() {
        for sealer in [None, Some(Sealer::new().unwrap())] {
            let format = Format { seed: 1, sealer };
            for coding in codings() {
                let (mut bench, head, stored) = encoded(&format, &sample(), coding);
                for at in 0..stored.len() {
                    let mut damaged = stored.clone();
                    damaged[at] ^= 0x10;
                    let result = format.decode(&mut bench, &head, &mut damaged);
                    assert!(result.is_err() || bench.raw == sample(), "{coding:?} {at}");
                    assert!(result.is_err() || format.sealer.is_none());
                }
                let mut cut = stored[..stored.len() - 1].to_vec();
                assert_eq!(format.decode(&mut bench, &head, &mut cut), Err(Damage::Truncated));
            }
        }
    }

    #[test]
    fn encode_of_noise_keeps_it_raw() {
        let mut noise = 1u64;
        let raw: Vec<u8> = std::iter::repeat_with(|| {
            noise = noise.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (noise >> 33) as u8
        })
        .take(4096)
        .collect();
        let format = Format { seed: 1, sealer: None };
        for coding in codings() {
            let (mut bench, head, mut stored) = encoded(&format, &raw, coding);
            assert_eq!((head.coding, head.stored_bytes), (Coding::Raw, 4096));
            format.decode(&mut bench, &head, &mut stored).unwrap();
            assert_eq!(bench.raw, raw);
        }
    }

    #[test]
    fn decode_of_another_stores_bytes_fails() {
        let coding = Coding::Raw;
        let (mut bench, head, stored) = encoded(&Format { seed: 1, sealer: None }, &sample(), coding);
        let other = Format { seed: 2, sealer: None };
        assert_eq!(other.decode(&mut bench, &head, &mut stored.clone()), Err(Damage::Checksum));
    }
}
