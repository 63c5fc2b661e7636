//! Bandwidth through vramd's own path against raw copies of the same GPU backend, in one run.
//!
//! `cargo bench -p vram-tests --bench bandwidth -- [--gpu cuda|sim:SPEC] [--mib N]`
//!
//! *Raw* is what the backend itself does: registered host memory, 4 MiB copies on one stream, eight under way.
//! *Path* is a driver in this process that speaks virtio-vram over a Unix socket to a daemon in this process: rings in
//! guest RAM, vhost-user, session, transfer, the same backend. CPU time is that of the whole process, the driver's
//! half included. Each figure is the median of five.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use vram_gpu::{Backend, DeviceAddress, DeviceRange, EventHandle, GpuId, Pattern, StreamHandle};
use vram_guest_memory::HostBuffer;
use vram_protocol::{Copy, Fill, Range, Request};
use vram_testkit::{Driver, Load, RamRegion, VmSpec};
use vramd::args::{GpuBackend, LogLevel};
use vramd::config::{Config, SliceConfig};
use vramd::daemon::{Daemon, open_backend};

const BLOCK: u64 = 4 << 20;
const IN_FLIGHT: usize = 8;
const RUNS: usize = 5;

struct Figure {
    name: String,
    gib_per_s: f64,
    cpu_s_per_gib: f64,
}

fn main() -> Result<()> {
    let mut gpu = GpuBackend::Sim("2x1GiB".to_owned());
    let mut mib = 512u64;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            // What cargo passes to every bench.
            "--bench" => {}
            "--gpu" => gpu = args.next().context("--gpu wants a value")?.parse()?,
            "--mib" => mib = args.next().context("--mib wants a value")?.parse()?,
            other => bail!("unknown argument {other}"),
        }
    }
    let dir = tempfile::tempdir()?;
    let config = Config {
        gpu,
        gpu_is_default: false,
        shard: vram_control_api::ByteSize::mib(64),
        socket_dir: dir.path().to_owned(),
        control: dir.path().join("control.sock"),
        control_group: None,
        socket_group: None,
        virtio_id: 37,
        log_level: LogLevel::Warn,
        slices: vec![SliceConfig {
            name: "bench".to_owned(),
            limit: vram_control_api::ByteSize::mib(512),
            guarantee: vram_control_api::ByteSize(0),
            placement: Default::default(),
            request_queues: 1,
            home: Some(0),
            socket: dir.path().join("bench.sock"),
            group: None,
        }],
        tiers: Vec::new(),
    };
    let backend = open_backend(&config)?;
    let identity = backend.identity();
    println!(
        "backend {} ({}){}, {} MiB a run in {} MiB blocks, {IN_FLIGHT} under way, median of {RUNS}",
        identity.backend,
        identity.version,
        if identity.simulated { ", SIMULATED: these are not figures of a GPU" } else { "" },
        mib,
        BLOCK >> 20
    );
    let mut figures = raw(&backend, mib << 20)?;
    figures.extend(path(&config, &backend, dir.path(), mib << 20)?);
    println!("{:<24} {:>12} {:>16}", "", "GiB/s", "CPU s per GiB");
    for figure in &figures {
        println!("{:<24} {:>12.2} {:>16.3}", figure.name, figure.gib_per_s, figure.cpu_s_per_gib);
    }
    for what in ["H2D", "D2H", "D2D"] {
        let of =
            |kind: &str| figures.iter().find(|f| f.name == format!("{kind} {what}")).map(|f| f.gib_per_s);
        if let (Some(raw), Some(path)) = (of("raw"), of("path")) {
            println!("{what}: path / raw = {:.2}", path / raw);
        }
    }
    Ok(())
}

/// Runs something five times; the medians of its speed and of what it cost.
fn measure(name: &str, bytes: u64, mut run: impl FnMut() -> Result<Duration>) -> Result<Figure> {
    let gib = bytes as f64 / f64::from(1 << 30);
    let (mut speeds, mut costs) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let before = cpu_seconds()?;
        let took = run()?;
        costs.push((cpu_seconds()? - before) / gib);
        speeds.push(gib / took.as_secs_f64());
    }
    speeds.sort_by(f64::total_cmp);
    costs.sort_by(f64::total_cmp);
    Ok(Figure { name: name.to_owned(), gib_per_s: speeds[RUNS / 2], cpu_s_per_gib: costs[RUNS / 2] })
}

fn cpu_seconds() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    Ok((usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64 / 1e6)
}

