//! What each message of a frontend does.

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use tracing::{debug, warn};
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVirtioFeatures, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, Result, VhostUserBackendReqHandlerMut};
use vram_device::{Device, QueueEvents};
use vram_guest_memory::{Departed, GuestMap, MAX_GUEST_BYTES, MAX_REGIONS, RegionSpec};

use crate::error::MessageError;
use crate::fd::event_fd;
use crate::vring::{FrontendAddresses, Vring};

const FEATURE_INDIRECT_DESC: u64 = 1 << virtio_bindings::virtio_ring::VIRTIO_RING_F_INDIRECT_DESC;
const FEATURE_EVENT_IDX: u64 = 1 << virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
const FEATURE_VERSION_1: u64 = 1 << virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;

/// How long a region that goes away is waited for. Its memory stays mapped until its last user has let go; this only
/// bounds how long the frontend is kept from believing so.
const DEPART_WAIT: Duration = Duration::from_secs(2);

/// Largest ring a frontend may ask for.
const MAX_RING_SIZE: u32 = 1024;

/// The state of one connection.
pub(crate) struct Handler {
    device: Device,
    slice: String,
    acked_features: u64,
    vrings: Vec<Vring>,
    /// Memory taken away that transfers still used when it had been waited for.
    departed: Vec<Departed>,
}

fn refuse(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::ReqHandlerError(io::Error::other(error))
}

/// A frontend's message that makes no sense; it is cut off.
fn not_valid(what: &'static str) -> Error {
    refuse(MessageError::NotValid { what })
}

impl Handler {
    pub(crate) fn new(device: Device, slice: String) -> Self {
        let vrings = (0..device.queue_count()).map(|_| Vring::default()).collect();
        Self { device, slice, acked_features: 0, vrings, departed: Vec::new() }
    }

    /// Everything this device offers.
    fn features() -> u64 {
        FEATURE_VERSION_1
            | FEATURE_INDIRECT_DESC
            | FEATURE_EVENT_IDX
            | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
    }

    fn vring(&mut self, index: u32) -> Result<(u16, &mut Vring)> {
        let queues = self.device.queue_count();
        let missing = || refuse(MessageError::NoSuchRing { index, queues });
        let number = u16::try_from(index).map_err(|_too_large| missing())?;
        let vring = self.vrings.get_mut(usize::from(number)).ok_or_else(missing)?;
        Ok((number, vring))
    }

    /// Starts or stops a ring as the frontend's messages so far demand.
    fn settle(&mut self, index: u32) -> Result<()> {
        let event_idx = self.acked_features & FEATURE_EVENT_IDX != 0;
        let map = self.device.memory().get();
        let (number, vring) = self.vring(index)?;
        let wanted = vring.wanted();
        if wanted == vring.running {
            return Ok(());
        }
        if !wanted {
            return self.stop(number);
        }
        let addresses = vring.guest_addresses(&map).ok_or(not_valid("ring address"))?;
        let Some(kick) = &vring.kick else { return Ok(()) };
        let kick = kick.try_clone().map_err(Error::ReqHandlerError)?;
        let events = QueueEvents { kick, call: std::sync::Arc::clone(&vring.call) };
        let base = vring.base;
        vring.running = true;
        // The map is let go before the queue takes it anew.
        drop(map);
        self.device.start_queue(number, addresses, base, event_idx, events).map_err(refuse)
    }

    fn stop(&mut self, number: u16) -> Result<()> {
        let base = self.device.stop_queue(number).map_err(refuse)?;
        let (_, vring) = self.vring(u32::from(number))?;
        vring.running = false;
        if let Some(base) = base {
            vring.base = base;
        }
        Ok(())
    }

    fn stop_all(&mut self) -> Result<()> {
        for number in 0..self.device.queue_count() {
            self.stop(number)?;
        }
        Ok(())
    }

