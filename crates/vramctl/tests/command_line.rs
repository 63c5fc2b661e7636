//! The program itself, against the server it is made for.

use std::process::{Command, Output};
use std::sync::Arc;

use tempfile::TempDir;
use vram_control_api::v1::{
    BackedOnGpu, Daemon, Gpu, GpuState, Gpus, Placement, Slice, SliceChange, SliceCounters, SliceState,
    Slices,
};
use vram_control_server::{ControlServer, ControlState, Refusal};

struct FakeDaemon;

impl ControlState for FakeDaemon {
    fn daemon(&self) -> Daemon {
        Daemon {
            version: "9.8.7".into(),
            backend: "sim".into(),
            simulated: true,
            backend_version: "simulated GPUs".into(),
            boot_epoch: 0xab,
            uptime_seconds: 187,
        }
    }

    fn gpus(&self) -> Vec<Gpu> {
        vec![Gpu {
            index: 0,
            name: "Simulated GPU".into(),
            uuid: "00000000-0000-0000-0000-000000000001".into(),
            total_bytes: 1 << 30,
            pool_bytes: 1 << 30,
            used_bytes: 192 << 20,
            promised_bytes: 512 << 20,
            pci: Some("0000:65:00.0".into()),
            numa_node: None,
            state: GpuState::Ready,
        }]
    }

    fn change_slice(&self, name: &str, change: SliceChange) -> Result<Slice, Refusal> {
        let missing = || Refusal::NotFound { message: format!("There is no slice {name:?}") };
        let mut slice = self.slice(name).ok_or_else(missing)?;
        slice.limit_bytes = change.limit_bytes.unwrap_or(slice.limit_bytes);
        slice.guarantee_bytes = change.guarantee_bytes.unwrap_or(slice.guarantee_bytes);
        if slice.guarantee_bytes > slice.limit_bytes {
            return Err(Refusal::Conflict { message: "The guarantee is above the limit".into() });
        }
        Ok(slice)
    }

    fn drain_gpu(&self, index: u16) -> Result<Gpu, Refusal> {
        match index {
            0 => Ok(Gpu { state: GpuState::Draining, ..self.gpus().remove(0) }),
            1 => Err(Refusal::Conflict { message: "gpu1 is lost".into() }),
            _ => Err(Refusal::NotFound { message: format!("gpu{index} is not part of the pool") }),
        }
    }

    fn undrain_gpu(&self, index: u16) -> Result<Gpu, Refusal> {
        match index {
            0 => Ok(self.gpus().remove(0)),
            _ => Err(Refusal::NotFound { message: format!("gpu{index} is not part of the pool") }),
        }
    }

    fn slices(&self) -> Vec<Slice> {
        ["tenant-a", "b"].map(|name| self.slice(name).unwrap()).into()
    }

    fn slice(&self, name: &str) -> Option<Slice> {
        matches!(name, "tenant-a" | "b").then(|| Slice {
            name: name.into(),
            state: SliceState::InUse,
            guarantee_bytes: 512 << 20,
            limit_bytes: 3 << 29,
            placement: Placement::Spill,
            home_gpu: Some(0),
            allocated_bytes: 130 << 20,
            backed_bytes: 192 << 20,
            quarantined_bytes: 0,
            backed_by_gpu: vec![
                BackedOnGpu { gpu: 0, backed_bytes: 128 << 20 },
                BackedOnGpu { gpu: 1, backed_bytes: 64 << 20 },
            ],
            allocations: 3,
            contexts: 1,
            socket: format!("/run/vram/{name}.sock"),
            virtio_id: 37,
            request_queues: 2,
            counters: SliceCounters {
                requests: 12,
                errors: 1,
                in_bytes: 4096,
                out_bytes: 0,
                copied_bytes: 1 << 20,
            },
        })
    }
}

struct Fixture {
    folder: TempDir,
    _server: ControlServer,
}

fn serve() -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let server = ControlServer::start(folder.path().join("c.sock"), Arc::new(FakeDaemon)).unwrap();
    Fixture { folder, _server: server }
}

impl Fixture {
    fn run(&self, arguments: &[&str]) -> Output {
        vramctl().args(arguments).env("VRAM_CONTROL", self.folder.path().join("c.sock")).output().unwrap()
    }
}

