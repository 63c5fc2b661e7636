//! `vramd` as a process: its log, its signals, and the files it makes and leaves.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use tempfile::TempDir;
use vram_tests::binary;

/// Nothing these tests wait for takes longer.
const DEADLINE: Duration = Duration::from_secs(10);

/// A daemon to be started, its sockets in a folder of its own that it makes itself.
struct Prepared {
    folder: TempDir,
    command: Command,
}

/// One that runs. It is killed with the test.
struct Running {
    child: Child,
    sockets: PathBuf,
    _folder: TempDir,
}

impl Prepared {
    fn new() -> Result<Self> {
        Self::with_umask("022")
    }

    fn with_umask(umask: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut command = Command::new("sh");
        command.args(["-c", &format!("umask {umask}; exec \"$@\""), "sh"]);
        command.arg(binary("vramd")?).args(["--gpu", "sim:2x256MiB", "--slice", "web=256MiB"]);
        command.arg("--socket-dir").arg(folder.path().join("made"));
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        Ok(Self { folder, command })
    }

    fn sockets(&self) -> PathBuf {
        self.folder.path().join("made")
    }

    /// Makes the folder, for a test that puts something into it.
    fn make_sockets_folder(&self) -> Result<PathBuf> {
        fs::create_dir(self.sockets())?;
        Ok(self.sockets())
    }

    fn start(mut self) -> Result<Running> {
        let sockets = self.sockets();
        let mut running = Running { child: self.command.spawn()?, sockets, _folder: self.folder };
        let control = running.sockets.join("control.sock");
        wait_until("vramd serves", || {
            ensure!(running.child.try_wait()?.is_none(), "vramd ended");
            Ok(UnixStream::connect(&control).is_ok())
        })?;
        Ok(running)
    }

    /// Runs it to its end, which must come by itself.
    fn run(&mut self) -> Result<Output> {
        let mut child = self.command.spawn()?;
        let ended = wait_until("vramd ends", || Ok(child.try_wait()?.is_some()));
        if ended.is_err() {
            child.kill()?;
        }
        let output = child.wait_with_output()?;
        ended.map(|()| output)
    }
}

