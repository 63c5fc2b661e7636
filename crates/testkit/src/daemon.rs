//! A daemon that is only what operators see of it.

use std::time::Duration;

use vram_control_api::v1::{
    BackedOnGpu, Daemon, Gpu, GpuState, NewSlice, Placement, Slice, SliceChange, SliceCounters, SliceState,
    Tier, TierCounters, TierKind, TierState,
};
use vram_control_server::{ControlState, Refusal};

/// Answers operators with what a test put into it; changes nothing of that. `default()` has a GPU that is ready, one
/// that is lost, two slices, and two tiers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FakeDaemon {
    /// What is running.
    pub daemon: Daemon,
    /// The GPUs.
    pub gpus: Vec<Gpu>,
    /// The slices, by name.
    pub slices: Vec<Slice>,
    /// The tiers, the fastest first.
    pub tiers: Vec<Tier>,
}

impl FakeDaemon {
    /// Asking for the slice of this name panics.
    pub const PANICS: &str = "panic";
    /// Asking for the slice of this name takes three seconds.
    pub const STUCK: &str = "stuck";

    /// A GPU as good as any.
    pub fn gpu(index: u16, state: GpuState) -> Gpu {
        Gpu {
            index,
            name: "Simulated GPU".to_owned(),
            uuid: format!("00000000-0000-0000-0000-{index:012}"),
            total_bytes: 1 << 30,
            pool_bytes: 1 << 30,
            used_bytes: 192 << 20,
            promised_bytes: 512 << 20,
            pci: (index == 0).then(|| "0000:65:00.0".to_owned()),
            numa_node: (index > 0).then_some(0),
            state,
        }
    }

    /// A slice as good as any, with bytes on two GPUs.
    pub fn named_slice(name: &str) -> Slice {
        Slice {
            name: name.to_owned(),
            state: SliceState::InUse,
            guarantee_bytes: 512 << 20,
            limit_bytes: 3 << 29,
            placement: Placement::Spill,
            home_gpu: Some(0),
            allocated_bytes: 130 << 20,
            backed_bytes: 192 << 20,
            stored_bytes: 64 << 20,
            quarantined_bytes: 0,
            backed_by_gpu: vec![
                BackedOnGpu { gpu: 0, backed_bytes: 128 << 20 },
                BackedOnGpu { gpu: 1, backed_bytes: 64 << 20 },
            ],
            allocations: 3,
            contexts: 1,
            socket: format!("/run/vram/{name}.sock"),
            virtio_id: 37,
            request_queues: 2,
            counters: SliceCounters {
                requests: 12,
                errors: 1,
                in_bytes: 4096,
                out_bytes: 0,
                copied_bytes: 1 << 20,
            },
        }
    }

    /// A tier that holds three regions in half their bytes.
    pub fn tier(kind: TierKind, state: TierState) -> Tier {
        Tier {
            kind,
            state,
            limit_bytes: (kind != TierKind::Remote).then_some(1 << 30),
            stored_bytes: 96 << 20,
            logical_bytes: 192 << 20,
            regions: 3,
            counters: TierCounters {
                puts: 5,
                put_bytes: 320 << 20,
                gets: 2,
                get_bytes: 128 << 20,
                full: 4,
                errors: 6,
                corrupt: 1,
            },
        }
    }

    fn find_gpu(&self, index: u16) -> Result<Gpu, Refusal> {
        let missing = || Refusal::NotFound { message: format!("gpu{index} is not part of the pool") };
        let gpu = self.gpus.iter().find(|gpu| gpu.index == index).cloned().ok_or_else(missing)?;
        match gpu.state {
            GpuState::Lost => Err(Refusal::Conflict { message: format!("gpu{index} is lost") }),
            _ => Ok(gpu),
        }
    }
}

impl Default for FakeDaemon {
    fn default() -> Self {
        Self {
            daemon: Daemon {
                version: "9.8.7".to_owned(),
                backend: "sim".to_owned(),
                simulated: true,
                backend_version: "simulated GPUs".to_owned(),
                boot_epoch: 0xab,
                uptime_seconds: 187,
            },
            gpus: vec![Self::gpu(0, GpuState::Ready), Self::gpu(1, GpuState::Lost)],
            slices: vec![Self::named_slice("a"), Self::named_slice("tenant-b")],
            tiers: vec![
                Self::tier(TierKind::Compressed, TierState::Ready),
                Self::tier(TierKind::Remote, TierState::Paused),
            ],
        }
    }
}

impl ControlState for FakeDaemon {
    fn daemon(&self) -> Daemon {
        self.daemon.clone()
    }

    fn gpus(&self) -> Vec<Gpu> {
        self.gpus.clone()
    }

    fn drain_gpu(&self, index: u16) -> Result<Gpu, Refusal> {
        Ok(Gpu { state: GpuState::Draining, ..self.find_gpu(index)? })
    }

    fn undrain_gpu(&self, index: u16) -> Result<Gpu, Refusal> {
        self.find_gpu(index)
    }

    fn slices(&self) -> Vec<Slice> {
        self.slices.clone()
    }

    fn slice(&self, name: &str) -> Option<Slice> {
        assert_ne!(name, Self::PANICS, "asked to");
        if name == Self::STUCK {
            std::thread::sleep(Duration::from_secs(3));
        }
        self.slices.iter().find(|slice| slice.name == name).cloned()
    }

    fn tiers(&self) -> Vec<Tier> {
        self.tiers.clone()
    }

    fn create_slice(&self, slice: NewSlice) -> Result<Slice, Refusal> {
        if slice.limit_bytes == 0 {
            return Err(Refusal::Invalid { message: "The limit must be more than 0".to_owned() });
        }
        if self.slice(&slice.name).is_some() {
            return Err(Refusal::Conflict { message: format!("There is a slice {} already", slice.name) });
        }
        Ok(Slice { limit_bytes: slice.limit_bytes, ..Self::named_slice(&slice.name) })
    }

    fn remove_slice(&self, name: &str) -> Result<Slice, Refusal> {
        let missing = || Refusal::NotFound { message: format!("There is no slice {name:?}") };
        self.slice(name).ok_or_else(missing)
    }

    fn change_slice(&self, name: &str, change: SliceChange) -> Result<Slice, Refusal> {
        let missing = || Refusal::NotFound { message: format!("There is no slice {name:?}") };
        let mut slice = self.slice(name).ok_or_else(missing)?;
        slice.limit_bytes = change.limit_bytes.unwrap_or(slice.limit_bytes);
        slice.guarantee_bytes = change.guarantee_bytes.unwrap_or(slice.guarantee_bytes);
        if slice.guarantee_bytes > slice.limit_bytes {
            return Err(Refusal::Conflict { message: "The guarantee is above the limit".to_owned() });
        }
        Ok(slice)
    }
}
