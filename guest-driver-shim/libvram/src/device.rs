//! The device: one open `/dev/vramN`.

use std::{
    ffi::OsString,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    Advice, Allocation, Attempt, DeviceAddress, Error, Event, Extent, Info, Operation, Pattern, Placement,
    Stream, StreamId, Version,
    driver::{Driver, Errno, KernelDriver},
    uapi,
};

/// The device that is opened when nobody names one.
pub const DEFAULT_DEVICE: &str = "/dev/vram0";
/// The environment variable that names another.
pub const DEVICE_VARIABLE: &str = "VRAM_DEVICE";

/// GPU entries asked for at first; the second try knows how many there are.
const GPUS_EXPECTED: usize = 16;
/// Extents read with one call.
const EXTENTS_PER_CALL: usize = 128;
/// How often a placement is read again because it changed meanwhile.
const QUERY_TRIES: u32 = 16;

/// An open device. Clones share the context; it is closed, and its memory freed, when the last clone, [`Allocation`]
/// and [`Stream`] is gone and no other process holds the descriptor.
///
/// May be used from several threads at once.
#[derive(Clone)]
pub struct Device {
    driver: Arc<dyn Driver>,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("fd", &self.driver.as_fd()).finish()
    }
}

impl AsFd for Device {
    /// The descriptor of the context, to pass it to another process.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.driver.as_fd()
    }
}

