//! The vram daemon: its command line, its configuration, and what it is put together from.
#![forbid(unsafe_code)]

pub mod args;
pub mod complaint;
pub mod config;
pub mod daemon;
pub mod log;
pub mod signals;
mod slices;
pub mod state;
mod tiers;
