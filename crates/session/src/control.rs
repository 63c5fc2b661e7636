//! Control requests: HELLO, INFO, contexts, allocations.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use vram_gpu::{DeviceAddress, DeviceRange, GpuId};
use vram_pool::AllocRequest;
use vram_protocol::{
    ABI_MAJOR, ABI_MINOR, Advise, Alloc, DEVICE_RESUMED, DEVICE_SIMULATED, Extent, GPU_HOME, GPU_NONE,
    GpuEntry, Header, Hello, HelloReply, InfoReply, MAX_ALLOCATIONS, MAX_CONTEXTS, MAX_STREAMS,
    MAX_TRANSFER_BYTES, MIN_ALIGNMENT, Query, QueryReply, Request, Response, Status, TIER_COMPRESSED,
    TIER_DAMAGED, TIER_DISK, TIER_GPU, TIER_HOST, TIER_LOST, TIER_REMOTE,
};
use vram_residency::{Advice, BytePlace, TierKind};
use vram_transfer::Flow;

use crate::context::{Allocation, Context};
use crate::error::{advise_status, allocate_status};
use crate::session::close_deadline;
use crate::{Reply, Session};

/// The good answer to a control request, before it has a tag and an epoch.
#[derive(Default)]
struct Good {
    value: u64,
    payload: Vec<u8>,
}

/// A refusal, with what the guest may want to know.
struct Bad {
    status: Status,
    value: u64,
}

impl From<Status> for Bad {
    fn from(status: Status) -> Self {
        Self { status, value: 0 }
    }
}

impl Session {
    /// Carries out a control request. `reply_room_bytes` is what the chain has behind the response. Blocks while
    /// memory is set up or transfers of a closed context finish; call on the control queue's thread only.
    pub fn control(&self, header: Header, request: Request, reply_room_bytes: u64) -> Reply {
        let result = match request {
            Request::Hello(hello) => self.hello(&hello, reply_room_bytes),
            _ if !self.is_ready() => Err(Status::NotReady.into()),
            Request::Info => self.info(reply_room_bytes),
            Request::ContextOpen(_) => self.context_open(),
            Request::ContextClose => self.context_close(&header),
            Request::Alloc(alloc) => self.alloc(&header, &alloc),
            Request::Free(address) => self.free(&header, address),
            Request::Query(query) => self.query(&header, &query, reply_room_bytes),
            Request::Advise(advise) => self.advise(&header, &advise),
            Request::Write(_)
            | Request::Read(_)
            | Request::Copy(_)
            | Request::Fill(_)
            | Request::Fence { .. } => Err(Status::WrongQueue.into()),
        };
        let epoch = self.config.boot_epoch;
        let tag = header.tag;
        match result {
            Ok(Good { value, payload }) => {
                let moved = payload.len() as u64;
                Reply { response: Response { status: Status::Ok, tag, moved, value, epoch }, payload }
            }
            Err(Bad { status, value }) => {
                Reply { response: Response { status, tag, moved: 0, value, epoch }, payload: Vec::new() }
            }
        }
    }

    fn device_flags(&self) -> u32 {
        if self.config.residency.backend().identity().simulated { DEVICE_SIMULATED } else { 0 }
    }

    fn gpu_count(&self) -> u32 {
        u32::try_from(self.config.residency.backend().devices().len()).unwrap_or(u32::MAX)
    }

    fn hello(&self, hello: &Hello, room_bytes: u64) -> Result<Good, Bad> {
        if hello.abi_major != ABI_MAJOR {
            return Err(Status::BadVersion.into());
        }
        let room_needed = HelloReply::LAYOUT.size as u64;
        if room_bytes < room_needed {
            return Err(Bad { status: Status::BufferTooSmall, value: room_needed });
        }
        let (band, usage) = {
            let pool = self.config.residency.pool();
            match (pool.band(self.config.slice), pool.usage(self.config.slice)) {
                (Some(band), Some(usage)) => (band, usage),
                _ => return Err(Status::Internal.into()),
            }
        };
        let resumes = self.state().driver_epoch == Some(hello.driver_epoch);
        if !resumes {
            self.close_all();
            self.events.open();
            self.state().driver_epoch = Some(hello.driver_epoch);
        }
        let reply = HelloReply {
            abi_major: ABI_MAJOR,
            abi_minor: std::cmp::min_by_key(hello.abi_minor, ABI_MINOR, |minor| *minor),
            max_contexts: MAX_CONTEXTS,
            max_allocations: MAX_ALLOCATIONS,
            max_streams: MAX_STREAMS,
            band_base: band.start.0,
            band_length: band.len_bytes,
            limit_bytes: usage.limit_bytes,
            max_transfer_bytes: MAX_TRANSFER_BYTES,
            min_alignment: MIN_ALIGNMENT,
            gpu_count: self.gpu_count(),
            flags: self.device_flags() | if resumes { DEVICE_RESUMED } else { 0 },
            reserved0: 0,
        };
        Ok(Good { value: 0, payload: reply.to_bytes().to_vec() })
    }

