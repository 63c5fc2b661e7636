//! GPUs that fail, stall or go away at the worst moment, and tenants who make the most of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use vram_gpu::GpuId;
use vram_protocol::{Copy, Fill, Header, Range, Request, Status};
use vram_testkit::Driver;
use vram_tests::TestDaemon;

const MIB: u64 = 1 << 20;
const WAIT: Duration = Duration::from_secs(30);

/// Sends requests of one queue all at once, one stream each; returns the heads' responses in order, to be waited for.
struct Flood {
    responses: u64,
    count: u64,
}

impl Flood {
    fn send(driver: &mut Driver, queue: usize, requests: &[(u32, u32, Request)]) -> Result<Self> {
        let ram = Arc::clone(&driver.vm.ram);
        let count = requests.len() as u64;
        let (at, responses) = (ram.take(0, count * 64, 64)?, ram.take(0, count * 64, 64)?);
        ram.write(responses, &vec![0xee; requests.len() * 64]);
        let ring = &mut driver.vm.rings[queue];
        for (i, (context, stream, request)) in (0u64..).zip(requests) {
            let header = Header { tag: i, context: *context, stream: *stream };
            ram.write(at + i * 64, &request.encode(header));
            let head = ring.build(&[(at + i * 64, 64, false), (responses + i * 64, 40, true)])?;
            ring.publish(head);
        }
        ring.kick();
        Ok(Self { responses, count })
    }

    fn statuses(&self, driver: &mut Driver, queue: usize) -> Result<Vec<Option<Status>>> {
        for i in 0..self.count {
            driver.vm.rings[queue].wait(WAIT).with_context(|| format!("request {i}"))?;
        }
        let words = (0..self.count).map(|i| driver.vm.ram.read(self.responses + i * 64, 4));
        Ok(words.map(|word| Status::from_code(u32::from_le_bytes(word.try_into().unwrap()))).collect())
    }
}

#[test]
fn lost_gpu_takes_its_bytes_only_and_memory_beside_it_comes_back() -> Result<()> {
    let daemon = TestDaemon::start("2x16MiB,fresh=dirty", &[("a", 32 * MIB, 0), ("b", 16 * MIB, 0)])?;
    let (mut a, mut b) = (daemon.driver("a")?, daemon.driver("b")?);
    let (ca, cb) = (a.open()?, b.open()?);
    // Over both GPUs.
    let both = a.must_alloc(ca, 24 * MIB)?;
    let reply = a.query(ca, both, 0, 32 + 64)?.payload;
    let first_gpu = u32::from_le_bytes(reply[48..52].try_into()?);
    daemon.faults.lose_gpu(GpuId(u16::try_from(first_gpu)?));
    assert_eq!(a.fill(ca, both, 24 * MIB, 1, 1)?.status(), Status::DeviceLost);
    let reply = a.query(ca, both, 0, 32 + 64)?.payload;
    assert_eq!(u32::from_le_bytes(reply[52..56].try_into()?), u32::MAX, "lost with that GPU");
    assert_eq!(u32::from_le_bytes(reply[84..88].try_into()?), 0, "on the other");
    // What lies on the other GPU is still good.
    assert_eq!(a.write(ca, both + 20 * MIB, b"alive")?.status(), Status::Ok);
    assert_eq!(a.read(ca, both + 20 * MIB, 5)?.payload, b"alive");
    assert_eq!(a.read(ca, both, 5)?.status(), Status::DeviceLost);
    assert_eq!(a.free(ca, both)?.status(), Status::Ok);
    daemon.expect_all_memory_back()?;
    // The GPU that is left serves both tenants, whichever their home was.
    let started = Instant::now();
    let whole = b.must_alloc(cb, 16 * MIB)?;
    assert_eq!(b.read(cb, whole, 4096)?.payload, vec![0; 4096]);
    assert_eq!(a.alloc(ca, 2 * MIB, 0)?.status(), Status::OutOfMemory);
    assert_eq!(b.free(cb, whole)?.status(), Status::Ok);
    let again = a.must_alloc(ca, 16 * MIB)?;
    assert_eq!(a.read(ca, again, 4096)?.payload, vec![0; 4096]);
    assert!(started.elapsed() < Duration::from_secs(4), "somebody waited for memory that never comes");
    Ok(())
}

