//! The event queue: what guests are told without asking, and what they can do wrong there.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use vram_control_api::v1::SliceChange;
use vram_control_server::ControlState;
use vram_gpu::GpuId;
use vram_protocol::{
    EVENT_DATA_LOST, EVENT_GPU_LOST, EVENT_LIMIT_CHANGED, EventMessage, GPU_NONE, Status, TIER_DAMAGED,
    TIER_REMOTE,
};
use vram_testkit::{Descriptor, Driver, VmSpec};
use vram_tests::{SHARD_BYTES, TestDaemon};

const MIB: u64 = 1 << 20;
const WAIT: Duration = Duration::from_secs(10);
/// Long enough for an event that should not come.
const QUIET: Duration = Duration::from_millis(100);
const EVENTS: usize = 1;

fn daemon() -> Result<TestDaemon> {
    TestDaemon::start("2x16MiB,fresh=dirty", &[("a", 16 * MIB, 0), ("b", 16 * MIB, 0)])
}

/// Posts chains of these buffers on the event queue; returns the address of the first buffer.
fn post(driver: &mut Driver, count: usize, len_bytes: u32) -> Result<u64> {
    let at = driver.vm.ram.take(0, count as u64 * u64::from(len_bytes), 16)?;
    for i in 0..count as u64 {
        let buffer = at + i * u64::from(len_bytes);
        driver.vm.ram.write(buffer, &vec![0xcc; len_bytes as usize]);
        post_chain(driver, &[(buffer, len_bytes, true)])?;
    }
    Ok(at)
}

fn post_chain(driver: &mut Driver, buffers: &[(u64, u32, bool)]) -> Result<u16> {
    let ring = &mut driver.vm.rings[EVENTS];
    let head = ring.build(buffers)?;
    ring.publish(head);
    ring.kick();
    Ok(head)
}

/// The next event, which must be in the buffer at this address.
fn event(driver: &mut Driver, at: u64) -> Result<EventMessage> {
    let used = driver.vm.rings[EVENTS].wait(WAIT)?;
    ensure!(used.written == 32, "{} bytes were written", used.written);
    Ok(EventMessage::from_bytes(&driver.vm.ram.read(at, 32).try_into().unwrap()))
}

fn told(message: EventMessage) -> (u32, u64, u64) {
    assert_eq!(message.reserved0, 0);
    (message.kind, message.value, message.extra)
}

fn resize(daemon: &TestDaemon, slice: &str, limit_bytes: u64, guarantee_bytes: u64) -> Result<()> {
    let change = SliceChange { limit_bytes: Some(limit_bytes), guarantee_bytes: Some(guarantee_bytes) };
    let changed = daemon.daemon.state().change_slice(slice, change);
    changed.map(drop).map_err(|refusal| anyhow::anyhow!("{refusal:?}"))
}

fn assert_quiet(driver: &mut Driver) {
    std::thread::sleep(QUIET);
    assert_eq!(driver.vm.rings[EVENTS].poll(), None);
}

#[test]
fn lost_gpu_is_told_once_to_every_guest() -> Result<()> {
    let daemon = daemon()?;
    let (mut a, mut b) = (daemon.driver("a")?, daemon.driver("b")?);
    let context = a.open()?;
    let base = a.must_alloc(context, 16 * MIB)?;
    let reply = a.query(context, base, 0, 64)?;
    let gpu = u32::from_le_bytes(reply.payload[48..52].try_into()?);
    let (at_a, at_b) = (post(&mut a, 2, 32)?, post(&mut b, 2, 32)?);
    assert_quiet(&mut a);

    daemon.faults.lose_gpu(GpuId(u16::try_from(gpu)?));
    assert_eq!(a.fill(context, base, 4096, 1, 1)?.status(), Status::DeviceLost);

    for (driver, at) in [(&mut a, at_a), (&mut b, at_b)] {
        let message = event(driver, at)?;
        assert_eq!(told(message), (EVENT_GPU_LOST, u64::from(gpu), 0));
        assert_eq!(message.epoch, reply.response.epoch);
    }
    assert_eq!(a.read(context, base, 4096)?.status(), Status::DeviceLost);
    assert_quiet(&mut a);
    assert_quiet(&mut b);
    Ok(())
}

#[test]
fn resize_is_told_to_the_slice_that_was_resized() -> Result<()> {
    let daemon = daemon()?;
    let (mut a, mut b) = (daemon.driver("a")?, daemon.driver("b")?);
    let (at_a, _) = (post(&mut a, 1, 32)?, post(&mut b, 1, 32)?);

    resize(&daemon, "a", 12 * MIB, 4 * MIB)?;

    assert_eq!(told(event(&mut a, at_a)?), (EVENT_LIMIT_CHANGED, 12 * MIB, 4 * MIB));
    assert_quiet(&mut b);
    Ok(())
}

