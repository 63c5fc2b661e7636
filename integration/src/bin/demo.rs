//! The demo: a file larger than one GPU goes into a virtual machine, through the virtio device onto several GPUs,
//! is copied there, and comes out again the same.
//!
//! Everything is real but the GPUs, which are simulated, and the processor of the guest, which QEMU emulates. The exit
//! status is 0 only if all digests are equal.

#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use vram_integration::{
    GUEST_MODULE, KernelModule, Lab, Profile, VhostUserDevice, Vm, VmBuilder, Vramd, VramdConfig,
    cargo_binary, guest_driver, static_guest_binary,
};

const GPUS: u64 = 4;
const GPU_BYTES: u64 = 256 << 20;
/// More than one GPU has.
const FILE_BYTES: u64 = 320 << 20;
const SLICE: &str = "demo";
/// Room for the file twice, in whole shards.
const SLICE_LIMIT: &str = "768MiB";
const REQUEST_QUEUES: u32 = 2;
const SHARD: &str = "64MiB";
const GUEST_KERNEL: &str = "6.12";
/// Moving the file once; under emulation and on a busy machine.
const TRANSFER: Duration = Duration::from_secs(120);
const SHORT: Duration = Duration::from_secs(30);
/// The file in the guest, and where it goes back to.
const INPUT: &str = "/dev/vda";
const OUTPUT: &str = "/dev/vdb";

