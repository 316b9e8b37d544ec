//! Routing of a server's messages that belong to no call.
//!
//! | message | on a process of several clients | on a session's own | on one for a single call |
//! |---|---|---|---|
//! | changed list or resource | all interested clients, rewritten | the session | all interested clients, rewritten |
//! | a message that names a task | the session that began the task | the newest call, else the session | the call |
//! | any other notification | the only running call, if there is no other work | the newest call, else the session | the call |
//! | elicitation, sampling, roots | refused | the newest call, else the session | the call, once it begins |
//! | any other request | refused | the session | refused |
//! | a cancelled request | – | cancelled at its client, too | cancelled at its client, too |
//!
//! *Rewritten*: the gateway sends a message of its own with the same meaning. Clients of the server's era otherwise get the
//! server's own messages, in which only the ids of the server's requests are replaced. A modern client whose call is suspended
//! cannot be notified that a question was cancelled; its call continues, and its answer to that question is dropped.
//!
//! On a process of several clients, a message cannot be linked to the client that caused it, and guessing would show it to an
//! unrelated client: the pool's router handles the first column, and a call gets the remaining messages ([`CallListener`]). *The
//! session* means its general stream, opened by GET; messages before that are queued, within limits.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tooldock_base::names::NamespaceName;
use tooldock_process::worker::{AskMethod, LogLevel, Question};
use tooldock_protocol::bridge::links;
use tooldock_protocol::jsonrpc::{self, Notification, ServerRequest, spans};
use tooldock_protocol::seal::SessionKey;
use tooldock_protocol::version::code;
use tooldock_servers::link::{Inbound, NotificationSink};
use tooldock_sessions::broadcast::{Audience, Change};
use tooldock_sessions::interaction::{
    self, ConnectionInteractions, Interaction, Responder, WithdrawalMessage, ask_failed,
};
use tooldock_sessions::session::Session;
use tooldock_sessions::stream::EventLog;
use tooldock_workers::hidden::HiddenValues;

use super::task_names::TaskNames;
use crate::engine::Peer;

/// Maximum number of messages that wait for a session's stream. Further notifications are dropped, and further requests
/// refused.
const WAITING_MAX: usize = 256;
/// Maximum size of the messages that wait for a session's stream, in bytes.
const WAITING_BYTES: usize = 4 * 1024 * 1024;

/// Handler for messages of one process, or of successive processes of the same session.
pub(crate) struct InboundHandler {
    namespace: NamespaceName,
    scope: ProcessOwner,
    /// The secrets of the server, which are hidden in its messages outside of calls.
    hidden: HiddenValues,
    audience: Arc<Audience>,
    events: Arc<EventLog>,
    /// Time limit for the client's answer to a question that belongs to no call.
    ask_timeout: Duration,
    /// Running calls of the process. The lock must not be held across an `await`.
    calls: Mutex<PeerCalls>,
    waiting: Mutex<MessageBacklog>,
    /// Requests of the server that are not answered yet, by the server's ids.
    asked: ConnectionInteractions,
    /// Key that seals the names of tasks for sessions of aggregates.
    key: SessionKey,
    /// Notified when the server announces that a user has completed an elicitation in URL mode (a page to open).
    completed: Notify,
}

/// Owner of the unshared server process whose messages an [`InboundHandler`] routes.
#[derive(Debug)]
pub(crate) enum ProcessOwner {
    /// The process belongs to a session.
    Session(Weak<Session>),
    /// The process serves a single call.
    Call,
}

#[derive(Default)]
struct PeerCalls {
    next: u64,
    running: Vec<PeerCall>,
}

struct PeerCall {
    number: u64,
    peer: Peer,
    /// Translation of task names for the client, if the call came through an aggregate.
    names: Option<TaskNames>,
    /// Answers to the server's questions that the client sent along with the call: a JSON object of objects.
    inputs: Option<Bytes>,
    /// Numbers of the call's questions so far, by kind. The key of a question contains its number.
    asked: [u32; 3],
}

