//! A client's connection: its socket, its state between requests, and its entry among the open connections.
//!
//! The module `edge` accepts connections and serves them. Code that runs during a TLS handshake, a request or a long stream finds
//! its connection by a task-local variable.

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

/// Work that continues in the task of an HTTP/2 request after Pingora has dropped the request, see [`afterwards`].
type BackgroundWork = Pin<Box<dyn Future<Output = ()> + Send>>;

tokio::task_local! {
    static CONNECTION: Arc<OpenConnection>;
    static REST: Arc<Mutex<Option<BackgroundWork>>>;
}

/// Returns the connection of the current request or handshake, for objects that live longer than the request. Returns `None` for
/// an HTTP/2 request, since its connection lives longer than the request anyway.
pub(crate) fn open_connection() -> Option<Arc<OpenConnection>> {
    CONNECTION.try_with(Arc::clone).ok()
}

/// Runs `served` in a scope in which [`open_connection`] returns the connection `open`.
pub(crate) async fn of_connection<F: Future>(open: Arc<OpenConnection>, served: F) -> F::Output {
    CONNECTION.scope(open, served).await
}

/// Records at the current connection whether its last request was admitted by a credential. Returns false if [`open_connection`]
/// finds no connection.
pub(crate) fn note_admitted(admitted: bool) -> bool {
    let noted = CONNECTION.try_with(|open| open.admitted(admitted));
    noted.is_ok()
}

/// Runs `rest` in the task of the current HTTP/2 request, after Pingora has dropped all its state of the request.
///
/// The task must not end before `rest`, since Pingora closes a connection as idle when the tasks of all its requests have ended.
pub(crate) fn afterwards(rest: impl Future<Output = ()> + Send + 'static) {
    let mut rest: Option<BackgroundWork> = Some(Box::pin(rest));
    let _ = REST.try_with(|slot| {
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = rest.take();
    });
    // Every HTTP/2 request has a slot that keeps `rest` for its task. If the slot were missing, `rest` would still run, but
    // Pingora could close the connection as idle.
    if let Some(rest) = rest {
        tokio::spawn(rest);
    }
}

/// Serves an HTTP/2 request, then runs the work that was passed to [`afterwards`] during the request.
pub(crate) async fn with_rest<F: Future>(served: F) -> F::Output {
    let slot = Arc::new(Mutex::new(None));
    let ended = REST.scope(Arc::clone(&slot), served).await;
    let rest = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(rest) = rest {
        rest.await;
    }
    ended
}

/// Port number that marks a connection whose PROXY protocol header names no client. Real clients never have port 0. The port is
/// used because Pingora passes on nothing but the peer's address.
pub(crate) const NO_CLIENT_PORT: u16 = 0;

/// Returns true if the peer is a proxy whose PROXY protocol header names no client.
pub(crate) fn names_no_client(peer: &LocalAddress) -> bool {
    let peer = peer.as_inet();
    peer.is_some_and(|peer| peer.port() == NO_CLIENT_PORT)
}

/// Time for which idle connections stay open after the gateway was replaced by a new process. A request that arrives in this time
/// is answered, and then the connection is closed.
pub(crate) const LINGER: Duration = Duration::from_secs(5);

/// Limits of a client's connection. A reload replaces them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionLimits {
    /// Time limit for a TLS handshake, and for a request head from its first byte to its last.
    pub(crate) header: Duration,
    /// Maximum idle time of a connection between two requests.
    pub(crate) keepalive: Duration,
    /// Time limit for a single write. A connection keeps the limit that was in force when it was accepted.
    pub(crate) write: Duration,
    /// Maximum size of a request head, in bytes.
    pub(crate) header_bytes: usize,
}
