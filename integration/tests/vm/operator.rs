//! What the operator does and sees while a VM uses the daemon.

use serde_json::json;
use vram_integration::{RIG_SLICE, RigConfig, Vramd, VramdConfig, guest_with_driver};

use crate::{SHORT, lab, rig};

#[test]
fn vramctl_shows_what_the_guest_does() {
    let rig = rig(RigConfig::default());
    let slice = rig.slice().unwrap();
    assert_eq!((&slice["state"], &slice["contexts"]), (&json!("in_use"), &json!(0)), "{slice:#}");

    let too_much = "vram put /dev/zero --size 300MiB --name large && vram copy large copy";
    let refused = rig.vm.run(too_much, 2 * SHORT).unwrap();
    assert!(refused.error_text().contains("limit does not allow it"), "{refused:?}");
    rig.vm.vram("free large", SHORT).unwrap();
    rig.vm.run_ok("vram put /dev/zero --size 200MiB --name half && vram copy half other", 2 * SHORT).unwrap();

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

    rig.vm.vram("release", SHORT).unwrap();
    rig.wait_until_empty().unwrap();
    rig.finish().unwrap();
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