#[derive(Default)]
struct MessageBacklog {
    messages: VecDeque<Bytes>,
    bytes: usize,
    /// True while a task is sending the queued messages; no second task is started then.
    delivering: bool,
}

/// Registration of a running call at a handler; dropping it ends the registration.
pub(crate) struct RunningCall {
    handler: Arc<InboundHandler>,
    number: u64,
}

impl InboundHandler {
    pub(crate) fn new(
        namespace: NamespaceName,
        scope: ProcessOwner,
        hidden: HiddenValues,
        audience: Arc<Audience>,
        events: Arc<EventLog>,
        ask_timeout: Duration,
        key: SessionKey,
    ) -> Arc<Self> {
        Arc::new(Self {
            namespace,
            scope,
            hidden,
            audience,
            events,
            ask_timeout,
            calls: Mutex::default(),
            waiting: Mutex::default(),
            asked: ConnectionInteractions::default(),
            key,
            completed: Notify::new(),
        })
    }

    /// Waits until the server announces that a user has completed an elicitation in URL mode. Cancel safe.
    pub(crate) async fn completed(&self) {
        self.completed.notified().await;
    }

    /// Registers a call. `inputs`: answers to the server's questions that the client sent along with the call. `names`:
    /// translation of task names, if the call came through an aggregate.
    pub(crate) fn enter(
        self: &Arc<Self>,
        peer: Peer,
        inputs: Option<Bytes>,
        names: Option<TaskNames>,
    ) -> RunningCall {
        let number = {
            let mut calls = self.calls();
            let number = calls.next;
            calls.next += 1;
            calls.running.push(PeerCall {
                number,
                peer,
                names,
                inputs,
                asked: [0; 3],
            });
            number
        };
        for (method, request) in self.asked.take_early() {
            if let Some(request) = self.ask_in_call(method, request) {
                self.ask_in_session(request);
            }
        }
        RunningCall {
            handler: Arc::clone(self),
            number,
        }
    }

    /// Requests of the server that are not answered yet.
    pub(crate) fn asked(&self) -> &ConnectionInteractions {
        &self.asked
    }

    /// Sends the messages that were queued until the session opened its general stream.
    pub(crate) fn stream_opened(self: &Arc<Self>) {
        let start = {
            let mut waiting = self.waiting();
            !waiting.messages.is_empty() && !std::mem::replace(&mut waiting.delivering, true)
        };
        if start {
            self.start_delivery();
        }
    }

    /// Announces a changed list or resource to the clients concerned. Returns false for notifications of other kinds.
    fn changed(self: &Arc<Self>, notification: &Notification<'_>) -> bool {
        let change = match notification.method {
            "notifications/tools/list_changed" => Change::Tools,
            "notifications/prompts/list_changed" => Change::Prompts,
            "notifications/resources/list_changed" => Change::Resources,
            "notifications/resources/updated" => {
                let params = notification.params.as_deref().and_then(spans::raw);
                let uri = params.and_then(|it| spans::member(it, "uri"));
                let Some(uri) = uri.and_then(jsonrpc::string) else {
                    return true;
                };
                Change::Updated(uri.into())
            }
            _ => return false,
        };
        match &self.scope {
            // Ignored: an aggregate reads the lists of its members from the process that all clients share, so a change at a
            // session's own process does not affect them.
            ProcessOwner::Session(session) if self.is_of_aggregate(session) => {}
            ProcessOwner::Session(_) => {
                self.put(notification.message.clone());
            }
            // The gateway writes its own notification, since the server's message may contain data of the call.
            ProcessOwner::Call => self.audience.announce(&self.namespace, change),
        }
        true
    }

    /// Returns true if the session came through an aggregate.
    fn is_of_aggregate(&self, session: &Weak<Session>) -> bool {
        let session = session.upgrade();
        session.is_some_and(|it| it.binding().namespace != self.namespace)
    }

