//! What client and holder say: one JSON value on a line, at most [`MAX_LINE_BYTES`], a reply for each request.
//!
//! The first request is `hello`; the device's descriptor comes with its reply.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use vram::DeviceAddress;

/// Version of these messages. Both ends must have the same: they are the same program.
pub(crate) const PROTOCOL: u32 = 1;
/// Longest line, with its end.
pub(crate) const MAX_LINE_BYTES: usize = 4096;
/// Allocations a holder keeps at most.
pub(crate) const MAX_ENTRIES: usize = 4096;
/// Entries in one reply to `list`: they fit in a line even with the longest names.
pub(crate) const ENTRIES_PER_REPLY: usize = 8;

/// Why a name, handle or digest is none.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum TextError {
    #[error(
        "A name has 1 to {} letters, digits, '.', '_' or '-', and begins with none of the last two nor with 0x",
        Name::MAX_BYTES
    )]
    Name,
    #[error("An address is 0x and hexadecimal digits")]
    Address,
    #[error("A SHA-256 is 64 hexadecimal digits")]
    Digest,
}

/// The name of an allocation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Name(String);

impl Name {
    pub(crate) const MAX_BYTES: usize = 64;

    /// A name made of any text, such as that of a file.
    pub(crate) fn from_any(text: &str) -> Self {
        let kept: String = text
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '_' })
            .take(Self::MAX_BYTES)
            .collect();
        let trimmed = kept.trim_start_matches(['-', '_']);
        trimmed.parse().unwrap_or_else(|_| Self("data".to_owned()))
    }

    /// This name with an ending, shortened where both do not fit.
    pub(crate) fn with_ending(&self, ending: &str) -> Self {
        let room = Self::MAX_BYTES.saturating_sub(ending.len());
        let kept: String = self.0.chars().take(room).collect();
        Self(kept + ending)
    }
}

impl FromStr for Name {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
        let valid = (1..=Self::MAX_BYTES).contains(&text.len())
            && text.bytes().all(allowed)
            && !text.starts_with(['-', '_'])
            && !text.starts_with("0x");
        if valid { Ok(Self(text.to_owned())) } else { Err(TextError::Name) }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What names a held allocation: its name or its address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum Handle {
    Name(Name),
    Address(DeviceAddress),
}

impl FromStr for Handle {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        match text.strip_prefix("0x") {
            None => text.parse().map(Self::Name),
            Some(digits) => parse_address(digits).map(Self::Address).ok_or(TextError::Address),
        }
    }
}

fn parse_address(digits: &str) -> Option<DeviceAddress> {
    if digits.starts_with('+') {
        return None;
    }
    u64::from_str_radix(digits, 16).ok().map(DeviceAddress)
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// A SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Digest(pub(crate) [u8; 32]);

impl FromStr for Digest {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        if text.len() != 64 || !text.bytes().all(|c| c.is_ascii_hexdigit()) {
            return Err(TextError::Digest);
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).ok().ok_or(TextError::Digest)?;
            *byte = u8::from_str_radix(pair, 16).ok().ok_or(TextError::Digest)?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

macro_rules! text_in_json {
    ($($type:ty),+) => {$(
        impl TryFrom<String> for $type {
            type Error = TextError;

            fn try_from(text: String) -> Result<Self, TextError> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.to_string()
            }
        }
    )+};
}
text_in_json!(Name, Handle, Digest);

/// The name a client wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Wish {
    /// This one, or an error.
    Exactly(Name),
    /// This one, or with a number behind it.
    Like(Name),
}

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    /// Who are you? Comes first.
    Hello { protocol: u32 },
    /// Allocate. The client fills it and says `record`; if it goes away before, the memory is freed.
    Reserve { name: Wish, bytes: u64, alignment_bytes: u64 },
    /// What is in an allocation that this client fills or has opened: a digest, or something unknown.
    Record { name: Name, sha256: Option<Digest> },
    /// Keep an allocation from being freed as long as this connection lasts.
    Open { handle: Handle },
    /// Free one.
    Free { handle: Handle },
    /// Free all, those in use by others only with `force`, and end the holder.
    FreeAll { force: bool },
    /// Entries after a name, or from the first.
    List { after: Option<Name> },
}

/// What the holder answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Reply {
    Welcome { protocol: u32, pid: u32, device: String },
    Entry(Entry),
    Entries { entries: Vec<Entry>, more: bool },
    Freed { allocations: u64, bytes: u64 },
    Refused(Refusal),
}

/// A held allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    pub(crate) name: Name,
    pub(crate) address: Handle,
    pub(crate) bytes: u64,
    /// Of what was put into it, if nothing else changed it since.
    pub(crate) sha256: Option<Digest>,
    /// Process that is filling it, if one is.
    pub(crate) filling_pid: Option<u32>,
}

