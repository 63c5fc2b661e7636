//! `vram info`.

use std::fmt::{self, Display};

use anyhow::Result;
use serde::Serialize;
use vram::{Info, Version};

use super::Context;
use crate::{report, size::ByteSize};

#[derive(Serialize)]
struct Report {
    device: String,
    simulated: bool,
    slice: String,
    limit_bytes: u64,
    guarantee_bytes: u64,
    allocated_bytes: u64,
    backed_bytes: u64,
    shard_bytes: u64,
    allocations: u32,
    contexts: u32,
    gpus: Vec<Gpu>,
    abi: String,
    ioctl_version: u32,
    boot_epoch: u64,
    band_base: String,
    band_bytes: u64,
    max_transfer_bytes: u64,
    request_queues: u32,
    interrupt_vectors: u32,
}

#[derive(Serialize)]
struct Gpu {
    index: u32,
    name: String,
    home: bool,
    slice_bytes: u64,
    total_bytes: u64,
}

/// Shows the slice and its GPUs.
pub(crate) fn info(context: &mut Context<'_>) -> Result<()> {
    let device = context.open()?;
    let report = Report::new(context.device.display().to_string(), device.info()?, device.version()?);
    report::print(context.out, context.format, &report)?;
    Ok(())
}

impl Report {
    fn new(device: String, info: Info, version: Version) -> Self {
        Self {
            device,
            simulated: info.simulated,
            slice: info.slice_name,
            limit_bytes: info.limit_bytes,
            guarantee_bytes: info.guarantee_bytes,
            allocated_bytes: info.allocated_bytes,
            backed_bytes: info.backed_bytes,
            shard_bytes: info.shard_bytes,
            allocations: info.allocations,
            contexts: info.contexts,
            gpus: info
                .gpus
                .into_iter()
                .map(|gpu| Gpu {
                    index: gpu.index,
                    name: gpu.name,
                    home: gpu.home,
                    slice_bytes: gpu.slice_bytes,
                    total_bytes: gpu.total_bytes,
                })
                .collect(),
            abi: format!("{}.{}", version.abi.0, version.abi.1),
            ioctl_version: version.ioctl_version,
            boot_epoch: version.boot_epoch,
            band_base: version.band_base.to_string(),
            band_bytes: version.band_bytes,
            max_transfer_bytes: version.max_transfer_bytes,
            request_queues: version.request_queues,
            interrupt_vectors: version.interrupt_vectors,
        }
    }
}

/// What is said wherever a number might be taken for that of a GPU.
pub(crate) const SIMULATED: &str =
    "*** SIMULATED GPUs: the bytes are kept, the speed is not that of a GPU ***";

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.simulated {
            writeln!(f, "{SIMULATED}")?;
        }
        writeln!(f, "slice       {} on {}", self.slice, self.device)?;
        writeln!(
            f,
            "used        {} of {} in {} allocation(s) of {} context(s)",
            ByteSize(self.allocated_bytes),
            ByteSize(self.limit_bytes),
            self.allocations,
            self.contexts
        )?;
        writeln!(f, "guarantee   {}", ByteSize(self.guarantee_bytes))?;
        writeln!(
            f,
            "backed      {} in shards of {}",
            ByteSize(self.backed_bytes),
            ByteSize(self.shard_bytes)
        )?;
        for gpu in &self.gpus {
            writeln!(
                f,
                "gpu         {} {}{}: {} of {} are this slice's",
                gpu.index,
                gpu.name,
                if gpu.home { " (home)" } else { "" },
                ByteSize(gpu.slice_bytes),
                ByteSize(gpu.total_bytes)
            )?;
        }
        writeln!(f, "addresses   {} and {} on", self.band_base, ByteSize(self.band_bytes))?;
        write!(
            f,
            "device      ABI {}, ioctl {}, epoch {}, {} request queue(s), {}, {} in one request",
            self.abi,
            self.ioctl_version,
            self.boot_epoch,
            self.request_queues,
            match self.interrupt_vectors {
                0 => "a shared interrupt".to_owned(),
                vectors => format!("{vectors} interrupt vector(s)"),
            },
            ByteSize(self.max_transfer_bytes)
        )
    }
}
