//! A connection to a server, shared by all its calls: over its pipes, or over another `Transport`.
//!
//! A call gets an id of the gateway, appends its line to the outbox and waits. A writer task writes the accumulated lines (with
//! few calls, each call writes its own line). A reader task reads responses and matches them to ids; if all calls come from a
//! single runtime, the reader runs there. A caller's progress token is replaced by the call's id on the connection and restored
//! for the caller, so that the tokens of callers that share a process cannot collide. Messages of a call are passed to the
//! call's sink before its response, in the server's order; all other messages are passed to the link's [`Inbound`].
//!
//! Every call ends exactly once: with its response, by being dropped or cancelled, or with the link. Every request of the
//! server is answered exactly once.
//!
//! The caller enforces time limits, by dropping the call. Other modules start and end processes, interpret methods, and
//! translate between revisions. `ping` is the exception: it concerns only this connection, and is answered here.

mod call;
mod deliver;
mod follow;
mod owner;
mod questions;
mod read;
mod shared;
mod tokens;
mod transport;
mod write;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use std::time::Duration;

use http::HeaderMap;
use serde_json::value::RawValue;
use tokio::net::unix::pipe;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::names::NamespaceName;
use tooldock_protocol::jsonrpc::{
    Key, Members, Notification, ProtocolViolation, Request, RequestError, ServerRequest,
};
use tooldock_protocol::version::ProtocolVersion;

use self::follow::Follow;
use self::read::LinkReader;
use self::shared::{AnswerRoute, LinkCore, PipeEnd, Wire};
use super::pipes::{Pipes, ServerLines};

pub use self::call::{Canceller, LinkCall};
pub use self::follow::LinkRuntimes;
use self::owner::CallOrigin;
pub use self::owner::{CallAccount, CallOwner, CallsInHand};
pub(crate) use self::transport::{Incoming, Transport, TransportFailure};

/// Maximum size of the lines to a server that wait to be written, in bytes. Further calls are refused.
const OUTBOX_MAX: usize = 16 * 1024 * 1024;
/// Number of bytes by which a line may be longer than the maximum size of a result.
const LINE_OVERHEAD: u64 = 64 * 1024;
/// Number of bytes without a line end after which a line is discarded and the server is ended.
const ENDLESS: u64 = 256 * 1024 * 1024;

/// Limits on the messages of a link.
pub struct LinkLimits {
    /// Maximum size of a result's JSON in bytes, as it applies now. A call with a larger result fails with `result_too_large`.
    max_result: MaxResult,
    /// Maximum size of the lines that wait to be written to the server, in bytes. Further calls are refused.
    pub(crate) outbox: usize,
    /// Number of bytes without a line end after which the server is ended.
    pub(crate) endless: u64,
}

impl LinkLimits {
    /// Creates the default limits with this `max_result`. The function is called again whenever a result is too large, since the
    /// limit may have been raised. If the limit was lowered, the link still accepts larger results, and the gateway refuses them
    /// later.
    pub fn new(max_result: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        let max_result = MaxResult {
            known: AtomicU64::new(max_result()),
            ask: Box::new(max_result),
        };
        Self {
            outbox: OUTBOX_MAX,
            endless: ENDLESS.max(max_result.known().saturating_mul(2)),
            max_result,
        }
    }
}

/// Maximum size of results, with the function that returns the current value.
pub(crate) struct MaxResult {
    ask: Box<dyn Fn() -> u64 + Send + Sync>,
    /// The maximum that `ask` returned last, in bytes.
    known: AtomicU64,
}

impl MaxResult {
    fn known(&self) -> u64 {
        self.known.load(Ordering::Relaxed)
    }

    /// Returns true if a result may have this size in bytes. Before it returns false, the current maximum is requested again.
    fn allows(&self, size: u64) -> bool {
        if size <= self.known() {
            return true;
        }
        let now = (self.ask)();
        self.known.store(now, Ordering::Relaxed);
        size <= now
    }

    /// Returns true if a line of this length can contain a result of an allowed size.
    fn fits(&self, line: usize) -> bool {
        self.allows((line as u64).saturating_sub(LINE_OVERHEAD))
    }
}

