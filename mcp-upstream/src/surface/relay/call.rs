//! Handles the request in a frame on behalf of the owner of the frame's key.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::key_maker::KeyMaker;
use tooldock_base::network::UNIX;
use tooldock_base::poll_watch::{self, PollSubject};
use tooldock_base::secret::Secret;
use tooldock_base::trace::RequestTrace;
use tooldock_credentials::keys::{ApiKey, KeyRefusal};
use tooldock_engine::engine::{CallMessages, PeerEvent, UpstreamCall, ask_failed, rate_limited};
use tooldock_engine::trace::{self, SentTrace};
use tooldock_engine::upstream::system::KeyTools;
use tooldock_engine::upstream::{Client, IncomingRequest, PreparedRequest, RequestMeta};
use tooldock_sessions::call_error::retry_seconds;
use tooldock_sessions::caller::{Caller, RelayPeer, Visibility};
use tooldock_sessions::catalogue::{ToolList, View};
use tooldock_sessions::interaction;
use tooldock_workers::registry::{Namespace, UpstreamKind};

use super::frame::{FrameError, ToolCall};
use super::memory::FrameMemory;
use super::room::{RelayRegistration, RunningRequest};
use super::tokens::TokenCall;
use super::{Relay, reply, tokens};
use crate::format;
use crate::jsonrpc::{self, Message, RequestError};
use crate::mcp::driver::{CallDriver, DriverStep};
use crate::mcp::{self, Core};
use crate::protocol::method::{TOOLS_CALL, TOOLS_LIST};
use crate::surface::outbox::Outbox;

/// A connected client of the relay.
pub(super) struct Conversation {
    core: Arc<Core>,
    relay: Arc<Relay>,
    /// Identity of the client's process. The lock is never held across an await.
    peer: Mutex<Arc<RelayPeer>>,
    guest: Arc<RelayRegistration>,
    pub(super) outbox: Outbox,
}

/// A frame that was admitted: its key, the caller to whom the key belongs, and the served namespace.
struct AdmittedFrame {
    key: Arc<ApiKey>,
    caller: Caller,
    namespace: Arc<Namespace>,
}

/// The members of a frame that are common to all requests.
#[derive(Clone, Copy)]
pub(super) struct FrameHead<'a> {
    /// The frame's id as raw JSON.
    id: &'a str,
    key: &'a Secret,
    trace: &'a SentTrace,
    /// The time at which the frame was read, for its trace.
    read: Instant,
}

impl<'a> FrameHead<'a> {
    /// Creates the head of a frame that has just been read.
    pub(super) fn new(id: &'a str, key: &'a Secret, trace: &'a SentTrace) -> Self {
        let read = Instant::now();
        Self {
            id,
            key,
            trace,
            read,
        }
    }
}

/// A refused frame, with the complete answer to it.
struct RefusedFrame {
    answer: Vec<u8>,
    /// The error code of the refusal, for the trace.
    code: &'static str,
}

impl RefusedFrame {
    /// Creates the refusal of a frame whose call cannot be sent to its upstream.
    fn not_dispatched(id: &str, failed: &CallError) -> Self {
        Self {
            answer: reply::not_dispatched(id, failed),
            code: failed.code.as_str(),
        }
    }
}

/// Returns the namespace and route for which the CPU time of a frame's request is counted.
fn watched(admitted: &AdmittedFrame) -> PollSubject {
    PollSubject {
        route: "relay",
        namespace: Some(admitted.namespace.name.clone()),
    }
}

impl Conversation {
    pub(super) fn new(
        core: Arc<Core>,
        relay: Arc<Relay>,
        (guest, peer): (Arc<RelayRegistration>, RelayPeer),
        outbox: Outbox,
    ) -> Self {
        Self {
            core,
            relay,
            peer: Mutex::new(Arc::new(peer)),
            guest,
            outbox,
        }
    }

