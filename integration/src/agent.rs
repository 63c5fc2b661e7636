//! The host's end of the channel to the agent in the guest (`guest/init`, which describes the bytes).

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How often a wait looks whether the VM is still well.
const HEALTH_CHECK: Duration = Duration::from_millis(200);
/// How long QEMU may take to end once it has closed the channel.
const CLOSING: Duration = Duration::from_secs(2);
/// A peer that announces more than this is not our agent.
const MAX_OUTPUT_BYTES: usize = 1 << 30;

/// What a command in the guest left behind.
#[derive(Clone, PartialEq, Eq)]
pub struct Output {
    /// Exit status; 128 + n after signal n.
    pub status: i32,
    /// Standard output, byte for byte.
    pub stdout: Vec<u8>,
    /// Standard error, byte for byte.
    pub stderr: Vec<u8>,
}

impl Output {
    /// Standard output as text, without the line ends at its end.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim_end_matches(['\n', '\r']).to_string()
    }

    /// Standard error as text, without the line ends at its end.
    pub fn error_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).trim_end_matches(['\n', '\r']).to_string()
    }

    /// Whether the exit status is zero.
    pub fn is_success(&self) -> bool {
        self.status == 0
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output")
            .field("status", &self.status)
            .field("stdout", &self.text())
            .field("stderr", &self.error_text())
            .finish()
    }
}

/// What the agent said at the start of a boot.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hello {
    /// Modules that could not be loaded, comma-separated; empty when all were.
    pub(crate) failed_modules: String,
}

#[derive(Debug)]
pub(crate) struct Agent {
    shared: Arc<Shared>,
    requests: Mutex<UnixStream>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    boots: u64,
    hello: Hello,
    closed: bool,
    next_id: u64,
    /// Requests somebody still wants the answer of.
    wanted: HashSet<u64>,
    answers: HashMap<u64, Output>,
    /// Wanted requests whose guest was reset under them.
    lost: HashSet<u64>,
}