fn main() -> ExitCode {
    match demo() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\ndemo: FAILED: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn demo() -> Result<()> {
    let mut steps = Steps::new();
    println!("{SIMULATED}\n");

    steps.begin("preparing QEMU and a guest kernel");
    let lab = Lab::open()?;
    let kernel = lab.kernel(GUEST_KERNEL)?;
    let built = build(&mut steps, &lab)?;

    steps.begin("packing a file of real data");
    let original = lab.sample_file(FILE_BYTES)?;
    let bytes =
        fs::metadata(&original).with_context(|| format!("Could not inspect {}", original.display()))?.len();
    ensure!(
        bytes > GPU_BYTES,
        "The file has {bytes} bytes, not more than one GPU; the demo would show nothing"
    );
    steps.begin("hashing it on the host");
    let host_sha256 = sha256_of(&original)?;
    steps.say(&format!("{} ({bytes} bytes)", mib(bytes)));

    steps.begin("starting vramd");
    let mut config = VramdConfig::new(
        &format!("sim:{GPUS}x{}MiB", GPU_BYTES >> 20),
        &[&format!("{SLICE}={SLICE_LIMIT},queues={REQUEST_QUEUES}")],
    );
    config.shard = SHARD.into();
    config.profile = Profile::Release;
    let daemon = Vramd::start(config)?;

    steps.begin("booting a virtual machine");
    let folder = tempfile::tempdir().context("Could not create a temporary folder")?;
    let returned = folder.path().join("returned");
    File::create(&returned)
        .and_then(|file| file.set_len(bytes))
        .with_context(|| format!("Could not create {}", returned.display()))?;
    let vm = VmBuilder::new(&lab)
        .kernel(GUEST_KERNEL)
        .vcpus(2)
        .disk(&original)
        .writable_disk(&returned)
        .unloaded_module(&built.module.path)
        .file(&built.cli, "/usr/bin/vram")
        .vhost_user(VhostUserDevice::vram(daemon.socket(SLICE), 2 + REQUEST_QUEUES))
        .start()
        .with_context(|| daemon.log_tail())?;
    steps.say(&format!("Linux {}", kernel.release));

    let moved = in_the_guest(&mut steps, &vm, bytes).with_context(|| daemon.log_tail())?;
    steps.begin("what the operator sees (vramctl gpu list, slice list)");
    let seen = daemon.vramctl(&["gpu", "list"])? + "\n" + &daemon.vramctl(&["slice", "list"])?;
    steps.begin("freeing everything");
    vm.vram("release", SHORT)?;
    daemon.wait_until_empty(SLICE, SHORT)?;
    steps.begin("shutting down");
    vm.finish().with_context(|| daemon.log_tail())?;
    daemon.finish()?;
    steps.begin("hashing on the host what came back");
    let returned_sha256 = sha256_of(&returned)?;
    steps.end();

    println!("\n{}", moved.guest_info);
    println!("\n{seen}");
    println!("Where the bytes lie");
    for (name, placement) in [("a", &moved.placement_a), ("b", &moved.placement_b)] {
        print_placement(name, placement)?;
    }
    println!("\nThroughput (guest processor emulated, GPUs simulated: these are not the numbers of a GPU)");
    for (what, result) in [
        ("put    file -> a", &moved.put),
        ("verify a -> guest", &moved.verify["rate"]),
        ("copy   a -> b", &moved.copy),
        ("get    b -> file", &moved.get),
    ] {
        print_rate(what, result)?;
    }
    println!("\nSHA-256");
    let digests = [
        ("file on the host", host_sha256.clone()),
        ("read by the guest while putting", text(&moved.put, "sha256")?),
        ("read back from allocation a", text(&moved.verify, "sha256")?),
        ("read back from its copy b", text(&moved.get, "sha256")?),
        ("what came back, on the host", returned_sha256),
    ];
    for (whose, digest) in &digests {
        println!("  {digest}  {whose}");
    }
    let different: Vec<&str> =
        digests.iter().filter(|(_, digest)| *digest != host_sha256).map(|(whose, _)| *whose).collect();
    ensure!(
        different.is_empty(),
        "The bytes changed on their way. These digests differ from the file's: {}",
        different.join("; ")
    );
    println!(
        "\nAll {} digests are equal. {:.1} s in all.\n\n{SIMULATED}",
        digests.len(),
        steps.total().as_secs_f64()
    );
    Ok(())
}

const SIMULATED: &str = "\
****************************************************************************
*** SIMULATED GPUs: 4 of 256 MiB, made of host memory. No GPU is used.   ***
*** The data path to them is the real one: guest process, kernel module, ***
*** virtio device in QEMU, vramd. The speed is not that of a GPU.        ***
****************************************************************************";

struct Built {
    cli: std::path::PathBuf,
    module: KernelModule,
}

fn build(steps: &mut Steps, lab: &Lab) -> Result<Built> {
    steps.begin("building vramd and vramctl");
    for name in ["vramd", "vramctl"] {
        cargo_binary(name, Profile::Release)?;
    }
    steps.begin("building the guest's command line, vram");
    let cli = static_guest_binary("vram", Profile::Release)?;
    steps.begin("building the guest's kernel module, virtio_vram");
    let module = guest_driver(lab, &lab.kernel(GUEST_KERNEL)?)?;
    Ok(Built { cli, module })
}

/// What the guest reported.
struct Moved {
    guest_info: String,
    put: Value,
    verify: Value,
    copy: Value,
    get: Value,
    placement_a: Value,
    placement_b: Value,
}

fn in_the_guest(steps: &mut Steps, vm: &Vm, bytes: u64) -> Result<Moved> {
    steps.begin("guest: loading the kernel module");
    vm.run_ok(&format!("insmod {GUEST_MODULE}"), SHORT)?;
    // Disks are whole sectors; the file's own length is what counts.
    steps.begin("guest: vram put, the file to the GPUs");
    let put = vm.vram(&format!("put {INPUT} --name a --size {bytes}"), TRANSFER)?;
    steps.begin("guest: vram verify, reading it back");
    let verify = vm.vram("verify a", TRANSFER)?;
    steps.begin("guest: vram copy, from GPU to GPU");
    let copy = vm.vram("copy a b", TRANSFER)?;
    steps.begin("guest: vram get, the copy to a file");
    let get = vm.vram(&format!("get b {OUTPUT}"), TRANSFER)?;
    vm.run_ok("sync", TRANSFER)?;
    let guest_info = vm.run_ok("echo '# vram info'; vram info; echo '# vram list'; vram list", SHORT)?;
    for (what, result) in [("put", &put), ("verify", &verify), ("copy", &copy), ("get", &get)] {
        ensure!(result["bytes"] == bytes, "vram {what} speaks of {} bytes, not {bytes}", result["bytes"]);
    }
    let placement_a = copy["source"]["placement"].clone();
    let placement_b = copy["placement"].clone();
    Ok(Moved { guest_info, put, verify, copy, get, placement_a, placement_b })
}

fn print_placement(name: &str, placement: &Value) -> Result<()> {
    let parts = placement.as_array().context("vram copy told no placement")?;
    ensure!(parts.len() > 1, "Allocation {name} lies on one GPU, although it is larger than one");
    for part in parts {
        println!(
            "  {name}  GPU {} {}: {}",
            part["gpu"],
            text(part, "gpu_name")?,
            mib(part["bytes"].as_u64().context("A part without its bytes")?)
        );
    }
    Ok(())
}

fn print_rate(what: &str, rate: &Value) -> Result<()> {
    let number =
        |field: &str| rate[field].as_f64().with_context(|| format!("No {field} was told for {what}"));
    println!(
        "  {what:18} {:8.1} MiB/s in {:6.2} s; the device alone {:8.1} MiB/s",
        number("mib_per_second")?,
        number("seconds")?,
        number("device_mib_per_second")?
    );
    Ok(())
}

fn text(value: &Value, field: &str) -> Result<String> {
    Ok(value[field].as_str().with_context(|| format!("There is no {field} in {value}"))?.to_string())
}

/// By a program that shares no code with ours.
fn sha256_of(path: &Path) -> Result<String> {
    let file = File::open(path).with_context(|| format!("Could not open {}", path.display()))?;
    let output = Command::new("sha256sum").stdin(file).output().context("Could not start sha256sum")?;
    let printed = String::from_utf8_lossy(&output.stdout);
    match printed.split_whitespace().next() {
        Some(digest) if output.status.success() && digest.len() == 64 => Ok(digest.to_string()),
        _ => bail!("sha256sum could not read {} ({})", path.display(), output.status),
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Lines that tell what goes on and how long it took.
struct Steps {
    begun: Instant,
    step: Option<Instant>,
    notes: Vec<String>,
}

impl Steps {
    fn new() -> Steps {
        Steps { begun: Instant::now(), step: None, notes: Vec::new() }
    }

    fn begin(&mut self, what: &str) {
        self.end();
        println!("[{:6.1} s] {what}", self.begun.elapsed().as_secs_f64());
        self.step = Some(Instant::now());
    }

    /// Said when the step ends.
    fn say(&mut self, what: &str) {
        self.notes.push(what.to_string());
    }

    fn end(&mut self) {
        if let Some(step) = self.step.take() {
            let notes: String = self.notes.drain(..).map(|note| format!("{note}, ")).collect();
            println!("           {notes}{:.1} s", step.elapsed().as_secs_f64());
        }
    }

    fn total(&self) -> Duration {
        self.begun.elapsed()
    }
}
