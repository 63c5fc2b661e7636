//! Runs what README.md tells a new user to type under "Use it for real", on this machine and in a guest with a Debian
//! of its own. `cargo run -p xtask -- docs` checks that the commands here are the ones printed there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use vram_integration::{Lab, Process, VhostUserDevice, Vm, VmBuilder, wait_until, workspace_root};

/// What is typed on the host, in order. The daemon is given time to come up before what follows it.
const HOST: &[&str] = &[
    "cargo build --release --bin vramd --bin vramctl",
    "install -m 755 target/release/vramd target/release/vramctl /usr/local/bin/",
    r#"RUSTFLAGS="-C target-feature=+crt-static" cargo build --release --target x86_64-unknown-linux-gnu -p vram-cli"#,
    "vramd --gpu sim:4x1GiB --slice demo=2GiB,guarantee=1GiB,queues=2 &",
    "vramctl gpu list",
    "vramctl slice list",
    "vramctl slice attach demo --vmm qemu",
    "vramctl slice attach demo --vmm cloud-hypervisor",
    "vramctl slice resize demo --limit 3GiB --guarantee 512MiB",
    "vramctl slice create batch --limit 1GiB",
    "vramctl slice remove batch",
    "vramctl gpu drain 0 --wait",
    "vramctl gpu undrain 0",
    "vramctl tier list",
];

/// What is typed in the guest, in order.
const GUEST: &[&str] = &[
    "make -C guest-driver-shim/linux",
    "insmod guest-driver-shim/linux/virtio_vram.ko",
    "vram info",
    "vram put /etc/os-release --name first",
    "vram copy first second",
    "vram list",
    "vram verify second --file /etc/os-release",
    "vram get second /tmp/os-release",
    "vram free --all",
];

/// Makes the root file system a guest without one of its own works in: the disk read-only, what is written in memory.
const ENTER: &str = "set -e
mkdir -p /lower /upper /guest
mount -t ext4 -o ro /dev/vda /lower
mount -t tmpfs tmpfs /upper
mkdir -p /upper/data /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/data,workdir=/upper/work overlay /guest
for place in proc sys dev; do mount --bind /$place /guest/$place; done
mount -t tmpfs tmpfs /guest/run
mkdir -p /guest/root/work /guest/usr/local/bin
tar -xf /dev/vdb -C /guest/root/work
mv /guest/root/work/vram /guest/usr/local/bin/vram";

#[test]
fn commands_of_the_readme_work_on_a_host_and_in_a_guest() -> Result<()> {
    let lab = Lab::open()?;
    let dir = tempfile::tempdir()?;
    let host = Host::start(dir.path())?;

    let printed = fs::read_to_string(dir.path().join("output"))?;
    for part in ["vram simulated GPU 3", "demo", "num_vqs=4", "queue_sizes=[256,256,256,256]", "drained"] {
        ensure!(printed.contains(part), "the host's commands did not print {part}:\n{printed}");
    }
    let device = VhostUserDevice::vram(dir.path().join("run/demo.sock"), 4);
    let vm = VmBuilder::new(&lab)
        .memory_mib(1536)
        .vcpus(2)
        .stock_module("ext4")
        .stock_module("overlay")
        .disk(root_disk(&lab)?)
        .disk(driver_disk(dir.path())?)
        .vhost_user(device)
        .start()?;
    vm.run_ok(ENTER, Duration::from_secs(60))?;
    for command in GUEST {
        in_guest(&vm, command)?;
    }
    let same = in_guest(&vm, "cmp /etc/os-release /tmp/os-release && echo the same")?;
    ensure!(same.contains("the same"), "{same}");
    ensure!(vm.kernel_complaints()?.is_empty(), "{:?}", vm.kernel_complaints()?);
    vm.shut_down()?;
    host.stop(dir.path())
}

/// The guest builds the module with an emulated processor.
const COMMAND_LIMIT: Duration = Duration::from_secs(600);

