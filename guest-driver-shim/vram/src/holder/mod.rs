//! The holder: a small process that keeps one `/dev/vramN` open, so that memory outlives the command that filled it.
//!
//! A context's memory is freed when its last descriptor is closed, so a one-shot command could keep nothing. The first
//! command that allocates starts the holder; it ends when the last allocation is freed and nobody is connected. It does
//! the bookkeeping only: allocate, name, free. Bytes never pass through it: each client gets the device's descriptor
//! with the first answer and makes its own transfers in the same context.
//!
//! What a client was filling when its connection ended is freed. What a client has opened cannot be freed by another
//! until its connection ends. If the holder is killed the kernel frees everything, and clients say so.

mod client;
mod place;
mod protocol;
mod server;
mod start;
mod table;

pub(crate) use client::{HolderError, Session};
pub(crate) use place::Place;
pub(crate) use protocol::{Digest, Entry, Handle, Name, Wish};
pub(crate) use server::{Readiness, serve};