    /// The running call whose client gets a message of the server that names no call; `None` if no client can receive it.
    fn listener(&self) -> Option<(Peer, Option<TaskNames>)> {
        let calls = self.calls();
        let heard = |running: &&PeerCall| running.peer.is_heard();
        let found = match &self.scope {
            ProcessOwner::Session(_) => calls.running.iter().rev().find(heard),
            ProcessOwner::Call => calls.running.first().filter(heard),
        };
        found.map(|running| (running.peer.clone(), running.names.clone()))
    }

    fn route_notification(self: &Arc<Self>, notification: &Notification<'_>) {
        if let Some((peer, names)) = self.listener() {
            // No level is needed for a session's own process: its server applies the session's log level itself.
            let level = match self.scope {
                ProcessOwner::Session(_) => None,
                ProcessOwner::Call => filtered_level(notification),
            };
            peer.say(
                level,
                published(names.as_ref(), notification.message.clone()),
            );
        } else if let ProcessOwner::Session(_) = self.scope {
            let message = notification.message.clone();
            let hidden = self.hidden.hide_in_json(&message);
            self.put(hidden.map_or(message, Bytes::from));
        }
    }

    /// Sends a message on the session's general stream, or queues it until there is a stream. Returns false if the queue is full.
    pub(super) fn put(self: &Arc<Self>, message: Bytes) -> bool {
        let message = published(self.session_names().as_ref(), message);
        let start = {
            let mut waiting = self.waiting();
            let full = waiting.messages.len() >= WAITING_MAX
                || waiting.bytes.saturating_add(message.len()) > WAITING_BYTES;
            if full && !waiting.messages.is_empty() {
                tracing::debug!(namespace = %self.namespace, "a session hears too little of its server");
                return false;
            }
            waiting.bytes += message.len();
            waiting.messages.push_back(message);
            !std::mem::replace(&mut waiting.delivering, true)
        };
        if start {
            self.start_delivery();
        }
        true
    }

    /// Translation of task names for the session, if it came through an aggregate.
    fn session_names(&self) -> Option<TaskNames> {
        let ProcessOwner::Session(session) = &self.scope else {
            return None;
        };
        let session = session.upgrade()?;
        TaskNames::of_session(&self.key, &self.namespace, &session)
    }

    fn start_delivery(self: &Arc<Self>) {
        match Handle::try_current() {
            Ok(runtime) => {
                // The task ends when no messages are queued, or when the session has no stream.
                runtime.spawn(Arc::clone(self).deliver());
            }
            Err(_) => self.waiting().delivering = false,
        }
    }

    async fn deliver(self: Arc<Self>) {
        loop {
            let next = {
                let mut waiting = self.waiting();
                let next = waiting.messages.front().cloned();
                waiting.delivering = next.is_some();
                next
            };
            let Some(message) = next else {
                return;
            };
            let session = match &self.scope {
                ProcessOwner::Session(session) => session.upgrade(),
                ProcessOwner::Call => None,
            };
            let reached = match &session {
                Some(session) => self.events.append_general(session, &message).await,
                None => true,
            };
            let mut waiting = self.waiting();
            if !reached {
                // The session has no stream yet. The delivery starts again when a stream is opened.
                waiting.delivering = false;
                return;
            }
            if let Some(sent) = waiting.messages.pop_front() {
                waiting.bytes -= sent.len();
            }
        }
    }

