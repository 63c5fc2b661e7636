//! The driver's side of a split ring, written from the virtio specification with plain offsets.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use vmm_sys_util::eventfd::EventFd;

use crate::GuestRam;

/// A descriptor, as written into the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Guest address of the buffer.
    pub address: u64,
    /// Bytes.
    pub len: u32,
    /// 1 NEXT, 2 WRITE, 4 INDIRECT.
    pub flags: u16,
    /// Index of the next one.
    pub next: u16,
}

/// NEXT flag.
pub(crate) const NEXT: u16 = 1;
/// WRITE flag.
pub(crate) const WRITE: u16 = 2;

impl Descriptor {
    /// The 16 bytes of the table entry.
    pub fn bytes(&self) -> [u8; 16] {
        let mut out = [0; 16];
        out[0..8].copy_from_slice(&self.address.to_le_bytes());
        out[8..12].copy_from_slice(&self.len.to_le_bytes());
        out[12..14].copy_from_slice(&self.flags.to_le_bytes());
        out[14..16].copy_from_slice(&self.next.to_le_bytes());
        out
    }
}

/// A chain the device handed back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsedChain {
    /// Its first descriptor.
    pub head: u16,
    /// Bytes the device says it wrote.
    pub written: u32,
}

/// One ring in guest RAM.
pub struct DriverRing {
    ram: Arc<GuestRam>,
    /// Entries.
    pub size: u16,
    /// Guest address of the descriptor table.
    pub descriptors: u64,
    /// Guest address of the available ring.
    pub available: u64,
    /// Guest address of the used ring.
    pub used: u64,
    /// Written to kick the device.
    pub kick: EventFd,
    /// Written by the device to interrupt.
    pub call: EventFd,
    free: Vec<u16>,
    chains: Vec<Vec<u16>>,
    next_available: u16,
    next_used: u16,
}

impl DriverRing {
    /// Lays a ring out in region 0.
    pub fn new(ram: &Arc<GuestRam>, size: u16) -> Result<Self> {
        let entries = u64::from(size);
        Ok(Self {
            ram: Arc::clone(ram),
            size,
            descriptors: ram.take(0, entries * 16, 16)?,
            available: ram.take(0, entries * 2 + 6, 2)?,
            used: ram.take(0, entries * 8 + 6, 4)?,
            kick: EventFd::new(libc_nonblock()).context("eventfd")?,
            call: EventFd::new(libc_nonblock()).context("eventfd")?,
            free: (0..size).rev().collect(),
            chains: vec![Vec::new(); usize::from(size)],
            next_available: 0,
            next_used: 0,
        })
    }

    /// Writes one table entry.
    pub fn write_descriptor(&self, index: u16, descriptor: Descriptor) {
        self.ram.write(self.descriptors + u64::from(index) * 16, &descriptor.bytes());
    }

    /// Puts a chain of buffers into free descriptors; returns its head. Buffers are `(address, bytes, writable)`.
    pub fn build(&mut self, buffers: &[(u64, u32, bool)]) -> Result<u16> {
        if buffers.len() > self.free.len() {
            bail!("the ring has {} free descriptors, {} are needed", self.free.len(), buffers.len());
        }
        let at = self.free.len() - buffers.len();
        let mut indices = self.free.split_off(at);
        indices.reverse();
        for (i, (address, len, writable)) in buffers.iter().enumerate() {
            let more = i + 1 < buffers.len();
            let flags = if *writable { WRITE } else { 0 } | if more { NEXT } else { 0 };
            let next = if more { indices[i + 1] } else { 0 };
            self.write_descriptor(indices[i], Descriptor { address: *address, len: *len, flags, next });
        }
        let head = indices[0];
        self.chains[usize::from(head)] = indices;
        Ok(head)
    }

    /// A free descriptor for a test to fill as it likes; given back when a chain with that head comes back.
    pub fn reserve(&mut self) -> Result<u16> {
        let index = self.free.pop().context("no free descriptor")?;
        self.chains[usize::from(index)] = vec![index];
        Ok(index)
    }

    /// Makes a chain available, without a kick.
    pub fn publish(&mut self, head: u16) {
        let slot = u64::from(self.next_available % self.size);
        self.ram.write(self.available + 4 + slot * 2, &head.to_le_bytes());
        self.next_available = self.next_available.wrapping_add(1);
        self.set_available_index(self.next_available);
    }

    /// Writes the available index, whatever it should be.
    pub fn set_available_index(&self, index: u16) {
        self.ram.store_u16(self.available + 2, index);
    }

    /// Kicks the device.
    pub fn kick(&self) {
        self.kick.write(1).expect("an eventfd takes a one");
    }

    /// The next chain that came back, if one did.
    pub fn poll(&mut self) -> Option<UsedChain> {
        if self.ram.load_u16(self.used + 2) == self.next_used {
            return None;
        }
        let slot = u64::from(self.next_used % self.size);
        let entry = self.ram.read(self.used + 4 + slot * 8, 8);
        self.next_used = self.next_used.wrapping_add(1);
        let head = u16::from_le_bytes([entry[0], entry[1]]);
        let written = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
        let indices = std::mem::take(&mut self.chains[usize::from(head)]);
        self.free.extend(indices.into_iter().rev());
        Some(UsedChain { head, written })
    }

    /// Waits for a chain to come back.
    pub fn wait(&mut self, timeout: Duration) -> Result<UsedChain> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(used) = self.poll() {
                return Ok(used);
            }
            if Instant::now() >= deadline {
                bail!("no chain came back within {timeout:?}");
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Where the ring stands: the index of the next chain the device will take, if it has taken all.
    pub fn next_available(&self) -> u16 {
        self.next_available
    }
}

/// O_NONBLOCK for eventfds, which is the same number as EFD_NONBLOCK on Linux.
fn libc_nonblock() -> i32 {
    nix::sys::eventfd::EfdFlags::EFD_NONBLOCK.bits()
}
