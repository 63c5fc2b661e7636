//! The daemon: what is started in which order, and what holds on to what.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use tracing::{info, warn};
use vram_gpu::Backend;
use vram_gpu_cuda::CudaBackend;
use vram_gpu_sim::{SimBackend, SimConfig};
use vram_residency::{MemoryConfig, Residency};

use crate::args::GpuBackend;
use crate::config::Config;
use crate::slices::{ServedSlices, check_homes};
use crate::state::DaemonState;
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
        let slices =
            ServedSlices::new(Arc::clone(&residency), config.new_slices(), config.virtio_id, boot_epoch);
        for slice in &config.slices {
            slices.serve(slice)?;
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

/// A number no earlier start of the daemon had: nanoseconds since 1970, never zero.
fn boot_epoch() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX).max(1)
}
