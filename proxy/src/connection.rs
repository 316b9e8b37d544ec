//! A connection of a client: its socket, its state between requests, and its count among the others.
//!
//! `edge` accepts connections and serves them; a TLS handshake, a request and a long stream find theirs by the task they run in.

mod chunks;
mod gathered;
mod socket;
mod table;
mod wire;

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pingora_core::protocols::l4::socket::SocketAddr as LocalAddress;

pub(crate) use self::chunks::Chunks;
pub(crate) use self::socket::{ListeningSocket, Socket};
pub(crate) use self::table::{Connections, MultiplexedRequest, OpenConnection};
pub(crate) use self::wire::{Carrier, Wire};

/// The part of a request that goes on when Pingora has let go of the request.
type Rest = Pin<Box<dyn Future<Output = ()> + Send>>;

tokio::task_local! {
    static CONNECTION: Arc<OpenConnection>;
    static REST: Arc<Mutex<Option<Rest>>>;
}

/// The connection of the current request or handshake, for holders that outlive the request. `None` for a request of HTTP/2,
/// whose connection outlives it anyway.
pub(crate) fn open_connection() -> Option<Arc<OpenConnection>> {
    CONNECTION.try_with(Arc::clone).ok()
}

/// Serves a connection in a task that knows it, see [`open_connection`].
pub(crate) async fn of_connection<F: Future>(open: Arc<OpenConnection>, served: F) -> F::Output {
    CONNECTION.scope(open, served).await
}

/// Notes at the current connection if a credential has admitted its last request. Returns false where the task of the current
/// request knows no connection, see [`open_connection`].
pub(crate) fn note_admitted(admitted: bool) -> bool {
    let noted = CONNECTION.try_with(|open| open.admitted(admitted));
    noted.is_ok()
}

/// Runs `rest` in the task of the current HTTP/2 request, after Pingora has dropped everything it held for it.
///
/// In that task, because Pingora closes a connection as idle when the tasks of its requests have ended.
pub(crate) fn afterwards(rest: impl Future<Output = ()> + Send + 'static) {
    let mut rest: Option<Rest> = Some(Box::pin(rest));
    let _ = REST.try_with(|slot| {
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = rest.take();
    });
    // Every HTTP/2 request has the slot; without one the stream would merely be cut by the idle time.
    if let Some(rest) = rest {
        tokio::spawn(rest);
    }
}

/// Serves an HTTP/2 request, and then the rest that it leaves by [`afterwards`].
pub(crate) async fn with_rest<F: Future>(served: F) -> F::Output {
    let slot = Arc::new(Mutex::new(None));
    let ended = REST.scope(Arc::clone(&slot), served).await;
    let rest = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(rest) = rest {
        rest.await;
    }
    ended
}

/// The port of a proxy that has introduced a connection without its client's address. No connection comes from this port; it
/// is used as a mark, because Pingora hands on only the address of the peer.
pub(crate) const NO_CLIENT_PORT: u16 = 0;

/// Returns true if the peer is a proxy that has introduced its connection without an address of its client.
pub(crate) fn names_no_client(peer: &LocalAddress) -> bool {
    let peer = peer.as_inet();
    peer.is_some_and(|peer| peer.port() == NO_CLIENT_PORT)
}

/// The time in which a kept connection of a gateway that was handed over may still bring a request; the answer closes it.
pub(crate) const LINGER: Duration = Duration::from_secs(5);

/// Limits of a connection; swapped on reload.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionLimits {
    /// Limit for a TLS handshake, and from the first byte of a head to its last.
    pub(crate) header: Duration,
    /// How long a connection may idle between two requests.
    pub(crate) keepalive: Duration,
    /// How long one write may wait for the client. A connection keeps the limit it began with.
    pub(crate) write: Duration,
    /// The size of a head, in bytes.
    pub(crate) header_bytes: usize,
}
