//! Stores idle connections to a backend until their next request.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::FutureExt as _;
use pingora_core::protocols::Stream;
use tokio::io::AsyncReadExt as _;
use tokio::runtime::{self, Handle};
use tokio::time::Instant;

use super::lock;

/// Maximum idle time of a connection, even if the backend would allow more.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// Time subtracted from the idle time that a backend announces, so that no request is sent while the backend is closing the
/// connection.
const MARGIN: Duration = Duration::from_secs(1);

/// The idle connections to one backend, from all runtimes.
pub(crate) struct Idle {
    max: usize,
    kept: Mutex<Vec<IdleConnection>>,
}

struct IdleConnection {
    stream: Stream,
    /// The address to which the connection was opened. `None` for a Unix socket.
    address: Option<SocketAddr>,
    runtime: runtime::Id,
    until: Instant,
}

impl Idle {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            max,
            kept: Mutex::default(),
        }
    }

    /// Removes and returns the connection of the current runtime that became idle most recently. Drops connections that are
    /// closed, too old, or lead to an address to which the name no longer resolves.
    pub(crate) fn take(
        &self,
        still_resolves_to: impl Fn(&SocketAddr) -> bool,
    ) -> Option<(Stream, Option<SocketAddr>)> {
        let runtime = Handle::current().id();
        let now = Instant::now();
        loop {
            let mut kept = {
                let mut all = lock(&self.kept);
                let at = all.iter().rposition(|it| it.runtime == runtime)?;
                all.remove(at)
            };
            let moved = kept
                .address
                .is_some_and(|address| !still_resolves_to(&address));
            if now < kept.until && !moved && is_open(&mut kept.stream) {
                return Some((kept.stream, kept.address));
            }
        }
    }

    /// Stores a connection whose last response was read completely. `patience` is the idle time that the backend announced.
    pub(crate) fn put(
        &self,
        stream: Stream,
        address: Option<SocketAddr>,
        patience: Option<Duration>,
    ) {
        let patience = patience.map_or(IDLE_MAX, |it| it.saturating_sub(MARGIN).min(IDLE_MAX));
        let kept = IdleConnection {
            stream,
            address,
            runtime: Handle::current().id(),
            until: Instant::now() + patience,
        };
        let mut all = lock(&self.kept);
        if self.max == 0 || patience.is_zero() {
            return;
        }
        if all.len() >= self.max {
            // Too many connections: the oldest one is closed.
            all.remove(0);
        }
        all.push(kept);
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.kept).is_empty()
    }

    /// Closes connections that are too old, that the backend has closed, or that lead to an address to which the name no longer
    /// resolves.
    pub(crate) fn sweep(&self, still_resolves_to: impl Fn(&SocketAddr) -> bool) {
        let now = Instant::now();
        lock(&self.kept).retain_mut(|kept| {
            let moved = kept
                .address
                .is_some_and(|address| !still_resolves_to(&address));
            now < kept.until && !moved && is_open(&mut kept.stream)
        });
    }
}

/// Returns true if the backend has neither closed the connection nor sent unrequested bytes.
fn is_open(stream: &mut Stream) -> bool {
    let mut byte = [0; 1];
    let read = tokio::task::unconstrained(stream.read(&mut byte));
    read.now_or_never().is_none()
}
