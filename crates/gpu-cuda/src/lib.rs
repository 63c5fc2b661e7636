//! GPUs through the CUDA driver: [`CudaBackend`], the only thing here, and the only crate that names cudarc and NVML.
//!
//! The driver is loaded when a backend is made, not before, and every function needed is looked up then: a host
//! without a driver, or with one that is too old, is one `GpuError::Unavailable` that says what is missing. cudarc
//! gives the library, the types and the layouts; its functions are not called, because they abort on a missing symbol
//! and return a Rust enum that a newer driver's result code need not be a value of. `symbols` has typed pointers to
//! the same functions that return a plain integer.
//!
//! What the backend keeps beside the driver:
//! - a book of bands, so that a bad address is an error at the call and never a fault that ends the context;
//! - a book of registered host memory. A copy of registered memory is one call; other host memory goes through a
//!   page-locked buffer of the stream, filled and emptied by host functions in stream order, because the driver's own
//!   copies of pageable memory block their caller;
//! - the spans each stream still needs, released when an event behind them is reached.
//!
//! One primary context per GPU, retained while the backend lives, made current for each call on whatever thread it
//! comes from. Streams do not wait for the default stream. When the driver reports an error and the context answers
//! nothing else from then on, the GPU is lost: every later call for it is `DeviceLost`.
//!
//! It says `simulated` when the driver is a simulated one, by a function only that has or by the names of its GPUs.
//!
//! What it does not do: kernels, MIG instances beside each other (a process sees one), reset of a lost GPU.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

mod api;
mod backend;
mod device;
mod event;
mod host;
mod memory;
mod staging;
mod stream;
mod symbols;
mod sysfs;
mod topology;

pub use backend::CudaBackend;
