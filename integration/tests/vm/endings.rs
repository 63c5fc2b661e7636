//! What ends: a process, the driver, the guest's kernel, the whole machine. Its memory comes back, and what comes after
//! works.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use vram_integration::{
    GUEST_MODULE, RIG_SLICE, Rig, RigConfig, VhostUserDevice, VmBuilder, guest_with_driver, wait_until,
};

use crate::{SHORT, assert_works, lab, rig, rig_on};

const SECOND: Duration = Duration::from_secs(1);

/// What the guest itself says of the slice.
fn assert_guest_sees_no_memory(rig: &Rig) {
    let info = rig.vm.vram("info", SHORT).unwrap();
    assert_eq!((&info["allocated_bytes"], &info["allocations"]), (&0.into(), &0.into()), "{info:#}");
}

/// Copies of a second each. Killed processes end at once, although the device still works on what they asked for.
#[test]
fn process_killed_in_a_copy_gives_its_memory_back() {
    let rig = rig_on("sim:2x256MiB,copy-delay=1s");
    let job = rig.vm.spawn("exec vram raw 'alloc 48MiB' 'alloc 48MiB' 'copy @1 @0 48MiB'").unwrap();
    wait_until("both allocations", SHORT, || Ok(rig.slice()?["allocations"] == 2)).unwrap();
    thread::sleep(SECOND / 2);

    let killed = Instant::now();
    rig.vm.kill(&job).unwrap();
    let output = rig.vm.wait(&job, SHORT).unwrap();

    assert_eq!(output.status, 137, "{output:?}");
    assert!(killed.elapsed() < SECOND, "a killed process took {:?} to end", killed.elapsed());
    assert!(!output.text().contains("2 ok"), "the copy was over before: {output:?}");
    rig.daemon.wait_until_empty(RIG_SLICE, 2 * SHORT).unwrap();
    assert_guest_sees_no_memory(&rig);
    rig.finish().unwrap();
}

#[test]
fn process_killed_in_a_put_gives_its_memory_back() {
    let rig = rig_on("sim:2x256MiB,bandwidth=16MiB");
    let job = rig.vm.spawn("exec vram put /dev/zero --size 128MiB --name never").unwrap();
    let some_bytes = || Ok(rig.slice()?["counters"]["in_bytes"].as_u64() > Some(8 << 20));
    wait_until("some bytes to arrive", SHORT, some_bytes).unwrap();

    rig.vm.kill(&job).unwrap();

    assert_eq!(rig.vm.wait(&job, 4 * SECOND).unwrap().status, 137);
    rig.wait_until_empty().unwrap();
    assert_guest_sees_no_memory(&rig);
    let listed = rig.vm.vram("list", SHORT).unwrap();
    assert_eq!(listed, json!([]));
    rig.finish().unwrap();
}

#[test]
fn holder_killed_gives_all_it_held_back() {
    let rig = rig(RigConfig::default());
    rig.vm.run_ok("for n in 1 2 3; do vram put /bin/busybox --name b$n; done", SHORT).unwrap();
    assert_eq!(rig.slice().unwrap()["allocations"], 3);

    rig.vm.run_ok("kill -9 $(pidof vram)", SHORT).unwrap();

    rig.wait_until_empty().unwrap();
    let output = rig.vm.run("vram verify b1", SHORT).unwrap();
    assert!(!output.is_success(), "{output:?}");
    assert_works(&rig, "after");
    rig.finish().unwrap();
}

#[test]
fn module_reloaded_works_again_once_nobody_uses_it() {
    let rig = rig(RigConfig::default());
    rig.vm.vram("put /bin/busybox --name held", SHORT).unwrap();

    let busy = rig.vm.run("rmmod virtio_vram", SHORT).unwrap();
    assert!(!busy.is_success(), "a module in use was unloaded");
    rig.vm.vram("verify held", SHORT).unwrap();

    for round in 0..3 {
        rig.vm.run_ok("vram release; rmmod virtio_vram", SHORT).unwrap();
        rig.wait_until_empty().unwrap();
        assert!(!rig.vm.run("vram info", SHORT).unwrap().is_success());
        rig.vm.run_ok(&format!("insmod {GUEST_MODULE}"), SHORT).unwrap();
        assert_works(&rig, &format!("round{round}"));
        rig.vm.vram("put /bin/busybox --name held", SHORT).unwrap();
    }
    rig.finish().unwrap();
}

