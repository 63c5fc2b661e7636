//! A device that stops answering, for a while or for good.

use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;
use vram_integration::{
    GUEST_MODULE, GuestJob, Rig, RigConfig, Vramd, VramdConfig, guest_with_driver, wait_until,
};

use crate::{SHORT, assert_works, lab, rig, rig_on};

const TIMEOUT: Duration = Duration::from_millis(2000);
/// Beyond the timeout a call may take this: it is the guest that is slow.
const SLACK: Duration = Duration::from_millis(1500);

fn set_timeout(rig: &Rig) {
    let script = format!("echo {} >/sys/module/virtio_vram/parameters/timeout_ms", TIMEOUT.as_millis());
    rig.vm.run_ok(&script, SHORT).unwrap();
}

/// A put that is under way, and slow.
fn begin_put(rig: &Rig) -> GuestJob {
    let put = rig.vm.spawn("exec vram put /dev/zero --size 256MiB --name slow").unwrap();
    let some_bytes = || Ok(rig.slice()?["counters"]["in_bytes"].as_u64() > Some(4 << 20));
    wait_until("some bytes to arrive", SHORT, some_bytes).unwrap();
    put
}

/// What was under way ends with an error in time, what comes after fails at once.
fn assert_calls_end(rig: &Rig, put: &GuestJob, since: Instant) {
    let output = rig.vm.wait(put, TIMEOUT + SLACK + SHORT).unwrap();
    let took = since.elapsed();
    assert!(!output.is_success(), "{output:?}");
    assert!(took < TIMEOUT + SLACK, "a wait for a silent device took {took:?}: {output:?}");
    assert!(took > TIMEOUT / 2, "it was given up after {took:?}: {output:?}");
    println!("ended after {took:?}: {}", output.error_text());

    let begun = Instant::now();
    let output = rig.vm.run("vram info", SHORT).unwrap();
    assert!(!output.is_success() && output.error_text().contains("gone"), "{output:?}");
    assert!(begun.elapsed() < SLACK, "a call of a broken device took {:?}", begun.elapsed());
}

fn unload(rig: &Rig) {
    rig.vm.run("vram release --force", SHORT).unwrap();
    rig.vm.run("kill -9 $(pidof vram); sleep 0.2", SHORT).unwrap();
    rig.vm.run_ok("rmmod virtio_vram", SHORT).unwrap();
}

#[test]
fn daemon_stopped_ends_waits_in_time_and_works_again_after_a_reload() {
    let rig = rig_on("sim:2x256MiB,bandwidth=16MiB");
    set_timeout(&rig);
    let put = begin_put(&rig);

    rig.daemon.signal(Signal::SIGSTOP).unwrap();
    let stopped = Instant::now();
    let killed = rig.vm.spawn("exec vram raw 'alloc 1MiB'").unwrap();
    thread::sleep(TIMEOUT / 4);
    rig.vm.kill(&killed).unwrap();
    assert_eq!(rig.vm.wait(&killed, SHORT).unwrap().status, 137);
    assert!(stopped.elapsed() < TIMEOUT, "a killed process waited for the device");
    assert_calls_end(&rig, &put, stopped);

    rig.daemon.signal(Signal::SIGCONT).unwrap();
    unload(&rig);
    rig.vm.run_ok(&format!("insmod {GUEST_MODULE}"), SHORT).unwrap();
    // A driver that had given the device up could not close its contexts; the new one's HELLO has.
    rig.wait_until_empty().unwrap();
    assert_works(&rig, "after");
    rig.finish().unwrap();
}

/// A pause shorter than the timeout is only a pause.
#[test]
fn daemon_stopped_for_a_moment_loses_nothing() {
    let rig = rig(RigConfig::default());
    let job = rig.vm.spawn(
        "head -c 20000000 /dev/urandom >/tmp/f && for n in 1 2 3; do vram put /tmp/f --name f && vram verify f --file /tmp/f && vram free f || exit 1; done",
    );
    let job = job.unwrap();
    for _ in 0..6 {
        thread::sleep(Duration::from_millis(200));
        rig.daemon.signal(Signal::SIGSTOP).unwrap();
        thread::sleep(Duration::from_millis(300));
        rig.daemon.signal(Signal::SIGCONT).unwrap();
    }
    let output = rig.vm.wait(&job, SHORT).unwrap();
    assert!(output.is_success(), "{output:?}");
    rig.finish().unwrap();
}

