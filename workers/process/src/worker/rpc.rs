//! Persistent connections to a worker's process, one for each of the proxy's runtimes, shared by all calls made there.
//!
//! A call gets an id, appends its frame to a shared buffer and waits for its response; one flusher writes all frames in the
//! buffer, and one reader matches responses to ids. No task is spawned per call. Every call ends exactly once: with its
//! response, by being dropped (which cancels it in the worker), or with the connection. Until then its sink receives the
//! worker's events of the call, and answers to its questions are sent through the same buffer.
//!
//! This module deliberately has no time limits (the caller drops the call) and does not reconnect (the supervisor opens a new
//! connection).

mod event;
mod frame;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzzing;
mod io;
mod links;
mod question;
mod write;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::AbortHandle;
use tooldock_base::answers::AnswerAccount;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::names::NamespaceName;

use super::pending::Pending;
use super::{CallSink, ToolReply, WorkerCall};
use crate::metrics::NamespaceMetrics;

use io::{AnnouncementSender, connect};
pub(super) use links::{Connections, Links};

/// Maximum number of bytes that wait to be written to a worker; further calls are refused as `overloaded`. A single frame is
/// always accepted, so that its size is bounded only by the frame limit.
const OUTBOX_MAX: usize = 16 * 1024 * 1024;
/// Maximum capacity of a write buffer that is kept for reuse, in bytes; a larger one is freed.
const OUTBOX_KEPT: usize = 256 * 1024;
/// Maximum number of abandoned calls (their callers no longer wait) that are remembered per connection; the oldest is
/// forgotten first.
const ABANDONED_MAX: usize = 64;
/// Time without a call after which a connection counts as drained. Requests in a queue have not begun a call yet, so there may
/// be short gaps between calls.
const SETTLE: Duration = Duration::from_millis(200);

/// Owner of a connection to a worker. Dropping it closes the connection and ends its tasks.
#[derive(Debug)]
struct WorkerConnection {
    link: Arc<Link>,
    tasks: Tasks,
}

/// Tasks of a connection. Dropping this value aborts them.
#[derive(Debug)]
struct Tasks(Vec<AbortHandle>);

impl Drop for Tasks {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}

/// Reason why a connection to a worker has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RpcCloseReason {
    /// The connection was closed by the worker or by the operating system.
    Disconnected,
    /// The worker violated the protocol.
    Violation(&'static str),
    /// The gateway closed the connection.
    Ended,
}

/// State that calls, the reader and the flusher share.
pub(super) struct Link {
    namespace: NamespaceName,
    /// Calls without a response. A plain mutex: locked for a few instructions, never held across an await, never together with
    /// `outbox`.
    calls: Mutex<WorkerCalls>,
    /// Frames that wait to be written. A blocking mutex, which is locked only while a frame is copied.
    outbox: Mutex<BytesMut>,
    /// Notified when there are frames in the outbox.
    filled: Notify,
    /// Notified when the last pending call has ended.
    emptied: Notify,
    /// Number of calls that this connection has begun so far.
    begun: AtomicU64,
    /// True if the worker sent a line since the last heartbeat request.
    heard: AtomicBool,
    /// Copy of `WorkerCalls::closed` that is read without locking `calls`: true once the connection has ended.
    over: AtomicBool,
    /// Reason why the first of the connections to the process ended; shared by all connections to the process.
    closed: watch::Sender<Option<RpcCloseReason>>,
    frame_max: u64,
    metrics: Arc<NamespaceMetrics>,
}

#[derive(Default)]
struct WorkerCalls {
    pending: Pending<PendingRpcCall>,
    /// The most recently abandoned calls, oldest first: the process may still run them, but no caller waits. At most
    /// [`ABANDONED_MAX`].
    abandoned: VecDeque<AbandonedCall>,
    /// True once the connection has ended. Set while `calls` is locked, so that no call is added after the pending ones have
    /// failed.
    closed: bool,
}

/// A call whose caller no longer waits for the response.
struct AbandonedCall {
    id: u64,
    request: Arc<str>,
    time_limit: Option<Duration>,
}

