//! The lab itself: every kernel boots, the agent keeps its promises, nothing is left behind.
//!
//! Needs root and, the first time, about a minute and a package mirror for the lab tree.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use vram_integration::{KernelModule, Lab, Process, VhostUserDevice, Vm, VmBuilder};

const SECONDS: Duration = Duration::from_secs(1);
/// For what takes milliseconds unless something is broken, or the machine is very busy.
const SHORT: Duration = Duration::from_secs(60);

fn lab() -> Lab {
    Lab::open().unwrap()
}

fn boot(builder: VmBuilder) -> Vm {
    let vm = builder.start().unwrap();
    println!("kernel {} booted in {:.1} s", vm.kernel().release, vm.boot_time().as_secs_f64());
    vm
}

/// As `sha256sum` prints it for its standard input.
fn sha256_of(path: &Path) -> String {
    let output = Command::new("sha256sum").stdin(fs::File::open(path).unwrap()).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim_end().to_string()
}

#[test]
fn agent_commands_return_output_and_status() {
    let vm = boot(VmBuilder::new(&lab()));

    assert_eq!(vm.run_ok("uname -r", SHORT).unwrap(), vm.kernel().release);

    let output = vm.run("echo out; echo err >&2; exit 7", SHORT).unwrap();
    assert_eq!((output.status, output.text(), output.error_text()), (7, "out".into(), "err".into()));

    let error = vm.run_ok("echo reason >&2; false", SHORT).unwrap_err().to_string();
    assert!(error.contains("status 1") && error.contains("reason"), "{error}");

    let silent = vm.run("", SHORT).unwrap();
    assert!(silent.is_success() && silent.stdout.is_empty());

    let quotes = vm.run_ok("printf '%s|' \"a  b\" '$HOME' 'c\n'", SHORT).unwrap();
    assert_eq!(quotes, "a  b|$HOME|c\n|");

    assert_eq!(vm.kernel_complaints().unwrap(), Vec::<String>::new());
    vm.shut_down().unwrap();
}

/// A guest whose clock is fast breaks off what has time left, and one whose clock is slow waits for ever.
#[test]
fn guest_clock_runs_as_the_hosts() {
    let vm = boot(VmBuilder::new(&lab()).kernel("7").vcpus(2));
    let uptime = || -> f64 {
        let text = vm.run_ok("cat /proc/uptime", SHORT).unwrap();
        text.split_whitespace().next().unwrap().parse().unwrap()
    };
    let (first, begun) = (uptime(), Instant::now());
    std::thread::sleep(3 * SECONDS);
    let (last, passed) = (uptime(), begun.elapsed().as_secs_f64());
    let ratio = (last - first) / passed;
    assert!((0.5..2.0).contains(&ratio), "{passed} s on the host were {} s in the guest", last - first);
    let source = "cat /sys/devices/system/clocksource/clocksource0/current_clocksource";
    assert_ne!(vm.run_ok(source, SHORT).unwrap().trim(), "tsc");
    vm.shut_down().unwrap();
}

#[test]
fn agent_large_binary_data_arrives_unchanged_both_ways() {
    let vm = boot(VmBuilder::new(&lab()));
    // Every byte value, line ends and the agent's own marks included.
    let bytes: Vec<u8> = (0..1_u32 << 20).map(|n| (n ^ (n >> 8) ^ (n >> 16)) as u8).collect();

    let begun = Instant::now();
    vm.push_bytes(&bytes, 0o640, "/some/where/data").unwrap();
    println!("1 MiB into the guest: {:?}", begun.elapsed());
    assert_eq!(vm.run_ok("stat -c %a:%s /some/where/data", SHORT).unwrap(), "640:1048576");

    let begun = Instant::now();
    // Kernel messages meanwhile must not end up in the data.
    let script = "echo noise >/dev/kmsg; cat /some/where/data; echo noise >/dev/kmsg";
    let output = vm.run(script, SHORT).unwrap();
    println!("1 MiB out of the guest: {:?}", begun.elapsed());
    assert!(output.stdout == bytes, "{} bytes came back, not the same ones", output.stdout.len());
    assert!(vm.console_text().contains("noise"));

    let error = vm.push_bytes(b"x", 0o644, "/proc/nowhere").unwrap_err().to_string();
    assert!(error.contains("/proc/nowhere"), "{error}");
    // The channel is still in step after bytes that had nowhere to go.
    assert_eq!(vm.run_ok("echo fine", SHORT).unwrap(), "fine");
}

