//! Sizes as people write and read them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A number of bytes that people write as `512MiB` and read as `1.5GiB`.
///
/// Written: digits, at most one decimal point, and a unit: `B`, `KiB`, `MiB`, `GiB`, `TiB` (powers of 1024) or `KB`,
/// `MB`, `GB`, `TB` (powers of 1000), in any case; no unit means bytes. `2G` is refused, because half of the world
/// reads it as 1000³. The size must come out as whole bytes.
///
/// Displayed: the largest binary unit not above the size, exact (`2GiB`, `1.5GiB`) or rounded to one decimal, of
/// which `2.0GiB` is an example. The alternate form (`{:#}`) is never rounded: it takes the largest unit that divides
/// the size.
///
/// Serialized: an integer. Deserialized: an integer or a string as above.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

/// Why a text is no size. The text itself is repeated, cut short where it is long.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a size: {problem}")]
pub struct ByteSizeError {
    text: String,
    problem: Problem,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Problem {
    #[error("write a number and a unit, as in 512MiB or 2GiB")]
    Malformed,
    #[error("it is negative")]
    Negative,
    #[error("the unit must be B, KiB, MiB, GiB, TiB, KB, MB, GB or TB")]
    Unit,
    #[error("it is not a whole number of bytes")]
    Fraction,
    #[error("it is 16777216TiB or more")]
    TooLarge,
}

const UNITS: [(&str, u64); 9] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

const DISPLAYED: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

/// More digits than this behind the point are refused, so that nothing overflows.
const MAX_DECIMALS: usize = 12;
/// Longer texts are cut in errors.
const MAX_QUOTED_CHARS: usize = 40;

impl ByteSize {
    /// So many MiB (2²⁰ bytes); the largest size there is when that does not fit.
    pub const fn mib(count: u64) -> Self {
        Self(count.saturating_mul(1 << 20))
    }

    /// So many GiB (2³⁰ bytes); the largest size there is when that does not fit.
    pub const fn gib(count: u64) -> Self {
        Self(count.saturating_mul(1 << 30))
    }

    /// The number of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

fn parse(text: &str) -> Result<u64, Problem> {
    let text = text.trim();
    if text.starts_with('-') {
        return Err(Problem::Negative);
    }
    let number_len = text.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
    let (number, unit) = text.split_at_checked(number_len).ok_or(Problem::Malformed)?;
    let (whole, decimals) =
        number.split_once('.').map_or((number, None), |(whole, rest)| (whole, Some(rest)));
    let decimals_malformed = decimals.is_some_and(|digits| digits.is_empty() || digits.contains('.'));
    if whole.is_empty() || decimals_malformed {
        return Err(Problem::Malformed);
    }
    let unit = unit.trim_start();
    let unit_bytes = match unit {
        "" => 1,
        _ => UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or(Problem::Unit)?.1,
    };
    let whole: u64 = whole.parse().or(Err(Problem::TooLarge))?;
    let bytes = whole.checked_mul(unit_bytes).ok_or(Problem::TooLarge)?;
    let decimal_bytes = parse_decimals(decimals.unwrap_or_default(), unit_bytes)?;
    bytes.checked_add(decimal_bytes).ok_or(Problem::TooLarge)
}

/// Bytes of the digits behind the decimal point.
fn parse_decimals(digits: &str, unit_bytes: u64) -> Result<u64, Problem> {
    let digits = digits.trim_end_matches('0');
    if digits.is_empty() {
        return Ok(0);
    }
    if digits.len() > MAX_DECIMALS {
        return Err(Problem::Fraction);
    }
    let numerator: u128 = digits.parse().or(Err(Problem::Malformed))?;
    let denominator = digits.bytes().fold(1u128, |power, _| power.saturating_mul(10));
    let scaled = numerator.saturating_mul(u128::from(unit_bytes));
    match (scaled.checked_div(denominator), scaled.checked_rem(denominator)) {
        (Some(bytes), Some(0)) => u64::try_from(bytes).or(Err(Problem::TooLarge)),
        _ => Err(Problem::Fraction),
    }
}

impl FromStr for ByteSize {
    type Err = ByteSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map(Self).map_err(|problem| {
            let mut quoted: String = text.chars().take(MAX_QUOTED_CHARS).collect();
            if quoted.len() < text.len() {
                quoted.push('…');
            }
            ByteSizeError { text: quoted, problem }
        })
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = f.alternate();
        let fits = |unit: u64| self.0 >= unit && (!exact || self.0.is_multiple_of(unit));
        let Some((name, unit)) = DISPLAYED.into_iter().find(|(_, unit)| fits(*unit)) else {
            return f.pad(&format!("{}B", self.0));
        };
        let size = u128::from(self.0);
        let unit = u128::from(unit);
        let tenths = size.saturating_mul(10).saturating_add(unit.div_euclid(2)).div_euclid(unit);
        let whole = tenths.div_euclid(10);
        if whole.saturating_mul(unit) == size {
            f.pad(&format!("{whole}{name}"))
        } else {
            f.pad(&format!("{whole}.{}{name}", tenths.rem_euclid(10)))
        }
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizeVisitor)
    }
}

struct SizeVisitor;

