//! The program itself, against the server it is made for.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;

use tempfile::TempDir;
use vram_control_api::is_printable;
use vram_control_api::v1::{Daemon, ErrorBody, Gpus, Slice, Slices, Tiers};
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
    fn socket(&self) -> PathBuf {
        self.folder.path().join("c.sock")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = vramctl();
        command.args(arguments).env("VRAM_CONTROL", self.socket());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
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
NAME      STATE   GUARANTEE   LIMIT  ALLOCATED  BACKED  STORED  HOME  QUEUES  CONTEXTS
a         in use     512MiB  1.5GiB     130MiB  192MiB   64MiB     0       2         1
tenant-b  in use     512MiB  1.5GiB     130MiB  192MiB   64MiB     0       2         1
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
stored:         64MiB
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
            &["tier", "list"],
            "\
KIND        STATE   SIZE   USED   HOLDS  REGIONS      IN     OUT  ERRORS
compressed  ready   1GiB  96MiB  192MiB        3  320MiB  128MiB       7
remote      paused     -  96MiB  192MiB        3  320MiB  128MiB       7
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
    assert_eq!(json::<Tiers>(&fixture, &["tier", "list"]).tiers, daemon.tiers);
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

    let status = fixture.command(&["slice", "list"]).stdout(writer).status().unwrap();

    assert_eq!(status.code(), Some(0));
}

fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

/// Commands and the statuses they end with when all is well with the outputs.
const ENDINGS: [(&[&str], i32); 5] = [
    (&["gpu", "list"], 0),
    (&["slice", "attach", "a", "--vmm", "qemu"], 0),
    (&["slice", "show", "c"], 1),
    (&["slice", "show", "c", "-o", "json"], 1),
    (&["frobnicate"], 2),
];

#[test]
fn full_standard_error_does_not_change_the_status() {
    let fixture = serve();
    for (arguments, status) in ENDINGS {
        let result = fixture.command(arguments).stderr(full()).output().unwrap();

        assert_eq!(result.status.code(), Some(status), "{arguments:?}");
        assert_eq!(result.stdout.is_empty(), status != 0, "{arguments:?}");
    }
}

#[test]
fn full_standard_output_is_a_failure_that_is_told() {
    let fixture = serve();
    for arguments in [&["gpu", "list"][..], &["daemon", "-o", "json"], &["--help"], &["--version"]] {
        let result = fixture.command(arguments).stdout(full()).output().unwrap();

        assert_eq!(result.status.code(), Some(1), "{arguments:?}");
        assert!(notes(&result).contains("Cannot write the result: No space left"), "{}", notes(&result));
        let both = fixture.command(arguments).stdout(full()).stderr(full()).status().unwrap();
        assert_eq!(both.code(), Some(1), "{arguments:?}");
    }
}

#[test]
fn closed_outputs_do_not_change_the_status() {
    let fixture = serve();
    for (arguments, status) in ENDINGS {
        for closed in ["2>&-", ">&-", ">&- 2>&-"] {
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("exec \"$0\" \"$@\" {closed}"), env!("CARGO_BIN_EXE_vramctl")]);
            shell.args(arguments).env("VRAM_CONTROL", fixture.socket());

            assert_eq!(shell.output().unwrap().status.code(), Some(status), "{arguments:?} {closed}");
        }
    }
}

/// A terminal would obey some of it.
const HOSTILE: &str =
    "x\u{1b}]0;owned\u{7}\u{1b}[2J\r\nerror: y\u{7f}\u{9b}1m\u{202e}z\u{2066}\u{2069}\u{200f}";

fn is_harmless(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).unwrap().chars().all(|c| c == '\n' || is_printable(c))
}

fn hostile_daemon() -> FakeDaemon {
    let mut daemon = FakeDaemon::default();
    daemon.daemon.version = HOSTILE.into();
    daemon.daemon.backend = HOSTILE.into();
    daemon.daemon.backend_version = HOSTILE.into();
    daemon.gpus[0].name = HOSTILE.into();
    daemon.gpus[0].pci = Some(HOSTILE.into());
    daemon.slices[0].socket = HOSTILE.into();
    daemon.slices[1].name = HOSTILE.into();
    daemon
}

#[test]
fn words_of_a_hostile_daemon_are_shown_and_not_obeyed() {
    let fixture = serve_as(hostile_daemon());
    let commands: [&[&str]; 8] = [
        &["gpu", "list"],
        &["slice", "list"],
        &["slice", "show", "a"],
        &["slice", "show", "c"],
        &["slice", "show", HOSTILE],
        &["slice", "resize", "c", "--limit", "1GiB"],
        &["daemon"],
        &["version"],
    ];
    for arguments in commands {
        for format in ["table", "json"] {
            let result = fixture.run(&[arguments, &["-o", format]].concat());

            assert!(is_harmless(&result.stdout) && is_harmless(&result.stderr), "{arguments:?}: {result:?}");
            let lines = output(&result).lines().chain(notes(&result).lines());
            assert!(!lines.into_iter().any(|line| line.starts_with("error: y")), "{result:?}");
        }
    }
    let slices: Slices =
        serde_json::from_slice(&fixture.run(&["slice", "list", "-o", "json"]).stdout).unwrap();
    assert_eq!(slices.slices[1].name, HOSTILE);
}

