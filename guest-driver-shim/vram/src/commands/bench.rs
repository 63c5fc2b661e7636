//! `vram bench`: how fast this device moves bytes, and what that costs in CPU time.
//!
//! Each stream is a thread with a buffer and a share of the memory of its own. The benchmark has a context of its own,
//! which ends with the command.

use std::{
    fmt::{self, Display},
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeVal,
};
use serde::Serialize;
use vram::{Allocation, Device, Pattern, Stream, StreamId};

use super::{Context, UsageError, info::SIMULATED};
use crate::{
    arguments::Bench,
    pipeline::PageBuffer,
    report,
    size::{ByteSize, mib_per_second},
};

/// Bytes of the transfers whose latency is measured.
const LATENCY_BYTES: u64 = 4096;
/// Samples of a latency at most.
const MAX_SAMPLES: usize = 100_000;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Write,
    Read,
    Copy,
    Fill,
}

const KINDS: [Kind; 4] = [Kind::Write, Kind::Read, Kind::Copy, Kind::Fill];

#[derive(Serialize)]
struct Report {
    simulated: bool,
    size_bytes: u64,
    block_bytes: u64,
    streams: u32,
    throughput: Vec<Throughput>,
    latency_bytes: u64,
    latency: Vec<Latency>,
}

#[derive(Serialize)]
struct Throughput {
    operation: Kind,
    bytes: u64,
    seconds: f64,
    mib_per_second: f64,
    /// User and system time of this process. The kernel's interrupt work is not in it.
    cpu_seconds: f64,
}

#[derive(Serialize)]
struct Latency {
    operation: Kind,
    samples: usize,
    p50_us: f64,
    p99_us: f64,
}

/// Measures, and prints a table.
pub(crate) fn bench(context: &mut Context<'_>, bench: &Bench) -> Result<()> {
    let share_bytes = bench.size.0 / u64::from(bench.streams);
    let block_bytes = bench.block.0;
    if block_bytes > share_bytes {
        let share = ByteSize(share_bytes);
        let Bench { block, streams, size, .. } = *bench;
        return Err(UsageError::BlockTooLarge { block, share, streams, size }.into());
    }
    let device = context.open()?;
    let memory = Memory::new(&device, bench.size.0.max(LATENCY_BYTES))?;
    let time = Duration::from_secs_f64(bench.seconds);
    let mut report = Report {
        simulated: device.info()?.simulated,
        size_bytes: bench.size.0,
        block_bytes,
        streams: bench.streams,
        throughput: Vec::new(),
        latency_bytes: LATENCY_BYTES,
        latency: Vec::new(),
    };
    for kind in KINDS {
        report.throughput.push(throughput(
            &device,
            &memory,
            kind,
            Load { streams: bench.streams, share_bytes, block_bytes, time },
        )?);
    }
    for kind in KINDS {
        report.latency.push(latency(&device, &memory, kind, time)?);
    }
    report::print(context.out, context.format, &report)?;
    Ok(())
}

/// Where copies come from and where everything goes.
struct Memory {
    source: Allocation,
    destination: Allocation,
}

impl Memory {
    fn new(device: &Device, len_bytes: u64) -> Result<Self, vram::Error> {
        Ok(Self { source: device.allocate(len_bytes, 0)?, destination: device.allocate(len_bytes, 0)? })
    }

    /// One transfer of the length of `buffer`.
    fn transfer(
        &self,
        stream: &Stream,
        kind: Kind,
        offset_bytes: u64,
        buffer: &mut [u8],
    ) -> Result<(), vram::Error> {
        let len_bytes = buffer.len() as u64;
        let destination = self.destination.range(offset_bytes, len_bytes)?;
        let source = self.source.range(offset_bytes, len_bytes)?;
        match kind {
            Kind::Write => stream.write(destination, buffer),
            Kind::Read => stream.read(destination, buffer),
            Kind::Copy => stream.copy(destination, source, len_bytes),
            Kind::Fill => stream.fill(destination, len_bytes, Pattern::U8(0x5a)),
        }
    }
}

#[derive(Clone, Copy)]
struct Load {
    streams: u32,
    share_bytes: u64,
    block_bytes: u64,
    time: Duration,
}