impl de::Visitor<'_> for SizeVisitor {
    type Value = ByteSize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size such as \"512MiB\", or a number of bytes")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<ByteSize, E> {
        Ok(ByteSize(bytes))
    }

    fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
        match u64::try_from(bytes) {
            Ok(bytes) => Ok(ByteSize(bytes)),
            Err(_) => Err(E::custom(ByteSizeError { text: bytes.to_string(), problem: Problem::Negative })),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parse_good_sizes_give_bytes() {
        let cases: &[(&str, u64)] = &[
            ("0", 0),
            ("1", 1),
            ("4096", 4096),
            ("7B", 7),
            ("1KiB", 1024),
            ("512MiB", 512 << 20),
            ("2GiB", 2 << 30),
            ("2 GiB", 2 << 30),
            (" 2gib ", 2 << 30),
            ("1.5GiB", 3 << 29),
            ("1.50000000000000000000GiB", 3 << 29),
            ("0.5KiB", 512),
            ("3TiB", 3 << 40),
            ("1KB", 1000),
            ("1.5MB", 1_500_000),
            ("2GB", 2_000_000_000),
            ("1TB", 1_000_000_000_000),
            ("16777215TiB", 16_777_215 << 40),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse(), Ok(ByteSize(*bytes)), "{text:?}");
        }
    }

    #[test]
    fn parse_bad_sizes_say_why() {
        let cases: &[(&str, Problem)] = &[
            ("", Problem::Malformed),
            ("GiB", Problem::Malformed),
            (".5GiB", Problem::Malformed),
            ("1.GiB", Problem::Malformed),
            ("1.5.5GiB", Problem::Malformed),
            ("+1", Problem::Malformed),
            ("lots", Problem::Malformed),
            ("-1", Problem::Negative),
            ("-2GiB", Problem::Negative),
            ("2G", Problem::Unit),
            ("2GiB,", Problem::Unit),
            ("2 Gi B", Problem::Unit),
            ("0x10", Problem::Unit),
            ("1e9", Problem::Unit),
            ("2µB", Problem::Unit),
            ("0.1GiB", Problem::Fraction),
            ("1.5", Problem::Fraction),
            ("1.0000000000001TB", Problem::Fraction),
            ("16777216TiB", Problem::TooLarge),
            ("16777215.99999999999TiB", Problem::Fraction),
            ("18446744073709551616", Problem::TooLarge),
            ("99999999999999999999999", Problem::TooLarge),
        ];
        for (text, problem) in cases {
            let error = text.parse::<ByteSize>().unwrap_err();
            assert_eq!(error.problem, *problem, "{text:?}");
        }
    }

    #[test]
    fn parse_long_text_is_quoted_short() {
        let error = "é".repeat(10_000).parse::<ByteSize>().unwrap_err().to_string();

        assert!(error.len() < 200, "{error}");
    }

    #[test]
    fn display_takes_the_largest_unit() {
        let cases: &[(u64, &str, &str)] = &[
            (0, "0B", "0B"),
            (1, "1B", "1B"),
            (1023, "1023B", "1023B"),
            (1024, "1KiB", "1KiB"),
            (1536, "1.5KiB", "1536B"),
            (512 << 20, "512MiB", "512MiB"),
            (3 << 29, "1.5GiB", "1536MiB"),
            ((2 << 30) + 1, "2.0GiB", "2147483649B"),
            ((1 << 30) - 1, "1024.0MiB", "1073741823B"),
            (5 << 40, "5TiB", "5TiB"),
            (u64::MAX, "16777216.0TiB", "18446744073709551615B"),
        ];
        for (bytes, rounded, exact) in cases {
            assert_eq!(ByteSize(*bytes).to_string(), *rounded);
            assert_eq!(format!("{:#}", ByteSize(*bytes)), *exact);
        }
        assert_eq!(format!("{:>8}|", ByteSize::gib(1)), "    1GiB|");
    }

    #[test]
    fn serde_takes_integers_and_strings_and_gives_integers() {
        assert_eq!(serde_json::to_string(&ByteSize::mib(1)).unwrap(), "1048576");
        assert_eq!(serde_json::from_str::<ByteSize>("1048576").unwrap(), ByteSize::mib(1));
        assert_eq!(serde_json::from_str::<ByteSize>("\"1MiB\"").unwrap(), ByteSize::mib(1));
        for json in ["-1", "1.5", "\"-1\"", "\"1 parsec\"", "true", "null", "[1]"] {
            assert!(serde_json::from_str::<ByteSize>(json).is_err(), "{json}");
        }
    }

    proptest! {
        #[test]
        fn parse_any_text_never_panics(text in ".{0,60}") {
            let _ = text.parse::<ByteSize>();
        }

        #[test]
        fn parse_undoes_the_exact_display(bytes: u64) {
            let text = format!("{:#}", ByteSize(bytes));
            prop_assert_eq!(text.parse(), Ok(ByteSize(bytes)));
        }

        #[test]
        fn display_is_within_a_twentieth_of_a_unit(bytes: u64) {
            let text = ByteSize(bytes).to_string();
            let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
            let unit = UNITS.iter().find(|(name, _)| *name == &text[digits.len()..]).unwrap().1;
            let shown = digits.parse::<f64>().unwrap() * unit as f64;
            prop_assert!((shown - bytes as f64).abs() <= 0.0501 * unit as f64);
        }
    }
}
