//! The text that describes simulated GPUs: `4x1GiB`, `2x1GiB+1x512MiB,links=pix,copy-delay=2ms`.
//!
//! `COUNTxSIZE`, several joined by `+`, then options after commas:
//!
//! | option | value | meaning |
//! |---|---|---|
//! | `topology` | a file | a square of links in the words of `nvidia-smi topo -m`: `X NV4 SYS …`, a row per GPU |
//! | `links` | `nvlink4`, `pix`, `pxb`, `phb`, `node`, `sys` | the link of every pair (default `nvlink4`) |
//! | `peers` | `all`, `nvlink`, `none` | which pairs can be given access to each other's memory (default `all`) |
//! | `fresh` | `zeroed`, `dirty` | what new shards hold (default `zeroed`) |
//! | `copy-delay` | `500us`, `5ms`, `1s` | least time of each copy and fill |
//! | `bandwidth` | bytes per second | of each GPU to and from the host, each way |
//! | `peer-bandwidth` | bytes per second | of each GPU to and from other GPUs, both ways together |
//! | `fail-creates` | `GPU:COUNT` | the first COUNT shards on a GPU are refused as out of memory |
//! | `fail-copy` | `N` | the N-th copy fails half way |
//! | `lose-gpu` | `GPU:N` | the GPU is lost when the N-th copy on it is due |
//!
//! A SIZE is a number of bytes, or a number with `KiB`, `MiB`, `GiB` or `TiB`, such as `1.5GiB`, that comes out as whole
//! bytes.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use vram_gpu::{FreshMemory, GpuId, GpuSet, Link, Topology};

use crate::config::{PeerAccess, SimConfig, SimGpuConfig};
use crate::error::SpecError;

impl SimConfig {
    /// Reads a specification; a `topology` file is read here too.
    pub fn parse(text: &str) -> Result<Self, SpecError> {
        let mut parts = text.split(',').map(str::trim);
        let mut config = Self::of(groups(parts.next().unwrap_or_default())?);
        for option in parts {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            config.apply(name.trim(), value.trim())?;
        }
        Ok(config)
    }

    fn apply(&mut self, name: &str, value: &str) -> Result<(), SpecError> {
        match name {
            "topology" => self.topology = topology_file(Path::new(value), self.gpus.len())?,
            "links" => {
                let link = link_word(value)
                    .filter(|link| *link != Link::Same)
                    .ok_or_else(|| bad("links", value, "nvlink1 to nvlink255, pix, pxb, phb, node or sys"))?;
                self.topology = Topology::uniform(self.gpus.len(), link);
            }
            "peers" => {
                self.peer_access = match value {
                    "all" => PeerAccess::All,
                    "nvlink" => PeerAccess::NvLink,
                    "none" => PeerAccess::None,
                    _ => return Err(bad("peers", value, "all, nvlink or none")),
                }
            }
            "fresh" => {
                self.fresh_memory = match value {
                    "zeroed" => FreshMemory::Zeroed,
                    "dirty" => FreshMemory::Unspecified,
                    _ => return Err(bad("fresh", value, "zeroed or dirty")),
                }
            }
            "copy-delay" => self.copy_delay = duration(value)?,
            "bandwidth" => self.rates.host_bytes_per_s = Some(size(value)?),
            "peer-bandwidth" => self.rates.peer_bytes_per_s = Some(size(value)?),
            "fail-creates" => {
                let (gpu, count) = self.gpu_and_number("fail-creates", value)?;
                self.plan.fail_creates.push((gpu, u32::try_from(count).unwrap_or(u32::MAX)));
            }
            "fail-copy" => {
                let nth = value.parse().ok().filter(|nth| *nth > 0);
                self.plan.fail_copy =
                    Some(nth.ok_or_else(|| bad("fail-copy", value, "the number of a copy, from 1"))?);
            }
            "lose-gpu" => self.plan.lose_gpu.push(self.gpu_and_number("lose-gpu", value)?),
            _ => return Err(SpecError::UnknownOption { option: name.to_owned() }),
        }
        Ok(())
    }