fn vramctl() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vramctl"));
    command.env_remove("VRAM_CONTROL");
    command
}

fn output(result: &Output) -> &str {
    std::str::from_utf8(&result.stdout).unwrap()
}

fn notes(result: &Output) -> &str {
    std::str::from_utf8(&result.stderr).unwrap()
}

#[test]
fn tables_are_aligned() {
    let fixture = serve();
    let cases: &[(&[&str], &str)] = &[
        (
            &["gpu", "list"],
            "\
GPU  NAME           TOTAL  POOL    USED  PROMISED  PCI           NUMA  STATE
  0  Simulated GPU   1GiB  1GiB  192MiB    512MiB  0000:65:00.0     -  ready
",
        ),
        (
            &["slice", "list"],
            "\
NAME      STATE   GUARANTEE   LIMIT  ALLOCATED  BACKED  HOME  QUEUES  CONTEXTS
tenant-a  in use     512MiB  1.5GiB     130MiB  192MiB     0       2         1
b         in use     512MiB  1.5GiB     130MiB  192MiB     0       2         1
",
        ),
        (
            &["slice", "show", "b"],
            "\
name:           b
state:          in use
guarantee:      512MiB
limit:          1.5GiB
placement:      spill
home GPU:       0
allocated:      130MiB
backed:         192MiB (128MiB on GPU 0, 64MiB on GPU 1)
quarantined:    0B
allocations:    3
contexts:       1
socket:         /run/vram/b.sock
virtio id:      37
request queues: 2
requests:       12
errors:         1
moved in:       4KiB
moved out:      0B
copied:         1MiB
",
        ),
        (
            &["daemon"],
            "\
version:         9.8.7
backend:         sim (SIMULATED: no GPU is really there)
backend version: simulated GPUs
boot epoch:      00000000000000ab
uptime:          3m 7s
",
        ),
        (
            &["slice", "attach", "b", "--vmm", "qemu"],
            "-chardev socket,id=vram-b,path=/run/vram/b.sock -device vhost-user-test-device-pci,chardev=vram-b,\
             virtio-id=37,num_vqs=4,vq_size=256,config_size=64\n",
        ),
        (
            &["slice", "attach", "b", "--vmm", "cloud-hypervisor"],
            "--generic-vhost-user 'socket=/run/vram/b.sock,device_type=37,queue_sizes=[256,256,256,256]'\n",
        ),
    ];
    for (arguments, expected) in cases {
        let result = fixture.run(arguments);

        assert_eq!(output(&result), *expected, "{arguments:?}: {}", notes(&result));
        assert_eq!(result.status.code(), Some(0));
    }
}

