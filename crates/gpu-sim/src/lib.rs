//! Simulated GPUs: a [`Backend`](vram_gpu::Backend) whose device memory is this host's memory.
//!
//! Nothing is pretended that can be real. A band is a reserved, inaccessible address range of this process; a shard
//! is a sealed memory file, mapped into the band at its device address; an export is a descriptor of that file, which
//! outlives the process as CUDA's does. Every stream has a worker thread, so work really runs later than the call
//! that enqueued it, and a buffer freed too early or an order not asked for shows.
//!
//! Where CUDA is picky the simulator is picky too: ranges must be mapped and made accessible, host memory is wholly
//! inside one registration or outside all, an address of one GPU cannot be touched by another that has no access.
//! [`Faults`] makes it fail, stall or slow down on purpose; `SimConfig` says how many GPUs, how large, how linked.
//!
//! What it does not do: run kernels, or keep any count of memory between two processes (each counts its own).
//!
//! Memory files are made with `memfd_create`, and exports reopen them through `/proc/self/fd`; without `/proc` an
//! export is a plain duplicate and its memory no longer counts once the shard is released.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

mod backend;
mod config;
mod error;
mod event;
mod faults;
mod host;
mod memory;
mod pace;
mod shards;
mod space;
mod spec;
mod stream;

pub use backend::{Counts, SimBackend};
pub use config::{GRANULARITY_BYTES, PeerAccess, SIMULATED_NAME_PREFIX, SimConfig, SimGpuConfig};
pub use error::SpecError;
pub use faults::Faults;
pub use pace::Rates;
