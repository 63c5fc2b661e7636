//! Kernel images without their compression: QEMU starts such a one through its PVH entry, and no emulated processor
//! has to unpack it, which takes longer than the firmware and the loader together.

use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

use crate::lab::{Kernel, Lab};

/// Where an x86 boot image says how many sectors its real-mode part has, and where in what follows it the packed kernel
/// lies (Linux, Documentation/arch/x86/boot.rst).
const SETUP_SECTORS: usize = 0x1f1;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
const SECTOR_BYTES: usize = 512;
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const LZ4_LEGACY_MAGIC: [u8; 4] = [0x02, 0x21, 0x4c, 0x18];
/// What a block of the legacy LZ4 format holds at most.
const LZ4_LEGACY_BLOCK_BYTES: usize = 8 << 20;
const ELF_MAGIC: [u8; 4] = [0x7f, b'E', b'L', b'F'];

impl Lab {
    /// A kernel as Debian ships it, as a host path.
    pub fn packed_kernel(&self, kernel: &Kernel) -> PathBuf {
        self.tree().join("boot").join(format!("vmlinuz-{}", kernel.release))
    }

    /// The unpacked image of a kernel, as a host path; made once and kept in the cache.
    pub fn unpacked_kernel(&self, kernel: &Kernel) -> Result<PathBuf> {
        let finished = self.cache().join(format!("vmlinux-{}-{}", self.recipe(), kernel.release));
        if finished.exists() {
            return Ok(finished);
        }
        let packed = self.packed_kernel(kernel);
        let image = fs::read(&packed).with_context(|| format!("Could not read {}", packed.display()))?;
        let unpacked = unpack(&image).with_context(|| format!("Could not unpack {}", packed.display()))?;
        let mut work = tempfile::Builder::new()
            .prefix("vmlinux.unfinished.")
            .tempfile_in(self.cache())
            .with_context(|| format!("Could not create a file in {}", self.cache().display()))?;
        work.write_all(&unpacked).with_context(|| format!("Could not write {}", work.path().display()))?;
        work.persist(&finished).with_context(|| format!("Could not create {}", finished.display()))?;
        Ok(finished)
    }
}

fn unpack(image: &[u8]) -> Result<Vec<u8>> {
    let (offset, length) = (number(image, PAYLOAD_OFFSET)?, number(image, PAYLOAD_LENGTH)?);
    let setup = match image.get(SETUP_SECTORS) {
        None | Some(0) => 4,
        Some(sectors) => usize::from(*sectors),
    };
    let start = (setup + 1) * SECTOR_BYTES + offset;
    let payload = image.get(start..start + length).context("its header points outside of it")?;
    // The build appends the length of the unpacked kernel.
    let (packed, size) = payload.split_last_chunk::<4>().context("it holds no kernel")?;
    let size = usize::try_from(u32::from_le_bytes(*size))?;
    let mut unpacked = Vec::with_capacity(size);
    if packed.starts_with(&ZSTD_MAGIC) {
        zstd::stream::read::Decoder::new(packed)?.single_frame().read_to_end(&mut unpacked)?;
    } else if let Some(blocks) = packed.strip_prefix(&LZ4_LEGACY_MAGIC) {
        unpack_lz4_blocks(blocks, &mut unpacked)?;
    } else {
        bail!("it is packed with neither zstd nor LZ4: it begins with {:02x?}", packed.get(..4));
    }
    ensure!(unpacked.len() == size, "it unpacks to {} bytes, not to the {size} it names", unpacked.len());
    ensure!(unpacked.starts_with(&ELF_MAGIC), "what is packed in it is no ELF file");
    Ok(unpacked)
}

/// Blocks, each with its packed length before it.
fn unpack_lz4_blocks(mut blocks: &[u8], unpacked: &mut Vec<u8>) -> Result<()> {
    while !blocks.is_empty() {
        let length = number(blocks, 0)?;
        let block = blocks.get(4..4 + length).context("a block of it is cut off")?;
        unpacked.extend(lz4_flex::block::decompress(block, LZ4_LEGACY_BLOCK_BYTES)?);
        blocks = &blocks[4 + length..];
    }
    Ok(())
}

fn number(bytes: &[u8], at: usize) -> Result<usize> {
    let number =
        bytes.get(at..at + 4).and_then(|bytes| bytes.first_chunk::<4>()).context("it is too short")?;
    Ok(usize::try_from(u32::from_le_bytes(*number))?)
}
