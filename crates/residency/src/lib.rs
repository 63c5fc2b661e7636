//! Carries out what the pool decides: backs regions with shards, scrubs, takes shards away.
//!
//! The pool's books change only when a GPU has really done the thing: an allocation is planned, its shards are made
//! and mapped, then it is committed; a freed range is scrubbed or its shards released, then it is free.
//!
//! What is read or written finds out where it is when its turn comes ([`Residency::access`]), and keeps it there
//! meanwhile. A region that moves to another GPU waits for that, and then is waited for.
//!
//! A slice may show bytes to others ([`Residency::export`], [`Residency::attach`]), and so may slices without a guest, which
//! are images ([`Residency::import_image`]); see `docs/decisions/0015`.
//!
//! What does not fit the GPUs lies in tiers and is served there, or comes back; see `docs/decisions/0016`.
//!
//! Whoever allocates (a guest's control thread) does the work of its own allocation itself. Each slice has a thread that
//! takes back what it frees, so that a free never waits, and one that brings its regions to where they are needed. One
//! thread moves regions off GPUs that are drained, and one, if there are tiers, keeps room ahead of demand.
//!
//! Locks, in this order, none held across a call of a GPU or a tier: the table of images, the pool, then the table of shards or of tiers, or the
//! list of who waits for moving bytes. The landing addresses are locked for as long as a region lands there, before all of
//! these. A stream of the transfer engine may hold its own lock around the pool's, never the other way.
#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

mod access;
mod advise;
mod allocate;
mod bell;
mod error;
mod evict;
mod fetch;
mod image;
mod kept;
mod lease;
mod moves;
mod places;
mod privatize;
mod promote;
mod release;
mod relocate;
mod residency;
mod share;
mod shift;
mod tend;
mod tiers;
mod watch;

pub use access::Access;
pub use advise::{Advice, AdviseError};
pub use error::{AllocateError, AttachError, ImageError, SliceError, StartError};
pub use image::{ImageConfig, ImageReport, ImageStage};
pub use lease::MemoryLease;
pub use places::BytePlace;
pub use residency::{MemoryConfig, Residency};
pub use share::Revocation;
pub use tiers::{Tier, TierReport};
pub use vram_tier::TierKind;
pub use watch::{MemoryEvent, MemoryWatch};
