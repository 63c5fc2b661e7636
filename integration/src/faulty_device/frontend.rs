//! One frontend's connection: what its messages set up, and the rings it started.

use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Instant;

use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVirtioFeatures, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use vram_guest_memory::{GuestMap, MAX_REGIONS, RegionSpec};
use vram_protocol::{
    EventMessage, MAX_SEGMENTS, QUEUE_EVENT, QueueKind, REQUEST_BYTES, RESPONSE_BYTES, Request, Response,
    Status,
};
use vram_virtqueue::{Chain, Ring, RingAddresses};

use super::fault::Fault;
use super::store::{Answer, Asked};
use super::{Shared, State};

const FEATURE_EVENT_IDX: u64 = 1 << VIRTIO_RING_F_EVENT_IDX;
const FEATURES: u64 = (1 << VIRTIO_F_VERSION_1)
    | (1 << VIRTIO_RING_F_INDIRECT_DESC)
    | FEATURE_EVENT_IDX
    | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();

#[derive(Debug, Clone, Copy)]
struct FrontendAddresses {
    descriptors: u64,
    available: u64,
    used: u64,
}

#[derive(Debug, Default)]
struct Vring {
    size: u16,
    addresses: Option<FrontendAddresses>,
    base: u16,
    kick: Option<File>,
    call: Option<File>,
    is_enabled: bool,
    running: Option<(Ring, RingAddresses)>,
    /// What was put into the used ring is to stay there: the ring is not served any more until it is started anew.
    is_broken: bool,
}

/// What goes into a chain, and into the used ring.
struct Reply {
    bytes: Vec<u8>,
    fault: Option<Fault>,
}

/// A chain that is answered later.
struct Held {
    due: Instant,
    queue: u16,
    chain: Chain,
    reply: Reply,
}

/// A connection's state. Everything happens on the thread that serves it.
pub(super) struct Frontend {
    shared: Arc<Shared>,
    map: GuestMap,
    acked_features: u64,
    vrings: Vec<Vring>,
    held: Vec<Held>,
}

fn refuse(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::ReqHandlerError(io::Error::other(error))
}

fn not_valid(what: &'static str) -> Error {
    Error::ReqHandlerError(io::Error::new(io::ErrorKind::InvalidInput, what))
}

impl Frontend {
    pub(super) fn new(shared: Arc<Shared>) -> Frontend {
        let vrings = (0..shared.queues).map(|_| Vring::default()).collect();
        Frontend { shared, map: GuestMap::new(), acked_features: 0, vrings, held: Vec::new() }
    }

    /// Kick descriptors of the rings that run.
    pub(super) fn kicks(&self) -> Vec<(u16, io::Result<File>)> {
        let running = self.vrings.iter().enumerate().filter(|(_, vring)| vring.running.is_some());
        running.filter_map(|(index, vring)| Some((index as u16, vring.kick.as_ref()?.try_clone()))).collect()
    }

