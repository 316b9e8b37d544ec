//! The Pingora service that runs the listeners: accepts connections on its sockets until it is stopped.
//!
//! Pingora's own accept loop is not used, because it counts connections only after the TLS handshake, allows a handshake 60
//! seconds, gives no access to its runtimes, and logs every failed handshake as an error.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use pingora_core::protocols::l4::socket::SocketAddr as LocalAddress;
use pingora_core::server::{ListenFds, ShutdownWatch};
use pingora_core::services::Service as PingoraService;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tooldock_base::runtimes::Runtimes;

use super::{AcceptedConnection, Listening};
use crate::connection::ListeningSocket;
use crate::sockets::BoundSocket;
use crate::tls::TlsListener;

/// Pause before the next attempt to accept, after a failure such as too few free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Minimum time between two log messages about connections that cannot be accepted.
const COMPLAIN_EVERY: Duration = Duration::from_secs(10);

/// A listening socket, with its settings.
pub(crate) struct Endpoint {
    pub(crate) socket: BoundSocket,
    /// The address of the socket, by which requests find their listener.
    pub(crate) address: Arc<LocalAddress>,
    /// True if connections must begin with a PROXY protocol header.
    pub(crate) proxy_protocol: bool,
    /// The TLS settings of the listener; `None` without TLS.
    pub(crate) tls: Option<Arc<TlsListener>>,
}

/// A service that accepts connections on its sockets and serves them with an edge.
pub(crate) struct EdgeService {
    name: &'static str,
    listening: Arc<Listening>,
    endpoints: Vec<Endpoint>,
    threads: usize,
    /// The collector to which the service adds its runtime; `None` if its runtime is not collected.
    runtimes: Option<Arc<RuntimeCollector>>,
    /// Stop signal that replaces Pingora's shutdown signal, so that `/ready` is still answered while other requests finish;
    /// `None` for Pingora's signal.
    lifetime: Option<ShutdownWatch>,
    /// True once connections may be accepted. A new process that replaces an old one waits until the old one no longer accepts.
    gate: watch::Receiver<bool>,
}

impl EdgeService {
    /// Creates a service that stops when the gateway begins to stop.
    pub(crate) fn new(
        name: &'static str,
        listening: Arc<Listening>,
        endpoints: Vec<Endpoint>,
        threads: usize,
        gate: watch::Receiver<bool>,
    ) -> Self {
        Self {
            name,
            listening,
            endpoints,
            threads,
            runtimes: None,
            lifetime: None,
            gate,
        }
    }

    /// Adds the service's runtime to `runtimes`, the runtimes that read and write messages of clients.
    pub(crate) fn announced_to(mut self, runtimes: Arc<RuntimeCollector>) -> Self {
        self.runtimes = Some(runtimes);
        self
    }

    /// Lets the service run until `lifetime` is true, and not only until the gateway begins to stop.
    pub(crate) fn until(mut self, lifetime: ShutdownWatch) -> Self {
        self.lifetime = Some(lifetime);
        self
    }
}

#[async_trait]
impl PingoraService for EdgeService {
    async fn start_service(
        &mut self,
        _: Option<ListenFds>,
        shutdown: ShutdownWatch,
        listeners_per_socket: usize,
    ) {
        if let Some(runtimes) = &self.runtimes {
            runtimes.add(Handle::current());
        }
        let mut shutdown = self.lifetime.clone().unwrap_or(shutdown);
        tokio::select! {
            _ = self.gate.wait_for(|open| *open) => {}
            () = stop(&mut shutdown) => return,
        }
        let mut accepting = JoinSet::new();
        for endpoint in self.endpoints.drain(..) {
            let socket = Arc::new(listen(endpoint.socket));
            for _ in 0..listeners_per_socket {
                let loops = AcceptLoop {
                    socket: Arc::clone(&socket),
                    address: Arc::clone(&endpoint.address),
                    proxy_protocol: endpoint.proxy_protocol,
                    tls: endpoint.tls.clone(),
                    listening: Arc::clone(&self.listening),
                    shutdown: shutdown.clone(),
                };
                accepting.spawn(loops.run());
            }
        }
        while accepting.join_next().await.is_some() {}
        self.listening.stopped().await;
    }

