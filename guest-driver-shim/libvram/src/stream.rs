//! A lane of transfers.

use crate::{Attempt, Device, DeviceAddress, Error, Operation, StreamId, driver::Errno, uapi};

/// What memory is filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// One byte, again and again.
    U8(u8),
    /// Two bytes, in the CPU's order. Address and length are multiples of 2.
    U16(u16),
    /// Four bytes, in the CPU's order. Address and length are multiples of 4.
    U32(u32),
}

impl Pattern {
    /// Its bytes: 1, 2 or 4.
    pub fn width_bytes(self) -> u32 {
        match self {
            Self::U8(_) => 1,
            Self::U16(_) => 2,
            Self::U32(_) => 4,
        }
    }

    fn value(self) -> u32 {
        match self {
            Self::U8(value) => value.into(),
            Self::U16(value) => value.into(),
            Self::U32(value) => value,
        }
    }
}

/// A stream of a context. What is asked for on one stream happens in that order; different streams, used from
/// different threads, run at the same time.
///
/// Every method blocks until the bytes are where they should be. No bytes at all are no call and no error. On an error
/// [`Attempt::moved_bytes`] says how far it got.
#[derive(Clone, Debug)]
pub struct Stream {
    device: Device,
    id: StreamId,
}

impl Stream {
    pub(crate) fn new(device: Device, id: StreamId) -> Self {
        Self { device, id }
    }

    /// Its number.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Moves `source` to device memory. The range lies in one allocation of the context.
    pub fn write(&self, destination: DeviceAddress, source: &[u8]) -> Result<(), Error> {
        let attempt = Attempt::new(Operation::Write).at(destination).len(source.len() as u64);
        in_steps(attempt, |moved_bytes| {
            let mut request = self.transfer_at(destination, moved_bytes)?;
            let rest = usize::try_from(moved_bytes).ok().and_then(|done| source.get(done..)).unwrap_or(&[]);
            let result = self.device.driver().write(&mut request, rest);
            Ok(Step { result, moved_bytes: request.moved })
        })
    }

    /// Moves device memory to `destination`. The range lies in one allocation of the context. After an error the bytes
    /// of `destination` past [`Attempt::moved_bytes`] may have changed.
    pub fn read(&self, source: DeviceAddress, destination: &mut [u8]) -> Result<(), Error> {
        let attempt = Attempt::new(Operation::Read).at(source).len(destination.len() as u64);
        in_steps(attempt, |moved_bytes| {
            let mut request = self.transfer_at(source, moved_bytes)?;
            let rest = usize::try_from(moved_bytes)
                .ok()
                .and_then(|done| destination.get_mut(done..))
                .unwrap_or(&mut []);
            let result = self.device.driver().read(&mut request, rest);
            Ok(Step { result, moved_bytes: request.moved })
        })
    }

    /// Moves bytes within device memory. Both ranges lie in allocations of the context, each in one, and do not overlap.
    pub fn copy(
        &self,
        destination: DeviceAddress,
        source: DeviceAddress,
        len_bytes: u64,
    ) -> Result<(), Error> {
        let attempt = Attempt::new(Operation::Copy).at(destination).len(len_bytes);
        in_steps(attempt, |moved_bytes| {
            let mut request = uapi::Copy {
                destination: advance(destination, moved_bytes)?,
                source: advance(source, moved_bytes)?,
                length: len_bytes.saturating_sub(moved_bytes),
                stream: self.id.0,
                ..Default::default()
            };
            let result = self.device.driver().copy(&mut request);
            Ok(Step { result, moved_bytes: request.moved })
        })
    }

