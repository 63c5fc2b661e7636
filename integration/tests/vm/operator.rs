//! What the operator does and sees while a VM uses the daemon.

use serde_json::{Value, json};
use vram_integration::{RIG_SLICE, Rig, RigConfig, Vramd, VramdConfig, guest_with_driver};

use crate::{SHORT, lab, rig};

#[test]
fn vramctl_shows_what_the_guest_does() {
    let rig = rig(RigConfig::default());
    let slice = rig.slice().unwrap();
    assert_eq!((&slice["state"], &slice["contexts"]), (&json!("in_use"), &json!(0)), "{slice:#}");

    let too_much = "vram put /dev/zero --size 300MiB --name large && vram copy large copy";
    let refused = rig.vm.run(too_much, SHORT).unwrap();
    assert!(refused.error_text().contains("limit does not allow it"), "{refused:?}");
    rig.vm.vram("free large", SHORT).unwrap();
    rig.vm.run_ok("vram put /dev/zero --size 200MiB --name half && vram copy half other", SHORT).unwrap();

    let slice = rig.slice().unwrap();
    for (field, wanted) in [
        ("name", json!(RIG_SLICE)),
        ("allocations", json!(2)),
        ("allocated_bytes", json!(400 << 20)),
        ("contexts", json!(1)),
        ("limit_bytes", json!(512 << 20)),
        ("request_queues", json!(2)),
        ("virtio_id", json!(37)),
    ] {
        assert_eq!(slice[field], wanted, "{field} of {slice:#}");
    }
    let used: u64 = rig.daemon.vramctl_json(&["gpu", "list"]).unwrap()["gpus"]
        .as_array()
        .unwrap()
        .iter()
        .map(|gpu| gpu["used_bytes"].as_u64().unwrap())
        .sum();
    assert_eq!(slice["backed_bytes"], used, "{slice:#}");
    assert!(slice["counters"]["in_bytes"].as_u64() >= Some(200 << 20), "{slice:#}");
    assert!(slice["counters"]["copied_bytes"].as_u64() >= Some(200 << 20), "{slice:#}");
    let table = rig.daemon.vramctl(&["slice", "list"]).unwrap();
    assert!(table.contains(RIG_SLICE) && table.contains("in use"), "{table}");
    let daemon = rig.daemon.vramctl_json(&["daemon"]).unwrap();
    assert_eq!(daemon["simulated"], true, "{daemon:#}");

    let advised = rig.vm.vram("advise half gpu 1", SHORT).unwrap();
    assert_eq!(advised["name"], "half", "{advised:#}");
    let steps = ["alloc 1MiB", "advise @0 1MiB pin", "advise @0+1 1MiB cold", "advise @0 1 gpu 2"];
    let outcomes = rig.vm.raw_steps(&steps, SHORT).unwrap();
    assert_eq!(outcomes[1].result(), Some("heard"), "{outcomes:?}");
    assert!(outcomes[2].is_errno("ENXIO") && outcomes[3].is_errno("EINVAL"), "{outcomes:?}");

    rig.vm.vram("release", SHORT).unwrap();
    rig.wait_until_empty().unwrap();
    resize_is_told(&rig);
    rig.finish().unwrap();
}

/// Programs that wait for events hear of a resize, each of its own.
fn resize_is_told(rig: &Rig) {
    let wait = "for n in 1 2; do vram -o json events --count 1 >/tmp/events.$n & pids=\"$pids $!\"; done; \
                for pid in $pids; do until ls -l /proc/$pid/fd | grep -q vram0; do sleep 0.05; done; done; \
                echo $pids >/tmp/events.pids";
    rig.vm.run_ok(wait, SHORT).unwrap();

    rig.daemon.vramctl(&["slice", "resize", RIG_SLICE, "--limit", "256MiB", "--guarantee", "64MiB"]).unwrap();

    let told = "for pid in $(cat /tmp/events.pids); do while [ -d /proc/$pid/fd ] && ls -l /proc/$pid/fd | \
                grep -q vram0; do sleep 0.05; done; done; cat /tmp/events.1 /tmp/events.2";
    let told = rig.vm.run_ok(told, SHORT).unwrap();
    let expected = json!({ "event": "limit_changed", "limit_bytes": 256 << 20, "guarantee_bytes": 64 << 20 });
    let lines: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines, [expected.clone(), expected], "{told}");
    let nothing = rig.vm.run_ok("vram events --seconds 0.2", SHORT).unwrap();
    assert_eq!(nothing, "", "who opens the device later hears of nothing before");
    assert_eq!(rig.vm.vram("info", SHORT).unwrap()["limit_bytes"], 256 << 20);
}

/// The options `vramctl` prints for QEMU, word by word; only the socket's folder is seen under another name from
/// within the lab tree.
#[test]
fn options_that_vramctl_prints_start_a_working_vm() {
    let lab = lab();
    let _seats = lab.seats(1).unwrap();
    let daemon = Vramd::start(VramdConfig::new("sim:2x64MiB", &["demo=128MiB,queues=3"])).unwrap();
    let line = daemon.vramctl(&["slice", "attach", "demo", "--vmm", "qemu"]).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words.len(), 4, "{line}");

    let mut builder = guest_with_driver(&lab, "6.12").unwrap().vcpus(2);
    let socket = daemon.socket("demo");
    let seen = lab.path_in_tree(&socket).unwrap();
    for word in &words {
        builder = builder.qemu_arg(&word.replace(socket.to_str().unwrap(), seen.to_str().unwrap()));
    }
    let vm = builder.start().unwrap();

    let info = vm.vram("info", SHORT).unwrap();
    assert_eq!((&info["slice"], &info["request_queues"]), (&json!("demo"), &json!(2)), "{info:#}");
    vm.run_ok("vram put /bin/busybox --name b && vram verify b --file /bin/busybox", SHORT).unwrap();
    vm.finish().unwrap();
    daemon.finish().unwrap();
}
