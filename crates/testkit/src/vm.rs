//! The VMM: a vhost-user frontend.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};

use crate::{DriverRing, GuestRam, RamRegion};

/// VERSION_1, PROTOCOL_FEATURES, EVENT_IDX, INDIRECT_DESC.
const FEATURES: u64 = 1 << 32 | 1 << 30 | 1 << 28;

/// How a fake VM is built.
#[derive(Clone, Debug)]
pub struct VmSpec {
    /// RAM; region 0 holds the rings.
    pub regions: Vec<RamRegion>,
    /// Queues, the control and event queue among them.
    pub queues: u16,
    /// Entries of each ring.
    pub queue_size: u16,
}

impl Default for VmSpec {
    fn default() -> Self {
        let regions = vec![
            RamRegion { start: 0x10_0000, len_bytes: 64 << 20 },
            RamRegion { start: 1 << 32, len_bytes: 32 << 20 },
        ];
        Self { regions, queues: 4, queue_size: 256 }
    }
}

/// A connected fake VM. Dropping it closes the connection, as the end of a VM does.
pub struct FakeVm {
    /// Its RAM.
    pub ram: Arc<GuestRam>,
    /// The connection.
    pub frontend: Frontend,
    /// Its rings.
    pub rings: Vec<DriverRing>,
}

impl FakeVm {
    /// Connects, waiting for the socket to be there, and does the whole handshake: the device is ready afterwards.
    pub fn connect(socket: &Path, spec: &VmSpec) -> Result<Self> {
        let ram = Arc::new(GuestRam::new(&spec.regions)?);
        let mut frontend = Self::handshake(socket, spec.queues)?;
        let infos: Vec<VhostUserMemoryRegionInfo> = (0..ram.region_count()).map(|i| ram.info(i)).collect();
        frontend.set_mem_table(&infos).context("SET_MEM_TABLE")?;
        let mut rings = Vec::new();
        for index in 0..spec.queues {
            let ring = DriverRing::new(&ram, spec.queue_size)?;
            Self::start_ring(&mut frontend, usize::from(index), &ring, 0)?;
            rings.push(ring);
        }
        Ok(Self { ram, frontend, rings })
    }

    /// Connects and negotiates, and stops there.
    pub fn handshake(socket: &Path, queues: u16) -> Result<Frontend> {
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut frontend = loop {
            match Frontend::connect(socket, u64::from(queues)) {
                Ok(frontend) => break frontend,
                Err(error) if Instant::now() >= deadline => return Err(error).context("connecting"),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        frontend.set_owner().context("SET_OWNER")?;
        let offered = frontend.get_features().context("GET_FEATURES")?;
        let protocol = frontend.get_protocol_features().context("GET_PROTOCOL_FEATURES")?;
        let wanted = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS;
        frontend.set_protocol_features(protocol & wanted).context("SET_PROTOCOL_FEATURES")?;
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        frontend.get_queue_num().context("GET_QUEUE_NUM")?;
        frontend.set_features(offered & FEATURES).context("SET_FEATURES")?;
        Ok(frontend)
    }

    /// Gives a ring to the device and enables it.
    pub fn start_ring(frontend: &mut Frontend, index: usize, ring: &DriverRing, base: u16) -> Result<()> {
        frontend.set_vring_num(index, ring.size).context("SET_VRING_NUM")?;
        let config = VringConfigData {
            queue_max_size: ring.size,
            queue_size: ring.size,
            flags: 0,
            desc_table_addr: GuestRam::to_frontend(ring.descriptors),
            used_ring_addr: GuestRam::to_frontend(ring.used),
            avail_ring_addr: GuestRam::to_frontend(ring.available),
            log_addr: None,
        };
        frontend.set_vring_addr(index, &config).context("SET_VRING_ADDR")?;
        frontend.set_vring_base(index, base).context("SET_VRING_BASE")?;
        frontend.set_vring_call(index, &ring.call).context("SET_VRING_CALL")?;
        frontend.set_vring_kick(index, &ring.kick).context("SET_VRING_KICK")?;
        frontend.set_vring_enable(index, true).context("SET_VRING_ENABLE")?;
        Ok(())
    }

    /// Stops a ring, as a VMM does when it pauses; returns the index to go on from.
    pub fn stop_ring(&mut self, index: usize) -> Result<u16> {
        self.frontend.set_vring_enable(index, false).context("SET_VRING_ENABLE")?;
        let base = self.frontend.get_vring_base(index).context("GET_VRING_BASE")?;
        Ok(u16::try_from(base)?)
    }

    /// Starts a ring that was stopped.
    pub fn resume_ring(&mut self, index: usize, base: u16) -> Result<()> {
        Self::start_ring(&mut self.frontend, index, &self.rings[index], base)
    }

    /// Reads the configuration space.
    pub fn config(&mut self, offset: u32, len: u32) -> Result<Vec<u8>> {
        let zeros = vec![0; usize::try_from(len)?];
        let (_, bytes) = self
            .frontend
            .get_config(offset, len, VhostUserConfigFlags::empty(), &zeros)
            .context("GET_CONFIG")?;
        Ok(bytes)
    }
}
