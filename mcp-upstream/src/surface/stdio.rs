//! MCP over the pipes of this process: one client, one message a line, both eras.
//!
//! ```text
//!   input ─▶ lines ─▶ what is it? ─┬─ a request ──▶ task ─▶ mcp::post ─▶ reply ─┐
//!                                  └─ anything else ─▶ mcp::post, in its order  ├─▶ outbox ─▶ output
//!                        the session's general stream, mcp::get ────────────────┘
//! ```
//!
//! Each message goes where a POST on `/mcp` goes, so both eras, sessions, cancellation, questions to the client and
//! limits are those of HTTP. Here is only what a pipe does differently:
//!
//! - There is one session of the legacy era at most, and no id of it on the wire. Requests of 2026-07-28 need none, and
//!   may come beside it.
//! - What HTTP sends as an event of a stream is a line. A stream whose reader was too slow is resumed from the event log,
//!   as any client would, and the answer on it is not lost.
//! - `notifications/cancelled` ends requests of both eras, and a cancelled request is not answered.
//! - Answers go out in the order in which they are there. A request is begun before the next line is looked at, so that a
//!   cancellation finds the request before it.
//!
//! What bounds memory where the client does not read: the outbox ([`outbox`]), then the running requests ([`Requests`]),
//! then nothing more is read.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tooldock_workers::error::{CallError, CallErrorCode};

use crate::caller::Caller;
use crate::jsonrpc::RequestError;
use crate::mcp::Core;
use crate::stdio::wire::{Line, Lines};
use crate::surface::outbox::{self, Outbox};
use crate::surface::requests::{Requests, Room};

mod conversation;
mod incoming;

use conversation::Conversation;
use incoming::Incoming;

/// The longest message of the client, in bytes. A longer one is answered with an error and skipped.
const LINE_MAX: usize = 16 * 1024 * 1024;
/// The requests that run at once. Their namespace bounds how many of them are calls at work.
const ROOM: Room = Room {
    requests: 1024,
    bytes: 32 * 1024 * 1024,
};
/// A line longer than this is read no further: whatever writes that is no client.
const ENDLESS: u64 = 64 * LINE_MAX as u64;
/// How long requests may go on when the client has closed its end: a script that pipes its requests in wants the answers.
const LAST_ANSWERS: Duration = Duration::from_secs(30);
/// How long the client may take to read the last lines.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Why a conversation over pipes is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The client closed its end, and has the answers to what it asked before.
    InputClosed,
    /// The client reads no more.
    OutputClosed,
    /// It was told to end.
    Stopped,
}

/// Serves one client until its end, or until `stop` is there. The session, if there was one, has ended then.
pub(crate) async fn serve(
    core: Arc<Core>,
    caller: Caller,
    input: impl AsyncRead + Send + Unpin + 'static,
    output: impl AsyncWrite + Send + Unpin + 'static,
    stop: impl Future<Output = ()>,
) -> Ended {
    let (outbox, lines) = Outbox::new();
    let writer = tokio::spawn(outbox::write(lines, output, None));
    let reading = read(input);
    let mut connection = Connection {
        conversation: Arc::new(Conversation::new(core, caller, outbox)),
        requests: Requests::within(ROOM),
        general: None,
    };
    let ended = connection.run(reading.lines, stop).await;
    reading.task.abort();
    connection.end().await;
    // Nobody else can say anything now, so the writer comes to its end.
    let _ = timeout(LAST_LINES, writer).await;
    ended
}

/// The client's lines, as they are read by a task of their own: a line that is too long is skipped as it comes, which
/// must not be broken off half way.
struct Reading {
    lines: mpsc::Receiver<Line>,
    task: JoinHandle<()>,
}

fn read(input: impl AsyncRead + Send + Unpin + 'static) -> Reading {
    let (sender, lines) = mpsc::channel(1);
    let mut read = Lines::new(input, |size| size <= LINE_MAX, ENDLESS);
    let task = tokio::spawn(async move {
        while let Ok(line) = read.next().await {
            if sender.send(line).await.is_err() {
                return;
            }
        }
    });
    Reading { lines, task }
}

/// A client and what runs for it.
struct Connection {
    conversation: Arc<Conversation>,
    requests: Requests,
    /// Passes on what is said outside of answers in the session of the legacy era.
    general: Option<JoinHandle<()>>,
}

impl Connection {
    async fn run(
        &mut self,
        mut lines: mpsc::Receiver<Line>,
        stop: impl Future<Output = ()>,
    ) -> Ended {
        let mut stop = std::pin::pin!(stop);
        let outbox = self.conversation.outbox.clone();
        loop {
            // - told to end
            // - the client reads no more
            // - a request is over, with its answer written
            // - the client's next message
            let line = tokio::select! {
                biased;
                () = &mut stop => return Ended::Stopped,
                () = outbox.closed() => return Ended::OutputClosed,
                () = self.requests.settle_one(&outbox) => continue,
                line = lines.recv() => line,
            };
            let Some(line) = line else { break };
            // A full outbox stops the reading here, and the client with it.
            tokio::select! {
                biased;
                () = &mut stop => return Ended::Stopped,
                () = outbox.closed() => return Ended::OutputClosed,
                () = self.take(line) => {}
            }
        }
        self.stop_listening();
        tokio::select! {
            biased;
            () = &mut stop => Ended::Stopped,
            () = outbox.closed() => Ended::OutputClosed,
            () = self.last_answers(&outbox) => Ended::InputClosed,
        }
    }

    /// Waits for the answers that are still due.
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

    async fn take(&mut self, line: Line) {
        let line = match line {
            Line::Whole(line) => line,
            Line::TooLong {
                requested, size, ..
            } => {
                tracing::warn!(size, "a message of the client is too long and was skipped");
                let reason = format!("the message has {size} bytes, more than {LINE_MAX}");
                let id = requested.map(|id| id.to_string());
                let refused = RequestError::Shape(reason.into()).body(id.as_deref());
                return self.conversation.say(refused.into()).await;
            }
        };
        match Incoming::of(&line) {
            Incoming::Initialize(id) => self.conversation.initialize(&id, line).await,
            Incoming::Cancelled(id) => {
                // The session's calls are told in the client's words before they are dropped.
                self.conversation.notice(line).await;
                self.requests.cancel(&id);
            }
            Incoming::OneWay => {
                self.listen().await;
                self.conversation.notice(line).await;
            }
            Incoming::Modern { id, listens } => self.begin(Some(id), listens, line, None).await,
            Incoming::Legacy { id, method } => {
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

    /// Begins a request. Its call has begun when this is over, unless it has to wait for something.
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

    /// Passes on what is said outside of answers, once there is a session for that.
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

    /// Ends what would go on for as long as the client is there.
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
