//! A connection of the relay: its lines, its running requests, and its end.
//!
//! A client may close its writing end and still read the responses to its requests, as `socat` does. When a client closes the
//! whole connection, its calls are cancelled.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_servers::pipes::{ServerLine, ServerLines};
use tooldock_sessions::caller::RelayPeer;

use super::call::{Conversation, FrameHead};
use super::frame::{self, Frame, FrameError};
use super::memory::FrameMemory;
use super::room::RelayRegistration;
use super::whole_lines::WholeLines;
use super::{Relay, reply};
use crate::mcp::Core;
use crate::surface::outbox::{self, Outbox};
use crate::surface::requests::{Requests, Room};

/// Limits on the requests that run at the same time on one connection: their number, and the size of their lines in bytes. The
/// namespace limits how many of them may be running calls.
const ROOM: Room = Room {
    requests: 64,
    bytes: 16 * 1024 * 1024,
};
/// Maximum time from the first byte of a frame to its last.
const FRAME_TIME: Duration = Duration::from_secs(30);
/// Maximum time for writing one line to a client that reads slowly; then the connection ends.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum time for writing the last lines to a client.
const LAST_LINES: Duration = Duration::from_secs(2);
/// Maximum time for checking the frames that a client has already sent, before its connection is ended for another client.
const LAST_LOOK: Duration = Duration::from_millis(250);
/// Maximum time for telling a client why its connection is ended.
const LAST_WORD: Duration = Duration::from_millis(100);
/// Factor by which a line may exceed the maximum frame size while it is skipped. Beyond that, the connection is no longer read.
const ENDLESS: u64 = 64;

/// Serves one client until it disconnects. Once `stop` resolves, no further frame is read, and running calls are still answered.
/// `gone` resolves when the client has closed the whole connection, not only its writing end.
pub(crate) async fn serve(
    core: Arc<Core>,
    relay: Arc<Relay>,
    (guest, peer): (RelayRegistration, RelayPeer),
    (input, output): (
        impl AsyncRead + Send + Unpin + 'static,
        impl AsyncWrite + Send + Unpin + 'static,
    ),
    gone: impl Future<Output = ()>,
    stop: impl Future<Output = ()>,
) {
    let (outbox, lines) = Outbox::new();
    let writer = tokio::spawn(outbox::write(lines, output, Some(PATIENCE)));
    let guest = Arc::new(guest);
    let frame_max = relay.frames.each;
    let lines = WholeLines::new(input, FRAME_TIME, frame_max, Arc::clone(&guest));
    let reading = read(lines, frame_max);
    let mut connection = RelayConnection {
        conversation: Arc::new(Conversation::new(
            core,
            relay,
            (Arc::clone(&guest), peer),
            outbox,
        )),
        requests: Requests::within(ROOM),
        frame_max,
        greeted: false,
    };
    let mut gone = std::pin::pin!(gone);
    // First branch: the client is served to its end. It is polled first, so that the client's frames are checked before its
    // connection is ended for another client.
    // Second branch: the connection must end, to make room for another client.
    let last_lines = tokio::select! {
        biased;
        () = connection.run(reading.lines, gone.as_mut(), stop) => LAST_LINES,
        stranger = guest.wait_for_eviction(LAST_LOOK) => {
            let outbox = &connection.conversation.outbox;
            let _ = timeout(LAST_WORD, outbox.send(reply::eviction_frame(stranger).into())).await;
            LAST_WORD
        }
    };
    reading.task.abort();
    connection.requests.end().await;
    // This drops the last sender of lines, so the writer ends.
    drop(connection);
    let _ = timeout(last_lines, writer).await;
}

/// The client's lines, read by a separate task, since skipping a line that is too long must not be interrupted.
struct RelayLines {
    lines: mpsc::Receiver<ReadLine>,
    task: JoinHandle<()>,
}

/// A line of the client, with the memory that was reserved for it if it is long.
type ReadLine = (ServerLine, Option<FrameMemory>);

