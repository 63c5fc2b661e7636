//! Faults do what they say, and nothing else.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use vram_gpu::{Backend, DeviceRange, FreshMemory, GpuError, GpuId, HostSpan, Pattern, StreamHandle};
use vram_gpu_sim::{GRANULARITY_BYTES, Rates, SimBackend, SimConfig};
use vram_guest_memory::HostBuffer;

const GPU: GpuId = GpuId(0);
const UNIT: u64 = GRANULARITY_BYTES;
const PATIENCE: Duration = Duration::from_secs(60);

struct Bench {
    backend: SimBackend,
    range: DeviceRange,
    stream: StreamHandle,
}

fn bench(spec: &str) -> Bench {
    let backend = SimBackend::new(SimConfig::parse(spec).unwrap()).unwrap();
    let range = backend.reserve_band(UNIT, UNIT).unwrap();
    let shard = backend.create_shard(GPU, UNIT).unwrap();
    backend.map(range.start, &shard).unwrap();
    backend.set_access(range, &[GPU]).unwrap();
    let stream = backend.create_stream(GPU).unwrap();
    Bench { backend, range, stream }
}

impl Bench {
    fn finish(&self) -> Result<bool, GpuError> {
        let event = self.backend.record(self.stream)?;
        self.backend.synchronize(event, PATIENCE)
    }

    fn read(&self, len: usize) -> Vec<u8> {
        let span = span(len);
        self.backend.copy_out(self.stream, span.clone(), self.range.start).unwrap();
        assert_eq!(self.finish(), Ok(true));
        let mut bytes = vec![0; len];
        span.read_into(&mut bytes);
        bytes
    }
}

fn span(len: usize) -> HostSpan {
    HostBuffer::new(len).unwrap().span().part(0, len).unwrap()
}

#[test]
fn fail_creates_refuses_as_many_as_asked_on_that_gpu() {
    let backend = SimBackend::new(SimConfig::uniform(2, 8 * UNIT)).unwrap();
    backend.faults().fail_creates(GPU, 2);
    for _ in 0..2 {
        assert_eq!(
            backend.create_shard(GPU, UNIT),
            Err(GpuError::OutOfMemory { gpu: GPU, requested_bytes: UNIT })
        );
        assert!(backend.create_shard(GpuId(1), UNIT).is_ok());
    }
    assert!(backend.create_shard(GPU, UNIT).is_ok());
}

#[test]
fn fail_copy_moves_half_and_fails_that_copy_only() {
    let bench = bench("1x64MiB,fail-copy=2");
    bench.backend.fill(bench.stream, bench.range, Pattern::U8(1)).unwrap();
    assert_eq!(bench.finish(), Ok(true));
    bench.backend.fill(bench.stream, bench.range, Pattern::U8(2)).unwrap();
    assert!(matches!(bench.finish(), Err(GpuError::CopyFailed { gpu: GPU, .. })));
    let half = usize::try_from(UNIT / 2).unwrap();
    let bytes = bench.read(half * 2);
    assert!(bytes[..half].iter().all(|byte| *byte == 2) && bytes[half..].iter().all(|byte| *byte == 1));
    bench.backend.faults().fail_copy(2);
    bench.read(1);
    bench.backend.fill(bench.stream, bench.range, Pattern::U8(3)).unwrap();
    assert!(bench.finish().is_err());
}

#[test]
fn delay_and_rate_make_copies_take_their_time() {
    let bench = bench("1x64MiB,copy-delay=30ms");
    let started = Instant::now();
    bench.read(1);
    bench.read(1);
    assert!(started.elapsed() >= Duration::from_millis(60));
    bench.backend.faults().clear();
    bench.backend.faults().limit_rates(Rates { host_bytes_per_s: Some(10 << 20), peer_bytes_per_s: None });
    let started = Instant::now();
    bench.read(1 << 20);
    assert!(started.elapsed() >= Duration::from_millis(90));
}

#[test]
fn lose_gpu_fails_everything_but_giving_back() {
    let Bench { backend, range, stream } = bench("2x64MiB,lose-gpu=0:2");
    backend.fill(stream, range, Pattern::U8(1)).unwrap();
    let before = backend.record(stream).unwrap();
    assert_eq!(backend.synchronize(before, PATIENCE), Ok(true));
    backend.fill(stream, range, Pattern::U8(2)).unwrap();
    let event = backend.record(stream).unwrap();
    let lost =
        |outcome: Result<bool, GpuError>| matches!(outcome, Err(GpuError::DeviceLost { gpu: GPU, .. }));
    assert!(lost(backend.synchronize(event, PATIENCE)));
    assert!(lost(backend.copy_in(stream, range.start, span(8)).map(|()| true)));
    assert!(lost(backend.create_shard(GPU, UNIT).map(|_| true)));
    assert!(lost(backend.memory(GPU).map(|_| true)));
    assert!(backend.create_shard(GpuId(1), UNIT).is_ok());
    backend.unmap(range).unwrap();
    backend.free_band(range).unwrap();
    backend.destroy_stream(stream).unwrap();
    backend.destroy_event(event).unwrap();
}

