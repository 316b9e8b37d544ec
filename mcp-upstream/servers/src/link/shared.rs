//! State that a link's handle, calls and tasks share. It enforces three rules: every call ends, each request of the server gets
//! one response, and nothing is written after the link has ended.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use serde_json::value::RawValue;
use tokio::net::unix::pipe;
use tokio::runtime;
use tokio::sync::{Notify, oneshot, watch};
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::names::NamespaceName;
use tooldock_process::worker::pending::{NoPendingCall, Pending};
use tooldock_protocol::jsonrpc::{Asker, RawId, Response, RpcError};

use super::deliver::{DeliveryQueues, WaitingCaller};
use super::follow::ReadTask;
use super::owner::{CallOrigin, CallsInHand};
use super::questions::ServerRequests;
use super::tokens::TaskTokens;
use super::transport::{Transport, TransportFailure};
use super::{Inbound, LinkCall, LinkEnd, LinkLimits, MaxResult, NotificationSink, write};
use crate::pipes::{AppendRefusal, Outbox};

/// Number of pending calls up to which each call writes its own line. With so few, collecting lines for one write saves
/// nothing, and waking the flusher in another runtime would cost more.
pub(super) const FEW: usize = 2;

/// Delay after which a client may retry, sent with the error when an outbox is full or a server has ended.
const RETRY: Duration = Duration::from_secs(1);

/// State shared by the calls, the server's requests, the reader and the flusher. Each mutex is held for a few instructions (at
/// most the copy of one line), never two at a time, and without awaits or calls to other code, except for [`Inbound::given_up`].
pub(super) struct LinkCore {
    pub(super) namespace: NamespaceName,
    pub(super) max_result: Arc<MaxResult>,
    pub(super) inbound: Arc<dyn Inbound>,
    /// Calls that have no response yet.
    pub(super) calls: Mutex<LinkCalls>,
    /// The transport for messages to the server.
    pub(super) wire: Wire,
    /// Delivery queues to callers in other runtimes.
    pub(super) queues: DeliveryQueues,
    /// Handle of the task that reads the pipe.
    pub(super) reading: ReadTask,
    /// Requests of the server that have no response yet.
    pub(super) questions: Mutex<ServerRequests>,
    pub(super) closed: watch::Sender<Option<LinkEnd>>,
}

/// The transport for messages to a server: a pipe, or another transport.
pub(super) enum Wire {
    /// Messages are written to the server's standard input.
    Pipe(PipeEnd),
    /// Messages are sent over a transport other than pipes, such as HTTP.
    Other(Arc<dyn Transport>),
}

/// The gateway's end of a server's standard input, with the lines that wait to be written to it.
pub(super) struct PipeEnd {
    /// Lines to the server that wait to be written.
    outbox: Mutex<Outbox<pipe::Sender>>,
    /// Notified when the outbox has lines for the flusher to write, or has ended.
    pub(super) filled: Notify,
}

impl PipeEnd {
    pub(super) fn new(pipe: pipe::Sender, max: usize) -> Self {
        Self {
            outbox: Mutex::new(Outbox::new(pipe, max)),
            filled: Notify::new(),
        }
    }

    pub(super) fn outbox(&self) -> MutexGuard<'_, Outbox<pipe::Sender>> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Record of how far a request was sent, which decides whether a failed request may be sent again to another process.
pub(super) enum SendProgress {
    /// Position in the pipe's byte stream at which the request's line begins.
    At(u64),
    /// The record of a transport other than a pipe: how the request failed, if it failed.
    Unless(TransportFailure),
}

#[derive(Default)]
pub(super) struct LinkCalls {
    pub(super) pending: Pending<PendingCall>,
    /// Progress tokens of calls that were answered with a task. They are needed after the calls have ended.
    pub(super) lasting: TaskTokens,
    /// True once the link accepts no calls. It is set under the lock of the calls, so no call can be added after closing has
    /// failed all pending ones.
    pub(super) closed: bool,
}

/// A pending call, with the data that the reader needs to complete it.
pub(super) struct PendingCall {
    pub(super) reply: WaitingCaller,
    pub(super) sink: Option<Arc<dyn NotificationSink>>,
    /// The caller's progress token as raw JSON. On the link it is replaced by the call's id.
    pub(super) token: Option<Arc<str>>,
    /// The origin of the call: the gateway or a client.
    pub(super) origin: CallOrigin,
}

/// Destination of a call's messages: the progress token and sink for its notifications, and its origin.
pub(super) struct AnswerRoute<'a> {
    pub(super) token: Option<&'a str>,
    pub(super) sink: Option<Arc<dyn NotificationSink>>,
    pub(super) origin: CallOrigin,
}

