//! The slices that are served: those of the configuration, and those operators make and remove.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use anyhow::{Context, Result, bail, ensure};
use tracing::{error, info, warn};
use vram_control_api::{ByteSize, v1};
use vram_gpu::GpuId;
use vram_pool::{PoolError, SliceId};
use vram_residency::Residency;
use vram_session::{Counters, Session, SessionConfig};
use vram_transport_vhost_user::{SliceSocket, SocketConfig, SocketState};

use crate::config::{ConfigError, NewSlices, SliceConfig};

/// A slice and its socket.
pub(crate) struct ServedSlice {
    pub(crate) id: SliceId,
    pub(crate) name: String,
    pub(crate) virtio_id: u16,
    pub(crate) request_queues: u16,
    pub(crate) socket: SliceSocket,
    pub(crate) counters: Arc<Counters>,
    /// The session of the frontend that is connected, if one is.
    pub(crate) session: Arc<Mutex<Weak<Session>>>,
}

impl ServedSlice {
    pub(crate) fn state(&self) -> v1::SliceState {
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        match (self.socket.state(), session) {
            (SocketState::Waiting, _) => v1::SliceState::WaitingForFrontend,
            (SocketState::Connected, Some(session)) if session.is_ready() => v1::SliceState::InUse,
            (SocketState::Connected, _) => v1::SliceState::Connected,
        }
    }
}

/// Why a slice is not made. Nothing changed.
#[derive(Debug)]
pub(crate) enum CreateError {
    /// There can be no such slice.
    Invalid(ConfigError),
    /// It cannot be made as things are.
    Refused(anyhow::Error),
}

/// Why a slice is not removed. Nothing changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RemoveError {
    /// There is none of this name.
    #[error("There is no such slice")]
    Missing,
    /// Somebody uses it.
    #[error("A VMM is connected to slice {name}; end the virtual machine first")]
    Connected {
        /// The slice.
        name: String,
    },
    /// What was in it is on its way back.
    #[error("Memory of slice {name} is still coming back; try again in a moment: {problem}")]
    NotEmpty {
        /// The slice.
        name: String,
        /// What the pool says.
        problem: PoolError,
    },
}

/// All slices by name, and how to make another.
pub(crate) struct ServedSlices {
    residency: Arc<Residency>,
    new_slices: NewSlices,
    virtio_id: u16,
    boot_epoch: u64,
    by_name: Mutex<BTreeMap<String, Arc<ServedSlice>>>,
}

impl ServedSlices {
    pub(crate) fn new(
        residency: Arc<Residency>,
        new_slices: NewSlices,
        virtio_id: u16,
        boot_epoch: u64,
    ) -> Self {
        Self { residency, new_slices, virtio_id, boot_epoch, by_name: Mutex::default() }
    }

    /// All, by name.
    pub(crate) fn all(&self) -> Vec<Arc<ServedSlice>> {
        self.by_name().values().cloned().collect()
    }

    pub(crate) fn find(&self, name: &str) -> Option<Arc<ServedSlice>> {
        self.by_name().get(name).cloned()
    }

    /// Makes a slice of the configuration, whose names and sockets differ, and serves it.
    pub(crate) fn serve(&self, slice: &SliceConfig) -> Result<()> {
        self.serve_among(&mut self.by_name(), slice).map(drop)
    }

    /// Makes the slice an operator asks for.
    pub(crate) fn create(&self, slice: v1::NewSlice) -> Result<Arc<ServedSlice>, CreateError> {
        let slice = self.new_slices.check(slice).map_err(CreateError::Invalid)?;
        let mut by_name = self.by_name();
        self.check_beside(&by_name, &slice)
            .and_then(|()| self.serve_among(&mut by_name, &slice))
            .map_err(CreateError::Refused)
    }

    /// Whether a slice can be told from those there are, and its home is one of the GPUs.
    fn check_beside(&self, by_name: &BTreeMap<String, Arc<ServedSlice>>, slice: &SliceConfig) -> Result<()> {
        ensure!(!by_name.contains_key(&slice.name), "There is a slice {} already", slice.name);
        let other = by_name.values().find(|other| other.socket.path() == slice.socket);
        if let Some(other) = other {
            bail!("The socket {} is that of slice {} already", slice.socket.display(), other.name);
        }
        check_homes(std::slice::from_ref(slice), self.residency.backend().devices().len())
    }

    fn serve_among(
        &self,
        by_name: &mut BTreeMap<String, Arc<ServedSlice>>,
        slice: &SliceConfig,
    ) -> Result<Arc<ServedSlice>> {
        let served = Arc::new(serve_slice(slice, self.virtio_id, &self.residency, self.boot_epoch)?);
        by_name.insert(slice.name.clone(), Arc::clone(&served));
        Ok(served)
    }

    /// Removes a slice that nobody is connected to and nothing is in, and its socket.
    pub(crate) fn remove(&self, name: &str) -> Result<(), RemoveError> {
        let mut by_name = self.by_name();
        let slice = by_name.get(name).ok_or(RemoveError::Missing)?;
        let connected = || RemoveError::Connected { name: name.to_owned() };
        // Nobody connects from here on; if the slice stays, they can again.
        let _reservation = slice.socket.reserve().ok_or_else(connected)?;
        self.residency
            .remove_slice(slice.id)
            .map_err(|problem| RemoveError::NotEmpty { name: name.to_owned(), problem })?;
        by_name.remove(name);
        info!(slice = name, "the slice was removed");
        Ok(())
    }

    fn by_name(&self) -> MutexGuard<'_, BTreeMap<String, Arc<ServedSlice>>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the GPUs slices are to be at home on are there.
pub(crate) fn check_homes(slices: &[SliceConfig], gpus: usize) -> Result<()> {
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

/// Makes a slice and listens for its frontend; nothing stays of one that cannot be served.
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
    let remember: Arc<Mutex<Weak<Session>>> = Arc::clone(&current);
    let sessions = Box::new(move || {
        let made = Session::new(session.clone());
        *remember.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&made);
        made
    });
    let listening = SliceSocket::listen(SocketConfig {
        name: slice.name.clone(),
        path: slice.socket.clone(),
        group: slice.group,
        request_queues: slice.request_queues,
        sessions,
    });
    let socket = match listening {
        Ok(socket) => socket,
        Err(error) => {
            if let Err(error) = residency.remove_slice(id) {
                error!(slice = %slice.name, %error, "a slice that cannot be served stays in the pool");
            }
            return Err(error).with_context(|| format!("Slice {} cannot be served", slice.name));
        }
    };
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

/// Bytes no slice is promised.
fn free_bytes(residency: &Residency) -> u64 {
    let pool = residency.pool();
    let gpus = pool.gpus();
    let shards = gpus.iter().map(|gpu| u64::from(gpu.capacity_shards.saturating_sub(gpu.promised_shards)));
    shards.sum::<u64>().saturating_mul(pool.shard_bytes())
}
