//! The session of the device: contexts, and allocations in this process's memory.

use std::collections::{BTreeMap, BTreeSet};

use vram_guest_memory::SpanList;
use vram_protocol::{
    ABI_MAJOR, ABI_MINOR, Alloc, DEVICE_RESUMED, DEVICE_SIMULATED, Extent, GPU_HOME, GpuEntry, Header, Hello,
    HelloReply, InfoReply, MAX_ALLOCATIONS, MAX_CONTEXTS, MAX_STREAMS, MAX_TRANSFER_BYTES, MIN_ALIGNMENT,
    Query, QueryReply, Range, Request, Status, TIER_GPU,
};

const BAND_BASE: u64 = 1 << 40;
const BAND_BYTES: u64 = 1 << 36;
const LIMIT_BYTES: u64 = 256 << 20;

/// What the answer to a request says.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u32,
    pub(super) moved: u64,
    pub(super) value: u64,
    /// What is written behind the response.
    pub(super) payload: Vec<u8>,
}

/// A request as it came out of a chain.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) header: Header,
    pub(super) request: Request,
    /// Readable bytes behind the request.
    pub(super) data: SpanList,
    /// Writable bytes behind the response.
    pub(super) room_bytes: u64,
}

#[derive(Debug)]
struct Allocation {
    context: u32,
    bytes: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Store {
    boot_epoch: u64,
    driver_epoch: Option<u64>,
    last_context: u32,
    contexts: BTreeSet<u32>,
    allocations: BTreeMap<u64, Allocation>,
    next_address: u64,
}

impl Answer {
    pub(super) fn of_status(status: u32) -> Answer {
        Answer { status, moved: 0, value: 0, payload: Vec::new() }
    }

    fn of_value(value: u64) -> Answer {
        Answer { value, ..Answer::of_status(Status::Ok.code()) }
    }

    fn of_moved(moved: u64) -> Answer {
        Answer { moved, ..Answer::of_status(Status::Ok.code()) }
    }

    fn of_payload(payload: Vec<u8>) -> Answer {
        Answer { payload: payload.clone(), ..Answer::of_moved(payload.len() as u64) }
    }
}

impl Store {
    pub(super) fn new() -> Store {
        Store {
            boot_epoch: 1001,
            driver_epoch: None,
            last_context: 0,
            contexts: BTreeSet::new(),
            allocations: BTreeMap::new(),
            next_address: BAND_BASE,
        }
    }

    pub(super) fn boot_epoch(&self) -> u64 {
        self.boot_epoch
    }

    pub(super) fn contexts(&self) -> usize {
        self.contexts.len()
    }

    pub(super) fn allocations(&self) -> usize {
        self.allocations.len()
    }

    /// The session is forgotten, as after a reconnection.
    pub(super) fn forget(&mut self) {
        self.driver_epoch = None;
        self.contexts.clear();
        self.allocations.clear();
    }

    /// As [`Store::forget`], under a new epoch: addresses and numbers of contexts are given out again.
    pub(super) fn start_anew(&mut self) {
        self.forget();
        self.boot_epoch += 1;
        self.last_context = 0;
        self.next_address = BAND_BASE;
    }

    /// Carries a request out, half of it if `is_half`.
    pub(super) fn execute(&mut self, asked: &Asked, is_half: bool) -> Answer {
        self.try_execute(asked, is_half).unwrap_or_else(|status| Answer::of_status(status.code()))
    }

    fn try_execute(&mut self, asked: &Asked, is_half: bool) -> Result<Answer, Status> {
        let context = asked.header.context;
        let part = |length: u64| if is_half { length / 2 } else { length };
        match &asked.request {
            Request::Hello(hello) => return self.hello(hello),
            _ if self.driver_epoch.is_none() => return Err(Status::NotReady),
            Request::Info => return Ok(Answer::of_payload(self.info())),
            Request::ContextOpen(_) => return self.open_context(),
            _ if !self.contexts.contains(&context) => return Err(Status::NoContext),
            Request::ContextClose => {
                self.contexts.remove(&context);
                self.allocations.retain(|_, allocation| allocation.context != context);
            }
            Request::Alloc(alloc) => return self.allocate(context, alloc).map(Answer::of_value),
            Request::Free(address) => {
                self.allocations
                    .get(address)
                    .filter(|found| found.context == context)
                    .ok_or(Status::BadAddress)?;
                self.allocations.remove(address);
            }
            Request::Query(query) => return self.query(context, query).map(Answer::of_payload),
            Request::Advise(advise) => {
                self.find(context, advise.range.address, advise.range.length)?;
            }
            Request::Write(range) => {
                if asked.data.len_bytes() != range.length {
                    return Err(Status::BadLength);
                }
                let bytes = self.bytes(context, range.address, range.length)?;
                let moved = part(range.length);
                asked.data.read_into(&mut bytes[..moved as usize]);
                return Ok(Answer::of_moved(moved));
            }
            Request::Read(range) => {
                if asked.room_bytes != range.length {
                    return Err(Status::BadLength);
                }
                let bytes = self.bytes(context, range.address, range.length)?;
                return Ok(Answer::of_payload(bytes[..part(range.length) as usize].to_vec()));
            }
            Request::Copy(copy) => {
                let source = self.bytes(context, copy.source, copy.length)?.to_vec();
                let moved = part(copy.length);
                let destination = self.bytes(context, copy.destination, copy.length)?;
                destination[..moved as usize].copy_from_slice(&source[..moved as usize]);
                return Ok(Answer::of_moved(moved));
            }
            Request::Fill(fill) => {
                let Range { address, length } = fill.range;
                let moved = part(length);
                let pattern = fill.pattern.to_le_bytes();
                let bytes = self.bytes(context, address, length)?;
                for place in bytes[..moved as usize].chunks_mut(fill.width as usize) {
                    place.copy_from_slice(&pattern[..place.len()]);
                }
                return Ok(Answer::of_moved(moved));
            }
            // Requests are carried out one after the other.
            Request::Fence { .. } => {}
        }
        Ok(Answer::of_status(Status::Ok.code()))
    }

