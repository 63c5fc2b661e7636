//! Where bytes live: shards, bands, regions, placement and limits.
//!
//! The pool decides and keeps the books; it moves no byte and calls no GPU. Its state changes in two steps, and whoever
//! carries a decision out stands between them:
//!
//! - [`Pool::plan_alloc`] reserves addresses and names the regions that need a shard ([`Grant`]); the caller backs
//!   them and calls [`Pool::commit`], or [`Pool::abort`] if a GPU refused.
//! - [`Pool::begin_free`] takes an allocation out of the live set and quarantines its bytes ([`Freeing`]);
//!   [`Pool::plan_release`] says what to scrub and which shards to take away ([`ReleasePlan`]);
//!   [`Pool::finish_release`] makes the bytes allocatable again, once that is done.
//!
//! - [`Pool::next_relocation`] names a region that is to leave a GPU ([`Relocation`]); the caller moves its bytes and
//!   calls [`Pool::finish_relocation`], or [`Pool::abort_relocation`].
//!
//! - [`Pool::plan_eviction`] takes a region off its GPU ([`Eviction`]), [`Pool::plan_promotion`] brings it back
//!   ([`Promotion`]); the caller moves the bytes to and from a lower tier in between, and ends each.
//!
//! - [`Pool::plan_privatization`] gives a region that shows bytes of another slice ([`Pool::attach`]) a copy of its own
//!   ([`Privatization`]); the caller copies the bytes in between, and ends it.
//!
//! Each of these values is consumed by the next step and cannot be copied. Dropping one leaves its bytes reserved for
//! the life of the slice; nothing else breaks.
//!
//! Rules that always hold ([`Pool::verify`] checks them):
//!
//! - Every byte of a band is free, granted, live or quarantined, and never two of these.
//! - Live bytes lie in regions that are backed or in a lower tier, or were lost there, or that show bytes of another
//!   slice. A backed region holds at least one byte that is not free: a region that becomes empty is taken away at once.
//! - What a slice did not export is reached by no other, and what it has revoked not by a use that begins later.
//! - A slice has at most its limit in regions, wherever their bytes are and whosever they are. Above its guarantee it is given a shard only
//!   while the shards left still cover what is missing to the guarantees of all others.
//! - Nothing is evicted from a slice inside its guarantee for the sake of another.
//! - The sum of guarantees does not exceed the shards the GPUs were configured with.
//! - A call that fails has changed nothing.
//!
//! What this crate does not do: talk to GPUs or scrub (`residency`), check what a guest may touch (`session`), move
//! bytes (`transfer`).
#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

mod address_map;
mod advice;
mod attachment;
mod band;
mod block;
mod config;
mod error;
mod extent;
mod gpu;
mod grant;
mod heat;
mod pin;
mod pool;
mod privatization;
mod region;
mod release;
mod relocation;
mod room;
mod share;
mod slice;
mod sorted;
mod span;
mod tiering;
mod usage;
mod verify;

pub use config::{GpuCapacity, Placement, PoolConfig, SliceConfig, SliceId};
pub use error::{AllocError, DrainError, PoolError, ShareError};
pub use extent::{Extent, Origin, Place};
pub use grant::{AllocRequest, Allocation, Grant};
pub use heat::{AccessKind, Advice, Demand, Heat, HeatConfig, PoolTime, Residence, TierCopy, Victim};
pub use pin::{PinError, Unpinned};
pub use pool::Pool;
pub use privatization::{PrivateLevel, Privatization, PrivatizeError};
pub use region::{Backing, LostRegions, RegionIndex, RegionState};
pub use release::{Freeing, Releasable, ReleasePlan};
pub use relocation::Relocation;
pub use share::{Audience, Rights, ShareId, ShareReport};
pub use tiering::{Eviction, Promotion};
pub use usage::{GpuBytes, GpuUsage, SliceUsage};
pub use verify::Violation;
