//! Carries out what the pool decides: backs regions with shards, scrubs, takes shards away.
//!
//! The pool's books change only when a GPU has really done the thing: an allocation is planned, its shards are made
//! and mapped, then it is committed; a freed range is scrubbed or its shards released, then it is free.
//!
//! Two kinds of threads run this code: whoever allocates (a guest's control thread) does the work of its own
//! allocation itself; freed ranges are handled by a thread of this crate for each slice, so that a free never waits and
//! no slice waits for what another frees.
//!
//! Locks, in this order, none held across a GPU call: the pool, then the shard table.
#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

mod allocate;
mod error;
mod lease;
mod release;
mod residency;

pub use error::{AllocateError, SliceError, StartError};
pub use lease::MemoryLease;
pub use residency::{MemoryConfig, Residency};
