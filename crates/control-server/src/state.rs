//! What the server asks the daemon.

use vram_control_api::v1::{Daemon, Gpu, NewSlice, Slice, SliceChange, Tier};

/// Why something asked for is not done. Nothing changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such thing.
    NotFound {
        /// One sentence without a full stop.
        message: String,
    },
    /// What is asked for can never be.
    Invalid {
        /// One sentence without a full stop.
        message: String,
    },
    /// It cannot be done as things are.
    Conflict {
        /// One sentence without a full stop.
        message: String,
    },
}

/// The daemon as operators see it.
///
/// The methods are called one at a time, on the server's thread, which waits for them: they return within
/// milliseconds, from what the daemon knows already, and never wait for a GPU. A panic in one is contained; the caller
/// is told of an internal error.
pub trait ControlState: Send + Sync + 'static {
    /// What is running, and on what.
    fn daemon(&self) -> Daemon;

    /// The GPUs of the pool, by number.
    fn gpus(&self) -> Vec<Gpu>;

    /// Begins to move everything off the GPU of this number; returns it as it is now.
    fn drain_gpu(&self, index: u16) -> Result<Gpu, Refusal>;

    /// Takes the GPU of this number back into use.
    fn undrain_gpu(&self, index: u16) -> Result<Gpu, Refusal>;

    /// All slices, by name.
    fn slices(&self) -> Vec<Slice>;

    /// The slice of this name. `name` is whatever somebody typed.
    fn slice(&self, name: &str) -> Option<Slice>;

    /// Makes a slice and serves it. Reserves addresses and listens, but makes no memory.
    fn create_slice(&self, slice: NewSlice) -> Result<Slice, Refusal>;

    /// Removes the slice of this name, which nobody is connected to; returns it as it was.
    fn remove_slice(&self, name: &str) -> Result<Slice, Refusal>;

    /// Changes limit and guarantee of the slice of this name; returns it as it is now.
    fn change_slice(&self, name: &str, change: SliceChange) -> Result<Slice, Refusal>;

    /// The tiers below the GPUs, the fastest first.
    fn tiers(&self) -> Vec<Tier>;
}