#[test]
fn agent_command_past_its_deadline_is_killed_with_its_children() {
    let vm = boot(VmBuilder::new(&lab()));
    let begun = Instant::now();
    let error = vm.run("sleep 4321 & sleep 4321", SECONDS).unwrap_err().to_string();
    assert!(begun.elapsed() < 5 * SECONDS);
    assert!(error.contains("did not end within 1s") && error.contains("guest console"), "{error}");

    let count = "sleep 0.5; ps | grep -c '[s]leep 4321'";
    assert_eq!(vm.run(count, SHORT).unwrap().text(), "0");
}

#[test]
fn agent_jobs_run_beside_other_commands() {
    let vm = boot(VmBuilder::new(&lab()).vcpus(2));
    let slow = vm.spawn("read line </root/go-pipe || true; echo slow $line").unwrap();
    let endless = vm.spawn("sleep 4321").unwrap();
    assert_eq!(vm.run_ok("echo quick", SHORT).unwrap(), "quick");
    vm.kill(&endless).unwrap();
    assert_eq!(vm.wait(&endless, SHORT).unwrap().status, 137);
    assert_eq!(vm.wait(&slow, SHORT).unwrap().text(), "slow");

    // A daemon left running does not hold up the command that started it.
    vm.run_ok("sleep 4321 & echo started", 5 * SECONDS).unwrap();
}

#[test]
fn reboot_and_reset_bring_the_agent_back_in_the_same_qemu() {
    let vm = boot(VmBuilder::new(&lab()));
    let pid = vm.pid();
    let boot_id = "cat /proc/sys/kernel/random/boot_id";
    let first = vm.run_ok(boot_id, SHORT).unwrap();
    vm.run_ok("touch /gone", SHORT).unwrap();

    let begun = Instant::now();
    vm.reboot(60 * SECONDS).unwrap();
    println!("rebooted in {:.1} s", begun.elapsed().as_secs_f64());
    let second = vm.run_ok(boot_id, SHORT).unwrap();
    assert_ne!(first, second);
    assert_eq!(vm.run("test -e /gone", SHORT).unwrap().status, 1);

    let caught = vm.spawn("sleep 4321").unwrap();
    vm.reset(60 * SECONDS).unwrap();
    let error = format!("{:#}", vm.wait(&caught, SHORT).unwrap_err());
    assert!(error.contains("reset while the command ran"), "{error}");
    assert_ne!(second, vm.run_ok(boot_id, SHORT).unwrap());
    assert_eq!(vm.pid(), pid);
}

#[test]
fn guest_panic_is_reported_at_once_with_the_console() {
    let vm = boot(VmBuilder::new(&lab()));
    let begun = Instant::now();
    let error = format!("{:#}", vm.run("echo c >/proc/sysrq-trigger", 60 * SECONDS).unwrap_err());
    assert!(error.contains("kernel panicked") && error.contains("sysrq triggered crash"), "{error}");
    assert!(begun.elapsed() < 10 * SECONDS);
}

#[test]
fn dropped_vm_leaves_no_process_no_folder_and_no_mount() {
    let lab = lab();
    let vm = boot(VmBuilder::new(&lab));
    let proc = format!("/proc/{}", vm.pid());
    assert!(fs::read_to_string(format!("{proc}/comm")).unwrap().starts_with("qemu-system"));
    drop(vm);
    assert!(!Path::new(&proc).exists());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&*lab.tree().to_string_lossy()));
}

#[test]
fn wrong_qemu_arguments_are_reported_with_qemus_words() {
    let error = VmBuilder::new(&lab()).qemu_arg("-no-such-option").start().unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("QEMU ended") && error.contains("-no-such-option"), "{error}");
}

#[test]
fn disk_holds_the_sample_file() {
    let lab = lab();
    let wanted = 64 << 20;
    let sample = lab.sample_file(wanted).unwrap();
    let length = fs::metadata(&sample).unwrap().len();
    assert!(length >= wanted && length.is_multiple_of(512), "{length}");
    let vm = boot(VmBuilder::new(&lab).disk(&sample));

    assert_eq!(vm.run_ok("blockdev --getsize64 /dev/vda", SHORT).unwrap(), length.to_string());
    let begun = Instant::now();
    let inside = vm.run_ok("sha256sum </dev/vda", SHORT).unwrap();
    println!("read and hashed {} MiB in {:.1} s", length >> 20, begun.elapsed().as_secs_f64());
    assert_eq!(inside, sha256_of(&sample));
    assert!(!vm.run("echo x >/dev/vda", SHORT).unwrap().is_success());
}

