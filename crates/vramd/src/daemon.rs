//! The daemon: what is started in which order, and what holds on to what.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use tracing::{info, warn};
use vram_control_api::ByteSize;
use vram_gpu::{Backend, GpuId};
use vram_gpu_cuda::CudaBackend;
use vram_gpu_sim::{SimBackend, SimConfig};
use vram_pool::SliceId;
use vram_residency::{MemoryConfig, Residency};
use vram_session::{Counters, Session, SessionConfig};
use vram_transport_vhost_user::{SliceSocket, SocketConfig};

use crate::args::GpuBackend;
use crate::config::{Config, SliceConfig};
use crate::state::{DaemonState, ServedSlice};
use crate::tiers::OpenTiers;

/// Memory of each real GPU that stays out of the pool: contexts, page tables and the driver's own buffers.
const CUDA_RESERVE_BYTES: u64 = 512 << 20;

/// A running daemon. Dropping it disconnects every frontend and gives everything back.
pub struct Daemon {
    // Dropped in this order: what is served, then the tiers that hold some of it.
    state: Arc<DaemonState>,
    _tiers: OpenTiers,
}

impl Daemon {
    /// Opens the GPUs a configuration names and starts on them.
    pub fn start(config: &Config) -> Result<Self> {
        let backend = open_backend(config)?;
        Self::start_on(config, backend)
    }

    /// Starts on GPUs that are open already: tiers, pool, slices, sockets. When this returns, frontends can connect.
    pub fn start_on(config: &Config, backend: Arc<dyn Backend>) -> Result<Self> {
        vram_guest_memory::sigbus::install().context("The SIGBUS handler cannot be installed")?;
        let identity = backend.identity();
        if identity.simulated {
            warn!(
                backend = identity.backend,
                gpus = backend.devices().len(),
                "THE GPUS ARE SIMULATED: memory is host memory, copies are made by the CPU, nothing here is a GPU"
            );
        } else {
            info!(backend = identity.backend, version = %identity.version, gpus = backend.devices().len(), "GPUs open");
        }
        let reserve_bytes = if identity.simulated { 0 } else { CUDA_RESERVE_BYTES };
        let memory = MemoryConfig { shard_bytes: config.shard.bytes(), reserve_bytes };
        let tiers = OpenTiers::open(&config.tiers)?;
        let residency = Residency::with_tiers(Arc::clone(&backend), memory, tiers.tiers())
            .context("The GPUs' memory cannot be pooled")?;
        let boot_epoch = boot_epoch();
        check_homes(&config.slices, backend.devices().len())?;
        let mut slices = Vec::new();
        for slice in &config.slices {
            slices.push(serve_slice(slice, config.virtio_id, &residency, boot_epoch)?);
        }
        if slices.is_empty() {
            warn!("no slice is configured: nothing is served; add --slice NAME=SIZE or [[slice]]");
        }
        let state = DaemonState { residency, slices, boot_epoch, started: Instant::now() };
        Ok(Self { state: Arc::new(state), _tiers: tiers })
    }

    /// What operators may see.
    pub fn state(&self) -> &Arc<DaemonState> {
        &self.state
    }
}

/// Checks what only the backend understands of the choice of GPUs, so that it is refused as a wrong command line is.
pub fn check_gpu_choice(config: &Config) -> Result<()> {
    if let GpuBackend::Sim(spec) = &config.gpu {
        let sim = SimConfig::parse(spec).with_context(|| format!("The GPUs sim:{spec} are not valid"))?;
        check_homes(&config.slices, sim.gpus.len())?;
    }
    Ok(())
}

/// Whether the GPUs slices are to be at home on are there.
fn check_homes(slices: &[SliceConfig], gpus: usize) -> Result<()> {
    for slice in slices {
        if let Some(home) = slice.home {
            ensure!(
                usize::from(home) < gpus,
                "The home of slice {} is GPU {home}, and there are {gpus} GPUs, numbered from 0",
                slice.name
            );
        }
    }
    Ok(())
}

