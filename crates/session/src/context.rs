//! One guest process.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use vram_gpu::DeviceRange;
use vram_protocol::Status;
use vram_residency::MemoryLease;
use vram_transfer::{CloseWait, Group, Stream};

/// Streams a context keeps without looking for idle ones.
const MANY_STREAMS: usize = 64;

/// Memory a context holds.
pub(crate) struct Allocation {
    /// Keeps the memory.
    pub(crate) lease: MemoryLease,
    /// Bytes as asked for; the lease may hold a few more.
    pub(crate) length_bytes: u64,
}

/// A guest process: its allocations and streams. Dropping it frees what no transfer holds any more.
pub(crate) struct Context {
    /// By first address.
    allocations: BTreeMap<u64, Arc<Allocation>>,
    streams: HashMap<u32, Stream>,
    group: Group,
}

impl Context {
    /// A context with nothing in it, whose streams are of this group.
    pub(crate) fn new(group: Group) -> Self {
        Self { allocations: BTreeMap::new(), streams: HashMap::new(), group }
    }

    /// Live allocations.
    pub(crate) fn allocation_count(&self) -> usize {
        self.allocations.len()
    }

    /// Takes an allocation in; returns its address.
    pub(crate) fn insert(&mut self, allocation: Allocation) -> u64 {
        let address = allocation.lease.range().start.0;
        self.allocations.insert(address, Arc::new(allocation));
        address
    }

    /// Takes out the allocation that begins at this address.
    pub(crate) fn remove(&mut self, address: u64) -> Result<Arc<Allocation>, Status> {
        self.allocations.remove(&address).ok_or(Status::BadAddress)
    }

    /// The allocation this address lies in.
    pub(crate) fn find(&self, address: u64) -> Result<(u64, &Arc<Allocation>), Status> {
        let (base, allocation) = self.allocations.range(..=address).next_back().ok_or(Status::BadAddress)?;
        match address.checked_sub(*base) {
            Some(offset) if offset < allocation.length_bytes => Ok((*base, allocation)),
            _ => Err(Status::BadAddress),
        }
    }

    /// The allocation the whole range lies in.
    pub(crate) fn covering(&self, range: DeviceRange) -> Result<&Arc<Allocation>, Status> {
        let (base, allocation) = self.find(range.start.0)?;
        let offset = range.start.0.saturating_sub(base);
        match offset.checked_add(range.len_bytes) {
            Some(end) if end <= allocation.length_bytes => Ok(allocation),
            _ => Err(Status::BadAddress),
        }
    }

    /// The stream with this number, made when first used. Idle ones are forgotten when there are many: a stream on
    /// which nothing is under way orders nothing.
    pub(crate) fn stream(&mut self, number: u32) -> Stream {
        if let Some(stream) = self.streams.get(&number) {
            return stream.clone();
        }
        if self.streams.len() >= MANY_STREAMS {
            self.streams.retain(|_, stream| !stream.is_unused());
        }
        self.streams.entry(number).or_insert_with(|| self.group.stream()).clone()
    }

    /// Cancels what has not begun, waits for what has, and frees the memory. False if something is still under way
    /// at the deadline; its memory is freed when it ends.
    pub(crate) fn close(self, deadline: Instant) -> bool {
        for stream in self.streams.values() {
            stream.close();
        }
        let left = || deadline.saturating_duration_since(Instant::now());
        self.streams.values().all(|stream| stream.wait_idle(left()) == CloseWait::Idle)
    }
}
