//! Named threads that contain their panics.
//!
//! Every worker thread of vram is started here, so that it has a name in logs and debuggers, and so that a panic ends
//! that thread's work only: it becomes an error in the log and an [`Outcome`] for whoever started the thread, never
//! the end of the process and never a silent loss. [`contain`] gives the same to a piece of work inside a thread.
//!
//! Containing needs `panic = "unwind"`, which the release profile keeps. It does not help against aborts: a panic
//! while another one unwinds, a stack overflow, or running out of memory.
#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

mod error;
mod outcome;
mod worker;

pub use error::SpawnError;
pub use outcome::{Outcome, Panic, contain};
pub use worker::{Worker, spawn_named, spawn_supervised};
