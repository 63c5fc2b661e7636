//! What a frontend has said of one ring.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use vm_memory::GuestAddress;
use vram_device::CallCell;
use vram_guest_memory::GuestMap;
use vram_virtqueue::RingAddresses;

/// Where the parts of a ring lie, in the frontend's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrontendAddresses {
    pub(crate) descriptors: u64,
    pub(crate) available: u64,
    pub(crate) used: u64,
}

/// One ring, as far as it is set up.
#[derive(Default)]
pub(crate) struct Vring {
    pub(crate) size: u16,
    pub(crate) addresses: Option<FrontendAddresses>,
    pub(crate) base: u16,
    /// There from SET_VRING_KICK, which starts the ring, to GET_VRING_BASE, which stops it.
    pub(crate) kick: Option<OwnedFd>,
    pub(crate) call: Arc<CallCell>,
    pub(crate) enabled: bool,
    pub(crate) running: bool,
}

impl Vring {
    /// The ring's place in guest memory; `None` if it is not set up or not in memory.
    pub(crate) fn guest_addresses(&self, map: &GuestMap) -> Option<RingAddresses> {
        let addresses = self.addresses?;
        let entries = u64::from(self.size);
        let place = |start, entry_bytes: u64, fixed_bytes: u64| -> Option<GuestAddress> {
            let len_bytes = entries.checked_mul(entry_bytes)?.checked_add(fixed_bytes)?;
            map.from_frontend(start, len_bytes)
        };
        Some(RingAddresses {
            size: self.size,
            descriptors: place(addresses.descriptors, 16, 0)?,
            available: place(addresses.available, 2, 6)?,
            used: place(addresses.used, 8, 6)?,
        })
    }

    /// Whether the frontend wants the ring served.
    pub(crate) fn wanted(&self) -> bool {
        self.enabled && self.kick.is_some() && self.addresses.is_some() && self.size > 0
    }
}
