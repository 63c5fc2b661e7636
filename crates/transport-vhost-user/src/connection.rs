//! One frontend's connection, from accept to disconnect.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use tracing::{info, warn};
use vhost::vhost_user::{BackendReqHandler, Error};
use vram_device::{Device, DeviceFailure, DeviceSetup};
use vram_session::Session;

use crate::handler::Handler;

/// Speaks to a frontend until it leaves or its session fails. Blocks; everything the session held is given back when
/// this returns.
pub(crate) fn serve(
    name: &str,
    request_queues: u16,
    session: Arc<Session>,
    stream: UnixStream,
) -> io::Result<()> {
    // The thread sits in a receive; closing the socket's both directions is what gets it out when a queue fails.
    let breaker = stream.try_clone()?;
    let failed = Box::new(move |_failure: &DeviceFailure| {
        let _ = breaker.shutdown(Shutdown::Both);
    });
    let setup = DeviceSetup { name: name.to_owned(), session, request_queues, failed };
    let handler = Arc::new(Mutex::new(Handler::new(Device::new(setup), name.to_owned())));
    let mut messages = BackendReqHandler::from_stream(stream, handler);
    info!(slice = name, "a frontend connected");
    loop {
        match messages.handle_request() {
            Ok(()) => {}
            Err(Error::Disconnected | Error::PartialMessage) => break,
            Err(Error::SocketBroken(error)) if error.kind() == io::ErrorKind::ConnectionReset => break,
            Err(error) => {
                warn!(slice = name, %error, "the frontend is cut off");
                break;
            }
        }
    }
    drop(messages);
    info!(slice = name, "the frontend is gone; its memory is being given back");
    Ok(())
}
