//! What tests of stores share.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::path::Path;

use vram_guest_memory::{HostBuffer, HostSpan};
use vram_tier::testing::Faults;
use vram_tier::{
    ChunkedStore, CodecConfig, CompressedConfig, DiskConfig, HostConfig, HostStore, RemoteConfig, Store,
    TierConfig,
};

pub(crate) const CHUNK: usize = 4096;

/// A small generator of random numbers (xorshift64*): the same run each time.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((self.next() >> 33) % bound as u64) as usize
    }

    pub(crate) fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }

    pub(crate) fn fill(&mut self, out: &mut [u8]) {
        for piece in out.chunks_mut(8) {
            piece.copy_from_slice(&self.next().to_le_bytes()[..piece.len()]);
        }
    }
}

/// Bytes like those regions hold, chunk by chunk of one kind or of mixed ones.
pub(crate) fn content(random: &mut Random, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mixed = random.chance(2);
    let mut kind = random.below(6);
    for piece in bytes.chunks_mut(CHUNK) {
        if mixed {
            kind = random.below(6);
        }
        match kind {
            0 => {}
            1 => {
                let period = 1 << random.below(5);
                let mut pattern = vec![0; period];
                random.fill(&mut pattern);
                piece.iter_mut().zip(pattern.into_iter().cycle()).for_each(|(to, from)| *to = from);
            }
            2 => random.fill(piece),
            3 => {
                random.fill(piece);
                piece.iter_mut().skip(1).step_by(2).for_each(|byte| *byte = 0x3c | *byte & 3);
            }
            4 => {
                random.fill(piece);
                piece.iter_mut().skip(3).step_by(4).for_each(|byte| *byte = 0x3c | *byte & 3);
            }
            _ => {
                let text = b"a region's bytes live somewhere when they are not on a GPU; ";
                let skip = random.below(text.len());
                piece.iter_mut().zip(text.iter().cycle().skip(skip)).for_each(|(to, from)| *to = *from);
                let at = random.below(piece.len());
                piece[at] ^= 1;
            }
        }
    }
    bytes
}

/// Memory with these bytes.
pub(crate) fn memory(bytes: &[u8]) -> HostSpan {
    let span = HostBuffer::new(bytes.len()).unwrap().span().part(0, bytes.len()).unwrap();
    span.write_from(bytes);
    span
}

/// The bytes of memory.
pub(crate) fn bytes(span: &HostSpan) -> Vec<u8> {
    let mut bytes = vec![0; span.len_bytes()];
    span.read_into(&mut bytes);
    bytes
}

pub(crate) fn host(slots: u64, faults: Faults) -> HostStore {
    let config =
        HostConfig { bytes: slots << 21, slot_bytes: 2 << 20, preallocate: false, huge_pages: false };
    HostStore::open_with_faults(&config, faults).unwrap()
}

/// Small chunks, and compression whatever the speeds.
pub(crate) fn always() -> CodecConfig {
    CodecConfig { always: true, ..CodecConfig::default() }
}

pub(crate) fn compressed(bytes: Option<u64>, faults: Faults) -> ChunkedStore {
    let config =
        CompressedConfig { chunk_bytes: CHUNK as u32, codec: always(), ..CompressedConfig::new(bytes) };
    ChunkedStore::open_with_faults(&TierConfig::Compressed(config), faults).unwrap()
}

pub(crate) fn disk_config(dir: &Path, bytes: u64, encrypt: bool) -> DiskConfig {
    DiskConfig { chunk_bytes: CHUNK as u32, codec: always(), encrypt, ..DiskConfig::new(dir, bytes) }
}

pub(crate) fn disk(dir: &Path, bytes: u64, encrypt: bool, faults: Faults) -> ChunkedStore {
    ChunkedStore::open_with_faults(&TierConfig::Disk(disk_config(dir, bytes, encrypt)), faults).unwrap()
}

pub(crate) fn remote_config(dir: &Path, bytes: Option<u64>, encrypt: bool) -> RemoteConfig {
    let url = format!("file://{}", dir.display());
    RemoteConfig { chunk_bytes: CHUNK as u32, codec: always(), encrypt, bytes, ..RemoteConfig::new(url) }
}

pub(crate) fn remote(dir: &Path, bytes: Option<u64>, encrypt: bool, faults: Faults) -> ChunkedStore {
    ChunkedStore::open_with_faults(&TierConfig::Remote(remote_config(dir, bytes, encrypt)), faults).unwrap()
}

/// One of each kind, disk and server with and without encryption.
pub(crate) fn all(dir: &Path) -> Vec<(Box<dyn Store>, Faults)> {
    let faults: Vec<Faults> = (0..6).map(|_| Faults::new()).collect();
    let stores: Vec<Box<dyn Store>> = vec![
        Box::new(host(4, faults[0].clone())),
        Box::new(compressed(Some(200_000), faults[1].clone())),
        Box::new(disk(dir, 300_000, true, faults[2].clone())),
        Box::new(disk(dir, 300_000, false, faults[3].clone())),
        Box::new(remote(dir, Some(200_000), true, faults[4].clone())),
        Box::new(remote(dir, None, false, faults[5].clone())),
    ];
    stores.into_iter().zip(faults).collect()
}
