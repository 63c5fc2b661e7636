//! Frontends that mean harm: descriptors that block, memory of odd kinds, messages in any order.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use vhost::vhost_user::VhostUserFrontend;
use vhost::{VhostBackend, VhostUserMemoryRegionInfo};
use vram_protocol::{Copy, Header, Range, Request, Status};
use vram_testkit::{Driver, FakeVm, GuestRam, RamRegion, VmSpec};
use vram_tests::{TestDaemon, binary};

const MIB: u64 = 1 << 20;
const WAIT: Duration = Duration::from_secs(10);

fn two_slices() -> Result<TestDaemon> {
    TestDaemon::start("2x16MiB,fresh=dirty", &[("a", 16 * MIB, 0), ("b", 8 * MIB, 0)])
}

/// Entries of a folder of /proc/self.
fn count(folder: &str) -> usize {
    std::fs::read_dir(Path::new("/proc/self").join(folder)).map(Iterator::count).unwrap_or(0)
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
            .args(["--gpu", "sim:1x16MiB", "--shard", "2MiB", "--slice", "a=8MiB", "--slice", "b=8MiB"])
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

/// Clears O_NONBLOCK behind the device's back and fills the eventfd to the brim: a plain write to it blocks.
fn make_blocking_and_full(call: &vmm_sys_util::eventfd::EventFd) -> Result<()> {
    // SAFETY-free way to the flags: nix takes the borrowed descriptor.
    let file = File::from(call.as_raw_fd_owned()?);
    let flags = OFlag::from_bits_retain(fcntl(file.as_fd(), FcntlArg::F_GETFL)?);
    fcntl(file.as_fd(), FcntlArg::F_SETFL(flags & !OFlag::O_NONBLOCK))?;
    call.write(u64::MAX - 1).context("filling the eventfd")?;
    Ok(())
}

/// A duplicate of a descriptor.
trait Duplicate {
    fn as_raw_fd_owned(&self) -> Result<std::os::fd::OwnedFd>;
}

impl Duplicate for vmm_sys_util::eventfd::EventFd {
    fn as_raw_fd_owned(&self) -> Result<std::os::fd::OwnedFd> {
        Ok(File::options()
            .read(true)
            .open("/dev/null")
            .map(|_| ())
            .and_then(|()| self.try_clone())
            .map(|copy| copy.into_owned())?)
    }
}

trait IntoOwned {
    fn into_owned(self) -> std::os::fd::OwnedFd;
}
