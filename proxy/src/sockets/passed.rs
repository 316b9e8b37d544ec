//! Sockets that a service manager has bound and passes to this process (`LISTEN_FDS`, as systemd's socket activation does).
//!
//! The manager keeps them open while the gateway is stopped and started: clients that connect meanwhile wait, and none is
//! refused.

use std::io;

use listenfd::ListenFd;

use super::BoundSocket;
use crate::config::ListenAddress;

/// The passed sockets that no listener has taken yet.
pub(super) struct PassedSockets(Vec<(ListenAddress, BoundSocket)>);

impl PassedSockets {
    /// Takes over the sockets of `LISTEN_FDS`, where `LISTEN_PID` is this process. To be called once, before there are
    /// threads: the variables are removed.
    pub(super) fn of_process() -> Self {
        let mut passed = ListenFd::from_env();
        let taken = (0..passed.len()).filter_map(|index| {
            let socket = take(&mut passed, index);
            socket
                .inspect_err(|error| {
                    tracing::warn!("LISTEN_FDS: socket {index} cannot be used: {error}");
                })
                .ok()
        });
        Self(taken.collect())
    }

    /// The socket that is bound to this address, if one was passed.
    pub(super) fn take(&mut self, address: &ListenAddress) -> Option<BoundSocket> {
        let at = self.0.iter().position(|(bound, _)| bound == address)?;
        Some(self.0.swap_remove(at).1)
    }

    /// Warns of the sockets that no listener has, and closes them.
    pub(super) fn close_rest(self) {
        for (address, _) in self.0 {
            tracing::warn!(
                "LISTEN_FDS has a socket at {address}, and no listener has that address: it is closed"
            );
        }
    }
}

fn take(passed: &mut ListenFd, index: usize) -> io::Result<(ListenAddress, BoundSocket)> {
    let gone = || io::Error::other("it was taken before");
    if let Ok(socket) = passed.take_unix_listener(index) {
        let socket = socket.ok_or_else(gone)?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        let path = address.as_pathname();
        let path = path.ok_or_else(|| io::Error::other("a Unix socket without a path"))?;
        return Ok((
            ListenAddress::Unix(path.to_owned()),
            BoundSocket::Unix(socket),
        ));
    }
    let socket = passed.take_tcp_listener(index)?.ok_or_else(gone)?;
    socket.set_nonblocking(true)?;
    let address = socket.local_addr()?;
    Ok((ListenAddress::Tcp(address), BoundSocket::Tcp(socket)))
}
