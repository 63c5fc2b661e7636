//! libvram: GPU memory of the pool, for a program in a virtual machine.
//!
//! A [`Device`] is one open `/dev/vramN`, which is one context: memory allocated through it is freed when its last
//! descriptor is closed, by whatever end the process comes to. A [`Stream`] is a lane of it whose transfers run in
//! order. An [`Allocation`] owns device memory and frees it when dropped; everything can also be named by its bare
//! [`DeviceAddress`], because an address stays the same for the allocation's life.
//!
//! Every call blocks until its bytes are where they should be. Calls on different streams, from different threads, run
//! at the same time. Nothing here copies bytes or holds a buffer of its own: what the caller passes goes to the kernel.
//!
//! The same functions with a C ABI are in `vram.h`; `ffi` is their implementation. The kernel module's ABI is stated
//! once, in `uapi`, and checked against `vram_ioctl.h` by a test. `driver` is the only module that makes system calls.

mod address;
mod allocation;
mod c_structures;
mod device;
mod driver;
mod error;
mod event;
mod ffi;
mod info;
mod stream;
mod uapi;

#[cfg(test)]
mod layout;
#[cfg(test)]
mod model;

pub use address::{DeviceAddress, StreamId};
pub use allocation::Allocation;
pub use device::{DEFAULT_DEVICE, DEVICE_VARIABLE, Device};
pub use error::{Attempt, Error, Operation};
pub use event::Event;
pub use info::{Advice, Extent, Gpu, Info, Placement, Tier, Version};
pub use stream::{Pattern, Stream};