    /// Passes a question of the server to the client of a running call. Returns the request if no client of a call can be
    /// asked.
    fn ask_in_call(&self, method: AskMethod, request: ServerRequest) -> Option<ServerRequest> {
        let (peer, names, key, given) = {
            let mut calls = self.calls();
            // The process was opened for a call that has not begun, and its server already asks. The question is kept for the
            // call.
            if calls.next == 0 && matches!(self.scope, ProcessOwner::Call) {
                return self.asked.keep_early(method, request);
            }
            let mut running = calls.running.iter_mut().rev();
            let Some(running) = running.find(|it| it.peer.asks()) else {
                return Some(request);
            };
            let key = running.next_key(method);
            let inputs = running.inputs.as_deref().and_then(spans::raw);
            let given = inputs
                .and_then(|it| spans::member(it, &key))
                .map(ToOwned::to_owned);
            (running.peer.clone(), running.names.clone(), key, given)
        };
        if let Some(answer) = given {
            request.answer(Ok(&answer));
            return None;
        }
        let params = request.params().map(|params| {
            let named = names.as_ref().and_then(|names| names.published(params));
            named.map_or_else(|| params.clone(), Bytes::from)
        });
        let question = Question {
            key: key.into(),
            method,
            params: params.unwrap_or_else(|| Bytes::from_static(b"{}")),
        };
        let id = request.id().clone();
        let responder = Responder::Request(Box::new(request), Some(self.asked.unanswered()));
        for entry in peer.ask(vec![(question, responder)]) {
            self.asked.note(id.clone(), &entry);
        }
        None
    }

    /// Sends a request of the server on the session's general stream, since no call can receive it.
    fn ask_in_session(self: &Arc<Self>, request: ServerRequest) {
        let session = match &self.scope {
            ProcessOwner::Session(session) => session.upgrade(),
            ProcessOwner::Call => None,
        };
        let (Some(session), Ok(runtime)) = (session, Handle::try_current()) else {
            request.refuse(
                code::METHOD_NOT_FOUND,
                "No client of this process can be asked this question",
            );
            return;
        };
        let wait = Arc::new(OutsideCalls {
            handler: Arc::clone(self),
            settled: Notify::new(),
        });
        let scope: Weak<dyn interaction::QuestionOwner> = Arc::<OutsideCalls>::downgrade(&wait);
        let id = request.id().clone();
        let responder = Responder::Request(Box::new(request), None);
        let entry = Interaction::new(None, responder, self.ask_timeout, scope);
        self.asked.note(id, &entry);
        if let Some(message) = session.ask(&entry)
            && !self.put(message.into())
        {
            entry.fail(ask_failed("The client does not read what it is sent"));
        }
        // The task ends at the time limit at the latest. The number of tasks is bounded by the open questions that a session may
        // have.
        runtime.spawn(async move {
            // `settled`: the question was answered, failed or was cancelled. `sleep_until`: no answer arrived in time.
            tokio::select! {
                () = wait.settled.notified() => {}
                () = sleep_until(entry.deadline()) => entry.expire(),
            }
            entry.deliver();
        });
    }

    fn calls(&self) -> MutexGuard<'_, PeerCalls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting(&self) -> MutexGuard<'_, MessageBacklog> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InboundHandler {
    /// Time since which the session's client has been inactive. `None` for a process of a single call.
    fn away_since(&self, now: Instant) -> Option<Instant> {
        let ProcessOwner::Session(session) = &self.scope else {
            return None;
        };
        if self.asked.any_open() {
            return None;
        }
        let used = session.upgrade()?.used_at(now);
        (used < now).then_some(used)
    }
}

/// Owner of a question that belongs to no call. It receives the client's answer.
struct OutsideCalls {
    handler: Arc<InboundHandler>,
    settled: Notify,
}

impl interaction::QuestionOwner for OutsideCalls {
    fn take_back(&self, message: WithdrawalMessage) {
        let WithdrawalMessage { own, ours } = message;
        if !own.is_some_and(|own| self.handler.put(own)) {
            self.handler.put(ours);
        }
    }

