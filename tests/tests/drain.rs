//! GPUs that are drained and taken back while guests go on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use vram_control_api::Client;
use vram_control_api::v1::GpuState;
use vram_gpu::GpuId;
use vram_protocol::Status;
use vram_testkit::{Driver, VmSpec};
use vram_tests::{Gpus, RandomGuest, SpawnedVramd, TestDaemon};

const MIB: u64 = 1 << 20;

fn used_shards(daemon: &TestDaemon, gpu: GpuId) -> u32 {
    let gpus = daemon.residency().pool().gpus();
    gpus.iter().find(|usage| usage.id == gpu).map_or(0, |usage| usage.used_shards)
}

fn wait_until_empty(daemon: &TestDaemon, gpu: GpuId) -> Result<()> {
    let started = Instant::now();
    while used_shards(daemon, gpu) > 0 {
        ensure!(started.elapsed() < Duration::from_secs(20), "{} shards left", used_shards(daemon, gpu));
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Writes bytes in pieces the driver's data area takes.
fn write(driver: &mut Driver, context: u32, base: u64, bytes: &[u8]) -> Result<()> {
    for (piece, at) in bytes.chunks(1 << 20).zip((base..).step_by(1 << 20)) {
        ensure!(driver.write(context, at, piece)?.status() == Status::Ok);
    }
    Ok(())
}

fn expect(driver: &mut Driver, context: u32, base: u64, bytes: &[u8]) -> Result<()> {
    for (piece, at) in bytes.chunks(1 << 20).zip((base..).step_by(1 << 20)) {
        let answer = driver.read(context, at, piece.len() as u64)?;
        ensure!(answer.status() == Status::Ok, "{}", answer.status());
        ensure!(answer.payload == piece, "the piece at {at:#x} is not what was written");
    }
    Ok(())
}

#[test]
fn guests_read_what_they_wrote_while_every_gpu_is_drained_in_turn() -> Result<()> {
    let daemon = TestDaemon::start(
        "3x48MiB,fresh=dirty",
        &[("a", 32 * MIB, 8 * MIB), ("b", 32 * MIB, 0), ("c", 32 * MIB, 0)],
    )?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let guests: Vec<_> = ["a", "b", "c"]
            .into_iter()
            .zip(1..)
            .map(|(slice, seed)| {
                let (daemon, over) = (&daemon, &over);
                scope.spawn(move || -> Result<u64> {
                    let mut driver = daemon.driver(slice)?;
                    let mut guest = RandomGuest::new(seed);
                    let mut lives = 0;
                    while !over.load(Ordering::Relaxed) {
                        guest.live(&mut driver, 60)?;
                        driver.hello(seed + lives + 1)?;
                        lives += 1;
                    }
                    Ok(lives)
                })
            })
            .collect();
        for round in 0..12 {
            let gpu = GpuId(round % 3);
            daemon.residency().begin_drain(gpu)?;
            wait_until_empty(&daemon, gpu)?;
            std::thread::sleep(Duration::from_millis(30));
            ensure!(used_shards(&daemon, gpu) == 0, "something came to a drained GPU");
            daemon.residency().end_drain(gpu)?;
        }
        over.store(true, Ordering::Relaxed);
        for guest in guests {
            let lives = guest.join().expect("a guest panicked")?;
            ensure!(lives > 0, "a guest did nothing");
        }
        anyhow::Ok(())
    })?;
    daemon.expect_all_memory_back()?;
    let counts = daemon.sim.counts();
    assert_eq!((counts.mappings, counts.shards, counts.events), (0, 0, 0));
    daemon.residency().pool().verify()?;
    Ok(())
}

