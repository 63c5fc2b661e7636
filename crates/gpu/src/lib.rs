//! GPUs as vram sees them: devices, topology, and the [`Backend`] trait that every kind of GPU implements.
//!
//! The trait is modelled on CUDA's driver API: addresses are reserved in bands, physical memory comes in exportable
//! shards, shards are mapped into bands and made accessible, and work is enqueued on streams whose progress events
//! tell. It is safe to use: host memory is named by [`HostSpan`]s, which a backend holds until the work that touches
//! them has finished.
//!
//! What a backend does *not* do: decide where bytes live (`pool`), split or order copies (`transfer`), check what a
//! guest may touch (`session`).
#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

mod address;
mod backend;
mod bands;
mod device;
mod error;
mod registered;
mod topology;

pub use address::{DeviceAddress, DeviceRange};
pub use backend::{
    Backend, EventHandle, FreshMemory, Identity, MemoryInfo, Pattern, RegistrationHandle, ShardHandle,
    StreamHandle,
};
pub use bands::{Bands, GpuSet, Mapping, Resolved};
pub use device::{DeviceInfo, GpuId, PciAddress};
pub use error::GpuError;
pub use registered::{Pinning, RegisteredRanges};
pub use topology::{Link, Topology};
pub use vram_guest_memory::HostSpan;
