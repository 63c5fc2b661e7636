//! Where a region's bytes live when they are not on a GPU.
//!
//! A [`Store`] takes the bytes of a region, of 2 MiB to 1 GiB as a rule, and gives them back exactly, or says clearly
//! why not. There are four kinds: host RAM ([`HostStore`]), whose slots a GPU copies into and out of directly; and, in
//! chunks that are coded, checked and if wanted encrypted ([`ChunkedStore`]), compressed host RAM, a file on a local
//! disk, and objects on a server.
//!
//! Chunks of a repeated pattern, zeros above all, are noted and take no room and no I/O; a region that is one pattern
//! takes nothing but its handle. In the host tier, whose slots are of one size, only whole regions are noted so. What
//! lies outside this process is foreign when it comes back: all that is known of it, its length, coding, checksum and
//! key number, is in the [`Stored`] handle, so it can be wrong but is never believed.
//!
//! What this crate does not do: decide which bytes go where and when (`pool`, `residency`), or move them to and from a
//! GPU (`transfer`).
#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

mod aligned;
mod blocks;
mod budget;
mod chunk;
mod chunked;
mod codec;
mod config;
mod disk;
mod error;
mod faults;
mod host;
mod judge;
mod medium;
mod memory;
mod meter;
mod pattern;
mod planes;
mod remote;
mod sample;
mod seal;
mod store;
mod stored;
pub mod testing;
mod worth;

pub use chunk::Damage;
pub use chunked::{ChunkedStore, TierConfig};
pub use codec::Codec;
pub use config::{
    CHUNK_BYTES, CodecChoice, CodecConfig, CompressedConfig, DEFAULT_CHUNK_BYTES, DiskConfig, HostConfig,
    MAX_REGION_BYTES, RemoteConfig,
};
pub use error::{OpenError, Remedy, TierError};
pub use host::HostStore;
pub use meter::Meter;
pub use pattern::Pattern;
pub use store::{Store, TierKind};
pub use stored::{PatternRun, Stored};
pub use worth::{CodecSpeed, LinkSpeed, MIN_GAIN};