impl Entry {
    pub(crate) fn device_address(&self) -> Option<DeviceAddress> {
        match self.address {
            Handle::Address(address) => Some(address),
            Handle::Name(_) => None,
        }
    }
}

/// Why the holder does not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Refusal {
    #[error("Nothing named {handle} is held; see vram list")]
    Unknown { handle: Handle },
    #[error("{name} is held already; free it first (vram free {name}) or choose another name")]
    NameTaken { name: Name },
    #[error("{name} is being filled by process {pid}; wait until it has ended")]
    BeingFilled { name: Name, pid: u32 },
    #[error("{name} is in use by process {pid}; wait until it has ended")]
    InUse { name: Name, pid: u32 },
    #[error("{name} was neither reserved nor opened by this client")]
    NotYours { name: Name },
    #[error("The holder keeps {MAX_ENTRIES} allocations and no more; free some")]
    TooMany,
    #[error(
        "The holder speaks version {holder} of its protocol and this command {client}; free everything (vram release, of the other version) and put it again"
    )]
    WrongProtocol { holder: u32, client: u32 },
    #[error("The holder did not understand the request; use the vram program of one release everywhere")]
    NotUnderstood,
    #[error(
        "The host's daemon was started anew and the memory of all that is held is gone; forget it (vram release) and put the data again"
    )]
    Stale,
    /// The device refused; the words are libvram's.
    #[error("{message}")]
    Device { errno: i32, message: String },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    #[test]
    fn request_as_json_is_as_documented() {
        let request = Request::Reserve { name: Wish::Like(name("a")), bytes: 5, alignment_bytes: 0 };

        let line = serde_json::to_string(&request).unwrap();

        assert_eq!(line, r#"{"reserve":{"name":{"like":"a"},"bytes":5,"alignment_bytes":0}}"#);
        assert_eq!(serde_json::from_str::<Request>(&line).unwrap(), request);
    }

    #[test]
    fn request_with_surplus_or_bad_fields_is_refused() {
        for line in [
            "",
            "{}",
            "null",
            r#"{"hello":{}}"#,
            r#"{"hello":{"protocol":1,"more":2}}"#,
            r#"{"hello":{"protocol":-1}}"#,
            r#"{"free":{"handle":"a/b"}}"#,
            r#"{"free":{"handle":"0xzz"}}"#,
            r#"{"record":{"name":"a","sha256":"00"}}"#,
            r#"{"destroy":{}}"#,
        ] {
            assert!(serde_json::from_str::<Request>(line).is_err(), "{line}");
        }
    }

    #[test]
    fn reply_with_a_full_page_of_longest_entries_fits_in_a_line() {
        let entry = Entry {
            name: name(&"n".repeat(Name::MAX_BYTES)),
            address: Handle::Address(DeviceAddress(u64::MAX)),
            bytes: u64::MAX,
            sha256: Some(Digest([255; 32])),
            filling_pid: Some(u32::MAX),
        };

        let line =
            serde_json::to_string(&Reply::Entries { entries: vec![entry; ENTRIES_PER_REPLY], more: true })
                .unwrap();

        assert!(line.len() < MAX_LINE_BYTES, "{}", line.len());
    }

    #[test]
    fn handle_is_a_name_or_an_address() {
        assert_eq!("0x7f00".parse(), Ok(Handle::Address(DeviceAddress(0x7f00))));
        assert_eq!("weights.bin".parse(), Ok(Handle::Name(name("weights.bin"))));
        assert_eq!("0x".parse::<Handle>(), Err(TextError::Address));
        assert_eq!("0x+1".parse::<Handle>(), Err(TextError::Address));
        assert_eq!("-x".parse::<Handle>(), Err(TextError::Name));
        assert_eq!("".parse::<Handle>(), Err(TextError::Name));
    }

    proptest! {
        #[test]
        fn name_from_any_text_is_a_name(text: String, ending in "-[0-9]{1,4}") {
            let name = Name::from_any(&text);

            prop_assert_eq!(name.to_string().parse::<Name>(), Ok(name.clone()));
            let longer = name.with_ending(&ending);
            prop_assert_eq!(longer.to_string().parse::<Name>(), Ok(longer.clone()));
            prop_assert!(longer.to_string().ends_with(&ending));
        }

        #[test]
        fn digest_comes_back(bytes: [u8; 32]) {
            prop_assert_eq!(Digest(bytes).to_string().parse(), Ok(Digest(bytes)));
        }

        #[test]
        fn request_of_any_line_does_not_panic(line in "[{}\":,a-z0-9_]{0,60}") {
            let _ = serde_json::from_str::<Request>(&line);
        }
    }
}
