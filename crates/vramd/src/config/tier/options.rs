//! Options of the remote tier, which may be secrets: no message says what they are.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use toml::Table;
use vram_control_api::ByteSize;

use super::problem::{OptionsFileError, TierProblem};

/// Longer files are refused.
const MAX_FILE: ByteSize = ByteSize(64 << 10);
/// Permission of users that are neither the owner nor of the group.
const OTHERS: u32 = 0o007;

/// Options by name.
pub(super) fn from_table(table: Table) -> Result<Vec<(String, String)>, TierProblem> {
    let option = |(name, value): (String, toml::Value)| match value {
        toml::Value::String(value) => Ok((name, value)),
        toml::Value::Integer(value) => Ok((name, value.to_string())),
        toml::Value::Boolean(value) => Ok((name, value.to_string())),
        _ => Err(TierProblem::Option { name }),
    };
    table.into_iter().map(option).collect()
}

/// The table in a file only its owner and group may read.
pub(super) fn read_file(path: &Path) -> Result<Table, OptionsFileError> {
    let path = || path.to_owned();
    let unreadable = |source| OptionsFileError::Read { path: path(), source };
    let metadata = std::fs::metadata(path()).map_err(unreadable)?;
    // Before it is opened, which waits for a FIFO's other end.
    if !metadata.is_file() {
        return Err(OptionsFileError::NoFile { path: path() });
    }
    if metadata.permissions().mode() & OTHERS != 0 {
        return Err(OptionsFileError::OpenToAll { path: path() });
    }
    let mut text = String::new();
    let file = File::open(path()).map_err(unreadable)?;
    let len = file.take(MAX_FILE.bytes() + 1).read_to_string(&mut text).map_err(unreadable)?;
    if u64::try_from(len).unwrap_or(u64::MAX) > MAX_FILE.bytes() {
        return Err(OptionsFileError::TooLarge { path: path(), limit: MAX_FILE });
    }
    toml::from_str(&text).map_err(|error: toml::de::Error| {
        let start = error.span().map_or(0, |span| span.start);
        let line = text.bytes().take(start).filter(|byte| *byte == b'\n').count() + 1;
        OptionsFileError::Malformed { path: path(), line }
    })
}