#[test]
fn gpu_lost_while_memory_is_scrubbed_does_not_hold_the_slice() -> Result<()> {
    let daemon = TestDaemon::start("2x16MiB,fresh=dirty", &[("a", 16 * MIB, 0)])?;
    let mut a = daemon.driver("a")?;
    let context = a.open()?;
    // Two in one shard: freeing one scrubs.
    let (kept, freed) = (a.must_alloc(context, MIB / 2)?, a.must_alloc(context, MIB / 2)?);
    let reply = a.query(context, kept, 0, 64)?.payload;
    let gpu = GpuId(u16::try_from(u32::from_le_bytes(reply[48..52].try_into()?))?);
    daemon.faults.pause(gpu);
    let copies = daemon.faults.copies();
    a.free(context, freed)?;
    daemon.expect_copies(copies + 1)?;
    daemon.faults.lose_gpu(gpu);
    let started = Instant::now();
    // Until the loss is noticed, what was on the GPU counts.
    let other = loop {
        match a.alloc(context, 16 * MIB, 0)? {
            answer if answer.status() == Status::Ok => break answer.response.value,
            answer => ensure!(started.elapsed() < Duration::from_secs(4), "{}", answer.status()),
        }
    };
    assert_eq!(a.read(context, other, 4096)?.payload, vec![0; 4096]);
    assert!(started.elapsed() < Duration::from_secs(4));
    assert_eq!(a.read(context, kept, 1)?.status(), Status::DeviceLost);
    drop(a);
    daemon.expect_all_memory_back()?;
    assert_eq!((daemon.sim.counts().mappings, daemon.sim.counts().shards), (0, 0));
    Ok(())
}

#[test]
fn scrub_that_fails_once_is_made_again_and_the_bytes_are_zeros() -> Result<()> {
    let daemon = TestDaemon::start("1x4MiB,fresh=dirty", &[("a", 4 * MIB, 0)])?;
    let mut a = daemon.driver("a")?;
    let context = a.open()?;
    let (kept, freed) = (a.must_alloc(context, MIB)?, a.must_alloc(context, MIB)?);
    a.fill(context, freed, MIB, 0x77, 1)?;
    daemon.faults.fail_copy(1);
    a.free(context, freed)?;
    let slice = daemon.residency().pool().slices().next().context("a slice")?;
    ensure!(daemon.residency().wait_released(slice, WAIT), "the bytes never came back");
    // Needs the very bytes.
    let (first, second) = (a.must_alloc(context, MIB)?, a.must_alloc(context, 2 * MIB)?);
    for base in [first, second] {
        assert_eq!(a.read(context, base, MIB)?.payload, vec![0; MIB as usize]);
    }
    assert_eq!(a.free(context, kept)?.status(), Status::Ok);
    drop(a);
    daemon.expect_all_memory_back()
}

#[test]
fn frees_of_one_tenant_by_the_thousand_do_not_hold_up_another() -> Result<()> {
    let daemon = TestDaemon::start("1x32MiB,fresh=dirty", &[("a", 8 * MIB, 0), ("b", 24 * MIB, 0)])?;
    let (mut a, mut b) = (daemon.driver("a")?, daemon.driver("b")?);
    let (ca, cb) = (a.open()?, b.open()?);
    for _ in 0..1500 {
        a.must_alloc(ca, 256)?;
    }
    let whole = b.must_alloc(cb, 24 * MIB)?;
    daemon.faults.delay_copies(Duration::from_millis(5));
    assert_eq!(a.close(ca)?.status(), Status::Ok);
    assert_eq!(b.free(cb, whole)?.status(), Status::Ok);
    // Would wait for the memory it just freed, behind all that.
    let started = Instant::now();
    assert_eq!(b.alloc(cb, 24 * MIB, 0)?.status(), Status::Ok);
    assert!(started.elapsed() < Duration::from_secs(4));
    Ok(())
}

/// A FILL over more shards than a stream of the GPU takes at once, on a GPU that stands still meanwhile.
#[test]
fn fill_of_very_many_shards_is_not_answered_before_it_has_run() -> Result<()> {
    let length = 4200 * 2 * MIB;
    let daemon = TestDaemon::start("1x10GiB", &[("a", length, 0), ("b", 8 * MIB, 0)])?;
    let (mut a, mut b) = (daemon.driver("a")?, daemon.driver("b")?);
    let (ca, cb) = (a.open()?, b.open()?);
    let (base, base_b) = (a.must_alloc(ca, length)?, b.must_alloc(cb, 2 * MIB)?);
    daemon.faults.pause(GpuId(0));
    let fill = Request::Fill(Fill { range: Range { address: base, length }, pattern: 0, width: 1 });
    let flood = Flood::send(&mut a, 2, &[(ca, 0, fill)])?;
    assert!(a.vm.rings[2].wait(Duration::from_millis(500)).is_err(), "answered while the GPU stands still");
    // Never to be moved: eight gigabytes are too much for a test.
    daemon.faults.lose_gpu(GpuId(0));
    assert_eq!(flood.statuses(&mut a, 2)?, [Some(Status::DeviceLost)]);
    assert_eq!(b.fill(cb, base_b, 2 * MIB, 1, 1)?.status(), Status::DeviceLost);
    Ok(())
}