#[test]
fn dirty_fresh_memory_is_never_zero() {
    let bench = bench("1x64MiB,fresh=dirty");
    assert_eq!(bench.backend.fresh_memory(), FreshMemory::Unspecified);
    assert!(bench.read(usize::try_from(UNIT).unwrap()).iter().all(|byte| *byte != 0));
}

#[test]
fn memory_counts_an_export_until_its_descriptor_is_closed() {
    let backend = SimBackend::new(SimConfig::uniform(1, 4 * UNIT)).unwrap();
    let free_bytes = || backend.memory(GPU).unwrap().free_bytes;
    let shard = backend.create_shard(GPU, UNIT).unwrap();
    let export = backend.export_shard(&shard).unwrap();
    backend.release_shard(shard).unwrap();
    assert_eq!(free_bytes(), 3 * UNIT);
    let again = backend.import_shard(GPU, UNIT, export.as_fd()).unwrap();
    drop(export);
    assert_eq!(free_bytes(), 3 * UNIT);
    backend.release_shard(again).unwrap();
    assert_eq!(free_bytes(), 4 * UNIT);
}

#[test]
fn memory_survives_the_backend_that_made_it() {
    let first = bench("1x64MiB");
    first.backend.fill(first.stream, first.range, Pattern::U32(0x0403_0201)).unwrap();
    assert_eq!(first.finish(), Ok(true));
    // The handle of the bench is gone; take another shard along.
    let shard = first.backend.create_shard(GPU, UNIT).unwrap();
    let band = first.backend.reserve_band(UNIT, UNIT).unwrap();
    first.backend.map(band.start, &shard).unwrap();
    first.backend.set_access(band, &[GPU]).unwrap();
    first.backend.copy(first.stream, band.start, first.range.start, UNIT).unwrap();
    assert_eq!(first.finish(), Ok(true));
    let export = first.backend.export_shard(&shard).unwrap();
    drop(first);

    let backend = SimBackend::new(SimConfig::uniform(1, 4 * UNIT)).unwrap();
    let shard = backend.import_shard(GPU, UNIT, export.as_fd()).unwrap();
    assert_eq!(backend.memory(GPU).unwrap().free_bytes, 3 * UNIT);
    backend.reserve_band_at(band).unwrap();
    backend.map(band.start, &shard).unwrap();
    backend.set_access(band, &[GPU]).unwrap();
    let stream = backend.create_stream(GPU).unwrap();
    let out = span(8);
    backend.copy_out(stream, out.clone(), band.start).unwrap();
    let event = backend.record(stream).unwrap();
    assert_eq!(backend.synchronize(event, PATIENCE), Ok(true));
    let mut bytes = [0; 8];
    out.read_into(&mut bytes);
    assert_eq!(bytes, [1, 2, 3, 4, 1, 2, 3, 4]);
}

#[test]
fn backend_dropped_while_paused_ends() {
    let bench = bench("1x64MiB");
    bench.backend.faults().pause(GPU);
    bench.backend.fill(bench.stream, bench.range, Pattern::U8(1)).unwrap();
    let started = Instant::now();
    drop(bench);
    assert!(started.elapsed() < PATIENCE);
}

#[test]
fn full_queue_refuses_and_does_not_block() {
    let bench = bench("1x64MiB");
    bench.backend.faults().pause(GPU);
    let small = DeviceRange { len_bytes: 4, ..bench.range };
    let refused = (0..10_000).find_map(|_| bench.backend.fill(bench.stream, small, Pattern::U8(1)).err());
    assert!(matches!(refused, Some(GpuError::Driver { .. })), "{refused:?}");
    bench.backend.faults().resume(GPU);
    // Room comes back as work is done.
    let started = Instant::now();
    while bench.backend.fill(bench.stream, small, Pattern::U8(1)).is_err() {
        assert!(started.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
}

#[test]
fn unmap_under_a_running_copy_is_an_error_and_no_fault() {
    let Bench { backend, range, stream } = bench("1x64MiB");
    backend.faults().pause(GPU);
    backend.fill(stream, range, Pattern::U8(1)).unwrap();
    let event = backend.record(stream).unwrap();
    backend.unmap(range).unwrap();
    backend.faults().resume(GPU);
    let outcome = backend.synchronize(event, PATIENCE);
    assert!(matches!(outcome, Err(GpuError::BadRange { .. })), "{outcome:?}");
}