impl LinkCore {
    pub(super) fn new(
        namespace: NamespaceName,
        limits: LinkLimits,
        inbound: Arc<dyn Inbound>,
        wire: Wire,
        runtime: runtime::Id,
    ) -> Self {
        Self {
            namespace,
            max_result: Arc::new(limits.max_result),
            inbound,
            calls: Mutex::default(),
            wire,
            queues: DeliveryQueues::new(runtime),
            reading: ReadTask::default(),
            questions: Mutex::default(),
            closed: watch::Sender::new(None),
        }
    }

    /// Sends a request, which `write` writes with the given id. `tells`: true if the server gets a cancellation when the caller
    /// drops the call. `of_client`: the client's headers to send with it, on transports with headers.
    pub(super) fn begin(
        self: &Arc<Self>,
        tells: bool,
        route: AnswerRoute<'_>,
        of_client: Option<&Arc<HeaderMap>>,
        size: usize,
        write: impl FnOnce(&mut BytesMut, u64),
    ) -> Result<LinkCall, CallError> {
        let (reply, receiver) = oneshot::channel();
        let entry = PendingCall {
            reply: WaitingCaller::new(reply, self.queues.here()),
            sink: route.sink,
            token: route.token.map(Into::into),
            origin: route.origin,
        };
        let (id, few) = {
            let mut calls = self.calls();
            if calls.closed {
                drop(calls);
                return Err(self.gone("has ended"));
            }
            let id = calls.pending.insert(entry);
            (id, calls.pending.len() <= FEW)
        };
        let id = id.ok_or_else(|| self.overloaded("too many calls wait for the server"))?;
        let sent = match &self.wire {
            Wire::Pipe(pipe) => self
                .append_and(pipe, few, size, |out| write(out, id))
                .map(SendProgress::At),
            Wire::Other(transport) => {
                let unsent = TransportFailure::default();
                let message = message(size, |out| write(out, id));
                let sent = transport.request(id, message, unsent.clone(), of_client.cloned());
                sent.map(|()| SendProgress::Unless(unsent))
            }
        };
        match sent {
            Ok(sent) => Ok(LinkCall::new(Arc::clone(self), id, receiver, sent, tells)),
            Err(error) => {
                let _ = self.take(id);
                Err(error)
            }
        }
    }

    /// Sends a message that needs no response: a notification or a response.
    pub(super) fn append(
        &self,
        size: usize,
        write: impl FnOnce(&mut BytesMut),
    ) -> Result<(), CallError> {
        match &self.wire {
            Wire::Pipe(pipe) => self.append_and(pipe, false, size, write).map(drop),
            Wire::Other(transport) => transport.send(message(size, write)),
        }
    }

    /// Returns true if no byte of a call reached the server.
    pub(super) fn is_unsent(&self, sent: &SendProgress) -> bool {
        match (&self.wire, sent) {
            (Wire::Pipe(pipe), SendProgress::At(start)) => pipe.outbox().is_unsent(*start),
            (_, SendProgress::Unless(unsent)) => unsent.is_noted(),
            (Wire::Other(_), SendProgress::At(_)) => false,
        }
    }