#[test]
fn context_closed_while_fences_and_copies_wait_answers_every_one() -> Result<()> {
    let daemon = TestDaemon::start("1x32MiB,fresh=dirty", &[("a", 16 * MIB, 0)])?;
    let mut a = daemon.driver("a")?;
    let context = a.open()?;
    let base = a.must_alloc(context, 4 * MIB)?;
    daemon.faults.pause(GpuId(0));
    let fill = |length| Request::Fill(Fill { range: Range { address: base, length }, pattern: 7, width: 1 });
    let copy = Request::Copy(Copy { destination: base, source: base + 2 * MIB, length: MIB });
    let mut requests = Vec::new();
    for stream in 0..30 {
        requests.push((context, stream, if stream % 2 == 0 { fill(4096) } else { copy }));
        requests.push((context, stream, Request::Fence { all_streams: stream % 3 == 0 }));
    }
    // When this one is enqueued, all before it have been taken.
    requests.push((context, 30, fill(4096)));
    let copies = daemon.faults.copies();
    let flood = Flood::send(&mut a, 2, &requests)?;
    daemon.expect_copies(copies + 31)?;
    let faults = daemon.faults.clone();
    let resume = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        faults.clear();
    });
    assert_eq!(a.close(context)?.status(), Status::Ok);
    resume.join().expect("it only sleeps");
    for (i, status) in flood.statuses(&mut a, 2)?.into_iter().enumerate() {
        let fence = i % 2 == 1;
        ensure!(
            status == Some(Status::Ok) || (fence && status == Some(Status::Cancelled)),
            "request {i} was answered {status:?}"
        );
    }
    daemon.expect_all_memory_back()
}

#[test]
fn session_ended_while_its_gpu_stands_still_gives_all_back_when_it_goes_on() -> Result<()> {
    let daemon = TestDaemon::start("2x16MiB,fresh=dirty", &[("a", 16 * MIB, 0), ("b", 8 * MIB, 0)])?;
    let mut b = daemon.driver("b")?;
    let cb = b.open()?;
    let mut a = daemon.driver("a")?;
    let context = a.open()?;
    let base = a.must_alloc(context, 4 * MIB)?;
    daemon.faults.pause(GpuId(0));
    daemon.faults.pause(GpuId(1));
    let fill = Request::Fill(Fill { range: Range { address: base, length: MIB }, pattern: 7, width: 1 });
    let copies = daemon.faults.copies();
    Flood::send(&mut a, 2, &[(context, 0, fill), (context, 1, fill), (context, 1, fill)])?;
    daemon.expect_copies(copies + 2)?;
    let started = Instant::now();
    drop(a);
    // The next frontend waits for the end of the one before, which is bounded.
    let mut again = Driver::connect(&daemon.socket("a"), &vram_testkit::VmSpec::default());
    for _ in 0..5 {
        if again.is_ok() {
            break;
        }
        again = Driver::connect(&daemon.socket("a"), &vram_testkit::VmSpec::default());
    }
    let mut again = again?;
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
    again.hello(99)?;
    daemon.faults.clear();
    daemon.expect_all_memory_back()?;
    let context = again.open()?;
    let base = again.must_alloc(context, 16 * MIB)?;
    assert_eq!(again.read(context, base, 4096)?.payload, vec![0; 4096]);
    b.must_alloc(cb, MIB)?;
    drop((again, b));
    daemon.expect_all_memory_back()?;
    assert_eq!(daemon.sim.counts().events, 0);
    Ok(())
}

#[test]
fn alloc_stuck_in_a_gpu_ends_with_its_session_and_the_next_one_can_allocate() -> Result<()> {
    let daemon = TestDaemon::start("1x16MiB,fresh=dirty", &[("a", 16 * MIB, 0)])?;
    let mut a = daemon.driver("a")?;
    let context = a.open()?;
    daemon.faults.pause(GpuId(0));
    let alloc = Request::Alloc(vram_protocol::Alloc { length: 4 * MIB, alignment: 0 });
    let copies = daemon.faults.copies();
    Flood::send(&mut a, 0, &[(context, 0, alloc)])?;
    daemon.expect_copies(copies + 1)?;
    drop(a);
    let started = Instant::now();
    let mut again = loop {
        match Driver::connect(&daemon.socket("a"), &vram_testkit::VmSpec::default()) {
            Ok(driver) => break driver,
            Err(error) if started.elapsed() > Duration::from_secs(60) => return Err(error),
            Err(_) => {}
        }
    };
    again.hello(99)?;
    let context = again.open()?;
    assert_eq!(again.alloc(context, 4 * MIB, 0)?.status(), Status::OutOfMemory, "the other is still at it");
    daemon.faults.clear();
    daemon.expect_all_memory_back()?;
    assert_eq!(again.alloc(context, 16 * MIB, 0)?.status(), Status::Ok);
    Ok(())
}
