//! The one driver of the process: the simulated GPUs and every handle given out.

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use vram_gpu::{
    Backend as _, DeviceAddress, DeviceRange, EventHandle, GpuError, GpuId, RegistrationHandle, ShardHandle,
};
use vram_gpu_sim::{SimBackend, SimConfig};
use vram_guest_memory::HostBuffer;

use crate::context::Contexts;
use crate::event::EventEntry;
use crate::status::Status;
use crate::stream::StreamEntry;

/// Names the simulated GPUs.
const SPECIFICATION: &str = "VRAM_SIMCUDA_GPUS";

/// Everything there is.
pub(crate) struct Driver {
    pub(crate) sim: SimBackend,
    pub(crate) contexts: Mutex<Contexts>,
    pub(crate) streams: Mutex<HashMap<usize, StreamEntry>>,
    pub(crate) events: Mutex<HashMap<usize, EventEntry>>,
    /// Physical memory by the handle given out.
    pub(crate) physical: Mutex<HashMap<u64, Physical>>,
    /// Plain allocations by address.
    pub(crate) allocations: Mutex<BTreeMap<u64, Allocation>>,
    /// Host allocations by address.
    pub(crate) host_allocations: Mutex<BTreeMap<usize, HostAllocation>>,
}

/// Physical memory: lives while it is referred to or mapped.
pub(crate) struct Physical {
    pub(crate) shard: ShardHandle,
    pub(crate) exportable: bool,
    pub(crate) references: u32,
    pub(crate) maps: u32,
}

/// What `cuMemAlloc` gave.
pub(crate) struct Allocation {
    pub(crate) band: DeviceRange,
    pub(crate) shard: ShardHandle,
    pub(crate) asked_bytes: u64,
}

/// What `cuMemHostAlloc` gave.
pub(crate) struct HostAllocation {
    pub(crate) registration: RegistrationHandle,
    pub(crate) len: usize,
    pub(crate) _buffer: HostBuffer,
}

static DRIVER: OnceLock<Result<Driver, Status>> = OnceLock::new();

impl Driver {
    /// Starts the driver; later calls do nothing.
    pub(crate) fn start() -> Result<(), Status> {
        DRIVER.get_or_init(Self::configured).as_ref().map(|_| ()).map_err(|status| *status)
    }

    /// The driver, if it has been started.
    pub(crate) fn get() -> Result<&'static Self, Status> {
        match DRIVER.get() {
            Some(driver) => driver.as_ref().map_err(|status| *status),
            None => Err(Status::NOT_INITIALIZED),
        }
    }

    fn configured() -> Result<Self, Status> {
        let Ok(text) = std::env::var(SPECIFICATION) else {
            eprintln!("simulated libcuda: set {SPECIFICATION}, for example to 4x256MiB");
            return Err(Status::NO_DEVICE);
        };
        let config = SimConfig::parse(&text).map_err(|error| {
            eprintln!("simulated libcuda: {SPECIFICATION}: {error}");
            Status::NO_DEVICE
        })?;
        Self::of(config)
    }

    pub(crate) fn of(config: SimConfig) -> Result<Self, Status> {
        let sim = SimBackend::new(config).map_err(|error| {
            eprintln!("simulated libcuda: {error}");
            Status::NO_DEVICE
        })?;
        let contexts = Mutex::new(Contexts::new(sim.devices().len()));
        Ok(Self {
            sim,
            contexts,
            streams: Mutex::default(),
            events: Mutex::default(),
            physical: Mutex::default(),
            allocations: Mutex::default(),
            host_allocations: Mutex::default(),
        })
    }

    /// The GPU a device number names.
    pub(crate) fn gpu(&self, device: c_int) -> Result<GpuId, Status> {
        let gpu = u16::try_from(device).map(GpuId).map_err(|_negative| Status::INVALID_DEVICE)?;
        if gpu.index() < self.sim.devices().len() { Ok(gpu) } else { Err(Status::INVALID_DEVICE) }
    }

    /// Waits for an event of the simulator and forgets it.
    pub(crate) fn wait(&self, event: EventHandle) -> Result<(), Status> {
        let outcome = self.sim.synchronize(event, std::time::Duration::MAX);
        self.sim.destroy_event(event)?;
        outcome?;
        Ok(())
    }
}

/// Enqueues work, waiting for room as the API does; the simulator itself refuses when a stream is full.
pub(crate) fn enqueue<T>(mut work: impl FnMut() -> Result<T, GpuError>) -> Result<T, Status> {
    loop {
        match work() {
            Err(GpuError::Driver { call: "enqueue", .. }) => {
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
            outcome => return Ok(outcome?),
        }
    }
}

/// A run of device bytes.
pub(crate) fn range(start: u64, len: usize) -> DeviceRange {
    DeviceRange { start: DeviceAddress(start), len_bytes: len as u64 }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