    /// Fills device memory. The range lies in one allocation; address and length are multiples of the pattern's width.
    pub fn fill(&self, address: DeviceAddress, len_bytes: u64, pattern: Pattern) -> Result<(), Error> {
        let attempt = Attempt::new(Operation::Fill).at(address).len(len_bytes);
        in_steps(attempt, |moved_bytes| {
            let mut request = uapi::Fill {
                address: advance(address, moved_bytes)?,
                length: len_bytes.saturating_sub(moved_bytes),
                pattern: pattern.value(),
                width: pattern.width_bytes(),
                stream: self.id.0,
                ..Default::default()
            };
            let result = self.device.driver().fill(&mut request);
            Ok(Step { result, moved_bytes: request.moved })
        })
    }

    /// Waits for every transfer on this stream that was asked for before, by whatever thread or process.
    pub fn fence(&self) -> Result<(), Error> {
        let request = uapi::Fence { stream: self.id.0, ..Default::default() };
        self.device
            .driver()
            .fence(&request)
            .map_err(|errno| Error::from_errno(errno, Attempt::new(Operation::Fence)))
    }

    fn transfer_at(&self, address: DeviceAddress, moved_bytes: u64) -> Result<uapi::Transfer, Errno> {
        Ok(uapi::Transfer {
            device_address: advance(address, moved_bytes)?,
            stream: self.id.0,
            ..Default::default()
        })
    }
}

/// What one call did.
struct Step {
    result: Result<(), Errno>,
    moved_bytes: u64,
}

/// Makes calls until all bytes of `attempt` are moved. The kernel may report success for less than was asked, as
/// write(2) does; that is no error as long as it moves something.
fn in_steps(attempt: Attempt, mut step: impl FnMut(u64) -> Result<Step, Errno>) -> Result<(), Error> {
    let mut done_bytes = 0u64;
    while done_bytes < attempt.len_bytes {
        let left_bytes = attempt.len_bytes - done_bytes;
        let step = step(done_bytes).unwrap_or_else(|errno| Step { result: Err(errno), moved_bytes: 0 });
        // A module that claims more than it was asked for must not make us skip bytes.
        let moved_bytes = step.moved_bytes.min(left_bytes);
        done_bytes += moved_bytes;
        step.result.map_err(|errno| Error::from_errno(errno, attempt.moved(done_bytes)))?;
        if moved_bytes == 0 {
            return Err(Error::NoProgress(attempt.moved(done_bytes)));
        }
    }
    Ok(())
}

