//! A descriptor beside the bytes of a Unix socket. The only unsafe code of this program.

use std::{
    io::{self, IoSlice, IoSliceMut},
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::net::UnixStream,
    },
};

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

/// Sends `bytes`, which are few enough to be sent at once, and `descriptor` with the first of them.
pub(crate) fn send(stream: &UnixStream, bytes: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let descriptors = [descriptor.as_raw_fd()];
    let sent = sendmsg::<()>(
        stream.as_raw_fd(),
        &[IoSlice::new(bytes)],
        &[ControlMessage::ScmRights(&descriptors)],
        MsgFlags::MSG_NOSIGNAL,
        None,
    )?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Receives some bytes and at most one descriptor that came with them, closed on exec. 0 bytes are the end.
pub(crate) fn receive(stream: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut control = nix::cmsg_space!(RawFd);
    let mut slices = [IoSliceMut::new(bytes)];
    let message =
        recvmsg::<()>(stream.as_raw_fd(), &mut slices, Some(&mut control), MsgFlags::MSG_CMSG_CLOEXEC)?;
    let mut received = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(descriptors) = control {
            for descriptor in descriptors {
                // SAFETY: from_raw_fd wants a descriptor nobody else owns; the kernel has just made this one for us,
                // and each is wrapped once, so that surplus ones are closed below.
                received.push(unsafe { OwnedFd::from_raw_fd(descriptor) });
            }
        }
    }
    Ok((message.bytes, received.into_iter().next()))
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{Read, Seek, Write},
        os::fd::AsFd,
    };

    use super::*;

    #[test]
    fn descriptor_sent_is_the_same_open_file() {
        let (near, far) = UnixStream::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"shared").unwrap();
        file.rewind().unwrap();

        send(&near, b"line\n", file.as_fd()).unwrap();
        let mut bytes = [0; 100];
        let (len, descriptor) = receive(&far, &mut bytes).unwrap();

        assert_eq!(&bytes[..len], b"line\n");
        let mut text = String::new();
        File::from(descriptor.unwrap()).read_to_string(&mut text).unwrap();
        assert_eq!(text, "shared");
    }

    #[test]
    fn receive_without_a_descriptor_has_none_and_end_is_no_bytes() {
        let (mut near, far) = UnixStream::pair().unwrap();
        near.write_all(b"x").unwrap();
        drop(near);
        let mut bytes = [0; 10];

        let (len, descriptor) = receive(&far, &mut bytes).unwrap();
        assert!(len == 1 && descriptor.is_none());

        let (len, descriptor) = receive(&far, &mut bytes).unwrap();
        assert!(len == 0 && descriptor.is_none());
    }
}
