//! What the daemon shows to operators.

use std::sync::Arc;
use std::time::Instant;

use tracing::info;
use vram_control_api::{ByteSize, v1};
use vram_control_server::{ControlState, Refusal};
use vram_gpu::{DeviceInfo, GpuId};
use vram_pool::{DrainError, Placement};
use vram_residency::{Residency, TierReport};
use vram_tier::TierKind;

use crate::config::ConfigError;
use crate::slices::{CreateError, RemoveError, ServedSlice, ServedSlices};

/// Everything a running daemon holds.
pub struct DaemonState {
    pub(crate) residency: Arc<Residency>,
    pub(crate) slices: ServedSlices,
    pub(crate) boot_epoch: u64,
    pub(crate) started: Instant,
}

impl DaemonState {
    /// The memory of the GPUs.
    pub fn residency(&self) -> &Arc<Residency> {
        &self.residency
    }

    fn show(&self, slice: &ServedSlice) -> Option<v1::Slice> {
        let usage = self.residency.pool().usage(slice.id)?;
        let totals = slice.counters.totals();
        Some(v1::Slice {
            name: slice.name.clone(),
            state: slice.state(),
            guarantee_bytes: usage.guarantee_bytes,
            limit_bytes: usage.limit_bytes,
            placement: placement_shown(usage.placement),
            home_gpu: Some(usage.home.0),
            allocated_bytes: usage.allocated_bytes,
            backed_bytes: usage.backed_bytes,
            stored_bytes: usage.stored_bytes,
            quarantined_bytes: usage.quarantined_bytes,
            backed_by_gpu: usage
                .gpus
                .iter()
                .map(|on| v1::BackedOnGpu { gpu: on.gpu.0, backed_bytes: on.bytes })
                .collect(),
            allocations: usage.allocations,
            contexts: totals.contexts,
            socket: slice.socket.path().display().to_string(),
            virtio_id: slice.virtio_id,
            request_queues: slice.request_queues,
            counters: v1::SliceCounters {
                requests: totals.requests,
                errors: totals.refused,
                in_bytes: totals.written_bytes,
                out_bytes: totals.read_bytes,
                copied_bytes: totals.copied_bytes,
            },
        })
    }

    fn change_gpu(
        &self,
        index: u16,
        change: impl FnOnce(&Residency, GpuId) -> Result<(), DrainError>,
    ) -> Result<v1::Gpu, Refusal> {
        let gpu = GpuId(index);
        change(&self.residency, gpu).map_err(|error| match error {
            DrainError::NoSuchGpu { .. } => Refusal::NotFound { message: error.to_string() },
            DrainError::Lost { .. } | DrainError::Local { .. } | DrainError::GuaranteesDoNotFit { .. } => {
                Refusal::Conflict { message: error.to_string() }
            }
        })?;
        let device = self.residency.backend().devices().iter().find(|device| device.id == gpu);
        let message = format!("{gpu} is not part of the pool");
        device.map(|device| self.show_gpu(device)).ok_or(Refusal::NotFound { message })
    }

    fn show_gpu(&self, device: &DeviceInfo) -> v1::Gpu {
        let pool = self.residency.pool();
        let shard_bytes = pool.shard_bytes();
        let usage = pool.gpus().into_iter().find(|gpu| gpu.id == device.id);
        drop(pool);
        let bytes = |shards: Option<u32>| u64::from(shards.unwrap_or(0)).saturating_mul(shard_bytes);
        v1::Gpu {
            index: device.id.0,
            name: device.name.clone(),
            uuid: uuid_text(&device.uuid),
            total_bytes: device.total_bytes,
            pool_bytes: bytes(usage.as_ref().map(|gpu| gpu.capacity_shards)),
            used_bytes: bytes(usage.as_ref().map(|gpu| gpu.used_shards)),
            promised_bytes: bytes(usage.as_ref().map(|gpu| gpu.promised_shards)),
            pci: device.pci.map(|pci| pci.to_string()),
            numa_node: device.numa_node,
            state: match usage {
                Some(gpu) if gpu.lost => v1::GpuState::Lost,
                Some(gpu) if gpu.draining && gpu.used_shards > 0 => v1::GpuState::Draining,
                Some(gpu) if gpu.draining => v1::GpuState::Drained,
                _ => v1::GpuState::Ready,
            },
        }
    }
}

impl ControlState for DaemonState {
    fn daemon(&self) -> v1::Daemon {
        let identity = self.residency.backend().identity();
        v1::Daemon {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            backend: identity.backend.to_owned(),
            simulated: identity.simulated,
            backend_version: identity.version.clone(),
            boot_epoch: self.boot_epoch,
            uptime_seconds: self.started.elapsed().as_secs(),
        }
    }