#[test]
fn events_without_buffers_are_told_later_and_those_that_say_the_same_as_one() -> Result<()> {
    let daemon = daemon()?;
    let mut driver = daemon.driver("a")?;
    let context = driver.open()?;
    let base = driver.must_alloc(context, 8 * MIB)?;
    resize(&daemon, "a", 8 * MIB, 0)?;
    daemon.faults.lose_gpu(GpuId(0));
    daemon.faults.lose_gpu(GpuId(1));
    assert_eq!(driver.fill(context, base, 8 * MIB, 1, 1)?.status(), Status::DeviceLost);
    for limit in 1..50 {
        resize(&daemon, "a", limit * SHARD_BYTES, 0)?;
    }

    let at = post(&mut driver, 3, 64)?;

    assert_eq!(told(event(&mut driver, at)?), (EVENT_LIMIT_CHANGED, 49 * SHARD_BYTES, 0));
    assert_eq!(told(event(&mut driver, at + 64)?).0, EVENT_GPU_LOST);
    assert_eq!(driver.vm.ram.read(at + 32, 32), [0xcc; 32], "the rest of a buffer stays as it was");
    assert_quiet(&mut driver);
    resize(&daemon, "a", 4 * MIB, 0)?;
    assert_eq!(told(event(&mut driver, at + 128)?), (EVENT_LIMIT_CHANGED, 4 * MIB, 0));
    Ok(())
}

#[test]
fn events_of_another_session_are_not_told_and_a_resumed_one_loses_none() -> Result<()> {
    let daemon = daemon()?;
    let mut driver = Driver::connect(&daemon.socket("a"), &VmSpec::default())?;
    let at = post(&mut driver, 2, 32)?;
    resize(&daemon, "a", 8 * MIB, 0)?;
    driver.hello(1)?;
    assert_quiet(&mut driver);

    let base = driver.vm.stop_ring(EVENTS)?;
    assert_eq!(base, 0, "a buffer is not taken before there is an event");
    resize(&daemon, "a", 14 * MIB, 0)?;
    driver.hello(1)?;
    driver.vm.resume_ring(EVENTS, base)?;
    assert_eq!(told(event(&mut driver, at)?), (EVENT_LIMIT_CHANGED, 14 * MIB, 0));

    let base = driver.vm.stop_ring(EVENTS)?;
    assert_eq!(base, 1);
    resize(&daemon, "a", 14 * MIB, 0)?;
    driver.hello(2)?;
    driver.vm.resume_ring(EVENTS, base)?;
    assert_quiet(&mut driver);
    resize(&daemon, "a", 12 * MIB, 0)?;
    assert_eq!(told(event(&mut driver, at + 32)?), (EVENT_LIMIT_CHANGED, 12 * MIB, 0));
    Ok(())
}

#[test]
fn chains_that_hold_no_event_come_back_empty_and_the_event_goes_into_the_next() -> Result<()> {
    let daemon = daemon()?;
    let mut driver = daemon.driver("a")?;
    let area = driver.vm.ram.take(0, 16 * MIB, 4096)?;
    let untouched = vec![0x5a; 4096];
    driver.vm.ram.write(area, &untouched);
    let bad: [&[(u64, u32, bool)]; 8] = [
        &[(area, 31, true)],
        &[(area, 32, false)],
        &[(area, 64, false), (area + 64, 64, true)],
        &[(area, 1, false), (area + 64, 4096, true)],
        &[(area, 16, true), (area + 64, 15, true)],
        &[(area, 0, true)],
        &[(area, u32::MAX, true)],
        &[(u64::MAX - 8, 32, true)],
    ];
    let mut heads = Vec::new();
    for buffers in bad {
        heads.push(post_chain(&mut driver, buffers)?);
    }
    // A loop, and an indirect table that is none.
    for (flags, len) in [(1 | 2, 32), (4, 15)] {
        let ring = &mut driver.vm.rings[EVENTS];
        let head = ring.reserve()?;
        ring.write_descriptor(head, Descriptor { address: area, len, flags, next: head });
        ring.publish(head);
        heads.push(head);
    }
    // One that is larger than it need be, and one in two pieces.
    post_chain(&mut driver, &[(area + 8 * MIB, 8 << 20, true)])?;
    post_chain(&mut driver, &[(area + 4096, 7, true), (area + 8192, 4096, true)])?;
    assert_quiet(&mut driver);

    resize(&daemon, "a", 8 * MIB, 0)?;

    for head in heads {
        let used = driver.vm.rings[EVENTS].wait(WAIT)?;
        assert_eq!((used.head, used.written), (head, 0));
    }
    assert_eq!(told(event(&mut driver, area + 8 * MIB)?), (EVENT_LIMIT_CHANGED, 8 * MIB, 0));
    assert_eq!(
        driver.vm.ram.read(area, 4096),
        untouched,
        "something was written into a chain that came back empty"
    );
    resize(&daemon, "a", 14 * MIB, 0)?;
    let used = driver.vm.rings[EVENTS].wait(WAIT)?;
    assert_eq!(used.written, 32);
    let pieces = [driver.vm.ram.read(area + 4096, 7), driver.vm.ram.read(area + 8192, 25)].concat();
    let message = EventMessage::from_bytes(&pieces.try_into().unwrap());
    assert_eq!(told(message), (EVENT_LIMIT_CHANGED, 14 * MIB, 0));
    driver.open()?;
    Ok(())
}