    fn settled(&self) {
        self.settled.notify_one();
    }
}

impl PeerCall {
    /// A key for the call's next question of this kind.
    fn next_key(&mut self, method: AskMethod) -> String {
        let (place, kind) = match method {
            AskMethod::Elicit => (0, "elicitation"),
            AskMethod::Sample => (1, "sampling"),
            AskMethod::Roots => (2, "roots"),
        };
        self.asked[place] += 1;
        format!("{kind}-{}", self.asked[place])
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        let mut calls = self.handler.calls();
        let place = calls.running.iter().position(|it| it.number == self.number);
        let left = place.map(|place| calls.running.remove(place));
        drop(calls);
        drop(left);
    }
}

/// The process's reference to its message handler.
pub(crate) struct HandlerRef(pub(crate) Arc<InboundHandler>);

impl Inbound for HandlerRef {
    fn notification(&self, notification: Notification<'_>) {
        match notification.method {
            // Ignored: no running call has this progress token, so the progress is about a call that is over.
            "notifications/progress" => {}
            "notifications/cancelled" => self.0.asked.withdraw(&notification),
            links::COMPLETED => {
                self.0.completed.notify_one();
                // A process for a single call serves a modern client, whose era does not have this notification.
                if let ProcessOwner::Session(_) = self.0.scope {
                    self.0.route_notification(&notification);
                }
            }
            _ => {
                if !self.0.changed(&notification) {
                    self.0.route_notification(&notification);
                }
            }
        }
    }

    fn request(&self, request: ServerRequest) {
        let handler = &self.0;
        let unanswered = match AskMethod::from_method(request.method()) {
            Some(kind) => handler.ask_in_call(kind, request),
            None => Some(request),
        };
        if let Some(request) = unanswered {
            handler.ask_in_session(request);
        }
    }

    /// Announces changed lists to the session, since the server's entries are no longer in its lists (AGG-35).
    fn ended_for_good(&self) {
        if let ProcessOwner::Session(_) = self.0.scope {
            for change in [Change::Tools, Change::Resources, Change::Prompts] {
                self.0.put(change.message(None).into());
            }
        }
    }

    fn away_since(&self, now: Instant) -> Option<Instant> {
        self.0.away_since(now)
    }
}

/// A call's listener for messages of a shared process, and the sink for the call's own messages.
pub(super) struct CallListener {
    pub(super) peer: Peer,
    /// Translation of task names for the client, if the call came through an aggregate.
    pub(super) names: Option<TaskNames>,
}

/// Replaces names of tasks in a message by the names that the client knows.
fn published(names: Option<&TaskNames>, message: Bytes) -> Bytes {
    match names {
        Some(names) => names.in_message(message),
        None => message,
    }
}

impl Inbound for CallListener {
    fn notification(&self, notification: Notification<'_>) {
        // Ignored: the message is about a call that is over, or about a request that was refused.
        if matches!(
            notification.method,
            "notifications/progress" | "notifications/cancelled"
        ) {
            return;
        }
        let level = filtered_level(&notification);
        let message = published(self.names.as_ref(), notification.message);
        self.peer.say(level, message);
    }

    fn request(&self, request: ServerRequest) {
        request.refuse(
            code::METHOD_NOT_FOUND,
            "No client of this process can be asked this question",
        );
    }
}

impl NotificationSink for CallListener {
    fn notification(&self, notification: Notification<'_>) {
        let message = published(self.names.as_ref(), notification.message);
        self.peer.say(None, message);
    }
}

/// The level of a log message, by which log messages are filtered for each client. A message with an unreadable level counts as
/// the most severe, so that every client that wants log messages gets it.
pub(super) fn filtered_level(notification: &Notification<'_>) -> Option<LogLevel> {
    if notification.method != "notifications/message" {
        return None;
    }
    let params = notification.params.as_deref().and_then(spans::raw);
    let level = params.and_then(|it| spans::member(it, "level"));
    let level = level.and_then(jsonrpc::string);
    let level = level.and_then(|level| level.parse().ok());
    Some(level.unwrap_or(LogLevel::Emergency))
}

#[cfg(test)]
mod tests;