/// A call that waits for its response, with the data that the reader needs.
struct PendingRpcCall {
    reply: oneshot::Sender<Result<ToolReply, CallError>>,
    request: Arc<str>,
    time_limit: Option<Duration>,
    sink: Option<Arc<dyn CallSink>>,
    max_result: u64,
    answers: Option<AnswerAccount>,
    /// The keys of the questions that wait for an answer. Most calls never have any, so the list is small.
    open: Vec<Arc<str>>,
}

/// Reason why a call was not sent.
#[derive(Debug)]
pub(super) enum CallRefusal {
    /// The connection has ended and the call was not sent; another connection may be tried.
    Closed,
    /// The call is refused; no other connection is tried.
    Failed(CallError),
}

/// A call that was sent. Dropping it before the response cancels the call in the worker.
pub(super) struct SentCall {
    link: Arc<Link>,
    id: u64,
    reply: oneshot::Receiver<Result<ToolReply, CallError>>,
    answered: bool,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl WorkerConnection {
    /// Asks the worker's process to end.
    fn send_shutdown(&self) {
        write::shutdown(&mut self.link.outbox());
        self.link.filled.notify_one();
    }
}

impl Drop for WorkerConnection {
    fn drop(&mut self) {
        self.link.close(RpcCloseReason::Ended);
        // The tasks are aborted when this field is dropped; finished ones are removed first.
        self.tasks.0.retain(|task| !task.is_finished());
    }
}

impl Link {
    fn new(
        namespace: NamespaceName,
        frame_max: u64,
        metrics: Arc<NamespaceMetrics>,
        closed: watch::Sender<Option<RpcCloseReason>>,
    ) -> Self {
        Self {
            namespace,
            calls: Mutex::default(),
            outbox: Mutex::default(),
            filled: Notify::new(),
            emptied: Notify::new(),
            begun: AtomicU64::new(0),
            heard: AtomicBool::new(true),
            over: AtomicBool::new(false),
            closed,
            frame_max,
            metrics,
        }
    }

    /// Sends a call to the worker.
    ///
    /// # Errors
    ///
    /// [`CallRefusal`]; the call was not sent then.
    pub(super) fn begin(
        self: &Arc<Self>,
        call: &WorkerCall,
        sink: Option<Arc<dyn CallSink>>,
    ) -> Result<SentCall, CallRefusal> {
        let size = call.size() as u64;
        if size > self.frame_max {
            return Err(CallRefusal::Failed(CallError::new(
                CallErrorCode::InvalidArguments,
                format!(
                    "the request is {size} bytes; a worker takes at most {}",
                    self.frame_max
                ),
            )));
        }
        let (sender, reply) = oneshot::channel();
        let entry = PendingRpcCall {
            reply: sender,
            request: Arc::clone(&call.request),
            time_limit: call.time_limit,
            sink,
            max_result: call.max_result,
            answers: call.answers.clone(),
            open: Vec::new(),
        };
        let id = {
            let mut calls = self.calls();
            if calls.closed {
                return Err(CallRefusal::Closed);
            }
            calls.pending.insert(entry)
        }
        .ok_or_else(|| {
            CallRefusal::Failed(self.overloaded("too many calls wait for the worker"))
        })?;
        self.begun.fetch_add(1, Ordering::Relaxed);
        let in_flight = SentCall {
            link: Arc::clone(self),
            id,
            reply,
            answered: false,
        };
        if self.append(call.size(), |outbox| write::call(outbox, id, call)) {
            return Ok(in_flight);
        }
        // Removed before `in_flight` is dropped: otherwise a cancellation would be sent for a call that was never sent.
        let _ = self.take(id);
        Err(CallRefusal::Failed(
            self.overloaded("the worker does not keep up with its calls"),
        ))
    }

    /// Appends a frame of about `size` bytes to the outbox. Returns false if the outbox is full.
    fn append(&self, size: usize, write: impl FnOnce(&mut BytesMut)) -> bool {
        let mut outbox = self.outbox();
        let has_room = outbox.is_empty() || outbox.len().saturating_add(size) <= OUTBOX_MAX;
        if has_room {
            write(&mut outbox);
            drop(outbox);
            self.filled.notify_one();
        }
        has_room
    }

    /// Sends the worker the cancellation of a call, even if the outbox is full: cancellations are small and bounded by the
    /// number of calls.
    fn send_cancel(&self, id: u64) {
        write::cancel(&mut self.outbox(), id);
        self.filled.notify_one();
    }

