//! What is the CUDA backend's own, over the simulated driver.

mod driver;

use std::time::Duration;

use vram_gpu::{Backend, DeviceRange, GpuError, GpuId, HostSpan, Link, Pattern, StreamHandle};
use vram_gpu_contract::Injection as _;
use vram_gpu_cuda::CudaBackend;
use vram_guest_memory::HostBuffer;

use crate::driver::{SimulatedFaults, in_process_with};

const GPU: GpuId = GpuId(0);
const PATIENCE: Duration = Duration::from_secs(60);

fn span(len: usize) -> HostSpan {
    HostBuffer::new(len).unwrap().span().part(0, len).unwrap()
}

fn mapped(backend: &CudaBackend) -> (DeviceRange, StreamHandle) {
    let unit = backend.granularity_bytes();
    let band = backend.reserve_band(unit, unit).unwrap();
    let shard = backend.create_shard(GPU, unit).unwrap();
    backend.map(band.start, &shard).unwrap();
    backend.set_access(band, &[GPU]).unwrap();
    (band, backend.create_stream(GPU).unwrap())
}

#[test]
fn no_gpus_is_unavailable_and_says_why() {
    in_process_with("no_gpus_is_unavailable_and_says_why", None, true, || {
        let Err(error) = CudaBackend::new() else { panic!("a backend of no GPUs") };
        assert!(matches!(error, GpuError::Unavailable { backend: "cuda", .. }), "{error:?}");
        assert!(error.to_string().contains("CUDA_ERROR_NO_DEVICE"), "{error}");
    });
}

#[test]
fn identity_and_devices_say_that_they_are_simulated() {
    in_process_with(
        "identity_and_devices_say_that_they_are_simulated",
        Some("2x64MiB+1x128MiB"),
        true,
        || {
            let backend = CudaBackend::new().unwrap();
            let identity = backend.identity();
            assert!(identity.simulated);
            assert_eq!(identity.backend, "cuda");
            assert!(identity.version.contains("CUDA 12.9"), "{}", identity.version);
            let devices = backend.devices();
            assert_eq!(devices.len(), 3);
            assert_eq!(devices[2].total_bytes, 128 << 20);
            assert_eq!(devices[1].pci.unwrap().to_string(), "0000:11:00.0");
            assert_ne!(devices[0].uuid, devices[1].uuid);
            assert!(devices.iter().all(|device| device.name.starts_with("vram simulated GPU")));
        },
    );
}

#[test]
fn topology_is_what_nvml_says() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        file.path(),
        "X NV4 PIX PXB PHB\nNV4 X NODE SYS NV2\nPIX NODE X SYS SYS\nPXB SYS SYS X SYS\nPHB NV2 SYS SYS X\n",
    )
    .unwrap();
    let specification = format!("5x64MiB,topology={}", file.path().display());
    in_process_with("topology_is_what_nvml_says", Some(&specification), true, || {
        let backend = CudaBackend::new().unwrap();
        let link = |a, b| backend.topology().link(GpuId(a), GpuId(b));
        assert_eq!(link(0, 1), Link::NvLink(4));
        assert_eq!(link(4, 1), Link::NvLink(2));
        assert_eq!(link(0, 2), Link::Pix);
        assert_eq!(link(0, 3), Link::Pxb);
        assert_eq!(link(0, 4), Link::Phb);
        assert_eq!(link(1, 2), Link::Node);
        assert_eq!(link(1, 3), Link::Sys);
        assert_eq!(link(2, 2), Link::Same);
        assert!(backend.identity().version.contains("NVML"));
    });
}

#[test]
fn topology_over_a_switch_counts_the_links_of_each_gpu() {
    let test = "topology_over_a_switch_counts_the_links_of_each_gpu";
    in_process_with(test, Some("8x64MiB,links=nvlink18"), true, || {
        let backend = CudaBackend::new().unwrap();
        assert_eq!(backend.topology().link(GpuId(0), GpuId(7)), Link::NvLink(18));
    });
}

