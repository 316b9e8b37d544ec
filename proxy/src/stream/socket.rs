//! A second descriptor of a connection's socket: with `allocator` the only place of this crate with `unsafe` in it.
//!
//! Pingora gives a connection's descriptor as a bare number and never its socket. A stream that stays open for hours
//! needs the socket and nothing else of the connection, whose buffers and states cost ten times as much memory.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use pingora_core::protocols::l4::stream::Stream;
use tokio::net::TcpStream;

/// The connection's socket under a descriptor of its own, closed on exec and registered with this runtime. The
/// connection may be dropped afterwards: that closes its own descriptor and leaves the socket as it is.
pub(super) fn duplicate(connection: &Stream) -> io::Result<TcpStream> {
    let descriptor = connection.as_raw_fd();
    if descriptor < 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // SAFETY: `connection` owns the descriptor and is borrowed until the end of this function, so it stays open for as
    // long as `borrowed` is used; it is not -1.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let socket = std::net::TcpStream::from(borrowed.try_clone_to_owned()?);
    // Both descriptors share one file description, which Pingora has made non-blocking.
    TcpStream::from_std(socket)
}
