//! The binaries as an operator runs them: bad command lines, bad files, and vramctl against a running vramd.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use vram_testkit::{Driver, VmSpec};
use vram_tests::binary;

fn vramd(args: &[&str]) -> Result<Output> {
    let mut child = Command::new(binary("vramd")?)
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("vramd")?;
    // None of these may start serving; one that does is ended, and the missing exit code fails the test.
    let deadline = Instant::now() + Duration::from_secs(10);
    while child.try_wait()?.is_none() {
        if Instant::now() >= deadline {
            child.kill()?;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(child.wait_with_output()?)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn wrong_command_lines_get_one_clear_message_and_exit_code_2() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let sockets = dir.path().to_string_lossy().into_owned();
    let cases: &[(&[&str], &str)] = &[
        (&["--gpu", "rocm", "--slice", "a=1GiB"], "rocm"),
        (&["--gpu", "sim:", "--slice", "a=1GiB"], "sim:4x1GiB"),
        (&["--gpu", "sim:0x1GiB", "--slice", "a=1GiB"], "0x1GiB"),
        (&["--gpu", "sim:4xlots", "--slice", "a=1GiB"], "lots"),
        (&["--gpu", "sim:4x1GiB,colour=red", "--slice", "a=1GiB"], "colour"),
        (&["--slice", "a"], "--slice"),
        (&["--slice", "a=big"], "big"),
        (&["--slice", "a=0"], "limit"),
        (&["--slice", "a=-1"], "-1"),
        (&["--slice", "Bad Name=1GiB"], "Bad Name"),
        (&["--slice", "a=1GiB", "--slice", "a=1GiB"], "already defined"),
        (&["--slice", "a=1GiB,guarantee=2GiB"], "guarantee"),
        (&["--slice", "a=1GiB,queues=0"], "queues"),
        (&["--gpu", "sim:2x1GiB", "--slice", "a=1GiB,home=2"], "The home of slice a is GPU 2"),
        (&["--slice", "a=1GiB", "--shard", "3MiB"], "shard"),
        (&["--slice", "a=1GiB", "--shard", "2GiB"], "shard"),
        (&["--slice", "a=1GiB", "--virtio-id", "64"], "virtio-id"),
        (&["--config", "/nonexistent/vramd.toml"], "/nonexistent/vramd.toml"),
        (&["--frobnicate"], "--frobnicate"),
        (&["--gpu", "\u{1b}[31mred"], "\\u{1b}[31mred"),
        (&[], "slice"),
    ];
    for (args, names) in cases {
        let mut args = args.to_vec();
        args.extend(["--socket-dir", &sockets]);
        let output = vramd(&args)?;
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
        assert!(message.contains(names), "{args:?} does not name {names}: {message}");
    }
    Ok(())
}

#[test]
fn wrong_configuration_files_name_the_field_and_exit_2() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("vramd.toml");
    let cases = [
        ("[[slice]]\nname = \"a\"\nlimit = \"1GiB\"\ncolour = 1\n", "colour"),
        ("[[slice]]\nname = \"a\"\n", "limit"),
        ("[[slice]]\nname = \"a\"\nlimit = \"many\"\n", "many"),
        ("[gpu]\nbackend = \"abacus\"\n[[slice]]\nname = \"a\"\nlimit = \"1GiB\"\n", "abacus"),
        ("shard = \"1MiB\"\n[[slice]]\nname = \"a\"\nlimit = \"1GiB\"\n", "shard"),
        ("[[slice]]\nname = \"a\"\nlimit = \"1GiB\"\nhome = 9\n", "home of slice a"),
        ("this is not toml", "vramd.toml"),
        ("\"\\u001b[31mred\" = 1\n", "\\u{1b}[31mred"),
        (
            "[gpu]\nbackend = \"sim\"\nspec = \"1x1GiB,\\u0007=1\"\n[[slice]]\nname = \"a\"\nlimit = 1\n",
            "\\u{7}",
        ),
    ];
    for (contents, names) in cases {
        fs::write(&path, contents)?;
        let output = vramd(&["--config", &path.to_string_lossy()])?;
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{contents}: {message}");
        assert!(message.contains(names), "{contents} does not name {names}: {message}");
        assert!(!message.trim_end().contains(char::is_control), "{contents}: {message:?}");
    }
    Ok(())
}

#[test]
fn slice_that_cannot_fit_is_refused_with_what_is_free() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let sockets = dir.path().to_string_lossy().into_owned();
    let output = vramd(&[
        "--gpu",
        "sim:2x256MiB",
        "--slice",
        "a=384MiB,guarantee=384MiB",
        "--slice",
        "b=256MiB,guarantee=256MiB",
        "--socket-dir",
        &sockets,
    ])?;
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains('b') && message.contains("128MiB"), "{message}");
    Ok(())
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(dir: &Path) -> Result<Running> {
    let child = Command::new(binary("vramd")?)
        .args(["--gpu", "sim:4x1GiB", "--slice", "web=2GiB,guarantee=1GiB", "--slice", "batch=3GiB,queues=4"])
        .arg("--socket-dir")
        .arg(dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let running = Running(child);
    let control = dir.join("control.sock");
    let deadline = Instant::now() + Duration::from_secs(10);
    while !control.exists() {
        if Instant::now() >= deadline {
            bail!("vramd did not come up");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(running)
}

fn vramctl(dir: &Path, args: &[&str]) -> Result<Output> {
    Ok(Command::new(binary("vramctl")?).arg("--control").arg(dir.join("control.sock")).args(args).output()?)
}

#[test]
fn vramctl_shows_a_running_daemon_and_prints_the_devices() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let running = start(dir.path())?;
    let gpus = vramctl(dir.path(), &["gpu", "list"])?;
    assert!(gpus.status.success());
    assert_eq!(text(&gpus.stdout).lines().count(), 5, "a title and four GPUs");
    let json = vramctl(dir.path(), &["slice", "show", "web", "-o", "json"])?;
    let json = text(&json.stdout);
    assert!(json.contains("\"name\": \"web\"") || json.contains("\"name\":\"web\""), "{json}");
    assert!(json.contains("waiting_for_frontend"), "{json}");
    let unknown = vramctl(dir.path(), &["slice", "show", "nobody"])?;
    assert_eq!(unknown.status.code(), Some(1));
    assert!(text(&unknown.stderr).contains("batch"), "the known names are listed");
    let qemu = text(&vramctl(dir.path(), &["slice", "attach", "batch", "--vmm", "qemu"])?.stdout);
    let socket = dir.path().join("batch.sock");
    for part in ["vhost-user-test-device-pci", "virtio-id=37", "num_vqs=6", "vq_size=256", "config_size=64"] {
        assert!(qemu.contains(part), "{part} is missing: {qemu}");
    }
    assert!(qemu.contains(&*socket.to_string_lossy()));
    let hypervisor =
        text(&vramctl(dir.path(), &["slice", "attach", "web", "--vmm", "cloud-hypervisor"])?.stdout);
    assert!(hypervisor.contains("queue_sizes=[256,256,256]"), "{hypervisor}");
    assert_eq!(vramctl(dir.path(), &["slice", "attach", "web", "--vmm", "bochs"])?.status.code(), Some(2));
    drop(running);
    let gone = vramctl(dir.path(), &["gpu", "list"])?;
    assert_eq!(gone.status.code(), Some(1));
    assert!(text(&gone.stderr).contains("vramd"), "says what to look for");
    Ok(())
}

#[test]
fn vramd_ends_cleanly_on_sigterm_and_removes_its_sockets() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut running = start(dir.path())?;
    let pid = nix::unistd::Pid::from_raw(i32::try_from(running.0.id())?);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM)?;
    let status = running.0.wait()?;
    assert_eq!(status.code(), Some(0));
    for socket in ["control.sock", "web.sock", "batch.sock"] {
        assert!(!dir.path().join(socket).exists(), "{socket} was left behind");
    }
    Ok(())
}

