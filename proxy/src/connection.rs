//! A connection of a client: its socket, its state between requests, and its count among the open connections.
//!
//! `edge` accepts connections and serves them. A TLS handshake, a request and a long stream find their connection by
//! the task they run in.

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

/// The work of an HTTP/2 request that continues after Pingora has dropped the request, see [`afterwards`].
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

/// Serves a connection in a task from which [`open_connection`] finds it.
pub(crate) async fn of_connection<F: Future>(open: Arc<OpenConnection>, served: F) -> F::Output {
    CONNECTION.scope(open, served).await
}

/// Stores at the current connection whether a credential has admitted its last request. Returns false if
/// [`open_connection`] finds no connection.
pub(crate) fn note_admitted(admitted: bool) -> bool {
    let noted = CONNECTION.try_with(|open| open.admitted(admitted));
    noted.is_ok()
}

/// Runs `rest` in the task of the current HTTP/2 request, after Pingora has dropped all its state of the request.
///
/// It runs in that task because Pingora closes a connection as idle when the tasks of its requests have ended.
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

/// Serves an HTTP/2 request, and then runs the work that was passed to [`afterwards`].
pub(crate) async fn with_rest<F: Future>(served: F) -> F::Output {
    let slot = Arc::new(Mutex::new(None));
    let ended = REST.scope(Arc::clone(&slot), served).await;
    let rest = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(rest) = rest {
        rest.await;
    }
    ended
}

/// Port that marks the address of a proxy whose PROXY protocol header names no client. No connection comes from port 0, and
/// Pingora only forwards the address of the peer.
pub(crate) const NO_CLIENT_PORT: u16 = 0;

/// Returns true if the peer is a proxy whose PROXY protocol header names no client.
pub(crate) fn names_no_client(peer: &LocalAddress) -> bool {
    let peer = peer.as_inet();
    peer.is_some_and(|peer| peer.port() == NO_CLIENT_PORT)
}

/// The time in which an idle connection of a gateway that was handed over may still bring a request; the response closes the
/// connection.
pub(crate) const LINGER: Duration = Duration::from_secs(5);

/// Limits of a connection; swapped on reload.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionLimits {
    /// Time limit for a TLS handshake, and for a request head from its first byte to its last.
    pub(crate) header: Duration,
    /// Maximum idle time of a connection between two requests.
    pub(crate) keepalive: Duration,
    /// Maximum time of one write. A connection keeps the limit it began with.
    pub(crate) write: Duration,
    /// Maximum size of a request head, in bytes.
    pub(crate) header_bytes: usize,
}