    fn name(&self) -> &str {
        self.name
    }

    fn threads(&self) -> Option<usize> {
        Some(self.threads)
    }
}

/// Registers a socket with this runtime. Ends the process if that fails.
fn listen(socket: BoundSocket) -> ListeningSocket {
    ListeningSocket::new(socket).unwrap_or_else(|error| {
        tracing::error!(%error, "a listener cannot be started");
        std::process::exit(1);
    })
}

/// The accept loop of one socket.
struct AcceptLoop {
    socket: Arc<ListeningSocket>,
    address: Arc<LocalAddress>,
    proxy_protocol: bool,
    tls: Option<Arc<TlsListener>>,
    listening: Arc<Listening>,
    shutdown: ShutdownWatch,
}

impl AcceptLoop {
    /// Accepts connections until the service is to stop. After a failure to accept, it pauses.
    async fn run(mut self) {
        let mut complained: Option<Instant> = None;
        loop {
            let accepted = tokio::select! {
                accepted = self.socket.accept() => accepted,
                () = stop(&mut self.shutdown) => return,
            };
            match accepted {
                Ok((socket, peer)) => {
                    let tls = self.tls.as_ref().map(|tls| tls.acceptor());
                    let shutdown = self.shutdown.clone();
                    let accepted = AcceptedConnection {
                        socket,
                        peer,
                        address: Arc::clone(&self.address),
                        proxy_protocol: self.proxy_protocol,
                    };
                    Arc::clone(&self.listening).take(accepted, tls, shutdown);
                    if self.listening.is_full() {
                        // The tasks of connections that are being closed get time to run before the next connection is accepted.
                        tokio::task::yield_now().await;
                        self.listening.room_for_next().await;
                    }
                }
                Err(error) if is_the_clients(&error) => {
                    tracing::debug!(%error, "a client left before it was accepted");
                }
                Err(error) => {
                    if complained.is_none_or(|then| then.elapsed() >= COMPLAIN_EVERY) {
                        complained = Some(Instant::now());
                        tracing::error!(%error, "connections cannot be accepted; is the limit on open files (ulimit -n) too low?");
                    }
                    self.listening.make_room();
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Waits until the service must stop: the signal is true, or its sender was dropped.
async fn stop(shutdown: &mut ShutdownWatch) {
    let _ = shutdown.wait_for(|stopped| *stopped).await;
}

/// Returns true if only the accepted connection failed, and not the listening socket.
fn is_the_clients(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}

/// Collects the runtimes of the services that serve clients. They are published when all expected services have started.
pub(crate) struct RuntimeCollector {
    expected: usize,
    known: Mutex<Vec<Handle>>,
    runtimes: Arc<Runtimes>,
}

impl RuntimeCollector {
    pub(crate) fn new(expected: usize, runtimes: Arc<Runtimes>) -> Self {
        Self {
            expected,
            known: Mutex::default(),
            runtimes,
        }
    }

    fn add(&self, handle: Handle) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.push(handle);
        if known.len() == self.expected {
            self.runtimes.provide(std::mem::take(&mut *known));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn runtimes_are_known_when_the_last_service_has_started() {
        let runtimes = Arc::new(Runtimes::new());
        let announced = RuntimeCollector::new(2, Arc::clone(&runtimes));
        let mut first = std::pin::pin!(runtimes.pick());
        announced.add(Handle::current());
        assert!(futures_util::poll!(first.as_mut()).is_pending());
        announced.add(Handle::current());
        assert_eq!(first.await.id(), Handle::current().id());
    }
}