/// As many useless buffers as there are events and more, over and over: each costs the guest a chain.
#[test]
fn ring_full_of_useless_buffers_keeps_nobody_from_anything() -> Result<()> {
    let daemon = daemon()?;
    let (mut a, mut b) = (daemon.driver("a")?, daemon.driver("b")?);
    let area = a.vm.ram.take(0, 4096, 16)?;
    for round in 1..=4u64 {
        for _ in 0..256 {
            post_chain(&mut a, &[(area, 32, false)])?;
        }
        resize(&daemon, "a", round * SHARD_BYTES, 0)?;
        for _ in 0..256 {
            assert_eq!(a.vm.rings[EVENTS].wait(WAIT)?.written, 0);
        }
        b.open()?;
    }
    a.open()?;
    let at = post(&mut a, 1, 32)?;
    assert_eq!(told(event(&mut a, at)?), (EVENT_LIMIT_CHANGED, 8 * MIB, 0));
    Ok(())
}

#[test]
fn broken_event_ring_ends_its_own_session_only() -> Result<()> {
    let daemon = daemon()?;
    let (mut a, mut b) = (daemon.driver("a")?, daemon.driver("b")?);
    a.vm.rings[EVENTS].set_available_index(257);
    a.vm.rings[EVENTS].kick();
    resize(&daemon, "a", 8 * MIB, 0)?;
    let until = Instant::now() + WAIT;
    while a.vm.config(0, 4).is_ok() {
        ensure!(Instant::now() < until, "the session goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(a);
    b.open()?;
    let mut again = daemon.driver("a")?;
    let at = post(&mut again, 1, 32)?;
    resize(&daemon, "a", 14 * MIB, 0)?;
    assert_eq!(told(event(&mut again, at)?), (EVENT_LIMIT_CHANGED, 14 * MIB, 0));
    Ok(())
}

/// Changes every byte of every file below a folder.
fn damage(folder: &Path) -> Result<usize> {
    let mut files = 0;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files += damage(&path)?;
        } else {
            let mut bytes = fs::read(&path)?;
            bytes.iter_mut().for_each(|byte| *byte ^= 0xff);
            fs::write(&path, bytes)?;
            files += 1;
        }
    }
    Ok(files)
}

#[test]
fn damaged_bytes_in_a_tier_are_told_queried_and_never_read() -> Result<()> {
    let store = tempfile::tempdir()?;
    let tier = format!("remote:url=file://{}", store.path().display());
    let daemon = TestDaemon::start_with_tiers("1x8MiB,fresh=dirty", &[("a", 24 * MIB, 0)], &[&tier])?;
    let mut driver = daemon.driver("a")?;
    let context = driver.open()?;
    let base = driver.must_alloc(context, 16 * MIB)?;
    let data: Vec<u8> = (0..MIB).map(|i: u64| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
    for piece in 0..16 {
        assert_eq!(driver.write(context, base + piece * MIB, &data)?.status(), Status::Ok);
    }
    let extents = |driver: &mut Driver| -> Result<Vec<(u64, u32, u32)>> {
        let payload = driver.query(context, base, 0, 4096)?.payload;
        let word = |at: usize| u32::from_le_bytes(payload[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_le_bytes(payload[at..at + 8].try_into().unwrap());
        Ok((32..payload.len()).step_by(32).map(|at| (long(at), word(at + 16), word(at + 20))).collect())
    };
    let stored = extents(&mut driver)?.into_iter().find(|extent| extent.2 == TIER_REMOTE);
    let (address, gpu, _) = stored.context("nothing is in the tier")?;
    assert_eq!(gpu, GPU_NONE);
    ensure!(damage(store.path())? > 0, "the tier has no files");
    let at = post(&mut driver, 8, 32)?;

    let answer = driver.read(context, address, 4096)?;
    assert_eq!((answer.status(), answer.response.moved), (Status::DataLost, 0));

    let (kind, first, bytes) = told(event(&mut driver, at)?);
    assert_eq!(kind, EVENT_DATA_LOST);
    assert!(
        first <= address && address < first + bytes && bytes.is_multiple_of(SHARD_BYTES),
        "{first:#x} {bytes}"
    );
    let extents = extents(&mut driver)?;
    assert!(extents.contains(&(address, GPU_NONE, TIER_DAMAGED)), "{extents:x?}");
    assert_eq!(driver.read(context, address, 4096)?.status(), Status::DataLost);
    assert_eq!(driver.free(context, base)?.status(), Status::Ok);
    Ok(())
}
