//! The program as a user runs it, on a preloaded stand-in for the device: separate processes, a real holder, real
//! descriptors passed between them.

use std::{
    fs,
    io::{Read, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const PROGRAM: &str = env!("CARGO_BIN_EXE_vram");

/// The library to preload, or `None` without a C compiler.
fn fake_device() -> Option<&'static Path> {
    static FAKE: OnceLock<Option<PathBuf>> = OnceLock::new();
    FAKE.get_or_init(|| {
        let libvram = Path::new(env!("CARGO_MANIFEST_DIR")).join("../libvram");
        let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fake-{}.so", std::process::id()));
        let compiled = Command::new("cc")
            .args(["-std=gnu11", "-O2", "-shared", "-fPIC", "-I"])
            .arg(libvram.join("../include"))
            .arg(libvram.join("tests/fake_device.c"))
            .arg("-o")
            .arg(&library)
            .args(["-ldl", "-pthread"])
            .output()
            .ok()?;
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        // Under one name, so that runs leave one file; renamed, so that no run sees half of it.
        let settled = library.with_file_name("fake_device.so");
        fs::rename(&library, &settled).unwrap();
        Some(settled)
    })
    .as_deref()
}

/// A folder with a holder of its own, which ends with it.
struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    /// `None` without a C compiler, said once for each test.
    fn new() -> Option<Self> {
        if fake_device().is_none() {
            eprintln!("SKIPPED: there is no C compiler (cc), so there is no stand-in for the device");
            return None;
        }
        Some(Self { folder: tempfile::tempdir().unwrap() })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env("LD_PRELOAD", fake_device().unwrap())
            .env("VRAM_FAKE_DEVICE", "/dev/vram-fake")
            .env("VRAM_FAKE_STALE", self.folder.path().join("restarted"))
            .env("VRAM_FAKE_LIFE", std::process::id().to_string())
            .env("VRAM_DEVICE", "/dev/vram-fake")
            .env("VRAM_RUNTIME_DIR", self.folder.path().join("run"));
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Standard output of a command that succeeds.
    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    fn json(&self, arguments: &[&str]) -> serde_json::Value {
        let arguments: Vec<&str> = arguments.iter().copied().chain(["-o", "json"]).collect();
        serde_json::from_str(&self.ok(&arguments)).unwrap()
    }

    /// Standard error of a command that fails with `status`.
    fn fails(&self, status: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {}", text(&output.stdout));
        text(&output.stderr)
    }

    fn file(&self, name: &str, len: usize) -> Vec<u8> {
        let bytes: Vec<u8> = (0..len).map(|index| (index * 31 / 7) as u8).collect();
        fs::write(self.folder.path().join(name), &bytes).unwrap();
        bytes
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.folder.path().join(name)).unwrap()
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("run/vram-fake.hold.sock")
    }

    /// The holder's process, found as whoever has the lock open.
    fn holder(&self) -> i32 {
        let lock = self.folder.path().join("run/vram-fake.hold.lock");
        let lock = fs::canonicalize(lock).unwrap();
        fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
            .find(|pid| {
                fs::read_dir(format!("/proc/{pid}/fd")).is_ok_and(|mut descriptors| {
                    descriptors
                        .any(|fd| fd.is_ok_and(|fd| fs::read_link(fd.path()).is_ok_and(|path| path == lock)))
                })
            })
            .expect("a holder runs")
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = self.run(&["release", "--force"]);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn eventually(what: &str, check: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !check() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn info_says_loudly_that_gpus_are_simulated() {
    let Some(bench) = Bench::new() else { return };

    assert!(bench.ok(&["info"]).starts_with("*** SIMULATED"));
    let info = bench.json(&["info"]);

    assert_eq!(info["simulated"], true);
    assert_eq!(info["slice"], "fake");
    assert_eq!(info["gpus"][1]["name"], "Fake GPU one");
}

#[test]
fn put_get_copy_verify_free_in_separate_processes_keep_every_byte() {
    let Some(bench) = Bench::new() else { return };
    let bytes = bench.file("weights.bin", (33 << 20) + 5);

    let put = bench.json(&["put", "weights.bin"]);
    assert_eq!(put["name"], "weights.bin");
    assert_eq!(put["bytes"], bytes.len());
    assert_eq!(put["placement"][1]["gpu_name"], "Fake GPU one");
    let address = put["address"].as_str().unwrap();
    let get = bench.json(&["get", address, "back.bin"]);
    assert_eq!(get["sha256"], put["sha256"]);
    assert!(bench.read("back.bin") == bytes);
    let copy = bench.json(&["copy", "weights.bin", "second"]);
    assert_eq!(copy["source"]["name"], "weights.bin");
    assert_ne!(copy["address"], put["address"]);
    bench.ok(&["verify", "second"]);
    bench.ok(&["verify", "second", "--file", "weights.bin"]);
    bench.ok(&["verify", "second", "--sha256", put["sha256"].as_str().unwrap()]);
    assert_eq!(bench.json(&["list"]).as_array().unwrap().len(), 2);
    bench.ok(&["free", "second"]);
    assert!(bench.ok(&["free", "weights.bin"]).contains("33.00 MiB in 1 allocation"));

    eventually("the holder ends", || !bench.socket().exists());
    assert_eq!(bench.ok(&["list"]), "Nothing is held.\n");
    assert!(bench.fails(1, &["get", "second", "x"]).contains("Nothing is held"));
}

#[test]
fn verify_of_other_bytes_fails_with_the_first_offset() {
    let Some(bench) = Bench::new() else { return };
    let mut bytes = bench.file("f", 9 << 20);
    bench.ok(&["put", "f", "--name", "x"]);
    bytes[(8 << 20) + 77] ^= 1;
    fs::write(bench.folder.path().join("g"), &bytes).unwrap();

    let output = bench.run(&["verify", "x", "--file", "g"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains(&format!("DIFFERENT from byte {}", (8 << 20) + 77)));
    assert_eq!(text(&output.stderr), "");

    fs::write(bench.folder.path().join("g"), &bytes[..100]).unwrap();
    let output = bench.run(&["verify", "x", "--file", "g"]);
    assert!(text(&output.stdout).contains("DIFFERENT from byte 100"), "{}", text(&output.stdout));
    assert_eq!(bench.run(&["verify", "x", "--sha256", &"0".repeat(64)]).status.code(), Some(1));
}

#[test]
fn fill_changes_every_byte_and_forgets_the_digest() {
    let Some(bench) = Bench::new() else { return };
    bench.file("f", 4096);
    bench.ok(&["put", "f", "--name", "x"]);

    bench.ok(&["fill", "x", "--pattern", "0x0201", "--width", "2"]);
    let refused = bench.fails(1, &["verify", "x"]);
    bench.ok(&["get", "x", "back"]);

    assert!(refused.contains("--file or --sha256"), "{refused}");
    assert_eq!(bench.read("back"), [1, 2].repeat(2048));
    assert!(bench.fails(2, &["fill", "x", "--pattern", "256"]).contains("does not fit"));
}

#[test]
fn advise_is_heard_and_shows_where_the_bytes_are() {
    let Some(bench) = Bench::new() else { return };
    bench.file("f", 20 << 20);
    bench.ok(&["put", "f", "--name", "x"]);

    for advice in [&["prefetch"][..], &["cold"], &["pin"], &["unpin"], &["gpu", "1"]] {
        let arguments: Vec<&str> = ["advise", "x"].iter().chain(advice).copied().collect();
        let advised = bench.json(&arguments);
        assert_eq!((&advised["name"], &advised["placement"][0]["tier"]), (&"x".into(), &"gpu".into()));
    }

    assert!(bench.ok(&["advise", "x", "cold"]).contains("placement   GPU 0 Fake GPU zero"));
    assert!(bench.fails(1, &["advise", "x", "gpu", "2"]).contains("GPU or overlap is not valid"));
    assert!(bench.fails(1, &["advise", "y", "cold"]).contains('y'));
}

#[test]
fn events_are_shown_as_they_come_until_there_were_enough() {
    let Some(bench) = Bench::new() else { return };

    let shown = bench.ok(&["events", "--count", "3"]);
    let starts: Vec<&str> = shown.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(starts, ["gpu-lost", "data-lost", "limit-changed"]);
    assert!(shown.contains("4 KiB from 0x7f0000000000 on") && shown.contains("256 MiB, of which 128 MiB"));

    let shown = bench.ok(&["events", "--seconds", "0.05", "-o", "json"]);
    let last: serde_json::Value = serde_json::from_str(shown.lines().last().unwrap()).unwrap();
    assert_eq!((shown.lines().count(), &last["event"], &last["count"]), (4, &"missed".into(), &5.into()));
}

#[test]
fn put_from_a_pipe_needs_a_size_and_get_writes_to_one() {
    let Some(bench) = Bench::new() else { return };
    let with_input = |arguments: &[&str], input: &'static [u8]| {
        let mut child = bench
            .command(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let _ = stdin.write_all(input);
        drop(stdin);
        child.wait_with_output().unwrap()
    };

    assert!(text(&with_input(&["put", "-"], b"hello").stderr).contains("--size"));
    assert!(with_input(&["put", "-", "--size", "5", "--name", "p"], b"hello").status.success());
    let got = bench.run(&["get", "p", "-"]);
    assert_eq!(got.stdout, b"hello");
    assert!(text(&got.stderr).contains("sha256"));
    let short = with_input(&["put", "-", "--size", "6", "--name", "q"], b"hello");

    assert!(text(&short.stderr).contains("after 5 of 6 bytes"), "{}", text(&short.stderr));
    eventually("what was not finished is freed", || bench.json(&["list"]).as_array().unwrap().len() == 1);
    bench.ok(&["get", "p", "/dev/null"]);
}

#[test]
fn put_beyond_the_limit_says_so_and_leaves_nothing() {
    let Some(bench) = Bench::new() else { return };

    let refused = bench.fails(1, &["put", "/dev/zero", "--size", "1GiB"]);

    assert!(refused.contains("limit does not allow it"), "{refused}");
    assert!(!refused.contains('\n') || refused.matches('\n').count() == 1, "{refused}");
    eventually("the holder ends", || !bench.socket().exists());
}

#[test]
fn names_are_unique_and_numbered_by_default() {
    let Some(bench) = Bench::new() else { return };
    bench.file("f", 100);

    assert_eq!(bench.json(&["put", "f"])["name"], "f");
    assert_eq!(bench.json(&["put", "f"])["name"], "f-2");
    assert_eq!(bench.json(&["copy", "f"])["name"], "f-copy");
    assert!(bench.fails(1, &["put", "f", "--name", "f"]).contains("vram free f"));
    assert!(bench.ok(&["free", "--all"]).contains("3 allocation"));
}

#[test]
fn holder_killed_frees_all_and_is_said() {
    let Some(bench) = Bench::new() else { return };
    bench.file("f", 100);
    bench.ok(&["put", "f"]);

    kill(Pid::from_raw(bench.holder()), Signal::SIGKILL).unwrap();

    eventually("the holder is gone", || bench.fails(1, &["get", "f", "x"]).contains("was killed"));
    assert!(bench.fails(1, &["list"]).contains("put the data again"));
    let again = bench.run(&["put", "f"]);
    assert!(again.status.success());
    assert!(text(&again.stderr).starts_with("vram: note: The holder"), "{}", text(&again.stderr));
    bench.ok(&["verify", "f"]);
}

#[test]
fn daemon_started_anew_is_said_and_release_starts_over() {
    let Some(bench) = Bench::new() else { return };
    bench.file("f", 100);
    bench.ok(&["put", "f"]);

    fs::write(bench.folder.path().join("restarted"), "").unwrap();

    let refused = bench.fails(1, &["get", "f", "x"]);
    assert!(refused.contains("started anew") && refused.contains("vram release"), "{refused}");
    let refused = bench.fails(1, &["put", "f"]);
    assert!(refused.contains("started anew") && refused.contains("vram release"), "{refused}");
    bench.ok(&["release"]);
    bench.ok(&["put", "f"]);
    bench.ok(&["verify", "f"]);
}

#[test]
fn holder_of_a_test_that_is_stopped_ends_with_it() {
    let Some(bench) = Bench::new() else { return };
    bench.file("f", 100);
    let mut test = Command::new("sleep").arg("60").spawn().unwrap();
    let put = bench.command(&["put", "f"]).env("VRAM_FAKE_LIFE", test.id().to_string()).output().unwrap();
    assert!(put.status.success(), "{}", text(&put.stderr));
    let holder = bench.holder();

    test.kill().unwrap();
    test.wait().unwrap();

    eventually("the holder ends", || !Path::new(&format!("/proc/{holder}/fd/0")).exists());
}

#[test]
fn puts_at_the_same_time_share_one_holder() {
    let Some(bench) = Bench::new() else { return };
    bench.file("f", 1 << 20);

    let children: Vec<_> =
        (0..8).map(|_| bench.command(&["put", "f"]).stdout(Stdio::null()).spawn().unwrap()).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }

    assert_eq!(bench.json(&["list"]).as_array().unwrap().len(), 8);
}

#[test]
fn free_of_what_another_command_reads_is_refused() {
    let Some(bench) = Bench::new() else { return };
    bench.file("f", 64 << 20);
    bench.ok(&["put", "f"]);
    // Its output fills the pipe, so that it stays.
    let mut reader = bench.command(&["get", "f", "-"]).stdout(Stdio::piped()).spawn().unwrap();
    reader.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    assert!(bench.fails(1, &["release"]).contains("is in use by process"));

    let refused = bench.fails(1, &["free", "f"]);
    assert!(refused.contains(&format!("in use by process {}", reader.id())), "{refused}");
    drop(reader.stdout.take());
    assert!(!reader.wait().unwrap().success());

    eventually("it can be freed", || bench.run(&["free", "f"]).status.success());
}

#[test]
fn commands_of_a_killed_terminal_leave_the_holder_alone() {
    let Some(bench) = Bench::new() else { return };
    bench.file("f", 100);
    let mut command = bench.command(&["put", "f"]);
    let status = command.process_group(0).status().unwrap();
    assert!(status.success());

    let holder = bench.holder();
    let session = fs::read_to_string(format!("/proc/{holder}/stat")).unwrap();
    let session: i32 = session.rsplit(") ").next().unwrap().split(' ').nth(3).unwrap().parse().unwrap();

    assert_eq!(session, holder);
}

#[test]
fn raw_runs_all_steps_and_names_errors() {
    let Some(bench) = Bench::new() else { return };

    let output = bench.run(&[
        "raw",
        "alloc 4096",
        "write @0 deadbeef",
        "copy @0+1KiB @0 4",
        "read @0+1024 4",
        "read @0+4093 4",
        "read 0x10 1",
        "fill @0 4096 0xabcd 2",
        "read @0 3",
        "free @0",
        "read @0 1",
        "alloc 2GiB",
        "stream 1024",
        "fence",
        "read @7 1",
    ]);

    assert_eq!(output.status.code(), Some(1));
    let lines: Vec<String> = text(&output.stdout).lines().map(str::to_owned).collect();
    let starts = [
        "0 ok 0x7f",
        "1 ok 4 bytes",
        "2 ok 4 bytes",
        "3 ok deadbeef",
        "4 error ENXIO (6) moved 0: Read of 4 bytes",
        "5 error ENXIO (6)",
        "6 ok",
        "7 ok cdabcd",
        "8 ok freed",
        "9 error ENXIO (6)",
        "10 error EDQUOT (122)",
        "11 ok stream 1024",
        "12 error EINVAL (22)",
        "13 error: \"read @7 1\" names an allocation that was not made",
    ];
    assert_eq!(lines.len(), starts.len(), "{lines:#?}");
    for (line, start) in lines.iter().zip(starts) {
        assert!(line.starts_with(start), "{line} is not {start}…");
    }
    assert!(text(&output.stderr).contains("6 of 14 steps failed"));
    assert!(bench.fails(2, &["raw", "explode"]).contains("explode"));
}

#[test]
fn bench_measures_each_operation_on_several_streams() {
    let Some(bench) = Bench::new() else { return };
    let arguments = ["bench", "--seconds", "0.05", "--size", "8MiB", "--block", "64KiB", "--streams", "3"];

    let report = bench.json(&arguments);

    for table in ["throughput", "latency"] {
        let operations: Vec<&str> = report[table]
            .as_array()
            .unwrap()
            .iter()
            .map(|line| line["operation"].as_str().unwrap())
            .collect();
        assert_eq!(operations, ["write", "read", "copy", "fill"]);
    }
    assert!(report["throughput"][0]["mib_per_second"].as_f64().unwrap() > 0.0);
    assert!(bench.ok(&arguments).contains("MiB/s"));
}

#[test]
fn bench_of_sizes_that_do_not_fit_says_what_to_change() {
    let Some(bench) = Bench::new() else { return };

    let complaint = bench.fails(2, &["bench", "--size", "1MiB", "--block", "512KiB", "--streams", "4"]);
    assert_eq!(
        complaint,
        "vram: A --block of 512 KiB is more than the 256 KiB that each of 4 stream(s) has of --size 1 MiB: \
         choose a smaller --block or a larger --size\n"
    );
    assert!(
        bench.fails(2, &["bench", "--size", "0"]).contains("'0' for '--size <SIZE>': A size is more than 0")
    );
    let complaint = bench.fails(1, &["bench", "--size", "16777215TiB"]);
    assert!(complaint.contains("limit"), "{complaint}");
}

#[test]
fn outputs_that_are_full_or_closed_end_with_the_right_status() {
    let Some(bench) = Bench::new() else { return };
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();

    for (arguments, status) in [(&["info"][..], 0), (&["get", "x", "y"], 1), (&["frobnicate"], 2)] {
        let heard_by_nobody = bench.command(arguments).stderr(full()).output().unwrap();
        assert_eq!(heard_by_nobody.status.code(), Some(status), "{arguments:?}");
    }
    for arguments in [&["info"][..], &["list"], &["--help"], &["--version"]] {
        let unsaid = bench.command(arguments).stdout(full()).output().unwrap();
        assert_eq!(unsaid.status.code(), Some(1), "{arguments:?}");
        assert!(text(&unsaid.stderr).contains("No space left"), "{arguments:?}: {}", text(&unsaid.stderr));
        let nowhere = bench.command(arguments).stdout(full()).stderr(full()).status().unwrap();
        assert_eq!(nowhere.code(), Some(1), "{arguments:?}");
    }
}

#[test]
fn commands_without_a_device_say_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("f");
    fs::write(&file, "x").unwrap();
    let run = |arguments: &[&str]| {
        let output = Command::new(PROGRAM)
            .args(arguments)
            .arg("--device")
            .arg("/dev/vram-missing")
            .env("VRAM_RUNTIME_DIR", folder.path().join("run"))
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        text(&output.stderr)
    };

    for arguments in [vec!["info"], vec!["put", file.to_str().unwrap()], vec!["bench"], vec!["hold"]] {
        let complaint = run(&arguments);
        assert!(complaint.contains("/dev/vram-missing is not there; load the module"), "{complaint}");
    }
    assert!(run(&["get", "x", "y"]).contains("Nothing is held"));
}
