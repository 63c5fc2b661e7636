//! A model of the device in plain memory, for tests of this crate only. It keeps the rules of `vram_ioctl.h` and can be
//! told to misbehave.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::File,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    driver::{Driver, Errno},
    uapi,
};

/// The device. The fields are what a test sets before it opens it.
pub(crate) struct Model {
    pub(crate) ioctl_version: u32,
    pub(crate) gpus: u32,
    pub(crate) limit_bytes: u64,
    pub(crate) pool_bytes: u64,
    /// Extents are this long, on one GPU after the other.
    pub(crate) extent_bytes: u64,
    /// Extents one QUERY returns at most.
    pub(crate) page_extents: usize,
    /// The number of extents is another each time it is asked for.
    pub(crate) restless: bool,
    /// Bytes one transfer call moves at most.
    pub(crate) short_moves: u64,
    /// Fails when this many bytes have been moved in all.
    pub(crate) fail_at: Option<u64>,
    /// Reports success and moves nothing.
    pub(crate) stuck: bool,
    pub(crate) events: Mutex<VecDeque<uapi::Event>>,
    pub(crate) transfers: AtomicU64,
    pub(crate) asked: AtomicU32,
    pub(crate) moved_bytes: AtomicU64,
    pub(crate) memory: Mutex<BTreeMap<u64, Vec<u8>>>,
    pub(crate) file: File,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            ioctl_version: uapi::IOCTL_VERSION,
            gpus: 2,
            limit_bytes: 1 << 30,
            pool_bytes: 1 << 30,
            extent_bytes: 1 << 20,
            page_extents: usize::MAX,
            restless: false,
            short_moves: u64::MAX,
            fail_at: None,
            stuck: false,
            events: Mutex::default(),
            transfers: AtomicU64::new(0),
            asked: AtomicU32::new(0),
            moved_bytes: AtomicU64::new(0),
            memory: Mutex::default(),
            file: File::open("/dev/null").unwrap(),
        }
    }
}

const BAND_BASE: u64 = 0x7f00_0000_0000;

impl Model {
    /// How many of `length` bytes to move, and how to end.
    fn plan(&self, stream: u32, length: u64) -> Result<(u64, Result<(), Errno>), Errno> {
        self.transfers.fetch_add(1, Ordering::Relaxed);
        if stream >= 1024 || length == 0 {
            return Err(Errno(libc::EINVAL));
        }
        if self.stuck {
            return Ok((0, Ok(())));
        }
        let before = self.moved_bytes.load(Ordering::Relaxed);
        let (bytes, end) = match self.fail_at {
            Some(limit) if limit - before < length.min(self.short_moves) => {
                (limit - before, Err(Errno(libc::EIO)))
            }
            _ => (length.min(self.short_moves), Ok(())),
        };
        self.moved_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok((bytes, end))
    }

    /// Runs `act` on the bytes of a range that lies in one allocation.
    fn with<R>(&self, address: u64, length: u64, act: impl FnOnce(&mut [u8]) -> R) -> Result<R, Errno> {
        let mut memory = self.memory.lock().unwrap();
        let (base, bytes) = memory.range_mut(..=address).next_back().ok_or(Errno(libc::ENXIO))?;
        let start = (address - base) as usize;
        let end = start.checked_add(length as usize).ok_or(Errno(libc::ENXIO))?;
        bytes.get_mut(start..end).map(act).ok_or(Errno(libc::ENXIO))
    }
}

impl Driver for Model {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn version(&self, request: &mut uapi::Version) -> Result<(), Errno> {
        request.ioctl_version = self.ioctl_version;
        request.band_base = BAND_BASE;
        request.band_length = 1 << 40;
        Ok(())
    }

    fn info(&self, request: &mut uapi::Info, gpus: &mut [uapi::Gpu]) -> Result<(), Errno> {
        let memory = self.memory.lock().unwrap();
        request.allocations = memory.len() as u32;
        request.allocated_bytes = memory.values().map(|bytes| bytes.len() as u64).sum();
        request.limit_bytes = self.limit_bytes;
        request.flags = uapi::INFO_SIMULATED;
        request.slice_name[..5].copy_from_slice(b"model");
        request.gpu_count = self.gpus;
        for (index, gpu) in (0..self.gpus).zip(gpus) {
            gpu.index = index;
            gpu.flags = if index == 0 { uapi::GPU_HOME } else { 0 };
            let name = format!("Model GPU {index}");
            gpu.name[..name.len()].copy_from_slice(name.as_bytes());
        }
        Ok(())
    }

