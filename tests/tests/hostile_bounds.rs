//! What one guest can make the daemon hold, and for how long it can hold others up.

use std::io::{IoSlice, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use vram_gpu::GpuId;
use vram_protocol::{Fill, Header, Range, Request, Status};
use vram_testkit::{Driver, VmSpec};
use vram_tests::TestDaemon;

const MIB: u64 = 1 << 20;
const WAIT: Duration = Duration::from_secs(30);

/// Publishes requests of 64 bytes, `count` of them, each in a chain of two descriptors.
fn publish(
    driver: &mut Driver,
    queue: usize,
    count: u64,
    make: impl Fn(u64) -> (u32, u32, Request),
) -> Result<u64> {
    let ram = Arc::clone(&driver.vm.ram);
    let (at, responses) = (ram.take(0, count * 64, 64)?, ram.take(0, count * 64, 64)?);
    let ring = &mut driver.vm.rings[queue];
    for i in 0..count {
        let (context, stream, request) = make(i);
        ram.write(at + i * 64, &request.encode(Header { tag: i, context, stream }));
        let head = ring.build(&[(at + i * 64, 64, false), (responses + i * 64, 40, true)])?;
        ring.publish(head);
    }
    ring.kick();
    Ok(responses)
}

/// What an open descriptor of this process is.
fn descriptors(kind: &str) -> usize {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let targets = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    targets.filter(|target| target.to_string_lossy().contains(kind)).count()
}

fn raw(stream: &UnixStream, request: u32, flags: u32, body: &[u8], files: &[i32]) -> bool {
    let mut message = Vec::new();
    message.extend(request.to_le_bytes());
    message.extend(flags.to_le_bytes());
    message.extend((body.len() as u32).to_le_bytes());
    message.extend(body);
    let rights = [ControlMessage::ScmRights(files)];
    let control = if files.is_empty() { &[][..] } else { &rights[..] };
    sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(&message)], control, MsgFlags::MSG_NOSIGNAL, None)
        .is_ok()
}

