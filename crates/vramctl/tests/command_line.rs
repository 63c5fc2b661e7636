//! The program itself, against the server it is made for.

use std::process::{Command, Output};
use std::sync::Arc;

use tempfile::TempDir;
use vram_control_api::v1::{Daemon, Gpus, Slice, Slices};
use vram_control_server::ControlServer;
use vram_testkit::FakeDaemon;

struct Fixture {
    folder: TempDir,
    _server: ControlServer,
}

fn serve() -> Fixture {
    serve_as(FakeDaemon::default())
}

fn serve_as(daemon: FakeDaemon) -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let server = ControlServer::start(folder.path().join("c.sock"), Arc::new(daemon)).unwrap();
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
  1  Simulated GPU   1GiB  1GiB  192MiB    512MiB  -                0  lost
",
        ),
        (
            &["slice", "list"],
            "\
NAME      STATE   GUARANTEE   LIMIT  ALLOCATED  BACKED  HOME  QUEUES  CONTEXTS
a         in use     512MiB  1.5GiB     130MiB  192MiB     0       2         1
tenant-b  in use     512MiB  1.5GiB     130MiB  192MiB     0       2         1
",
        ),
        (
            &["slice", "show", "a"],
            "\
name:           a
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
socket:         /run/vram/a.sock
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
            &["slice", "attach", "a", "--vmm", "qemu"],
            "-chardev socket,id=vram-a,path=/run/vram/a.sock -device vhost-user-test-device-pci,chardev=vram-a,\
             virtio-id=37,num_vqs=4,vq_size=256,config_size=64\n",
        ),
        (
            &["slice", "attach", "a", "--vmm", "cloud-hypervisor"],
            "--generic-vhost-user 'socket=/run/vram/a.sock,device_type=37,queue_sizes=[256,256,256,256]'\n",
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

    let resized = fixture.run(&["slice", "resize", "a", "--limit", "3GiB", "--guarantee", "1GiB"]);
    assert!(resized.status.success() && output(&resized).contains("3GiB"), "{resized:?}");
    let refused = fixture.run(&["slice", "resize", "a", "--limit", "1MiB", "--guarantee", "1GiB"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(notes(&refused).contains("above the limit"), "{refused:?}");
    assert_eq!(fixture.run(&["slice", "resize", "a"]).status.code(), Some(2));
    assert_eq!(fixture.run(&["slice", "resize", "a", "--limit", "lots"]).status.code(), Some(2));
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

    let daemon = FakeDaemon::default();
    assert_eq!(json::<Gpus>(&fixture, &["gpu", "list"]).gpus, daemon.gpus);
    assert_eq!(json::<Slices>(&fixture, &["slice", "list"]).slices, daemon.slices);
    assert_eq!(json::<Slice>(&fixture, &["slice", "show", "a"]), daemon.slices[0]);
    assert_eq!(json::<Daemon>(&fixture, &["daemon"]), daemon.daemon);
    let versions: serde_json::Value = json(&fixture, &["version"]);
    assert_eq!(versions["vramd"], "9.8.7");
    let attachment: serde_json::Value = json(&fixture, &["slice", "attach", "a", "--vmm", "qemu"]);
    assert_eq!(attachment["minimum_version"], "10.2");
    assert_eq!(attachment["arguments"][0], "-chardev");
}

#[test]
fn notes_say_what_is_simulated_and_what_a_vmm_needs() {
    let fixture = serve();

    assert_eq!(notes(&fixture.run(&["gpu", "list"])), "note: these GPUs are simulated\n");
    let qemu = fixture.run(&["slice", "attach", "a", "--vmm", "qemu"]);
    assert!(notes(&qemu).contains("QEMU 10.2 or newer") && notes(&qemu).contains("memory-backend-memfd"));
    let cloud_hypervisor = fixture.run(&["slice", "attach", "a", "--vmm", "cloud-hypervisor"]);
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
        assert_eq!(notes(&result), "error: There is no slice \"c\"\nhint: The slices are a, tenant-b\n");
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
        &["slice", "attach", "a"],
        &["slice", "attach", "a", "--vmm", "xen"],
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
