//! Guest memory: maps received from any transport, checked ranges, and spans that keep what they point at alive.
//!
//! This is the only home of pointers into guest RAM. A [`HostSpan`] is the one way such a pointer leaves the crate:
//! it names bytes that stay mapped for as long as any clone of the span lives, even when the frontend has taken the
//! memory away meanwhile. The bytes belong to somebody else and may change at any time, so nothing here ever makes a
//! `&` or `&mut` to them.
//!
//! A frontend that truncates the file behind its memory would make the next access raise SIGBUS; [`sigbus`] turns
//! that into zeros and a poisoned region instead of the end of the daemon.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

mod arena;
mod buffer;
mod file_kind;
mod map;
pub mod sigbus;
mod span;
mod span_list;

pub use arena::{ArenaError, ArenaSpec, HostArena, HostSlot};
pub use buffer::HostBuffer;
pub use map::{Departed, GuestMap, MAX_GUEST_BYTES, MAX_REGIONS, MapError, RegionSpec};
pub use span::{HostSpan, SpanError};
pub use span_list::SpanList;