#[test]
fn second_vramd_on_the_same_sockets_is_refused_and_the_first_goes_on() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let _running = start(dir.path())?;
    let sockets = dir.path().to_string_lossy().into_owned();
    let output = vramd(&["--slice", "web=1GiB", "--socket-dir", &sockets])?;
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("already"), "{}", text(&output.stderr));
    assert!(vramctl(dir.path(), &["slice", "show", "web"])?.status.success());
    Ok(())
}

#[test]
fn slices_are_resized_and_gpus_drained_under_a_running_daemon() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let _running = start(dir.path())?;
    let run = |args: &[&str]| vramctl(dir.path(), args);
    let grown = run(&["slice", "resize", "web", "--limit", "3GiB", "-o", "json"])?;
    assert!(text(&grown.stdout).contains("\"limit_bytes\": 3221225472"), "{grown:?}");
    let too_much = run(&["slice", "resize", "web", "--guarantee", "5GiB"])?;
    assert_eq!(too_much.status.code(), Some(1));
    assert!(text(&too_much.stderr).contains("above the limit"), "{too_much:?}");
    let beyond = run(&["slice", "resize", "web", "--limit", "4GiB", "--guarantee", "4GiB"])?;
    assert!(beyond.status.success(), "{beyond:?}");
    let full = run(&["gpu", "drain", "2"])?;
    assert_eq!(full.status.code(), Some(1));
    assert!(text(&full.stderr).contains("guaranteed"), "{full:?}");
    assert!(run(&["slice", "resize", "web", "--guarantee", "1GiB"])?.status.success());
    let drained = run(&["gpu", "drain", "2", "--wait"])?;
    assert!(drained.status.success() && text(&drained.stdout).contains("drained"), "{drained:?}");
    let list = text(&run(&["gpu", "list"])?.stdout);
    assert_eq!(list.matches("drained").count(), 1, "{list}");
    assert!(run(&["gpu", "undrain", "2"])?.status.success());
    assert!(!text(&run(&["gpu", "list"])?.stdout).contains("drained"));
    let nobody = run(&["slice", "resize", "nobody", "--limit", "1GiB"])?;
    assert!(text(&nobody.stderr).contains("batch"), "{nobody:?}");
    Ok(())
}