/// Every request number, bodies of many sizes, with descriptors where none belong and in number none may have.
#[test]
fn messages_of_every_number_with_descriptors_leave_none_open() -> Result<()> {
    let daemon = TestDaemon::start("1x16MiB", &[("a", 8 * MIB, 0), ("b", 8 * MIB, 0)])?;
    let mut neighbour = daemon.driver("b")?;
    let context = neighbour.open()?;
    let base = neighbour.must_alloc(context, 4096)?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("marked-by-hostile-test");
    let file = std::fs::File::create(&path)?;
    file.set_len(MIB)?;
    let own = descriptors("marked-by-hostile-test");
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for request in 0..48u32 {
        for (size, files) in
            [(0usize, 1usize), (8, 1), (8, 3), (12, 0), (40, 2), (40, 30), (200, 1), (4096, 8)]
        {
            let Ok(stream) = UnixStream::connect(daemon.socket("a")) else { continue };
            // PROTOCOL_FEATURES and every protocol feature there is, offered or not.
            raw(&stream, 2, 1, &(1u64 << 30 | 1 << 32).to_le_bytes(), &[]);
            raw(&stream, 16, 1, &u64::MAX.to_le_bytes(), &[]);
            let body: Vec<u8> = (0..size)
                .map(|_| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    if random >> 63 == 0 { 0 } else { (random >> 33) as u8 }
                })
                .collect();
            for flags in [1, 9] {
                raw(&stream, request, flags, &body, &vec![file.as_raw_fd(); files]);
            }
            // And the beginning of a message whose rest never comes.
            let _ = (&stream).write_all(&[request as u8, 0, 0]);
        }
    }
    assert_eq!(neighbour.write(context, base, b"fine")?.status(), Status::Ok);
    daemon.driver("a")?.open()?;
    let until = Instant::now() + WAIT;
    while descriptors("marked-by-hostile-test") > own {
        ensure!(Instant::now() < until, "{} are open, {own} are ours", descriptors("marked-by-hostile-test"));
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Asks and never reads the answers, until the device can say no more.
#[test]
fn frontend_that_never_reads_is_alone_with_that() -> Result<()> {
    let daemon = TestDaemon::start("1x16MiB", &[("a", 8 * MIB, 0), ("b", 8 * MIB, 0)])?;
    let mut neighbour = daemon.driver("b")?;
    let stream = UnixStream::connect(daemon.socket("a"))?;
    stream.set_nonblocking(true)?;
    let mut asked = 0;
    // GET_FEATURES.
    while asked < 1_000_000 && raw(&stream, 1, 1, &[], &[]) {
        asked += 1;
    }
    std::thread::sleep(Duration::from_millis(100));
    while asked < 1_000_000 && raw(&stream, 1, 1, &[], &[]) {
        asked += 1;
    }
    assert!(asked < 1_000_000, "the device holds a million answers");
    let context = neighbour.open()?;
    neighbour.must_alloc(context, 4096)?;
    // Others who connect to the same slice meanwhile wait their turn or are refused, and the slice is free afterwards.
    let waiting: Vec<_> = (0..40).filter_map(|_| UnixStream::connect(daemon.socket("a")).ok()).collect();
    drop(stream);
    drop(waiting);
    daemon.driver("a")?.open()?;
    Ok(())
}

/// A daemon that ends while a frontend does not read, and another holds half a message.
#[test]
fn daemon_that_ends_under_stuck_frontends_ends() -> Result<()> {
    let daemon = TestDaemon::start("1x16MiB", &[("a", 8 * MIB, 0), ("b", 8 * MIB, 0)])?;
    let (mut a, b) = (UnixStream::connect(daemon.socket("a"))?, UnixStream::connect(daemon.socket("b"))?);
    a.write_all(&[1, 0, 0])?;
    b.set_nonblocking(true)?;
    while raw(&b, 1, 1, &[], &[]) {}
    std::thread::sleep(Duration::from_millis(100));
    let started = Instant::now();
    drop(daemon);
    assert!(started.elapsed() < Duration::from_secs(10));
    assert_eq!(a.read(&mut [0; 16])?, 0);
    Ok(())
}

/// Slow copies of one tenant, as many as its rings hold, on the GPU both share.
#[test]
fn tenant_with_full_rings_does_not_end_the_session_of_another() -> Result<()> {
    let daemon = TestDaemon::start("1x32MiB,fresh=dirty", &[("a", 8 * MIB, 0), ("b", 8 * MIB, 0)])?;
    let (mut a, mut b) = (daemon.driver("a")?, daemon.driver("b")?);
    let (ca, cb) = (a.open()?, b.open()?);
    let (base_a, base_b) = (a.must_alloc(ca, MIB)?, b.must_alloc(cb, MIB)?);
    daemon.faults.delay_copies(Duration::from_millis(60));
    let fill = |address| Request::Fill(Fill { range: Range { address, length: 64 }, pattern: 1, width: 1 });
    for queue in [2, 3] {
        publish(&mut a, queue, 128, |i| (ca, i as u32, fill(base_a)))?;
    }
    std::thread::sleep(Duration::from_millis(100));
    publish(&mut b, 2, 1, |_| (cb, 0, fill(base_b)))?;
    std::thread::sleep(Duration::from_millis(100));
    let at = b.vm.stop_ring(2)?;
    b.vm.resume_ring(2, at)?;
    Ok(())
}

/// What follows a fence over all streams on its own stream waits for it, whatever the fence waits for.
#[test]
fn request_behind_a_fence_over_all_streams_is_answered_after_it() -> Result<()> {
    let daemon = TestDaemon::start("2x8MiB", &[("a", 16 * MIB, 0)])?;
    let mut driver = daemon.driver("a")?;
    let context = driver.open()?;
    let base = driver.must_alloc(context, 12 * MIB)?;
    // The first GPU stands still, the other does not.
    let extents = driver.query(context, base, 0, 32 + 2 * 32)?.payload;
    let gpu = u16::from_le_bytes(extents[48..50].try_into()?);
    let fill = |address| Request::Fill(Fill { range: Range { address, length: 64 }, pattern: 1, width: 1 });
    daemon.faults.pause(GpuId(gpu));
    let copies = daemon.faults.copies();
    publish(&mut driver, 2, 3, |i| match i {
        0 => (context, 1, fill(base)),
        1 => (context, 0, Request::Fence { all_streams: true }),
        _ => (context, 0, fill(base + 11 * MIB)),
    })?;
    // Another fence, on a queue and a stream of its own. The queues know no order between them.
    daemon.expect_copies(copies + 1)?;
    publish(&mut driver, 3, 1, |_| (context, 2, Request::Fence { all_streams: true }))?;
    for queue in [2, 3] {
        assert!(driver.vm.rings[queue].wait(Duration::from_millis(300)).is_err(), "queue {queue}");
    }
    daemon.faults.clear();
    let order: Vec<u16> = (0..3).map(|_| Ok(driver.vm.rings[2].wait(WAIT)?.head)).collect::<Result<_>>()?;
    assert!(order.is_sorted(), "{order:?}");
    driver.vm.rings[3].wait(WAIT)?;
    Ok(())
}

/// As many fences as fit, on few streams and on many: each ends, and none on the stack of the one before it.
#[test]
fn fences_in_long_rows_all_end() -> Result<()> {
    let daemon = TestDaemon::start("1x16MiB", &[("a", 16 * MIB, 0)])?;
    let spec = VmSpec { queue_size: 1024, ..VmSpec::default() };
    let mut driver = Driver::connect(&daemon.socket("a"), &spec)?;
    driver.hello(1)?;
    let context = driver.open()?;
    let base = driver.must_alloc(context, MIB)?;
    let fill = Request::Fill(Fill { range: Range { address: base, length: 64 }, pattern: 1, width: 1 });
    for streams in [1, 2, 512] {
        daemon.faults.pause(GpuId(0));
        let copies = daemon.faults.copies();
        publish(&mut driver, 3, 1, |_| (context, 7, fill))?;
        daemon.expect_copies(copies + 1)?;
        let fence = Request::Fence { all_streams: true };
        let responses = publish(&mut driver, 2, 511, |i| (context, (i % streams) as u32, fence))?;
        std::thread::sleep(Duration::from_millis(200));
        assert!(driver.vm.rings[2].poll().is_none());
        daemon.faults.clear();
        for _ in 0..511 {
            driver.vm.rings[2].wait(WAIT)?;
        }
        driver.vm.rings[3].wait(WAIT)?;
        let statuses: Vec<_> = (0..511).map(|i| driver.vm.ram.read(responses + i * 64, 1)[0]).collect();
        assert!(statuses.iter().all(|status| *status == 0));
    }
    // Closed in the middle: every one is answered.
    daemon.faults.pause(GpuId(0));
    let copies = daemon.faults.copies();
    publish(&mut driver, 3, 1, |_| (context, 7, fill))?;
    daemon.expect_copies(copies + 1)?;
    publish(&mut driver, 2, 500, |i| (context, (i % 9) as u32, Request::Fence { all_streams: true }))?;
    std::thread::sleep(Duration::from_millis(100));
    let faults = daemon.faults.clone();
    let resume = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        faults.clear();
    });
    assert_eq!(driver.close(context)?.status(), Status::Ok);
    resume.join().expect("it only sleeps");
    for _ in 0..500 {
        driver.vm.rings[2].wait(WAIT)?;
    }
    daemon.expect_all_memory_back()
}
