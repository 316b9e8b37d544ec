//! Sockets that were bound before this process started: by a service manager (`LISTEN_FDS`, as systemd's socket activation does),
//! or by the gateway that this one succeeds (`serve --upgrade`).
//!
//! The process that bound the sockets keeps them open meanwhile: connecting clients wait, and none is refused.

use std::time::{Duration, Instant};
use std::{io, thread};

use listenfd::ListenFd;

use super::BoundSocket;
use crate::config::{ListenAddress, SocketMode};

/// Time in which a gateway that was told to stop closes the sockets of its clients.
const PREDECESSOR_CLOSES: Duration = Duration::from_secs(5);

/// Pause before an address that was in use is bound again.
const BIND_AGAIN: Duration = Duration::from_millis(20);

/// The passed sockets that no listener has taken yet.
pub(crate) struct PassedSockets {
    /// End of the wait for addresses in use.
    free_by: Instant,
    of_predecessor: Vec<(ListenAddress, BoundSocket)>,
    of_manager: Vec<(ListenAddress, BoundSocket)>,
}

impl PassedSockets {
    /// Takes the sockets of the predecessor, if there is one, and of `LISTEN_FDS`, if `LISTEN_PID` is this process.
    /// Must be called once, before there are threads, as the variables are removed.
    pub(crate) fn of_process(of_predecessor: Option<Vec<(ListenAddress, BoundSocket)>>) -> Self {
        let patience = of_predecessor
            .as_ref()
            .map_or(Duration::ZERO, |_| PREDECESSOR_CLOSES);
        let mut passed = ListenFd::from_env();
        let taken = (0..passed.len()).filter_map(|index| {
            let socket = take(&mut passed, index);
            socket
                .inspect_err(|error| {
                    tracing::warn!("LISTEN_FDS: socket {index} cannot be used: {error}");
                })
                .ok()
        });
        Self {
            free_by: Instant::now() + patience,
            of_predecessor: of_predecessor.unwrap_or_default(),
            of_manager: taken.collect(),
        }
    }

    /// Takes the socket that is bound to this address, or binds it. `mode`: permissions of the file of a Unix socket. Waits
    /// for an address that the predecessor is about to close.
    ///
    /// # Errors
    ///
    /// Errors of the operating system.
    pub(crate) fn take_or_bind(
        &mut self,
        address: &ListenAddress,
        mode: SocketMode,
    ) -> io::Result<BoundSocket> {
        if let Some(socket) = self.take(address) {
            return Ok(socket);
        }
        loop {
            match BoundSocket::bind(address, mode) {
                Err(error)
                    if error.kind() == io::ErrorKind::AddrInUse
                        && Instant::now() < self.free_by =>
                {
                    thread::sleep(BIND_AGAIN);
                }
                bound => return bound,
            }
        }
    }

    fn take(&mut self, address: &ListenAddress) -> Option<BoundSocket> {
        [&mut self.of_predecessor, &mut self.of_manager]
            .into_iter()
            .find_map(|sockets| {
                let at = sockets.iter().position(|(bound, _)| bound == address)?;
                Some(sockets.swap_remove(at).1)
            })
    }

    /// Logs and closes the sockets that no listener has taken.
    pub(crate) fn close_rest(self) {
        for (address, _) in self.of_predecessor {
            tracing::info!("the gateway before listens at {address}, and this one does not");
        }
        for (address, _) in self.of_manager {
            tracing::warn!(
                "LISTEN_FDS has a socket at {address}, and no listener has that address: it is closed"
            );
        }
    }
}

fn take(passed: &mut ListenFd, index: usize) -> io::Result<(ListenAddress, BoundSocket)> {
    let gone = || io::Error::other("it was taken before");
    if let Ok(socket) = passed.take_unix_listener(index) {
        return BoundSocket::of_unix(socket.ok_or_else(gone)?);
    }
    BoundSocket::of_tcp(passed.take_tcp_listener(index)?.ok_or_else(gone)?)
}