/// The generic device and shared guest memory carry a real vhost-user server: QEMU's own block server, which
/// the guest's stock block driver takes for a disk.
#[test]
fn vhost_user_device_reaches_its_server() {
    let lab = lab();
    let sample = lab.sample_file(64 << 20).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("block.sock");
    let in_tree = |path: &Path| lab.path_in_tree(path).unwrap().display().to_string();
    let mut command = lab.command("qemu-storage-daemon");
    command
        .arg("--blockdev")
        .arg(format!("driver=file,node-name=sample,read-only=on,filename={}", in_tree(&sample)))
        .arg("--export")
        .arg(format!(
            "type=vhost-user-blk,id=e,node-name=sample,addr.type=unix,addr.path={}",
            in_tree(&socket)
        ));
    let mut server = Process::start("block server", &command, &folder.path().join("server.log")).unwrap();
    server.wait_for_path(&socket, SHORT).unwrap();

    let device = VhostUserDevice { virtio_id: 2, config_size: 60, ..VhostUserDevice::vram(&socket, 1) };
    let vm = boot(VmBuilder::new(&lab).stock_module("virtio_blk").vhost_user(device));
    assert_eq!(vm.run_ok("cat /sys/bus/virtio/devices/*/device | grep -c 0x0002", SHORT).unwrap(), "1");
    let inside = vm.run_ok("sha256sum </dev/vda", SHORT).unwrap();
    assert_eq!(inside, sha256_of(&sample));

    vm.shut_down().unwrap();
    server.terminate(SHORT).unwrap();
}

/// A module of ours builds against every kernel of the lab, loads there, and one that fails says so.
fn own_module_loads_on(series: &str) {
    let lab = lab();
    let kernel = lab.kernel(series).unwrap();
    let sources = tempfile::tempdir().unwrap();
    let folder = sources.path().join("probe");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("Kbuild"), "obj-m := probe.o\n").unwrap();
    fs::write(
        folder.join("probe.c"),
        "#include <linux/module.h>\n#include <linux/virtio.h>\n\
         static int answer = 1;\nmodule_param(answer, int, 0444);\n\
         static int __init probe_init(void) { return answer == 1 ? 0 : -ENODEV; }\n\
         static void __exit probe_exit(void) { }\n\
         module_init(probe_init);\nmodule_exit(probe_exit);\n\
         MODULE_DESCRIPTION(\"Probe\");\nMODULE_LICENSE(\"GPL\");\n",
    )
    .unwrap();
    let module = KernelModule::build(&lab, &kernel, &[&folder], &[]).unwrap();
    assert!(!folder.join("probe.ko").exists(), "the build wrote beside the sources");

    let vm = boot(VmBuilder::new(&lab).kernel(series).module(&module.path));
    assert_eq!(vm.run_ok("uname -r", SHORT).unwrap(), kernel.release);
    assert_eq!(vm.run_ok("cat /sys/module/probe/parameters/answer", SHORT).unwrap(), "1");
    vm.run_ok("rmmod probe", SHORT).unwrap();
    assert!(!vm.run("insmod /lib/modules/probe.ko answer=2", SHORT).unwrap().is_success());
    assert_eq!(vm.kernel_complaints().unwrap(), Vec::<String>::new());
}

#[test]
fn own_module_loads_on_kernel_6_1() {
    own_module_loads_on("6.1");
}

#[test]
fn own_module_loads_on_kernel_6_12() {
    own_module_loads_on("6.12");
}

#[test]
fn own_module_loads_on_kernel_7() {
    own_module_loads_on("7");
}

#[test]
fn broken_module_source_is_reported_with_the_compilers_words() {
    let lab = lab();
    let sources = tempfile::tempdir().unwrap();
    fs::write(sources.path().join("Kbuild"), "obj-m := broken.o\n").unwrap();
    fs::write(sources.path().join("broken.c"), "#error not today\n").unwrap();
    let error = KernelModule::build(&lab, &lab.kernel("6.12").unwrap(), &[sources.path()], &[]).unwrap_err();
    assert!(format!("{error:#}").contains("not today"));
}

#[test]
fn module_that_fails_to_load_fails_the_start() {
    let lab = lab();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nonsense.ko");
    fs::write(&path, b"not a module").unwrap();
    let error = format!("{:#}", VmBuilder::new(&lab).module(&path).start().unwrap_err());
    assert!(error.contains("could not load nonsense.ko"), "{error}");
}
