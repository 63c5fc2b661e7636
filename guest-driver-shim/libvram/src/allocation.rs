//! Device memory with an owner.

use crate::{Device, DeviceAddress, Error, Pattern, Placement};

/// Device memory that is freed when this is dropped. Transfers here run on stream 0; for others take an address from
/// [`range`](Self::range) and use a [`Stream`](crate::Stream).
///
/// Dropping ignores an error of the free: the kernel frees the memory with the context at the latest. Use
/// [`free`](Self::free) to see it.
#[derive(Debug)]
pub struct Allocation {
    device: Device,
    address: DeviceAddress,
    len_bytes: u64,
    owned: bool,
}

impl Allocation {
    pub(crate) fn new(device: Device, address: DeviceAddress, len_bytes: u64) -> Self {
        Self { device, address, len_bytes, owned: true }
    }

    /// Its first address.
    pub fn address(&self) -> DeviceAddress {
        self.address
    }

    /// Its bytes, as asked for.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The address of `len_bytes` at `offset_bytes`, if they are inside.
    pub fn range(&self, offset_bytes: u64, len_bytes: u64) -> Result<DeviceAddress, Error> {
        offset_bytes
            .checked_add(len_bytes)
            .filter(|end| *end <= self.len_bytes)
            .and_then(|_| self.address.checked_add(offset_bytes))
            .ok_or(Error::OutOfRange { offset_bytes, len_bytes, allocation_bytes: self.len_bytes })
    }

    /// Moves `source` to `offset_bytes`.
    pub fn write(&self, offset_bytes: u64, source: &[u8]) -> Result<(), Error> {
        self.device.write(self.range(offset_bytes, source.len() as u64)?, source)
    }

    /// Moves what is at `offset_bytes` to `destination`.
    pub fn read(&self, offset_bytes: u64, destination: &mut [u8]) -> Result<(), Error> {
        self.device.read(self.range(offset_bytes, destination.len() as u64)?, destination)
    }

    /// Fills `len_bytes` at `offset_bytes`; both are multiples of the pattern's width.
    pub fn fill(&self, offset_bytes: u64, len_bytes: u64, pattern: Pattern) -> Result<(), Error> {
        self.device.fill(self.range(offset_bytes, len_bytes)?, len_bytes, pattern)
    }

    /// Copies all of `source`, which is of the same context and no longer than this, to the beginning of this.
    pub fn copy_from(&self, source: &Self) -> Result<(), Error> {
        self.device.copy(self.range(0, source.len_bytes)?, source.address, source.len_bytes)
    }

    /// Where it lies, now.
    pub fn placement(&self) -> Result<Placement, Error> {
        self.device.query(self.address)
    }

    /// Frees it and reports an error. After one, the memory is freed with the context.
    pub fn free(self) -> Result<(), Error> {
        self.device.clone().free(self.leak())
    }

    /// Gives up ownership: the memory lives until [`Device::free`] or the end of the context.
    pub fn leak(mut self) -> DeviceAddress {
        self.owned = false;
        self.address
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if self.owned {
            // Nothing can be done about an error here; the context frees the memory when it ends.
            let _ = self.device.free(self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::model::Model;

    fn device() -> Device {
        Device::with_driver(Arc::new(Model::default())).unwrap()
    }

    #[test]
    fn allocation_dropped_is_freed() {
        let device = device();
        let address = device.allocate(4096, 0).unwrap().address();

        let error = device.read(address, &mut [0]).unwrap_err();

        assert!(matches!(error, Error::BadAddress(_)), "{error}");
        assert_eq!(device.info().unwrap().allocations, 0);
    }

    #[test]
    fn allocation_leaked_lives_until_freed_by_address() {
        let device = device();
        let address = device.allocate(4096, 0).unwrap().leak();

        assert_eq!(device.info().unwrap().allocations, 1);
        device.free(address).unwrap();

        assert_eq!(device.info().unwrap().allocations, 0);
        assert!(matches!(device.free(address), Err(Error::BadAddress(_))));
    }

    #[test]
    fn allocation_leaked_lets_go_of_the_device() {
        let model = Arc::new(Model::default());
        let device = Device::with_driver(model.clone()).unwrap();
        let allocation = device.allocate(4096, 0).unwrap();
        drop(device);

        allocation.leak();

        assert_eq!(Arc::strong_count(&model), 1);
    }

    #[test]
    fn allocate_beyond_the_limit_is_over_limit_and_beyond_the_pool_out_of_memory() {
        let device =
            Device::with_driver(Arc::new(Model { limit_bytes: 8192, pool_bytes: 4096, ..Model::default() }))
                .unwrap();

        assert!(matches!(device.allocate(8193, 0), Err(Error::OverLimit(_))));
        assert!(matches!(device.allocate(4097, 0), Err(Error::OutOfMemory(_))));
        assert!(matches!(device.allocate(0, 0), Err(Error::Invalid(_))));
        assert!(matches!(device.allocate(1, 3), Err(Error::Invalid(_))));
    }

    #[test]
    fn copy_from_a_longer_allocation_is_out_of_range() {
        let device = device();
        let (short, long) = (device.allocate(100, 0).unwrap(), device.allocate(101, 0).unwrap());
        long.write(0, b"hello").unwrap();

        long.copy_from(&short).unwrap();
        let error = short.copy_from(&long).unwrap_err();

        assert!(matches!(error, Error::OutOfRange { len_bytes: 101, allocation_bytes: 100, .. }), "{error}");
    }

    proptest! {
        #[test]
        fn range_is_inside_or_an_error(offset in any::<u64>(), len in any::<u64>(), small in 0u64..300) {
            let device = device();
            let allocation = device.allocate(200, 0).unwrap();

            for (offset, len) in [(offset, len), (small, len), (offset, small), (small, small / 2)] {
                let inside = offset.checked_add(len).is_some_and(|end| end <= 200);
                prop_assert_eq!(allocation.range(offset, len).is_ok(), inside);
            }
        }
    }
}