/// Receives the server's messages about a call. The link's reader calls it in the server's order, before the call's response;
/// for a call that became a task, progress may follow the response. An implementation must not block, and must limit its
/// memory.
pub trait NotificationSink: Send + Sync {
    /// Receives progress of the call, or a notification of the subscription that the call opened.
    fn notification(&self, notification: Notification<'_>);
}

/// Receives the server's messages that belong to no call. The link's reader calls it in the server's order. An implementation
/// must not block, must limit its memory, and must not contain an `Arc` of the link, since the cycle would leak both.
pub trait Inbound: Send + Sync {
    /// Receives a notification that belongs to no call: a log message, a changed list, or the cancellation of one of the server's
    /// own requests (named by `requestId`).
    fn notification(&self, notification: Notification<'_>);

    /// Receives a notification that belongs to no call, together with the owners of the calls that the server has not
    /// answered yet.
    fn notification_beside(
        &self,
        notification: Notification<'_>,
        _in_hand: &dyn Fn() -> CallsInHand,
    ) {
        self.notification(notification);
    }

    /// Receives a request that the server sends to its client.
    fn request(&self, request: ServerRequest);

    /// Called when a client has cancelled or dropped the call with this id; the server may still work on the call. `owner`: the
    /// call's owner, if known. Called once, from any thread, while the link's calls are locked, so it must not use the link.
    fn given_up(&self, _call: u64, _owner: Option<&CallOwner>) {}

    /// Called when the late response to an abandoned call has arrived, so that the server no longer works on the call.
    fn settled(&self, _call: u64) {}

    /// Called when the server has answered a call with a task, on which it continues to work. The caller gets `result` after
    /// this. `call`: `None` if the caller has disconnected.
    fn began_task(&self, _call: Option<u64>, _result: &RawValue) {}

    /// Called when the process has ended unexpectedly and will not be replaced. Its pool was informed before.
    fn ended_for_good(&self) {}

    /// Counts a message of the server that was ignored because it violates the protocol.
    fn violation(&self, _oddity: ProtocolViolation) {}

    /// Returns the time since which the client of the process is inactive, with no request, open stream or unanswered question.
    /// `None` if the client is active, or if its activity is not known.
    fn away_since(&self, _now: Instant) -> Option<Instant> {
        None
    }
}

/// Reason for the end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkEnd {
    /// The server closed its output, or no longer reads its input.
    Disconnected,
    /// The server violated the protocol. The text describes the violation.
    Violation(&'static str),
    /// The gateway itself closed the link.
    Ended,
}

/// Owning handle of a connection. Dropping it closes both pipes and fails the pending calls.
pub struct Link {
    shared: Arc<LinkCore>,
    /// The task that writes to the pipe; `None` for transports other than pipes.
    writes: Option<AbortHandle>,
}

impl Link {
    /// Opens a link over pipes.
    ///
    /// # Errors
    ///
    /// When the file descriptors are not pipes, or cannot be registered with the runtime.
    pub fn open(
        namespace: NamespaceName,
        pipes: Pipes,
        homes: LinkRuntimes,
        limits: LinkLimits,
        inbound: Arc<dyn Inbound>,
    ) -> std::io::Result<Arc<Self>> {
        // Pipes must be registered in the runtime that will poll them.
        let runtime = homes.first;
        let _inside = runtime.enter();
        let writer = pipe::Sender::from_owned_fd(pipes.stdin)?;
        let reader = pipe::Receiver::from_owned_fd(pipes.stdout)?;
        let endless = limits.endless;
        let wire = Wire::Pipe(PipeEnd::new(writer, limits.outbox));
        let shared = LinkCore::new(namespace, limits, inbound, wire, runtime.id());
        let shared = Arc::new(shared);
        let max_result = Arc::clone(&shared.max_result);
        let lines = ServerLines::new(reader, move |size| max_result.fits(size), endless);
        LinkReader::new(Arc::clone(&shared), lines, Follow::new(homes.all)).begin(&runtime);
        let writes = runtime.spawn(write::flush(Arc::clone(&shared)));
        Ok(Arc::new(Self {
            shared,
            writes: Some(writes.abort_handle()),
        }))
    }

    /// Opens a link over another transport. `runtime`: the runtime in which the transport delivers responses; `None` if it has no
    /// fixed one.
    pub(crate) fn over(
        namespace: NamespaceName,
        transport: impl FnOnce(Incoming) -> Arc<dyn Transport>,
        runtime: &Handle,
        limits: LinkLimits,
        inbound: Arc<dyn Inbound>,
    ) -> Arc<Self> {
        let shared = Arc::new_cyclic(|link| {
            let wire = Wire::Other(transport(Incoming::new(Weak::clone(link))));
            LinkCore::new(namespace, limits, inbound, wire, runtime.id())
        });
        Arc::new(Self {
            shared,
            writes: None,
        })
    }

    /// Returns true if the server is a process at the other end of two pipes.
    pub(crate) fn is_piped(&self) -> bool {
        matches!(self.shared.wire, Wire::Pipe(_))
    }

    /// Records the version with which the server was opened by `initialize`; `None` if each request carries its own metadata.
    pub(crate) fn opened(&self, version: Option<ProtocolVersion>) {
        if let Wire::Other(transport) = &self.shared.wire {
            transport.opened(version);
        }
    }

