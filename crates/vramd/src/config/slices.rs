//! All slices, which must not be confused.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};

use super::slice::refuse_control_socket;
use super::{ConfigError, Origin, Problem, Setting, SliceConfig};

/// The slices so far: names and sockets differ, and no socket is the operator API's.
pub(super) struct Slices<'a> {
    control: &'a Path,
    slices: Vec<SliceConfig>,
    origins: HashMap<String, Origin>,
    names_by_socket: HashMap<PathBuf, String>,
}

impl<'a> Slices<'a> {
    pub(super) fn beside(control: &'a Path) -> Self {
        Self { control, slices: Vec::new(), origins: HashMap::new(), names_by_socket: HashMap::new() }
    }

    /// Takes a slice in, unless it could be mistaken for what is there.
    pub(super) fn add(&mut self, slice: Setting<SliceConfig>) -> Result<(), ConfigError> {
        refuse_control_socket(&slice, self.control)?;
        let SliceConfig { name, socket, .. } = &slice.value;
        match self.origins.entry(name.clone()) {
            Entry::Vacant(place) => place.insert(slice.origin.clone()),
            Entry::Occupied(first) => {
                let first = first.get().clone();
                return Err(slice.refuse(Problem::SliceTwice { slice: name.clone(), first }));
            }
        };
        match self.names_by_socket.entry(socket.clone()) {
            Entry::Vacant(place) => place.insert(name.clone()),
            Entry::Occupied(other) => {
                let (name, socket, other) = (name.clone(), socket.clone(), other.get().clone());
                return Err(slice.refuse(Problem::SocketTwice { slice: name, socket, other }));
            }
        };
        self.slices.push(slice.value);
        Ok(())
    }

    /// In the order they were taken in; at least one.
    pub(super) fn finish(self) -> Result<Vec<SliceConfig>, ConfigError> {
        if self.slices.is_empty() { Err(ConfigError::NoSlice) } else { Ok(self.slices) }
    }
}
