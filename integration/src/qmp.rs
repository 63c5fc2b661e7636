//! QEMU's control protocol, as far as tests need it: one command per connection.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs one QMP command and returns what it returns. Events that arrive meanwhile are dropped.
pub(crate) fn execute(socket: &Path, command: &str, arguments: Value) -> Result<Value> {
    let stream =
        UnixStream::connect(socket).with_context(|| format!("Could not connect to {}", socket.display()))?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT)).context("Could not set a timeout")?;
    let mut writer = stream.try_clone().context("Could not duplicate QEMU's control socket")?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).context("QEMU sent no greeting")?;
    ensure!(line.contains("\"QMP\""), "Not a QMP greeting: {line}");
    for request in
        [json!({ "execute": "qmp_capabilities" }), json!({ "execute": command, "arguments": arguments })]
    {
        writeln!(writer, "{request}").context("Could not send a command to QEMU")?;
        let answer = read_answer(&mut reader)?;
        if let Some(error) = answer.get("error") {
            bail!("QEMU refused {request}: {error}");
        }
        if request["execute"] == command {
            return Ok(answer["return"].clone());
        }
    }
    bail!("QEMU gave no answer to {command}")
}

fn read_answer(reader: &mut impl BufRead) -> Result<Value> {
    loop {
        let mut line = String::new();
        let length = reader.read_line(&mut line).context("QEMU did not answer in time")?;
        ensure!(length > 0, "QEMU closed its control socket");
        let answer: Value = serde_json::from_str(&line).with_context(|| format!("Not JSON: {line}"))?;
        if answer.get("return").is_some() || answer.get("error").is_some() {
            return Ok(answer);
        }
    }
}