/// Enqueues copies on one stream, eight under way, and waits for the last.
fn raw_run(
    backend: &dyn Backend,
    stream: StreamHandle,
    blocks: u64,
    mut enqueue: impl FnMut(u64) -> Result<()>,
) -> Result<Duration> {
    let mut events: VecDeque<EventHandle> = VecDeque::new();
    let started = Instant::now();
    for block in 0..blocks {
        if events.len() == IN_FLIGHT
            && let Some(event) = events.pop_front()
        {
            finish(backend, event)?;
        }
        enqueue(block)?;
        events.push_back(backend.record(stream)?);
    }
    for event in events {
        finish(backend, event)?;
    }
    Ok(started.elapsed())
}

fn finish(backend: &dyn Backend, event: EventHandle) -> Result<()> {
    while !backend.synchronize(event, Duration::from_secs(10))? {}
    Ok(backend.destroy_event(event)?)
}

fn raw(backend: &Arc<dyn Backend>, bytes: u64) -> Result<Vec<Figure>> {
    let backend = &**backend;
    let gpu = GpuId(0);
    let area = 128u64 << 20;
    let band = backend.reserve_band(area, area)?;
    let shard = backend.create_shard(gpu, area)?;
    backend.map(band.start, &shard)?;
    backend.set_access(band, &[gpu])?;
    let stream = backend.create_stream(gpu)?;
    let host = HostBuffer::new(usize::try_from(BLOCK)? * IN_FLIGHT)?;
    host.span().write_from(&vec![0x5a; host.span().len_bytes()]);
    let registration = backend.register_host(host.span())?;
    let half = area / 2;
    let block_len = usize::try_from(BLOCK)?;
    let at = |block: u64| DeviceAddress(band.start.0 + block * BLOCK % half);
    let span = |block: u64| host.span().part(block as usize % IN_FLIGHT * block_len, block_len);
    raw_run(backend, stream, half / BLOCK, |block| {
        let range = DeviceRange { start: at(block), len_bytes: BLOCK };
        Ok(backend.fill(stream, range, Pattern::U8(1))?)
    })?;
    let blocks = bytes / BLOCK;
    let figures = vec![
        measure("raw H2D", bytes, || {
            raw_run(backend, stream, blocks, |n| Ok(backend.copy_in(stream, at(n), span(n)?)?))
        })?,
        measure("raw D2H", bytes, || {
            raw_run(backend, stream, blocks, |n| Ok(backend.copy_out(stream, span(n)?, at(n))?))
        })?,
        measure("raw D2D", bytes, || {
            raw_run(backend, stream, blocks, |n| {
                Ok(backend.copy(stream, DeviceAddress(at(n).0 + half), at(n), BLOCK)?)
            })
        })?,
    ];
    backend.unregister_host(registration)?;
    backend.destroy_stream(stream)?;
    backend.unmap(band)?;
    backend.release_shard(shard)?;
    backend.free_band(band)?;
    Ok(figures)
}

fn path(
    config: &Config,
    backend: &Arc<dyn Backend>,
    dir: &std::path::Path,
    bytes: u64,
) -> Result<Vec<Figure>> {
    let _daemon = Daemon::start_on(config, Arc::clone(backend))?;
    let spec = VmSpec {
        regions: vec![
            RamRegion { start: 0x10_0000, len_bytes: 16 << 20 },
            RamRegion { start: 1 << 32, len_bytes: 2 << 30 },
        ],
        queues: 3,
        queue_size: 256,
    };
    let mut driver = Driver::connect(&dir.join("bench.sock"), &spec)?;
    driver.hello(1)?;
    let context = driver.open()?;
    let area = 64u64 << 20;
    let (first, second) = (driver.must_alloc(context, area)?, driver.must_alloc(context, area)?);
    let load = Load { data_bytes: BLOCK, in_flight: IN_FLIGHT, requests: bytes / BLOCK };
    let quiet = Load { data_bytes: 0, ..load };
    let at = |n: u64| n * BLOCK % area;
    let warm = Load { requests: area / BLOCK, ..quiet };
    let fill = |n: u64| {
        let range = Range { address: first + at(n), length: BLOCK };
        Request::Fill(Fill { range, pattern: 1, width: 1 })
    };
    driver.run_load(2, context, 0, warm, fill)?;
    Ok(vec![
        measure("path H2D", bytes, || {
            driver.run_load(2, context, 0, load, |n| {
                Request::Write(Range { address: first + at(n), length: BLOCK })
            })
        })?,
        measure("path D2H", bytes, || {
            driver.run_load(2, context, 0, load, |n| {
                Request::Read(Range { address: first + at(n), length: BLOCK })
            })
        })?,
        measure("path D2D", bytes, || {
            driver.run_load(2, context, 0, quiet, |n| {
                Request::Copy(Copy { destination: second + at(n), source: first + at(n), length: BLOCK })
            })
        })?,
    ])
}