    fn gpu_and_number(&self, option: &'static str, value: &str) -> Result<(GpuId, u64), SpecError> {
        let parsed = value.split_once(':').and_then(|(gpu, number)| {
            let gpu: u16 = gpu.parse().ok().filter(|gpu| usize::from(*gpu) < self.gpus.len())?;
            let number: u64 = number.parse().ok().filter(|number| *number > 0)?;
            Some((GpuId(gpu), number))
        });
        parsed.ok_or_else(|| {
            bad(option, value, "GPU:NUMBER with the number of a GPU from 0 and a number from 1")
        })
    }
}

fn groups(text: &str) -> Result<Vec<SimGpuConfig>, SpecError> {
    let mut gpus: Vec<SimGpuConfig> = Vec::new();
    for group in text.split('+').map(str::trim) {
        let (count_text, size_text) =
            group.split_once('x').ok_or_else(|| SpecError::NotAGroup { group: group.to_owned() })?;
        let bad_count = || SpecError::BadCount { count: count_text.to_owned() };
        let count: usize = count_text.trim().parse().ok().filter(|count| *count > 0).ok_or_else(bad_count)?;
        let total_bytes = size(size_text.trim())?;
        if count > GpuSet::CAPACITY || gpus.len().saturating_add(count) > GpuSet::CAPACITY {
            return Err(bad_count());
        }
        for _ in 0..count {
            let index = u16::try_from(gpus.len()).unwrap_or(u16::MAX);
            gpus.push(SimGpuConfig::numbered(index, total_bytes));
        }
    }
    Ok(gpus)
}

/// Longer topology files are refused: 64 rows of 64 links are less than half of it.
const MAX_TOPOLOGY_BYTES: u64 = 64 << 10;
/// More digits than this behind the point are refused, so that nothing overflows.
const MAX_DECIMALS: usize = 12;

