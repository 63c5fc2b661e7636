//! Tiers below the GPUs, as an operator meets them: what cannot be is refused with what to do, what can be is opened,
//! shown, and gone at the end.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use vram_control_api::Client;
use vram_control_api::v1::{TierKind, TierState};
use vram_tests::binary;

const SLICE: [&str; 6] = ["--gpu", "sim:2x64MiB", "--shard", "2MiB", "--slice", "a=64MiB"];

/// A daemon, ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(folder: &Path, args: &[&str]) -> Result<Command> {
    let mut command = Command::new(binary("vramd")?);
    command.args(SLICE).args(args).arg("--socket-dir").arg(folder.join("run"));
    Ok(command)
}

/// Runs a daemon that must not come up.
fn refused(folder: &Path, args: &[&str]) -> Result<Output> {
    let child = command(folder, args)?.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut running = Running(child);
    let deadline = Instant::now() + Duration::from_secs(20);
    while running.0.try_wait()?.is_none() {
        ensure!(Instant::now() < deadline, "{args:?}: the daemon serves");
        std::thread::sleep(Duration::from_millis(5));
    }
    let status = running.0.wait()?;
    let mut stderr = Vec::new();
    std::io::Read::read_to_end(&mut running.0.stderr.take().context("standard error")?, &mut stderr)?;
    Ok(Output { status, stdout: Vec::new(), stderr })
}

fn check_refused(args: &[&str], status: i32, expected: &[&str]) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let output = refused(folder.path(), args)?;
    let message = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(status), "{args:?} ends with {}: {message}", output.status);
    for words in expected {
        ensure!(message.contains(words), "{args:?} does not say {words:?}: {message}");
    }
    ensure!(!folder.path().join("run/a.sock").exists(), "{args:?} leaves a socket");
    Ok(())
}

#[test]
fn tier_settings_that_cannot_be_are_refused_as_wrong_usage() -> Result<()> {
    check_refused(
        &["--tier", "host:1MiB"],
        2,
        &["--tier: The host tier keeps whole shards", "2MiB, not 1MiB"],
    )?;
    check_refused(&["--tier", "ram:1GiB"], 2, &["There is no kind of tier \"ram\"", "compressed"])?;
    let two = ["--tier", "host:4MiB", "--tier", "host:8MiB"];
    check_refused(&two, 2, &["A host tier is already defined (--tier)"])?;
    check_refused(
        &["--tier", "host:4MiB,dir=/tmp"],
        2,
        &["has no field \"dir\"", "size, preallocate, huge_pages"],
    )
}

#[test]
fn disk_tiers_whose_folder_cannot_be_used_say_what_to_do() -> Result<()> {
    check_refused(
        &["--tier", "disk:4MiB,dir=/nonexistent/cold"],
        1,
        &[
            "The disk tier's folder /nonexistent/cold cannot be used; create it, or name another",
            "No such file",
        ],
    )?;
    // Nobody may write here, not even root.
    check_refused(
        &["--tier", "disk:4MiB,dir=/proc/self"],
        1,
        &["No file can be made in the disk tier's folder /proc/self", "let this process's user write there"],
    )?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("file");
    fs::write(&file, "")?;
    let option = format!("disk:4MiB,dir={}", file.display());
    check_refused(
        &["--tier", &option],
        1,
        &["file cannot be used; create it, or name another", "not a directory"],
    )
}

#[test]
fn disk_tier_larger_than_its_file_system_says_what_to_do() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let option = format!("disk:100TiB,dir={}", folder.path().display());

    check_refused(&["--tier", &option], 1, &["bytes left; make the tier smaller, or room"])?;

    ensure!(fs::read_dir(folder.path())?.next().is_none(), "something was left");
    Ok(())
}

#[test]
fn remote_tiers_at_no_address_say_what_to_do() -> Result<()> {
    let cases = [
        ("bucket/prefix", "is no address"),
        ("gs://bucket/prefix", "is of no kind this daemon knows"),
        ("s3:///prefix", "is without a bucket"),
        ("file://relative", "is no absolute path"),
    ];
    for (url, problem) in cases {
        let option = format!("remote:url={url}");
        check_refused(&["--tier", &option], 1, &[problem, "write s3://BUCKET/PREFIX or file:///FOLDER"])?;
    }
    check_refused(
        &["--tier", "remote:url=file:///nonexistent/cold"],
        1,
        &["The remote tier cannot be set up for file:///nonexistent/cold"],
    )
}

#[test]
fn all_kinds_of_tiers_are_opened_shown_and_leave_nothing_behind() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (disk, remote) = (folder.path().join("disk"), folder.path().join("remote"));
    fs::create_dir(&disk)?;
    fs::create_dir(&remote)?;
    let config = folder.path().join("vramd.toml");
    fs::write(
        &config,
        format!(
            "[[tier]]\nkind = \"remote\"\nurl = \"file://{}\"\n[[tier]]\nkind = \"disk\"\nsize = \"16MiB\"\ndir = {disk:?}\n",
            remote.display()
        ),
    )?;
    let log = fs::File::create(folder.path().join("log"))?;
    let mut command = command(folder.path(), &["--tier", "compressed:8MiB", "--tier", "host:5MiB"])?;
    command.arg("--config").arg(&config);
    let mut running = Running(command.stdout(Stdio::null()).stderr(log).spawn()?);
    let control = folder.path().join("run/control.sock");
    let client = Client::new(&control);
    let deadline = Instant::now() + Duration::from_secs(20);
    let tiers = loop {
        match client.tiers() {
            Ok(tiers) => break tiers.tiers,
            Err(error) if Instant::now() >= deadline => bail!("vramd did not come up: {error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let shown: Vec<_> = tiers.iter().map(|tier| (tier.kind, tier.limit_bytes)).collect();
    let expected = [
        (TierKind::Host, Some(4 << 20)),
        (TierKind::Compressed, Some(8 << 20)),
        (TierKind::Disk, Some(16 << 20)),
        (TierKind::Remote, None),
    ];
    assert_eq!(shown, expected);
    assert!(tiers.iter().all(|tier| tier.state == TierState::Ready && tier.regions == 0), "{tiers:?}");
    assert_eq!(client.slice("a")?.stored_bytes, 0);
    let list =
        Command::new(binary("vramctl")?).arg("--control").arg(&control).args(["tier", "list"]).output()?;
    let list = String::from_utf8(list.stdout)?;
    assert_eq!(list.lines().count(), 5, "{list}");

    let pid = nix::unistd::Pid::from_raw(i32::try_from(running.0.id())?);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM)?;
    let status = running.0.wait()?;

    let log = fs::read_to_string(folder.path().join("log"))?;
    assert_eq!(status.code(), Some(0), "{log}");
    assert_eq!(log.matches("tier ready").count(), 4, "{log}");
    assert!(log.contains("the host tier's size is rounded down to whole shards"), "{log}");
    assert!(!log.contains("ERROR"), "{log}");
    for left in [&disk, &remote] {
        assert!(fs::read_dir(left)?.next().is_none(), "{} is not empty", left.display());
    }
    Ok(())
}

/// A slice whose sockets cannot be served comes after the tiers, which are closed again.
#[test]
fn tiers_are_closed_when_the_daemon_does_not_come_up() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let remote = folder.path().join("remote");
    fs::create_dir(&remote)?;
    let option = format!("remote:url=file://{}", remote.display());

    check_refused(&["--tier", &option, "--slice", "b=1GiB,guarantee=1GiB"], 1, &["does not fit"])?;

    ensure!(fs::read_dir(&remote)?.next().is_none(), "something was left");
    Ok(())
}