/// An address further on; past the end of the address space is no live allocation.
fn advance(address: DeviceAddress, offset_bytes: u64) -> Result<u64, Errno> {
    address.0.checked_add(offset_bytes).ok_or(Errno(libc::ENXIO))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::Ordering};

    use proptest::prelude::*;

    use super::*;
    use crate::model::Model;

    fn device(model: Model) -> (Device, Arc<Model>) {
        let model = Arc::new(model);
        (Device::with_driver(model.clone()).unwrap(), model)
    }

    #[test]
    fn write_of_nothing_makes_no_call() {
        let (device, model) = device(Model::default());

        device.write(DeviceAddress(1), &[]).unwrap();

        assert_eq!(model.transfers.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn write_that_fails_half_way_says_how_far_it_got() {
        let (device, _) = device(Model { short_moves: 1000, fail_at: Some(2500), ..Model::default() });
        let allocation = device.allocate(4096, 0).unwrap();

        let error = device.write(allocation.address(), &[7; 4096]).unwrap_err();

        assert!(matches!(error, Error::TransferFailed(_)), "{error}");
        assert_eq!(error.attempt().unwrap().moved_bytes, 2500);
    }

    #[test]
    fn transfer_with_success_but_no_progress_ends() {
        let (device, _) = device(Model { stuck: true, ..Model::default() });
        let allocation = device.allocate(4096, 0).unwrap();

        let error = device.fill(allocation.address(), 4096, Pattern::U8(1)).unwrap_err();

        assert!(matches!(error, Error::NoProgress(_)), "{error}");
    }

    #[test]
    fn stream_out_of_range_is_invalid() {
        let (device, _) = device(Model::default());
        let allocation = device.allocate(4096, 0).unwrap();

        let last = device.stream(StreamId(1023)).write(allocation.address(), &[1]);
        let beyond = device.stream(StreamId(1024)).write(allocation.address(), &[1]);

        assert!(last.is_ok());
        assert!(matches!(beyond, Err(Error::Invalid(_))));
    }

    #[test]
    fn copy_that_overlaps_itself_is_invalid() {
        let (device, _) = device(Model::default());
        let allocation = device.allocate(4096, 0).unwrap();
        let base = allocation.address();

        let error = device.copy(base, base.checked_add(100).unwrap(), 101).unwrap_err();

        assert!(matches!(error, Error::Invalid(_)), "{error}");
    }

    #[derive(Clone, Debug)]
    enum Act {
        Write { offset: usize, bytes: Vec<u8> },
        Read { offset: usize, len: usize },
        Copy { destination: usize, source: usize, len: usize },
        Fill { offset: usize, len: usize, pattern: u32, width: usize },
    }

    const LEN: usize = 5000;

    fn act() -> impl Strategy<Value = Act> {
        let range = || (0..LEN).prop_flat_map(|offset| (Just(offset), 0..=LEN - offset));
        prop_oneof![
            (0..LEN)
                .prop_flat_map(|offset| (Just(offset), prop::collection::vec(any::<u8>(), 0..=LEN - offset)))
                .prop_map(|(offset, bytes)| Act::Write { offset, bytes }),
            range().prop_map(|(offset, len)| Act::Read { offset, len }),
            (0..LEN / 2, LEN / 2..LEN, 0..LEN / 2).prop_map(|(destination, source, len)| Act::Copy {
                destination,
                source,
                len: len.min(LEN - source).min(LEN / 2 - destination)
            }),
            (range(), any::<u32>(), prop::sample::select(vec![1usize, 2, 4])).prop_map(
                |((offset, len), pattern, width)| Act::Fill {
                    offset: offset / width * width,
                    len: len / width * width,
                    pattern,
                    width
                }
            ),
        ]
    }

    proptest! {
        #[test]
        fn transfers_in_pieces_of_any_size_equal_plain_memory(
            acts in prop::collection::vec(act(), 1..12),
            pieces in 4u64..6000,
        ) {
            // Pieces of whole patterns, as a kernel that splits a fill must make them.
            let (device, _) = device(Model { short_moves: pieces / 4 * 4, ..Model::default() });
            let allocation = device.allocate(LEN as u64, 0).unwrap();
            let at = |offset: usize| allocation.address().checked_add(offset as u64).unwrap();
            let mut plain = vec![0u8; LEN];

            for act in acts {
                match act {
                    Act::Write { offset, bytes } => {
                        device.write(at(offset), &bytes).unwrap();
                        plain[offset..offset + bytes.len()].copy_from_slice(&bytes);
                    }
                    Act::Read { offset, len } => {
                        let mut bytes = vec![0xaa; len];
                        device.read(at(offset), &mut bytes).unwrap();
                        prop_assert_eq!(&bytes[..], &plain[offset..offset + len]);
                    }
                    Act::Copy { destination, source, len } => {
                        device.copy(at(destination), at(source), len as u64).unwrap();
                        plain.copy_within(source..source + len, destination);
                    }
                    Act::Fill { offset, len, pattern, width } => {
                        let value = match width {
                            1 => Pattern::U8(pattern as u8),
                            2 => Pattern::U16(pattern as u16),
                            _ => Pattern::U32(pattern),
                        };
                        device.fill(at(offset), len as u64, value).unwrap();
                        for piece in plain[offset..offset + len].chunks_exact_mut(width) {
                            piece.copy_from_slice(&pattern.to_le_bytes()[..width]);
                        }
                    }
                }
            }

            let mut all = vec![0; LEN];
            device.read(at(0), &mut all).unwrap();
            prop_assert_eq!(all, plain);
        }
    }
}
