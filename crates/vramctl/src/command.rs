//! What each command asks and shows.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use vram_control_api::v1::{Daemon, Gpu, GpuState, Gpus, NewSlice, Slice, SliceChange, Slices, Tier, Tiers};
use vram_control_api::{ByteSize, Client, ClientError};

use crate::args::{Args, Command, GpuCommand, Output, SliceCommand, TierCommand};
use crate::attach::Attachment;
use crate::show;
use crate::table::{Align, fields, table};

/// How often a drain that is waited for is looked at.
const DRAIN_POLL: Duration = Duration::from_millis(200);

/// What a command has to say.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    /// The result, for the standard output.
    pub(crate) output: String,
    /// Remarks for people, for the standard error output; none beside JSON.
    pub(crate) notes: Vec<String>,
}

/// Versions of both ends.
#[derive(Debug, Serialize)]
struct Versions {
    vramctl: &'static str,
    /// The daemon's, if it answers.
    vramd: Option<String>,
}

/// Does what the command line says.
pub(crate) fn run(args: Args) -> Result<Shown> {
    let client = Client::new(&args.control);
    let output = args.output;
    match args.command {
        Command::Gpu(GpuCommand::List) => {
            let gpus = client.gpus()?;
            let mut shown = show(output, &gpus, gpu_table)?;
            if output == Output::Table && client.daemon()?.simulated {
                shown.notes.push("these GPUs are simulated".to_owned());
            }
            Ok(shown)
        }
        Command::Gpu(GpuCommand::Drain { index, wait }) => {
            let mut gpu = client.drain_gpu(index)?;
            while wait && gpu.state == GpuState::Draining {
                std::thread::sleep(DRAIN_POLL);
                let mut gpus = client.gpus()?.gpus;
                gpus.retain(|gpu| gpu.index == index);
                gpu = gpus.pop().with_context(|| format!("GPU {index} is no longer part of the pool"))?;
            }
            ensure!(gpu.state != GpuState::Lost, "GPU {index} was lost; what was still on it is gone");
            ensure!(
                !wait || gpu.state == GpuState::Drained,
                "GPU {index} is {}: somebody else took it back into use",
                gpu.state
            );
            show(output, &Gpus { gpus: vec![gpu] }, gpu_table)
        }
        Command::Gpu(GpuCommand::Undrain { index }) => {
            show(output, &Gpus { gpus: vec![client.undrain_gpu(index)?] }, gpu_table)
        }
        Command::Slice(SliceCommand::List) => show(output, &client.slices()?, slice_table),
        Command::Slice(SliceCommand::Show { name }) => show(output, &client.slice(&name)?, slice_fields),
        Command::Slice(SliceCommand::Create {
            name,
            limit,
            guarantee,
            placement,
            home,
            queues,
            socket,
            group,
        }) => {
            let slice = NewSlice {
                name,
                limit_bytes: limit.bytes(),
                guarantee_bytes: guarantee.map(ByteSize::bytes),
                placement,
                home_gpu: home,
                request_queues: queues,
                socket,
                group,
            };
            show(output, &client.create_slice(&slice)?, slice_fields)
        }
        Command::Slice(SliceCommand::Remove { name }) => {
            show(output, &client.remove_slice(&name)?, |slice| format!("slice {} is removed\n", slice.name))
        }
        Command::Slice(SliceCommand::Resize { name, limit, guarantee }) => {
            let change = SliceChange {
                limit_bytes: limit.map(ByteSize::bytes),
                guarantee_bytes: guarantee.map(ByteSize::bytes),
            };
            show(output, &client.change_slice(&name, &change)?, slice_fields)
        }
        Command::Slice(SliceCommand::Attach { name, vmm }) => {
            let attachment = Attachment::new(&client.slice(&name)?, vmm)?;
            let mut shown = show(output, &attachment, Attachment::shell_line)?;
            if output == Output::Table {
                shown.notes = attachment.notes;
            }
            Ok(shown)
        }
        Command::Tier(TierCommand::List) => show(output, &client.tiers()?, tier_table),
        Command::Daemon => show(output, &client.daemon()?, daemon_fields),
        Command::Version => version(output, client.daemon()),
    }
}

fn show<T: Serialize>(output: Output, value: &T, for_people: impl FnOnce(&T) -> String) -> Result<Shown> {
    let output = match output {
        Output::Table => for_people(value),
        Output::Json => show::json(value)?,
    };
    Ok(Shown { output, notes: Vec::new() })
}

/// The version of this program is worth knowing without a daemon too.
fn version(output: Output, daemon: Result<Daemon, ClientError>) -> Result<Shown> {
    let (vramd, note) = match daemon {
        Ok(daemon) => (Some(daemon.version), None),
        Err(error) => (None, Some(format!("the daemon's version is not known: {error}"))),
    };
    let versions = Versions { vramctl: env!("CARGO_PKG_VERSION"), vramd };
    let mut shown = show(output, &versions, |versions| {
        let vramd = versions.vramd.clone().unwrap_or_else(|| "-".to_owned());
        fields(&[("vramctl", versions.vramctl.to_owned()), ("vramd", vramd)])
    })?;
    if output == Output::Table {
        shown.notes.extend(note);
    }
    Ok(shown)
}

