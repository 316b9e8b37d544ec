//! Long streams: GET on `/mcp`, `/sse`, `subscriptions/listen`. They are open for hours and mostly idle.
//!
//! A request inside Pingora occupies about 30 KiB as long as it lasts: its buffers, and the states of all kinds of proxying.
//! Therefore only a stream's head is written inside Pingora; then the stream is moved out of Pingora:
//!
//! ```text
//! HTTP/1, plain ── the socket ────────────── a task of its own   (about 1 KiB)
//! HTTP/1, TLS ──── the TLS connection ────── a task of its own
//! HTTP/2 ───────── Pingora's session ─────── the request's task, after Pingora is done with it (see `connection::afterwards`)
//! ```
//!
//! The counts and guards of a stream are kept until the stream ends: those of the service, its place in the limit on connections,
//! and the gauge for which the drain waits. The request is counted as answered when its head has been written. The access log
//! gets the request's line at the end of the stream.

mod detach;
mod session;
mod writer;

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pingora_proxy::Session;
use tooldock_upstream::reply::{Head, ReplyGuards, Subscription};

use self::detach::DetachedConnection;
use self::writer::{Events, Framing};
use crate::access_log::Pending;
use crate::connection::{self, OpenConnection};
use crate::metrics::{EdgeMetrics, Ending, OpenStream, StreamTransport};
use crate::respond::{self, ClientGone, Envelope};
use crate::unread::WriteLimits;

/// A long stream from the service whose head is not yet written.
pub(crate) struct LongStream {
    pub(crate) head: Head,
    pub(crate) events: Subscription,
    pub(crate) guards: ReplyGuards,
    /// Maximum duration of the stream: the time until a client certificate, API key or login expires. `None` if nothing expires.
    pub(crate) lasts: Option<Duration>,
    /// Resolves when the client's token is revoked or its login ends; the stream ends then. `None` if neither is checked.
    pub(crate) revoked: Option<End>,
}

/// Future that resolves when a stream must end.
pub(crate) type End = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A future that resolves after `lasts` or together with `revoked`, whichever is earlier. `None` if both are `None`.
fn earlier(lasts: Option<Duration>, revoked: Option<End>) -> Option<End> {
    let expired = lasts.map(|lasts| Box::pin(tokio::time::sleep(lasts)) as End);
    first_of(expired, revoked)
}

/// A future that resolves when the first of the two resolves. `None` if both are `None`.
pub(crate) fn first_of(one: Option<End>, other: Option<End>) -> Option<End> {
    match (one, other) {
        // Ends with the first of two events:
        // - `one` has resolved
        // - `other` has resolved
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
    /// Writes the head and moves the stream out of Pingora. After that `session` has no connection: the request must end with an
    /// error, and its session must not be read.
    ///
    /// # Errors
    ///
    /// [`ClientGone`] when the client disconnected, or has sent more bytes than its request.
    pub(crate) async fn start(
        self,
        session: &mut Session,
        envelope: &Envelope<'_>,
        request_id: &Arc<str>,
        logged: &mut Option<Pending>,
        metrics: &EdgeMetrics,
    ) -> Result<(), ClientGone> {
        // The connection is closed at the end of the stream and not used for another request (DESIGN §4, *Hand-over*).
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
                // The access log's entry is moved from the request to the stream, because the entry is written at the end of
                // the stream.
                logged: logged.take(),
                started: Instant::now(),
                _guards: self.guards,
                _connection: connection::open_connection(),
            },
        };
        match detached {
            // The task is started on the current runtime: the connection is registered there.
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

/// A stream that was moved out of Pingora. It is written by the task of its connection.
struct RunningStream {
    events: CountedEvents,
    framing: Framing,
    limits: WriteLimits,
    held: StreamGuards,
}

/// The events of a stream, with the number of bytes sent so far.
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

/// Guards and counts of a stream, which are dropped when the stream ends.
struct StreamGuards {
    open: OpenStream,
    request_id: Arc<str>,
    status: u16,
    logged: Option<Pending>,
    started: Instant,
    _guards: ReplyGuards,
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
