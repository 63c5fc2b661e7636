//! How bytes move: jobs become copies on GPU lanes, in the order their streams demand.
//!
//! A [`Job`] is one guest request (or one of our own, a scrub say). It is planned into steps, one per piece that lies
//! on one GPU and one run of host memory; steps go to *lanes*, one per GPU and direction, each a stream of the GPU
//! backend with a thread that waits for its events. A [`Stream`] orders jobs: the next one begins when those before
//! it are done, or at once where the same lane keeps the order anyway.
//!
//! What needs no GPU, between host memory or out of a store that can only be read ([`ColdSource`]), is done by threads of
//! two *host lanes*, one for memory and one for stores. They keep no order.
//!
//! Where the bytes of a job are may be found out only when its turn comes ([`Locate`]): they may be on their way to
//! another GPU, and then the stream waits. They may also be found out piece by piece, where not all can be kept in
//! their places at once.
//!
//! A job holds what it needs alive until it is done: host spans, and leases on the device memory it touches.
//!
//! Where bytes live is not decided here (`pool`), nor who may touch them (`session`).
#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

mod backlog;
mod engine;
mod error;
mod host_lane;
mod host_piece;
mod job;
mod lane;
mod ledger;
mod part;
mod plan;
mod stream;

pub use engine::{Engine, EngineError};
pub use error::TransferError;
pub use job::{Again, Done, Flow, Job, Lease, Locate, Located, Outcome, Work};
pub use part::{ColdSource, Part};
pub use stream::{CloseWait, Group, Stream};
