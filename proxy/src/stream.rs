//! Long streams: GET on `/mcp`, `/sse`, `subscriptions/listen`. They are open for hours and mostly idle.
//!
//! A request inside Pingora keeps its buffers and the states of every kind of proxying for as long as it lasts, some 30 KiB. So
//! a stream's head is written like any other, and then the stream is moved out of Pingora:
//!
//! ```text
//! HTTP/1, plain ── the socket ────────────── a task of its own   (about 1 KiB)
//! HTTP/1, TLS ──── the TLS connection ────── a task of its own
//! HTTP/2 ───────── Pingora's session ─────── the request's task, after Pingora is done with it (see `connection::afterwards`)
//! ```
//!
//! The counts and guards of a stream are kept until it ends: those of the service, the connection under the cap, the gauge for
//! which the drain waits. The request counts as answered once its head is written; the access log gets its line at the stream's
//! end.

mod detach;
mod session;
mod writer;

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pingora_proxy::Session;
use tooldock_upstream::reply::{Guards, Head, Subscription};

use self::detach::DetachedConnection;
use self::writer::{Events, Framing};
use crate::access_log::Pending;
use crate::connection::{self, OpenConnection};
use crate::metrics::{EdgeMetrics, Ending, OpenStream, StreamTransport};
use crate::respond::{self, ClientGone, Envelope};
use crate::unread::WriteLimits;

/// A long stream of the service, before its head is written.
pub(crate) struct LongStream {
    pub(crate) head: Head,
    pub(crate) events: Subscription,
    pub(crate) guards: Guards,
    /// Time limit of the stream, if any: the end of a client certificate, an API key or a login.
    pub(crate) lasts: Option<Duration>,
    /// Resolves when the client's token is revoked, or its login ends; `None` if that is not checked.
    pub(crate) revoked: Option<End>,
}

/// Resolves when a stream has to end.
pub(crate) type End = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Resolves after `lasts`, or when `revoked` does, whichever is earlier; `None` without both.
fn earlier(lasts: Option<Duration>, revoked: Option<End>) -> Option<End> {
    let expired = lasts.map(|lasts| Box::pin(tokio::time::sleep(lasts)) as End);
    sooner(expired, revoked)
}

/// Resolves when the first of two ends resolves; `None` without both.
pub(crate) fn sooner(one: Option<End>, other: Option<End>) -> Option<End> {
    match (one, other) {
        // The two arms: either end has resolved.
        (Some(one), Some(other)) => Some(Box::pin(async move {
            tokio::select! {
                () = one => {}
                () = other => {}
            }
        })),
        (one, other) => one.or(other),
    }
}

impl LongStream {
    /// Writes the head and moves the stream out of Pingora. `session` holds no connection afterwards: the request must
    /// end with an error, and its session must not be read.
    ///
    /// # Errors
    ///
    /// [`ClientGone`] when the client disconnected, or has sent more than its request.
    pub(crate) async fn start(
        self,
        session: &mut Session,
        envelope: &Envelope<'_>,
        request_id: &Arc<str>,
        logged: &mut Option<Pending>,
        metrics: &EdgeMetrics,
    ) -> Result<(), ClientGone> {
        // The stream's end is the end of its connection: nothing may follow it (DESIGN §4, *Hand-over*).
        session.set_keepalive(None);
        let framing = match session.req_header().version {
            http::Version::HTTP_10 => Framing::UntilClose,
            _ => Framing::Chunked,
        };
        let status = self.head.status.as_u16();
        respond::stream_head(session, self.head, envelope).await?;
        let detached = detach::detach(&mut session.downstream_session).await?;
        let transport = match detached {
            DetachedConnection::Session(_) => StreamTransport::Session,
            _ => StreamTransport::Direct,
        };
        let running = RunningStream {
            events: CountedEvents {
                events: self.events,
                end: earlier(self.lasts, self.revoked),
                bytes: 0,
            },
            framing,
            limits: WriteLimits {
                timeout: envelope.write_timeout,
                answers: envelope.answers.cloned(),
            },
            held: StreamGuards {
                open: metrics.stream_opened(transport),
                request_id: Arc::clone(request_id),
                status,
                // From here on the request is logged at the end of its stream.
                logged: logged.take(),
                started: Instant::now(),
                _guards: self.guards,
                _connection: connection::open_connection(),
            },
        };
        match detached {
            // The connection belongs to this runtime, in which Pingora accepted it.
            DetachedConnection::Socket(socket) => drop(tokio::spawn(running.on_connection(socket))),
            DetachedConnection::Tls(connection) => {
                drop(tokio::spawn(running.on_connection(connection)))
            }
            DetachedConnection::Session(session) => {
                connection::afterwards(running.on_session(session))
            }
        }
        Ok(())
    }
}

/// A stream outside Pingora, with its connection.
struct RunningStream {
    events: CountedEvents,
    framing: Framing,
    limits: WriteLimits,
    held: StreamGuards,
}

/// The events of a stream, with a count of their bytes.
struct CountedEvents {
    events: Subscription,
    end: Option<End>,
    bytes: u64,
}

impl Events for CountedEvents {
    async fn next(&mut self) -> Option<Bytes> {
        let event = match &mut self.end {
            None => self.events.next().await?,
            Some(end) => tokio::select! {
                biased;
                () = end => return None,
                event = self.events.next() => event?,
            },
        };
        self.bytes += event.len() as u64;
        Some(event)
    }

    fn are_broken(&self) -> bool {
        self.events.is_broken()
    }
}

/// Guards and counts of a stream, kept until its end.
struct StreamGuards {
    open: OpenStream,
    request_id: Arc<str>,
    status: u16,
    logged: Option<Pending>,
    started: Instant,
    _guards: Guards,
    _connection: Option<Arc<OpenConnection>>,
}

impl RunningStream {
    async fn on_connection<C>(mut self, mut connection: C)
    where
        C: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send,
    {
        let ending = writer::run(
            &mut connection,
            &mut self.events,
            self.framing,
            &self.limits,
        )
        .await;
        self.held.ended(ending, self.events.bytes);
    }

    async fn on_session(mut self, mut session: Box<pingora_core::protocols::http::ServerSession>) {
        let ending = session::run(&mut session, &mut self.events, &self.limits).await;
        self.held.ended(ending, self.events.bytes);
    }
}

impl StreamGuards {
    fn ended(&mut self, ending: Ending, bytes: u64) {
        self.open.ended(ending);
        if let Some(mut logged) = self.logged.take() {
            if ending != Ending::Complete {
                logged.entry.because(ending.label());
            }
            logged.answered(self.status, bytes, self.started.elapsed());
        }
        tracing::debug!(
            request_id = %self.request_id,
            reason = ending.label(),
            seconds = self.started.elapsed().as_secs(),
            "stream ended"
        );
    }
}

#[cfg(test)]
mod tests {
    use crate::connection::Socket;

    use super::*;

    /// The memory a task of this function takes, apart from the runtime's own.
    fn size<A, B, F: Future>(_: impl FnOnce(A, B) -> F) -> usize {
        size_of::<F>()
    }

    /// There are tens of thousands of these.
    #[test]
    fn an_idle_stream_is_small() {
        let direct = size(RunningStream::on_connection::<Socket>);
        let session = size(RunningStream::on_session);
        println!("{direct} bytes direct, {session} on a session");
        assert!(direct <= 1024, "{direct} bytes");
        assert!(session <= 2048, "{session} bytes");
    }
}
