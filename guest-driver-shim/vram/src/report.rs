//! Results, as text for people and as JSON for programs.

use std::{
    fmt::{self, Display},
    io::{self, Write},
    time::Duration,
};

use serde::{Serialize, Serializer};
use vram::{Info, Placement, Tier};

use crate::{
    arguments::Format,
    holder::{Digest, Entry, Handle, Name},
    size::{ByteSize, mib_per_second},
};

/// Writes a result where the command writes results.
pub(crate) fn print<T: Serialize + Display>(
    out: &mut dyn Write,
    format: Format,
    result: &T,
) -> io::Result<()> {
    match format {
        Format::Text => writeln!(out, "{result}")?,
        Format::Json => {
            serde_json::to_writer_pretty(&mut *out, result)?;
            writeln!(out)?;
        }
    }
    out.flush()
}

/// A part of an allocation on one GPU, in one tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Part {
    /// `None` for a tier that has no GPU.
    pub(crate) gpu: Option<u32>,
    pub(crate) gpu_name: Option<String>,
    pub(crate) home: bool,
    #[serde(serialize_with = "tier")]
    pub(crate) tier: Tier,
    pub(crate) bytes: u64,
    pub(crate) extents: u64,
}

fn tier<S: Serializer>(tier: &Tier, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&TierName(*tier))
}

struct TierName(Tier);

impl Display for TierName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Tier::Gpu => f.write_str("gpu"),
            Tier::Host => f.write_str("host"),
            Tier::Compressed => f.write_str("compressed"),
            Tier::Disk => f.write_str("disk"),
            Tier::Remote => f.write_str("remote"),
            Tier::Damaged => f.write_str("damaged"),
            Tier::Lost => f.write_str("lost"),
            Tier::Other(number) => write!(f, "tier-{number}"),
            other => write!(f, "{other:?}"),
        }
    }
}

/// Which GPU holds how much, in the order of the addresses.
pub(crate) fn parts(placement: &Placement, info: &Info) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for extent in &placement.extents {
        match parts.iter_mut().find(|part| part.gpu == extent.gpu && part.tier == extent.tier) {
            Some(part) => {
                part.bytes = part.bytes.saturating_add(extent.len_bytes);
                part.extents = part.extents.saturating_add(1);
            }
            None => {
                let gpu = info.gpus.iter().find(|gpu| Some(gpu.index) == extent.gpu);
                let name = || gpu.map_or_else(|| "unknown".to_owned(), |gpu| gpu.name.clone());
                parts.push(Part {
                    gpu: extent.gpu,
                    gpu_name: extent.gpu.map(|_| name()),
                    home: gpu.is_some_and(|gpu| gpu.home),
                    tier: extent.tier,
                    bytes: extent.len_bytes,
                    extents: 1,
                });
            }
        }
    }
    parts
}

impl Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.gpu, &self.gpu_name) {
            (Some(gpu), Some(name)) => write!(f, "GPU {gpu} {name}")?,
            _ => f.write_str("no GPU")?,
        }
        if self.home {
            f.write_str(" (home)")?;
        }
        write!(f, ": {}", ByteSize(self.bytes))?;
        if self.extents > 1 {
            write!(f, " in {} pieces", self.extents)?;
        }
        match self.tier {
            Tier::Gpu => Ok(()),
            Tier::Host => f.write_str(", in the host's memory"),
            Tier::Compressed => f.write_str(", in the host's memory, compressed"),
            Tier::Disk => f.write_str(", on a disk of the host"),
            Tier::Remote => f.write_str(", on another machine"),
            Tier::Damaged => f.write_str(", DAMAGED and lost"),
            Tier::Lost => f.write_str(", LOST with the GPU"),
            other => write!(f, ", {}", TierName(other)),
        }
    }
}

/// How fast something went.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Rate {
    pub(crate) seconds: f64,
    pub(crate) mib_per_second: f64,
    /// Of the seconds, those in calls of the device.
    pub(crate) device_seconds: f64,
    pub(crate) device_mib_per_second: f64,
}

impl Rate {
    pub(crate) fn new(bytes: u64, elapsed: Duration, on_device: Duration) -> Self {
        let (seconds, device_seconds) = (elapsed.as_secs_f64(), on_device.as_secs_f64());
        Self {
            seconds,
            mib_per_second: mib_per_second(bytes, seconds),
            device_seconds,
            device_mib_per_second: mib_per_second(bytes, device_seconds),
        }
    }
}

impl Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.1} MiB/s in {:.3} s; the device alone {:.1} MiB/s in {:.3} s",
            self.mib_per_second, self.seconds, self.device_mib_per_second, self.device_seconds
        )
    }
}

