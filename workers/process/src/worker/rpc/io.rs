//! Connecting to a worker, and the two tasks of a connection: the reader and the flusher. Both run in the runtime in which the
//! connection was opened.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, timeout};

use super::frame::Frame;
use super::write::{self, NO_REPLY};
use super::{Link, OUTBOX_KEPT, RpcCloseReason, Tasks, WorkerConnection, event};
use crate::metrics::NamespaceMetrics;
use crate::worker::boot::{self, Announcement};
use crate::worker::pending::NoPendingCall;
use crate::worker::{CallEvent, WorkerSpec};

/// Time limit for connecting, and a second one for receiving the worker's first line. The worker already listens, so both are
/// usually immediate.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Maximum number of bytes of one read.
const READ_CHUNK: usize = 64 * 1024;
/// Minimum free space of the read buffer, in bytes. If less is free, the buffer is enlarged before the next read.
const READ_SPARE: usize = 4 * 1024;
/// Capacity of the read buffer, in bytes, above which small frames are copied out of it: a small response must not keep
/// megabytes in memory.
const PINNED_MAX: usize = 256 * 1024;
/// Number of consecutive invalid lines after which the connection is closed.
const GARBAGE_MAX: u32 = 100;
/// Number of heartbeat requests sent within the time for which a worker may be silent.
const HEARTBEATS: u32 = 3;
/// Minimum time between two log lines about invalid lines of a worker.
const COMPLAINT_PAUSE: Duration = Duration::from_secs(10);

/// Channel for announcements that arrive on a connection after the worker's first line.
pub(super) type AnnouncementSender = mpsc::Sender<Announcement>;

/// Reason why connecting failed.
#[derive(Debug, thiserror::Error)]
pub(in crate::worker) enum ConnectError {
    #[error("cannot connect to {}: {source}", socket.display())]
    Socket {
        socket: PathBuf,
        source: std::io::Error,
    },
    #[error("it did not greet on its socket")]
    NoGreeting,
    #[error("another generation answers on its socket")]
    OtherGeneration,
    #[error("the runtime for its connection is gone")]
    RuntimeGone,
}

/// Connects to the worker in `runtime` and checks that the peer is of the expected generation. Dropping the future closes the
/// connection.
pub(super) async fn connect(
    runtime: Handle,
    spec: Arc<WorkerSpec>,
    metrics: Arc<NamespaceMetrics>,
    announced: AnnouncementSender,
    closed: watch::Sender<Option<RpcCloseReason>>,
) -> Result<WorkerConnection, ConnectError> {
    let (done, connected) = oneshot::channel();
    let reader_task = runtime.spawn(async move {
        let (link, reader, writer) = match greet(&spec, metrics, closed).await {
            Ok(greeted) => greeted,
            Err(error) => {
                let _ = done.send(Err(error));
                return;
            }
        };
        let flusher = tokio::spawn(flush(Arc::clone(&link), writer)).abort_handle();
        let heartbeat = tokio::spawn(heartbeat(Arc::clone(&link), spec.silence)).abort_handle();
        // When this task ends, even because its runtime ends, the calls that wait for a response on the connection fail.
        let _closes = ClosesOnDrop(Arc::clone(&link));
        let others = [flusher, heartbeat];
        if done.send(Ok((Arc::clone(&link), others))).is_ok() {
            let reason = reader.run(&link, &spec, &announced).await;
            link.close(reason);
        }
    });
    let mut tasks = Tasks(vec![reader_task.abort_handle()]);
    let (link, others) = connected.await.unwrap_or(Err(ConnectError::RuntimeGone))?;
    tasks.0.extend(others);
    Ok(WorkerConnection { link, tasks })
}

struct ClosesOnDrop(Arc<Link>);

impl Drop for ClosesOnDrop {
    fn drop(&mut self) {
        self.0.close(RpcCloseReason::Disconnected);
    }
}

