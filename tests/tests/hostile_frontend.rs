//! Frontends that mean harm: descriptors that block, memory of odd kinds, messages in any order.

use std::fs::File;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use vhost::VhostUserMemoryRegionInfo;
use vhost::vhost_user::VhostUserFrontend;
use vmm_sys_util::eventfd::EventFd as VmmEventFd;
use vram_gpu::GpuId;
use vram_protocol::{Header, Range, Request, Status};
use vram_testkit::{Driver, FakeVm, GuestRam, RamRegion, VmSpec};
use vram_tests::{TestDaemon, binary};

const MIB: u64 = 1 << 20;
const WAIT: Duration = Duration::from_secs(10);

fn two_slices() -> Result<TestDaemon> {
    TestDaemon::start("2x16MiB,fresh=dirty", &[("a", 16 * MIB, 0), ("b", 8 * MIB, 0)])
}

/// Threads of this process with that name.
fn threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|found| found.trim_end() == name).count()
}

/// A region whose memory is a file of the caller's.
fn region(file: &File, start: u64, len_bytes: u64) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: start,
        memory_size: len_bytes,
        userspace_addr: GuestRam::to_frontend(start),
        mmap_offset: 0,
        mmap_handle: file.as_raw_fd(),
    }
}

fn memory_file(flags: MFdFlags, len_bytes: u64) -> Result<File> {
    let file = File::from(memfd_create("hostile", flags | MFdFlags::MFD_CLOEXEC).context("memfd_create")?);
    file.set_len(len_bytes)?;
    Ok(file)
}

/// vramd, ended with the test.
struct Vramd(Child);

impl Vramd {
    fn start(dir: &Path) -> Result<Self> {
        let child = Command::new(binary("vramd")?)
            .args([
                "--gpu",
                "sim:1x16MiB",
                "--shard",
                "2MiB",
                "--slice",
                "a=8MiB,queues=2",
                "--slice",
                "b=8MiB,queues=2",
            ])
            .arg("--socket-dir")
            .arg(dir)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("vramd")?;
        Ok(Self(child))
    }
}

impl Drop for Vramd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Huge pages that are not there: touching them raises SIGBUS, and so does a file that is cut short. The daemon is a
/// process of its own, because the wrong outcome is its death.
#[test]
fn memory_of_missing_huge_pages_ends_that_session_only() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut vramd = Vramd::start(dir.path())?;
    let mut neighbour = Driver::connect(&dir.path().join("b.sock"), &VmSpec::default())?;
    neighbour.hello(1)?;
    let Ok(file) = memory_file(MFdFlags::MFD_HUGETLB, 64 << 20) else {
        return Ok(());
    };
    let mut driver = Driver::connect(&dir.path().join("a.sock"), &VmSpec::default())?;
    driver.hello(1)?;
    let context = driver.open()?;
    let base = driver.must_alloc(context, MIB)?;
    let _ = driver.vm.frontend.add_mem_region(&region(&file, 2 << 40, 64 << 20));
    let ram = Arc::clone(&driver.vm.ram);
    let (request, response) = (ram.take(0, 64, 64)?, ram.take(0, 64, 64)?);
    let write = Request::Write(Range { address: base, length: 8192 });
    ram.write(request, &write.encode(Header { tag: 1, context, stream: 0 }));
    let ring = &mut driver.vm.rings[2];
    let at = (2 << 40) + (3 << 20);
    let head = ring.build(&[(request, 64, false), (at, 8192, false), (response, 40, true)])?;
    ring.publish(head);
    ring.kick();
    let _ = ring.wait(Duration::from_secs(3));
    let context = neighbour.open()?;
    let base = neighbour.must_alloc(context, MIB)?;
    assert_eq!(neighbour.write(context, base, b"neighbour")?.status(), Status::Ok);
    assert!(vramd.0.try_wait()?.is_none(), "vramd died");
    drop(driver);
    Driver::connect(&dir.path().join("a.sock"), &VmSpec::default())?.hello(2)?;
    Ok(())
}

