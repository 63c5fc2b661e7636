//! The configuration space.

use crate::wire::wire_struct;
use crate::{ABI_MAJOR, ABI_MINOR, CONFIG_BYTES, CONFIG_MAGIC, MAX_SEGMENTS, MAX_TRANSFER_BYTES};

wire_struct! {
    /// The configuration space: read-only, constant while a connection lives.
    pub struct ConfigSpace("virtio_vram_config", CONFIG_BYTES) {
        /// [`CONFIG_MAGIC`].
        0 => magic: u32,
        /// [`ABI_MAJOR`].
        4 => abi_major: u16,
        /// [`ABI_MINOR`].
        6 => abi_minor: u16,
        /// Request queues the device serves; the frontend may offer fewer.
        8 => request_queues: u16,
        /// Zero.
        10 => reserved0: u16,
        /// Most data descriptors in one chain.
        12 => max_segments: u32,
        /// Most bytes one WRITE or READ may move.
        16 => max_transfer_bytes: u64,
        /// Changes whenever the daemon starts anew and has lost the guest's memory.
        24 => boot_epoch: u64,
        /// Zero.
        32 => reserved1: [u8; 32],
    }
}

impl ConfigSpace {
    /// The configuration of a device with this many request queues in this daemon.
    pub fn new(request_queues: u16, boot_epoch: u64) -> Self {
        Self {
            magic: CONFIG_MAGIC,
            abi_major: ABI_MAJOR,
            abi_minor: ABI_MINOR,
            request_queues,
            reserved0: 0,
            max_segments: MAX_SEGMENTS,
            max_transfer_bytes: MAX_TRANSFER_BYTES,
            boot_epoch,
            reserved1: [0; 32],
        }
    }

    /// Answers a read of any offset and size exactly: bytes past the end of the space are zero.
    pub fn read(&self, offset: u32, out: &mut [u8]) {
        let bytes = self.to_bytes();
        let skip = usize::try_from(offset).unwrap_or(usize::MAX);
        let mut source = bytes.iter().skip(skip);
        for byte in out {
            *byte = source.next().copied().unwrap_or(0);
        }
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "a test that overflows fails, as it should")]
mod tests {
    use super::*;

    #[test]
    fn read_at_every_offset_and_size_is_exact_and_zero_past_the_end() {
        let config = ConfigSpace::new(4, 0x1122_3344_5566_7788);
        let whole = config.to_bytes();
        for offset in 0..80usize {
            for size in 0..80usize {
                let mut out = vec![0xaa; size];
                config.read(offset as u32, &mut out);
                for (i, byte) in out.iter().enumerate() {
                    assert_eq!(*byte, whole.get(offset + i).copied().unwrap_or(0));
                }
            }
        }
        let mut far = [0xaa; 4];
        config.read(u32::MAX, &mut far);
        assert_eq!(far, [0; 4]);
    }
}