    fn alloc(&self, request: &mut uapi::Alloc) -> Result<(), Errno> {
        let alignment = request.alignment.max(256);
        if request.length == 0 || !alignment.is_power_of_two() || alignment > 1 << 30 {
            return Err(Errno(libc::EINVAL));
        }
        if request.alignment != 0 && !request.alignment.is_power_of_two() {
            return Err(Errno(libc::EINVAL));
        }
        let mut memory = self.memory.lock().unwrap();
        let used: u64 = memory.values().map(|bytes| bytes.len() as u64).sum();
        if request.length > self.limit_bytes - used {
            return Err(Errno(libc::EDQUOT));
        }
        if request.length > self.pool_bytes - used {
            return Err(Errno(libc::ENOMEM));
        }
        let end = memory.last_key_value().map_or(BAND_BASE, |(base, bytes)| base + bytes.len() as u64);
        request.address = end.next_multiple_of(alignment);
        memory.insert(request.address, vec![0; request.length as usize]);
        Ok(())
    }

    fn free(&self, request: &uapi::Free) -> Result<(), Errno> {
        self.memory.lock().unwrap().remove(&request.address).map(drop).ok_or(Errno(libc::ENXIO))
    }

    fn query(&self, request: &mut uapi::Query, extents: &mut [uapi::Extent]) -> Result<(), Errno> {
        self.with(request.address, 1, |_| ())?;
        let memory = self.memory.lock().unwrap();
        let (base, bytes) = memory.range(..=request.address).next_back().unwrap();
        let length = bytes.len() as u64;
        let total = length.div_ceil(self.extent_bytes);
        request.base = *base;
        request.length = length;
        request.extent_total = total as u32;
        if self.restless {
            request.extent_total += self.asked.fetch_add(1, Ordering::Relaxed);
        }
        request.extent_count = 0;
        let first = u64::from(request.first_extent);
        for (number, extent) in (first..total).zip(extents.iter_mut()).take(self.page_extents) {
            let offset = number * self.extent_bytes;
            extent.address = base + offset;
            extent.length = self.extent_bytes.min(length - offset);
            extent.gpu = (number % u64::from(self.gpus)) as u32;
            extent.tier = uapi::TIER_GPU;
            request.extent_count += 1;
        }
        Ok(())
    }

    fn advise(&self, request: &uapi::Advise) -> Result<(), Errno> {
        let gpus = if request.advice == uapi::ADVICE_PREFER_GPU { self.gpus } else { 1 };
        if request.length == 0 || !(1..=5).contains(&request.advice) || request.argument >= gpus {
            return Err(Errno(libc::EINVAL));
        }
        self.with(request.address, request.length, |_| ())
    }

    fn event(&self, request: &mut uapi::Event) -> Result<(), Errno> {
        *request = self.events.lock().unwrap().pop_front().ok_or(Errno(libc::EAGAIN))?;
        Ok(())
    }

    fn wait_event(&self, timeout: Option<Duration>) -> Result<(), Errno> {
        std::thread::sleep(timeout.unwrap_or_default().min(Duration::from_millis(1)));
        Ok(())
    }

    fn write(&self, request: &mut uapi::Transfer, source: &[u8]) -> Result<(), Errno> {
        let (bytes, end) = self.plan(request.stream, source.len() as u64)?;
        self.with(request.device_address, source.len() as u64, |memory| {
            memory[..bytes as usize].copy_from_slice(&source[..bytes as usize]);
        })?;
        request.moved = bytes;
        end
    }

    fn read(&self, request: &mut uapi::Transfer, destination: &mut [u8]) -> Result<(), Errno> {
        let (bytes, end) = self.plan(request.stream, destination.len() as u64)?;
        self.with(request.device_address, destination.len() as u64, |memory| {
            destination[..bytes as usize].copy_from_slice(&memory[..bytes as usize]);
        })?;
        request.moved = bytes;
        end
    }

    fn copy(&self, request: &mut uapi::Copy) -> Result<(), Errno> {
        let (bytes, end) = self.plan(request.stream, request.length)?;
        if request.source.abs_diff(request.destination) < request.length {
            return Err(Errno(libc::EINVAL));
        }
        let source = self.with(request.source, request.length, |memory| memory[..bytes as usize].to_vec())?;
        self.with(request.destination, request.length, |memory| {
            memory[..bytes as usize].copy_from_slice(&source);
        })?;
        request.moved = bytes;
        end
    }

    fn fill(&self, request: &mut uapi::Fill) -> Result<(), Errno> {
        let (bytes, end) = self.plan(request.stream, request.length)?;
        let width = request.width as usize;
        if ![1, 2, 4].contains(&width)
            || !request.length.is_multiple_of(width as u64)
            || !request.address.is_multiple_of(width as u64)
        {
            return Err(Errno(libc::EINVAL));
        }
        self.with(request.address, request.length, |memory| {
            for piece in memory[..bytes as usize].chunks_exact_mut(width) {
                piece.copy_from_slice(&request.pattern.to_le_bytes()[..width]);
            }
        })?;
        request.moved = bytes;
        end
    }

    fn fence(&self, request: &uapi::Fence) -> Result<(), Errno> {
        if request.stream >= 1024 { Err(Errno(libc::EINVAL)) } else { Ok(()) }
    }
}
