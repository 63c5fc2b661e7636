//! The daemon's CUDA path: `vramd --gpu cuda` over a CUDA driver library whose GPUs are simulated.

use std::ffi::OsString;
use std::process::Command;

use serde_json::json;
use vram_integration::{
    VhostUserDevice, Vm, Vramd, VramdConfig, guest_program, guest_with_driver, workspace_root,
};

use crate::{SHORT, lab};

const SLICE: &str = "cuda";

/// A daemon on four GPUs of 64 MiB and a guest with all of them.
struct CudaRig {
    vm: Vm,
    daemon: Vramd,
    _seats: vram_integration::Seats,
    _driver: tempfile::TempDir,
}

fn cuda_rig() -> CudaRig {
    let lab = lab();
    let driver = tempfile::tempdir().unwrap();
    let built = Command::new("sh")
        .arg(workspace_root().join("crates/simcuda/install.sh"))
        .arg(driver.path())
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let soak = guest_program(&lab, "integration/guest/vram_soak.c").unwrap();
    let builder = guest_with_driver(&lab, "6.12").unwrap().vcpus(2).memory_mib(1024);
    let mut config = VramdConfig::new("cuda", &[&format!("{SLICE}=256MiB,queues=2")]);
    config.environment = vec![
        ("LD_LIBRARY_PATH".into(), driver.path().into()),
        ("VRAM_SIMCUDA_GPUS".into(), OsString::from("4x64MiB,fresh=dirty")),
    ];
    let seats = lab.seats(1).unwrap();
    let daemon = Vramd::start(config).unwrap();
    let device = VhostUserDevice::vram(daemon.socket(SLICE), 4);
    let vm = builder.file(soak, "/usr/bin/vram_soak").vhost_user(device).start().unwrap();
    CudaRig { vm, daemon, _seats: seats, _driver: driver }
}

#[test]
fn cuda_path_carries_a_file_larger_than_a_gpu() {
    let rig = cuda_rig();
    let daemon = rig.daemon.vramctl_json(&["daemon"]).unwrap();
    assert_eq!((&daemon["backend"], &daemon["simulated"]), (&json!("cuda"), &json!(true)), "{daemon:#}");

    // Random bytes cost an emulated processor much; the same ones over again lie differently in every shard.
    let fill = "head -c 30000000 /dev/urandom >/tmp/p && for n in 1 2 3; do echo $n; cat /tmp/p; done >/tmp/f && rm /tmp/p";
    rig.vm.run_ok(fill, SHORT).unwrap();
    let put = rig.vm.vram("put /tmp/f --name a", SHORT).unwrap();
    let copy = rig.vm.vram("copy a b", SHORT).unwrap();
    let verify = rig.vm.vram("verify b --file /tmp/f", SHORT).unwrap();
    let get = rig.vm.vram("get b /dev/null", SHORT).unwrap();

    assert_eq!(put["sha256"], get["sha256"]);
    assert_eq!(verify["same"], true, "{verify:#}");
    for placement in [&put["placement"], &copy["placement"]] {
        assert!(placement.as_array().is_some_and(|parts| parts.len() > 1), "{placement:#}");
    }
    rig.vm.vram("release", SHORT).unwrap();
    rig.daemon.wait_until_empty(SLICE, SHORT).unwrap();
    rig.vm.finish().unwrap();
    rig.daemon.finish().unwrap();
}

#[test]
fn cuda_path_under_random_work_keeps_every_byte() {
    let rig = cuda_rig();
    let seed = std::process::id();
    let output = rig.vm.run(&format!("vram_soak random 8 {seed} 3 3 64"), SHORT).unwrap();
    println!("seed {seed}: {}", output.text());
    assert!(output.is_success(), "{output:?}");
    rig.daemon.wait_until_empty(SLICE, SHORT).unwrap();
    rig.vm.finish().unwrap();
    rig.daemon.finish().unwrap();
}