fn read(
    input: WholeLines<impl AsyncRead + Send + Unpin + 'static>,
    frame_max: usize,
) -> RelayLines {
    let (sender, lines) = mpsc::channel(1);
    let memory = input.complete();
    let endless = ENDLESS.saturating_mul(frame_max as u64);
    let complete = memory.clone();
    let fits = move |size| size <= frame_max && !complete.is_lost();
    let mut read = ServerLines::new(input, fits, endless);
    let task = tokio::spawn(async move {
        while let Ok(line) = read.next().await {
            // If a line has lost its memory, nothing more is read from this client, since its further input would again take
            // memory from other clients.
            let is_last = memory.is_lost();
            if sender.send((line, memory.take())).await.is_err() || is_last {
                return;
            }
        }
    });
    RelayLines { lines, task }
}

/// A connected client with its running requests.
struct RelayConnection {
    conversation: Arc<Conversation>,
    requests: Requests,
    frame_max: usize,
    /// True once the first line was read. Only the first line may be a greeting.
    greeted: bool,
}

impl RelayConnection {
    async fn run(
        &mut self,
        mut lines: mpsc::Receiver<ReadLine>,
        mut gone: Pin<&mut impl Future<Output = ()>>,
        stop: impl Future<Output = ()>,
    ) {
        let mut stop = std::pin::pin!(stop);
        let outbox = self.conversation.outbox.clone();
        loop {
            // The branches, in order: the relay is to end, and running requests are still answered; the client has stopped
            // reading; a request has ended, and its answer was sent; the client has sent its next frame, or its input has ended.
            let line = tokio::select! {
                biased;
                () = &mut stop => break,
                () = outbox.closed() => return,
                () = self.requests.settle_one(&outbox) => continue,
                line = lines.recv() => line,
            };
            let Some((line, memory)) = line else { break };
            // While the outbox is full, nothing is read from the client, which slows it down.
            tokio::select! {
                biased;
                () = outbox.closed() => return,
                () = self.take(line, memory) => {}
            }
        }
        // The branches, in order: the client has closed the connection, so the answers are not needed; the client has stopped
        // reading; all requests are answered.
        tokio::select! {
            biased;
            () = &mut gone => {}
            () = outbox.closed() => {}
            () = self.last_answers(&outbox) => {}
        }
    }

    async fn last_answers(&mut self, outbox: &Outbox) {
        while !self.requests.is_empty() {
            self.requests.settle_one(outbox).await;
        }
    }

    /// Handles a line of the client. `memory` is freed when the request of the line has ended.
    async fn take(&mut self, line: ServerLine, memory: Option<FrameMemory>) {
        let first = !std::mem::replace(&mut self.greeted, true);
        let line = match line {
            ServerLine::Whole(line) => line,
            ServerLine::TooLong {
                requested, size, ..
            } => {
                let refused = match size > self.frame_max as u64 {
                    true => FrameError::too_long(requested, size, self.frame_max),
                    false => FrameError::no_memory(requested),
                };
                return self.conversation.refuse(&refused).await;
            }
        };
        if first && let Some(project) = frame::greeting(&line) {
            return self.conversation.greeted(project);
        }
        let conversation = Arc::clone(&self.conversation);
        match Frame::of(&line) {
            Frame::Tools { id, key, trace } => {
                let asked = id.clone();
                let running = self.conversation.running();
                let work = async move {
                    let head = FrameHead::new(&asked, &key, &trace);
                    conversation.tools(head, memory.as_ref()).await;
                    drop((memory, running));
                };
                self.begin(id, line.len(), work).await;
            }
            Frame::Call {
                id,
                key,
                trace,
                call,
            } => {
                let asked = id.clone();
                let running = self.conversation.running();
                let work = async move {
                    let head = FrameHead::new(&asked, &key, &trace);
                    conversation.call(head, memory.as_ref(), call).await;
                    drop((memory, running));
                };
                self.begin(id, line.len(), work).await;
            }
            Frame::Cancelled(id) => self.requests.cancel(&id),
            Frame::Ignored => {}
            Frame::Refused(refused) => self.conversation.refuse(&refused).await,
        }
    }

    /// Begins a request. When this returns, the request has run up to its first wait. If the connection has too many running
    /// requests, the request is refused.
    async fn begin(
        &mut self,
        id: Box<str>,
        size: usize,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        if !self.requests.have_room_for(size) {
            let failed = CallError::new(
                CallErrorCode::Overloaded,
                "Too many calls at once on this connection: send this again when others are answered",
            );
            let refused = reply::not_dispatched(&id, &failed);
            return self.conversation.outbox.send(refused.into()).await;
        }
        self.requests.begin(Some(id), false, size, work).await;
    }
}
