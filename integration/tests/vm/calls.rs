//! The calls of `/dev/vramN`, with good and with bad arguments, by the C program that comes with the module.

use vram_integration::{Rig, RigConfig, guest_program};

use crate::{SHORT, lab};

fn ioctl_test_passes(config: RigConfig) {
    let lab = lab();
    let program = guest_program(&lab, "guest-driver-shim/linux/tests/vram_ioctl_test.c").unwrap();
    let rig = Rig::start_with(&lab, config, |vm| vm.file(program, "/usr/bin/vram_ioctl_test")).unwrap();

    let output = rig.vm.run("vram_ioctl_test /dev/vram0 $RANDOM", SHORT).unwrap();

    assert!(output.is_success(), "{}\n{}\n{}", output.text(), rig.vm.console_tail(), rig.daemon.log_tail());
    println!("{}", output.text());
    rig.wait_until_empty().unwrap();
    rig.finish().unwrap();
}

#[test]
fn ioctl_test_program_passes() {
    ioctl_test_passes(RigConfig::default());
}

#[test]
fn ioctl_test_program_passes_on_several_processors_and_queues() {
    ioctl_test_passes(RigConfig {
        slice: "512MiB,queues=2".into(),
        vcpus: 2,
        num_vqs: 4,
        ..RigConfig::default()
    });
}