    /// When the next held answer is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.held.iter().map(|held| held.due).min()
    }

    /// Answers what is due, and posts the events there are.
    pub(super) fn work(&mut self) -> Result<()> {
        let now = Instant::now();
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        let (due, later) = self.held.drain(..).partition(|held| held.due <= now);
        self.held = later;
        let due: Vec<Held> = due;
        for held in due {
            self.deliver(held.queue, &held.chain, &held.reply)?;
        }
        while let Some(event) = state.events.pop_front() {
            if !self.post_event(&event)? {
                state.events.push_front(event);
                break;
            }
        }
        Ok(())
    }

    /// Takes what the guest made available since the last kick.
    pub(super) fn kicked(&mut self, queue: u16) -> Result<()> {
        let Some(vring) = self.vrings.get_mut(usize::from(queue)) else { return Ok(()) };
        if let Some(kick) = &mut vring.kick {
            kick.read_exact(&mut [0; 8]).map_err(Error::ReqHandlerError)?;
        }
        self.serve(queue)
    }

    fn serve(&mut self, queue: u16) -> Result<()> {
        if queue == QUEUE_EVENT {
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        loop {
            let map = self.map.clone();
            let Some(vring) = self.vrings.get_mut(usize::from(queue)) else { return Ok(()) };
            let Some((ring, _)) = vring.running.as_mut().filter(|_| !vring.is_broken) else { return Ok(()) };
            match ring.pop(&map).map_err(refuse)? {
                Some(chain) => self.take(&mut shared.lock(), queue, chain)?,
                None if ring.enable_kicks(&map).map_err(refuse)? => {}
                None => return Ok(()),
            }
        }
    }

    /// Decides what becomes of a chain.
    fn take(&mut self, state: &mut State, queue: u16, chain: Chain) -> Result<()> {
        let asked = read_request(queue, &chain);
        let fault = asked.as_ref().ok().and_then(|asked| state.plan.take(asked.request.opcode()));
        if fault == Some(Fault::Silence) {
            state.unanswered += 1;
            return Ok(());
        }
        let room_bytes = chain.writable.len_bytes().saturating_sub(RESPONSE_BYTES as u64);
        let reply = carry_out(state, &asked, fault, room_bytes);
        if let Some(Fault::Late(delay)) = fault {
            state.unanswered += 1;
            self.held.push(Held { due: Instant::now() + delay, queue, chain, reply });
            return Ok(());
        }
        self.deliver(queue, &chain, &reply)
    }

    fn deliver(&mut self, queue: u16, chain: &Chain, reply: &Reply) -> Result<()> {
        let written = chain.writable.write_from(&reply.bytes) as u32;
        match reply.fault {
            Some(Fault::UsedLength(length)) => self.complete(queue, chain.head, length),
            Some(Fault::UnknownChain) => self.complete_unknown(queue),
            _ => self.complete(queue, chain.head, written),
        }
    }

    fn complete(&mut self, queue: u16, head: u16, written: u32) -> Result<()> {
        let Some(vring) = self.vrings.get_mut(usize::from(queue)) else { return Ok(()) };
        let Some((ring, _)) = vring.running.as_mut().filter(|_| !vring.is_broken) else { return Ok(()) };
        ring.complete(&self.map, head, written).map_err(refuse)?;
        if ring.needs_notification(&self.map).map_err(refuse)? {
            vring.interrupt()?;
        }
        Ok(())
    }

    /// Puts a chain into the used ring that the guest has not made available.
    fn complete_unknown(&mut self, queue: u16) -> Result<()> {
        let Some(vring) = self.vrings.get_mut(usize::from(queue)) else { return Ok(()) };
        let Some((ring, addresses)) = &vring.running else { return Ok(()) };
        let place = |offset: u64, length: u64| {
            let mut found = None;
            self.map.spans(addresses.used.0 + offset, length, |span| found = Some(span));
            found.ok_or(not_valid("used ring"))
        };
        let mut index = [0; 2];
        let index_place = place(2, 2)?;
        index_place.read_into(&mut index);
        let index = u16::from_le_bytes(index);
        let entry = [u32::from(ring.size()).to_le_bytes(), 0_u32.to_le_bytes()].concat();
        place(4 + 8 * u64::from(index % ring.size()), 8)?.write_from(&entry);
        index_place.write_from(&index.wrapping_add(1).to_le_bytes());
        vring.is_broken = true;
        vring.interrupt()
    }

    /// Whether there was a buffer for it.
    fn post_event(&mut self, event: &EventMessage) -> Result<bool> {
        let Some(vring) = self.vrings.get_mut(usize::from(QUEUE_EVENT)) else { return Ok(false) };
        let Some((ring, _)) = &mut vring.running else { return Ok(false) };
        let Some(chain) = ring.pop(&self.map).map_err(refuse)? else { return Ok(false) };
        let written = chain.writable.write_from(&event.to_bytes()) as u32;
        self.complete(QUEUE_EVENT, chain.head, written)?;
        Ok(true)
    }

    fn vring(&mut self, index: u32) -> Result<&mut Vring> {
        self.vrings.get_mut(index as usize).ok_or(not_valid("ring index"))
    }

    /// Starts a ring for which all has been said.
    fn settle(&mut self, index: u32) -> Result<()> {
        let map = self.map.clone();
        let has_event_idx = self.acked_features & FEATURE_EVENT_IDX != 0;
        let vring = self.vring(index)?;
        if vring.running.is_some() || !vring.is_enabled || vring.kick.is_none() || vring.size == 0 {
            return Ok(());
        }
        let Some(FrontendAddresses { descriptors, available, used }) = vring.addresses else { return Ok(()) };
        let entries = u64::from(vring.size);
        let place =
            |start, length_bytes| map.from_frontend(start, length_bytes).ok_or(not_valid("ring address"));
        let addresses = RingAddresses {
            size: vring.size,
            descriptors: place(descriptors, 16 * entries)?,
            available: place(available, 6 + 2 * entries)?,
            used: place(used, 6 + 8 * entries)?,
        };
        let ring = Ring::new(&map, addresses, vring.base, has_event_idx, MAX_SEGMENTS + 2).map_err(refuse)?;
        vring.running = Some((ring, addresses));
        vring.is_broken = false;
        self.serve(index as u16)
    }

    /// What has not been answered never will be.
    fn stop(&mut self, index: u32) -> Result<()> {
        let vring = self.vring(index)?;
        if let Some((ring, _)) = vring.running.take() {
            vring.base = ring.next_avail();
        }
        self.held.retain(|held| u32::from(held.queue) != index);
        Ok(())
    }

    fn stop_all(&mut self) -> Result<()> {
        (0..self.vrings.len() as u32).try_for_each(|index| self.stop(index))
    }
}

