//! MCP over standard input and output: one client, one message per line, both eras.
//!
//! ```text
//!   input ─▶ lines ─▶ its kind?   ─┬─ a request ──▶ task ─▶ mcp::post ─▶ reply ─┐
//!                                  └─ anything else ─▶ mcp::post, in its order  ├─▶ outbox ─▶ output
//!                        the session's general stream, mcp::get ────────────────┘
//! ```
//!
//! Each message is handled like a POST on `/mcp`. So both eras, sessions, cancellation, questions to the client and limits are
//! implemented by the code for HTTP. This module contains only the differences of a pipe:
//!
//! - There is at most one session of the legacy era, and its id is not sent. Requests of 2026-07-28 need no session, and may
//!   be sent in addition.
//! - An event of an HTTP stream is a line here. If the client read a stream too slowly, the stream is resumed from the event
//!   log, as a client over HTTP would do, so that the answer is not lost.
//! - `notifications/cancelled` ends requests of both eras, and a cancelled request is not answered.
//! - Answers are written in the order in which they are ready. A request is begun before the next line is parsed, so that a
//!   cancellation finds the request before it.
//!
//! If the client does not read, memory is bounded: reading stops when the outbox ([`outbox`]) is full, and requests beyond the
//! limit of running requests ([`Requests`]) are refused.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::trace::TraceSink;
use tooldock_servers::pipes::{ServerLine, ServerLines};
use tooldock_sessions::caller::Caller;

use crate::jsonrpc::RequestError;
use crate::mcp::Core;
use crate::surface::outbox::{self, Outbox};
use crate::surface::requests::{Requests, Room};

mod conversation;
mod incoming;

use conversation::Conversation;
use incoming::LineKind;

/// Maximum size of a message of the client, in bytes. A longer message is skipped and answered with an error.
const LINE_MAX: usize = 16 * 1024 * 1024;
/// Limits on the requests that run at the same time: their number, and the size of their lines in bytes. The namespace limits how
/// many of them may be running calls.
const ROOM: Room = Room {
    requests: 1024,
    bytes: 32 * 1024 * 1024,
};
/// Number of bytes without a line end at which reading is aborted, since the input cannot come from an MCP client.
const ENDLESS: u64 = 64 * LINE_MAX as u64;
/// Maximum time that requests may run after the client has closed its input. A script that pipes its requests into the gateway
/// closes the input and expects the answers.
const LAST_ANSWERS: Duration = Duration::from_secs(30);
/// Maximum time for writing the last lines to the client.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Reason why a conversation over pipes ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConversationEnd {
    /// The client closed its input. Its requests were answered, or took too long.
    InputClosed,
    /// The client stopped reading the gateway's output.
    OutputClosed,
    /// The gateway ended the conversation, since it was stopping.
    Stopped,
}

/// Serves one client until it disconnects, or until `stop` resolves. The client's session, if any, has ended when this returns.
pub(crate) async fn serve(
    core: Arc<Core>,
    (caller, traces): (Caller, Option<Arc<dyn TraceSink>>),
    input: impl AsyncRead + Send + Unpin + 'static,
    output: impl AsyncWrite + Send + Unpin + 'static,
    stop: impl Future<Output = ()>,
) -> ConversationEnd {
    let (outbox, lines) = Outbox::new();
    let writer = tokio::spawn(outbox::write(lines, output, None));
    let reading = read(input);
    let mut connection = PipeConnection {
        conversation: Arc::new(Conversation::new(core, caller, traces, outbox)),
        requests: Requests::within(ROOM),
        general: None,
    };
    let ended = connection.run(reading.lines, stop).await;
    reading.task.abort();
    connection.end().await;
    // The last sender of lines was dropped, so the writer ends.
    let _ = timeout(LAST_LINES, writer).await;
    ended
}

/// The client's lines, read by a separate task, since skipping a line that is too long must not be interrupted.
struct ClientLines {
    lines: mpsc::Receiver<ServerLine>,
    task: JoinHandle<()>,
}

fn read(input: impl AsyncRead + Send + Unpin + 'static) -> ClientLines {
    let (sender, lines) = mpsc::channel(1);
    let mut read = ServerLines::new(input, |size| size <= LINE_MAX, ENDLESS);
    let task = tokio::spawn(async move {
        while let Ok(line) = read.next().await {
            if sender.send(line).await.is_err() {
                return;
            }
        }
    });
    ClientLines { lines, task }
}

/// A connected client with its running requests.
struct PipeConnection {
    conversation: Arc<Conversation>,
    requests: Requests,
    /// The task that writes the general stream of the legacy session; `None` without a session.
    general: Option<JoinHandle<()>>,
}

