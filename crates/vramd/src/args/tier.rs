//! `--tier`.

use std::str::FromStr;

use vram_tier::TierKind;

/// One `--tier`, its fields as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierOption {
    /// What it is.
    pub kind: TierKind,
    /// Its fields, by the names they have in the file. Which there are, and what they may be, is not checked.
    pub fields: Vec<(String, String)>,
}

/// Why a `--tier` cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TierOptionError {
    /// Not `KIND:…`.
    #[error("Write KIND:SIZE, as in host:4GiB; the kinds are host, compressed, disk and remote")]
    NoKind,
    /// No such kind.
    #[error("There is no kind of tier {found:?}; the kinds are host, compressed, disk and remote")]
    UnknownKind {
        /// What was written.
        found: String,
    },
    /// Something else than `FIELD=VALUE` behind the size, or a field without a name or a value.
    #[error("{found:?} is not FIELD=VALUE, as in disk:20GiB,dir=/var/lib/vram")]
    NoField {
        /// What was written.
        found: String,
    },
    /// A field stands twice.
    #[error("{field} is given twice")]
    Twice {
        /// Which.
        field: String,
    },
}

/// The kind somebody names.
pub(crate) fn kind_named(name: &str) -> Option<TierKind> {
    let kinds = [TierKind::Host, TierKind::Compressed, TierKind::Disk, TierKind::Remote];
    kinds.into_iter().find(|kind| kind.to_string() == name)
}

impl FromStr for TierOption {
    type Err = TierOptionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (kind, rest) = text.split_once(':').ok_or(Self::Err::NoKind)?;
        let kind = kind_named(kind).ok_or_else(|| Self::Err::UnknownKind { found: kind.to_owned() })?;
        let mut fields: Vec<(String, String)> = Vec::new();
        for (place, part) in rest.split(',').enumerate() {
            let (field, value) = match part.split_once('=') {
                None if place == 0 => ("size", part),
                Some((field, value)) if !field.is_empty() => (field, value),
                _ => return Err(Self::Err::NoField { found: part.to_owned() }),
            };
            if value.is_empty() {
                return Err(Self::Err::NoField { found: part.to_owned() });
            }
            if fields.iter().any(|(earlier, _)| earlier == field) {
                return Err(Self::Err::Twice { field: field.to_owned() });
            }
            fields.push((field.to_owned(), value.to_owned()));
        }
        Ok(Self { kind, fields })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(fields: &[(&str, &str)]) -> Vec<(String, String)> {
        fields.iter().map(|(field, value)| ((*field).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn tier_option_good_ones_are_read() {
        let cases = [
            ("host:4GiB", TierKind::Host, fields(&[("size", "4GiB")])),
            ("compressed:size=1GiB", TierKind::Compressed, fields(&[("size", "1GiB")])),
            (
                "disk:20GiB,dir=/var/lib/vram",
                TierKind::Disk,
                fields(&[("size", "20GiB"), ("dir", "/var/lib/vram")]),
            ),
            ("remote:url=s3://bucket/a=b", TierKind::Remote, fields(&[("url", "s3://bucket/a=b")])),
        ];
        for (text, kind, fields) in cases {
            let option = TierOption { kind, fields };

            assert_eq!(text.parse(), Ok(option), "{text}");
        }
    }

    #[test]
    fn tier_option_bad_ones_say_why() {
        let cases = [
            ("", "Write KIND:SIZE"),
            ("host", "Write KIND:SIZE"),
            ("host=4GiB", "Write KIND:SIZE"),
            ("ram:4GiB", "There is no kind of tier \"ram\"; the kinds are host, compressed, disk and remote"),
            ("Host:4GiB", "There is no kind of tier \"Host\""),
            ("host:", "\"\" is not FIELD=VALUE"),
            ("host:4GiB,", "\"\" is not FIELD=VALUE"),
            ("host:4GiB,preallocate", "\"preallocate\" is not FIELD=VALUE"),
            ("host:4GiB,=true", "\"=true\" is not FIELD=VALUE"),
            ("disk:4GiB,dir=", "\"dir=\" is not FIELD=VALUE"),
            ("disk:4GiB,dir=/a,dir=/b", "dir is given twice"),
            ("disk:4GiB,size=5GiB", "size is given twice"),
        ];
        for (text, expected) in cases {
            let message = text.parse::<TierOption>().unwrap_err().to_string();

            assert!(message.starts_with(expected), "{text:?} gives {message}");
        }
    }
}