impl Vring {
    fn interrupt(&mut self) -> Result<()> {
        match &mut self.call {
            Some(call) => call.write_all(&1_u64.to_ne_bytes()).map_err(Error::ReqHandlerError),
            None => Ok(()),
        }
    }
}

fn read_request(queue: u16, chain: &Chain) -> std::result::Result<Asked, (Status, u64)> {
    let mut bytes = [0; REQUEST_BYTES];
    if chain.fault.is_some() || chain.readable.read_into(&mut bytes) < REQUEST_BYTES {
        return Err((Status::BadChain, 0));
    }
    let decoded = Request::decode(&bytes, QueueKind::of(queue));
    let (header, request) = decoded.map_err(|error| (error.status, error.tag))?;
    let data_bytes = chain.readable.len_bytes() - REQUEST_BYTES as u64;
    let data = chain.readable.slice(REQUEST_BYTES as u64, data_bytes);
    let room_bytes = chain.writable.len_bytes().checked_sub(RESPONSE_BYTES as u64);
    match (data, room_bytes) {
        (Some(data), Some(room_bytes)) => Ok(Asked { header, request, data, room_bytes }),
        _ => Err((Status::BadChain, header.tag)),
    }
}

fn carry_out(
    state: &mut State,
    asked: &std::result::Result<Asked, (Status, u64)>,
    fault: Option<Fault>,
    room_bytes: u64,
) -> Reply {
    let (tag, mut answer) = match (asked, fault) {
        (Err((status, tag)), _) => (*tag, Answer::of_status(status.code())),
        (Ok(asked), Some(Fault::Status(status))) => (asked.header.tag, Answer::of_status(status)),
        (Ok(asked), _) => (asked.header.tag, state.store.execute(asked, fault == Some(Fault::Partial))),
    };
    let reply_bytes = answer.payload.len() as u64;
    if reply_bytes > room_bytes {
        answer = Answer { value: reply_bytes, ..Answer::of_status(Status::BufferTooSmall.code()) };
    }
    if fault == Some(Fault::Partial) && answer.status == Status::Ok.code() {
        answer.status = Status::TransferFailed.code();
    }
    if let Some(Fault::Moved(moved)) = fault {
        answer.moved = moved;
    }
    let response = Response {
        status: Status::Ok,
        tag: if fault == Some(Fault::WrongTag) { !tag } else { tag },
        moved: answer.moved,
        value: answer.value,
        epoch: state.store.boot_epoch(),
    };
    let mut bytes = response.to_bytes().to_vec();
    // The status may be a number that has no name.
    bytes[..4].copy_from_slice(&answer.status.to_le_bytes());
    bytes.extend_from_slice(&answer.payload);
    Reply { bytes, fault }
}

