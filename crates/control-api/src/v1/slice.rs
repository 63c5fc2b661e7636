//! The slices of the pool.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A tenant's share of the pool: one virtio device in one VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Slice {
    /// Its name, unique in the daemon.
    pub name: String,
    /// Whether a VM is using it.
    pub state: SliceState,
    /// Bytes it can always have.
    pub guarantee_bytes: u64,
    /// Bytes it can have at most.
    pub limit_bytes: u64,
    /// Which GPUs its memory goes to.
    pub placement: Placement,
    /// The GPU it is placed on first, once chosen.
    pub home_gpu: Option<u16>,
    /// Bytes the guest has allocated.
    pub allocated_bytes: u64,
    /// Bytes of shards behind the slice; at least what is allocated, rounded up to shards.
    pub backed_bytes: u64,
    /// Bytes of it that lie in a tier and on no GPU. They count against the limit, as backed bytes do.
    pub stored_bytes: u64,
    /// Bytes freed by the guest but not to be given out again yet, because work that touches them is unfinished.
    pub quarantined_bytes: u64,
    /// Where the backed bytes lie, by GPU; GPUs that hold nothing are left out.
    pub backed_by_gpu: Vec<BackedOnGpu>,
    /// Live allocations.
    pub allocations: u64,
    /// Open contexts: guest processes using the device.
    pub contexts: u64,
    /// Socket the VMM connects to.
    pub socket: String,
    /// Virtio device id the VMM has to show the guest.
    pub virtio_id: u16,
    /// Request queues; the device has two more, for control and events.
    pub request_queues: u16,
    /// What it has done since the daemon started.
    pub counters: SliceCounters,
}

/// Whether a VM is using a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum SliceState {
    /// The socket is there, no VMM has connected to it.
    WaitingForFrontend,
    /// A VMM is connected, the guest's driver has not introduced itself: still booting, or not loaded.
    Connected,
    /// The guest's driver is at work.
    InUse,
    /// The slice cannot be served; the daemon's log says why.
    Failed,
    /// A state this program does not know yet.
    #[serde(other)]
    Unknown,
}

impl fmt::Display for SliceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::WaitingForFrontend => "waiting for a frontend",
            Self::Connected => "connected",
            Self::InUse => "in use",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        })
    }
}

/// Which GPUs a slice's memory goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// Its home GPU only.
    Local,
    /// Its home GPU first, then the nearest with room.
    #[default]
    Spill,
    /// Striped over all GPUs.
    Spread,
    /// The fullest GPU that has room.
    Pack,
    /// A placement this program does not know yet.
    #[serde(other)]
    Unknown,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Local => "local",
            Self::Spill => "spill",
            Self::Spread => "spread",
            Self::Pack => "pack",
            Self::Unknown => "unknown",
        })
    }
}

/// Bytes of a slice on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct BackedOnGpu {
    /// Number of the GPU.
    pub gpu: u16,
    /// Bytes of shards there.
    pub backed_bytes: u64,
}

/// What a slice has done since the daemon started. Counters only grow, over reconnections too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct SliceCounters {
    /// Requests answered, errors included.
    pub requests: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Bytes moved from guest memory to GPU memory.
    pub in_bytes: u64,
    /// Bytes moved from GPU memory to guest memory.
    pub out_bytes: u64,
    /// Bytes moved from GPU memory to GPU memory.
    pub copied_bytes: u64,
}

/// The largest limit of a slice: the device addresses there are.
pub const MAX_LIMIT_BYTES: u64 = 1 << 47;

/// What is to change of a slice; what is left out stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SliceChange {
    /// Bytes it can have at most, up to 128 TiB. Lowered below what it has, it keeps that and gets no new shards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schema(maximum = 140_737_488_355_328_u64))]
    pub limit_bytes: Option<u64>,
    /// Bytes it can always have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guarantee_bytes: Option<u64>,
}

/// A slice to make. What is left out is as for `vramd --slice`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewSlice {
    /// Its name: 1 to 31 of a-z, 0-9 and -, not beginning with -.
    pub name: String,
    /// Bytes it can have at most, up to 128 TiB.
    #[cfg_attr(test, schema(minimum = 1, maximum = 140_737_488_355_328_u64))]
    pub limit_bytes: u64,
    /// Bytes it can always have, at most the limit. None if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guarantee_bytes: Option<u64>,
    /// Which GPUs its memory goes to: `local`, `spill`, `spread` or `pack`. `spill` if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<String>,
    /// The GPU it is placed on first. Chosen by load if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home_gpu: Option<u16>,
    /// Request queues, 1 to 64. 1 if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schema(minimum = 1, maximum = 64))]
    pub request_queues: Option<u16>,
    /// Absolute path of the socket its VMM connects to. Named after it, in the daemon's folder of sockets, if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// Name or number of the group whose members may connect to the socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// All slices, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Slices {
    /// The slices.
    pub slices: Vec<Slice>,
}
