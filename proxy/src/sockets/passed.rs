//! Sockets that were bound before this process started: by a service manager (`LISTEN_FDS`, as systemd's socket activation does),
//! or by the gateway that this process replaces (`serve --upgrade`).
//!
//! The process that bound these sockets keeps them open meanwhile. Therefore clients that connect are not refused, but wait.

use std::time::{Duration, Instant};
use std::{io, thread};

use listenfd::ListenFd;

use super::BoundSocket;
use crate::config::{ListenAddress, SocketMode};

/// Maximum time for which this process waits for addresses that the replaced gateway is about to close.
const PREDECESSOR_CLOSES: Duration = Duration::from_secs(5);

/// Pause before another attempt to bind an address that was in use.
const BIND_AGAIN: Duration = Duration::from_millis(20);

/// The passed sockets that are not yet used by a listener.
pub(crate) struct PassedSockets {
    /// Time until which binding an address in use is retried.
    free_by: Instant,
    of_predecessor: Vec<(ListenAddress, BoundSocket)>,
    of_manager: Vec<(ListenAddress, BoundSocket)>,
}

impl PassedSockets {
    /// Collects the sockets of the replaced gateway, if there is one, and those in `LISTEN_FDS`, if `LISTEN_PID` is this process.
    /// Must be called once, and before threads are started, because it removes environment variables.
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

    /// Returns the passed socket that is bound to the address, or else binds a new one. `mode` contains the permissions for the
    /// file of a Unix socket. If the replaced gateway still uses the address, waits until it is free.
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

    /// Logs and closes the passed sockets that no listener uses.
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
