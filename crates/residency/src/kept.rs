//! The bytes of a region in a tier.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use vram_gpu::Pattern;
use vram_guest_memory::HostSpan;
use vram_tier::Stored;

/// What a tier has of a region, or what is known of it without one.
pub(crate) struct Kept {
    pub(crate) body: Body,
    /// Bytes that were freed since, and are zeros whatever the tier has there: first to end, apart from each other.
    holes: Mutex<BTreeMap<u64, u64>>,
}

/// Where the bytes are.
pub(crate) enum Body {
    /// All zeros: nobody has written to it yet.
    Zeros,
    /// In a tier.
    Stored {
        /// Which, counted from the fastest.
        rung: usize,
        /// Its handle.
        stored: Stored,
    },
}

impl Kept {
    /// A region nobody has written to.
    pub(crate) fn zeros() -> Self {
        Self { body: Body::Zeros, holes: Mutex::default() }
    }

    /// A region in a tier.
    pub(crate) fn stored(rung: usize, stored: Stored) -> Self {
        Self { body: Body::Stored { rung, stored }, holes: Mutex::default() }
    }

    /// The pattern the whole region repeats, as a GPU fills it; longer ones are copied.
    pub(crate) fn pattern(&self) -> Option<Pattern> {
        match &self.body {
            Body::Zeros => Some(Pattern::U8(0)),
            Body::Stored { stored, .. } => {
                let pattern = stored.uniform()?;
                (pattern.is_zero() || self.holes().is_empty()).then(|| fill_of(pattern)).flatten()
            }
        }
    }

    /// Some bytes are zeros from now on.
    pub(crate) fn add_hole(&self, bytes: Range<u64>) {
        let mut holes = self.holes();
        let Range { mut start, mut end } = bytes;
        if let Some((&before, &before_end)) = holes.range(..start).next_back()
            && before_end >= start
        {
            start = before;
            end = end.max(before_end);
        }
        while let Some((&next, &next_end)) = holes.range(start..=end).next() {
            end = end.max(next_end);
            holes.remove(&next);
        }
        holes.insert(start, end);
    }

    /// Makes zeros of what was freed, in bytes that were read from an offset on.
    pub(crate) fn cut_holes(&self, offset_bytes: u64, read: &HostSpan) {
        let read_end = offset_bytes.saturating_add(read.len_bytes() as u64);
        let holes: Vec<Range<u64>> = {
            let holes = self.holes();
            let first = holes.range(..=offset_bytes).next_back().map_or(offset_bytes, |(start, _)| *start);
            holes.range(first..read_end).map(|(start, end)| *start..*end).collect()
        };
        for hole in holes {
            let (start, end) = (hole.start.max(offset_bytes), hole.end.min(read_end));
            let (Some(at), Some(len)) = (start.checked_sub(offset_bytes), end.checked_sub(start)) else {
                continue;
            };
            let (Ok(at), Ok(len)) = (usize::try_from(at), usize::try_from(len)) else { continue };
            if let Ok(part) = read.part(at, len) {
                zero(&part);
            }
        }
    }

    fn holes(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.holes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pattern a GPU can fill with.
fn fill_of(pattern: vram_tier::Pattern) -> Option<Pattern> {
    let bytes = pattern.bytes();
    let (words, _) = bytes.as_chunks::<4>();
    let first = words.first()?;
    words.iter().all(|word| word == first).then(|| Pattern::U32(u32::from_le_bytes(*first)))
}

/// Overwrites host memory with zeros.
pub(crate) fn zero(to: &HostSpan) {
    const PIECE: usize = 64 << 10;
    let zeros = vec![0; PIECE.min(to.len_bytes())];
    for offset in (0..to.len_bytes()).step_by(PIECE) {
        let len = PIECE.min(to.len_bytes().saturating_sub(offset));
        if let Ok(part) = to.part(offset, len) {
            part.write_from(&zeros);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::arithmetic_side_effects, clippy::indexing_slicing, reason = "tests")]
mod tests {
    use proptest::prelude::*;
    use vram_guest_memory::HostBuffer;

    use super::*;

    proptest! {
        #[test]
        fn holes_of_any_order_are_the_zeros_of_a_plain_array(
            added in prop::collection::vec((0u64..4000, 1u64..300), 0..40),
            (offset, len) in (0u64..4000, 1usize..2000),
        ) {
            let kept = Kept::zeros();
            let mut model = vec![1u8; 8192];
            for (start, len) in added {
                kept.add_hole(start..start + len);
                model[start as usize..(start + len) as usize].fill(0);
                let holes: Vec<_> = kept.holes().iter().map(|(start, end)| (*start, *end)).collect();
                prop_assert!(holes.windows(2).all(|pair| pair[0].1 < pair[1].0), "not merged: {:?}", holes);
            }
            let buffer = HostBuffer::new(len).unwrap();
            let read = buffer.span().part(0, len).unwrap();
            read.write_from(&vec![1; len]);
            kept.cut_holes(offset, &read);
            let mut bytes = vec![2; len];
            read.read_into(&mut bytes);
            prop_assert_eq!(&bytes[..], &model[offset as usize..offset as usize + len]);
        }
    }
}