fn in_guest(vm: &Vm, command: &str) -> Result<String> {
    let script = format!(
        "chroot /guest /bin/bash -c 'cd /root/work && export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin && {command}'"
    );
    vm.run_ok(&script, COMMAND_LIMIT).with_context(|| format!("in the guest: {command}"))
}

/// The host's half: a shell in namespaces of its own, so that installing touches nothing of this machine and
/// everything it starts ends with it.
struct Host {
    shell: Process,
}

impl Host {
    fn start(dir: &Path) -> Result<Self> {
        for folder in ["bin", "run"] {
            fs::create_dir(dir.join(folder))?;
        }
        let place = dir.display();
        let mut script = format!(
            "set -eu\nunset CARGO_TARGET_DIR RUSTFLAGS\nmkdir -p /run/vram\nmount --bind {place}/bin /usr/local/bin\n\
             mount --bind {place}/run /run/vram\nexport PATH=/usr/local/bin:$PATH\ncd '{}'\n",
            workspace_root().display()
        );
        for command in HOST {
            if command.ends_with('&') {
                script += &format!("{command}\ndaemon=$!\n");
                script += "while [ ! -S /run/vram/control.sock ]; do kill -0 $daemon; sleep 0.1; done\n";
            } else {
                script += &format!("{command} >> {place}/output\n");
            }
        }
        script += &format!(
            "touch {place}/ready\nwhile [ ! -e {place}/stop ]; do sleep 0.1; done\nkill $daemon\nwait $daemon\n"
        );
        let mut command = Command::new("unshare");
        command.args([
            "--mount",
            "--pid",
            "--fork",
            "--kill-child=KILL",
            "--mount-proc",
            "bash",
            "-c",
            &script,
        ]);
        let mut shell = Process::start("readme-host", &command, &dir.join("host.log"))?;
        let ready = dir.join("ready");
        // Two release builds may have to be made.
        let up = wait_until("the host's commands", Duration::from_secs(900), || {
            if let Some(status) = shell.exit_status()? {
                anyhow::bail!("the host's commands ended early: {status}");
            }
            Ok(ready.exists())
        });
        up.with_context(|| shell.log_tail())?;
        Ok(Self { shell })
    }

    fn stop(mut self, dir: &Path) -> Result<()> {
        fs::write(dir.join("stop"), "")?;
        let status = self.shell.wait_exit(Duration::from_secs(30))?;
        ensure!(status.success(), "vramd did not end cleanly: {}", self.shell.log_tail());
        Ok(())
    }
}

/// The lab's Debian as a disk, made once: a guest's system with a compiler and the headers of its kernel.
fn root_disk(lab: &Lab) -> Result<PathBuf> {
    let tree = lab.tree();
    let name = tree.file_name().context("the tree has a name")?.to_string_lossy().into_owned();
    let disk = lab.cache().join(format!("root-{name}.ext4"));
    if !disk.exists() {
        let building = lab.cache().join(format!("root-{name}.{}.building", std::process::id()));
        let status = Command::new("mke2fs")
            .args(["-q", "-t", "ext4", "-O", "^has_journal", "-d"])
            .arg(tree)
            .arg(&building)
            .arg("2500M")
            .status()
            .context("mke2fs, of the package e2fsprogs")?;
        ensure!(status.success(), "mke2fs failed");
        fs::rename(&building, &disk)?;
    }
    Ok(disk)
}

/// What a user copies into the guest, as a disk that is a tar archive.
fn driver_disk(dir: &Path) -> Result<PathBuf> {
    let disk = dir.join("driver.tar");
    let root = workspace_root();
    let status = Command::new("tar")
        .arg("-cf")
        .arg(&disk)
        .arg("-C")
        .arg(&root)
        .args(["--exclude=*.o", "--exclude=*.ko", "guest-driver-shim/linux", "guest-driver-shim/include"])
        .arg("-C")
        .arg(root.join("target/x86_64-unknown-linux-gnu/release"))
        .arg("vram")
        .status()
        .context("tar")?;
    ensure!(status.success(), "tar failed");
    Ok(disk)
}