#[test]
fn slices_are_resized() {
    let fixture = serve();

    let resized = fixture.run(&["slice", "resize", "tenant-a", "--limit", "3GiB", "--guarantee", "1GiB"]);
    assert!(resized.status.success() && output(&resized).contains("3GiB"), "{resized:?}");
    let refused = fixture.run(&["slice", "resize", "tenant-a", "--limit", "1MiB", "--guarantee", "1GiB"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(notes(&refused).contains("above the limit"), "{refused:?}");
    assert_eq!(fixture.run(&["slice", "resize", "tenant-a"]).status.code(), Some(2));
    assert_eq!(fixture.run(&["slice", "resize", "tenant-a", "--limit", "lots"]).status.code(), Some(2));
}

#[test]
fn gpus_are_drained_and_taken_back() {
    let fixture = serve();

    let drained = fixture.run(&["gpu", "drain", "0"]);
    assert!(drained.status.success() && output(&drained).contains("draining"), "{drained:?}");
    let back = fixture.run(&["gpu", "undrain", "0", "-o", "json"]);
    assert!(back.status.success() && output(&back).contains("\"ready\""), "{back:?}");
    let lost = fixture.run(&["gpu", "drain", "1"]);
    assert_eq!(lost.status.code(), Some(1));
    assert!(notes(&lost).contains("gpu1 is lost") && output(&lost).is_empty(), "{lost:?}");
    assert_eq!(fixture.run(&["gpu", "drain", "first"]).status.code(), Some(2));
    // Nothing is ever left on the GPU of this daemon, nor does it say that it is drained: somebody took it back.
    let waited = fixture.run(&["gpu", "drain", "0", "--wait"]);
    assert!(!waited.status.success() && notes(&waited).contains("somebody else"), "{waited:?}");
}

#[test]
fn json_is_that_of_the_api() {
    let fixture = serve();
    fn json<T: serde::de::DeserializeOwned>(fixture: &Fixture, arguments: &[&str]) -> T {
        let result = fixture.run(&[arguments, &["-o", "json"]].concat());
        assert!(result.stderr.is_empty(), "{}", notes(&result));
        serde_json::from_slice(&result.stdout).unwrap()
    }

    assert_eq!(json::<Gpus>(&fixture, &["gpu", "list"]).gpus, FakeDaemon.gpus());
    assert_eq!(json::<Slices>(&fixture, &["slice", "list"]).slices, FakeDaemon.slices());
    assert_eq!(json::<Slice>(&fixture, &["slice", "show", "b"]), FakeDaemon.slice("b").unwrap());
    assert_eq!(json::<Daemon>(&fixture, &["daemon"]), FakeDaemon.daemon());
    let versions: serde_json::Value = json(&fixture, &["version"]);
    assert_eq!(versions["vramd"], "9.8.7");
    let attachment: serde_json::Value = json(&fixture, &["slice", "attach", "b", "--vmm", "qemu"]);
    assert_eq!(attachment["minimum_version"], "10.2");
    assert_eq!(attachment["arguments"][0], "-chardev");
}

#[test]
fn notes_say_what_is_simulated_and_what_a_vmm_needs() {
    let fixture = serve();

    assert_eq!(notes(&fixture.run(&["gpu", "list"])), "note: these GPUs are simulated\n");
    let qemu = fixture.run(&["slice", "attach", "b", "--vmm", "qemu"]);
    assert!(notes(&qemu).contains("QEMU 10.2 or newer") && notes(&qemu).contains("memory-backend-memfd"));
    let cloud_hypervisor = fixture.run(&["slice", "attach", "b", "--vmm", "cloud-hypervisor"]);
    assert!(
        notes(&cloud_hypervisor).contains("Cloud Hypervisor 52")
            && notes(&cloud_hypervisor).contains("shared=on")
    );
}

#[test]
fn wrong_names_fail_with_the_known_ones() {
    let fixture = serve();

    for arguments in [&["slice", "show", "c"][..], &["slice", "attach", "c", "--vmm", "qemu"]] {
        let result = fixture.run(arguments);

        assert_eq!(result.status.code(), Some(1));
        assert_eq!(notes(&result), "error: There is no slice \"c\"\nhint: The slices are tenant-a, b\n");
        assert!(result.stdout.is_empty());
    }
}

#[test]
fn missing_daemon_fails_with_its_path_and_a_hint() {
    let result = vramctl().args(["slice", "list", "--control", "/nonexistent/c.sock"]).output().unwrap();

    assert_eq!(result.status.code(), Some(1));
    assert!(
        notes(&result)
            .starts_with("error: There is no socket at /nonexistent/c.sock\nhint: Is vramd running?")
    );
    assert!(notes(&result).contains("--control"));
}

#[test]
fn version_needs_no_daemon() {
    let result = vramctl().args(["version", "--control", "/nonexistent/c.sock"]).output().unwrap();

    assert_eq!(result.status.code(), Some(0));
    assert_eq!(output(&result), format!("vramctl: {}\nvramd:   -\n", env!("CARGO_PKG_VERSION")));
    assert!(notes(&result).contains("There is no socket"));
}

#[test]
fn wrong_usage_exits_with_2() {
    let cases: &[&[&str]] = &[
        &[],
        &["slice"],
        &["slice", "show"],
        &["slice", "attach", "b"],
        &["slice", "attach", "b", "--vmm", "xen"],
        &["gpu", "list", "-o", "yaml"],
        &["frobnicate"],
        &["gpu", "list", "--control"],
    ];
    for arguments in cases {
        let result = vramctl().args(*arguments).output().unwrap();

        assert_eq!(result.status.code(), Some(2), "{arguments:?}: {}", notes(&result));
    }
}

#[test]
fn closed_output_is_no_failure() {
    let fixture = serve();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);

    let status = vramctl()
        .args(["slice", "list"])
        .env("VRAM_CONTROL", fixture.folder.path().join("c.sock"))
        .stdout(writer)
        .status()
        .unwrap();

    assert_eq!(status.code(), Some(0));
}
