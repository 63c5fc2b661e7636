//! The operator API's server, fed anything over its real socket. It answers in HTTP or not at all, in bounded time.
#![no_main]

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use vram_control_api::v1::{Daemon, Gpu, NewSlice, Slice, SliceChange, Tier};
use vram_control_server::{ControlServer, ControlState, Refusal};

struct Nothing;

impl ControlState for Nothing {
    fn daemon(&self) -> Daemon {
        Daemon {
            version: String::new(),
            backend: "sim".to_owned(),
            simulated: true,
            backend_version: String::new(),
            boot_epoch: 1,
            uptime_seconds: 0,
        }
    }

    fn gpus(&self) -> Vec<Gpu> {
        Vec::new()
    }

    fn drain_gpu(&self, index: u16) -> Result<Gpu, Refusal> {
        Err(Refusal::Conflict { message: format!("gpu{index} is lost") })
    }

    fn undrain_gpu(&self, index: u16) -> Result<Gpu, Refusal> {
        Err(Refusal::NotFound { message: format!("gpu{index} is not part of the pool") })
    }

    fn create_slice(&self, slice: NewSlice) -> Result<Slice, Refusal> {
        Err(Refusal::Invalid { message: slice.name })
    }

    fn remove_slice(&self, name: &str) -> Result<Slice, Refusal> {
        Err(Refusal::Conflict { message: name.to_owned() })
    }

    fn change_slice(&self, name: &str, change: SliceChange) -> Result<Slice, Refusal> {
        match change.limit_bytes {
            Some(0) => Err(Refusal::NotFound { message: name.to_owned() }),
            _ => Err(Refusal::Conflict { message: name.to_owned() }),
        }
    }

    fn tiers(&self) -> Vec<Tier> {
        Vec::new()
    }

    fn slices(&self) -> Vec<Slice> {
        Vec::new()
    }

    fn slice(&self, _name: &str) -> Option<Slice> {
        None
    }
}

thread_local! {
    static SERVER: ControlServer = {
        let folder = tempfile::tempdir().expect("a temporary folder").keep();
        ControlServer::start(folder.join("control.sock"), Arc::new(Nothing)).expect("a server")
    };
}

fuzz_target!(|data: &[u8]| {
    let mut stream = SERVER.with(|server| UnixStream::connect(server.socket())).expect("the server listens");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time limit");
    // The server may have heard enough and closed.
    let _ = stream.write_all(data).and_then(|()| stream.shutdown(Shutdown::Write));
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => panic!("no end of an answer: {error}"),
    }
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."), "{:?}", String::from_utf8_lossy(&answer));
});