async fn greet(
    spec: &WorkerSpec,
    metrics: Arc<NamespaceMetrics>,
    closed: watch::Sender<Option<RpcCloseReason>>,
) -> Result<(Arc<Link>, FrameReader, OwnedWriteHalf), ConnectError> {
    let failed = |source| ConnectError::Socket {
        socket: spec.socket.clone(),
        source,
    };
    let stream = timeout(CONNECT_LIMIT, UnixStream::connect(&spec.socket))
        .await
        .map_err(|_| failed(std::io::ErrorKind::TimedOut.into()))?
        .map_err(failed)?;
    let (read, write) = stream.into_split();
    let mut reader = FrameReader::new(read, spec.max_frame);
    let greeting = timeout(CONNECT_LIMIT, reader.next_line()).await;
    let Ok(Ok(greeting)) = greeting else {
        return Err(ConnectError::NoGreeting);
    };
    match boot::read(&greeting, spec) {
        Some(Announcement::Ready { generation, .. }) if generation == spec.generation => {
            let link = Link::new(spec.namespace.clone(), spec.max_frame, metrics, closed);
            Ok((Arc::new(link), reader, write))
        }
        Some(Announcement::Ready { .. }) => Err(ConnectError::OtherGeneration),
        _ => Err(ConnectError::NoGreeting),
    }
}

/// Writes the frames that calls append to the outbox. If several calls are pending, it first yields, so that more frames are
/// written with one system call. Ends the connection when writing fails.
async fn flush(link: Arc<Link>, mut writer: OwnedWriteHalf) {
    let mut batch = BytesMut::new();
    loop {
        link.filled.notified().await;
        if link.pending() > 2 {
            tokio::task::yield_now().await;
        }
        loop {
            // The empty buffer of the last write becomes the new outbox, so that no buffer is allocated.
            std::mem::swap(&mut batch, &mut *link.outbox());
            if batch.is_empty() {
                break;
            }
            if writer.write_all(&batch).await.is_err() {
                link.close(RpcCloseReason::Disconnected);
                return;
            }
            if batch.capacity() > OUTBOX_KEPT {
                batch = BytesMut::new();
            } else {
                batch.clear();
            }
        }
    }
}

/// Sends heartbeat requests, and ends the connection when the worker has sent nothing for `silence`. The process is then
/// suspended, or a tool blocks its event loop, and every call would otherwise wait until its time limit.
async fn heartbeat(link: Arc<Link>, silence: Duration) {
    let mut ticks = tokio::time::interval(silence / HEARTBEATS);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut unanswered = 0;
    loop {
        ticks.tick().await;
        if link.heard.swap(false, Ordering::Relaxed) {
            unanswered = 0;
        } else if unanswered == HEARTBEATS {
            link.metrics.protocol_error("unresponsive");
            link.close(RpcCloseReason::Violation("it has stopped answering"));
            return;
        } else {
            unanswered += 1;
        }
        write::ping(&mut link.outbox());
        link.filled.notify_one();
    }
}

/// Splits the bytes from the worker into lines and passes each line to its call.
struct FrameReader {
    stream: OwnedReadHalf,
    buffer: BytesMut,
    /// Number of bytes at the start of the buffer that contain no newline.
    scanned: usize,
    frame_max: usize,
    garbage: u32,
    complained: Option<Instant>,
}

impl FrameReader {
    fn new(stream: OwnedReadHalf, frame_max: u64) -> Self {
        Self {
            stream,
            buffer: BytesMut::with_capacity(READ_CHUNK),
            scanned: 0,
            frame_max: usize::try_from(frame_max).unwrap_or(usize::MAX),
            garbage: 0,
            complained: None,
        }
    }

    /// Reads lines until the connection has ended, and returns the reason.
    async fn run(
        mut self,
        link: &Arc<Link>,
        spec: &WorkerSpec,
        announced: &AnnouncementSender,
    ) -> RpcCloseReason {
        loop {
            let line = match self.next_line().await {
                Ok(line) => line,
                Err(reason) => {
                    if reason != RpcCloseReason::Disconnected {
                        link.metrics.protocol_error("oversized");
                    }
                    return reason;
                }
            };
            link.heard.store(true, Ordering::Relaxed);
            if self.handle(&line, link, spec, announced).is_none() {
                self.garbage += 1;
                link.metrics.protocol_error("garbage");
                self.complain(link, "a line that is no frame");
                if self.garbage >= GARBAGE_MAX {
                    return RpcCloseReason::Violation("it sent nothing but garbage");
                }
            } else {
                self.garbage = 0;
            }
        }
    }