#[test]
fn daemon_killed_ends_waits_in_time_and_the_guest_stays_up() {
    let mut rig = rig_on("sim:2x256MiB,bandwidth=16MiB");
    set_timeout(&rig);
    let put = begin_put(&rig);

    rig.daemon.kill().unwrap();
    assert_calls_end(&rig, &put, Instant::now());

    unload(&rig);
    // Loading it again is not tried: QEMU 11.1 aborts (an assertion in vhost_dev_get_config) when a guest reads the
    // configuration space of a device whose server is gone.
    rig.vm.run_ok("echo the guest is up", SHORT).unwrap();
    rig.vm.finish().unwrap();
}

/// Resetting the device is a question to the daemon, and QEMU holds the whole guest until it is answered.
#[test]
fn driver_unloaded_while_the_daemon_is_stopped_goes_on_with_it() {
    let rig = rig(RigConfig::default());
    rig.daemon.signal(Signal::SIGSTOP).unwrap();
    let unload = rig.vm.spawn("rmmod virtio_vram").unwrap();
    thread::sleep(Duration::from_secs(1));
    rig.daemon.signal(Signal::SIGCONT).unwrap();

    let output = rig.vm.wait(&unload, SHORT).unwrap();

    assert!(output.is_success(), "{output:?}");
    rig.vm.run_ok(&format!("insmod {GUEST_MODULE}"), SHORT).unwrap();
    assert_works(&rig, "after");
    rig.finish().unwrap();
}

/// QEMU's generic device does not connect again. A device that is plugged while the VM runs can be taken out and put
/// back: how a VM outlives its daemon.
#[test]
fn daemon_started_again_is_reached_by_plugging_the_device_again() {
    let lab = lab();
    let _seats = lab.seats(1).unwrap();
    let mut daemon = Vramd::start(VramdConfig::new("sim:2x64MiB", &["plug=128MiB,queues=2"])).unwrap();
    let vm = guest_with_driver(&lab, "6.12").unwrap();
    let vm = vm.qemu_arg("-device").qemu_arg("pcie-root-port,id=slot1,chassis=1").start().unwrap();
    let path = lab.path_in_tree(&daemon.socket("plug")).unwrap();
    let plug = |number: u32| {
        let backend = json!({"type": "socket", "data": {
            "addr": {"type": "unix", "data": {"path": path}}, "server": false }});
        vm.qmp("chardev-add", json!({"id": format!("vhost{number}"), "backend": backend})).unwrap();
        let device = json!({"driver": "vhost-user-test-device-pci", "id": format!("vram{number}"), "bus": "slot1",
            "chardev": format!("vhost{number}"), "virtio-id": 37, "num_vqs": 4, "vq_size": 256, "config_size": 64});
        vm.qmp("device_add", device).unwrap();
        vm.run_ok("until [ -e /dev/vram0 ]; do sleep 0.1; done", SHORT).unwrap();
    };
    let works = "vram put /bin/busybox --name b && vram verify b --file /bin/busybox && vram release";
    plug(1);
    vm.run_ok(works, SHORT).unwrap();
    vm.vram("put /bin/busybox --name held", SHORT).unwrap();

    daemon.kill().unwrap();
    daemon.start_again().unwrap();
    vm.qmp("device_del", json!({"id": "vram1"})).unwrap();
    vm.run_ok("while [ -e /dev/vram0 ]; do sleep 0.1; done", SHORT).unwrap();
    let lost = vm.run("vram verify held", SHORT).unwrap();
    assert!(!lost.is_success(), "{lost:?}");
    vm.run("kill -9 $(pidof vram)", SHORT).unwrap();
    // The device's name is free once the guest has let go of its slot.
    let unplugged = || Ok(vm.qmp("chardev-remove", json!({"id": "vhost1"})).is_ok());
    wait_until("QEMU to let go of the device", SHORT, unplugged).unwrap();
    plug(2);

    vm.run_ok(works, SHORT).unwrap();
    vm.finish().unwrap();
    daemon.finish().unwrap();
}
