//! Passes a command's standard input to the guard: the reading end of a pipe is sent over the control socket.
//!
//! Unlike the output pipes, the guard does not inherit this pipe. The guard's own standard input is the control socket, and any
//! other descriptor would have to be made inheritable, so other processes that the gateway starts at that moment would inherit
//! it, too.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::pipe::{PipeFlags, pipe_with};

/// Creates a pipe, sends its reading end over `control`, and returns the writing end, in non-blocking mode. If a later step
/// fails, the kernel closes the sent end together with the socket.
pub(super) fn send(control: impl AsFd) -> io::Result<OwnedFd> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    // Only the writing end is non-blocking: the mode belongs to each end of a pipe separately, and commands expect to block.
    rustix::io::ioctl_fionbio(&writer, true)?;
    send_descriptor(control, reader)?;
    Ok(writer)
}

/// Sends a duplicate of a descriptor over a socket, together with one byte.
pub(super) fn send_descriptor(control: impl AsFd, descriptor: impl AsFd) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor.as_fd()];
    if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("no space for a descriptor"));
    }
    let byte = [IoSlice::new(b"I")];
    retry_on_intr(|| sendmsg(&control, &byte, &mut ancillary, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// Waits for the descriptor that [`send`] sends, and returns it.
pub(super) fn receive(control: impl AsFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    // Only one byte is read; the orders that follow it stay in the stream.
    let mut byte = [0];
    loop {
        let mut into = [IoSliceMut::new(&mut byte)];
        match recvmsg(&control, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    descriptor.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_end_that_is_sent_reads_what_is_written_to_the_one_that_is_kept() {
        let (mut gateway, guard) = UnixStream::pair().unwrap();
        let mut writer = File::from(send(&gateway).unwrap());
        gateway.write_all(b"T").unwrap();
        let mut reader = File::from(receive(&guard).unwrap());
        writer.write_all(b"hello").unwrap();
        drop(writer);
        let mut text = String::new();
        // The read ends: there is no other copy of the writing end.
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
        let mut order = [0];
        (&guard).read_exact(&mut order).unwrap();
        assert_eq!(&order, b"T", "an order is not swallowed");
    }

    #[test]
    fn a_gateway_that_is_gone_or_sends_none_is_an_error() {
        let (mut gateway, guard) = UnixStream::pair().unwrap();
        gateway.write_all(b"T").unwrap();
        assert!(receive(&guard).is_err());
        drop(gateway);
        assert!(receive(&guard).is_err());
    }
}