impl PipeConnection {
    async fn run(
        &mut self,
        mut lines: mpsc::Receiver<ServerLine>,
        stop: impl Future<Output = ()>,
    ) -> ConversationEnd {
        let mut stop = std::pin::pin!(stop);
        let outbox = self.conversation.outbox.clone();
        loop {
            // The branches, in order: `stop` has resolved; the client has stopped reading; a request has ended, and its answer
            // was sent; the client has sent its next message, or its input has ended.
            let line = tokio::select! {
                biased;
                () = &mut stop => return ConversationEnd::Stopped,
                () = outbox.closed() => return ConversationEnd::OutputClosed,
                () = self.requests.settle_one(&outbox) => continue,
                line = lines.recv() => line,
            };
            let Some(line) = line else { break };
            // While the outbox is full, nothing is read from the client, which slows it down.
            tokio::select! {
                biased;
                () = &mut stop => return ConversationEnd::Stopped,
                () = outbox.closed() => return ConversationEnd::OutputClosed,
                () = self.take(line) => {}
            }
        }
        self.stop_listening();
        tokio::select! {
            biased;
            () = &mut stop => ConversationEnd::Stopped,
            () = outbox.closed() => ConversationEnd::OutputClosed,
            () = self.last_answers(&outbox) => ConversationEnd::InputClosed,
        }
    }

    /// Waits until all running requests are answered, for at most [`LAST_ANSWERS`].
    async fn last_answers(&mut self, outbox: &Outbox) {
        let settled = async {
            while !self.requests.is_empty() {
                self.requests.settle_one(outbox).await;
            }
        };
        if timeout(LAST_ANSWERS, settled).await.is_err() {
            tracing::warn!(
                "the client has closed its end, and some of its requests are not answered after {LAST_ANSWERS:?}"
            );
        }
    }

    async fn take(&mut self, line: ServerLine) {
        let line = match line {
            ServerLine::Whole(line) => line,
            ServerLine::TooLong {
                requested, size, ..
            } => {
                tracing::warn!(size, "a message of the client is too long and was skipped");
                let reason = format!("the message has {size} bytes, more than {LINE_MAX}");
                let id = requested.map(|id| id.to_string());
                let refused = RequestError::Shape(reason.into()).body(id.as_deref());
                return self.conversation.say(refused.into()).await;
            }
        };
        match LineKind::of(&line) {
            LineKind::Initialize(id) => self.conversation.initialize(&id, line).await,
            LineKind::Cancelled(id) => {
                // The cancellation is first handled as a message of the session, which may forward it, and then ends the
                // request's task.
                self.conversation.notice(line).await;
                self.requests.cancel(&id);
            }
            LineKind::OneWay => {
                self.listen().await;
                self.conversation.notice(line).await;
            }
            LineKind::Modern { id, listens } => self.begin(Some(id), listens, line, None).await,
            LineKind::Legacy { id, method } => {
                self.listen().await;
                let session = self.conversation.session();
                if session.is_none() && method.as_deref().is_some_and(|it| it != "ping") {
                    let reason = "not initialized: send initialize first, or with each request the _meta of 2026-07-28";
                    let refused = RequestError::Shape(reason.into()).body(id.as_deref());
                    return self.conversation.say(refused.into()).await;
                }
                self.begin(id, false, line, session).await;
            }
        }
    }

    /// Begins a request. When this returns, the request has run up to its first wait. If too many requests are running, it is
    /// refused.
    async fn begin(
        &mut self,
        id: Option<Box<str>>,
        listens: bool,
        line: Bytes,
        session: Option<Arc<str>>,
    ) {
        if !self.requests.have_room_for(line.len()) {
            let refused = RequestError::Upstream(CallError::new(
                CallErrorCode::Overloaded,
                "Too many requests at once: send this again when others have been answered",
            ));
            let refused = refused.body(id.as_deref());
            return self.conversation.say(refused.into()).await;
        }
        let size = line.len();
        let conversation = Arc::clone(&self.conversation);
        let asked = id.clone();
        let work = async move {
            conversation
                .answer(asked.as_deref(), line, session.as_deref())
                .await;
        };
        self.requests.begin(id, listens, size, work).await;
    }

    /// Starts the task for the general stream, if there is a session and the task is not running.
    async fn listen(&mut self) {
        if self.general.is_none()
            && let Some(session) = self.conversation.session()
        {
            let reply = self.conversation.general_stream(&session).await;
            let conversation = Arc::clone(&self.conversation);
            let pass_on = async move {
                conversation.pass_on(None, reply, Some(&session)).await;
            };
            self.general = Some(tokio::spawn(pass_on));
        }
    }

    /// Ends the general stream, and the requests that would run until the client disconnects.
    fn stop_listening(&mut self) {
        if let Some(general) = self.general.take() {
            general.abort();
        }
        self.requests.end_listening();
    }

    async fn end(mut self) {
        self.stop_listening();
        self.requests.end().await;
        self.conversation.end_session().await;
    }
}

#[cfg(test)]
mod tests;