impl Device {
    /// Opens the node at `path`: a new context.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let driver = KernelDriver::open(path).map_err(|source| Error::opening(path.to_path_buf(), source))?;
        Self::with_driver(Arc::new(driver))
    }

    /// Opens the node that `VRAM_DEVICE` names, or else `/dev/vram0`.
    pub fn open_default() -> Result<Self, Error> {
        Self::open(std::env::var_os(DEVICE_VARIABLE).unwrap_or_else(|| OsString::from(DEFAULT_DEVICE)))
    }

    /// Joins the context of a descriptor that was opened elsewhere, such as one received over a Unix socket.
    pub fn from_fd(descriptor: OwnedFd) -> Result<Self, Error> {
        Self::with_driver(Arc::new(KernelDriver::from_fd(descriptor)))
    }

    /// Checks that both ends speak the same version.
    pub(crate) fn with_driver(driver: Arc<dyn Driver>) -> Result<Self, Error> {
        let device = Self { driver };
        let found = device.version()?.ioctl_version;
        if found != uapi::IOCTL_VERSION {
            return Err(Error::WrongVersion { found, wanted: uapi::IOCTL_VERSION });
        }
        Ok(device)
    }

    pub(crate) fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    /// The versions, and what does not change while the device is there.
    pub fn version(&self) -> Result<Version, Error> {
        let mut request = uapi::Version::default();
        self.driver
            .version(&mut request)
            .map_err(|errno| Error::from_errno(errno, Attempt::new(Operation::Version)))?;
        Ok(request.into())
    }

    /// The state of the slice and its GPUs, now.
    pub fn info(&self) -> Result<Info, Error> {
        let mut capacity = GPUS_EXPECTED;
        // Two rounds are enough unless a GPU appears in between.
        for _ in 0..QUERY_TRIES {
            let mut request = uapi::Info::default();
            let mut gpus = vec![uapi::Gpu::default(); capacity];
            self.driver
                .info(&mut request, &mut gpus)
                .map_err(|errno| Error::from_errno(errno, Attempt::new(Operation::Info)))?;
            let count = request.gpu_count as usize;
            if let Some(known) = gpus.get(..count) {
                return Ok(Info::new(&request, known));
            }
            capacity = count;
        }
        Err(Error::Unsettled(Attempt::new(Operation::Info)))
    }

    /// Memory of `len_bytes`, zeroed, freed when the [`Allocation`] is dropped. `alignment_bytes` is a power of two up
    /// to 1 GiB, or 0 for the default of 256.
    pub fn allocate(&self, len_bytes: u64, alignment_bytes: u64) -> Result<Allocation, Error> {
        let address = self.allocate_raw(len_bytes, alignment_bytes)?;
        Ok(Allocation::new(self.clone(), address, len_bytes))
    }

    /// As [`allocate`](Self::allocate), but freed only by [`free`](Self::free) or with the context.
    pub fn allocate_raw(&self, len_bytes: u64, alignment_bytes: u64) -> Result<DeviceAddress, Error> {
        let mut request = uapi::Alloc { length: len_bytes, alignment: alignment_bytes, ..Default::default() };
        self.driver
            .alloc(&mut request)
            .map_err(|errno| Error::from_errno(errno, Attempt::new(Operation::Allocate).len(len_bytes)))?;
        Ok(DeviceAddress(request.address))
    }

    /// Frees the allocation that begins at `address`. Transfers under way on it finish first.
    pub fn free(&self, address: DeviceAddress) -> Result<(), Error> {
        let request = uapi::Free { address: address.0, ..Default::default() };
        self.driver
            .free(&request)
            .map_err(|errno| Error::from_errno(errno, Attempt::new(Operation::Free).at(address)))
    }

    /// Where the allocation around `address` lies, with all its extents: as it was at one moment, or, when memory is
    /// being moved meanwhile, with each extent as it was at some moment.
    pub fn query(&self, address: DeviceAddress) -> Result<Placement, Error> {
        (0..QUERY_TRIES)
            .find_map(|_| self.query_once(address).transpose())
            .unwrap_or(Err(Error::Unsettled(Attempt::new(Operation::Query).at(address))))
    }

    /// One pass over the pages; `None` if the number of extents changed between two of them.
    fn query_once(&self, address: DeviceAddress) -> Result<Option<Placement>, Error> {
        let mut extents: Vec<Extent> = Vec::new();
        let mut head: Option<(u64, u64, u32)> = None;
        loop {
            let mut page = [uapi::Extent::default(); EXTENTS_PER_CALL];
            let first = self.query_page(address, extents.len(), &mut page)?;
            let seen = (first.base, first.length, first.extent_total);
            if *head.get_or_insert(seen) != seen {
                return Ok(None);
            }
            let written = page.iter().take(first.extent_count as usize);
            extents.extend(written.map(Extent::from));
            if extents.len() >= first.extent_total as usize {
                return Ok(Some(Placement {
                    base: DeviceAddress(first.base),
                    len_bytes: first.length,
                    extents,
                }));
            }
            if first.extent_count == 0 {
                return Ok(None);
            }
        }
    }

    /// One QUERY call, for extents from `first_extent` on.
    pub(crate) fn query_page(
        &self,
        address: DeviceAddress,
        first_extent: usize,
        extents: &mut [uapi::Extent],
    ) -> Result<uapi::Query, Error> {
        let mut request = uapi::Query {
            address: address.0,
            first_extent: u32::try_from(first_extent).unwrap_or(u32::MAX),
            ..Default::default()
        };
        self.driver
            .query(&mut request, extents)
            .map_err(|errno| Error::from_errno(errno, Attempt::new(Operation::Query).at(address)))?;
        Ok(request)
    }

    /// Tells the host what is known about the use of a range, which lies in one allocation. Success says that it was
    /// heard; what comes of it happens beside, or not at all. It goes by whole shards: what lies in the same shard has
    /// a part in it.
    pub fn advise(&self, address: DeviceAddress, len_bytes: u64, advice: Advice) -> Result<(), Error> {
        let (advice, argument) = advice.codes();
        let request =
            uapi::Advise { address: address.0, length: len_bytes, advice, argument, ..Default::default() };
        let attempt = Attempt::new(Operation::Advise).at(address).len(len_bytes);
        self.driver.advise(&request).map_err(|errno| Error::from_errno(errno, attempt))
    }

    /// The next thing that happened since the device was opened without being asked for; waits for it at most so long,
    /// or without end. `None` if nothing happened. Clones share one place among the events: each is told once.
    ///
    /// Every program of the VM is told all of them. A call that a signal interrupts can be made again.
    pub fn next_event(&self, timeout: Option<Duration>) -> Result<Option<Event>, Error> {
        let failed = |errno| Error::from_errno(errno, Attempt::new(Operation::NextEvent));
        let begin = Instant::now();
        loop {
            let mut event = uapi::Event::default();
            match self.driver.event(&mut event) {
                Ok(()) => return Ok(Some(Event::from(&event))),
                Err(Errno(libc::EAGAIN)) => {}
                Err(errno) => return Err(failed(errno)),
            }
            let left = timeout.map(|timeout| timeout.saturating_sub(begin.elapsed()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            self.driver.wait_event(left).map_err(failed)?;
        }
    }

    /// A stream of this context. Makes no call: streams need not be created.
    pub fn stream(&self, id: StreamId) -> Stream {
        Stream::new(self.clone(), id)
    }

    /// Moves `source` to device memory, on stream 0. See [`Stream::write`].
    pub fn write(&self, destination: DeviceAddress, source: &[u8]) -> Result<(), Error> {
        self.stream(StreamId(0)).write(destination, source)
    }

    /// Moves device memory to `destination`, on stream 0. See [`Stream::read`].
    pub fn read(&self, source: DeviceAddress, destination: &mut [u8]) -> Result<(), Error> {
        self.stream(StreamId(0)).read(source, destination)
    }

    /// Moves bytes within device memory, on stream 0. See [`Stream::copy`].
    pub fn copy(
        &self,
        destination: DeviceAddress,
        source: DeviceAddress,
        len_bytes: u64,
    ) -> Result<(), Error> {
        self.stream(StreamId(0)).copy(destination, source, len_bytes)
    }

    /// Fills device memory, on stream 0. See [`Stream::fill`].
    pub fn fill(&self, address: DeviceAddress, len_bytes: u64, pattern: Pattern) -> Result<(), Error> {
        self.stream(StreamId(0)).fill(address, len_bytes, pattern)
    }

    /// Waits for every transfer of this context, on whatever stream, that was asked for before.
    pub fn fence_all(&self) -> Result<(), Error> {
        let request = uapi::Fence { flags: uapi::FENCE_ALL, ..Default::default() };
        self.driver.fence(&request).map_err(|errno| Error::from_errno(errno, Attempt::new(Operation::Fence)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Tier, model::Model};

    #[test]
    fn open_of_a_missing_node_says_which_and_what_to_do() {
        let error = Device::open("/nonexistent/vram0").unwrap_err();

        assert_eq!(error.errno(), libc::ENOENT);
        assert!(error.to_string().starts_with("/nonexistent/vram0 is not there; load the module"), "{error}");
    }

    #[test]
    fn open_of_another_file_is_not_supported() {
        let error = Device::open("/dev/null").unwrap_err();

        assert_eq!(error.errno(), libc::ENOTTY);
    }

    #[test]
    fn open_with_another_abi_version_is_refused() {
        let model = Model { ioctl_version: 2, ..Model::default() };

        let error = Device::with_driver(Arc::new(model)).unwrap_err();

        assert!(matches!(error, Error::WrongVersion { found: 2, wanted: 1 }));
    }

    #[test]
    fn info_with_more_gpus_than_expected_returns_them_all() {
        let model = Model { gpus: 40, ..Model::default() };
        let device = Device::with_driver(Arc::new(model)).unwrap();

        let info = device.info().unwrap();

        assert_eq!(info.gpus.len(), 40);
        assert_eq!(info.gpus[39].index, 39);
        assert_eq!(info.gpus[1].name, "Model GPU 1");
        assert!(info.gpus[0].home && !info.gpus[1].home && info.simulated);
        assert_eq!(info.slice_name, "model");
    }

    #[test]
    fn advise_of_each_kind_reaches_the_device_and_refusals_are_told_apart() {
        let device = Device::with_driver(Arc::new(Model::default())).unwrap();
        let allocation = device.allocate(4096, 0).unwrap();
        let at = allocation.address();

        for advice in [Advice::Prefetch, Advice::Cold, Advice::Pin, Advice::Unpin, Advice::PreferGpu(1)] {
            device.advise(at, 4096, advice).unwrap();
        }

        let refused = |length, advice| device.advise(at, length, advice).unwrap_err();
        assert!(matches!(refused(4097, Advice::Cold), Error::BadAddress(_)));
        assert!(matches!(refused(4096, Advice::PreferGpu(2)), Error::Invalid(_)));
        let error = refused(0, Advice::Cold);
        assert!(error.to_string().starts_with(&format!("Advise at {at} failed: ")), "{error}");
    }

    #[test]
    fn next_event_tells_each_once_and_waits_no_longer_than_it_may() {
        let raw = |kind, value, extra| uapi::Event { kind, value, extra, ..Default::default() };
        let model = Model::default();
        model.events.lock().unwrap().extend([
            raw(1, 3, 0),
            raw(2, 0x1000, 4096),
            raw(3, 1 << 30, 1 << 20),
            raw(4, 9, 0),
            raw(77, 1, 2),
        ]);
        let device = Device::with_driver(Arc::new(model)).unwrap();

        let told: Vec<Event> =
            std::iter::from_fn(|| device.next_event(Some(Duration::ZERO)).unwrap()).collect();

        assert_eq!(
            told,
            [
                Event::GpuLost { gpu: 3 },
                Event::DataLost { address: DeviceAddress(0x1000), len_bytes: 4096 },
                Event::LimitChanged { limit_bytes: 1 << 30, guarantee_bytes: 1 << 20 },
                Event::Missed { count: 9 },
                Event::Other { kind: 77, value: 1, extra: 2 },
            ]
        );
        let begin = Instant::now();
        assert_eq!(device.next_event(Some(Duration::from_millis(20))).unwrap(), None);
        assert!(begin.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn query_while_the_placement_changes_ends_with_unsettled() {
        let model = Model { extent_bytes: 256, restless: true, ..Model::default() };
        let device = Device::with_driver(Arc::new(model)).unwrap();
        let allocation = device.allocate(256 * 300, 0).unwrap();

        let error = device.query(allocation.address()).unwrap_err();

        assert_eq!(error.errno(), libc::EAGAIN);
    }

    proptest! {
        #[test]
        fn query_of_any_number_of_extents_returns_each_once_in_order(
            extents in 1u64..600,
            page in 1usize..200,
            short in 0u64..256,
        ) {
            let model = Model { extent_bytes: 256, page_extents: page, ..Model::default() };
            let device = Device::with_driver(Arc::new(model)).unwrap();
            let len_bytes = extents * 256 - short;
            let allocation = device.allocate(len_bytes, 0).unwrap();

            let placement = device.query(allocation.address().checked_add(len_bytes - 1).unwrap()).unwrap();

            prop_assert_eq!(placement.base, allocation.address());
            prop_assert_eq!(placement.len_bytes, len_bytes);
            prop_assert_eq!(placement.extents.len() as u64, extents);
            let mut next = placement.base;
            for extent in &placement.extents {
                prop_assert_eq!(extent.address, next);
                prop_assert_eq!(extent.tier, Tier::Gpu);
                next = next.checked_add(extent.len_bytes).unwrap();
            }
            prop_assert_eq!(next.0 - placement.base.0, len_bytes);
        }
    }
}
