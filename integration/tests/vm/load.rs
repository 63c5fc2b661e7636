//! Many at once, and sizes that are odd.

use std::thread;
use std::time::{Duration, Instant};

use vram_integration::{Rig, RigConfig, guest_program};

use crate::{SHORT, assert_works, lab, rig};

fn rig_with_soak(config: RigConfig) -> Rig {
    let lab = lab();
    let program = guest_program(&lab, "integration/guest/vram_soak.c").unwrap();
    Rig::start_with(&lab, config, |vm| vm.memory_mib(1024).file(program, "/usr/bin/vram_soak")).unwrap()
}

fn soak(config: RigConfig, arguments: &str) {
    let rig = rig_with_soak(config);

    let output = rig.vm.run(&format!("vram_soak random {arguments}"), SHORT).unwrap();

    println!("vram_soak random {arguments}:\n{}", output.text());
    assert!(output.is_success(), "{output:?}\n{}\n{}", rig.vm.console_tail(), rig.daemon.log_tail());
    rig.wait_until_empty().unwrap();
    rig.finish().unwrap();
}

fn several_processors(gpu: &str) -> RigConfig {
    RigConfig { gpu: gpu.into(), vcpus: 2, ..RigConfig::default() }
}

fn seed() -> u32 {
    let seed = std::process::id();
    println!("seed {seed}");
    seed
}

#[test]
fn random_work_of_many_processes_and_threads_keeps_every_byte() {
    soak(several_processors("sim:4x128MiB,fresh=dirty"), &format!("10 {} 4 3 48", seed()));
}

/// Copies between GPUs go the slow way, and every process is alone on a small slice.
#[test]
fn random_work_without_peer_access_keeps_every_byte() {
    soak(several_processors("sim:4x64MiB,peers=none"), &format!("8 {} 2 4 80", seed()));
}

/// One processor, one request queue.
#[test]
fn random_work_on_one_queue_keeps_every_byte() {
    let config = RigConfig { slice: "512MiB,queues=1".into(), num_vqs: 3, ..RigConfig::default() };
    soak(config, &format!("8 {} 6 2 24", seed()));
}

#[test]
fn files_of_odd_sizes_come_back_the_same() {
    let rig = rig(RigConfig::default());
    rig.vm.run_ok("head -c 9000000 /dev/urandom >/tmp/all", SHORT).unwrap();
    for bytes in [1, 2, 255, 257, 4095, 4097, 65_537, (3 << 20) + 1, (4 << 20) - 1, (8 << 20) + 4095] {
        let script = format!(
            "head -c {bytes} /tmp/all >/tmp/f && vram put /tmp/f --name f && vram copy f g && vram get g /tmp/back && \
             cmp /tmp/f /tmp/back && vram verify g --sha256 $(sha256sum </tmp/f | cut -d' ' -f1) && vram release"
        );
        rig.vm.run_ok(&script, SHORT).unwrap();
    }
    let empty = rig.vm.run(": >/tmp/empty; vram put /tmp/empty", SHORT).unwrap();
    assert!(!empty.is_success() && empty.error_text().contains("is empty"), "{empty:?}");
    rig.wait_until_empty().unwrap();
    rig.finish().unwrap();
}

/// Eight command lines at a time, half of them with a holder each, the others with one between them.
#[test]
fn many_command_lines_at_once_do_not_mix_their_bytes() {
    let rig = rig(RigConfig { vcpus: 2, ..RigConfig::default() });
    rig.vm
        .push_bytes(
            b"#!/bin/sh -e
            n=$1
            [ $((n % 2)) = 0 ] || { export VRAM_RUNTIME_DIR=/run/holder$n; mkdir -m 700 $VRAM_RUNTIME_DIR; }
            head -c $((400003 * n)) /dev/urandom >/tmp/f$n
            for round in 1 2 3; do
                vram put /tmp/f$n --name f$n
                vram copy f$n g$n
                vram verify g$n --file /tmp/f$n
                vram free f$n
                vram get g$n - 2>/dev/null | cmp - /tmp/f$n
                vram free g$n
            done\n",
            0o755,
            "/tmp/worker",
        )
        .unwrap();
    let script = "for n in 1 2 3 4 5 6 7 8; do /tmp/worker $n >/tmp/log$n 2>&1 & pids=\"$pids $!\"; done
        for pid in $pids; do wait $pid || status=1; done
        [ -z $status ] || { tail -n 5 /tmp/log*; exit 1; }";
    rig.vm.run_ok(script, SHORT).unwrap();
    rig.wait_until_empty().unwrap();
    rig.finish().unwrap();
}

