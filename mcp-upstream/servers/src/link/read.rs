//! The reader task of a link: passes each line of the server to its call, to the call's sink, or to the link's `Inbound`. An
//! invalid line is ignored; a line without end ends the link.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::net::unix::pipe;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_process::child::pipe::{LARGE, widen};
use tooldock_process::worker::pending::NoPendingCall;
use tooldock_protocol::jsonrpc::splice::{self, Edit, span};
use tooldock_protocol::jsonrpc::{
    self, Invalid, Key, Members, Message, Notification, ProtocolViolation, RawId, RequestError,
    Response, RpcError, ServerRequest, plain,
};
use tooldock_protocol::version::code;

use super::deliver::Batch;
use super::follow::{self, Follow};
use super::shared::{LinkCore, PendingCall};
use super::tokens::is_task;
use super::{LinkEnd, NotificationSink, write};
use crate::pipes::{IdScan, LinesEnd, ServerLine, ServerLines};

/// Minimum time between two log entries about invalid lines.
const COMPLAINT_PAUSE: Duration = Duration::from_secs(10);
/// Number of bytes of ignored lines in a row after which reading pauses. The pipe then fills, which slows the server down.
const NOISE_MAX: usize = 1024 * 1024;
/// Length of the pause after ignored lines. It limits them to a hundred times `NOISE_MAX` per second.
const NOISE_PAUSE: Duration = Duration::from_millis(10);
/// Number of bytes that are counted for each ignored line in addition to its length.
const NOISE_PER_LINE: usize = 256;

/// Reader of a link. It runs in one runtime at a time and may move to another.
pub(super) struct LinkReader {
    /// Responses that were read and not yet delivered. This field is dropped before `link`, so they are delivered before the
    /// pending calls fail.
    answers: Batch,
    lines: ServerLines<pipe::Receiver>,
    follow: Follow,
    /// True once the pipe's buffer was enlarged, after the first large line.
    wide: bool,
    /// Number of bytes of ignored lines since the last valid line.
    noise: usize,
    complained: Option<Instant>,
    /// Closes the link and fails its pending calls when the reader is dropped, which also happens when its runtime ends.
    link: ClosesOnDrop,
}

impl LinkReader {
    pub(super) fn new(
        shared: Arc<LinkCore>,
        lines: ServerLines<pipe::Receiver>,
        follow: Follow,
    ) -> Self {
        Self {
            answers: Batch::default(),
            lines,
            follow,
            wide: false,
            noise: 0,
            complained: None,
            link: ClosesOnDrop(shared),
        }
    }

    /// Starts the reading task in this runtime. It reads until the reader moves to another runtime, or until the link has
    /// ended; in that case it closes the link.
    pub(super) fn begin(self, runtime: &Handle) {
        let shared = Arc::clone(&self.link.0);
        let spawn = || runtime.spawn(self.run()).abort_handle();
        shared.reading.go_on(spawn);
    }

    async fn run(mut self) {
        let Some(to) = self.read().await else { return };
        self.link.0.queues.read_in(to.id());
        self.begin(&to);
    }

    /// Reads until the link has ended, or until the reader should move. Returns the runtime to move to, with which the pipe
    /// is already registered; `None` if the link has ended.
    async fn read(&mut self) -> Option<Handle> {
        let shared = Arc::clone(&self.link.0);
        loop {
            let next = match self.lines.buffered() {
                Some(line) => Ok(line),
                None => {
                    let to = self.follow.record_answers(&self.answers);
                    self.answers.send();
                    // If the pipe cannot be registered with the other runtime, the reader stays here.
                    if let Some(to) = to
                        && let Ok(pipe) = follow::moved(self.lines.pipe(), &to)
                    {
                        self.lines.read_on_from(pipe);
                        return Some(to);
                    }
                    self.lines.next().await
                }
            };
            let (size, ignored) = match next {
                Ok(ServerLine::Whole(line)) => {
                    let ignored = handle(&shared, &line, &mut self.answers).err();
                    (line.len(), ignored)
                }
                Ok(ServerLine::TooLong { answered, size, .. }) => {
                    too_long(&shared, answered, size);
                    (0, Some(ProtocolViolation::TooLong))
                }
                Err(LinesEnd::Closed) => return None,
                Err(LinesEnd::Endless) => {
                    shared.inbound.violation(ProtocolViolation::TooLong);
                    shared.close(LinkEnd::Violation("a line had no end"));
                    return None;
                }
            };
            let Some(violation) = ignored else {
                self.noise = 0;
                if size > LARGE && !std::mem::replace(&mut self.wide, true) {
                    widen(self.lines.pipe());
                }
                continue;
            };
            ignored_message(&shared, &mut self.complained, violation);
            self.noise += size + NOISE_PER_LINE;
            if self.noise > NOISE_MAX {
                self.noise = 0;
                self.answers.send();
                sleep(NOISE_PAUSE).await;
            }
        }
    }
}

