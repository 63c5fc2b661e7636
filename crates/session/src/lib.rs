//! One guest's world: its contexts, streams and allocations, and what it may touch.
//!
//! A [`Session`] is made when a frontend connects and ends when it leaves. Control requests are carried out by the
//! control queue's thread, one after the other, and may block while memory is set up. Data requests are handed to the
//! transfer engine and answered from there.
//!
//! This is where addresses a guest names are checked: a range must lie in one live allocation of the request's
//! context, and a lease on that allocation goes with the job, so that nothing is freed under a transfer.
//!
//! What happens to the guest's memory without its asking waits here, bounded, until the device can tell it.
//!
//! Lock order: the session's state, then the pool (through residency). Neither is held while a job is submitted or a
//! stream is waited for.
#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

mod context;
mod control;
mod counters;
mod data;
mod error;
mod events;
mod session;

pub use counters::{Counters, Totals};
pub use data::{Answer, Answered};
pub use events::EventWaker;
pub use session::{Reply, Session, SessionConfig};