    fn info(&self, room_bytes: u64) -> Result<Good, Bad> {
        let devices = self.config.residency.backend().devices();
        let entries_bytes = devices.len().saturating_mul(GpuEntry::LAYOUT.size);
        let room_needed = InfoReply::LAYOUT.size.saturating_add(entries_bytes) as u64;
        if room_bytes < room_needed {
            return Err(Bad { status: Status::BufferTooSmall, value: room_needed });
        }
        let (allocations, contexts) = {
            let state = self.state();
            (state.allocation_count(), state.contexts.len())
        };
        let pool = self.config.residency.pool();
        let Some(usage) = pool.usage(self.config.slice) else { return Err(Status::Internal.into()) };
        let shard_bytes = pool.shard_bytes();
        let gpus = pool.gpus();
        drop(pool);
        let reply = InfoReply {
            limit_bytes: usage.limit_bytes,
            guarantee_bytes: usage.guarantee_bytes,
            allocated_bytes: usage.allocated_bytes,
            backed_bytes: usage.backed_bytes,
            shard_bytes,
            gpu_count: self.gpu_count(),
            flags: self.device_flags(),
            allocations: u32::try_from(allocations).unwrap_or(u32::MAX),
            contexts: u32::try_from(contexts).unwrap_or(u32::MAX),
            reserved0: 0,
            slice_name: padded(&self.config.slice_name),
        };
        let mut payload = reply.to_bytes().to_vec();
        for device in devices {
            let slice_bytes = usage.gpus.iter().find(|on| on.gpu == device.id).map_or(0, |on| on.bytes);
            let shards = gpus.iter().find(|gpu| gpu.id == device.id).map_or(0, |gpu| gpu.capacity_shards);
            let entry = GpuEntry {
                index: u32::from(device.id.0),
                flags: if device.id == usage.home { GPU_HOME } else { 0 },
                slice_bytes,
                total_bytes: u64::from(shards).saturating_mul(shard_bytes),
                reserved0: 0,
                name: padded(&device.name),
            };
            payload.extend_from_slice(&entry.to_bytes());
        }
        Ok(Good { value: 0, payload })
    }

    fn context_open(&self) -> Result<Good, Bad> {
        let mut state = self.state();
        if state.contexts.len() >= MAX_CONTEXTS as usize {
            return Err(Status::TooMany.into());
        }
        // Numbers wrap after four thousand million contexts; skip those still open, of which there are few.
        let number = loop {
            let number = self.config.contexts.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            if number != 0 && !state.contexts.contains_key(&number) {
                break number;
            }
        };
        let group = self.config.residency.engine().group(Flow::Requests(self.config.slice.0));
        state.contexts.insert(number, Context::new(group));
        self.config.counters.set_contexts(state.contexts.len());
        Ok(Good { value: u64::from(number), payload: Vec::new() })
    }

    fn context_close(&self, header: &Header) -> Result<Good, Bad> {
        let context = {
            let mut state = self.state();
            let context = state.contexts.remove(&header.context).ok_or(Status::NoContext)?;
            self.config.counters.set_contexts(state.contexts.len());
            context
        };
        self.close(header.context, context, close_deadline());
        Ok(Good::default())
    }

    fn alloc(&self, header: &Header, alloc: &Alloc) -> Result<Good, Bad> {
        {
            let mut state = self.state();
            state.context(header)?;
            if state.allocation_count() >= MAX_ALLOCATIONS as usize {
                return Err(Status::TooMany.into());
            }
        }
        let request = AllocRequest {
            length_bytes: alloc.length,
            alignment_bytes: alloc.alignment.max(u64::from(MIN_ALIGNMENT)),
        };
        let lease = self
            .config
            .residency
            .allocate(self.config.slice, request)
            .map_err(|error| Bad::from(allocate_status(&error)))?;
        let allocation = Allocation { lease, length_bytes: alloc.length };
        // The context may have been closed by the end of the session meanwhile; then the lease is simply dropped.
        let address = self.state().context(header)?.insert(allocation);
        Ok(Good { value: address, payload: Vec::new() })
    }

