//! Runs of bytes that repeat, which are noted instead of stored.

/// Bytes of the repetition every pattern is kept as. What repeats every 1, 2, 4, 8 or 16 bytes repeats every 16.
pub(crate) const PERIOD: usize = 16;

/// What a run of bytes repeats, from its first byte on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern([u8; PERIOD]);

impl Pattern {
    /// All zeros.
    pub const ZERO: Self = Self([0; PERIOD]);

    /// The 16 bytes repeated.
    pub fn bytes(self) -> [u8; PERIOD] {
        self.0
    }

    /// Whether it is all zeros.
    pub fn is_zero(self) -> bool {
        self == Self::ZERO
    }

    /// The pattern these bytes repeat, if they do; `None` for fewer than 16 bytes. Stops at the first byte that does
    /// not fit, and runs at the speed of a comparison otherwise.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        let first = bytes.first_chunk::<PERIOD>()?;
        let shifted = bytes.get(PERIOD..)?;
        let unshifted = bytes.get(..shifted.len())?;
        (unshifted == shifted).then_some(Self(*first))
    }

    /// Whether bytes that follow a whole number of repetitions go on with them.
    pub(crate) fn continues(self, bytes: &[u8]) -> bool {
        let (whole, rest) = bytes.as_chunks::<PERIOD>();
        whole.iter().all(|piece| *piece == self.0) && self.0.starts_with(rest)
    }

    /// Writes what a run of this pattern holds from `offset` on.
    pub(crate) fn fill(self, offset: u64, out: &mut [u8]) {
        if self.is_zero() {
            out.fill(0);
            return;
        }
        let mut rotated = self.0;
        let phase = offset.checked_rem(PERIOD as u64).and_then(|phase| usize::try_from(phase).ok());
        rotated.rotate_left(phase.unwrap_or_default());
        for piece in out.chunks_mut(PERIOD) {
            piece.iter_mut().zip(rotated).for_each(|(to, from)| *to = from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_every_period_is_found_and_filled_again_at_any_offset() {
        for period in [1usize, 2, 4, 8, 16] {
            for len in [16usize, 17, 31, 4096, 4099] {
                let bytes: Vec<u8> = (0..len).map(|i| (i % period) as u8 ^ 0x5a).collect();
                let pattern = Pattern::of(&bytes).unwrap();
                for offset in 0..20.min(len) {
                    let mut out = vec![0xff; len - offset];
                    pattern.fill(offset as u64, &mut out);
                    assert_eq!(out, bytes[offset..]);
                }
            }
        }
    }

    #[test]
    fn of_one_byte_off_anywhere_is_none() {
        for at in 0..256 {
            let mut bytes = vec![0u8; 256];
            bytes[at] = 1;
            assert_eq!(Pattern::of(&bytes), None, "{at}");
        }
        assert_eq!(Pattern::of(&[0; 15]), None);
        assert_eq!(Pattern::of(&[0; 16]), Some(Pattern::ZERO));
    }
}