    /// Appends a line and returns its position in the pipe's byte stream. If `at_once` is set and no other task is writing, the
    /// line is written directly.
    fn append_and(
        &self,
        pipe: &PipeEnd,
        at_once: bool,
        size: usize,
        write: impl FnOnce(&mut BytesMut),
    ) -> Result<u64, CallError> {
        let appended = {
            let mut outbox = pipe.outbox();
            let appended = outbox.append(size, write);
            // `own_turn` is called only if the line is written directly: it moves the pipe out of the outbox, and nothing else
            // can be written until the pipe is put back.
            appended.map(|start| (start, at_once.then(|| outbox.own_turn()).flatten()))
        };
        match appended {
            Ok((start, turn)) => {
                match turn {
                    Some(turn) => write::own_turn(pipe, turn),
                    None => pipe.filled.notify_one(),
                }
                Ok(start)
            }
            Err(AppendRefusal::Over) => Err(self.gone("has ended")),
            Err(AppendRefusal::Full) => {
                Err(self.overloaded("the server does not keep up with its calls"))
            }
        }
    }

    /// Appends a small message even to a full outbox. The caller must limit the number of such messages. Returns false, without
    /// sending the message, if the link is closed.
    pub(super) fn append_always(&self, write: impl FnOnce(&mut BytesMut)) -> bool {
        match &self.wire {
            Wire::Pipe(pipe) => {
                let appended = pipe.outbox().append_always(write).is_ok();
                pipe.filled.notify_one();
                appended
            }
            Wire::Other(transport) => transport.send(message(0, write)).is_ok(),
        }
    }

    /// Sends a small error in place of a response for which the outbox has no room; without any response the server would
    /// wait for ever. If the server sends requests and never reads the responses, it is ended, since each such error would
    /// let it send another request.
    fn refuse_answer(&self, id: &RawId) -> bool {
        if let Wire::Pipe(pipe) = &self.wire
            && pipe.outbox().is_swamped()
        {
            self.close(LinkEnd::Violation("it asks and does not read"));
            return false;
        }
        self.append_always(|out| {
            let error = RpcError {
                code: tooldock_protocol::version::code::INTERNAL,
                message: "the answer could not be passed on",
            };
            write::answer(out, id, Err(error));
        })
    }

    /// Sends the server a cancellation of a call.
    pub(super) fn send_cancel(&self, id: u64) {
        match &self.wire {
            // Cancellations are small, and there are at most as many as there are calls accepted by the outbox.
            Wire::Pipe(_) => {
                self.append_always(|out| write::cancelled(out, id));
            }
            Wire::Other(transport) => {
                let words = message(0, |out| write::cancelled(out, id));
                transport.give_up(id, Some(words));
            }
        }
    }

    /// Sends the server the client's own `notifications/cancelled` about a call.
    pub(super) fn send_cancel_saying(&self, id: u64, words: Vec<u8>) {
        match &self.wire {
            Wire::Pipe(_) => {
                let sent = self.append(words.len(), |out| out.extend_from_slice(&words));
                // If the outbox has no room for the client's message, a short cancellation without the client's reason is sent.
                if sent.is_err() {
                    self.send_cancel(id);
                }
            }
            Wire::Other(transport) => transport.give_up(id, Some(words.into())),
        }
    }

    /// Removes a call from the transport after its caller dropped it. The server gets no message.
    pub(super) fn forget(&self, id: u64) {
        if let Wire::Other(transport) = &self.wire {
            transport.give_up(id, None);
        }
    }

    /// Removes a client's call that its caller dropped. Returns `None` if the call has ended already.
    pub(super) fn give_up(&self, id: u64) -> Option<PendingCall> {
        let mut calls = self.calls();
        let entry = calls.pending.remove(id).ok()?;
        // This is called under the lock: a response that arrives now must find the call recorded as abandoned, or the record
        // would never be removed.
        self.inbound.given_up(id, entry.origin.owner());
        Some(entry)
    }

    /// Returns the common owner of the pending calls.
    pub(super) fn in_hand(&self) -> CallsInHand {
        let calls = self.calls();
        CallsInHand::of(calls.pending.values().map(|entry| &entry.origin))
    }