#[test]
fn allocation_over_several_gpus_keeps_its_addresses_and_bytes() -> Result<()> {
    let daemon = TestDaemon::start("3x16MiB,fresh=dirty", &[("a", 32 * MIB, 0)])?;
    let mut driver = daemon.driver("a")?;
    let context = driver.open()?;
    let base = driver.must_alloc(context, 20 * MIB)?;
    let bytes: Vec<u8> = (0..20 * MIB).map(|at| (at % 251) as u8).collect();
    write(&mut driver, context, base, &bytes)?;
    for gpu in [GpuId(0), GpuId(1), GpuId(2)] {
        daemon.residency().begin_drain(gpu)?;
        wait_until_empty(&daemon, gpu)?;
        expect(&mut driver, context, base, &bytes)?;
        daemon.residency().end_drain(gpu)?;
    }
    Ok(())
}

#[test]
fn drain_without_room_waits_and_goes_on_when_there_is_some() -> Result<()> {
    let daemon = TestDaemon::start("2x16MiB,fresh=dirty", &[("a", 48 * MIB, 0)])?;
    let mut driver = daemon.driver("a")?;
    let context = driver.open()?;
    let (first, second) = (driver.must_alloc(context, 16 * MIB)?, driver.must_alloc(context, 16 * MIB)?);
    driver.fill(context, second, 16 * MIB, 7, 1)?;
    daemon.residency().begin_drain(GpuId(0))?;
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(used_shards(&daemon, GpuId(0)), 8);
    assert_eq!(driver.alloc(context, 4 * MIB, 0)?.status(), Status::OutOfMemory);
    expect(&mut driver, context, second, &vec![7; 16 << 20])?;
    driver.free(context, first)?;
    wait_until_empty(&daemon, GpuId(0))?;
    expect(&mut driver, context, second, &vec![7; 16 << 20])?;
    Ok(())
}

#[test]
fn gpu_lost_while_it_is_drained_takes_only_what_was_still_on_it() -> Result<()> {
    let daemon = TestDaemon::start("2x64MiB,fresh=dirty,copy-delay=2ms", &[("a", 64 * MIB, 0)])?;
    let mut driver = daemon.driver("a")?;
    let context = driver.open()?;
    let all: Vec<u64> = (0..24).map(|_| driver.must_alloc(context, 2 * MIB)).collect::<Result<_>>()?;
    for (base, byte) in all.iter().zip(1..) {
        driver.fill(context, *base, 2 * MIB, byte, 1)?;
    }
    let gpu = if used_shards(&daemon, GpuId(0)) > 0 { GpuId(0) } else { GpuId(1) };
    daemon.residency().begin_drain(gpu)?;
    while used_shards(&daemon, gpu) > 12 {
        std::thread::yield_now();
    }
    daemon.faults.lose_gpu(gpu);
    let (mut saved, mut lost) = (0, 0);
    for (base, byte) in all.iter().zip(1u8..) {
        let answer = driver.read(context, *base, 2 * MIB)?;
        match answer.status() {
            Status::Ok => {
                ensure!(answer.payload == vec![byte; 2 << 20], "saved bytes are wrong");
                saved += 1;
            }
            Status::DeviceLost => lost += 1,
            other => anyhow::bail!("read: {other}"),
        }
    }
    assert!(saved >= 10 && lost > 0, "{saved} saved, {lost} lost");
    for base in all {
        driver.free(context, base)?;
    }
    daemon.expect_all_memory_back()
}

#[test]
fn gpu_that_refuses_shards_or_copies_leaves_bytes_where_they_are() -> Result<()> {
    let daemon = TestDaemon::start("3x16MiB,fresh=dirty", &[("a", 16 * MIB, 0)])?;
    let mut driver = daemon.driver("a")?;
    let context = driver.open()?;
    let base = driver.must_alloc(context, 8 * MIB)?;
    let bytes: Vec<u8> = (0..8 * MIB).map(|at| (at % 253) as u8).collect();
    write(&mut driver, context, base, &bytes)?;
    let gpu = (0..3).map(GpuId).find(|gpu| used_shards(&daemon, *gpu) > 0).expect("it is somewhere");
    let others = (0..3).map(GpuId).filter(|other| *other != gpu);
    // One of the others says no, and the second copy of a region fails.
    daemon.faults.fail_creates(others.clone().next().expect("two others"), 1);
    daemon.faults.fail_copy(daemon.faults.copies() + 2);
    daemon.residency().begin_drain(gpu)?;
    wait_until_empty(&daemon, gpu)?;
    expect(&mut driver, context, base, &bytes)?;
    drop(driver);
    daemon.expect_all_memory_back()
}

