//! The whole product in real virtual machines: `vramd` with simulated GPUs, QEMU, a stock guest kernel with our module,
//! and programs in the guest that use it.
//!
//! At most two VMs run at once. Every test ends with the guest's kernel and the daemon asked for complaints.
//!
//! Tests start in the order of their names, and the longest, which mostly waits for one emulated processor, comes first
//! so that the others run beside it.

mod as_the_readme_says;
mod calls;
mod cuda;
mod endings;
mod isolation;
mod kernels;
mod load;
mod operator;
mod queues;
mod silence;

use std::time::Duration;

use vram_integration::{Lab, Rig, RigConfig};

/// For what takes milliseconds unless something is broken, or the machine is very busy.
const SHORT: Duration = Duration::from_secs(60);

fn lab() -> Lab {
    Lab::open().unwrap()
}

fn rig(config: RigConfig) -> Rig {
    Rig::start(&lab(), config).unwrap()
}

/// Simulated GPUs of this description behind a slice of 512 MiB.
fn rig_on(gpu: &str) -> Rig {
    rig(RigConfig { gpu: gpu.into(), ..RigConfig::default() })
}

/// Puts a few MiB of random bytes into the device under this name, copies them there, and compares both.
fn assert_works(rig: &Rig, name: &str) {
    let script = format!(
        "head -c 5000001 /dev/urandom >/tmp/{name} && vram put /tmp/{name} --name {name} && \
         vram copy {name} {name}-copy && vram verify {name}-copy --file /tmp/{name} && vram get {name} /tmp/{name}.back && \
         cmp /tmp/{name} /tmp/{name}.back && vram free {name} && vram free {name}-copy && rm /tmp/{name} /tmp/{name}.back"
    );
    rig.vm.run_ok(&script, SHORT).unwrap_or_else(|error| panic!("{error:#}\n{}", rig.daemon.log_tail()));
}