fn throughput(device: &Device, memory: &Memory, kind: Kind, load: Load) -> Result<Throughput> {
    let cpu_start = cpu_seconds()?;
    let start = Instant::now();
    let deadline = start + load.time;
    let moved: Vec<Result<u64, vram::Error>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..load.streams)
            .map(|number| {
                let stream = device.stream(StreamId(number));
                scope.spawn(move || one_stream(memory, &stream, kind, load, deadline))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let bytes = moved.into_iter().sum::<Result<u64, vram::Error>>()?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(Throughput {
        operation: kind,
        bytes,
        seconds,
        mib_per_second: mib_per_second(bytes, seconds),
        cpu_seconds: cpu_seconds()? - cpu_start,
    })
}

/// Moves blocks round and round its share until the deadline; at least one.
fn one_stream(
    memory: &Memory,
    stream: &Stream,
    kind: Kind,
    load: Load,
    deadline: Instant,
) -> Result<u64, vram::Error> {
    let mut buffer = PageBuffer::new(usize::try_from(load.block_bytes).unwrap_or(usize::MAX));
    buffer.bytes_mut().fill(0xa5);
    let first = u64::from(stream.id().0) * load.share_bytes;
    let blocks = load.share_bytes / load.block_bytes;
    let mut moved = 0u64;
    for block in (0..blocks).cycle() {
        memory.transfer(stream, kind, first + block * load.block_bytes, buffer.bytes_mut())?;
        moved = moved.saturating_add(load.block_bytes);
        if Instant::now() >= deadline {
            break;
        }
    }
    Ok(moved)
}

fn latency(device: &Device, memory: &Memory, kind: Kind, time: Duration) -> Result<Latency> {
    let stream = device.stream(StreamId(0));
    let mut buffer = PageBuffer::new(LATENCY_BYTES as usize);
    let deadline = Instant::now() + time;
    let mut samples = Vec::new();
    while samples.len() < MAX_SAMPLES && (samples.is_empty() || Instant::now() < deadline) {
        let start = Instant::now();
        memory.transfer(&stream, kind, 0, buffer.bytes_mut())?;
        samples.push(start.elapsed());
    }
    samples.sort_unstable();
    Ok(Latency {
        operation: kind,
        samples: samples.len(),
        p50_us: percentile(&samples, 50),
        p99_us: percentile(&samples, 99),
    })
}

/// A percentile of sorted samples, in microseconds, by nearest rank.
fn percentile(sorted: &[Duration], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).map_or(0.0, |sample| sample.as_secs_f64() * 1e6)
}

/// User and system time of this process so far.
fn cpu_seconds() -> nix::Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}

impl Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Copy => "copy",
            Self::Fill => "fill",
        })
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.simulated {
            writeln!(f, "{SIMULATED}")?;
        }
        writeln!(
            f,
            "Blocks of {} in {} stream(s), {} of memory. 1 MiB/s is 2^20 bytes in a second.",
            ByteSize(self.block_bytes),
            self.streams,
            ByteSize(self.size_bytes)
        )?;
        writeln!(f, "{:9}  {:>12}  {:>8}  {:>8}", "", "MiB/s", "seconds", "CPU s")?;
        for line in &self.throughput {
            writeln!(
                f,
                "{:9}  {:>12.1}  {:>8.3}  {:>8.3}",
                line.operation, line.mib_per_second, line.seconds, line.cpu_seconds
            )?;
        }
        write!(
            f,
            "Latency of {}\n{:9}  {:>12}  {:>8}  {:>8}",
            ByteSize(self.latency_bytes),
            "",
            "samples",
            "p50 us",
            "p99 us"
        )?;
        for line in &self.latency {
            write!(
                f,
                "\n{:9}  {:>12}  {:>8.1}  {:>8.1}",
                line.operation, line.samples, line.p50_us, line.p99_us
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_by_nearest_rank() {
        let samples: Vec<Duration> = (1..=200).map(Duration::from_micros).collect();

        assert_eq!(percentile(&samples, 50).round(), 100.0);
        assert_eq!(percentile(&samples, 99).round(), 198.0);
        assert_eq!(percentile(&samples[..1], 99).round(), 1.0);
        assert_eq!(percentile(&[], 50), 0.0);
    }
}
