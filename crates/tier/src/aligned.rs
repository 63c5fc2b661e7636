//! A buffer whose first byte lies at a multiple of a disk block, as direct I/O wants.

/// Bytes of a block: what memory, file offsets and lengths of direct I/O are multiples of.
pub(crate) const BLOCK_BYTES: usize = 4096;

/// Bytes on a block boundary.
pub(crate) struct AlignedBuffer {
    memory: Vec<u8>,
    skip: usize,
    len: usize,
}

impl AlignedBuffer {
    /// Zeroed bytes, at least this many, in whole blocks.
    pub(crate) fn new(len: usize) -> Self {
        let len = len.max(1).checked_next_multiple_of(BLOCK_BYTES).unwrap_or(len);
        let memory = vec![0; len.saturating_add(BLOCK_BYTES)];
        // Never moved or grown from here on, so what is aligned stays so.
        let skip = memory.as_ptr().align_offset(BLOCK_BYTES).min(BLOCK_BYTES);
        Self { memory, skip, len }
    }

    /// All of it.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        self.memory.get_mut(self.skip..).and_then(|rest| rest.get_mut(..self.len)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_aligned_whole_blocks() {
        for len in [0, 1, 4096, 4097, 1 << 20] {
            let mut buffer = AlignedBuffer::new(len);
            let bytes = buffer.bytes();
            assert!(bytes.len() >= len && bytes.len().is_multiple_of(BLOCK_BYTES));
            assert_eq!(bytes.as_ptr() as usize % BLOCK_BYTES, 0);
        }
    }
}
