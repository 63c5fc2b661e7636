//! Real virtual machines for the tests and the demo.
//!
//! A [`Lab`] is a Debian root tree, built once into a cache folder, that holds QEMU, guest kernels of several
//! series with their headers, and the compilers those headers name. A [`Vm`] is one QEMU started from it,
//! with an agent inside that runs commands for the test. A [`Process`] is a host program that dies with the
//! test; [`Vramd`] is the one most tests want, and a [`Rig`] is a [`Vm`] attached to it.
//!
//! Rules: nothing outlives the test process (children carry a parent-death signal, mounts live in private
//! namespaces); every wait has a deadline; what fails quotes the log that explains it. The lab needs root on
//! an x86_64 Debian host, no network card is given to a guest, and only Unix sockets are used.

#![forbid(unsafe_code)]

mod agent;
mod cargo;
mod faulty_device;
mod guest_program;
mod host;
mod initramfs;
mod kernel_image;
mod kernel_module;
mod lab;
mod qmp;
mod rig;
mod sample;
mod seats;
mod vm;
mod vramd;

pub use agent::Output;
pub use cargo::{Profile, cargo_binary, static_guest_binary, workspace_root};
pub use faulty_device::{Fault, FaultyDevice, Requests, When};
pub use guest_program::guest_program;
pub use host::{Process, wait_until};
pub use initramfs::Initramfs;
pub use kernel_module::{KernelModule, guest_driver};
pub use lab::{Kernel, Lab};
pub use rig::{GUEST_MODULE, RIG_SLICE, Rig, RigConfig, StepOutcome, guest_with_driver, raw_script};
pub use seats::Seats;
pub use vm::{GuestJob, VhostUserDevice, Vm, VmBuilder};
pub use vramd::{Vramd, VramdConfig};
