//! Runs what README.md tells a new user to type under "Use it for real", on this machine and in a guest. `cargo run -p xtask -- docs` checks that the commands here are the ones printed there.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use vram_integration::{Lab, Process, VhostUserDevice, Vm, VmBuilder, wait_until, workspace_root};

use crate::SHORT;

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

/// Runs `$3` in the folder `$2` of the lab's Debian as a guest with the kernel `$1` would, but on this machine's
/// processors: an emulated one takes four minutes to build the driver.
const AS_THE_GUEST: &str = r#"set -e
mkdir "$2/bin"
printf '#!/bin/sh\n[ "$*" = -r ] && echo %s || exec /usr/bin/uname "$@"\n' "$1" >"$2/bin/uname"
chmod 755 "$2/bin/uname"
PATH=$2/bin:$PATH
cd "$2"
eval "$3""#;
/// What the guest's user has copied there.
const GUEST_FOLDER: &str = "/root/work";

#[test]
fn commands_of_the_readme_work_on_a_host_and_in_a_guest() -> Result<()> {
    let lab = Lab::open()?;
    let dir = tempfile::tempdir()?;
    let host = Host::start(dir.path())?;

    let printed = fs::read_to_string(dir.path().join("output"))?;
    for part in ["vram simulated GPU 3", "demo", "num_vqs=4", "queue_sizes=[256,256,256,256]", "drained"] {
        ensure!(printed.contains(part), "the host's commands did not print {part}:\n{printed}");
    }
    let [build, rest @ ..] = GUEST else { anyhow::bail!("no commands") };
    let builder = VmBuilder::new(&lab).vcpus(2);
    let mut builder = builder.vhost_user(VhostUserDevice::vram(dir.path().join("run/demo.sock"), 4));
    let work = dir.path().join("work");
    copy_for_the_guest(&work)?;
    build_as_the_guest(&lab, &work, build)?;
    for file in ["guest-driver-shim/linux/virtio_vram.ko", "vram"] {
        builder = builder.file(work.join(file), &format!("{GUEST_FOLDER}/{file}"));
    }
    let vm = builder.file(lab.tree().join("etc/os-release"), "/etc/os-release").start()?;
    let link = format!("mkdir -p /usr/local/bin && ln -s {GUEST_FOLDER}/vram /usr/local/bin/vram");
    vm.run_ok(&link, SHORT)?;
    for command in rest {
        in_guest(&vm, command)?;
    }
    let same = in_guest(&vm, "cmp /etc/os-release /tmp/os-release && echo the same")?;
    ensure!(same.contains("the same"), "{same}");
    ensure!(vm.kernel_complaints()?.is_empty(), "{:?}", vm.kernel_complaints()?);
    vm.shut_down()?;
    host.stop(dir.path())
}

fn in_guest(vm: &Vm, command: &str) -> Result<String> {
    let script = format!("cd {GUEST_FOLDER} && export PATH=/usr/local/bin:$PATH && {command}");
    vm.run_ok(&script, SHORT).with_context(|| format!("in the guest: {command}"))
}

/// Puts what a user copies into the guest into a folder.
fn copy_for_the_guest(to: &Path) -> Result<()> {
    let root = workspace_root();
    let script = "mkdir -p \"$2\" && cd \"$1\" && cp target/x86_64-unknown-linux-gnu/release/vram \"$2\" && \
        git ls-files -z guest-driver-shim/linux guest-driver-shim/include | tar --null -T - -c | tar -x -C \"$2\"";
    let status = Command::new("sh").args(["-ec", script, "sh"]).arg(root).arg(to).status().context("sh")?;
    ensure!(status.success(), "what the guest needs could not be copied");
    Ok(())
}

fn build_as_the_guest(lab: &Lab, work: &Path, command: &str) -> Result<()> {
    let release = lab.kernel(VmBuilder::DEFAULT_KERNEL)?.release;
    let mut shell = lab.command("bash");
    let built = shell.args(["-c", AS_THE_GUEST, "bash", &release]).arg(lab.path_in_tree(work)?).arg(command);
    let built = built.output().context("bash in the lab tree")?;
    let (printed, errors) = (String::from_utf8_lossy(&built.stdout), String::from_utf8_lossy(&built.stderr));
    ensure!(built.status.success(), "in the guest: {command}:\n{printed}{errors}");
    Ok(())
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