impl Agent {
    pub(crate) fn new(stream: UnixStream, token: &str) -> Result<Agent> {
        let reader = stream.try_clone().context("Could not duplicate the agent's socket")?;
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new() });
        let mut parser = Parser::new(token);
        let for_thread = Arc::clone(&shared);
        thread::Builder::new()
            .name("guest-agent".into())
            .spawn(move || read_answers(reader, &mut parser, &for_thread))
            .context("Could not start the thread that reads the agent's answers")?;
        Ok(Agent { shared, requests: Mutex::new(stream) })
    }

    /// Waits for the boot after `boots` others.
    pub(crate) fn wait_for_boot(
        &self,
        boots: u64,
        deadline: Instant,
        health: &dyn Fn() -> Result<()>,
    ) -> Result<Hello> {
        self.wait(deadline, health, |state| (state.boots > boots).then(|| Ok(state.hello.clone())))?
            .context("The guest's agent did not come up in time")?
    }

    pub(crate) fn boots(&self) -> u64 {
        self.shared.lock().boots
    }

    /// Starts a shell script; the answer is fetched by [`Agent::wait_for_answer`].
    pub(crate) fn start_script(&self, script: &str) -> Result<u64> {
        let id = self.new_id();
        self.send(&format!("run {id} {}\n", script.len()), script.as_bytes())?;
        Ok(id)
    }

    pub(crate) fn start_put(&self, bytes: &[u8], mode: u32, path: &str) -> Result<u64> {
        if !path.starts_with('/') || path.contains('\n') {
            bail!("{path:?} is not an absolute guest path");
        }
        let id = self.new_id();
        self.send(&format!("put {id} {} {mode:o} {path}\n", bytes.len()), bytes)?;
        Ok(id)
    }

    /// Kills a script and all it started. It still answers.
    pub(crate) fn kill_script(&self, id: u64) -> Result<()> {
        self.send(&format!("kill {id}\n"), &[])
    }

    /// `reboot` or `poweroff`.
    pub(crate) fn send_verb(&self, verb: &str) -> Result<()> {
        self.send(&format!("{verb}\n"), &[])
    }

    /// `None` when the deadline passed first; the answer can still be waited for then.
    pub(crate) fn wait_for_answer(
        &self,
        id: u64,
        deadline: Instant,
        health: &dyn Fn() -> Result<()>,
    ) -> Result<Option<Output>> {
        self.wait(deadline, health, |state| {
            if let Some(output) = state.answers.remove(&id) {
                state.wanted.remove(&id);
                return Some(Ok(output));
            }
            if state.lost.remove(&id) {
                return Some(Err(anyhow::anyhow!("The guest was reset while the command ran")));
            }
            None
        })?
        .transpose()
    }

    /// Says that nobody will ask for this answer any more.
    pub(crate) fn forget(&self, id: u64) {
        let mut state = self.shared.lock();
        state.wanted.remove(&id);
        state.answers.remove(&id);
        state.lost.remove(&id);
    }

    fn wait<T>(
        &self,
        deadline: Instant,
        health: &dyn Fn() -> Result<()>,
        mut look: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<Option<T>> {
        loop {
            let mut state = self.shared.lock();
            if let Some(found) = look(&mut state) {
                return Ok(Some(found));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            if !state.closed {
                let pause = left.min(HEALTH_CHECK);
                let waited = self.shared.changed.wait_timeout(state, pause);
                if !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out() {
                    continue;
                }
                health()?;
                continue;
            }
            drop(state);
            // QEMU closes the channel a moment before it has ended, and how it ended says more.
            let patience = Instant::now() + CLOSING;
            while Instant::now() < patience {
                health()?;
                thread::sleep(HEALTH_CHECK / 10);
            }
            bail!("The channel to the guest's agent is closed");
        }
    }

    fn new_id(&self) -> u64 {
        let mut state = self.shared.lock();
        state.next_id += 1;
        let id = state.next_id;
        state.wanted.insert(id);
        id
    }

    fn send(&self, line: &str, bytes: &[u8]) -> Result<()> {
        let mut stream = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        stream
            .write_all(line.as_bytes())
            .and_then(|()| stream.write_all(bytes))
            .context("Could not send a request to the guest's agent")
    }
}

impl Shared {
    /// The state is whole after every statement, so a panic elsewhere does not spoil it.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs on a thread of its own until QEMU closes the socket.
fn read_answers(mut stream: UnixStream, parser: &mut Parser, shared: &Shared) {
    let mut buffer = vec![0_u8; 64 << 10];
    loop {
        let read = match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            // A reset connection is QEMU's end, like an orderly close.
            Err(_) => break,
        };
        let messages = parser.feed(&buffer[..read]);
        if messages.is_empty() {
            continue;
        }
        let mut state = shared.lock();
        for message in messages {
            match message {
                Message::Hello(hello) => {
                    state.boots += 1;
                    state.hello = hello;
                    let lost: Vec<u64> =
                        state.wanted.iter().copied().filter(|id| !state.answers.contains_key(id)).collect();
                    for id in lost {
                        state.wanted.remove(&id);
                        state.lost.insert(id);
                    }
                }
                Message::Done(id, output) => {
                    if state.wanted.contains(&id) {
                        state.answers.insert(id, output);
                    }
                }
            }
        }
        drop(state);
        shared.changed.notify_all();
    }
    shared.lock().closed = true;
    shared.changed.notify_all();
}

#[derive(Debug)]
enum Message {
    Hello(Hello),
    Done(u64, Output),
}

/// Cuts the byte stream into messages.
#[derive(Debug)]
struct Parser {
    hello: Vec<u8>,
    pending: Vec<u8>,
    /// Up to here `pending` holds no hello.
    searched: usize,
}

impl Parser {
    fn new(token: &str) -> Parser {
        Parser { hello: format!("\u{1}hello {token}\u{1} ").into_bytes(), pending: Vec::new(), searched: 0 }
    }

    fn feed(&mut self, bytes: &[u8]) -> Vec<Message> {
        self.pending.extend_from_slice(bytes);
        let mut messages = Vec::new();
        loop {
            // A hello counts wherever it stands: after a reset it may follow half an answer.
            if let Some(start) = find(&self.pending[self.searched..], &self.hello) {
                let start = self.searched + start;
                // Whole answers before it still count.
                let rest = self.pending.split_off(start);
                while let Some(message) = self.take_answer() {
                    messages.push(message);
                }
                self.pending = rest;
                self.searched = 0;
                let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') else { return messages };
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                let text = String::from_utf8_lossy(&line[self.hello.len()..]).into_owned();
                let failed = text.split_whitespace().nth(1).unwrap_or_default().trim_matches(',').to_string();
                messages.push(Message::Hello(Hello { failed_modules: failed }));
                continue;
            }
            match self.take_answer() {
                Some(message) => messages.push(message),
                None => {
                    self.searched = self.pending.len().saturating_sub(self.hello.len());
                    return messages;
                }
            }
        }
    }

    /// The answer at the front, if all of it is there. Bytes that begin none are dropped.
    fn take_answer(&mut self) -> Option<Message> {
        loop {
            let start = self.pending.iter().position(|byte| *byte == 1).unwrap_or(self.pending.len());
            self.discard(start);
            let end = self.pending.iter().position(|byte| *byte == b'\n')?;
            let line = String::from_utf8_lossy(&self.pending[1..end]).into_owned();
            let Some((id, status, out, err)) = parse_done(&line) else {
                if self.pending.starts_with(&self.hello) {
                    return None;
                }
                self.discard(1);
                continue;
            };
            let body = end + 1;
            if self.pending.len() < body + out + err {
                return None;
            }
            let stdout = self.pending[body..body + out].to_vec();
            let stderr = self.pending[body + out..body + out + err].to_vec();
            self.discard(body + out + err);
            return Some(Message::Done(id, Output { status, stdout, stderr }));
        }
    }

    fn discard(&mut self, count: usize) {
        self.pending.drain(..count);
        self.searched = self.searched.saturating_sub(count);
    }
}

fn parse_done(line: &str) -> Option<(u64, i32, usize, usize)> {
    let mut words = line.strip_prefix("done ")?.split(' ');
    let id = words.next()?.parse().ok()?;
    let status = words.next()?.parse().ok()?;
    let out: usize = words.next()?.parse().ok()?;
    let err: usize = words.next()?.parse().ok()?;
    (out <= MAX_OUTPUT_BYTES && err <= MAX_OUTPUT_BYTES).then_some((id, status, out, err))
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed_in_pieces(parser: &mut Parser, bytes: &[u8], piece: usize) -> Vec<Message> {
        bytes.chunks(piece).flat_map(|chunk| parser.feed(chunk)).collect()
    }

    #[test]
    fn answers_are_cut_at_any_piece_size() {
        let stream = b"\x01hello T\x01 boot ,\n\x01done 1 0 5 0\na\x01\nbc\x01done 2 137 0 3\nerr";
        for piece in 1..stream.len() {
            let messages = feed_in_pieces(&mut Parser::new("T"), stream, piece);
            assert_eq!(messages.len(), 3, "pieces of {piece}");
            let Message::Done(1, first) = &messages[1] else { panic!("{messages:?}") };
            assert_eq!(first.stdout, b"a\x01\nbc");
            let Message::Done(2, second) = &messages[2] else { panic!("{messages:?}") };
            assert_eq!((second.status, second.stderr.as_slice()), (137, b"err".as_slice()));
        }
    }

    #[test]
    fn a_reset_in_the_middle_of_an_answer_loses_only_that_answer() {
        let stream = b"\x01done 1 0 9999 0\nhalf\x01hello T\x01 boot ,x.ko\n\x01done 2 0 2 0\nok";
        for piece in 1..stream.len() {
            let messages = feed_in_pieces(&mut Parser::new("T"), stream, piece);
            let [Message::Hello(hello), Message::Done(2, output)] = messages.as_slice() else {
                panic!("pieces of {piece}: {messages:?}")
            };
            assert_eq!(hello.failed_modules, "x.ko");
            assert_eq!(output.text(), "ok");
        }
    }
}