#[test]
fn slice_of_a_hostile_daemon_is_not_attached() {
    let mut daemon = FakeDaemon::default();
    daemon.slices[0].socket = "/s\n; reboot #".into();
    daemon.slices[1].name = "$(reboot),server=on".into();
    daemon.slices.push(Slice { socket: "/a,b c'd".into(), ..FakeDaemon::named_slice("odd") });
    let fixture = serve_as(daemon);

    for vmm in ["qemu", "cloud-hypervisor"] {
        for (name, said) in [("a", "no path of a socket"), ("$(reboot),server=on", "no name of a slice")] {
            for format in ["table", "json"] {
                let result = fixture.run(&["slice", "attach", name, "--vmm", vmm, "-o", format]);

                assert_eq!(result.status.code(), Some(1));
                assert!(result.stdout.is_empty() && notes(&result).contains(said), "{result:?}");
            }
        }
    }
    let odd = fixture.run(&["slice", "attach", "odd", "--vmm", "qemu"]);
    assert!(output(&odd).starts_with(r"-chardev 'socket,id=vram-odd,path=/a,,b c'\''d' -device"), "{odd:?}");
    let odd = fixture.run(&["slice", "attach", "odd", "--vmm", "cloud-hypervisor"]);
    assert!(odd.stdout.is_empty() && notes(&odd).contains("cannot be told the socket"), "{odd:?}");
}

#[test]
fn errors_beside_json_are_json_of_the_same_shape() {
    let fixture = serve();
    let failure = |result: Output| {
        assert!(result.status.code() == Some(1) && result.stdout.is_empty(), "{result:?}");
        serde_json::from_slice::<serde_json::Value>(&result.stderr).unwrap()
    };

    let missing = failure(fixture.run(&["slice", "show", "c", "-o", "json"]));
    assert_eq!(
        missing,
        serde_json::json!({
            "code": "not_found",
            "message": "There is no slice \"c\"",
            "hint": "The slices are a, tenant-b",
        })
    );
    let lost = failure(fixture.run(&["gpu", "drain", "1", "-o", "json"]));
    assert_eq!(lost, serde_json::json!({ "code": "conflict", "message": "gpu1 is lost" }));
    let nobody =
        vramctl().args(["daemon", "-o", "json", "--control", "/nonexistent/c\u{1b}"]).output().unwrap();
    let nobody = failure(nobody);
    assert_eq!(nobody["code"], "unreachable");
    assert_eq!(nobody["message"], "There is no socket at /nonexistent/c\u{1b}");
    serde_json::from_value::<ErrorBody>(nobody).unwrap();
    let waited = failure(fixture.run(&["gpu", "drain", "0", "--wait", "-o", "json"]));
    assert_eq!(waited["code"], "failed");
    let full = fixture.command(&["daemon", "-o", "json"]).stdout(full()).output().unwrap();
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&full.stderr).unwrap()["code"], "failed");
    let version = vramctl().args(["version", "-o", "json", "--control", "/nonexistent/c"]).output().unwrap();
    assert!(version.status.success() && version.stderr.is_empty(), "{version:?}");
}

#[test]
fn arguments_that_are_refused_are_repeated_in_printable_characters() {
    let not_utf8 = OsStr::from_bytes(b"--\xff\x1b[2J");
    let hostile = OsStr::new(HOSTILE);
    let cases: [&[&OsStr]; 8] = [
        &[hostile],
        &[not_utf8],
        &[OsStr::new("slice"), not_utf8],
        &[OsStr::new("slice"), OsStr::new("show"), OsStr::from_bytes(b"\xff\x1b[2J")],
        &[OsStr::new("gpu"), OsStr::new("drain"), hostile],
        &[OsStr::new("gpu"), OsStr::new("list"), OsStr::new("-o"), hostile],
        &[OsStr::new("slice"), OsStr::new("resize"), OsStr::new("a"), OsStr::new("--limit"), hostile],
        &[OsStr::new("gpu"), OsStr::new("list"), OsStr::new("--x\u{1b}[2J\nerror: y")],
    ];
    for arguments in cases {
        let result = vramctl().args(arguments).output().unwrap();

        assert_eq!(result.status.code(), Some(2), "{arguments:?}");
        assert!(is_harmless(&result.stderr), "{arguments:?}: {result:?}");
        assert!(!notes(&result).lines().any(|line| line.starts_with("error: y")), "{result:?}");
    }
    let socket = OsStr::from_bytes(b"/nonexistent/\xff\x1b[2J");
    let result = vramctl().arg("daemon").arg("--control").arg(socket).output().unwrap();
    assert!(result.status.code() == Some(1) && is_harmless(&result.stderr), "{result:?}");
}
