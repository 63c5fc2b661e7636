//! Starting a holder from a command that needs one.

use std::{
    io::{self, Read},
    os::fd::AsFd,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// How long a holder may take to open the device and listen.
const START_WAIT: Duration = Duration::from_secs(20);
/// Longest complaint of a holder that is passed on.
const MAX_COMPLAINT_BYTES: usize = 4096;

/// Why no holder could be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("The holder process could not be started")]
    Spawn(#[source] io::Error),
    #[error("The holder process ended at once: {complaint}")]
    Ended { complaint: String },
    #[error("The holder process was not ready within {} s; see whether the device answers (vram info)", START_WAIT.as_secs())]
    TooSlow,
}

/// Starts `vram hold` in the background and returns once it listens, or once another holder does.
pub(crate) fn start(device: &Path) -> Result<(), StartError> {
    let program = std::env::current_exe().map_err(StartError::Spawn)?;
    let mut child = Command::new(program)
        .arg("--device")
        .arg(device)
        .args(["hold", "--background"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(StartError::Spawn)?;
    // The holder closes its end when it is ready; until then it may complain through it.
    let Some(complaint) = read_to_end(&mut child).map_err(StartError::Spawn)? else {
        // It may be stuck in the kernel, so it is not waited for; it is asked to end.
        let _ = child.kill();
        return Err(StartError::TooSlow);
    };
    match child.try_wait().map_err(StartError::Spawn)? {
        Some(status) if status.success() => Ok(()),
        Some(_) => Err(StartError::Ended { complaint: last_words(&complaint) }),
        None if complaint.is_empty() => Ok(()),
        // It has said something and closed its end: it is about to end.
        None => {
            let status = child.wait().map_err(StartError::Spawn)?;
            if status.success() {
                Ok(())
            } else {
                Err(StartError::Ended { complaint: last_words(&complaint) })
            }
        }
    }
}

/// Everything the child writes until it closes its end, or `None` when that takes too long.
fn read_to_end(child: &mut Child) -> io::Result<Option<Vec<u8>>> {
    let mut said = Vec::new();
    let Some(pipe) = &mut child.stderr else { return Ok(Some(said)) };
    let deadline = Instant::now() + START_WAIT;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut polled = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
        match poll(&mut polled, PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO)) {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(nix::Error::EINTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let mut bytes = [0; 512];
        let len = pipe.read(&mut bytes)?;
        if len == 0 {
            return Ok(Some(said));
        }
        if said.len() < MAX_COMPLAINT_BYTES {
            said.extend(bytes.iter().take(len));
        }
    }
}

fn last_words(complaint: &[u8]) -> String {
    let text = String::from_utf8_lossy(complaint);
    let text = text.trim().trim_start_matches("vram: ");
    if text.is_empty() { "it did not say why".to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_are_the_complaint_without_the_programs_name() {
        assert_eq!(last_words(b"vram: /dev/vram0 is not there\n"), "/dev/vram0 is not there");
        assert_eq!(last_words(b"\n"), "it did not say why");
    }
}