    /// Sends a request of the gateway. A progress token in `params` is replaced, and restored in the notifications for the sink.
    /// Notifications of a subscription name the request by the gateway's id.
    ///
    /// # Errors
    ///
    /// [`CallError`], if nothing was sent.
    pub fn request(
        &self,
        method: &str,
        params: Option<&RawValue>,
        sink: Option<Arc<dyn NotificationSink>>,
    ) -> Result<LinkCall, CallError> {
        let members = params.and_then(|params| Members::of_params(params.get()));
        if let Some(members) = &members {
            members.unique().map_err(twice)?;
        }
        let token = members
            .as_ref()
            .and_then(|members| members.name(Key::ProgressToken));
        let size = method.len() + params.map_or(0, |params| params.get().len());
        // Every request except `initialize` may be cancelled.
        let tells = method != "initialize";
        let route = AnswerRoute {
            token,
            sink,
            origin: CallOrigin::Unknown,
        };
        self.shared.begin(tells, route, None, size, |out, id| {
            write::request(out, id, method, params, token);
        })
    }

    /// Sends the complete request of a client, including unknown members, with an id of the gateway. Its progress token is
    /// restored in the notifications for the sink. `of_client`: the client's headers to send with it, on transports with headers.
    /// `account`: the request's owner, and the counter for the bytes of its response.
    ///
    /// # Errors
    ///
    /// [`CallError`], if nothing was sent.
    pub fn forward(
        &self,
        request: &Request,
        sink: Option<Arc<dyn NotificationSink>>,
        of_client: Option<&Arc<HeaderMap>>,
        mut account: Option<CallAccount>,
    ) -> Result<LinkCall, CallError> {
        let (token, size) = (request.token(), request.len());
        let request_id = account.as_mut().and_then(|it| it.request_id.take());
        let request_id = request_id.filter(|_| self.is_piped());
        let route = AnswerRoute {
            token,
            sink,
            origin: account.map_or(CallOrigin::Unknown, CallOrigin::Client),
        };
        self.shared
            .begin(true, route, of_client, size, |out, ours| {
                let digits = &mut [0; write::DIGITS];
                request.write_as(out, write::digits(ours, digits), request_id.as_deref());
            })
    }

    /// Sends a notification of the gateway.
    ///
    /// # Errors
    ///
    /// [`CallError`], when the link has ended or too many bytes wait because the server does not read.
    pub(crate) fn notify(&self, method: &str, params: Option<&RawValue>) -> Result<(), CallError> {
        let size = method.len() + params.map_or(0, |params| params.get().len());
        self.shared
            .append(size, |out| write::notification(out, method, params))
    }

    /// Sends the complete notification of a client unchanged. A `notifications/cancelled` is sent through its call's
    /// [`Canceller`] instead.
    ///
    /// # Errors
    ///
    /// Like `notify`.
    #[inline]
    pub fn forward_notification(&self, message: &str) -> Result<(), CallError> {
        self.shared.append(message.len(), |out| {
            out.extend_from_slice(message.as_bytes())
        })
    }

    /// Returns the number of calls without a response, including subscriptions.
    pub(crate) fn in_flight(&self) -> usize {
        self.shared.calls().pending.len()
    }

    /// Returns true if the link no longer accepts calls.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.calls().closed
    }

    /// Waits until the link has ended, and returns the reason.
    pub(crate) async fn closed(&self) -> LinkEnd {
        let mut closed = self.shared.closed.subscribe();
        loop {
            if let Some(reason) = *closed.borrow_and_update() {
                return reason;
            }
            // The sender is a field of `self`, so it is not dropped while this waits.
            let _ = closed.changed().await;
        }
    }

    /// Waits until no call is pending. Polls every 100 ms.
    pub(crate) async fn without_calls(&self) {
        /// Interval of the checks. Polling is enough, since this wait happens once per link; a notification would cost every
        /// call.
        const LOOK: Duration = Duration::from_millis(100);
        while self.in_flight() > 0 {
            sleep(LOOK).await;
        }
    }

    /// Begins to end the connection: accepts no more calls, writes the queued lines, closes the server's input, and reads until
    /// the server ends.
    #[inline]
    pub fn finish(&self) {
        self.shared.finish();
    }

    /// Fails the pending calls, and accepts no more calls.
    pub(crate) fn close(&self) {
        self.shared.close(LinkEnd::Ended);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.close(LinkEnd::Ended);
        self.shared.reading.end();
        if let Some(task) = &self.writes {
            task.abort();
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("namespace", &self.shared.namespace)
            .finish_non_exhaustive()
    }
}

fn twice(error: RequestError) -> CallError {
    CallError::new(CallErrorCode::InvalidArguments, error.message())
}

#[cfg(test)]
mod tests;
