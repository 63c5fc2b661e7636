//! Sizes and rates, as people write and read them.

use std::{fmt, str::FromStr};

use serde::Serialize;

const UNITS: [(&str, u32); 4] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];

/// Bytes, written as `4096`, `64KiB`, `512MiB`, `1.5GiB` or with a bare `K`, `M`, `G`, `T` for the same powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct ByteSize(pub(crate) u64);

/// Why a size cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum SizeError {
    #[error("A size is a number of bytes, or a number with KiB, MiB, GiB or TiB")]
    Malformed,
    #[error("A size is not negative")]
    Negative,
    #[error("The size is larger than any memory")]
    TooLarge,
    #[error("The size is not a whole number of bytes")]
    Fraction,
}

impl FromStr for ByteSize {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        if text.starts_with('-') {
            return Err(SizeError::Negative);
        }
        let digits_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits_end);
        let shift = match unit.trim_start() {
            "" | "B" => 0,
            unit => UNITS
                .iter()
                .find(|(name, _)| unit.eq_ignore_ascii_case(name) || unit.eq_ignore_ascii_case(&name[..1]))
                .map(|(_, shift)| *shift)
                .ok_or(SizeError::Malformed)?,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() || fraction.len() > 12 || number.ends_with('.') {
            return Err(SizeError::Malformed);
        }
        let parse = |digits: &str| digits.parse::<u128>().ok().ok_or(SizeError::Malformed);
        if whole.len() > 24 {
            return Err(SizeError::TooLarge);
        }
        let scale = 10u128.pow(fraction.len() as u32);
        let part = if fraction.is_empty() { 0 } else { parse(fraction)? };
        let scaled = (parse(whole)? * scale + part) << shift;
        if !scaled.is_multiple_of(scale) {
            return Err(SizeError::Fraction);
        }
        u64::try_from(scaled / scale).ok().map(Self).ok_or(SizeError::TooLarge)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.iter().rev().find(|(_, shift)| self.0 >= 1 << shift) {
            None => write!(f, "{} B", self.0),
            Some((name, shift)) if self.0.trailing_zeros() >= *shift => {
                write!(f, "{} {name}", self.0 >> shift)
            }
            Some((name, shift)) => write!(f, "{:.2} {name}", self.0 as f64 / (1u64 << shift) as f64),
        }
    }
}

/// Bytes in some time, as MiB/s (2^20 bytes in a second).
pub(crate) fn mib_per_second(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 / f64::from(1 << 20) / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn size_in_every_unit_is_read() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("7B", 7),
            ("64KiB", 65536),
            ("512MiB", 512 << 20),
            ("1.5GiB", 3 << 29),
            ("2 TiB", 2 << 40),
            ("1g", 1 << 30),
            ("0.5k", 512),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
    }

    #[test]
    fn size_that_is_none_is_refused() {
        for (text, error) in [
            ("", SizeError::Malformed),
            ("MiB", SizeError::Malformed),
            ("-1", SizeError::Negative),
            ("1.", SizeError::Malformed),
            (".5G", SizeError::Malformed),
            ("1.2.3", SizeError::Malformed),
            ("5MB", SizeError::Malformed),
            ("1.3", SizeError::Fraction),
            ("16777216TiB", SizeError::TooLarge),
            ("9999999999999999999999999999", SizeError::TooLarge),
        ] {
            assert_eq!(text.parse::<ByteSize>(), Err(error), "{text}");
        }
    }

    proptest! {
        #[test]
        fn size_of_any_text_does_not_panic(text in "[0-9.KMGTib \u{e9}]{0,30}") {
            let _ = text.parse::<ByteSize>();
        }

        #[test]
        fn size_in_bytes_comes_back(bytes: u64) {
            prop_assert_eq!(bytes.to_string().parse(), Ok(ByteSize(bytes)));
        }
    }
}