/// Says what is otherwise than written: sizes are counted in whole shards, and limits need not fit.
fn remark_on_sizes(slice: &SliceConfig, residency: &Residency, id: SliceId) {
    let pool = residency.pool();
    let Some(usage) = pool.usage(id) else { return };
    let shards = pool.gpus().iter().map(|gpu| u64::from(gpu.capacity_shards)).sum::<u64>();
    let gpu_bytes = shards.saturating_mul(pool.shard_bytes());
    drop(pool);
    let tiers = residency.tiers();
    let tier_bytes = tiers.iter().map(|tier| tier.meter.limit_bytes.unwrap_or(u64::MAX));
    let all_bytes = tier_bytes.fold(gpu_bytes, u64::saturating_add);
    let (limit, guarantee) = (ByteSize(usage.limit_bytes), ByteSize(usage.guarantee_bytes));
    if limit != slice.limit || guarantee != slice.guarantee {
        warn!(slice = %slice.name, %limit, %guarantee, "sizes are rounded up to whole shards");
    }
    if limit.bytes() > all_bytes {
        let all = ByteSize(all_bytes);
        warn!(slice = %slice.name, %limit, %all, "the limit is more than all GPUs and tiers have; the slice may never have so much");
    }
}

/// Opens the GPUs a configuration names; never others in their place.
pub fn open_backend(config: &Config) -> Result<Arc<dyn Backend>> {
    Ok(match &config.gpu {
        GpuBackend::Sim(spec) => {
            if config.gpu_is_default {
                warn!(spec, "no GPUs were chosen (--gpu): simulating some");
            }
            let sim = SimConfig::parse(spec).with_context(|| format!("--gpu sim:{spec} is not valid"))?;
            Arc::new(SimBackend::new(sim).context("The simulated GPUs cannot be made")?)
        }
        GpuBackend::Cuda => Arc::new(CudaBackend::new().context("The GPUs of this host cannot be opened")?),
    })
}

fn serve_slice(
    slice: &SliceConfig,
    virtio_id: u16,
    residency: &Arc<Residency>,
    boot_epoch: u64,
) -> Result<ServedSlice> {
    let id = residency
        .add_slice(vram_pool::SliceConfig {
            name: slice.name.clone(),
            guarantee_bytes: slice.guarantee.bytes(),
            limit_bytes: slice.limit.bytes(),
            placement: slice.placement,
            home: slice.home.map(GpuId),
        })
        .with_context(|| {
            let free = ByteSize(free_bytes(residency));
            format!(
                "Slice {} of {} does not fit: {free} of the pool are not promised yet",
                slice.name, slice.limit
            )
        })?;
    remark_on_sizes(slice, residency, id);
    let counters = Arc::new(Counters::default());
    let session = SessionConfig {
        slice: id,
        slice_name: slice.name.clone(),
        boot_epoch,
        residency: Arc::clone(residency),
        counters: Arc::clone(&counters),
        contexts: Arc::default(),
    };
    let current = Arc::default();
    let remember: Arc<std::sync::Mutex<std::sync::Weak<Session>>> = Arc::clone(&current);
    let sessions = Box::new(move || {
        let made = Session::new(session.clone());
        *remember.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Arc::downgrade(&made);
        made
    });
    let socket = SliceSocket::listen(SocketConfig {
        name: slice.name.clone(),
        path: slice.socket.clone(),
        group: slice.group,
        request_queues: slice.request_queues,
        sessions,
    })
    .with_context(|| format!("Slice {} cannot be served", slice.name))?;
    info!(slice = %slice.name, socket = %slice.socket.display(), limit = %slice.limit, "slice ready");
    Ok(ServedSlice {
        id,
        name: slice.name.clone(),
        virtio_id,
        request_queues: slice.request_queues,
        socket,
        counters,
        session: current,
    })
}

/// Bytes no slice is promised.
fn free_bytes(residency: &Residency) -> u64 {
    let pool = residency.pool();
    let gpus = pool.gpus();
    let shards = gpus.iter().map(|gpu| u64::from(gpu.capacity_shards.saturating_sub(gpu.promised_shards)));
    shards.sum::<u64>().saturating_mul(pool.shard_bytes())
}

/// A number no earlier start of the daemon had: nanoseconds since 1970, never zero.
fn boot_epoch() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX).max(1)
}
