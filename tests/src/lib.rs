//! What the whole-daemon tests share: a daemon in this process on simulated GPUs, and the binaries for tests that
//! spawn them.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use tempfile::TempDir;
use vram_gpu::Backend;
use vram_gpu_contract::SimulatedDriver;
use vram_gpu_sim::{Faults, SimBackend, SimConfig};
use vram_residency::Residency;
use vram_testkit::{Driver, VmSpec};
use vramd::args::{Args, GpuBackend};
use vramd::config::{Config, SliceConfig};
use vramd::daemon::Daemon;

mod random_guest;

pub use random_guest::RandomGuest;

/// A daemon in this process.
pub struct TestDaemon {
    /// It.
    pub daemon: Daemon,
    /// Faults of its GPUs.
    pub faults: Faults,
    /// Its GPUs.
    pub sim: Arc<SimBackend>,
    dir: TempDir,
}

/// A slice for a test: name, limit in bytes, guarantee in bytes.
pub type SliceSpec<'a> = (&'a str, u64, u64);

/// Bytes of a shard in these tests: small, so that little memory crosses many shards.
pub const SHARD_BYTES: u64 = 2 << 20;

impl TestDaemon {
    /// Starts on simulated GPUs described in the simulator's own words, fresh memory dirty so that a missing scrub shows.
    pub fn start(sim: &str, slices: &[SliceSpec<'_>]) -> Result<Self> {
        Self::start_with_tiers(sim, slices, &[])
    }

    /// As [`TestDaemon::start`], with tiers described as for `--tier`.
    pub fn start_with_tiers(sim: &str, slices: &[SliceSpec<'_>], tiers: &[&str]) -> Result<Self> {
        let options = tiers.iter().flat_map(|tier| ["--tier", tier]);
        let args = ["vramd", "--shard", "2MiB", "--slice", "unused=2MiB"].into_iter().chain(options);
        let tiers = Config::load(Args::try_parse_from(args)?)?.tiers;
        let dir = tempfile::tempdir().context("a temporary folder")?;
        let config = Config {
            gpu: GpuBackend::Sim(sim.to_owned()),
            gpu_is_default: false,
            shard: vram_control_api::ByteSize(SHARD_BYTES),
            socket_dir: dir.path().to_owned(),
            socket_group: None,
            control: dir.path().join("control.sock"),
            control_group: None,
            virtio_id: 37,
            log_level: vramd::args::LogLevel::Warn,
            slices: slices
                .iter()
                .map(|(name, limit, guarantee)| SliceConfig {
                    name: (*name).to_owned(),
                    limit: vram_control_api::ByteSize(*limit),
                    guarantee: vram_control_api::ByteSize(*guarantee),
                    placement: Default::default(),
                    request_queues: 2,
                    home: None,
                    socket: dir.path().join(format!("{name}.sock")),
                    group: None,
                })
                .collect(),
            tiers,
        };
        let sim = Arc::new(SimBackend::new(SimConfig::parse(sim)?)?);
        let faults = sim.faults();
        let backend: Arc<dyn Backend> = Arc::<SimBackend>::clone(&sim);
        Ok(Self { daemon: Daemon::start_on(&config, backend)?, faults, sim, dir })
    }

    /// Where a slice listens.
    pub fn socket(&self, slice: &str) -> PathBuf {
        self.dir.path().join(format!("{slice}.sock"))
    }

    /// A VM on a slice, driver connected, HELLO said.
    pub fn driver(&self, slice: &str) -> Result<Driver> {
        let mut driver = Driver::connect(&self.socket(slice), &VmSpec::default())?;
        driver.hello(0x1234)?;
        Ok(driver)
    }

    /// The memory of its GPUs.
    pub fn residency(&self) -> &Arc<Residency> {
        self.daemon.state().residency()
    }

    /// Bytes of shards in use on all GPUs.
    pub fn used_bytes(&self) -> u64 {
        let pool = self.residency().pool();
        pool.gpus().iter().map(|gpu| u64::from(gpu.used_shards) * pool.shard_bytes()).sum()
    }

    /// Waits until no shard is in use; what a test that frees everything ends with.
    pub fn expect_all_memory_back(&self) -> Result<()> {
        self.expect_used(0)
    }

    /// Waits until just so many bytes of shards are in use.
    pub fn expect_used(&self, bytes: u64) -> Result<()> {
        if eventually(|| self.used_bytes() == bytes) {
            return Ok(());
        }
        anyhow::bail!("{} bytes of shards are in use, expected {bytes}", self.used_bytes())
    }

    /// Waits until so many copies and fills have been enqueued on the GPUs since the start.
    pub fn expect_copies(&self, count: u64) -> Result<()> {
        ensure!(
            eventually(|| self.faults.copies() >= count),
            "{} copies were enqueued, expected {count}",
            self.faults.copies()
        );
        Ok(())
    }
}

/// Whether something becomes true within ten seconds.
fn eventually(mut is_true: impl FnMut() -> bool) -> bool {
    for _ in 0..2000 {
        if is_true() {
            return true;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    false
}

/// The real daemon in a process of its own, ended with the test. Its GPUs are simulated below or above the driver.
pub struct SpawnedVramd {
    child: Child,
    /// The folder of the simulated driver, which the daemon opens once it runs.
    _driver: Option<SimulatedDriver>,
}

/// How a [`SpawnedVramd`] comes by GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gpus {
    /// `--gpu sim:…`.
    Sim,
    /// `--gpu cuda` over the simulated driver: the code that runs on a real GPU.
    SimulatedDriver,
}

impl SpawnedVramd {
    /// Starts it with GPUs of this description and these slices, sockets in `dir`.
    pub fn start(gpus: Gpus, spec: &str, slices: &[&str], dir: &Path) -> Result<Self> {
        let mut command = Command::new(binary("vramd")?);
        let driver = match gpus {
            Gpus::Sim => {
                command.arg("--gpu").arg(format!("sim:{spec}"));
                None
            }
            Gpus::SimulatedDriver => {
                let driver = SimulatedDriver::locate().context("the simulated driver")?;
                command.args(["--gpu", "cuda"]);
                command.env("LD_LIBRARY_PATH", driver.library_path()).env("VRAM_SIMCUDA_GPUS", spec);
                Some(driver)
            }
        };
        for slice in slices {
            command.args(["--slice", slice]);
        }
        command.args(["--shard", "2MiB", "--log-level", "warn", "--socket-dir"]).arg(dir);
        Ok(Self { child: command.stdout(Stdio::null()).spawn().context("vramd")?, _driver: driver })
    }

    /// Whether it is still there.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }
}

impl Drop for SpawnedVramd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The path of a binary of this workspace, built if need be.
pub fn binary(name: &str) -> Result<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let folder = BUILT.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    match folder {
        Ok(folder) => Ok(folder.join(name)),
        Err(error) => anyhow::bail!("{error}"),
    }
}

fn build() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the workspace folder")?;
    let status = Command::new(cargo)
        .args(["build", "--quiet", "--bin", "vramd", "--bin", "vramctl"])
        .current_dir(workspace)
        .status()
        .context("cargo build")?;
    ensure!(status.success(), "cargo build of vramd and vramctl failed");
    // This test's own binary lies in target/PROFILE/deps.
    let own = std::env::current_exe().context("this program's path")?;
    let profile = own.ancestors().nth(2).context("the target folder")?;
    Ok(profile.parent().context("the target folder")?.join("debug"))
}