#[test]
fn topology_without_nvml_is_pci_and_says_so() {
    in_process_with("topology_without_nvml_is_pci_and_says_so", Some("2x64MiB"), false, || {
        let backend = CudaBackend::new().unwrap();
        // The simulated PCI addresses are not in this host's tree.
        assert_eq!(backend.topology().link(GpuId(0), GpuId(1)), Link::Sys);
        assert!(backend.identity().version.contains("PCI"), "{}", backend.identity().version);
    });
}

#[test]
fn can_access_follows_the_driver() {
    in_process_with("can_access_follows_the_driver", Some("2x64MiB,peers=none"), true, || {
        let backend = CudaBackend::new().unwrap();
        assert!(backend.can_access(GPU, GPU));
        assert!(!backend.can_access(GPU, GpuId(1)) && !backend.can_access(GpuId(9), GPU));
        let (band, _) = mapped(&backend);
        assert!(matches!(backend.set_access(band, &[GPU, GpuId(1)]), Err(GpuError::Driver { .. })));
    });
}

#[test]
fn lost_gpu_is_device_lost_from_then_on() {
    in_process_with("lost_gpu_is_device_lost_from_then_on", Some("2x64MiB"), true, || {
        let backend = CudaBackend::new().unwrap();
        let (band, stream) = mapped(&backend);
        let faults = SimulatedFaults::load();
        faults.pause(GPU);
        backend.copy_in(stream, band.start, span(100_000)).unwrap();
        let event = backend.record(stream).unwrap();
        faults.lose_gpu(GPU);
        let lost =
            |outcome: Result<bool, GpuError>| matches!(outcome, Err(GpuError::DeviceLost { gpu: GPU, .. }));
        assert!(lost(backend.synchronize(event, PATIENCE)));
        assert!(lost(backend.query(event)));
        assert!(lost(backend.fill(stream, band, Pattern::U8(1)).map(|()| true)));
        assert!(lost(backend.memory(GPU).map(|_| true)));
        assert!(lost(backend.create_stream(GPU).map(|_| true)));
        // The other GPU lives on.
        assert!(backend.memory(GpuId(1)).is_ok());
        assert!(backend.create_stream(GpuId(1)).is_ok());
    });
}

#[test]
fn backend_is_made_again_after_it_was_dropped_with_work_left() {
    let test = "backend_is_made_again_after_it_was_dropped_with_work_left";
    in_process_with(test, Some("1x64MiB"), true, || {
        let mut free_bytes = None;
        for _ in 0..3 {
            let backend = CudaBackend::new().unwrap();
            let free_now = backend.memory(GPU).unwrap().free_bytes;
            assert_eq!(*free_bytes.get_or_insert(free_now), free_now, "something was not given back");
            let (band, stream) = mapped(&backend);
            let source = span(300_000);
            backend.register_host(source.clone()).unwrap();
            for _ in 0..20 {
                backend.copy_in(stream, band.start, source.clone()).unwrap();
                backend.copy_in(stream, band.start, span(300_000)).unwrap();
            }
            backend.destroy_stream(stream).unwrap();
            let other = backend.create_stream(GPU).unwrap();
            backend.copy_out(other, span(1 << 20), band.start).unwrap();
        }
    });
}

#[test]
fn spans_go_although_nobody_records() {
    in_process_with("spans_go_although_nobody_records", Some("1x64MiB"), true, || {
        let backend = CudaBackend::new().unwrap();
        let (band, stream) = mapped(&backend);
        let maps = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        let before = maps();
        for _ in 0..20_000 {
            backend.copy_in(stream, band.start, span(4096)).unwrap();
        }
        // Each of them is a mapping of its own while it is held (two of a kind may be one line).
        assert!(maps() < before + 6_000, "{before} mappings became {}", maps());
    });
}
