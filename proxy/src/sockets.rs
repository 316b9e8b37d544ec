//! The listening sockets. Each address is bound once, before anything else is built, and never given up in between: a
//! taken one ends the start with a line that names it.
//!
//! The services that accept on an address share its socket. One each, side by side by `SO_REUSEPORT`, would let any other
//! process of the same user listen there as well, a tool of ours among them, and have a part of the clients and their tokens.

use std::net::{SocketAddr, TcpListener};

use anyhow::{Context, anyhow};

use crate::config::Effective;

/// The sockets of all listeners that are served.
pub(crate) struct Sockets(Vec<(SocketAddr, TcpListener)>);

impl Sockets {
    /// Binds them.
    ///
    /// # Errors
    ///
    /// The first address that cannot be bound, with its listener's name and what moves the listener.
    pub(crate) fn bind(effective: &Effective) -> anyhow::Result<Self> {
        let listeners = effective.served_listeners();
        let bound = listeners.map(|(index, listener)| {
            let bound = TcpListener::bind(listener.address)
                .and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
            let (name, address) = (&listener.name, listener.address);
            let socket = bound.map_err(|error| {
                let moved_by = effective.port_is_set_by(index, listener);
                anyhow!("listener {name}: cannot bind {address}: {error}; {moved_by}")
            })?;
            Ok((address, socket))
        });
        bound.collect::<anyhow::Result<_>>().map(Self)
    }

    /// Another handle of the socket at this address, for one service.
    ///
    /// # Errors
    ///
    /// When there are too many open files.
    pub(crate) fn handle(&self, address: SocketAddr) -> anyhow::Result<TcpListener> {
        let found = self.0.iter().find(|(bound, _)| *bound == address);
        let (_, socket) = found.context("a listener without a socket")?;
        socket.try_clone().context("another handle of a socket")
    }
}