fn gpu_table(gpus: &Gpus) -> String {
    use Align::{Left, Right};
    let header = [
        ("GPU", Right),
        ("NAME", Left),
        ("TOTAL", Right),
        ("POOL", Right),
        ("USED", Right),
        ("PROMISED", Right),
        ("PCI", Left),
        ("NUMA", Right),
        ("STATE", Left),
    ];
    let row = |gpu: &Gpu| {
        vec![
            gpu.index.to_string(),
            gpu.name.clone(),
            size(gpu.total_bytes),
            size(gpu.pool_bytes),
            size(gpu.used_bytes),
            size(gpu.promised_bytes),
            or_dash(gpu.pci.as_ref()),
            or_dash(gpu.numa_node),
            gpu.state.to_string(),
        ]
    };
    table(&header, &gpus.gpus.iter().map(row).collect::<Vec<_>>())
}

fn slice_table(slices: &Slices) -> String {
    use Align::{Left, Right};
    let header = [
        ("NAME", Left),
        ("STATE", Left),
        ("GUARANTEE", Right),
        ("LIMIT", Right),
        ("ALLOCATED", Right),
        ("BACKED", Right),
        ("STORED", Right),
        ("HOME", Right),
        ("QUEUES", Right),
        ("CONTEXTS", Right),
    ];
    let row = |slice: &Slice| {
        vec![
            slice.name.clone(),
            slice.state.to_string(),
            size(slice.guarantee_bytes),
            size(slice.limit_bytes),
            size(slice.allocated_bytes),
            size(slice.backed_bytes),
            size(slice.stored_bytes),
            or_dash(slice.home_gpu),
            slice.request_queues.to_string(),
            slice.contexts.to_string(),
        ]
    };
    table(&header, &slices.slices.iter().map(row).collect::<Vec<_>>())
}

fn slice_fields(slice: &Slice) -> String {
    let by_gpu: Vec<String> = slice
        .backed_by_gpu
        .iter()
        .map(|backed| format!("{} on GPU {}", size(backed.backed_bytes), backed.gpu))
        .collect();
    let backed = match by_gpu.as_slice() {
        [] => size(slice.backed_bytes),
        by_gpu => format!("{} ({})", size(slice.backed_bytes), by_gpu.join(", ")),
    };
    let counters = &slice.counters;
    fields(&[
        ("name", slice.name.clone()),
        ("state", slice.state.to_string()),
        ("guarantee", size(slice.guarantee_bytes)),
        ("limit", size(slice.limit_bytes)),
        ("placement", slice.placement.to_string()),
        ("home GPU", or_dash(slice.home_gpu)),
        ("allocated", size(slice.allocated_bytes)),
        ("backed", backed),
        ("stored", size(slice.stored_bytes)),
        ("quarantined", size(slice.quarantined_bytes)),
        ("allocations", slice.allocations.to_string()),
        ("contexts", slice.contexts.to_string()),
        ("socket", slice.socket.clone()),
        ("virtio id", slice.virtio_id.to_string()),
        ("request queues", slice.request_queues.to_string()),
        ("requests", counters.requests.to_string()),
        ("errors", counters.errors.to_string()),
        ("moved in", size(counters.in_bytes)),
        ("moved out", size(counters.out_bytes)),
        ("copied", size(counters.copied_bytes)),
    ])
}

fn tier_table(tiers: &Tiers) -> String {
    use Align::{Left, Right};
    let header = [
        ("KIND", Left),
        ("STATE", Left),
        ("SIZE", Right),
        ("USED", Right),
        ("HOLDS", Right),
        ("REGIONS", Right),
        ("IN", Right),
        ("OUT", Right),
        ("ERRORS", Right),
    ];
    let row = |tier: &Tier| {
        let counters = &tier.counters;
        vec![
            tier.kind.to_string(),
            tier.state.to_string(),
            or_dash(tier.limit_bytes.map(size)),
            size(tier.stored_bytes),
            size(tier.logical_bytes),
            tier.regions.to_string(),
            size(counters.put_bytes),
            size(counters.get_bytes),
            counters.errors.saturating_add(counters.corrupt).to_string(),
        ]
    };
    table(&header, &tiers.tiers.iter().map(row).collect::<Vec<_>>())
}

fn daemon_fields(daemon: &Daemon) -> String {
    let backend = if daemon.simulated { "SIMULATED: no GPU is really there" } else { "real GPUs" };
    fields(&[
        ("version", daemon.version.clone()),
        ("backend", format!("{} ({backend})", daemon.backend)),
        ("backend version", daemon.backend_version.clone()),
        ("boot epoch", format!("{:016x}", daemon.boot_epoch)),
        ("uptime", duration(daemon.uptime_seconds)),
    ])
}

fn size(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// The two largest units that are not zero before them: `45s`, `3m 7s`, `2h 0m`, `12d 4h`.
fn duration(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, _, _) => format!("{hours}h {}m", minutes % 60),
        _ => format!("{days}d {}h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_shows_the_two_largest_units() {
        let cases = [
            (0, "0s"),
            (59, "59s"),
            (60, "1m 0s"),
            (3599, "59m 59s"),
            (7260, "2h 1m"),
            (86400 * 12 + 4 * 3600, "12d 4h"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(duration(seconds), expected);
        }
    }
}
