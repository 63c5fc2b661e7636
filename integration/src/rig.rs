//! What most tests of the whole product begin with: one daemon, one guest attached to its slice, the guest's driver
//! loaded and its command line at hand.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::cargo::{Profile, static_guest_binary};
use crate::kernel_module::guest_driver;
use crate::lab::Lab;
use crate::seats::Seats;
use crate::vm::{VhostUserDevice, Vm, VmBuilder};
use crate::vramd::{Vramd, VramdConfig};

/// Name of the slice a [`Rig`] has.
pub const RIG_SLICE: &str = "rig";
/// The driver in the guest's file system.
pub const GUEST_MODULE: &str = "/lib/modules/virtio_vram.ko";

/// What a [`Rig`] is made of.
#[derive(Debug, Clone)]
pub struct RigConfig {
    /// The GPUs, as `--gpu` takes them.
    pub gpu: String,
    /// The slice, as `--slice` takes it behind `NAME=`.
    pub slice: String,
    /// Series of the guest's kernel.
    pub kernel: String,
    /// Processors of the guest.
    pub vcpus: u32,
    /// Virtqueues QEMU offers the guest.
    pub num_vqs: u32,
}

impl Default for RigConfig {
    fn default() -> RigConfig {
        RigConfig {
            gpu: "sim:2x256MiB".into(),
            slice: "512MiB,queues=2".into(),
            kernel: "6.12".into(),
            vcpus: 1,
            num_vqs: 4,
        }
    }
}

/// A daemon and a guest.
#[derive(Debug)]
pub struct Rig {
    /// The guest, with the driver loaded and `vram` in its path.
    pub vm: Vm,
    /// The daemon behind it.
    pub daemon: Vramd,
    seats: Seats,
}

impl Rig {
    /// Starts both, once there is a seat for another VM.
    pub fn start(lab: &Lab, config: RigConfig) -> Result<Rig> {
        Rig::start_with(lab, config, |vm| vm)
    }

    /// [`Rig::start`] with more in the VM.
    pub fn start_with(
        lab: &Lab,
        config: RigConfig,
        more: impl FnOnce(VmBuilder) -> VmBuilder,
    ) -> Result<Rig> {
        // What has to be built is built before a seat is taken.
        let builder = guest_with_driver(lab, &config.kernel)?.vcpus(config.vcpus);
        let slice = format!("{RIG_SLICE}={}", config.slice);
        let vramd = VramdConfig::new(&config.gpu, &[&slice]);
        let seats = lab.seats(1)?;
        let daemon = Vramd::start(vramd)?;
        let device = VhostUserDevice::vram(daemon.socket(RIG_SLICE), config.num_vqs);
        let vm = more(builder.vhost_user(device)).start().with_context(|| daemon.log_tail())?;
        Ok(Rig { vm, daemon, seats })
    }

    /// Whether the slice is as empty as in the beginning; waits for it.
    pub fn wait_until_empty(&self) -> Result<()> {
        self.daemon.wait_until_empty(RIG_SLICE, Duration::from_secs(60))
    }

    /// What the operator sees of the slice.
    pub fn slice(&self) -> Result<Value> {
        self.daemon.slice(RIG_SLICE)
    }

    /// Its parts, for a test that ends one before the other. The seats are for as long as any VM runs.
    pub fn into_parts(self) -> (Vm, Vramd, Seats) {
        (self.vm, self.daemon, self.seats)
    }

    /// Ends both in the orderly way; an error if either has anything to complain of.
    pub fn finish(self) -> Result<()> {
        let (vm, daemon, _seats) = self.into_parts();
        vm.finish().with_context(|| daemon.log_tail())?;
        daemon.finish()
    }
}

/// A VM with the guest's driver, loaded at boot, and its command line as `vram`. The kernel watches its small objects for
/// use after free and writes beyond their ends.
pub fn guest_with_driver(lab: &Lab, kernel_series: &str) -> Result<VmBuilder> {
    let kernel = lab.kernel(kernel_series)?;
    let module = guest_driver(lab, &kernel)?;
    let cli = static_guest_binary("vram", Profile::Release)?;
    let vm = VmBuilder::new(lab).kernel(kernel_series).module(module.path).file(cli, "/usr/bin/vram");
    Ok(vm.kernel_arg("slub_debug=FZP"))
}

impl Vm {
    /// Runs `vram -o json ARGUMENTS` in the guest and returns what it printed. An error if it fails.
    pub fn vram(&self, arguments: &str, timeout: Duration) -> Result<Value> {
        let text = self.run_ok(&format!("vram -o json {arguments}"), timeout)?;
        serde_json::from_str(&text)
            .with_context(|| format!("`vram -o json {arguments}` printed no JSON: {text}"))
    }

    /// Runs steps of `vram raw` in the guest, in a context of their own.
    pub fn raw_steps(&self, steps: &[&str], timeout: Duration) -> Result<Vec<StepOutcome>> {
        let script = raw_script(steps);
        let output = self.run(&script, timeout)?;
        let outcomes: Vec<StepOutcome> = output.text().lines().map(StepOutcome::read).collect();
        ensure!(
            outcomes.len() == steps.len(),
            "`{script}` ended with status {} and outcomes of {} steps: {}\n{}\n{}",
            output.status,
            outcomes.len(),
            output.text(),
            output.error_text(),
            self.console_tail()
        );
        Ok(outcomes)
    }
}

/// The shell command that runs steps of `vram raw`.
pub fn raw_script(steps: &[&str]) -> String {
    steps.iter().fold("vram raw".to_string(), |script, step| format!("{script} '{step}'"))
}

/// What came of one step of `vram raw`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepOutcome {
    /// It succeeded, with this result.
    Ok(String),
    /// It failed, with this errno's name or, if it never reached the device, the whole line.
    Failed(String),
}

impl StepOutcome {
    /// Reads `NUMBER ok RESULT` or `NUMBER error ERRNO (NUMBER) …`.
    pub fn read(line: &str) -> StepOutcome {
        let rest = line.split_once(' ').map_or("", |(_, rest)| rest);
        match rest.split_once(' ') {
            Some(("ok", result)) => StepOutcome::Ok(result.to_string()),
            Some(("error", error)) if error.contains('(') => {
                StepOutcome::Failed(error.split(' ').next().unwrap_or_default().to_string())
            }
            _ => StepOutcome::Failed(line.to_string()),
        }
    }

    /// Whether it failed with this errno.
    pub fn is_errno(&self, name: &str) -> bool {
        matches!(self, StepOutcome::Failed(errno) if errno == name)
    }

    /// The result of a step that succeeded.
    pub fn result(&self) -> Option<&str> {
        match self {
            StepOutcome::Ok(result) => Some(result),
            StepOutcome::Failed(_) => None,
        }
    }
}