impl Running {
    fn socket(&self, name: &str) -> PathBuf {
        self.sockets.join(name)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(i32::try_from(self.child.id())?), signal)?)
    }

    /// The exit status; a signal that ends it is an error.
    fn wait(&mut self) -> Result<i32> {
        let mut status = None;
        wait_until("vramd ends", || {
            status = self.child.try_wait()?;
            Ok(status.is_some())
        })?;
        status.and_then(|status| status.code()).context("vramd was killed by a signal")
    }

    fn stop(&mut self) -> Result<i32> {
        self.signal(Signal::SIGTERM)?;
        self.wait()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + DEADLINE;
    while !is_so()? {
        ensure!(Instant::now() < deadline, "not within {DEADLINE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn mode(path: &Path) -> Result<u32> {
    Ok(fs::symlink_metadata(path)?.permissions().mode() & 0o777)
}

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn full() -> Result<Stdio> {
    Ok(OpenOptions::new().write(true).open("/dev/full")?.into())
}

/// A socket that listens and has no room for another connection. The descriptors keep it so.
fn socket_with_full_backlog(path: &Path) -> Result<Vec<OwnedFd>> {
    let address = UnixAddr::new(path)?;
    let new = || socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_NONBLOCK, None);
    let listener = new()?;
    bind(listener.as_raw_fd(), &address)?;
    listen(&listener, Backlog::new(1)?)?;
    let mut held = vec![listener];
    loop {
        let stream = new()?;
        if connect(stream.as_raw_fd(), &address).is_err() {
            return Ok(held);
        }
        held.push(stream);
    }
}

#[test]
fn log_that_cannot_be_written_does_not_end_the_daemon() -> Result<()> {
    let (reader, closed) = std::io::pipe()?;
    drop(reader);
    for stderr in [full()?, Stdio::from(closed)] {
        let mut prepared = Prepared::new()?;
        prepared.command.stderr(stderr).args(["--log-level", "trace"]);
        let mut running = prepared.start()?;
        UnixStream::connect(running.socket("web.sock"))?;
        assert_eq!(running.stop()?, 0);
    }
    Ok(())
}

#[test]
fn log_that_nobody_reads_holds_up_nobody() -> Result<()> {
    let (_reader, unread) = std::io::pipe()?;
    let mut prepared = Prepared::new()?;
    prepared.command.stderr(Stdio::from(unread)).args(["--log-level", "trace"]);
    let mut running = prepared.start()?;
    // More than a pipe takes, at several lines a connection.
    for _ in 0..2000 {
        let mut control = UnixStream::connect(running.socket("control.sock"))?;
        control.set_read_timeout(Some(Duration::from_secs(10)))?;
        control.write_all(b"GET /v1/daemon HTTP/1.1\r\nHost: vram\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        control.read_to_string(&mut answer)?;
        ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    assert_eq!(running.stop()?, 0);
    Ok(())
}

#[test]
fn error_that_cannot_be_written_keeps_its_exit_status() -> Result<()> {
    for (option, status) in [("--virtio-id=99", 2), ("--frobnicate", 2), ("--control=/proc/x/c.sock", 1)] {
        let mut prepared = Prepared::new()?;
        prepared.command.stderr(full()?).arg(option);
        assert_eq!(prepared.run()?.status.code(), Some(status), "{option}");
    }
    Ok(())
}

#[test]
fn sigterm_ends_the_daemon_whose_socket_file_was_removed() -> Result<()> {
    let mut running = Prepared::new()?.start()?;
    fs::remove_file(running.socket("web.sock"))?;
    assert_eq!(running.stop()?, 0);
    Ok(())
}

#[test]
fn exit_leaves_sockets_that_took_the_place_of_its_own() -> Result<()> {
    let mut running = Prepared::new()?.start()?;
    let mut others = Vec::new();
    for name in ["web.sock", "control.sock"] {
        fs::remove_file(running.socket(name))?;
        others.push(UnixListener::bind(running.socket(name))?);
    }
    assert_eq!(running.stop()?, 0);
    for name in ["web.sock", "control.sock"] {
        UnixStream::connect(running.socket(name)).context(name)?;
    }
    Ok(())
}

#[test]
fn exit_leaves_only_the_lock_which_the_next_start_takes() -> Result<()> {
    let prepared = Prepared::new()?;
    let sockets = prepared.sockets();
    let again = prepared.command.get_args().map(ToOwned::to_owned).collect::<Vec<_>>();
    let mut running = prepared.start()?;
    assert_eq!(running.stop()?, 0);
    let left: Vec<_> = fs::read_dir(&sockets)?.map(|entry| Ok(entry?.file_name())).collect::<Result<_>>()?;
    assert_eq!(left, ["control.sock.lock"]);
    running.child = Command::new("sh").args(again).stderr(Stdio::null()).spawn()?;
    wait_until("vramd serves again", || Ok(UnixStream::connect(sockets.join("control.sock")).is_ok()))?;
    assert_eq!(running.stop()?, 0);
    Ok(())
}

#[test]
fn start_at_sockets_with_full_backlogs_is_refused() -> Result<()> {
    for name in ["web.sock", "control.sock"] {
        let mut prepared = Prepared::new()?;
        let path = prepared.make_sockets_folder()?.join(name);
        let _held = socket_with_full_backlog(&path)?;
        let output = prepared.run()?;
        assert_eq!(output.status.code(), Some(1), "{name}");
        assert!(message(&output).contains(name), "{}", message(&output));
        assert!(fs::symlink_metadata(&path)?.file_type().is_socket(), "{name} is left alone");
    }
    Ok(())
}

#[test]
fn start_with_something_else_in_place_of_the_lock_is_refused() -> Result<()> {
    type Put = fn(&Path) -> Result<()>;
    let put: [(&str, Put); 4] = [
        ("a FIFO", |path| Ok(mkfifo(path, Mode::S_IRWXU)?)),
        ("a folder", |path| Ok(fs::create_dir(path)?)),
        ("a link", |path| Ok(std::os::unix::fs::symlink("/dev/zero", path)?)),
        ("a socket", |path| {
            UnixListener::bind(path)?;
            Ok(())
        }),
    ];
    for (what, put) in put {
        let mut prepared = Prepared::new()?;
        put(&prepared.make_sockets_folder()?.join("control.sock.lock"))?;
        let output = prepared.run().context(what)?;
        assert_eq!(output.status.code(), Some(1), "{what}");
        assert!(message(&output).contains("control.sock.lock"), "{what}: {}", message(&output));
    }
    Ok(())
}

#[test]
fn signals_that_ask_for_nothing_the_daemon_does_are_ignored() -> Result<()> {
    let mut prepared = Prepared::new()?;
    let log = prepared.folder.path().join("log");
    prepared.command.stderr(fs::File::create(&log)?);
    let mut running = prepared.start()?;
    for signal in [Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGPIPE] {
        running.signal(signal)?;
    }
    for name in ["SIGHUP", "SIGUSR1", "SIGUSR2"] {
        wait_until(name, || Ok(fs::read_to_string(&log)?.contains(name)))?;
    }
    UnixStream::connect(running.socket("control.sock"))?;
    assert_eq!(running.stop()?, 0);
    Ok(())
}

#[test]
fn signals_that_ask_for_the_end_end_it_cleanly() -> Result<()> {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGQUIT] {
        let mut running = Prepared::new()?.start()?;
        running.signal(signal)?;
        assert_eq!(running.wait().context(signal)?, 0, "{signal}");
        assert!(!running.socket("web.sock").exists(), "{signal}");
    }
    Ok(())
}

#[test]
fn umask_changes_no_rights_of_folders_and_sockets() -> Result<()> {
    for umask in ["000", "022", "077"] {
        let running = Prepared::with_umask(umask)?.start()?;
        assert_eq!(mode(&running.sockets)?, 0o755, "umask {umask}");
        for (name, expected) in [("web.sock", 0o660), ("control.sock", 0o660), ("control.sock.lock", 0o600)] {
            assert_eq!(mode(&running.socket(name))?, expected, "{name}, umask {umask}");
        }
    }
    Ok(())
}

#[test]
fn sockets_belong_to_the_groups_that_are_configured() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let mut prepared = Prepared::new()?;
    prepared.command.args(["--socket-group", "12345", "--control-group", "54321"]);
    prepared.command.args(["--slice", "batch=256MiB,group=23456"]);
    let running = prepared.start()?;
    for (name, group) in [("web.sock", 12345), ("batch.sock", 23456), ("control.sock", 54321)] {
        let metadata = fs::symlink_metadata(running.socket(name))?;
        assert_eq!((metadata.gid(), metadata.permissions().mode() & 0o777), (group, 0o660), "{name}");
    }
    Ok(())
}
