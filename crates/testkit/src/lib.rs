//! Fake virtual machines for tests and benches: guest RAM in memfds, a vhost-user frontend, the driver's side of a
//! ring, and a driver that speaks virtio-vram. And a fake daemon for tests of what operators use.
//!
//! Three layers, each usable alone, so that a test can be wrong in just the way it wants: [`FakeVm`] is the VMM,
//! [`DriverRing`] the ring (down to single descriptors), [`Driver`] a well-behaved driver.
#![forbid(unsafe_code)]

mod daemon;
mod driver;
mod load;
mod memory;
mod ring;
mod vm;

pub use daemon::FakeDaemon;
pub use driver::{Answer, Driver};
pub use load::Load;
pub use memory::{GuestRam, RamRegion};
pub use ring::{Descriptor, DriverRing, UsedChain};
pub use vm::{FakeVm, VmSpec};