/// More threads than the ring has room for.
#[test]
fn random_work_with_a_ring_that_is_always_full_keeps_every_byte() {
    let config = RigConfig { slice: "512MiB,queues=1".into(), num_vqs: 3, vcpus: 2, ..RigConfig::default() };
    soak(config, &format!("6 {} 3 40 120", seed()));
}

#[test]
fn processes_killed_at_any_moment_leave_nothing_behind() {
    let rig = rig_with_soak(several_processors("sim:2x256MiB,copy-delay=500us"));
    for round in 0..12 {
        let job = rig.vm.spawn(&format!("exec vram_soak random 60 {round} 3 3 100")).unwrap();
        thread::sleep(Duration::from_millis(130 * (round % 5 + 2)));
        rig.vm.kill(&job).unwrap();
        assert_eq!(rig.vm.wait(&job, SHORT).unwrap().status, 137);
    }
    rig.wait_until_empty().unwrap();
    assert_works(&rig, "after");
    rig.finish().unwrap();
}

/// The guest neither waits long nor sees a byte change while all of its memory goes from GPU to GPU.
#[test]
fn gpus_drained_in_turn_under_load_lose_no_byte() {
    let rig = rig_with_soak(several_processors("sim:3x256MiB,fresh=dirty"));
    let job = rig.vm.spawn(&format!("vram_soak random 10 {} 3 3 48", seed())).unwrap();
    let mut rounds = 0;
    let until = Instant::now() + Duration::from_secs(8);
    while Instant::now() < until {
        let gpu = (rounds % 3).to_string();
        rig.daemon.vramctl(&["gpu", "drain", &gpu, "--wait"]).unwrap();
        rig.daemon.vramctl(&["gpu", "undrain", &gpu]).unwrap();
        rounds += 1;
    }
    let output = rig.vm.wait(&job, SHORT).unwrap();
    println!("{rounds} GPUs were drained\n{}", output.text());
    assert!(output.is_success(), "{output:?}\n{}\n{}", rig.vm.console_tail(), rig.daemon.log_tail());
    assert!(rounds >= 3, "only {rounds} GPUs were drained");
    rig.wait_until_empty().unwrap();
    rig.finish().unwrap();
}

#[test]
fn driver_unbound_under_load_ends_all_calls_and_binds_again() {
    let rig = rig_with_soak(several_processors("sim:2x256MiB,copy-delay=500us"));
    let driver = "/sys/bus/virtio/drivers/virtio_vram";
    let device = rig.vm.run_ok(&format!("cd {driver}; echo virtio*"), SHORT).unwrap();
    for round in 0..5 {
        let job = rig.vm.spawn(&format!("vram_soak random 60 {round} 3 3 100")).unwrap();
        thread::sleep(Duration::from_millis(700));
        rig.vm.run_ok(&format!("echo {device} >{driver}/unbind"), SHORT).unwrap();
        let output = rig.vm.wait(&job, SHORT).unwrap();
        assert!(output.status == 1 && output.text().contains("No such device"), "{output:?}");
        rig.vm.run_ok(&format!("echo {device} >{driver}/bind"), SHORT).unwrap();
        rig.wait_until_empty().unwrap();
    }
    assert_works(&rig, "after");
    rig.finish().unwrap();
}