    fn free(&self, header: &Header, address: u64) -> Result<Good, Bad> {
        // Bound before the lease is dropped, so that the pool is not locked while the state is.
        let allocation = self.state().context(header)?.remove(address)?;
        drop(allocation);
        Ok(Good::default())
    }

    fn query(&self, header: &Header, query: &Query, room_bytes: u64) -> Result<Good, Bad> {
        let head_bytes = QueryReply::LAYOUT.size as u64;
        if room_bytes < head_bytes {
            return Err(Bad { status: Status::BufferTooSmall, value: head_bytes });
        }
        let (base, length) = {
            let mut state = self.state();
            let (base, allocation) = state.context(header)?.find(query.address)?;
            (base, allocation.length_bytes)
        };
        let range = DeviceRange { start: DeviceAddress(base), len_bytes: length };
        let extents = self.config.residency.places(self.config.slice, range);
        let room = room_bytes.saturating_sub(head_bytes).checked_div(Extent::LAYOUT.size as u64).unwrap_or(0);
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        let skip = usize::try_from(query.first_extent).unwrap_or(usize::MAX);
        let total = u32::try_from(extents.len()).unwrap_or(u32::MAX);
        let shown: Vec<_> = extents.into_iter().skip(skip).take(room).collect();
        let reply = QueryReply {
            base,
            length,
            extent_count: u32::try_from(shown.len()).unwrap_or(u32::MAX),
            extent_total: total,
            reserved0: 0,
        };
        let mut payload = reply.to_bytes().to_vec();
        for (range, place) in shown {
            let (gpu, tier) = place_codes(place);
            let entry = Extent { address: range.start.0, length: range.len_bytes, gpu, tier, reserved0: 0 };
            payload.extend_from_slice(&entry.to_bytes());
        }
        Ok(Good { value: 0, payload })
    }

    fn advise(&self, header: &Header, advise: &Advise) -> Result<Good, Bad> {
        let range =
            DeviceRange { start: DeviceAddress(advise.range.address), len_bytes: advise.range.length };
        // Held until residency has been told, so that the range is not somebody else's by then.
        let _allocation = Arc::clone(self.state().context(header)?.covering(range)?);
        let advice = match advise.advice {
            vram_protocol::Advice::Prefetch => Advice::Prefetch,
            vram_protocol::Advice::Cold => Advice::Cold,
            vram_protocol::Advice::Pin => Advice::Pin,
            vram_protocol::Advice::Unpin => Advice::Unpin,
            vram_protocol::Advice::PreferGpu { gpu } => {
                Advice::PreferGpu(u16::try_from(gpu).map(GpuId).ok().ok_or(Status::BadRequest)?)
            }
        };
        let told = self.config.residency.advise(self.config.slice, range, advice);
        told.map_err(|error| Bad::from(advise_status(&error)))?;
        Ok(Good::default())
    }
}

/// GPU and tier of an extent.
fn place_codes(place: BytePlace) -> (u32, u32) {
    match place {
        BytePlace::Gpu(gpu) => (u32::from(gpu.0), TIER_GPU),
        BytePlace::Lost(gpu) => (u32::from(gpu.0), TIER_LOST),
        BytePlace::Revoked => (GPU_NONE, TIER_LOST),
        BytePlace::Damaged => (GPU_NONE, TIER_DAMAGED),
        BytePlace::Tier(TierKind::Host) => (GPU_NONE, TIER_HOST),
        BytePlace::Tier(TierKind::Compressed) => (GPU_NONE, TIER_COMPRESSED),
        BytePlace::Tier(TierKind::Disk) => (GPU_NONE, TIER_DISK),
        BytePlace::Tier(TierKind::Remote) => (GPU_NONE, TIER_REMOTE),
    }
}

/// A name cut to 32 bytes at a character boundary and padded with zeros.
fn padded(name: &str) -> [u8; 32] {
    let mut out = [0u8; 32];
    let mut end = name.len().min(out.len());
    while !name.is_char_boundary(end) {
        end = end.saturating_sub(1);
    }
    for (to, from) in out.iter_mut().zip(name.as_bytes().iter().take(end)) {
        *to = *from;
    }
    out
}