#[test]
fn region_in_use_for_long_is_left_alone_and_moved_later() -> Result<()> {
    let daemon = TestDaemon::start("2x16MiB,fresh=dirty", &[("a", 16 * MIB, 0), ("b", 8 * MIB, 0)])?;
    let mut driver = daemon.driver("a")?;
    let context = driver.open()?;
    let base = driver.must_alloc(context, 2 * MIB)?;
    let gpu = if used_shards(&daemon, GpuId(0)) > 0 { GpuId(0) } else { GpuId(1) };
    daemon.faults.pause(gpu);
    let copies = daemon.faults.copies();
    std::thread::scope(|scope| {
        let stuck = scope.spawn(|| driver.fill(context, base, 2 * MIB, 9, 1));
        daemon.expect_copies(copies + 1)?;
        daemon.residency().begin_drain(gpu)?;
        std::thread::sleep(Duration::from_millis(2600));
        // Given up once by now, and the region still where it was.
        assert_eq!(used_shards(&daemon, gpu), 1);
        daemon.faults.clear();
        assert_eq!(stuck.join().expect("no panic")?.status(), Status::Ok);
        anyhow::Ok(())
    })?;
    wait_until_empty(&daemon, gpu)?;
    expect(&mut driver, context, base, &vec![9; 2 << 20])?;
    Ok(())
}

/// The real daemon, drained by its operator API under a guest.
fn drain_under_a_guest(gpus: Gpus, spec: &str) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut vramd = SpawnedVramd::start(gpus, spec, &["a=32MiB,queues=2"], dir.path())?;
    let client = Client::new(dir.path().join("control.sock"));
    let mut driver = Driver::connect(&dir.path().join("a.sock"), &VmSpec::default())?;
    driver.hello(1)?;
    let over = AtomicBool::new(false);
    let lives = std::thread::scope(|scope| {
        let guest = scope.spawn(|| -> Result<u64> {
            let mut guest = RandomGuest::new(77);
            let mut lives = 0;
            while !over.load(Ordering::Relaxed) {
                guest.live(&mut driver, 60)?;
                driver.hello(2 + lives)?;
                lives += 1;
            }
            Ok(lives)
        });
        for round in 0..8 {
            let index = round % 2;
            client.drain_gpu(index)?;
            let started = Instant::now();
            while client.gpus()?.gpus.iter().any(|gpu| gpu.state == GpuState::Draining) {
                ensure!(started.elapsed() < Duration::from_secs(20), "GPU {index} is not empty");
                std::thread::sleep(Duration::from_millis(5));
            }
            client.undrain_gpu(index)?;
        }
        over.store(true, Ordering::Relaxed);
        guest.join().expect("a guest panicked")
    })?;
    ensure!(lives > 0 && vramd.is_running()?);
    Ok(())
}

#[test]
fn gpus_are_drained_under_a_guest_on_the_simulator_itself() -> Result<()> {
    drain_under_a_guest(Gpus::Sim, "2x48MiB,fresh=dirty")
}

#[test]
fn gpus_are_drained_under_a_guest_through_the_simulated_driver() -> Result<()> {
    drain_under_a_guest(Gpus::SimulatedDriver, "2x48MiB,fresh=dirty")
}

/// GPUs that cannot reach each other's memory exchange it through the host.
#[test]
fn gpus_are_drained_under_a_guest_without_peer_access() -> Result<()> {
    drain_under_a_guest(Gpus::SimulatedDriver, "2x48MiB,fresh=dirty,peers=none")
}
