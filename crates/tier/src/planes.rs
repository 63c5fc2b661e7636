//! Byte planes: the first bytes of all elements, then the second bytes, and so on.
//!
//! In numbers of two or four bytes the bytes with sign and exponent are alike from one number to the next, the others
//! are noise. Apart from each other the first kind compresses and the second is left alone.

/// Bytes of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Width {
    /// Not split.
    One,
    /// bf16, fp16 and the like.
    Two,
    /// fp32 and the like.
    Four,
}

impl Width {
    pub(crate) const ALL: [Self; 3] = [Self::One, Self::Two, Self::Four];

    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::One => 1,
            Self::Two => 2,
            Self::Four => 4,
        }
    }

    /// Whole elements in so many bytes.
    pub(crate) fn elements(self, len: usize) -> usize {
        len.checked_div(self.bytes()).unwrap_or_default()
    }
}

/// Which planes are compressed, as bits; the others are kept as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Planes {
    pub(crate) width: Width,
    coded: u8,
}

impl Planes {
    /// These planes of this width, by number; numbers the width does not have are left out.
    pub(crate) fn new(width: Width, coded: impl IntoIterator<Item = usize>) -> Self {
        let numbers = coded.into_iter().filter(|plane| *plane < width.bytes());
        Self { width, coded: numbers.fold(0, |bits, plane| bits | (1 << plane)) }
    }

    /// Unsplit bytes, compressed.
    pub(crate) const WHOLE: Self = Self { width: Width::One, coded: 1 };

    pub(crate) fn is_coded(self, plane: usize) -> bool {
        u32::try_from(plane)
            .ok()
            .and_then(|plane| self.coded.checked_shr(plane))
            .is_some_and(|bit| bit & 1 == 1)
    }

    /// Bytes of the planes that are kept as they are, of `len` bytes in all.
    pub(crate) fn raw_len(self, len: usize) -> usize {
        let raw = (0..self.width.bytes()).filter(|plane| !self.is_coded(*plane)).count();
        self.width.elements(len).saturating_mul(raw)
    }

    /// Planes in the order in which they lie in the split bytes: those kept as they are first.
    fn order(self) -> impl Iterator<Item = usize> {
        let planes = 0..self.width.bytes();
        let raw = planes.clone().filter(move |plane| !self.is_coded(*plane));
        raw.chain(planes.filter(move |plane| self.is_coded(*plane)))
    }

    /// Splits elements into planes. Both are of one length, a multiple of the width; says whether they are.
    pub(crate) fn split(self, elements: &[u8], planes: &mut [u8]) -> bool {
        let width = self.width.bytes();
        let plane_len = self.width.elements(elements.len());
        if elements.len() != planes.len() || !elements.len().is_multiple_of(width) {
            return false;
        }
        if plane_len == 0 {
            return true;
        }
        for (plane, out) in self.order().zip(planes.chunks_exact_mut(plane_len)) {
            match self.width {
                Width::One => out.copy_from_slice(elements),
                Width::Two => gather::<2>(elements, plane, out),
                Width::Four => gather::<4>(elements, plane, out),
            }
        }
        true
    }

    /// Puts elements together again. Lengths as in [`Self::split`].
    pub(crate) fn merge(self, planes: &[u8], elements: &mut [u8]) -> bool {
        let width = self.width.bytes();
        let plane_len = self.width.elements(elements.len());
        if elements.len() != planes.len() || !elements.len().is_multiple_of(width) {
            return false;
        }
        if plane_len == 0 {
            return true;
        }
        let mut by_number: [&[u8]; 4] = [&[]; 4];
        for (plane, bytes) in self.order().zip(planes.chunks_exact(plane_len)) {
            if let Some(slot) = by_number.get_mut(plane) {
                *slot = bytes;
            }
        }
        let [p0, p1, p2, p3] = by_number;
        match self.width {
            Width::One => elements.copy_from_slice(p0),
            Width::Two => {
                for (element, (b0, b1)) in elements.as_chunks_mut::<2>().0.iter_mut().zip(p0.iter().zip(p1)) {
                    *element = [*b0, *b1];
                }
            }
            Width::Four => {
                let bytes = p0.iter().zip(p1).zip(p2.iter().zip(p3));
                for (element, ((b0, b1), (b2, b3))) in elements.as_chunks_mut::<4>().0.iter_mut().zip(bytes) {
                    *element = [*b0, *b1, *b2, *b3];
                }
            }
        }
        true
    }
}

fn gather<const WIDTH: usize>(elements: &[u8], plane: usize, out: &mut [u8]) {
    for (to, element) in out.iter_mut().zip(elements.as_chunks::<WIDTH>().0) {
        *to = element.get(plane).copied().unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merge_of_split_is_the_same_for_every_choice_of_planes() {
        for width in Width::ALL {
            for coded in 0..1usize << width.bytes() {
                let planes = Planes::new(width, (0..4).filter(|plane| coded >> plane & 1 == 1));
                for len in [0usize, 4, 8, 64, 4096] {
                    let elements: Vec<u8> = (0..len).map(|i| (i * 7 + i / 256) as u8).collect();
                    let (mut split, mut merged) = (vec![0; len], vec![0; len]);
                    assert!(planes.split(&elements, &mut split));
                    assert!(planes.merge(&split, &mut merged));
                    assert_eq!(merged, elements);
                }
            }
        }
    }

    #[test]
    fn split_puts_planes_kept_as_they_are_first() {
        let planes = Planes::new(Width::Two, [0]);
        let mut split = [0; 6];
        assert!(planes.split(&[1, 11, 2, 12, 3, 13], &mut split));
        assert_eq!(split, [11, 12, 13, 1, 2, 3]);
        assert_eq!(planes.raw_len(6), 3);
    }

    #[test]
    fn split_of_lengths_that_do_not_fit_is_refused() {
        let planes = Planes::new(Width::Four, [3]);
        assert!(!planes.split(&[0; 6], &mut [0; 6]));
        assert!(!planes.split(&[0; 8], &mut [0; 4]));
        assert!(!planes.merge(&[0; 6], &mut [0; 6]));
    }
}
