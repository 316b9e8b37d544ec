//! The relay's Unix socket: binds the socket, accepts connections, and passes each to the service together with the user, group
//! and process id of the peer, as the kernel reports them.
//!
//! ```text
//!   accept (control runtime) ──▶ room for one more? ──▶ a runtime of the message path ──▶ Service::serve_relay
//! ```
//!
//! This module uses neither Pingora nor HTTP: the service implements the protocol of a connection. The socket's file remains
//! when the gateway ends, like those of listeners; the next start replaces the file if no process listens there.

use std::io;
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use anyhow::anyhow;
use prometheus::IntGauge;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, Interest, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tooldock_base::runtimes::Runtimes;
use tooldock_sessions::caller::RelayPeer;
use tooldock_upstream::{Relay, RelayRegistration, Service};

use crate::config::{ListenAddress, RelayConfig};
use crate::sockets::{BoundSocket, PassedSockets};

/// Pause after a connection could not be accepted. The usual cause is too many open files, which ends by itself.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Interval at which a connection is checked for complete disconnection, if its client no longer writes while its calls run.
const GONE_CHECK: Duration = Duration::from_millis(100);
/// Time limit for sending the reason to a refused client.
const REFUSAL_TIME: Duration = Duration::from_secs(1);
/// The response to a client that is refused because there are too many connections.
const FULL: &[u8] = b"{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32000,\"message\":\"too many connections: try again later\"}}\n";

/// The relay's socket. It is bound early in the gateway's start.
#[derive(Debug)]
pub(crate) struct RelaySocket {
    listener: StdListener,
    path: PathBuf,
}

impl RelaySocket {
    /// Binds the relay's socket, or takes it from `passed`. Returns `None` if the relay is off.
    ///
    /// # Errors
    ///
    /// A line of text that names the key, the path and the remedy.
    pub(crate) fn bind(
        config: &RelayConfig,
        passed: &mut PassedSockets,
    ) -> anyhow::Result<Option<Self>> {
        let Some(path) = config.socket() else {
            return Ok(None);
        };
        let address = ListenAddress::Unix(path.to_owned());
        let bound = match passed.take_or_bind(&address, config.mode) {
            Ok(BoundSocket::Unix(listener)) => Ok(listener),
            Ok(BoundSocket::Tcp(_)) => Err(io::ErrorKind::InvalidInput.into()),
            Err(error) => Err(error),
        };
        let listener = bound.map_err(|error: io::Error| {
            let hint = hint(&error);
            anyhow!(
                "relay.socket: cannot bind {}: {error}{hint}",
                path.display()
            )
        })?;
        tracing::info!(
            namespace = config.namespace.as_str(),
            "the relay listens on {}",
            path.display()
        );
        Ok(Some(Self {
            listener,
            path: path.to_owned(),
        }))
    }
}

/// A remedy to append to the error's message; empty unless the error has one of the usual causes.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; make the folder first",
        io::ErrorKind::PermissionDenied => {
            "; the gateway's user needs to write and search in the folder"
        }
        _ => "",
    }
}

impl RelaySocket {
    /// Duplicates the socket's file descriptor. Returns it with the socket's path.
    ///
    /// # Errors
    ///
    /// When there are too many open files.
    pub(crate) fn handle(&self) -> io::Result<(ListenAddress, BoundSocket)> {
        let listener = self.listener.try_clone()?;
        Ok((
            ListenAddress::Unix(self.path.clone()),
            BoundSocket::Unix(listener),
        ))
    }
}

/// The running relay server. Dropping it ends the relay's connections.
pub(crate) struct RelayServer {
    stop: watch::Sender<bool>,
    relay: Arc<Relay>,
}

impl RelayServer {
    /// Starts to serve the socket. Connections are accepted on the current runtime as soon as `gate` is true, and each is served
    /// on a runtime of the message path.
    ///
    /// # Errors
    ///
    /// When the runtime cannot register the socket.
    pub(crate) fn start(
        socket: RelaySocket,
        relay: Arc<Relay>,
        service: Service,
        runtimes: Arc<Runtimes>,
        connections: IntGauge,
        mut gate: watch::Receiver<bool>,
    ) -> io::Result<Self> {
        let listener = UnixListener::from_std(socket.listener)?;
        let (stop, stopped) = watch::channel(false);
        let accepting = RelayAcceptLoop {
            path: socket.path,
            relay: Arc::clone(&relay),
            service,
            runtimes,
            connections,
            stopped,
        };
        // The task ends when `stop` is dropped; the returned value owns it.
        tokio::spawn(async move {
            // An error means that the sender of the gate was dropped: then the loop starts without waiting.
            let _ = gate.wait_for(|open| *open).await;
            accepting.run(listener).await;
        });
        Ok(Self { stop, relay })
    }

    /// Stops accepting connections and reading frames. Running calls are still answered.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// The number of open connections on the relay's socket.
    pub(crate) fn open(&self) -> usize {
        self.relay.connections()
    }
}

/// The loop that accepts connections on the relay's socket.
struct RelayAcceptLoop {
    path: PathBuf,
    relay: Arc<Relay>,
    service: Service,
    runtimes: Arc<Runtimes>,
    connections: IntGauge,
    stopped: watch::Receiver<bool>,
}