struct ClosesOnDrop(Arc<LinkCore>);

impl Drop for ClosesOnDrop {
    fn drop(&mut self) {
        self.0.close(LinkEnd::Disconnected);
    }
}

/// Counts a message that was ignored, and logs it at most once in [`COMPLAINT_PAUSE`].
pub(super) fn ignored_message(
    shared: &LinkCore,
    complained: &mut Option<Instant>,
    violation: ProtocolViolation,
) {
    shared.inbound.violation(violation);
    // A late response follows every cancelled call, so it is not logged.
    if violation == ProtocolViolation::Late {
        return;
    }
    let now = Instant::now();
    if complained.is_some_and(|last| now.duration_since(last) < COMPLAINT_PAUSE) {
        return;
    }
    *complained = Some(now);
    tracing::warn!(
        namespace = shared.namespace.as_str(),
        kind = violation.as_str(),
        "the server of namespace {} sent a message that was ignored ({})",
        shared.namespace,
        violation.as_str()
    );
}

/// Handles a line of the server. The error is the reason why the line is ignored.
pub(super) fn handle(
    shared: &Arc<LinkCore>,
    line: &Bytes,
    answers: &mut Batch,
) -> Result<(), ProtocolViolation> {
    let Ok(text) = std::str::from_utf8(line) else {
        return Err(senseless(shared, line));
    };
    let message = jsonrpc::message(text);
    if is_odd(&message)
        && let Some(plain) = plain::plain(text, None)
    {
        let line = Bytes::from(plain);
        let text = std::str::from_utf8(&line).unwrap_or_default();
        return take(shared, (&line, text), jsonrpc::message(text), answers);
    }
    take(shared, (line, text), message, answers)
}

/// Returns true if the message is irregular, so that normalizing it may make it usable.
fn is_odd(message: &Result<Message<'_>, Invalid<'_>>) -> bool {
    match message {
        Ok(Message::Response { id, .. }) => id.parse::<u64>().is_err(),
        Ok(it @ (Message::Notification { members, .. } | Message::Request { members, .. })) => {
            members.raw(Key::Params) == Some("null") || jsonrpc::holds_null_beside_method(it)
        }
        Err(_) => true,
    }
}

fn take(
    shared: &Arc<LinkCore>,
    (line, text): (&Bytes, &str),
    message: Result<Message<'_>, Invalid<'_>>,
    answers: &mut Batch,
) -> Result<(), ProtocolViolation> {
    match message {
        Ok(Message::Response { id, outcome, .. }) => {
            respond(shared, answers, (line, text), id, outcome)
        }
        Ok(Message::Notification { method, members }) => notify(shared, line, &method, &members),
        Ok(Message::Request {
            id,
            method,
            members,
        }) => ask(shared, line, id, &method, &members),
        Err(_) if text.starts_with('[') => Err(ProtocolViolation::Batch),
        Err(invalid) => match (&invalid.failure, invalid.id) {
            (RequestError::Parse(_), _) => Err(senseless(shared, line)),
            // A message with an id but without `method` is an invalid response. A message with an invalid `method` is no
            // response.
            (_, Some(id)) if !text.contains("\"method\"") => {
                fail(shared, number(id), &invalid.failure.message());
                Err(ProtocolViolation::NotAMessage)
            }
            (failure, Some(id)) if is_request(text) => {
                refuse(shared, id, &failure.message());
                Err(ProtocolViolation::NotAMessage)
            }
            _ if text.starts_with('{') => Err(senseless(shared, line)),
            _ => Err(ProtocolViolation::NotAMessage),
        },
    }
}

/// Returns true if an invalid message is nevertheless a request, which the server expects to be answered. Log lines in JSON are
/// not requests.
fn is_request(text: &str) -> bool {
    #[derive(Deserialize)]
    struct Envelope<'a> {
        jsonrpc: Cow<'a, str>,
        #[serde(rename = "method")]
        _method: Cow<'a, str>,
        #[serde(borrow, default)]
        result: Option<&'a RawValue>,
        #[serde(borrow, default)]
        error: Option<&'a RawValue>,
    }
    serde_json::from_str::<Envelope<'_>>(text).is_ok_and(|envelope| {
        envelope.jsonrpc == "2.0" && envelope.result.is_none() && envelope.error.is_none()
    })
}