    /// Puts a new map in place and waits, within a bound, until nobody uses what is no longer in it.
    fn replace_map(&mut self, map: GuestMap, departed: Departed) {
        self.device.memory().set(map);
        let deadline = Instant::now().checked_add(DEPART_WAIT);
        while !departed.gone() {
            if deadline.is_none_or(|at| Instant::now() >= at) {
                warn!(slice = %self.slice, "transfers still use guest memory that the frontend takes away");
                self.departed.push(departed);
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// What is mapped for a guest, taken away but still in use or not, is bounded: all guests share one address space.
    fn check_departed(&mut self, map: &GuestMap) -> Result<()> {
        self.departed.retain(|departed| !departed.gone());
        let left = self.departed.iter().map(Departed::left);
        let (regions, bytes) = left.fold((map.region_count(), map.len_bytes()), |(regions, bytes), left| {
            (regions.saturating_add(left.0), bytes.saturating_add(left.1))
        });
        if regions > MAX_REGIONS.saturating_mul(2) || bytes > MAX_GUEST_BYTES.saturating_mul(2) {
            return Err(not_valid("memory region beside so many that transfers still use"));
        }
        Ok(())
    }
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

impl VhostUserBackendReqHandlerMut for Handler {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.stop_all()
    }

    fn reset_device(&mut self) -> Result<()> {
        self.stop_all()?;
        for vring in &mut self.vrings {
            vring.enabled = false;
            vring.kick = None;
        }
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(Self::features())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !Self::features() != 0 {
            return Err(not_valid("features"));
        }
        self.acked_features = features;
        // Without PROTOCOL_FEATURES there is no SET_VRING_ENABLE: a ring is enabled once it is started.
        if features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() == 0 {
            for vring in &mut self.vrings {
                vring.enabled = true;
            }
        }
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
        self.check_departed(&map)?;
        let departed = self.device.memory().get().departing();
        self.replace_map(map, departed);
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        if num == 0 || num > MAX_RING_SIZE || !num.is_power_of_two() {
            return Err(not_valid("ring size"));
        }
        let (_, vring) = self.vring(index)?;
        vring.size = u16::try_from(num).map_err(|_too_large| not_valid("ring size"))?;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        let (number, vring) = self.vring(index)?;
        let addresses = FrontendAddresses { descriptors: descriptor, available, used };
        // A running ring that moves is stopped and started again.
        let moves = vring.running && vring.addresses != Some(addresses);
        vring.addresses = Some(addresses);
        if moves {
            self.stop(number)?;
        }
        self.settle(index)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let (_, vring) = self.vring(index)?;
        vring.base = u16::try_from(base).map_err(|_too_large| not_valid("ring base"))?;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let (number, _) = self.vring(index)?;
        self.stop(number)?;
        let (_, vring) = self.vring(index)?;
        vring.kick = None;
        vring.call.set(None);
        Ok(VhostUserVringState::new(index, u32::from(vring.base)))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let index = u32::from(index);
        let (number, vring) = self.vring(index)?;
        // A ring without a kick is one the device must poll, which it does not offer.
        let file = fd.ok_or(not_valid("ring without a kick descriptor"))?;
        vring.kick = Some(event_fd(file).map_err(Error::ReqHandlerError)?);
        if vring.running {
            self.stop(number)?;
        }
        self.settle(index)
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let (_, vring) = self.vring(u32::from(index))?;
        let call = fd.map(event_fd).transpose().map_err(Error::ReqHandlerError)?;
        vring.call.set(call);
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, _fd: Option<File>) -> Result<()> {
        // A broken ring ends the connection, which says more than this descriptor could.
        self.vring(u32::from(index)).map(|_| ())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::RESET_DEVICE
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        debug!(slice = %self.slice, features = format_args!("{features:#x}"), "protocol features acknowledged");
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(u64::from(self.device.queue_count()))
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.vring(index)?.1.enabled = enable;
        self.settle(index)
    }

    fn get_config(&mut self, offset: u32, size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        // The message layer has bounded the size; the answer has exactly as many bytes, else the frontend hangs.
        let size = usize::try_from(size).map_err(|_too_large| not_valid("config size"))?;
        let mut bytes = vec![0u8; size];
        self.device.read_config(offset, &mut bytes);
        Ok(bytes)
    }

    fn set_config(&mut self, _offset: u32, _buf: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        // Read-only; a write is ignored, as the protocol says.
        Ok(())
    }

    fn set_gpu_socket(&mut self, _gpu_backend: vhost::vhost_user::GpuBackend) -> Result<()> {
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
        fd: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<u64>> {
        let map = self.device.memory().get().with_region(spec(region, fd)).map_err(refuse)?;
        self.check_departed(&map)?;
        self.device.memory().set(map);
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let (map, departed) = self
            .device
            .memory()
            .get()
            .without_region(region.guest_phys_addr, region.memory_size)
            .map_err(refuse)?;
        self.replace_map(map, departed);
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

impl Drop for Handler {
    fn drop(&mut self) {
        self.device.shut_down();
    }
}
