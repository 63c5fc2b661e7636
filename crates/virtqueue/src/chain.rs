//! One descriptor chain.

use virtio_bindings::virtio_ring::{VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestAddress};
use vram_guest_memory::{GuestMap, SpanList};

/// Bytes of a descriptor.
const DESCRIPTOR_BYTES: u64 = 16;

/// A chain as the guest built it: everything the device may read, then everything it may write.
#[derive(Debug)]
pub struct Chain {
    /// What completes it.
    pub head: u16,
    /// Bytes the device may read, in order.
    pub readable: SpanList,
    /// Bytes the device may write, in order.
    pub writable: SpanList,
    /// What is wrong with it, if anything; the lists then hold what came before the fault.
    pub fault: Option<ChainFault>,
}

/// What can be wrong with a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainFault {
    /// A descriptor names a next one outside the table.
    #[error("A descriptor names descriptor {index} of a table of {table_entries}")]
    IndexOutOfRange {
        /// Named.
        index: u16,
        /// There are.
        table_entries: u32,
    },
    /// More descriptors than allowed; also what a loop is.
    #[error("The chain has more than {max_descriptors} descriptors")]
    TooLong {
        /// Allowed.
        max_descriptors: u32,
    },
    /// A buffer of zero bytes.
    #[error("A descriptor has zero bytes")]
    EmptyBuffer,
    /// A buffer is not guest memory.
    #[error("A descriptor's buffer is not guest memory")]
    NotMemory,
    /// A readable buffer follows a writable one.
    #[error("A readable descriptor follows a writable one")]
    ReadableAfterWritable,
    /// An indirect table inside another, beside other descriptors, or with a size that is no multiple of 16.
    #[error("An indirect table is nested, misshapen or not alone")]
    BadIndirect,
}

pub(crate) struct Table {
    pub(crate) address: u64,
    pub(crate) entries: u32,
}

impl Chain {
    /// Walks the chain that begins at `head` of the ring's descriptor table.
    pub(crate) fn walk(map: &GuestMap, table: Table, head: u16, max_descriptors: u32) -> Self {
        let mut chain = Self { head, readable: SpanList::new(), writable: SpanList::new(), fault: None };
        chain.fault = chain.follow(map, table, head, max_descriptors).err();
        chain
    }

    fn follow(&mut self, map: &GuestMap, table: Table, head: u16, max: u32) -> Result<(), ChainFault> {
        let first = read_descriptor(map, &table, head)?;
        if u32::from(first.flags()) & VRING_DESC_F_INDIRECT == 0 {
            return self.follow_table(map, &table, first, max.min(table.entries));
        }
        // Virtio forbids NEXT beside INDIRECT; the table holds the whole chain.
        let bytes = u64::from(first.len());
        if u32::from(first.flags()) & VRING_DESC_F_NEXT != 0
            || bytes == 0
            || bytes.checked_rem(DESCRIPTOR_BYTES) != Some(0)
        {
            return Err(ChainFault::BadIndirect);
        }
        let entries = u32::try_from(bytes.checked_div(DESCRIPTOR_BYTES).unwrap_or(0)).unwrap_or(0);
        let indirect = Table { address: first.addr().0, entries };
        let first = read_descriptor(map, &indirect, 0)?;
        self.follow_table(map, &indirect, first, max)
    }

    fn follow_table(
        &mut self,
        map: &GuestMap,
        table: &Table,
        first: Descriptor,
        max_descriptors: u32,
    ) -> Result<(), ChainFault> {
        let mut descriptor = first;
        for _ in 0..max_descriptors {
            let flags = u32::from(descriptor.flags());
            if flags & VRING_DESC_F_INDIRECT != 0 {
                return Err(ChainFault::BadIndirect);
            }
            self.push(map, &descriptor)?;
            if flags & VRING_DESC_F_NEXT == 0 {
                return Ok(());
            }
            descriptor = read_descriptor(map, table, descriptor.next())?;
        }
        Err(ChainFault::TooLong { max_descriptors })
    }

    fn push(&mut self, map: &GuestMap, descriptor: &Descriptor) -> Result<(), ChainFault> {
        if descriptor.len() == 0 {
            return Err(ChainFault::EmptyBuffer);
        }
        let writable = u32::from(descriptor.flags()) & VRING_DESC_F_WRITE != 0;
        if !writable && !self.writable.is_empty() {
            return Err(ChainFault::ReadableAfterWritable);
        }
        let list = if writable { &mut self.writable } else { &mut self.readable };
        if map.spans(descriptor.addr().0, u64::from(descriptor.len()), |span| list.push(span)) {
            Ok(())
        } else {
            Err(ChainFault::NotMemory)
        }
    }
}

fn read_descriptor(map: &GuestMap, table: &Table, index: u16) -> Result<Descriptor, ChainFault> {
    if u32::from(index) >= table.entries {
        return Err(ChainFault::IndexOutOfRange { index, table_entries: table.entries });
    }
    let offset = u64::from(index).saturating_mul(DESCRIPTOR_BYTES);
    let address = table.address.checked_add(offset).ok_or(ChainFault::NotMemory)?;
    map.memory().read_obj(GuestAddress(address)).map_err(|_unmapped| ChainFault::NotMemory)
}
