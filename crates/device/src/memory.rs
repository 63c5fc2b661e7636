//! The guest memory map a device works on right now.

use std::sync::{Arc, PoisonError, RwLock};

use vram_guest_memory::GuestMap;

/// Shared by the transport, which changes the map, and the queues, which take it anew for each round of work and hold
/// it no longer.
#[derive(Default)]
pub struct MemoryCell(RwLock<Arc<GuestMap>>);

impl MemoryCell {
    /// The map now.
    pub fn get(&self) -> Arc<GuestMap> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the map.
    pub fn set(&self, map: GuestMap) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(map);
    }
}
