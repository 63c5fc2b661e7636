//! Which shards there are, and how much of each GPU's memory they take.
//!
//! Memory counts against its GPU until the last handle, mapping and export of it is gone. Handles and mappings are
//! counted here; an export is asked for its liveness whenever a count is wanted.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use vram_gpu::{GpuError, GpuId, MemoryInfo};

use crate::memory::{MemoryFile, MemoryId};

/// Memory of one shard, counted against its GPU as long as it lives.
#[derive(Debug)]
pub(crate) struct ShardMemory {
    pub(crate) file: MemoryFile,
    _charge: Charge,
}

#[derive(Debug)]
struct Charge {
    accounts: Arc<Mutex<Vec<MemoryInfo>>>,
    gpu: GpuId,
    len_bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(account) = accounts.get_mut(self.gpu.index()) {
            account.free_bytes = account.free_bytes.saturating_add(self.len_bytes).min(account.total_bytes);
        }
    }
}

/// All shards of a backend.
#[derive(Debug)]
pub(crate) struct Shards {
    accounts: Arc<Mutex<Vec<MemoryInfo>>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    handles: HashMap<u64, Arc<ShardMemory>>,
    known: HashMap<MemoryId, Weak<ShardMemory>>,
    exported: Vec<Arc<ShardMemory>>,
}

impl Shards {
    pub(crate) fn new(total_bytes: impl Iterator<Item = u64>) -> Self {
        let accounts =
            total_bytes.map(|total| MemoryInfo { free_bytes: total, total_bytes: total }).collect();
        Self { accounts: Arc::new(Mutex::new(accounts)), state: Mutex::default() }
    }

    pub(crate) fn memory(&self, gpu: GpuId) -> Result<MemoryInfo, GpuError> {
        self.reap();
        self.accounts().get(gpu.index()).copied().ok_or(GpuError::NoSuchGpu { gpu })
    }

    pub(crate) fn create(
        &self,
        gpu: GpuId,
        len_bytes: u64,
        dirty: bool,
        handle: u64,
    ) -> Result<(), GpuError> {
        self.reap();
        let charge = self.charge(gpu, len_bytes)?;
        let file = MemoryFile::create(gpu, len_bytes, dirty)
            .map_err(|error| GpuError::Driver { call: "create_shard", reason: error.to_string() })?;
        let memory = Arc::new(ShardMemory { file, _charge: charge });
        let mut state = self.state();
        state.known.insert(memory.file.id, Arc::downgrade(&memory));
        state.handles.insert(handle, memory);
        Ok(())
    }

    /// Takes memory in. Memory this backend has already is only given one more handle.
    pub(crate) fn import(&self, file: MemoryFile, handle: u64) -> Result<(), GpuError> {
        let known = self.state().known.get(&file.id).and_then(Weak::upgrade);
        let memory = match known {
            Some(memory) => memory,
            None => {
                let charge = self.charge(file.gpu, file.len_bytes)?;
                Arc::new(ShardMemory { file, _charge: charge })
            }
        };
        let mut state = self.state();
        state.known.insert(memory.file.id, Arc::downgrade(&memory));
        state.handles.insert(handle, memory);
        Ok(())
    }

    pub(crate) fn get(&self, handle: u64) -> Result<Arc<ShardMemory>, GpuError> {
        self.state().handles.get(&handle).cloned().ok_or(GpuError::BadHandle { what: "shard" })
    }

    /// Notes that a descriptor of this memory is out there.
    pub(crate) fn note_export(&self, memory: &Arc<ShardMemory>) {
        let mut state = self.state();
        if !state.exported.iter().any(|exported| Arc::ptr_eq(exported, memory)) {
            state.exported.push(Arc::clone(memory));
        }
    }

    pub(crate) fn release(&self, handle: u64) -> Result<(), GpuError> {
        let released = self.state().handles.remove(&handle);
        released.map(drop).ok_or(GpuError::BadHandle { what: "shard" })
    }

    pub(crate) fn handle_count(&self) -> usize {
        self.state().handles.len()
    }

    /// Forgets exports that nobody holds any more.
    fn reap(&self) {
        let mut state = self.state();
        let (held, gone): (Vec<_>, Vec<_>) =
            std::mem::take(&mut state.exported).into_iter().partition(|memory| memory.file.held_elsewhere());
        state.exported = held;
        if !gone.is_empty() {
            state.known.retain(|_, memory| memory.strong_count() > 0);
        }
        drop(state);
        drop(gone);
    }

    fn charge(&self, gpu: GpuId, len_bytes: u64) -> Result<Charge, GpuError> {
        let mut accounts = self.accounts();
        let account = accounts.get_mut(gpu.index()).ok_or(GpuError::NoSuchGpu { gpu })?;
        account.free_bytes = account
            .free_bytes
            .checked_sub(len_bytes)
            .ok_or(GpuError::OutOfMemory { gpu, requested_bytes: len_bytes })?;
        Ok(Charge { accounts: Arc::clone(&self.accounts), gpu, len_bytes })
    }

    fn accounts(&self) -> MutexGuard<'_, Vec<MemoryInfo>> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