    /// Handles a line of the worker; `None` if the line is not a valid frame.
    fn handle(
        &mut self,
        line: &Bytes,
        link: &Arc<Link>,
        spec: &WorkerSpec,
        announced: &AnnouncementSender,
    ) -> Option<()> {
        let frame = Frame::parse(line)?;
        if frame.is_answer() {
            let Some(id) = frame.id() else {
                link.metrics.protocol_error("unknown_id");
                self.complain(link, "an answer with an id nobody sent");
                return Some(());
            };
            match link.take(id) {
                Ok(entry) => {
                    let kept = match &entry.answers {
                        Some(account) => account.keep(line.clone()),
                        None => Ok(line.clone()),
                    };
                    let outcome = match kept {
                        Ok(line) => frame.outcome(&line, entry.max_result),
                        Err(no_room) => Err(no_room.into()),
                    };
                    // Sending fails if the caller no longer waits; the response is dropped then.
                    let _ = entry.reply.send(outcome);
                }
                Err(_) if id == NO_REPLY => {}
                // A response after the cancellation of its call is expected, so it is only counted.
                Err(NoPendingCall::Over) => link.metrics.protocol_error("late"),
                // Closing the connection removed all pending calls, so this may be the response to one of them.
                Err(NoPendingCall::Unknown) if link.is_closed() => {
                    link.metrics.protocol_error("late")
                }
                Err(NoPendingCall::Unknown) => {
                    link.metrics.protocol_error("unknown_id");
                    self.complain(link, "an answer with an id nobody sent");
                }
            }
            return Some(());
        }
        match frame.op.as_deref()? {
            "progress" | "log" | "notify" | "dropped" | "ask" => {
                self.handle_event(&frame, line, link)?
            }
            "recycle" => {
                // If the queue is full, the announcement is dropped: the queued ones already ask for a replacement.
                let _ = announced.try_send(boot::read(line, spec)?);
            }
            _ => return None,
        }
        Some(())
    }

    /// Handles an event of a running call. Events of a call that has ended are dropped; invalid events are counted. Returns
    /// `None` for a line without a call's id.
    fn handle_event(&mut self, frame: &Frame<'_>, line: &Bytes, link: &Arc<Link>) -> Option<()> {
        let id = frame.id()?;
        let op = frame.op.as_deref()?;
        let read = if op == "ask" {
            event::questions(frame).map(|asked| link.ask(id, asked))
        } else {
            // The sink is looked up before the event is parsed, because a tool may send many events that no caller receives.
            let sink = match link.calls().pending.get(id) {
                Ok(entry) => entry.sink.clone(),
                Err(_) => None,
            };
            let Some(sink) = sink else { return Some(()) };
            let read = match op {
                "progress" => event::progress(frame, line).map(CallEvent::Progress),
                "log" => {
                    event::log(frame, line).map(|(level, params)| CallEvent::Log { level, params })
                }
                "dropped" => event::dropped(frame).map(CallEvent::Dropped),
                _ => event::notice(frame).map(CallEvent::Notice),
            };
            read.map(|event| sink.event(event))
        };
        if read.is_none() {
            link.metrics.protocol_error("event");
            self.complain(link, "an event that makes no sense");
        }
        Some(())
    }

    fn complain(&mut self, link: &Link, what: &str) {
        let now = Instant::now();
        if self
            .complained
            .is_some_and(|last| now.duration_since(last) < COMPLAINT_PAUSE)
        {
            return;
        }
        self.complained = Some(now);
        tracing::warn!(
            namespace = link.namespace.as_str(),
            "the worker of namespace {} sent {what}; it was ignored",
            link.namespace
        );
    }

    /// Returns the next line of the worker, without its newline. Cancel-safe.
    async fn next_line(&mut self) -> Result<Bytes, RpcCloseReason> {
        loop {
            let newline = memchr::memchr(b'\n', &self.buffer[self.scanned..]);
            if let Some(offset) = newline {
                return Ok(self.take_line(self.scanned + offset));
            }
            self.scanned = self.buffer.len();
            if self.scanned > self.frame_max {
                return Err(RpcCloseReason::Violation(
                    "it sent a line beyond the size limit",
                ));
            }
            // Memory is not reserved before every read: while a response still uses the buffer, reserving would allocate a new
            // one.
            if self.buffer.capacity() - self.buffer.len() < READ_SPARE {
                self.buffer.reserve(READ_CHUNK);
            }
            match self.stream.read_buf(&mut self.buffer).await {
                Ok(0) | Err(_) => return Err(RpcCloseReason::Disconnected),
                Ok(_) => {}
            }
        }
    }

    fn take_line(&mut self, end: usize) -> Bytes {
        self.scanned = 0;
        let large = self.buffer.capacity() > PINNED_MAX;
        let line = self.buffer.split_to(end + 1);
        if large && line.len() < PINNED_MAX / 4 {
            return Bytes::copy_from_slice(&line[..end]);
        }
        line.freeze().slice(..end)
    }
}