/// Answers an invalid request with an error. The response is dropped if the outbox is full because the server does not read.
fn refuse(shared: &LinkCore, id: &str, message: &str) {
    let error = RpcError {
        code: code::INVALID_REQUEST,
        message,
    };
    let id = RawId::new(id);
    let _ = shared.append(id.as_str().len(), |out| write::answer(out, &id, Err(error)));
}

/// Handles a line that cannot be parsed. If the line looks like the response to a call, that call fails at once.
fn senseless(shared: &LinkCore, line: &[u8]) -> ProtocolViolation {
    if !line.starts_with(b"{") {
        return ProtocolViolation::NotJson;
    }
    let mut scan = IdScan::default();
    scan.feed(line);
    fail(shared, scan.answered(), &fault(line));
    ProtocolViolation::NotAMessage
}

/// Describes why a response cannot be read, without quoting its text.
fn fault(line: &[u8]) -> String {
    let size = line.len();
    // A character that is incomplete at the end only shows that the line was cut, not that it has another encoding.
    if std::str::from_utf8(line).is_err_and(|it| it.error_len().is_some()) {
        return format!("its {size} bytes are not UTF-8");
    }
    match serde_json::from_slice::<serde::de::IgnoredAny>(line) {
        Err(error) if error.is_eof() => format!("it was cut after {size} bytes"),
        Err(error) => format!("its {size} bytes are no JSON ({error})"),
        Ok(_) => "a key is there twice, or it is nested too deep".into(),
    }
}

fn fail(shared: &LinkCore, id: Option<u64>, fault: &str) {
    if let Some(Ok(entry)) = id.map(|id| shared.take(id)) {
        entry.reply.end(Err(CallError::new(
            CallErrorCode::UpstreamError,
            format!(
                "the server of namespace {} gave an answer that is no JSON-RPC response: {}",
                shared.namespace, fault
            ),
        )));
    }
}

pub(super) fn too_long(shared: &LinkCore, answered: Option<u64>, size: u64) {
    let Some(id) = answered else { return };
    match shared.take(id) {
        Ok(entry) => {
            let error = too_large(size, shared.max_result.known());
            entry.reply.end(Err(error));
        }
        Err(_) => shared.inbound.settled(id),
    }
}

fn too_large(size: u64, max: u64) -> CallError {
    CallError::new(
        CallErrorCode::ResultTooLarge,
        format!("the result is {size} bytes of JSON; at most {max} are allowed"),
    )
}

/// Parses the number of a call from an id or a progress token, in any form in which servers return it.
fn number(raw: &str) -> Option<u64> {
    plain::call_number(raw)
}

fn ignored(unmatched: NoPendingCall) -> ProtocolViolation {
    match unmatched {
        NoPendingCall::Over => ProtocolViolation::Late,
        NoPendingCall::Unknown => ProtocolViolation::Unknown,
    }
}

fn respond(
    shared: &LinkCore,
    answers: &mut Batch,
    (line, text): (&Bytes, &str),
    raw_id: &str,
    outcome: Result<&RawValue, &RawValue>,
) -> Result<(), ProtocolViolation> {
    let id = number(raw_id).ok_or(ProtocolViolation::Unknown)?;
    let taken = shared.take(id);
    let is_task = !matches!(taken, Err(NoPendingCall::Unknown)) && outcome.is_ok_and(is_task);
    let (Ok(part) | Err(part)) = outcome;
    // The task is recorded even if the caller no longer waits, since the server works on it.
    if is_task {
        shared.inbound.began_task(taken.is_ok().then_some(id), part);
    }
    let PendingCall {
        reply,
        sink,
        token,
        origin,
    } = match taken {
        Ok(entry) => entry,
        Err(unmatched) => {
            if unmatched == NoPendingCall::Over {
                shared.inbound.settled(id);
            }
            return Err(ignored(unmatched));
        }
    };
    let size = part.get().len() as u64;
    if !shared.max_result.allows(size) {
        reply.end(Err(too_large(size, shared.max_result.known())));
        return Err(ProtocolViolation::TooLong);
    }
    let (id_at, part_at) = (span(text, raw_id), span(text, part.get()));
    let kept = match origin.answers() {
        Some(account) => account.keep(line.clone()),
        None => Ok(line.clone()),
    };
    let line = match kept {
        Ok(line) => line,
        // The memory for the response is used up by other responses, so this is not a violation of the protocol by the server.
        Err(no_room) => {
            reply.end(Err(no_room.into()));
            return Ok(());
        }
    };
    let answer = Response::new(line, id_at, part_at, outcome.is_err());
    if let (true, Some(token), Some(sink)) = (is_task, token, sink) {
        shared.calls().lasting.keep(id, token, sink);
    }
    answers.add(reply, Ok(answer));
    Ok(())
}