/// The digits a text starts with, and what comes after.
fn number_and_unit(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

fn size(text: &str) -> Result<u64, SpecError> {
    let (whole, rest) = number_and_unit(text);
    let (decimals, unit) = match rest.strip_prefix('.') {
        Some(behind_point) => {
            let (decimals, unit) = number_and_unit(behind_point);
            (Some(decimals), unit)
        }
        None => (None, rest),
    };
    let unit_bytes = match unit {
        "" => Some(1),
        "KiB" => Some(1 << 10),
        "MiB" => Some(1 << 20),
        "GiB" => Some(1 << 30),
        "TiB" => Some(1 << 40),
        _ => None,
    };
    let bytes = unit_bytes.and_then(|unit_bytes: u64| {
        let whole_bytes = whole.parse::<u64>().ok()?.checked_mul(unit_bytes)?;
        whole_bytes.checked_add(decimals.map_or(Some(0), |digits| decimal_bytes(digits, unit_bytes))?)
    });
    // Offsets of files are signed, so nothing above i64::MAX can be behind a GPU.
    let usable = bytes.filter(|bytes| *bytes > 0 && i64::try_from(*bytes).is_ok());
    usable.ok_or_else(|| SpecError::BadSize { size: text.to_owned() })
}

/// Bytes of the digits behind the decimal point, if they are whole.
fn decimal_bytes(digits: &str, unit_bytes: u64) -> Option<u64> {
    let power = u32::try_from(digits.len()).ok().filter(|_| digits.len() <= MAX_DECIMALS)?;
    let denominator = 10u128.checked_pow(power)?;
    let scaled = digits.parse::<u128>().ok()?.checked_mul(u128::from(unit_bytes))?;
    let bytes = scaled.checked_div(denominator)?;
    u64::try_from(bytes).ok().filter(|_| scaled.is_multiple_of(denominator))
}

fn duration(text: &str) -> Result<Duration, SpecError> {
    let (number, unit) = number_and_unit(text);
    let parsed = number.parse().ok().and_then(|number| match unit {
        "us" => Some(Duration::from_micros(number)),
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        _ => None,
    });
    parsed.ok_or_else(|| bad("copy-delay", text, "a whole number with us, ms or s"))
}

fn link_word(word: &str) -> Option<Link> {
    let word = word.to_ascii_uppercase();
    match word.as_str() {
        "X" => Some(Link::Same),
        "PIX" => Some(Link::Pix),
        "PXB" => Some(Link::Pxb),
        "PHB" => Some(Link::Phb),
        "NODE" => Some(Link::Node),
        "SYS" => Some(Link::Sys),
        _ => {
            let links = word.strip_prefix("NVLINK").or_else(|| word.strip_prefix("NV"))?;
            links.parse().ok().filter(|links| *links > 0).map(Link::NvLink)
        }
    }
}

/// Reads a file that is one, and not without end; never waits for a FIFO or a device.
fn read_topology(path: &Path) -> Result<String, SpecError> {
    let unreadable = |source| SpecError::TopologyFile { path: path.to_owned(), source };
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(unreadable)?;
    if !file.metadata().map_err(unreadable)?.is_file() {
        return Err(SpecError::TopologyNotAFile { path: path.to_owned() });
    }
    let mut text = String::new();
    let limit_bytes = MAX_TOPOLOGY_BYTES;
    let length = file.take(limit_bytes.saturating_add(1)).read_to_string(&mut text).map_err(unreadable)?;
    if u64::try_from(length).is_ok_and(|length| length <= limit_bytes) {
        Ok(text)
    } else {
        Err(SpecError::TopologyTooLong { path: path.to_owned(), limit_bytes })
    }
}

fn topology_file(path: &Path, gpus: usize) -> Result<Topology, SpecError> {
    let text = read_topology(path)?;
    let rows = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let links: Option<Vec<Vec<Link>>> =
        rows.map(|row| row.split_whitespace().map(link_word).collect::<Option<Vec<Link>>>()).collect();
    let square = links.filter(|rows| rows.len() == gpus && rows.iter().all(|row| row.len() == gpus));
    let square = square.filter(|rows| {
        // Exactly the diagonal is "the same GPU".
        rows.iter()
            .enumerate()
            .all(|(y, row)| row.iter().enumerate().all(|(x, l)| (x == y) == (*l == Link::Same)))
    });
    let rows = square.ok_or_else(|| SpecError::TopologyShape { path: path.to_owned(), gpus })?;
    let link = |a: GpuId, b: GpuId| rows.get(a.index()).and_then(|row| row.get(b.index())).copied();
    Ok(Topology::from_fn(gpus, |a, b| link(a, b).unwrap_or(Link::Sys)))
}

fn bad(option: &'static str, value: &str, expected: &'static str) -> SpecError {
    SpecError::BadValue { option, value: value.to_owned(), expected }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "a wrong sum is a failed test")]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn parse_plain_group_gives_equal_gpus() {
        let config = SimConfig::parse("4x1GiB").unwrap();
        assert_eq!(config.gpus.len(), 4);
        assert!(config.gpus.iter().all(|gpu| gpu.total_bytes == 1 << 30));
    }

    #[test]
    fn parse_sizes_knows_units_and_bytes() {
        for (text, bytes) in [
            ("512MiB", 512 << 20),
            ("2GiB", 2 << 30),
            ("4096", 4096),
            ("1TiB", 1 << 40),
            ("1.5GiB", 1536 << 20),
            ("0.25MiB", 256 << 10),
            ("2.0", 2),
            ("1.000GiB", 1 << 30),
        ] {
            assert_eq!(size(text).unwrap(), bytes, "{text}");
        }
        for text in [
            "",
            "GiB",
            "1GB",
            "1.GiB",
            ".5GiB",
            "1.5",
            "1.5.5GiB",
            "0.1KiB",
            "0.0GiB",
            "1.0000000000000GiB",
            "-1",
            "0",
            "99999999999999999999",
            "16777216TiB",
            "8388607.9999TiB",
            "1 GiB",
        ] {
            assert!(matches!(size(text), Err(SpecError::BadSize { .. })), "{text}");
        }
    }

    #[test]
    fn parse_bad_groups_says_what_is_wrong() {
        assert!(matches!(SimConfig::parse("4"), Err(SpecError::NotAGroup { .. })));
        assert!(matches!(SimConfig::parse(""), Err(SpecError::NotAGroup { .. })));
        assert!(matches!(SimConfig::parse("0x1GiB"), Err(SpecError::BadCount { .. })));
        assert!(matches!(SimConfig::parse("65x1GiB"), Err(SpecError::BadCount { .. })));
        assert!(matches!(SimConfig::parse("40x1GiB+40x1GiB"), Err(SpecError::BadCount { .. })));
        assert!(matches!(SimConfig::parse("ax1GiB"), Err(SpecError::BadCount { .. })));
        assert!(matches!(SimConfig::parse("1x1GB"), Err(SpecError::BadSize { .. })));
    }

    #[test]
    fn parse_unknown_option_names_it() {
        let error = SimConfig::parse("1x1GiB,turbo=yes").unwrap_err();
        assert!(error.to_string().contains("`turbo`"), "{error}");
    }

    #[test]
    fn parse_options_are_applied() {
        let text = "1x1GiB+2x512MiB, links=pix, peers=nvlink, fresh=dirty, copy-delay=2ms, bandwidth=1GiB, \
                    peer-bandwidth=5MiB, fail-creates=1:3, fail-copy=7, lose-gpu=2:9";
        let config = SimConfig::parse(text).unwrap();
        assert_eq!(config.gpus[2].total_bytes, 512 << 20);
        assert_eq!(config.topology.link(GpuId(0), GpuId(2)), Link::Pix);
        assert!(!config.can_access_peer(GpuId(0), GpuId(1)));
        assert_eq!(config.fresh_memory, FreshMemory::Unspecified);
        assert_eq!(config.copy_delay, Duration::from_millis(2));
        assert_eq!(config.rates.host_bytes_per_s, Some(1 << 30));
        assert_eq!(config.rates.peer_bytes_per_s, Some(5 << 20));
        assert_eq!(config.plan.fail_creates, [(GpuId(1), 3)]);
        assert_eq!(config.plan.fail_copy, Some(7));
        assert_eq!(config.plan.lose_gpu, [(GpuId(2), 9)]);
    }

    #[test]
    fn parse_topology_that_is_no_short_file_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        let path = std::ffi::CString::new(fifo.to_str().unwrap()).unwrap();
        // SAFETY: the path is a string that ends in a zero and lives until the call is over.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
        let long = folder.path().join("long");
        std::fs::write(&long, " ".repeat(65537)).unwrap();
        let parse = |path: &Path| SimConfig::parse(&format!("1x1GiB,topology={}", path.display()));

        for path in [&fifo, Path::new("/dev/zero"), folder.path()] {
            assert!(matches!(parse(path), Err(SpecError::TopologyNotAFile { .. })), "{}", path.display());
        }
        assert!(matches!(parse(&long), Err(SpecError::TopologyTooLong { .. })));
    }

    #[test]
    fn parse_bad_values_are_refused() {
        for option in
            ["links=x", "links=nvlink0", "peers=", "fresh", "copy-delay=5", "bandwidth=0", "fail-copy=0"]
        {
            assert!(SimConfig::parse(&format!("1x1GiB,{option}")).is_err(), "{option}");
        }
        for option in ["fail-creates=1:1", "fail-creates=0", "lose-gpu=0:0"] {
            assert!(SimConfig::parse(&format!("1x1GiB,{option}")).is_err(), "{option}");
        }
    }

    #[test]
    fn parse_topology_file_reads_a_square() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "# two pairs\nX NV12 SYS\nNV12 X PHB\nSYS PHB X").unwrap();
        let config = SimConfig::parse(&format!("3x1GiB,topology={}", file.path().display())).unwrap();
        assert_eq!(config.topology.link(GpuId(0), GpuId(1)), Link::NvLink(12));
        assert_eq!(config.topology.link(GpuId(2), GpuId(1)), Link::Phb);
        let wrong = SimConfig::parse(&format!("2x1GiB,topology={}", file.path().display()));
        assert!(matches!(wrong, Err(SpecError::TopologyShape { .. })));
        assert!(matches!(
            SimConfig::parse("2x1GiB,topology=/nonexistent"),
            Err(SpecError::TopologyFile { .. })
        ));
    }
}
