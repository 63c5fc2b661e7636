//! Guest RAM.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Mutex;

use anyhow::{Context, Result, bail};
use nix::sys::memfd::{MFdFlags, memfd_create};
use vhost::VhostUserMemoryRegionInfo;
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};

/// One region: where the guest sees it and how large it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RamRegion {
    /// First guest address.
    pub start: u64,
    /// Bytes, whole pages.
    pub len_bytes: u64,
}

/// RAM of a fake guest, with a simple allocator for buffers.
pub struct GuestRam {
    memory: GuestMemoryMmap,
    regions: Vec<(RamRegion, File)>,
    /// Next free byte of each region.
    next: Mutex<Vec<u64>>,
}

/// How far apart guest and frontend addresses of a region are, so that mixing them up is noticed.
const FRONTEND_OFFSET: u64 = 0x7f00_0000_0000;

impl GuestRam {
    /// Makes the regions, each in a memfd of its own.
    pub fn new(regions: &[RamRegion]) -> Result<Self> {
        let mut files = Vec::new();
        for region in regions {
            let fd = memfd_create("fake-guest-ram", MFdFlags::MFD_CLOEXEC).context("memfd_create")?;
            let file = File::from(fd);
            file.set_len(region.len_bytes).context("ftruncate")?;
            files.push((*region, file));
        }
        let mut ranges = Vec::new();
        for (region, file) in &files {
            let offset = FileOffset::new(file.try_clone()?, 0);
            ranges.push((GuestAddress(region.start), usize::try_from(region.len_bytes)?, Some(offset)));
        }
        let memory = GuestMemoryMmap::from_ranges_with_files(ranges).context("guest RAM cannot be mapped")?;
        let next = Mutex::new(files.iter().map(|(region, _)| region.start).collect());
        Ok(Self { memory, regions: files, next })
    }

    /// Takes `len_bytes` bytes of the region with this number; they are never given back.
    pub fn take(&self, region: usize, len_bytes: u64, alignment: u64) -> Result<u64> {
        let mut next = self.next.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let start = next[region].next_multiple_of(alignment);
        let (bounds, _) = &self.regions[region];
        if start + len_bytes > bounds.start + bounds.len_bytes {
            bail!("fake guest RAM region {region} is used up");
        }
        next[region] = start + len_bytes;
        Ok(start)
    }

    /// Writes guest memory.
    pub fn write(&self, address: u64, bytes: &[u8]) {
        self.memory.write_slice(bytes, GuestAddress(address)).expect("inside guest RAM");
    }

    /// Reads guest memory.
    pub fn read(&self, address: u64, len_bytes: usize) -> Vec<u8> {
        let mut bytes = vec![0; len_bytes];
        self.memory.read_slice(&mut bytes, GuestAddress(address)).expect("inside guest RAM");
        bytes
    }

    /// Reads a 16-bit number that the device writes, after whatever it wrote before it.
    pub fn load_u16(&self, address: u64) -> u16 {
        u16::from_le(
            self.memory.load(GuestAddress(address), std::sync::atomic::Ordering::Acquire).expect("in RAM"),
        )
    }

    /// Writes a 16-bit number that the device reads, after whatever was written before it.
    pub fn store_u16(&self, address: u64, value: u16) {
        self.memory
            .store(value.to_le(), GuestAddress(address), std::sync::atomic::Ordering::Release)
            .expect("in RAM");
    }

    /// Number of regions.
    pub fn region_count(&self) -> usize {
        self.regions.len()
    }

    /// A region as vhost-user describes it.
    pub fn info(&self, region: usize) -> VhostUserMemoryRegionInfo {
        let (bounds, file) = &self.regions[region];
        VhostUserMemoryRegionInfo {
            guest_phys_addr: bounds.start,
            memory_size: bounds.len_bytes,
            userspace_addr: bounds.start + FRONTEND_OFFSET,
            mmap_offset: 0,
            mmap_handle: file.as_raw_fd(),
        }
    }

    /// The file behind a region, for frontends that misbehave.
    pub fn file(&self, region: usize) -> &File {
        &self.regions[region].1
    }

    /// The frontend's address of a guest address.
    pub fn to_frontend(address: u64) -> u64 {
        address + FRONTEND_OFFSET
    }
}