fn notify(
    shared: &LinkCore,
    line: &Bytes,
    method: &str,
    members: &Members<'_>,
) -> Result<(), ProtocolViolation> {
    members
        .unique()
        .map_err(|_| ProtocolViolation::NotAMessage)?;
    let is_progress = method == "notifications/progress";
    let about = if is_progress {
        let token = members.name(Key::Progress);
        Some(token.ok_or(ProtocolViolation::NotAMessage)?)
    } else {
        members.name(Key::Subscription)
    };
    let mut edit = None;
    let sink = match about {
        None => None,
        Some(name) => {
            let id = number(name).ok_or(ProtocolViolation::Unknown)?;
            let ProgressTarget { token, sink } = whose(shared, id, is_progress)?;
            // The caller of this call receives no notifications.
            let Some(sink) = sink else { return Ok(()) };
            let token = token.filter(|_| is_progress);
            edit = token.map(|token| Edit::new(members.message(), name, token.to_string()));
            Some(sink)
        }
    };
    if method == "notifications/cancelled"
        && let Some(request) = members.name(Key::RequestId)
    {
        // The server has cancelled one of its own requests and expects no response to it.
        shared.questions().take_back(&RawId::new(request));
    }
    let params = members.raw(Key::Params);
    let params_at = params.map(|params| span(members.message(), params));
    let (message, params_at) = match edit {
        None => (line.clone(), params_at),
        Some(edit) => renamed(line, edit, params_at),
    };
    let notification = Notification {
        method,
        params: params_at.map(|at| message.slice(at)),
        message,
    };
    match sink {
        Some(sink) => sink.notification(notification),
        None => shared
            .inbound
            .notification_beside(notification, &|| shared.in_hand()),
    }
    Ok(())
}

/// Replaces a value in the parameters of a message. Returns the message and the new position of the parameters.
fn renamed(
    line: &Bytes,
    edit: Edit<'_>,
    params: Option<Range<usize>>,
) -> (Bytes, Option<Range<usize>>) {
    let params = params.map(|at| at.start..at.end + edit.with.len() - edit.span.len());
    let mut out = BytesMut::with_capacity(line.len() + edit.with.len());
    splice::splice(&mut out, line, &mut [edit]);
    (out.freeze(), params)
}

/// The destination of a call's progress notifications: the progress token as the caller wrote it, and the sink.
struct ProgressTarget {
    token: Option<Arc<str>>,
    sink: Option<Arc<dyn NotificationSink>>,
}

fn whose(
    shared: &LinkCore,
    id: u64,
    is_progress: bool,
) -> Result<ProgressTarget, ProtocolViolation> {
    let calls = shared.calls();
    match calls.pending.get(id) {
        Ok(entry) if is_progress && entry.token.is_none() => Err(ProtocolViolation::Unknown),
        Ok(entry) => Ok(ProgressTarget {
            token: entry.token.clone(),
            sink: entry.sink.clone(),
        }),
        Err(unmatched) => calls
            .lasting
            .find(id)
            .filter(|_| is_progress)
            .map(|(token, sink)| ProgressTarget {
                token: Some(token),
                sink: Some(sink),
            })
            .ok_or(ignored(unmatched)),
    }
}

fn ask(
    shared: &Arc<LinkCore>,
    line: &Bytes,
    raw_id: &str,
    method: &str,
    members: &Members<'_>,
) -> Result<(), ProtocolViolation> {
    let id = RawId::new(raw_id);
    if method == "ping" {
        let pong = serde_json::from_str("{}").expect("an object");
        // The response is dropped if the outbox is full because the server does not read.
        let _ = shared.append(id.as_str().len(), |out| write::answer(out, &id, Ok(pong)));
        return Ok(());
    }
    let numbered = shared.questions().insert(&id);
    let Some(number) = numbered else {
        let error = RpcError {
            code: code::INTERNAL,
            message: "too many requests are open, or a request with this id is open",
        };
        let _ = shared.append(id.as_str().len(), |out| write::answer(out, &id, Err(error)));
        return Err(ProtocolViolation::TooManyRequests);
    };
    let asker = Arc::clone(shared) as _;
    let (text, params) = (members.message(), members.params());
    let request = ServerRequest::new(line, text, (raw_id, number), method, params, asker);
    shared.inbound.request(request);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fault_of_a_line_names_its_encoding() {
        for (line, said) in [
            (
                &b"{\"id\":1,\"result\":\"\xe9\"}"[..],
                "its 21 bytes are not UTF-8",
            ),
            (&b"{\"id\":1,\"result"[..], "it was cut after 15 bytes"),
            (
                &b"{\"id\":1,\"result\":\"\xc3"[..],
                "it was cut after 19 bytes",
            ),
        ] {
            assert_eq!(fault(line), said);
        }
    }
}