#[test]
fn slices_are_made_and_removed_under_a_running_daemon() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let _running = start(dir.path())?;
    let run = |args: &[&str]| vramctl(dir.path(), args);
    let refused = |args: &[&str], words: &str| -> Result<()> {
        let output = run(args)?;
        assert_eq!(output.status.code(), Some(1), "{args:?}: {output:?}");
        assert!(text(&output.stderr).contains(words), "{args:?}: {output:?}");
        Ok(())
    };
    let socket = dir.path().join("late.sock");
    for round in 0..3 {
        let made =
            run(&["slice", "create", "late", "--limit", "1GiB", "--guarantee", "512MiB", "--queues", "3"])?;
        assert!(made.status.success(), "round {round}: {made:?}");
        let json = text(&run(&["slice", "show", "late", "-o", "json"])?.stdout);
        for part in ["\"limit_bytes\": 1073741824", "\"guarantee_bytes\": 536870912", "\"request_queues\": 3"]
        {
            assert!(json.contains(part), "{part} is missing: {json}");
        }
        refused(&["slice", "create", "late", "--limit", "1GiB"], "There is a slice late already")?;
        let mut driver = Driver::connect(&socket, &VmSpec::default())?;
        driver.hello(0x77)?;
        refused(&["slice", "remove", "late"], "A VMM is connected to slice late")?;
        drop(driver);
        // The session ends when the daemon notices that the frontend is gone.
        let deadline = Instant::now() + Duration::from_secs(10);
        while !run(&["slice", "remove", "late"])?.status.success() {
            assert!(Instant::now() < deadline, "the slice cannot be removed");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(!socket.exists(), "the socket is left behind");
        refused(&["slice", "show", "late"], "batch, web")?;
        refused(&["slice", "remove", "late"], "batch, web")?;
    }
    // All of the pool can be promised again, and no more.
    let rest = run(&["slice", "create", "rest", "--limit", "3GiB", "--guarantee", "3GiB"])?;
    assert!(rest.status.success(), "{rest:?}");
    refused(&["slice", "create", "more", "--limit", "1GiB", "--guarantee", "64MiB"], "does not fit")?;
    Ok(())
}

#[test]
fn slices_that_cannot_be_made_are_refused_and_leave_nothing() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let _running = start(dir.path())?;
    let control = dir.path().join("control.sock");
    let taken = dir.path().join("web.sock");
    let nowhere = dir.path().join("control.sock.lock/x.sock");
    let (control, taken, nowhere) =
        (control.to_string_lossy(), taken.to_string_lossy(), nowhere.to_string_lossy());
    let cases: &[(&[&str], &str)] = &[
        (&["Bad Name", "--limit", "1GiB"], "Bad Name"),
        (&["x", "--limit", "0"], "limit of slice x"),
        (&["x", "--limit", "129TiB"], "limit of slice x"),
        (&["x", "--limit", "1GiB", "--guarantee", "2GiB"], "guarantee of slice x"),
        (&["x", "--limit", "1GiB", "--guarantee", "0"], "guarantee of slice x"),
        (&["x", "--limit", "1GiB", "--placement", "left"], "\"left\""),
        (&["x", "--limit", "1GiB", "--queues", "65"], "queues of slice x"),
        (&["x", "--limit", "1GiB", "--home", "4"], "there are 4 GPUs"),
        (&["x", "--limit", "1GiB", "--socket", "relative"], "absolute"),
        (&["x", "--limit", "1GiB", "--socket", &control], "operator API"),
        (&["x", "--limit", "1GiB", "--socket", &taken], "that of slice web"),
        (&["x", "--limit", "1GiB", "--socket", &nowhere], "cannot be served"),
        (&["x", "--limit", "1GiB", "--group", "no-such-group"], "no-such-group"),
        (&["x", "--limit", "8GiB", "--guarantee", "8GiB"], "does not fit"),
    ];
    for (args, words) in cases {
        let output = vramctl(dir.path(), &[&["slice", "create"], *args].concat())?;
        assert_eq!(output.status.code(), Some(1), "{args:?}: {output:?}");
        assert!(text(&output.stderr).contains(words), "{args:?}: {}", text(&output.stderr));
    }
    let list = text(&vramctl(dir.path(), &["slice", "list"])?.stdout);
    assert_eq!(list.lines().count(), 3, "{list}");
    // Nothing of those that failed is still promised.
    let all = vramctl(dir.path(), &["slice", "create", "all", "--limit", "3GiB", "--guarantee", "3GiB"])?;
    assert!(all.status.success(), "{all:?}");
    Ok(())
}