/// Sends a message of the vhost-user protocol as it is, with descriptors, and asks for no answer.
fn send_raw(vm: &FakeVm, request: u32, body: &[u8], descriptors: &[i32]) -> Result<()> {
    let mut message = Vec::new();
    message.extend(request.to_le_bytes());
    message.extend(1u32.to_le_bytes());
    message.extend(u32::try_from(body.len())?.to_le_bytes());
    message.extend(body);
    let rights = [ControlMessage::ScmRights(descriptors)];
    let socket = vm.frontend.as_raw_fd();
    sendmsg::<()>(socket, &[IoSlice::new(&message)], &rights, MsgFlags::empty(), None)?;
    Ok(())
}

const SET_VRING_KICK: u32 = 12;
const SET_VRING_CALL: u32 = 13;

/// Clears O_NONBLOCK behind the device's back.
fn make_blocking(event: &EventFd) -> Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(event, FcntlArg::F_GETFL)?);
    fcntl(event, FcntlArg::F_SETFL(flags & !OFlag::O_NONBLOCK))?;
    Ok(())
}

#[test]
fn call_descriptor_that_blocks_holds_nobody_and_leaks_no_thread() -> Result<()> {
    let daemon = TestDaemon::start("1x16MiB", &[("blocked", 16 * MIB, 0)])?;
    for round in 0..3u64 {
        let mut driver = daemon.driver("blocked")?;
        let call = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC)?;
        send_raw(&driver.vm, SET_VRING_CALL, &2u64.to_le_bytes(), &[call.as_fd().as_raw_fd()])?;
        // A message with an answer, so that the one before it has been carried out.
        driver.vm.config(0, 4)?;
        make_blocking(&call)?;
        call.write(u64::MAX - 1)?;
        let started = Instant::now();
        for tag in 0..3 {
            let request = Request::Fence { all_streams: false }.encode(Header { tag, context: 0, stream: 0 });
            let answer = driver.send_bytes(2, &request, &[], 0)?.context("no answer")?;
            assert_eq!(answer.status(), Status::NoContext);
        }
        driver.vm.stop_ring(2)?;
        assert!(started.elapsed() < WAIT, "round {round}");
    }
    let until = Instant::now() + WAIT;
    while threads("q2-blocked") > 0 {
        anyhow::ensure!(Instant::now() < until, "{} threads are stuck", threads("q2-blocked"));
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Reading it could wait for ever: the frontend can make it block, and take the count away first.
#[test]
fn kick_descriptor_is_watched_and_never_read() -> Result<()> {
    let daemon = two_slices()?;
    let mut driver = daemon.driver("a")?;
    let kick = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
    send_raw(&driver.vm, SET_VRING_KICK, &2u64.to_le_bytes(), &[kick.as_fd().as_raw_fd()])?;
    driver.vm.config(0, 4)?;
    let request = Request::Fence { all_streams: false }.encode(Header { tag: 1, context: 0, stream: 0 });
    let area = driver.vm.ram.take(0, 128, 64)?;
    driver.vm.ram.write(area, &request);
    for round in 1..=5u64 {
        let ring = &mut driver.vm.rings[2];
        let head = ring.build(&[(area, 64, false), (area + 64, 40, true)])?;
        ring.publish(head);
        kick.write(1)?;
        ring.wait(WAIT).with_context(|| format!("round {round}"))?;
    }
    assert_eq!(kick.read()?, 5);
    Ok(())
}

/// Publishes as many chains as the ring holds, over and over, so that the device never finds the ring empty.
fn feed(ring: &RingPlace, ram: &GuestRam, kick: &VmmEventFd, stop: &AtomicBool) {
    let (mut before, mut still) = (0, 0u32);
    while !stop.load(Ordering::Relaxed) {
        let used = ram.load_u16(ring.used + 2);
        ram.store_u16(ring.available + 2, used.wrapping_add(ring.size));
        still = if used == before { still.wrapping_add(1) } else { 1 };
        if still.is_multiple_of(5000) {
            // Full of kicks is kicked too.
            let _ = kick.write(1);
        }
        before = used;
    }
}

#[derive(Clone, Copy)]
struct RingPlace {
    size: u16,
    available: u64,
    used: u64,
}

/// The chains' requests lie in memory that is taken away while the guest keeps the queue's thread busy.
#[test]
fn memory_removed_under_a_queue_that_never_rests_is_no_longer_used() -> Result<()> {
    let daemon = two_slices()?;
    let mut driver = daemon.driver("a")?;
    let extra = GuestRam::new(&[RamRegion { start: 2 << 32, len_bytes: MIB }])?;
    driver.vm.frontend.add_mem_region(&extra.info(0))?;
    let response = driver.vm.ram.take(0, 64, 64)?;
    let ring = &mut driver.vm.rings[2];
    for slot in 0..ring.size / 2 {
        // An opcode nobody knows: answered at once.
        let head = ring.build(&[(2 << 32, 64, false), (response, 40, true)])?;
        for slot in [slot, slot + ring.size / 2] {
            driver.vm.ram.write(ring.available + 4 + u64::from(slot) * 2, &head.to_le_bytes());
        }
    }
    let place = RingPlace { size: ring.size / 2, available: ring.available, used: ring.used };
    let stop = AtomicBool::new(false);
    let ram = Arc::clone(&driver.vm.ram);
    std::thread::scope(|scope| {
        let kick = driver.vm.rings[2].kick.try_clone()?;
        scope.spawn({
            let (ram, stop) = (&ram, &stop);
            move || feed(&place, ram, &kick, stop)
        });
        std::thread::sleep(Duration::from_millis(300));
        let removed = driver.vm.frontend.remove_mem_region(&extra.info(0));
        let before = ram.load_u16(place.used + 2);
        let until = Instant::now() + WAIT;
        while ram.load_u16(place.used + 2).wrapping_sub(before) < 2 * place.size && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        let lens: Vec<u32> = (0..u64::from(place.size))
            .map(|slot| ram.read(place.used + 4 + slot * 8 + 4, 4))
            .map(|bytes| u32::from_le_bytes(bytes.try_into().expect("four bytes")))
            .collect();
        stop.store(true, Ordering::Relaxed);
        removed?;
        assert!(lens.iter().all(|len| *len == 0), "requests in memory that is gone were read: {lens:?}");
        anyhow::Ok(())
    })?;
    assert!(driver.open()? > 0);
    Ok(())
}

/// Each map the frontend takes away is still used by a transfer that does not end.
#[test]
fn memory_replaced_over_and_over_under_stuck_transfers_is_bounded() -> Result<()> {
    let daemon = two_slices()?;
    let mut neighbour = daemon.driver("b")?;
    let mut driver = daemon.driver("a")?;
    let context = driver.open()?;
    let base = driver.must_alloc(context, MIB)?;
    daemon.faults.pause(GpuId(0));
    daemon.faults.pause(GpuId(1));
    let sparse = memory_file(MFdFlags::empty(), 3 << 40)?;
    let ram = Arc::clone(&driver.vm.ram);
    let request = ram.take(0, 64, 64)?;
    let response = ram.take(0, 64, 64)?;
    let write = Request::Write(Range { address: base, length: 64 });
    ram.write(request, &write.encode(Header { tag: 1, context, stream: 0 }));
    let mut replaced = 0;
    for _ in 0..6 {
        let huge = region(&sparse, 1 << 42, 3 << 40);
        if driver.vm.frontend.add_mem_region(&huge).is_err() {
            break;
        }
        let copies = daemon.faults.copies();
        let ring = &mut driver.vm.rings[2];
        let head = ring.build(&[(request, 64, false), (1 << 42, 64, false), (response, 40, true)])?;
        ring.publish(head);
        ring.kick();
        daemon.expect_copies(copies + 1)?;
        if driver.vm.frontend.remove_mem_region(&huge).is_err() {
            break;
        }
        replaced += 1;
    }
    assert!((1..=3).contains(&replaced), "{replaced} maps of 3 TiB were taken away and are still there");
    daemon.faults.clear();
    drop(driver);
    let context = neighbour.open()?;
    neighbour.must_alloc(context, MIB)?;
    daemon.expect_used(2 * MIB)
}