    /// Marks a pending call as a request of the gateway.
    pub(super) fn is_of_gateway(&self, id: u64) {
        if let Ok(entry) = self.calls().pending.get_mut(id) {
            entry.origin = CallOrigin::Gateway;
        }
    }

    /// Removes a pending call and returns it.
    pub(super) fn take(&self, id: u64) -> Result<PendingCall, NoPendingCall> {
        self.calls().pending.remove(id)
    }

    /// Ends the link: pending calls fail now, and later ones are refused. If the link was closed before, the first reason is
    /// kept.
    pub(super) fn close(&self, reason: LinkEnd) {
        // Writing to the pipe is ended before the calls fail, so that the record of sent bytes is correct for them. The pipe
        // itself is closed outside the lock.
        match &self.wire {
            Wire::Pipe(pipe) => {
                let ended = pipe.outbox().end();
                drop(ended);
            }
            Wire::Other(transport) => transport.end(),
        }
        let abandoned = {
            let mut calls = self.calls();
            calls.closed = true;
            calls.lasting = TaskTokens::default();
            calls.pending.drain()
        };
        self.questions().clear();
        let what_now = match reason {
            LinkEnd::Ended => "was stopped while the call ran",
            LinkEnd::Disconnected => "ended while the call ran",
            LinkEnd::Violation(_) => "broke the protocol while the call ran",
        };
        for entry in abandoned {
            entry.reply.end(Err(self.gone(what_now)));
        }
        self.queues.end();
        if let Wire::Pipe(pipe) = &self.wire {
            pipe.filled.notify_one();
        }
        self.note_closed(reason);
    }

    /// Stops accepting calls, and records the reason. Pending calls continue.
    pub(super) fn lost(&self, reason: LinkEnd) {
        self.calls().closed = true;
        self.note_closed(reason);
    }

    /// Stops accepting calls. Lines in the outbox are still sent.
    pub(super) fn finish(&self) {
        self.calls().closed = true;
        match &self.wire {
            Wire::Pipe(pipe) => {
                pipe.outbox().finish();
                pipe.filled.notify_one();
            }
            Wire::Other(transport) => transport.finish(),
        }
    }

    fn note_closed(&self, reason: LinkEnd) {
        self.closed.send_if_modified(|closed| {
            let first = closed.is_none();
            closed.get_or_insert(reason);
            first
        });
    }

    pub(super) fn gone(&self, what: &str) -> CallError {
        CallError::new(
            CallErrorCode::WorkerUnavailable,
            format!("the server of namespace {} {what}", self.namespace),
        )
        .retry_after(RETRY)
    }

    pub(super) fn overloaded(&self, why: &str) -> CallError {
        CallError::new(
            CallErrorCode::Overloaded,
            format!("namespace {}: {why}", self.namespace),
        )
        .retry_after(RETRY)
    }

    pub(super) fn calls(&self) -> MutexGuard<'_, LinkCalls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn questions(&self) -> MutexGuard<'_, ServerRequests> {
        self.questions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes a message of about `size` bytes into a separate buffer.
fn message(size: usize, write: impl FnOnce(&mut BytesMut)) -> Bytes {
    let mut out = BytesMut::with_capacity(size + 128);
    write(&mut out);
    out.freeze()
}

impl Asker for LinkCore {
    fn answer(&self, id: &RawId, number: u64, outcome: Result<&RawValue, RpcError<'_>>) -> bool {
        if !self.questions().answer(id, number) {
            return false;
        }
        let size = match outcome {
            Ok(result) => result.get().len(),
            Err(RpcError { message, .. }) => message.len(),
        };
        let written = self.append(size, |out| write::answer(out, id, outcome));
        written.is_ok() || self.refuse_answer(id)
    }

    fn forward_answer(&self, id: &RawId, number: u64, response: &Response) -> bool {
        if !self.questions().answer(id, number) {
            return false;
        }
        let written = self.append(response.len(), |out| {
            response.write_with_id(out, id.as_str())
        });
        written.is_ok() || self.refuse_answer(id)
    }
}