impl RelayAcceptLoop {
    async fn run(self, listener: UnixListener) {
        let mut stopped = self.stopped.clone();
        loop {
            // Waits for one of two events:
            // - `stop` was called
            // - a client connects. Before that, connections that were closed to make room must have ended
            let next = async {
                self.relay.room_for_next().await;
                listener.accept().await
            };
            let accepted = tokio::select! {
                _ = stopped.wait_for(|stopped| *stopped) => return,
                accepted = next => accepted,
            };
            let taken = match accepted {
                Ok((stream, _)) => self.take(stream).await,
                Err(error) => Err(error),
            };
            if let Err(error) = taken {
                let path = self.path.display();
                tracing::warn!(%error, "a connection on the relay's socket {path} could not be accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }

    async fn take(&self, stream: UnixStream) -> io::Result<()> {
        let credentials = stream.peer_cred()?;
        let Some(guest) = self.relay.enter(credentials.uid()) else {
            tokio::spawn(turn_away(stream));
            return Ok(());
        };
        let peer = RelayPeer {
            uid: credentials.uid(),
            gid: credentials.gid(),
            // 0 means that the process is outside the gateway's PID namespace.
            pid: credentials.pid().filter(|pid| *pid > 0),
            project: None,
        };
        // Converted to a standard stream, which is registered on no runtime, so that the runtime that serves it can register it.
        let stream = stream.into_std()?;
        let connection = SocketConnection {
            relay: Arc::clone(&self.relay),
            service: self.service.clone(),
            peer,
            stopped: self.stopped.clone(),
            counted: ConnectionCount::new(&self.connections),
            guest,
        };
        let runtime = self.runtimes.pick().await;
        runtime.spawn(connection.serve(stream));
        Ok(())
    }
}

/// Sends the refusal to a client that connects while the maximum number of connections is open.
async fn turn_away(mut stream: UnixStream) {
    let _ = timeout(REFUSAL_TIME, stream.write_all(FULL)).await;
}

/// A connection that is counted in the gauge. Dropping it decrements the gauge.
struct ConnectionCount(IntGauge);

impl ConnectionCount {
    fn new(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        self.0.dec();
    }
}

struct SocketConnection {
    relay: Arc<Relay>,
    service: Service,
    peer: RelayPeer,
    stopped: watch::Receiver<bool>,
    counted: ConnectionCount,
    guest: RelayRegistration,
}

impl SocketConnection {
    async fn serve(self, stream: StdStream) {
        let Self {
            relay,
            service,
            peer,
            mut stopped,
            counted,
            guest,
        } = self;
        let stream = match UnixStream::from_std(stream) {
            Ok(stream) => Arc::new(stream),
            Err(error) => return tracing::warn!(%error, "a connection of the relay was lost"),
        };
        let halves = (
            SharedStream(Arc::clone(&stream)),
            SharedStream(Arc::clone(&stream)),
        );
        let stop = async move {
            let _ = stopped.wait_for(|stopped| *stopped).await;
        };
        service
            .serve_relay(relay, (guest, peer), halves, gone(&stream), stop)
            .await;
        drop(counted);
    }
}

/// Waits until the client has closed both directions of the connection, so that it would not read further responses. A client
/// that has only ended its sending direction still reads.
async fn gone(stream: &UnixStream) {
    while let Ok(ready) = stream.ready(Interest::WRITABLE).await {
        if ready.is_write_closed() {
            return;
        }
        sleep(GONE_CHECK).await;
    }
}

/// A handle to a connection that several tasks use at once: for reading, for writing, and for detecting its disconnection.
struct SharedStream(Arc<UnixStream>);

impl AsyncRead for SharedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(context))?;
            match self.0.try_read(buffer.initialize_unfilled()) {
                Ok(read) => {
                    buffer.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for SharedStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(context))?;
            match self.0.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn config(socket: PathBuf) -> RelayConfig {
        RelayConfig {
            socket,
            ..RelayConfig::default()
        }
    }

    fn refused(socket: PathBuf) -> String {
        let refused = RelaySocket::bind(&config(socket), &mut PassedSockets::of_process(None))
            .expect_err("refused");
        refused.to_string()
    }

    #[test]
    fn the_socket_has_its_mode_and_a_stale_one_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("relay.sock");
        let bound = RelaySocket::bind(&config(path.clone()), &mut PassedSockets::of_process(None))
            .expect("bound");
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        assert!(refused(path.clone()).contains("another process listens there"));
        drop(bound);
        assert!(
            RelaySocket::bind(&config(path), &mut PassedSockets::of_process(None))
                .expect("replaced")
                .is_some()
        );
        assert!(
            RelaySocket::bind(
                &RelayConfig::default(),
                &mut PassedSockets::of_process(None)
            )
            .expect("off")
            .is_none()
        );
    }

    #[test]
    fn a_socket_that_cannot_be_bound_is_told_with_what_to_do() {
        let folder = tempfile::tempdir().expect("a folder");
        let missing = refused(folder.path().join("missing/relay.sock"));
        assert!(
            missing.starts_with("relay.socket: cannot bind "),
            "{missing}"
        );
        assert!(missing.ends_with("; make the folder first"), "{missing}");
        let file = folder.path().join("file");
        fs::write(&file, "mine").expect("written");
        assert!(refused(file.clone()).contains("no socket"));
        assert_eq!(fs::read_to_string(&file).expect("kept"), "mine");
    }

    #[tokio::test]
    async fn a_client_is_gone_when_both_ends_are_closed() {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let mut theirs = theirs;
        theirs.shutdown().await.expect("half");
        let left = timeout(Duration::from_millis(300), gone(&ours)).await;
        assert!(left.is_err(), "the client still reads");
        drop(theirs);
        let left = timeout(Duration::from_secs(20), gone(&ours)).await;
        assert!(left.is_ok(), "nobody noticed that the client is gone");
    }
}