    fn peer(&self) -> Arc<RelayPeer> {
        Arc::clone(&self.peer.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records the name of the project for which the client works, as the client reports it.
    pub(super) fn greeted(&self, project: Option<String>) {
        let mut peer = self.peer.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::make_mut(&mut peer).project = project.map(Into::into);
    }

    /// Registers a running request of this client until the returned guard is dropped.
    pub(super) fn running(&self) -> RunningRequest {
        self.guest.working()
    }

    /// Answers an invalid frame with its error.
    pub(super) async fn refuse(&self, refused: &FrameError) {
        self.note_refused(refused.reason());
        self.outbox.send(refused.reply().into()).await;
    }

    /// Answers a request for the list of tools.
    pub(super) async fn tools(&self, frame: FrameHead<'_>, memory: Option<&FrameMemory>) {
        let id = frame.id;
        let (answer, trace) = match self.admit(frame, TOOLS_LIST, memory).await {
            Ok(admitted) => {
                let (polls, subject) = (&self.core.metrics.polls, watched(&admitted));
                let list = || Box::pin(self.list(id, &admitted));
                let answer = polls.over(subject, list).await;
                (answer, admitted.caller.trace)
            }
            Err(refused) => (self.refused(frame, TOOLS_LIST, refused), None),
        };
        self.send(answer, trace).await;
    }

    async fn list(&self, id: &str, admitted: &AdmittedFrame) -> Vec<u8> {
        poll_watch::note_method("tools");
        let AdmittedFrame {
            key,
            caller,
            namespace,
        } = admitted;
        if let UpstreamKind::Failed(failed) = &namespace.upstream {
            return not_listed(id, caller, failed);
        }
        if let Some(trace) = &caller.trace {
            let of_namespace: Arc<str> = namespace.name.as_str().into();
            trace.attribute("tooldock.namespace", of_namespace);
            trace.attribute("tooldock.principal", Arc::clone(key.principal()));
            trace.attribute("tooldock.request_id", Arc::clone(&caller.request_id));
            trace.attribute("network.transport", "unix");
        }
        match mcp::shown_tools(&self.core, caller, namespace).await {
            Ok(listed) => {
                let view = View::of(caller, namespace);
                let own = ToolList::declared(&KeyTools::declarations());
                let own = view.tools(&own).filter(|_| tokens::may_use(key));
                let listed = view.tools(&listed);
                let listed = listed.filter(|tool| !tokens::is_token_tool(tool.name()));
                reply::tools(id, listed.chain(own))
            }
            Err(failed) => not_listed(id, caller, &failed),
        }
    }

    /// Runs a call to its end, and sends its progress to the client. Dropping the future cancels the call.
    pub(super) async fn call(
        &self,
        frame: FrameHead<'_>,
        memory: Option<&FrameMemory>,
        call: ToolCall,
    ) {
        let id = frame.id;
        let (answer, trace) = match self.admit(frame, TOOLS_CALL, memory).await {
            Ok(admitted) => {
                let trace = admitted.caller.trace.clone();
                let (polls, subject) = (&self.core.metrics.polls, watched(&admitted));
                let run = || Box::pin(self.run(id, admitted, call));
                (polls.over(subject, run).await, trace)
            }
            Err(refused) => (self.refused(frame, TOOLS_CALL, refused), None),
        };
        self.send(answer, trace).await;
    }

    /// Sends an answer, and records the sending in the request's trace.
    async fn send(&self, answer: Vec<u8>, trace: Option<Arc<RequestTrace>>) {
        let _answer = trace.as_ref().map(|it| it.part("answer"));
        self.outbox.send(answer.into()).await;
    }

    /// Creates the trace of an admitted frame; `None` if traces are not exported.
    fn trace(&self, frame: FrameHead<'_>, method: &'static str) -> Option<Arc<RequestTrace>> {
        let sink = self.relay.traces.as_ref()?;
        let trace = trace::begin(sink, trace::RELAY, frame.read, false);
        trace.message(method, Some(frame.id), frame.trace.parameters());
        trace.admitted(None);
        Some(trace)
    }

    /// Exports the trace of a refused frame, and returns its answer.
    fn refused(
        &self,
        frame: FrameHead<'_>,
        method: &'static str,
        refused: RefusedFrame,
    ) -> Vec<u8> {
        if let Some(sink) = &self.relay.traces {
            let trace = trace::begin(sink, trace::RELAY, frame.read, true);
            trace.message(method, Some(frame.id), None);
            trace.admitted(Some(refused.code.into()));
            trace.failed(refused.code);
        }
        refused.answer
    }

    async fn run(&self, id: &str, admitted: AdmittedFrame, call: ToolCall) -> Vec<u8> {
        poll_watch::note_method(TOOLS_CALL);
        let AdmittedFrame {
            key,
            caller,
            namespace,
        } = admitted;
        let prepared = match tokens::is_token_tool(&call.tool) {
            true => {
                let (tools, tables) = (self.relay.tokens.clone(), self.relay.keys.clone());
                let call = TokenCall::new(tools, tables, key, namespace, &call);
                Ok(PreparedRequest::Call(
                    Arc::new(call) as Arc<dyn UpstreamCall>
                ))
            }
            false => self.prepare(id, &caller, &namespace, &call).await,
        };
        let prepared = match prepared {
            Ok(PreparedRequest::Call(prepared)) => prepared,
            Ok(PreparedRequest::Response(response)) => return reply::response(id, &response),
            Err(failure) => return not_prepared(id, caller.trace.as_deref(), failure),
        };
        let talks = prepared.facts().talks != CallMessages::No;
        let (sender, events) = talks.then(interaction::events).unzip();
        let core = Arc::clone(&self.core);
        let work = async move { core.engine.run(&caller, &prepared, sender).await };
        let mut driver = CallDriver::new(work, events);
        loop {
            match driver.next().await {
                DriverStep::Event(event) => self.tell(event, call.progress_token.as_deref()).await,
                DriverStep::Over(outcome) => return reply::outcome(id, outcome),
            }
        }
    }

    /// Prepares the call as for a client that accepts progress notifications but cannot answer questions.
    async fn prepare(
        &self,
        id: &str,
        caller: &Caller,
        namespace: &Arc<Namespace>,
        call: &ToolCall,
    ) -> Result<PreparedRequest, RequestError> {
        let peer = self.peer();
        let body = Bytes::from(message(id, call, peer.project.as_deref()));
        let text = std::str::from_utf8(&body).map_err(|_| RequestError::Internal)?;
        let Ok(Message::Request { members, .. }) = jsonrpc::message(text) else {
            return Err(RequestError::InvalidParams(
                "params.arguments are nested too deep".into(),
            ));
        };
        let token = call.progress_token.as_deref();
        let client = Client::Modern(RequestMeta {
            capabilities: Bytes::from_static(b"{}"),
            client_info: None,
            log_level: None,
            progress_token: token.map(|token| Bytes::copy_from_slice(token.as_bytes())),
            inputs: None,
        });
        let core = &*self.core;
        mcp::pass_through::count_client_mode(core, caller, namespace);
        let cx = mcp::context(core, caller, &body, Arc::clone(namespace), client, true);
        let request = IncomingRequest {
            id,
            method: TOOLS_CALL,
            members: &members,
        };
        mcp::prepare(core, &cx, request).await
    }

    /// Sends progress to a client that gave a progress token. Questions to the client fail, since the relay has no frame for
    /// them.
    async fn tell(&self, event: PeerEvent, token: Option<&str>) {
        if let PeerEvent::InputRequests(questions) = event {
            for question in questions {
                question.fail(ask_failed("A client of the relay cannot be asked anything"));
            }
            return;
        }
        if token.is_none() || !is_progress(&event) {
            return;
        }
        if let Some(frame) = interaction::notification(event, token, None) {
            self.outbox.send(frame.into()).await;
        }
    }

    /// Admits a frame: checks its key, and finds the caller and the namespace. The error is the answer that refuses the frame.
    /// `memory`: the memory reserved for a long frame.
    async fn admit(
        &self,
        frame: FrameHead<'_>,
        method: &'static str,
        memory: Option<&FrameMemory>,
    ) -> Result<AdmittedFrame, RefusedFrame> {
        let FrameHead { id, key, .. } = frame;
        let name = &self.relay.namespace;
        let keys = &self.relay.keys;
        let verified = keys.verify(key.expose().as_bytes(), UNIX, SystemTime::now());
        let key = match verified {
            Ok(key) => key,
            Err(refusal) => return Err(self.wrong_key(id, refusal)),
        };
        let namespaces = Arc::clone(key.namespaces());
        let mut caller = Caller {
            namespace: Some(name.clone()),
            principal: Some(Arc::clone(key.principal())),
            client: UNIX,
            request_id: (self.relay.request_ids)(),
            profile: Arc::clone(&self.relay.profile),
            manager: false,
            headers: None,
            visibility: Visibility::Only(Arc::new(move |name| namespaces.opens(name))),
            grant: Some(Arc::clone(key.grant())),
            maker: KeyMaker::Key(key.record().id),
            key_limits: (!key.limits().is_empty()).then(|| Arc::clone(key.limits())),
            budget: None,
            relay: Some(self.peer()),
            toolset: None,
            note: None,
            status_only: false,
            trace: None,
        };
        // The key's namespaces are checked first, since a key for other namespaces must not reveal whether this one exists.
        if !key.namespaces().opens(name) {
            return Err(self.invalid_key(id, "the API key does not open the relay's namespace"));
        }
        if let Some(failed) = self.core.registry.starting(name).await {
            self.note_refused(&failed.message);
            return Err(RefusedFrame::not_dispatched(id, &failed));
        }
        let Some(namespace) = self.core.registry.admitted(name) else {
            let reason = format!("The relay's namespace {name} is not there");
            self.note_refused(&reason);
            let failed = CallError::new(CallErrorCode::WorkerUnavailable, reason);
            return Err(RefusedFrame::not_dispatched(id, &failed));
        };
        if !caller.may_use(&namespace) {
            return Err(self.invalid_key(
                id,
                "the relay's namespace does not let the API key's principal in",
            ));
        }
        self.take_room(id, &key, memory)?;
        // A frame counts as one request for rate limits, like an HTTP request.
        if let Err(exhausted) = self.core.engine.limiter.check_request(&caller, name) {
            let failed = rate_limited(&exhausted);
            return Err(RefusedFrame::not_dispatched(id, &failed));
        }
        caller.trace = self.trace(frame, method);
        Ok(AdmittedFrame {
            key,
            caller,
            namespace,
        })
    }

    /// Returns the answer to an invalid key. If the key was never valid and its user sends many such keys, the answer is
    /// `rate_limited` with a time to wait.
    fn wrong_key(&self, id: &str, refusal: KeyRefusal) -> RefusedFrame {
        let delay = match refusal {
            KeyRefusal::Malformed | KeyRefusal::Unknown | KeyRefusal::WrongSecret => {
                self.relay.key_failed(self.peer().uid)
            }
            KeyRefusal::Revoked | KeyRefusal::Expired | KeyRefusal::Network => None,
        };
        let Some(left) = delay else {
            return self.invalid_key(id, refusal.cause());
        };
        let seconds = retry_seconds(left);
        let failed = CallError::new(
            CallErrorCode::RateLimited,
            format!("Too many wrong API keys: this one is wrong, too. Try again in {seconds} s"),
        );
        RefusedFrame::not_dispatched(id, &failed.retry_after(left))
    }

    /// Counts the connection and the frame's memory for a valid key. Returns the refusal if the key has used up its share.
    fn take_room(
        &self,
        id: &str,
        key: &Arc<ApiKey>,
        memory: Option<&FrameMemory>,
    ) -> Result<(), RefusedFrame> {
        let reason = if !self.guest.shows(key) {
            "Too many connections use this API key: close others, or make a key of its own for this client"
        } else if !memory.is_none_or(|memory| memory.belongs_to(key)) {
            "Too many long frames of this API key are being answered: send this again when others are"
        } else {
            return Ok(());
        };
        self.note_refused(reason);
        let failed = CallError::new(CallErrorCode::Overloaded, reason);
        Err(RefusedFrame::not_dispatched(id, &failed))
    }

    fn invalid_key(&self, id: &str, cause: &str) -> RefusedFrame {
        self.note_refused(cause);
        RefusedFrame {
            answer: reply::invalid_key(id),
            code: "unauthorized",
        }
    }

    fn note_refused(&self, reason: &str) {
        let peer = self.peer();
        let (uid, pid) = (peer.uid, peer.pid.unwrap_or_default());
        self.relay.note_refused(format_args!(
            "a frame on the relay's socket was refused: {reason} uid={uid} pid={pid}"
        ));
    }
}

/// Returns the answer to a request for the list of tools, if the tools cannot be listed.
fn not_listed(id: &str, caller: &Caller, failed: &CallError) -> Vec<u8> {
    if let Some(trace) = &caller.trace {
        trace.failed(failed.code.as_str());
    }
    reply::not_dispatched(id, failed)
}

/// Returns the answer to a call that its upstream could not prepare.
fn not_prepared(id: &str, trace: Option<&RequestTrace>, failure: RequestError) -> Vec<u8> {
    if let Some(trace) = trace {
        trace.failed(failure.code());
    }
    let failed = match failure {
        RequestError::Upstream(failed) => failed,
        failure => CallError::new(CallErrorCode::UpstreamError, failure.message()),
    };
    reply::outcome(id, Err(failed))
}

/// Returns true if an event reports progress.
fn is_progress(event: &PeerEvent) -> bool {
    match event {
        PeerEvent::Progress(_) => true,
        PeerEvent::Message { message, .. } => {
            let text = std::str::from_utf8(message).unwrap_or_default();
            matches!(
                jsonrpc::message(text),
                Ok(Message::Notification { method, .. }) if method == "notifications/progress"
            )
        }
        PeerEvent::Log { .. } | PeerEvent::InputRequests(_) => false,
    }
}

/// Writes a call as a message of MCP. The project's name is added to `_meta`, as a hint for servers that read it.
fn message(id: &str, call: &ToolCall, project: Option<&str>) -> Vec<u8> {
    let mut out = Vec::with_capacity(256 + call.arguments.len());
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    out.extend_from_slice(id.as_bytes());
    out.extend_from_slice(b",\"method\":\"tools/call\",\"params\":{\"name\":");
    format::escape(&mut out, call.tool.as_bytes());
    out.extend_from_slice(b",\"arguments\":");
    out.extend_from_slice(&call.arguments);
    out.extend_from_slice(b",\"_meta\":{");
    if let Some(token) = &call.progress_token {
        out.extend_from_slice(b"\"progressToken\":");
        out.extend_from_slice(token.as_bytes());
        out.push(b',');
    }
    if let Some(project) = project {
        out.extend_from_slice(b"\"tooldock/project\":");
        format::escape(&mut out, project.as_bytes());
        out.push(b',');
    }
    out.extend_from_slice(b"\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\",");
    out.extend_from_slice(b"\"io.modelcontextprotocol/clientCapabilities\":{}}}}");
    out
}
