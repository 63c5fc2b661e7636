//! A `vramd` that belongs to a test or to the demo, with its sockets in a folder of its own.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::cargo::{Profile, cargo_binary};
use crate::host::{Process, wait_until};

/// How long the daemon may take to listen, and to end.
const START_STOP: Duration = Duration::from_secs(60);

/// How a daemon is to be started.
#[derive(Debug, Clone)]
pub struct VramdConfig {
    /// As `--gpu` takes it: `sim:2x256MiB` or `cuda`.
    pub gpu: String,
    /// As `--shard` takes it.
    pub shard: String,
    /// As `--slice` takes them: `NAME=LIMIT[,…]`.
    pub slices: Vec<String>,
    /// Set in its environment.
    pub environment: Vec<(String, OsString)>,
    /// How `vramd` and `vramctl` are built.
    pub profile: Profile,
}

impl VramdConfig {
    /// Simulated or real GPUs in shards of 16 MiB, with these slices.
    pub fn new(gpu: &str, slices: &[&str]) -> VramdConfig {
        VramdConfig {
            gpu: gpu.into(),
            shard: "16MiB".into(),
            slices: slices.iter().map(|slice| (*slice).into()).collect(),
            environment: Vec::new(),
            profile: Profile::Dev,
        }
    }
}

/// A running daemon. Dropping it kills it and removes its sockets.
#[derive(Debug)]
pub struct Vramd {
    // Declared first, dropped first: the daemon ends before its folder goes.
    process: Process,
    folder: TempDir,
    config: VramdConfig,
    vramctl: PathBuf,
    starts: u32,
}

impl Vramd {
    /// Builds and starts it; when this returns, frontends can connect.
    pub fn start(config: VramdConfig) -> Result<Vramd> {
        let vramctl = cargo_binary("vramctl", config.profile)?;
        let folder = tempfile::Builder::new()
            .prefix("vramd.")
            .tempdir()
            .context("Could not create a temporary folder for the daemon's sockets")?;
        let process = start_process(&config, folder.path(), 1)?;
        Ok(Vramd { process, folder, config, vramctl, starts: 1 })
    }

    /// Starts it again with the same configuration and sockets, after it was killed or ended.
    pub fn start_again(&mut self) -> Result<()> {
        if self.process.exit_status()?.is_none() {
            bail!("The daemon still runs");
        }
        self.starts += 1;
        self.process = start_process(&self.config, self.folder.path(), self.starts)?;
        Ok(())
    }

    /// Where the VMM of a slice connects.
    pub fn socket(&self, slice: &str) -> PathBuf {
        self.folder.path().join(format!("{slice}.sock"))
    }

    /// Runs `vramctl` against this daemon and returns its standard output. An error if it fails.
    pub fn vramctl(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new(&self.vramctl)
            .arg("--control")
            .arg(self.folder.path().join("control.sock"))
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("Could not start {}", self.vramctl.display()))?;
        ensure!(
            output.status.success(),
            "`vramctl {}` ended with {}: {}\n{}",
            arguments.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim_end(),
            self.log_tail()
        );
        String::from_utf8(output.stdout).context("vramctl printed something that is not UTF-8")
    }

    /// Runs `vramctl` with JSON output.
    pub fn vramctl_json(&self, arguments: &[&str]) -> Result<Value> {
        let text = self.vramctl(&[arguments, &["-o", "json"]].concat())?;
        serde_json::from_str(&text).with_context(|| format!("vramctl printed no JSON: {text}"))
    }

    /// What the operator sees of a slice.
    pub fn slice(&self, name: &str) -> Result<Value> {
        self.vramctl_json(&["slice", "show", name])
    }

    /// Waits until a slice has no context, no allocation and no memory behind it.
    pub fn wait_until_empty(&self, slice: &str, timeout: Duration) -> Result<()> {
        let mut last = Value::Null;
        let waited = wait_until(&format!("slice {slice} to be empty"), timeout, || {
            last = self.slice(slice)?;
            let fields = ["contexts", "allocations", "allocated_bytes", "backed_bytes", "quarantined_bytes"];
            Ok(fields.iter().all(|field| last[field] == 0))
        });
        waited.with_context(|| format!("It is {last:#}\n{}", self.log_tail()))
    }

    /// Sends it a signal, such as SIGSTOP.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }

    /// Kills it as a crash would.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Ends it in the orderly way. An error if it does not end well, or has panicked or reported an internal error
    /// in its life.
    pub fn finish(mut self) -> Result<()> {
        let status = self.process.terminate(START_STOP)?;
        ensure!(status.success(), "vramd ended with {status}.\n{}", self.log_tail());
        let log = self.process.log_text();
        if let Some(line) = log.lines().find(|line| line.contains("panicked") || line.contains("ERROR")) {
            bail!("vramd complained: {line}\n{}", self.log_tail());
        }
        Ok(())
    }

    /// The end of its log, for messages.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }

    /// All it has logged since it was started last.
    pub fn log_text(&self) -> String {
        self.process.log_text()
    }
}

impl Drop for Vramd {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", self.log_tail());
        }
    }
}

fn start_process(config: &VramdConfig, folder: &Path, number: u32) -> Result<Process> {
    let mut command = Command::new(cargo_binary("vramd", config.profile)?);
    command.arg("--socket-dir").arg(folder).args(["--gpu", &config.gpu, "--shard", &config.shard]);
    for slice in &config.slices {
        command.args(["--slice", slice]);
    }
    command.env("NO_COLOR", "1").envs(config.environment.iter().map(|(name, value)| (name, value)));
    let mut process = Process::start("vramd", &command, &folder.join(format!("vramd.{number}.log")))?;
    process.wait_for_log("vramd is ready", START_STOP)?;
    Ok(process)
}