/// Unbinding is what unplugging does: files stay open, every call fails, a new bind begins anew.
#[test]
fn driver_unbound_under_open_files_lets_go_and_binds_again() {
    let rig = rig(RigConfig::default());
    rig.vm.vram("put /bin/busybox --name held", SHORT).unwrap();
    let driver = "/sys/bus/virtio/drivers/virtio_vram";
    let device = rig.vm.run_ok(&format!("cd {driver}; echo virtio*"), SHORT).unwrap();

    rig.vm.run_ok(&format!("echo {device} >{driver}/unbind"), SHORT).unwrap();

    let output = rig.vm.run("vram verify held", SHORT).unwrap();
    assert!(!output.is_success(), "{output:?}");
    rig.vm.run_ok(&format!("echo {device} >{driver}/bind"), SHORT).unwrap();
    // The new session has closed the old one's contexts, whether their files are closed or not.
    rig.wait_until_empty().unwrap();
    rig.vm.run_ok("kill -9 $(pidof vram)", SHORT).unwrap();
    assert_works(&rig, "after");
    rig.finish().unwrap();
}

#[test]
fn guest_rebooted_or_reset_works_again_with_an_empty_slice() {
    let rig = rig(RigConfig::default());
    let hold = || {
        rig.vm.vram("put /dev/zero --size 64MiB --name held", SHORT).unwrap();
        assert_eq!(rig.slice().unwrap()["allocated_bytes"], 64 << 20);
    };
    hold();
    assert_eq!(rig.vm.kernel_complaints().unwrap(), Vec::<String>::new());

    rig.vm.reboot(3 * SHORT).unwrap();
    rig.wait_until_empty().unwrap();
    assert_works(&rig, "rebooted");
    hold();
    rig.vm.reset(3 * SHORT).unwrap();
    rig.wait_until_empty().unwrap();
    assert_works(&rig, "reset");

    rig.finish().unwrap();
}

#[test]
fn vm_killed_gives_all_memory_back_and_another_takes_its_place() {
    let lab = lab();
    let (vm, daemon, _seats) = rig(RigConfig::default()).into_parts();
    vm.vram("put /dev/zero --size 64MiB --name held", SHORT).unwrap();
    assert_eq!(daemon.slice(RIG_SLICE).unwrap()["state"], "in_use");

    drop(vm);

    daemon.wait_until_empty(RIG_SLICE, SHORT).unwrap();
    let slice = daemon.slice(RIG_SLICE).unwrap();
    assert_eq!(slice["state"], "waiting_for_frontend", "{slice:#}");
    let vm = guest_with_driver(&lab, "6.12").unwrap();
    let vm = vm.vhost_user(VhostUserDevice::vram(daemon.socket(RIG_SLICE), 4)).start().unwrap();
    vm.run_ok("vram put /bin/busybox --name b && vram verify b --file /bin/busybox", SHORT).unwrap();
    vm.finish().unwrap();
    daemon.finish().unwrap();
}

/// A sleeping guest keeps its memory on the device: the driver resumes its session.
#[test]
fn guest_that_slept_finds_its_memory_again() {
    let rig = Rig::start_with(&lab(), RigConfig::default(), VmBuilder::boot_packed).unwrap();
    let (vm, daemon, _seats) = rig.into_parts();
    let status = || vm.qmp("query-status", json!({})).unwrap()["status"].clone();
    vm.vram("put /bin/busybox --name held", SHORT).unwrap();

    let sleep = vm.spawn("echo mem >/sys/power/state").unwrap();
    wait_until("the guest to sleep", SHORT, || Ok(status() == "suspended")).unwrap();
    vm.qmp("system_wakeup", json!({})).unwrap();
    assert!(vm.wait(&sleep, SHORT).unwrap().is_success());

    vm.vram("verify held --file /bin/busybox", SHORT).unwrap();
    assert_eq!(daemon.slice(RIG_SLICE).unwrap()["allocations"], 1);
    vm.run_ok("vram put /bin/busybox --name new && vram verify new && vram release", SHORT).unwrap();
    vm.unload_driver().unwrap();
    // QEMU does not power off a guest that has slept, with our device or without.
    drop(vm);
    daemon.finish().unwrap();
}

/// Paused and continued, as by an operator who looks at the machine or migrates its disk.
#[test]
fn vm_paused_in_a_transfer_goes_on_where_it_was() {
    let rig = rig_on("sim:2x256MiB,bandwidth=32MiB");
    rig.vm.run_ok("head -c 60000000 /dev/urandom >/tmp/f", SHORT).unwrap();
    let job = rig.vm.spawn("vram put /tmp/f --name f && vram verify f --file /tmp/f").unwrap();
    for _ in 0..5 {
        thread::sleep(SECOND / 2);
        rig.vm.qmp("stop", json!({})).unwrap();
        thread::sleep(SECOND / 4);
        rig.vm.qmp("cont", json!({})).unwrap();
    }
    let output = rig.vm.wait(&job, 2 * SHORT).unwrap();
    assert!(output.is_success(), "{output:?}\n{}", rig.daemon.log_tail());
    rig.finish().unwrap();
}