/// What was done with an allocation.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Done {
    pub(crate) name: Name,
    pub(crate) address: Handle,
    pub(crate) bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sha256: Option<Digest>,
    #[serde(flatten)]
    pub(crate) rate: Rate,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) placement: Vec<Part>,
    /// For a copy: from what.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source: Option<CopySource>,
}

/// What a copy was made from.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CopySource {
    pub(crate) name: Name,
    pub(crate) address: Handle,
    pub(crate) placement: Vec<Part>,
}

impl Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "name        {}", self.name)?;
        writeln!(f, "address     {}", self.address)?;
        writeln!(f, "bytes       {} ({})", self.bytes, ByteSize(self.bytes))?;
        if let Some(sha256) = &self.sha256 {
            writeln!(f, "sha256      {sha256}")?;
        }
        write!(f, "throughput  {}", self.rate)?;
        for part in &self.placement {
            write!(f, "\nplacement   {part}")?;
        }
        if let Some(source) = &self.source {
            write!(f, "\nfrom        {} at {}", source.name, source.address)?;
            for part in &source.placement {
                write!(f, "\nfrom        {part}")?;
            }
        }
        Ok(())
    }
}

/// What the host was told something about, and where it was then.
#[derive(Debug, Serialize)]
pub(crate) struct Advised {
    pub(crate) name: Name,
    pub(crate) placement: Vec<Part>,
}

impl Display for Advised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "name        {}", self.name)?;
        for part in &self.placement {
            write!(f, "\nplacement   {part}")?;
        }
        Ok(())
    }
}

/// What is held.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Listing(pub(crate) Vec<Entry>);

impl Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("Nothing is held.");
        }
        let width = self.0.iter().map(|entry| entry.name.to_string().len()).max().unwrap_or(0).max(4);
        write!(f, "{:width$}  {:>18}  {:>12}  SHA256", "NAME", "ADDRESS", "SIZE")?;
        for entry in &self.0 {
            let what = match (&entry.sha256, entry.filling_pid) {
                (_, Some(pid)) => format!("being filled by process {pid}"),
                (Some(sha256), None) => sha256.to_string(),
                (None, None) => "unknown".to_owned(),
            };
            let (name, address) = (entry.name.to_string(), entry.address.to_string());
            write!(f, "\n{name:width$}  {address:>18}  {:>12}  {what}", ByteSize(entry.bytes).to_string())?;
        }
        Ok(())
    }
}

/// What was freed.
#[derive(Debug, Serialize)]
pub(crate) struct Freed {
    pub(crate) allocations: u64,
    pub(crate) bytes: u64,
}

impl Display for Freed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Freed {} in {} allocation(s).", ByteSize(self.bytes), self.allocations)
    }
}

#[cfg(test)]
mod tests {
    use vram::{DeviceAddress, Extent, Gpu};

    use super::*;

    #[test]
    fn parts_of_a_striped_allocation_are_one_for_each_gpu_and_tier() {
        let extent = |gpu, tier| Extent { address: DeviceAddress(0), len_bytes: 1 << 20, gpu, tier };
        let placement = Placement {
            base: DeviceAddress(0),
            len_bytes: 7 << 20,
            extents: vec![
                extent(Some(1), Tier::Gpu),
                extent(Some(0), Tier::Gpu),
                extent(None, Tier::Disk),
                extent(Some(1), Tier::Gpu),
                extent(Some(7), Tier::Lost),
                extent(None, Tier::Damaged),
                extent(None, Tier::Disk),
            ],
        };
        let gpu = |index, name: &str, home| Gpu {
            index,
            name: name.to_owned(),
            home,
            slice_bytes: 0,
            total_bytes: 0,
        };
        let info = Info {
            slice_name: String::new(),
            limit_bytes: 0,
            guarantee_bytes: 0,
            allocated_bytes: 0,
            backed_bytes: 0,
            shard_bytes: 0,
            allocations: 0,
            contexts: 0,
            simulated: false,
            gpus: vec![gpu(0, "Zero", false), gpu(1, "One", true)],
        };

        let lines: Vec<String> = parts(&placement, &info).iter().map(Part::to_string).collect();

        assert_eq!(
            lines,
            [
                "GPU 1 One (home): 2 MiB in 2 pieces",
                "GPU 0 Zero: 1 MiB",
                "no GPU: 2 MiB in 2 pieces, on a disk of the host",
                "GPU 7 unknown: 1 MiB, LOST with the GPU",
                "no GPU: 1 MiB, DAMAGED and lost"
            ]
        );
    }
}
