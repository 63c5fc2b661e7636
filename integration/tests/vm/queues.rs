//! Queues and interrupts: as many as there are, whoever offers more.

use vram_integration::{Rig, RigConfig, VhostUserDevice, guest_with_driver};

use crate::{SHORT, assert_works, lab, rig};

/// Whether the guest works with this many request queues.
fn assert_request_queues(rig: &Rig, queues: u32) {
    let info = rig.vm.vram("info", SHORT).unwrap();
    assert_eq!(info["request_queues"], queues, "{info:#}");
    assert_works(rig, "f");
}

/// QEMU's generic device gives one interrupt vector, which Linux does not use for several queues.
#[test]
fn interrupts_fall_back_to_intx_and_are_shared_by_all_queues() {
    let rig = rig(RigConfig { vcpus: 2, ..RigConfig::default() });
    let count = || -> u64 {
        let lines = rig.vm.run_ok("grep virtio /proc/interrupts", SHORT).unwrap();
        let device = rig.vm.run_ok("cd /sys/bus/virtio/drivers/virtio_vram; echo virtio*", SHORT).unwrap();
        let line =
            lines.lines().find(|line| line.split_whitespace().any(|word| word.trim_matches(',') == device));
        let line = line.unwrap_or_else(|| panic!("no interrupt of {device}: {lines}"));
        assert!(line.contains("IO-APIC"), "{line}");
        line.split_whitespace().skip(1).map_while(|word| word.parse::<u64>().ok()).sum()
    };

    let info = rig.vm.vram("info", SHORT).unwrap();
    assert_eq!((&info["interrupt_vectors"], &info["request_queues"]), (&0.into(), &2.into()), "{info:#}");
    let before = count();
    assert_works(&rig, "f");
    let after = count();
    assert!(after > before, "{before} interrupts before, {after} after");
    rig.finish().unwrap();
}

#[test]
fn frontend_with_fewer_queues_than_the_slice_uses_those_it_has() {
    let rig =
        rig(RigConfig { slice: "512MiB,queues=4".into(), num_vqs: 3, vcpus: 2, ..RigConfig::default() });
    assert_request_queues(&rig, 1);
    rig.finish().unwrap();
}

#[test]
fn guest_with_fewer_processors_than_queues_uses_one_for_each() {
    let rig =
        rig(RigConfig { slice: "512MiB,queues=4".into(), num_vqs: 6, vcpus: 2, ..RigConfig::default() });
    assert_request_queues(&rig, 2);
    rig.finish().unwrap();
}

/// QEMU refuses to start, and the daemon goes on to serve one that fits.
#[test]
fn frontend_with_more_queues_than_the_slice_is_refused_cleanly() {
    let lab = lab();
    let rig = rig(RigConfig { slice: "512MiB,queues=1".into(), num_vqs: 3, ..RigConfig::default() });
    let (vm, daemon, _seats) = rig.into_parts();
    vm.finish().unwrap();
    let socket = daemon.socket(vram_integration::RIG_SLICE);

    let wrong =
        guest_with_driver(&lab, "6.12").unwrap().vhost_user(VhostUserDevice::vram(&socket, 6)).start();

    let error = format!("{:#}", wrong.unwrap_err());
    assert!(error.contains("QEMU ended") && error.contains("num_vqs=6"), "{error}");
    let right =
        guest_with_driver(&lab, "6.12").unwrap().vhost_user(VhostUserDevice::vram(&socket, 3)).start();
    let vm = right.unwrap();
    vm.run_ok("vram put /bin/busybox --name b && vram verify b --file /bin/busybox", SHORT).unwrap();
    vm.finish().unwrap();
    daemon.finish().unwrap();
}