    fn hello(&mut self, hello: &Hello) -> Result<Answer, Status> {
        if hello.abi_major != ABI_MAJOR {
            return Err(Status::BadVersion);
        }
        let is_resumed = self.driver_epoch == Some(hello.driver_epoch);
        if !is_resumed {
            self.forget();
        }
        self.driver_epoch = Some(hello.driver_epoch);
        let reply = HelloReply {
            abi_major: ABI_MAJOR,
            abi_minor: hello.abi_minor.min(ABI_MINOR),
            max_contexts: MAX_CONTEXTS,
            max_allocations: MAX_ALLOCATIONS,
            max_streams: MAX_STREAMS,
            band_base: BAND_BASE,
            band_length: BAND_BYTES,
            limit_bytes: LIMIT_BYTES,
            max_transfer_bytes: MAX_TRANSFER_BYTES,
            min_alignment: MIN_ALIGNMENT,
            gpu_count: 1,
            flags: DEVICE_SIMULATED | if is_resumed { DEVICE_RESUMED } else { 0 },
            reserved0: 0,
        };
        Ok(Answer::of_payload(reply.to_bytes().to_vec()))
    }

    fn held_bytes(&self) -> u64 {
        self.allocations.values().map(|allocation| allocation.bytes.len() as u64).sum()
    }

    fn info(&self) -> Vec<u8> {
        let held_bytes = self.held_bytes();
        let info = InfoReply {
            limit_bytes: LIMIT_BYTES,
            guarantee_bytes: 0,
            allocated_bytes: held_bytes,
            backed_bytes: held_bytes,
            shard_bytes: 2 << 20,
            gpu_count: 1,
            flags: DEVICE_SIMULATED,
            allocations: self.allocations.len() as u32,
            contexts: self.contexts.len() as u32,
            reserved0: 0,
            slice_name: padded(b"faulty"),
        };
        let gpu = GpuEntry {
            index: 0,
            flags: GPU_HOME,
            slice_bytes: held_bytes,
            total_bytes: LIMIT_BYTES,
            reserved0: 0,
            name: padded(b"None"),
        };
        [&info.to_bytes()[..], &gpu.to_bytes()[..]].concat()
    }

    fn open_context(&mut self) -> Result<Answer, Status> {
        if self.contexts.len() >= MAX_CONTEXTS as usize {
            return Err(Status::TooMany);
        }
        self.last_context += 1;
        self.contexts.insert(self.last_context);
        Ok(Answer::of_value(u64::from(self.last_context)))
    }

    fn allocate(&mut self, context: u32, alloc: &Alloc) -> Result<u64, Status> {
        let room_bytes = LIMIT_BYTES - self.held_bytes();
        let length = usize::try_from(alloc.length).ok().filter(|_| alloc.length <= room_bytes);
        let length = length.ok_or(Status::OverLimit)?;
        let address = self.next_address.next_multiple_of(alloc.alignment.max(u64::from(MIN_ALIGNMENT)));
        self.next_address = address + alloc.length;
        if self.next_address > BAND_BASE + BAND_BYTES {
            return Err(Status::OutOfMemory);
        }
        self.allocations.insert(address, Allocation { context, bytes: vec![0; length] });
        Ok(address)
    }

    fn query(&self, context: u32, query: &Query) -> Result<Vec<u8>, Status> {
        let (base, allocation) = self.find(context, query.address, 1)?;
        let length = allocation.bytes.len() as u64;
        let extents = u32::from(query.first_extent == 0);
        let reply = QueryReply { base, length, extent_count: extents, extent_total: 1, reserved0: 0 };
        let extent = Extent { address: base, length, gpu: 0, tier: TIER_GPU, reserved0: 0 };
        let extents = if extents == 1 { extent.to_bytes().to_vec() } else { Vec::new() };
        Ok([&reply.to_bytes()[..], &extents].concat())
    }

    fn find(&self, context: u32, address: u64, length: u64) -> Result<(u64, &Allocation), Status> {
        let below = self.allocations.range(..=address).next_back();
        let (base, allocation) = below.ok_or(Status::BadAddress)?;
        let is_inside = address - base + length <= allocation.bytes.len() as u64;
        (is_inside && allocation.context == context).then_some((*base, allocation)).ok_or(Status::BadAddress)
    }

    fn bytes(&mut self, context: u32, address: u64, length: u64) -> Result<&mut [u8], Status> {
        let (base, _) = self.find(context, address, length)?;
        let allocation = self.allocations.get_mut(&base).ok_or(Status::BadAddress)?;
        let start = (address - base) as usize;
        Ok(&mut allocation.bytes[start..start + length as usize])
    }
}

fn padded(name: &[u8]) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..name.len()].copy_from_slice(name);
    bytes
}
