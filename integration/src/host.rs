//! Programs on the host that belong to a test: started with a log, waited for with deadlines, never left
//! behind.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How much of a log an error quotes.
const TAIL_BYTES: usize = 4096;
const POLL: Duration = Duration::from_millis(10);

/// A child that is killed when its value is dropped, and by the kernel when this process dies first.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with no input; its output and errors go to the file `log`. `name` is for messages.
    /// The stdio set on `command` is ignored; program, arguments, folder and changes to the environment are
    /// kept (but not a cleared environment, which `Command` does not tell).
    pub fn start(name: &str, command: &Command, log: &Path) -> Result<Process> {
        let file =
            File::create(log).with_context(|| format!("Could not create the log {}", log.display()))?;
        let errors = file.try_clone().context("Could not duplicate a log file")?;
        let mut wrapped = dying_with_us(command);
        wrapped.stdin(Stdio::null()).stdout(file).stderr(errors);
        let child = spawn_from_long_lived_thread(wrapped)
            .with_context(|| format!("Could not start {name} ({:?})", command.get_program()))?;
        Ok(Process { name: name.to_string(), child, log: log.to_path_buf() })
    }

    /// The process id of the program itself.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `path` exists, for instance a socket the program listens on.
    pub fn wait_for_path(&mut self, path: &Path, timeout: Duration) -> Result<()> {
        let what = format!("{} to create {}", self.name, path.display());
        self.wait_for(&what, timeout, |_| Ok(path.exists()))
    }

    /// Waits until the program's log contains `text`.
    pub fn wait_for_log(&mut self, text: &str, timeout: Duration) -> Result<()> {
        let what = format!("{} to log {text:?}", self.name);
        self.wait_for(&what, timeout, |process| Ok(process.log_text().contains(text)))
    }

    fn wait_for(
        &mut self,
        what: &str,
        timeout: Duration,
        mut done: impl FnMut(&Process) -> Result<bool>,
    ) -> Result<()> {
        let deadline = Instant::now() + timeout;
        loop {
            if done(self)? {
                return Ok(());
            }
            if let Some(status) = self.exit_status()? {
                bail!("Waited for {what}, but it ended ({status}).\n{}", self.log_tail());
            }
            if Instant::now() >= deadline {
                bail!("Waited {timeout:?} for {what}.\n{}", self.log_tail());
            }
            thread::sleep(POLL);
        }
    }

    /// How the program ended, or `None` while it runs.
    pub fn exit_status(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("Could not ask after {}", self.name))
    }

    /// Waits for the program to end by itself.
    pub fn wait_exit(&mut self, timeout: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(status) = self.exit_status()? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                bail!("{} did not end within {timeout:?}.\n{}", self.name, self.log_tail());
            }
            thread::sleep(POLL);
        }
    }

    /// Sends a signal to the program.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).context("A pid that fits no pid_t")?;
        kill(Pid::from_raw(pid), signal).with_context(|| format!("Could not send {signal} to {}", self.name))
    }

    /// Asks the program to end with SIGTERM and waits for it.
    pub fn terminate(&mut self, timeout: Duration) -> Result<ExitStatus> {
        if let Some(status) = self.exit_status()? {
            return Ok(status);
        }
        self.signal(Signal::SIGTERM)?;
        self.wait_exit(timeout)
    }

    /// Kills the program as a crash would, and reaps it.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(status) = self.exit_status()? {
            bail!("{} had already ended ({}).\n{}", self.name, describe(status), self.log_tail());
        }
        self.child.kill().with_context(|| format!("Could not kill {}", self.name))?;
        self.child.wait().with_context(|| format!("Could not reap {}", self.name))?;
        Ok(())
    }

    /// Where the output goes.
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// All output so far.
    pub fn log_text(&self) -> String {
        fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// The end of the output, with a heading, for messages.
    pub fn log_tail(&self) -> String {
        file_tail(&format!("log of {}", self.name), &self.log)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Either fails only when the program is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until `done` says so. `what` completes "waited for".
pub fn wait_until(what: &str, timeout: Duration, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + timeout;
    while !done().with_context(|| format!("While waiting for {what}"))? {
        if Instant::now() >= deadline {
            bail!("Waited {timeout:?} for {what}");
        }
        thread::sleep(POLL);
    }
    Ok(())
}

/// The end of a log file, with a heading, for messages.
pub(crate) fn file_tail(heading: &str, path: &Path) -> String {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) => return format!("({heading}: {} cannot be read: {error})", path.display()),
    };
    let from = bytes.len().saturating_sub(TAIL_BYTES);
    let text = String::from_utf8_lossy(bytes.get(from..).unwrap_or_default());
    let text: String = text.chars().filter(|c| *c == '\n' || *c == '\t' || !c.is_control()).collect();
    format!("--- end of the {heading} ({}) ---\n{}\n---", path.display(), text.trim_end())
}

fn describe(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("killed by signal {signal}"),
        None => status.to_string(),
    }
}

/// The same command with a parent-death signal set. The check of the parent covers a parent that died before
/// the signal was armed.
fn dying_with_us(command: &Command) -> Command {
    let mut wrapped = Command::new("setpriv");
    wrapped
        .args(["--pdeathsig", "KILL", "--", "sh", "-c", r#"[ "$PPID" = "$0" ] || exit 1; exec "$@""#])
        .arg(std::process::id().to_string())
        .arg(command.get_program())
        .args(command.get_args());
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(key, value),
            None => wrapped.env_remove(key),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        wrapped.current_dir(folder);
    }
    wrapped
}

type Spawn = (Command, mpsc::Sender<std::io::Result<Child>>);

/// The parent-death signal is sent when the *thread* that forked ends, and test threads end early. One thread
/// that lives as long as the process therefore does all the forking.
fn spawn_from_long_lived_thread(command: Command) -> Result<Child> {
    static SPAWNER: OnceLock<mpsc::Sender<Spawn>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, receiver) = mpsc::channel::<Spawn>();
        thread::spawn(move || {
            for (mut command, reply) in receiver {
                // Whoever asked may have gone; the child is then dropped and dies with this process.
                let _ = reply.send(command.spawn());
            }
        });
        sender
    });
    let (reply, answer) = mpsc::channel();
    spawner.send((command, reply)).ok().context("The thread that starts programs has ended")?;
    Ok(answer.recv().context("The thread that starts programs has ended")??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_killed_when_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sleep");
        command.arg("60");
        let process = Process::start("sleep", &command, &folder.path().join("log")).unwrap();
        let pid = Pid::from_raw(process.pid() as i32);
        assert!(kill(pid, None).is_ok());
        drop(process);
        assert!(kill(pid, None).is_err());
    }

    #[test]
    fn process_that_ends_early_is_reported_with_its_log() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo no room left; exit 3"]);
        let mut process = Process::start("daemon", &command, &folder.path().join("log")).unwrap();
        let error = process
            .wait_for_path(&folder.path().join("socket"), Duration::from_secs(10))
            .unwrap_err()
            .to_string();
        assert!(error.contains("no room left") && error.contains("exit status: 3"), "{error}");
    }

    #[test]
    fn process_outlives_the_thread_that_asked_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let mut process = thread::spawn(move || {
            let mut command = Command::new("sleep");
            command.arg("60");
            Process::start("sleep", &command, &log).unwrap()
        })
        .join()
        .unwrap();
        thread::sleep(Duration::from_millis(100));
        assert!(process.exit_status().unwrap().is_none());
    }
}