    fn overloaded(&self, why: &str) -> CallError {
        CallError::new(
            CallErrorCode::Overloaded,
            format!("namespace {}: {why}", self.namespace),
        )
        .retry_after(Duration::from_secs(1))
    }

    /// Number of calls on this connection that wait for an answer.
    fn pending(&self) -> usize {
        self.calls().pending.len()
    }

    /// Returns true if the connection no longer accepts calls.
    pub(super) fn is_closed(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Waits until any of the connections to the process has ended, and returns the reason.
    async fn closed(&self) -> RpcCloseReason {
        let mut closed = self.closed.subscribe();
        loop {
            if let Some(reason) = &*closed.borrow_and_update() {
                return reason.clone();
            }
            // This cannot fail: the sender belongs to `self`.
            let _ = closed.changed().await;
        }
    }

    /// Waits until no call is pending.
    async fn idle(&self) {
        loop {
            // Created before the check, so that no notification between the two is missed.
            let emptied = self.emptied.notified();
            if self.pending() == 0 {
                return;
            }
            emptied.await;
        }
    }

    /// Number of calls that this connection has begun so far.
    fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Closes the connection for calls: pending calls fail now, later ones are refused. If it is called again, the first reason
    /// is kept.
    fn close(&self, reason: RpcCloseReason) {
        let abandoned = {
            let mut calls = self.calls();
            calls.closed = true;
            // Set while `calls` is locked, so that a caller whose call is refused does not choose this connection again.
            self.over.store(true, Ordering::Release);
            calls.pending.drain()
        };
        let what_now = match reason {
            RpcCloseReason::Ended => "was stopped while the call ran",
            RpcCloseReason::Disconnected | RpcCloseReason::Violation(_) => {
                "ended while the call ran; it is being restarted"
            }
        };
        for entry in abandoned {
            let error = CallError::new(
                CallErrorCode::WorkerUnavailable,
                format!("the worker of namespace {} {what_now}", self.namespace),
            );
            let _ = entry
                .reply
                .send(Err(error.retry_after(Duration::from_secs(1))));
        }
        self.emptied.notify_waiters();
        self.closed.send_if_modified(|closed| {
            let first = closed.is_none();
            closed.get_or_insert(reason);
            first
        });
    }

    /// Removes a pending call whose caller no longer waits. Returns false if the call had already ended.
    fn abandon(&self, id: u64) -> bool {
        let Ok(entry) = self.take(id) else {
            return false;
        };
        let mut calls = self.calls();
        if calls.abandoned.len() >= ABANDONED_MAX {
            calls.abandoned.pop_front();
        }
        calls.abandoned.push_back(AbandonedCall {
            id,
            request: entry.request,
            time_limit: entry.time_limit,
        });
        true
    }

    /// The time limit of an abandoned call. `None` if its caller still waits, the call has no limit, or it does not belong to
    /// this connection.
    fn limit_of_abandoned(&self, id: u64, request: &str) -> Option<Duration> {
        let calls = self.calls();
        let mut abandoned = calls.abandoned.iter();
        let found = abandoned.find(|call| call.id == id && *call.request == *request)?;
        found.time_limit
    }

    /// Removes a pending call, and returns it.
    fn take(&self, id: u64) -> Result<PendingRpcCall, super::pending::NoPendingCall> {
        let (entry, empty) = {
            let mut calls = self.calls();
            (calls.pending.remove(id), calls.pending.is_empty())
        };
        if entry.is_ok() && empty {
            self.emptied.notify_waiters();
        }
        entry
    }

    fn calls(&self) -> MutexGuard<'_, WorkerCalls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outbox(&self) -> MutexGuard<'_, BytesMut> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SentCall {
    /// Waits for the worker's answer to the call.
    pub(super) async fn answer(mut self) -> Result<ToolReply, CallError> {
        let reply = (&mut self.reply).await;
        self.answered = true;
        // The sender is dropped without a value only if the reader panicked, for instance in the sink of another call.
        reply.unwrap_or_else(|_| {
            Err(CallError::new(
                CallErrorCode::InternalError,
                "the call was lost",
            ))
        })
    }
}

impl Drop for SentCall {
    fn drop(&mut self) {
        if !self.answered && self.link.abandon(self.id) {
            self.link.send_cancel(self.id);
        }
    }
}

#[cfg(test)]
mod tests;