fn spec(region: &VhostUserMemoryRegion, file: File) -> RegionSpec {
    RegionSpec {
        guest_start: region.guest_phys_addr,
        len_bytes: region.memory_size,
        frontend_start: region.user_addr,
        file,
        file_offset: region.mmap_offset,
    }
}

impl VhostUserBackendReqHandlerMut for Frontend {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.stop_all()
    }

    fn reset_device(&mut self) -> Result<()> {
        self.stop_all()?;
        for vring in &mut self.vrings {
            vring.is_enabled = false;
            vring.kick = None;
        }
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(FEATURES)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        self.acked_features = features;
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        let mut map = GuestMap::new();
        for (region, file) in regions.iter().zip(files) {
            map = map.with_region(spec(region, file)).map_err(refuse)?;
        }
        self.map = map;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        self.vring(index)?.size = u16::try_from(num).map_err(refuse)?;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        self.vring(index)?.addresses = Some(FrontendAddresses { descriptors, available, used });
        self.settle(index)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.vring(index)?.base = u16::try_from(base).map_err(refuse)?;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.stop(index)?;
        let vring = self.vring(index)?;
        vring.kick = None;
        vring.call = None;
        Ok(VhostUserVringState::new(index, u32::from(vring.base)))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.vring(u32::from(index))?.kick = fd;
        self.settle(u32::from(index))
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.vring(u32::from(index))?.call = fd;
        Ok(())
    }

    fn set_vring_err(&mut self, _index: u8, _fd: Option<File>) -> Result<()> {
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::RESET_DEVICE
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
    }

    fn set_protocol_features(&mut self, _features: u64) -> Result<()> {
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.vrings.len() as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.vring(index)?.is_enabled = enable;
        if enable { self.settle(index) } else { self.stop(index) }
    }

    fn get_config(&mut self, offset: u32, size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let mut bytes = vec![0; size as usize];
        let state = self.shared.lock();
        let config = vram_protocol::ConfigSpace { boot_epoch: state.store.boot_epoch(), ..state.config };
        config.read(offset, &mut bytes);
        Ok(bytes)
    }

    fn set_config(&mut self, _offset: u32, _buf: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        Ok(())
    }

    fn set_gpu_socket(&mut self, _gpu_backend: GpuBackend) -> Result<()> {
        Err(Error::InvalidOperation("SET_GPU_SOCKET"))
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidOperation("GET_SHARED_OBJECT"))
    }

    fn get_inflight_fd(&mut self, _inflight: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        Err(Error::InvalidOperation("GET_INFLIGHT_FD"))
    }

    fn set_inflight_fd(&mut self, _inflight: &VhostUserInflight, _file: File) -> Result<()> {
        Err(Error::InvalidOperation("SET_INFLIGHT_FD"))
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(MAX_REGIONS as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<u64>> {
        self.map = self.map.with_region(spec(region, file)).map_err(refuse)?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let without = self.map.without_region(region.guest_phys_addr, region.memory_size);
        self.map = without.map_err(refuse)?.0;
        Ok(())
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _fd: File,
    ) -> Result<Option<File>> {
        Err(Error::InvalidOperation("SET_DEVICE_STATE_FD"))
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(Error::InvalidOperation("CHECK_DEVICE_STATE"))
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(Error::InvalidOperation("GET_SHMEM_CONFIG"))
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        Err(Error::InvalidOperation("SET_LOG_BASE"))
    }
}
