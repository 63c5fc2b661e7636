//! Groups that may connect to sockets.

use nix::unistd::{Gid, Group};

use super::{ConfigError, Problem, Setting};

/// The number chown(2) takes for "as it is".
const NO_GROUP: u32 = u32::MAX;

/// Finds a group by its name, or takes its number, which need not have a name.
pub(super) fn find_group(what: &str, setting: Setting<String>) -> Result<Gid, ConfigError> {
    let found = &setting.value;
    if let Ok(number) = found.parse::<u32>()
        && number != NO_GROUP
    {
        return Ok(Gid::from_raw(number));
    }
    match Group::from_name(found) {
        Ok(Some(group)) => Ok(group.gid),
        Ok(None) => Err(setting.refuse(Problem::NoSuchGroup { what: what.to_owned(), found: found.clone() })),
        Err(errno) => {
            Err(setting.refuse(Problem::GroupLookup { what: what.to_owned(), found: found.clone(), errno }))
        }
    }
}