    fn gpus(&self) -> Vec<v1::Gpu> {
        self.residency.backend().devices().iter().map(|device| self.show_gpu(device)).collect()
    }

    fn drain_gpu(&self, index: u16) -> Result<v1::Gpu, Refusal> {
        self.change_gpu(index, Residency::begin_drain)
    }

    fn undrain_gpu(&self, index: u16) -> Result<v1::Gpu, Refusal> {
        self.change_gpu(index, Residency::end_drain)
    }

    fn slices(&self) -> Vec<v1::Slice> {
        self.slices.all().iter().filter_map(|slice| self.show(slice)).collect()
    }

    fn create_slice(&self, slice: v1::NewSlice) -> Result<v1::Slice, Refusal> {
        let name = slice.name.clone();
        let made = self.slices.create(slice).map_err(|error| match error {
            // Where the value stands is no news to who just wrote it.
            CreateError::Invalid(ConfigError::Invalid { problem, .. }) => {
                Refusal::Invalid { message: problem.to_string() }
            }
            CreateError::Invalid(error) => Refusal::Invalid { message: error.to_string() },
            CreateError::Refused(error) => Refusal::Conflict { message: format!("{error:#}") },
        })?;
        self.show(&made).ok_or_else(|| missing(&name))
    }

    fn remove_slice(&self, name: &str) -> Result<v1::Slice, Refusal> {
        let slice = self.slices.find(name).ok_or_else(|| missing(name))?;
        let shown = self.show(&slice).ok_or_else(|| missing(name))?;
        drop(slice);
        self.slices.remove(name).map_err(|error| match error {
            RemoveError::Missing => missing(name),
            error @ (RemoveError::Connected { .. } | RemoveError::NotEmpty { .. }) => {
                Refusal::Conflict { message: error.to_string() }
            }
        })?;
        Ok(shown)
    }

    fn change_slice(&self, name: &str, change: v1::SliceChange) -> Result<v1::Slice, Refusal> {
        let missing = || missing(name);
        let slice = self.slices.find(name).ok_or_else(missing)?;
        let config = self.residency.pool().slice_config(slice.id).cloned().ok_or_else(missing)?;
        let limit = ByteSize(change.limit_bytes.unwrap_or(config.limit_bytes));
        let guarantee = ByteSize(change.guarantee_bytes.unwrap_or(config.guarantee_bytes));
        self.residency
            .resize_slice(slice.id, limit.bytes(), guarantee.bytes())
            .map_err(|error| Refusal::Conflict { message: error.to_string() })?;
        info!(slice = %name, %limit, %guarantee, "the slice was resized");
        self.show(&slice).ok_or_else(missing)
    }

    fn tiers(&self) -> Vec<v1::Tier> {
        self.residency.tiers().iter().map(show_tier).collect()
    }

    fn slice(&self, name: &str) -> Option<v1::Slice> {
        self.slices.find(name).and_then(|slice| self.show(&slice))
    }
}

fn missing(name: &str) -> Refusal {
    Refusal::NotFound { message: format!("There is no slice {name:?}") }
}

fn show_tier(report: &TierReport) -> v1::Tier {
    let meter = &report.meter;
    v1::Tier {
        kind: match report.kind {
            TierKind::Host => v1::TierKind::Host,
            TierKind::Compressed => v1::TierKind::Compressed,
            TierKind::Disk => v1::TierKind::Disk,
            TierKind::Remote => v1::TierKind::Remote,
        },
        state: if report.paused { v1::TierState::Paused } else { v1::TierState::Ready },
        limit_bytes: meter.limit_bytes,
        stored_bytes: meter.stored_bytes,
        logical_bytes: meter.logical_bytes,
        regions: meter.regions,
        counters: v1::TierCounters {
            puts: meter.puts,
            put_bytes: meter.put_bytes,
            gets: meter.gets,
            get_bytes: meter.get_bytes,
            full: meter.full,
            errors: meter.put_errors.saturating_add(meter.get_errors).saturating_add(meter.remove_errors),
            corrupt: meter.corrupt,
        },
    }
}

fn placement_shown(placement: Placement) -> v1::Placement {
    match placement {
        Placement::Local => v1::Placement::Local,
        Placement::Spill => v1::Placement::Spill,
        Placement::Spread => v1::Placement::Spread,
        Placement::Pack => v1::Placement::Pack,
    }
}

/// `GPU-` and the identity in the usual groups, as the vendor's tools print it.
fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let group = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    format!("GPU-{}-{}-{}-{}-{}", group(0, 8), group(8, 12), group(12, 16), group(16, 20), group(20, 32))
}
