//! The oldest and the newest guest kernels: the module builds there, without a warning, and works.

use vram_integration::{RigConfig, guest_driver};

use crate::{SHORT, assert_works, lab, rig};

fn works_on(series: &str) {
    let lab = lab();
    let module = guest_driver(&lab, &lab.kernel(series).unwrap()).unwrap();
    let warnings: Vec<&str> = module.build_log.lines().filter(|line| line.contains("warning:")).collect();
    assert!(warnings.is_empty(), "{warnings:#?}");
    let config =
        RigConfig { gpu: "sim:2x96MiB".into(), slice: "192MiB,queues=2".into(), ..RigConfig::default() };
    let rig = rig(RigConfig { kernel: series.into(), vcpus: 2, ..config });
    println!("kernel {}", rig.vm.kernel().release);

    assert_works(&rig, "f");
    rig.vm.run_ok("vram put /dev/zero --size 120MiB --name large && vram verify large", SHORT).unwrap();
    let placement = rig.slice().unwrap()["backed_by_gpu"].clone();
    assert_eq!(placement.as_array().map(Vec::len), Some(2), "{placement:#}");
    rig.vm.vram("release", SHORT).unwrap();

    rig.wait_until_empty().unwrap();
    rig.finish().unwrap();
}

#[test]
fn product_works_on_kernel_6_1() {
    works_on("6.1");
}

#[test]
fn product_works_on_kernel_6_12() {
    works_on("6.12");
}

#[test]
fn product_works_on_kernel_7() {
    works_on("7");
}
