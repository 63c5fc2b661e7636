//! The GPUs of the pool.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One GPU of the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Gpu {
    /// Number in the pool, from zero.
    pub index: u16,
    /// Product name.
    pub name: String,
    /// Stable identity, as the vendor writes it.
    pub uuid: String,
    /// Bytes of memory on the device.
    pub total_bytes: u64,
    /// Bytes of it the pool may hand out: whole shards that were free when the daemon started.
    pub pool_bytes: u64,
    /// Bytes of the pool that hold shards now.
    pub used_bytes: u64,
    /// Bytes of the pool that are promised to slices as guarantees, used or not.
    pub promised_bytes: u64,
    /// PCI address (`0000:65:00.0`), if known.
    pub pci: Option<String>,
    /// NUMA node of the host it hangs on, if known.
    pub numa_node: Option<u32>,
    /// Whether it serves.
    pub state: GpuState,
}

/// Whether a GPU serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum GpuState {
    /// It serves.
    Ready,
    /// It serves, but everything on it moves to other GPUs, and nothing new comes.
    Draining,
    /// Nothing is on it, and nothing comes until it is taken back into use.
    Drained,
    /// It fell off the bus or the driver gave it up; what it held is gone.
    Lost,
    /// A state this program does not know yet.
    #[serde(other)]
    Unknown,
}

impl fmt::Display for GpuState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Drained => "drained",
            Self::Lost => "lost",
            Self::Unknown => "unknown",
        })
    }
}

/// All GPUs of the pool, by number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Gpus {
    /// The GPUs.
    pub gpus: Vec<Gpu>,
}
