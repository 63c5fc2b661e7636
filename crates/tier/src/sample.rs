//! What a chunk would compress to, judged by a few of its bytes.

use crate::codec::{Codec, Codecs, max_coded_len};
use crate::planes::{Planes, Width};

/// Bytes of each piece looked at.
const PIECE_BYTES: usize = 2048;

/// Bytes looked at in all.
const SAMPLE_BYTES: usize = 8 * PIECE_BYTES;

/// A plane is compressed if that saves one part in this many of it.
const MIN_PLANE_SAVING: usize = 24;

/// A wider split must save one part in this many more than a narrower one, for its trouble.
const MIN_SPLIT_SAVING: usize = 50;

/// What to do with a chunk, and what is to be expected of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Estimate {
    pub(crate) planes: Planes,
    /// Raw bytes per stored byte.
    pub(crate) ratio: f64,
}

/// A few bytes of a chunk, and room to work on them.
pub(crate) struct Sample {
    bytes: Vec<u8>,
    split: Vec<u8>,
    coded: Vec<u8>,
}

impl Sample {
    pub(crate) fn new() -> Self {
        Self {
            bytes: Vec::with_capacity(SAMPLE_BYTES),
            split: vec![0; SAMPLE_BYTES],
            coded: vec![0; max_coded_len(SAMPLE_BYTES)],
        }
    }

    /// Takes pieces from all over the chunk, or all of a small one.
    pub(crate) fn take(&mut self, raw: &[u8]) {
        self.bytes.clear();
        if raw.len() <= SAMPLE_BYTES {
            self.bytes.extend_from_slice(raw);
            return;
        }
        // Steps of whole elements, so that planes stay apart.
        let step = (raw.len() / (SAMPLE_BYTES / PIECE_BYTES)) & !15;
        let pieces = raw.chunks(step.max(PIECE_BYTES)).filter_map(|piece| piece.get(..PIECE_BYTES));
        for piece in pieces.take(SAMPLE_BYTES / PIECE_BYTES) {
            self.bytes.extend_from_slice(piece);
        }
    }

    /// The best split for a codec; `None` if it compresses nothing.
    pub(crate) fn estimate(&mut self, codecs: &mut Codecs, codec: Codec, level: i32) -> Option<Estimate> {
        let len = self.bytes.len();
        let mut best: Option<(usize, Planes)> = None;
        for width in Width::ALL {
            let Some((stored, planes)) = self.split_by(codecs, codec, level, width) else { continue };
            let least = match best {
                Some((stored, _)) => stored.saturating_sub(len / MIN_SPLIT_SAVING),
                None => len,
            };
            if stored < least {
                best = Some((stored, planes));
            }
        }
        let (stored, planes) = best?;
        Some(Estimate { planes, ratio: len as f64 / stored.max(1) as f64 })
    }

    fn split_by(
        &mut self,
        codecs: &mut Codecs,
        codec: Codec,
        level: i32,
        width: Width,
    ) -> Option<(usize, Planes)> {
        let len = self.bytes.len();
        let plane_len = width.elements(len);
        let split = self.split.get_mut(..len)?;
        if plane_len == 0 || !Planes::new(width, []).split(&self.bytes, split) {
            return None;
        }
        let least = plane_len.saturating_sub(plane_len / MIN_PLANE_SAVING);
        let (mut stored, mut coded_planes) = (0usize, Vec::with_capacity(4));
        for (number, plane) in split.chunks_exact(plane_len).enumerate() {
            match codecs.compress(codec, level, plane, &mut self.coded) {
                Some(coded) if coded < least => {
                    stored = stored.saturating_add(coded);
                    coded_planes.push(number);
                }
                _ => stored = stored.saturating_add(plane_len),
            }
        }
        (!coded_planes.is_empty()).then(|| (stored, Planes::new(width, coded_planes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(len: usize) -> impl Iterator<Item = u8> {
        let mut state = 7u64;
        std::iter::repeat_with(move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as u8
        })
        .take(len)
    }

    fn estimate(raw: &[u8]) -> Option<Estimate> {
        let mut sample = Sample::new();
        sample.take(raw);
        sample.estimate(&mut Codecs::default(), Codec::Zstd, 1)
    }

    #[test]
    fn estimate_finds_the_plane_that_compresses() {
        for (width, elements) in [(Width::Two, 2), (Width::Four, 4)] {
            let raw: Vec<u8> = noise(1 << 20)
                .enumerate()
                .map(|(i, byte)| if i % elements == elements - 1 { byte & 3 } else { byte })
                .collect();
            let found = estimate(&raw).unwrap();
            assert_eq!(found.planes, Planes::new(width, [elements - 1]));
            assert!(found.ratio > 1.1, "{}", found.ratio);
        }
    }

    #[test]
    fn estimate_of_text_leaves_it_whole_and_of_noise_is_none() {
        let text: Vec<u8> =
            b"the quick brown fox jumps over the lazy dog; ".iter().copied().cycle().take(1 << 18).collect();
        assert_eq!(estimate(&text).unwrap().planes, Planes::WHOLE);
        assert_eq!(estimate(&noise(1 << 18).collect::<Vec<_>>()), None);
        assert_eq!(estimate(&[]), None);
    }
}
