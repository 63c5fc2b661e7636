//! The ring: what the guest made available, what was used.

use std::sync::atomic::Ordering;

use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress};
use vram_guest_memory::GuestMap;

use crate::Chain;
use crate::chain::Table;

/// Largest ring.
const MAX_RING_SIZE: u16 = 1024;
/// Offset of the ring array in the available ring.
const AVAIL_HEADER_BYTES: u64 = 4;

/// Where a ring lies in guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingAddresses {
    /// Entries; a power of two.
    pub size: u16,
    /// Descriptor table.
    pub descriptors: GuestAddress,
    /// Available ring.
    pub available: GuestAddress,
    /// Used ring.
    pub used: GuestAddress,
}

/// What ends a session: the ring itself cannot be trusted any more.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// Size or addresses are not ones a ring can have.
    #[error("The ring's size {size} or addresses are not valid")]
    BadLayout {
        /// Entries.
        size: u16,
        /// What virtio-queue said.
        #[source]
        source: virtio_queue::Error,
    },
    /// Part of the ring is not guest memory.
    #[error("Part of the ring is not guest memory")]
    NotMemory,
    /// The available index ran ahead by more than the ring holds, or ring memory could not be read or written.
    #[error("The ring is inconsistent")]
    Inconsistent {
        /// What virtio-queue said.
        #[source]
        source: virtio_queue::Error,
    },
    /// The available index ran ahead by more than the ring holds.
    #[error("The available index is {ahead} entries ahead of a ring of {size}")]
    AvailAhead {
        /// Entries claimed.
        ahead: u16,
        /// Entries there are.
        size: u16,
    },
    /// An available entry names a descriptor outside the table.
    #[error("An available entry names descriptor {head} of {size}")]
    HeadOutOfRange {
        /// Named.
        head: u16,
        /// There are.
        size: u16,
    },
    /// A chain was made available again before it was used.
    #[error("Descriptor {head} was made available again before it was used")]
    HeadInFlight {
        /// Named.
        head: u16,
    },
}

impl From<virtio_queue::Error> for RingError {
    fn from(source: virtio_queue::Error) -> Self {
        Self::Inconsistent { source }
    }
}

/// A split virtqueue, owned by one thread.
#[derive(Debug)]
pub struct Ring {
    queue: Queue,
    addresses: RingAddresses,
    max_descriptors: u32,
    in_flight: Vec<bool>,
}

impl Ring {
    /// Takes up a ring at `next_avail`; the used index continues from guest memory.
    ///
    /// Chains may have `max_descriptors` descriptors.
    pub fn new(
        map: &GuestMap,
        addresses: RingAddresses,
        next_avail: u16,
        event_idx: bool,
        max_descriptors: u32,
    ) -> Result<Self, RingError> {
        let RingAddresses { size, descriptors, available, used } = addresses;
        let layout = |source| RingError::BadLayout { size, source };
        let mut queue = Queue::new(MAX_RING_SIZE).map_err(layout)?;
        queue.try_set_size(size).map_err(layout)?;
        queue.try_set_desc_table_address(descriptors).map_err(layout)?;
        queue.try_set_avail_ring_address(available).map_err(layout)?;
        queue.try_set_used_ring_address(used).map_err(layout)?;
        queue.set_event_idx(event_idx);
        queue.set_ready(true);
        if !queue.is_valid(map.memory()) {
            return Err(RingError::NotMemory);
        }
        queue.set_next_avail(next_avail);
        let used_index = queue.used_idx(map.memory(), Ordering::Acquire)?;
        queue.set_next_used(used_index.0);
        let in_flight = vec![false; usize::from(size)];
        Ok(Self { queue, addresses, max_descriptors, in_flight })
    }

    /// The next chain the guest made available, if any. Every chain taken must be completed.
    pub fn pop(&mut self, map: &GuestMap) -> Result<Option<Chain>, RingError> {
        let memory = map.memory();
        let next = self.queue.next_avail();
        let ahead = self.queue.avail_idx(memory, Ordering::Acquire)?.0.wrapping_sub(next);
        let size = self.addresses.size;
        if ahead == 0 {
            return Ok(None);
        }
        if ahead > size {
            return Err(RingError::AvailAhead { ahead, size });
        }
        let slot = u64::from(next.checked_rem(size).unwrap_or(0));
        let entry = slot
            .checked_mul(2)
            .and_then(|offset| offset.checked_add(AVAIL_HEADER_BYTES))
            .and_then(|offset| self.addresses.available.0.checked_add(offset))
            .ok_or(RingError::NotMemory)?;
        let head: u16 = memory.read_obj(GuestAddress(entry)).map_err(|_unmapped| RingError::NotMemory)?;
        let head = u16::from_le(head);
        let mark =
            self.in_flight.get_mut(usize::from(head)).ok_or(RingError::HeadOutOfRange { head, size })?;
        if std::mem::replace(mark, true) {
            return Err(RingError::HeadInFlight { head });
        }
        self.queue.set_next_avail(next.wrapping_add(1));
        let table = Table { address: self.addresses.descriptors.0, entries: u32::from(size) };
        Ok(Some(Chain::walk(map, table, head, self.max_descriptors)))
    }

    /// Hands a chain back with the number of bytes written into it.
    pub fn complete(&mut self, map: &GuestMap, head: u16, written_bytes: u32) -> Result<(), RingError> {
        if let Some(mark) = self.in_flight.get_mut(usize::from(head)) {
            *mark = false;
        }
        Ok(self.queue.add_used(map.memory(), head, written_bytes)?)
    }

    /// Whether the guest wants to hear about what was completed since it was last asked.
    pub fn needs_notification(&mut self, map: &GuestMap) -> Result<bool, RingError> {
        Ok(self.queue.needs_notification(map.memory())?)
    }

    /// Asks for kicks; true if chains arrived meanwhile and must be taken without waiting for one.
    pub fn enable_kicks(&mut self, map: &GuestMap) -> Result<bool, RingError> {
        Ok(self.queue.enable_notification(map.memory())?)
    }

    /// Asks for silence while the ring is being worked on.
    pub fn disable_kicks(&mut self, map: &GuestMap) -> Result<(), RingError> {
        Ok(self.queue.disable_notification(map.memory())?)
    }

    /// Index of the next chain to take.
    pub fn next_avail(&self) -> u16 {
        self.queue.next_avail()
    }

    /// Entries of the ring.
    pub fn size(&self) -> u16 {
        self.addresses.size
    }

    /// Chains taken and not completed.
    pub fn in_flight(&self) -> usize {
        self.in_flight.iter().filter(|taken| **taken).count()
    }
}
