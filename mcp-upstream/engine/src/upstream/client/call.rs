//! A call of a client at an MCP server: the request is sent over a leased connection, and the response is checked and adapted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::time::{sleep, timeout};
use tooldock_base::config::OutputSchema;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::heavy_work;
use tooldock_base::json;
use tooldock_process::worker::LogLevel;
use tooldock_protocol::bridge::params::{self, ClientMetadata};
use tooldock_protocol::bridge::{errors, nulls, reply, rounds, shapes, state};
use tooldock_protocol::jsonrpc::{
    self, Key, ProtocolViolation, Request, Response, ResponseOutcome, Unreadable, spans,
};
use tooldock_protocol::seal::BoundRequest;
use tooldock_protocol::version::{ClientIdentity, Era, ServerInfo, code};
use tooldock_servers::http::retry;
use tooldock_servers::link::{CallAccount, Canceller, LinkCall, NotificationSink};
use tooldock_servers::metrics::LastGood;
use tooldock_servers::pool::process::ProcessListener;
use tooldock_servers::pool::{ConnectionKey, ProcessLease, served};
use tooldock_sessions::catalogue::coerce::coerced;
use tooldock_sessions::catalogue::{Access, Catalogue, ListKind, PageKey, ResultCheck, ToolList};
use tooldock_sessions::interaction::Responder;
use tooldock_sessions::profile::Profile;
use tooldock_sessions::session::CancelNotice;
use tooldock_workers::registry::{Namespace, UpstreamKind};
use tooldock_workers::remote::{BackendId, RemoteRetry};

use super::inbound::{CallListener, InboundHandler};
use super::lease::{ConnectionTarget, may_ask};
use super::links::AskedPages;
use super::task_names::TaskNames;
use super::{
    ConnectionLease, ExternalServers, ListOwner, Requester, catalogue, subscriptions, tasks,
};
use crate::engine::{CallFacts, Peer, UpstreamCall, UpstreamReply, Work};
use crate::upstream::Client;

/// Time limit for a server to confirm that it has read its opening messages.
const READ_WAIT: Duration = Duration::from_secs(5);
/// Delay before the first call to a server whose question the client has just answered, so that the server can process the
/// answer. The protocol has no message for the end of that processing. A directly connected client would need longer for its
/// first call.
const TAKEN_IN: Duration = Duration::from_millis(100);
/// Number of steps into which `TAKEN_IN` is divided. A ping follows each step, so that a server on a busy machine gets more time.
const TAKEN_IN_PARTS: u32 = 4;
/// Maximum size of a list's page that is mended on a message thread, in bytes.
const MENDED_HERE_MAX: usize = 64 * 1024;

/// Failure of a request that got no response.
#[derive(Debug, Clone)]
pub(super) struct MissingResponse {
    pub(super) error: CallError,
    /// The last stage that the request reached.
    pub(super) fate: RequestFate,
}

/// The last stage that a request reached before it failed without a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestFate {
    /// The server may have begun to process the request.
    Sent,
    /// No byte of the request reached the server.
    Unsent,
    /// The server did not process the request, because it no longer knows the session.
    SessionGone,
    /// The server refused the request because it does not know the session. It may have begun to process the request.
    SessionRefused,
    /// The request was not sent, since no process was available for it.
    Unleased,
}

impl From<CallError> for MissingResponse {
    fn from(error: CallError) -> Self {
        Self {
            error,
            fate: RequestFate::Sent,
        }
    }
}

impl RequestFate {
    /// The stage that a failed call reached.
    pub(super) fn of(call: &LinkCall) -> Self {
        if call.is_session_gone() {
            Self::SessionGone
        } else if call.is_session_refused() {
            Self::SessionRefused
        } else if call.is_unsent() {
            Self::Unsent
        } else {
            Self::Sent
        }
    }
}

/// A page of a list that is too long to be mended on a message thread.
struct LongPage {
    catalogue: Arc<Catalogue>,
    /// The version of the tool list when the page arrived.
    version: u64,
    kind: ListKind,
    era: Era,
    key: Option<PageKey>,
    page: Bytes,
    answer: Response,
}

/// A call that sends a client's request to the server.
pub(super) struct ServerCall {
    pub(super) external: Arc<ExternalServers>,
    pub(super) facts: CallFacts,
    pub(super) client: Client,
    pub(super) requester: Requester,
    /// The settings of the caller's listener.
    pub(super) profile: Arc<Profile>,
    /// The caller's scopes and access, which decide what lists show.
    pub(super) access: Access,
    pub(super) request: Request,
    /// The request with arguments converted to the types of the tool's schema, if any arguments were sent as JSON in strings.
    pub(super) coerced: OnceLock<Request>,
    /// The request with arguments that a hook has changed, if it has.
    pub(super) hooked: OnceLock<Request>,
    /// The tasks that the request names.
    pub(super) tasks: tasks::RequestTasks,
    /// Translation between the client's and the server's task names, if the request came through an aggregate.
    pub(super) task_names: Option<TaskNames>,
    /// Handle to cancel the request at the server, once it was sent.
    pub(super) sent: Mutex<Option<Canceller>>,
    /// True if the call failed because the state of its session is lost.
    pub(super) lost: AtomicBool,
}

impl CancelNotice for ServerCall {
    fn cancelled(&self, message: &str) {
        let sent = self.sent().take();
        if let Some(sent) = sent {
            sent.cancel(message);
        }
    }
}

impl UpstreamCall for ServerCall {
    fn facts(&self) -> &CallFacts {
        &self.facts
    }

    fn has_lost_its_session(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    fn has_coerced_arguments(&self) -> bool {
        self.coerced.get().is_some()
    }

    fn is_seen_by_hooks(&self) -> bool {
        true
    }

    fn coerced_arguments(&self) -> Option<BoxFuture<'_, Option<Bytes>>> {
        self.coerces().then(|| self.converted_arguments().boxed())
    }

    fn replace_arguments(&self, arguments: Bytes) -> Result<(), CallError> {
        let edited = std::str::from_utf8(&arguments)
            .ok()
            .and_then(|text| self.request.edited(&[(Key::Arguments, Some(text))]).ok());
        let edited = edited.ok_or_else(|| {
            let reason = "The arguments that a hook has changed are nested too deep";
            CallError::new(CallErrorCode::HookFailed, reason)
        })?;
        let _ = self.hooked.set(edited);
        Ok(())
    }

    fn start(self: Arc<Self>, peer: Peer) -> Work {
        Box::pin(async move {
            let response = self.run(&peer).await?;
            Ok(UpstreamReply::Response(response))
        })
    }
}

impl ServerCall {
    async fn run(&self, peer: &Peer) -> Result<Response, CallError> {
        self.check_prompt()?;
        // The future is boxed, so that the futures of other calls stay small; few calls lack a credential.
        Box::pin(self.connect(peer)).await?;
        let shared = self.shared_list().await;
        if self.coerces() && self.hooked.get().is_none() {
            // The future is boxed, so that the futures of other calls stay small.
            Box::pin(self.coerce()).await;
        }
        if let Client::Plain = self.client {
            self.check_arguments().await?;
        }
        let facts = &self.facts;
        let (requester, method) = (&self.requester, &*facts.method);
        let (external, namespace) = (&self.external, &facts.namespace);
        let target = external.target(namespace, &self.client, requester, method);
        let mut target = target.await?;
        let is_open = self.judge(shared, &target)?;
        if let Some(task) = self.tasks.ids().first() {
            let principal = requester.principal.as_ref();
            external.follow_task(namespace, &mut target, principal, task);
        }
        // Number of attempts, and the backends that were already tried, if the request may go to any backend.
        let (mut attempts, mut tried) = (1, Vec::new());
        let mut reopened = false;
        loop {
            let outcome = if facts.method.ends_with("/list") {
                let attempt = self.attempt(&target, peer, &mut tried, is_open);
                let last_good = || self.last_good(&target);
                // The future is boxed, since the futures of all calls would otherwise be as large as this one.
                Box::pin(catalogue::or_last_good(attempt, last_good)).await
            } else {
                self.attempt(&target, peer, &mut tried, is_open).await
            };
            match outcome {
                Ok(answer) => return Ok(answer),
                // If the server does not know the session, the session is opened again, at most once per call.
                Err(MissingResponse { fate, .. })
                    if !reopened
                        && (fate == RequestFate::SessionGone
                            || (fate == RequestFate::SessionRefused && self.is_harmless())) =>
                {
                    reopened = true;
                }
                Err(unanswered) if self.may_resend(&unanswered, attempts, &tried) => {
                    attempts += 1;
                    target.open.avoid.clone_from(&tried);
                }
                Err(MissingResponse { error, .. }) => {
                    self.note_lost();
                    let known = is_away(&error).then(|| self.last_good(&target)).flatten();
                    return known.ok_or(error);
                }
            }
        }
    }

    /// Converts arguments sent as JSON in strings to the types of the tool's schema. If the server's tools are not known, the
    /// arguments are not changed.
    async fn coerce(&self) {
        let Some(arguments) = self.converted_arguments().await else {
            return;
        };
        let edited = std::str::from_utf8(&arguments)
            .ok()
            .and_then(|text| self.request.edited(&[(Key::Arguments, Some(text))]).ok());
        if let Some(edited) = edited {
            let _ = self.coerced.set(edited);
        }
    }

    /// Returns true if arguments in strings are converted in this namespace.
    fn coerces(&self) -> bool {
        self.facts.namespace.limits.coerce_arguments && self.facts.method.is_tool_call()
    }

    /// Returns the arguments converted to the types of the tool's schema; `None` if they stay unchanged, or the schema is not
    /// known.
    async fn converted_arguments(&self) -> Option<Bytes> {
        let (namespace, tool) = (&self.facts.namespace, &*self.facts.subject);
        let whose = ListOwner {
            namespace,
            principal: self.requester.principal.as_ref(),
        };
        let catalogue = self.external.catalogue(namespace, whose.principal);
        let catalogue = catalogue.ok()?;
        let tools = self.external.tools_soon(whose, &catalogue).await.ok()?;
        let schema = tools.tool(tool).and_then(|entry| entry.input_schema())?;
        coerced(schema, &self.facts.arguments)
    }

    /// The request as it is sent to the server.
    fn request(&self) -> &Request {
        self.coerced.get().unwrap_or_else(|| self.admitted())
    }

    /// The request as the hooks have let it through.
    fn admitted(&self) -> &Request {
        self.hooked.get().unwrap_or(&self.request)
    }

    /// The arguments as the hooks have let them through.
    fn admitted_arguments(&self) -> Bytes {
        let hooked = self.hooked.get().and_then(|it| it.bytes(Key::Arguments));
        match hooked {
            Some(hooked) => Bytes::copy_from_slice(hooked),
            None => self.facts.arguments.clone(),
        }
    }

    /// Checks the arguments of a call over REST against the tool's schema; MCP clients check their arguments themselves. Done
    /// after the engine has admitted the call, so that a call with invalid arguments counts for limits and audit, as it does at a
    /// worker.
    async fn check_arguments(&self) -> Result<(), CallError> {
        // A server that does not list its tools reports wrong arguments itself.
        let (namespace, tool) = (&self.facts.namespace, &*self.facts.subject);
        let whose = ListOwner {
            namespace,
            principal: self.requester.principal.as_ref(),
        };
        let tools = match self.external.catalogue(namespace, whose.principal) {
            Ok(catalogue) => self.external.tools_soon(whose, &catalogue).await,
            Err(error) => Err(error),
        };
        let Ok(tools) = tools else {
            return Ok(());
        };
        let coerced = self.coerced.get().and_then(|it| it.bytes(Key::Arguments));
        let arguments = match coerced {
            Some(coerced) => Bytes::copy_from_slice(coerced),
            None => self.admitted_arguments(),
        };
        let checked = match tools.compiled_schema(tool) {
            Some(Some(schema)) => schema.check_lightly(&arguments),
            Some(None) => Some(Ok(())),
            None => None,
        };
        if let Some(checked) = checked {
            return checked;
        }
        let tool = tool.to_owned();
        let check = move || match tools.arguments_schema(&tool) {
            Some(schema) => schema.check(&arguments),
            None => Ok(()),
        };
        Box::pin(heavy_work::run(&self.requester.principal, check)).await?
    }

    /// Makes the call once, and adds the backends at which a lease was tried to `tried`. `is_open` is true if the process need
    /// not list its tools before the call.
    async fn attempt(
        &self,
        target: &ConnectionTarget,
        peer: &Peer,
        tried: &mut Vec<BackendId>,
        is_open: bool,
    ) -> Result<Response, MissingResponse> {
        let (external, namespace) = (&self.external, &self.facts.namespace);
        let leased = external.lease(namespace, &self.client, target.clone());
        let leased = leased.await.map_err(|error| MissingResponse {
            error,
            fate: RequestFate::Unleased,
        })?;
        tried.clear();
        tried.extend_from_slice(leased.process.tried());
        if let (Some(note), Some(backend)) = (&self.requester.note, leased.process.backend()) {
            note.record_backend(backend);
        }
        if !is_open {
            Box::pin(self.is_listed_at(&leased)).await?;
        }
        self.with(&leased, peer).await
    }

    async fn with(
        &self,
        leased: &ConnectionLease,
        peer: &Peer,
    ) -> Result<Response, MissingResponse> {
        // The tasks that the request names are checked for each process, since each process has its own tasks.
        if let Some(refused) = self
            .tasks
            .refused(leased, self.requester.principal.as_ref())
        {
            return Ok(refused);
        }
        let listens = leased.is_common() && peer.is_heard();
        let _listener = listens.then(|| leased.process.hear(self.process_listener(peer)));
        let mut _entered = None;
        if let Some(handler) = &leased.handler {
            let inputs = match &self.client {
                Client::Modern(meta) => meta.inputs.clone(),
                Client::Session(_) | Client::Legacy(_) | Client::Plain => None,
            };
            let names = self.task_names.clone();
            _entered = Some(handler.enter(peer.clone(), inputs, names));
            self.let_ask(leased, handler).await;
        }
        self.tell_level(leased).await;
        let answer = self.exchange(leased, peer).await?;
        leased.process.answered();
        Ok(answer)
    }

    /// Sets the log level of a session's own process if the session set it before the process ran: an aggregate starts no
    /// process for `logging/setLevel` alone.
    async fn tell_level(&self, leased: &ConnectionLease) {
        if let (ConnectionKey::Session(_), Client::Session(session)) = (&leased.key, &self.client)
            && session.log_level() != LogLevel::Info
            && &*self.facts.method != "logging/setLevel"
            && matches!(leased.process.opened(), ServerInfo::Legacy(_))
        {
            // No request is sent if the process already logs at that level.
            self.external.want_level(leased, session.log_level()).await;
        }
    }

    /// Lets a server that was opened for this call alone ask questions before the call, as a file server asks for its roots.
    /// The client answers before the call is sent, since the answer could change the meaning of the call.
    async fn let_ask(&self, leased: &ConnectionLease, handler: &InboundHandler) {
        let process = &leased.process;
        let own = leased.key == ConnectionKey::Exclusive;
        if !own || !matches!(process.opened(), ServerInfo::Legacy(_)) || !self.has_roots() {
            return;
        }
        // Questions sent on `notifications/initialized` arrive before the response to this ping.
        has_read(process).await;
        if handler.asked().is_asking() {
            handler.asked().settled().await;
            has_read(process).await;
            for _ in 0..TAKEN_IN_PARTS {
                sleep(TAKEN_IN / TAKEN_IN_PARTS).await;
                has_read(process).await;
            }
        }
    }

    /// Returns true if the client declares roots, which servers ask for unprompted.
    fn has_roots(&self) -> bool {
        let capabilities = self.client.capabilities();
        spans::member(&capabilities, "roots").is_some()
    }

    async fn exchange(
        &self,
        leased: &ConnectionLease,
        peer: &Peer,
    ) -> Result<Response, MissingResponse> {
        let process = &leased.process;
        let opening = process.opened();
        let answer = match (&self.client, opening) {
            (Client::Modern(meta), ServerInfo::Legacy(_)) => {
                if let Some(level) = meta.log_level {
                    let external = &self.external;
                    external.want_level(leased, level).await;
                }
                let state = self.request.raw(Key::RequestState);
                let state = match state.filter(|_| may_ask(&self.facts.method)) {
                    Some(state) => {
                        match state::opened(&self.external.key, || self.bound(), state) {
                            Ok(own) => Some(own),
                            Err(invalid) => return Ok(refused(&invalid)),
                        }
                    }
                    None => None,
                };
                let request = params::to_legacy(self.request(), state.as_deref());
                let request = request.map_err(unreadable)?;
                let handler = leased.handler.as_deref();
                self.send_with_links(process, handler, &request, peer)
                    .await?
            }
            (Client::Session(_) | Client::Legacy(_) | Client::Plain, ServerInfo::Modern(_)) => {
                self.in_rounds(process, peer).await?
            }
            (Client::Session(_) | Client::Legacy(_) | Client::Plain, ServerInfo::Legacy(_))
            | (Client::Modern(_), ServerInfo::Modern(_)) => {
                let answer = self.send(process, self.request(), peer).await?;
                if !answer.is_error() && subscriptions::outlasts_request(&self.facts.method) {
                    let params = self.request.raw(Key::Params).and_then(json::raw);
                    process.granted(&self.facts.method, params);
                }
                answer
            }
        };
        let answer = self.with_tasks(leased, self.links_as_text(answer)?);
        let mut is_current = true;
        let answer = match ListKind::of(&self.facts.method) {
            Some(kind) => match self.mended(kind, opening, answer) {
                Ok(answer) => answer,
                Err(long) => {
                    let (catalogue, version) = (Arc::clone(&long.catalogue), long.version);
                    let mended = Box::pin(self.mended_apart(long)).await?;
                    is_current = catalogue.version() == version;
                    mended
                }
            },
            None if answer.is_error() => answer,
            None => {
                let (method, era) = (&self.facts.method, opening.era());
                let answer = match shapes::of_result(method, era, answer.payload()) {
                    Some(result) => answer.with_payload(result.into()),
                    None => answer,
                };
                match nulls::of_result(method, era, answer.payload()) {
                    Some(result) => answer.with_payload(result.into()),
                    None => answer,
                }
            }
        };
        let named = match opening {
            ServerInfo::Modern(_) if !answer.is_error() => nulls::of_meta(answer.payload()),
            _ => None,
        };
        let answer = match named {
            Some(result) => answer.with_payload(result.into()),
            None => answer,
        };
        // Only lists of shared connections are cached: a principal's list concerns no other client.
        if leased.key == ConnectionKey::Shared
            && !self.requester.identifies_client()
            // A page is outdated if the tools have changed while it was mended.
            && is_current
            && let Some(page) = self.page(opening)
            && let ResponseOutcome::Result(result) = &answer.outcome()
            && let Ok(catalogue) = self.external.catalogue(&self.facts.namespace, None)
        {
            catalogue.remember(page, result);
        }
        if self.facts.method.is_tool_call()
            && !answer.is_error()
            && self.facts.namespace.limits.output_schema != OutputSchema::Off
        {
            self.check_result(&answer).await?;
        }
        Ok(self.published(self.for_client(opening, answer)))
    }

    /// Checks the result of a tool against the tool's `outputSchema`.
    ///
    /// # Errors
    ///
    /// `output_type`: the result violates the schema, and the limit `output_schema` is `strict`.
    async fn check_result(&self, answer: &Response) -> Result<(), CallError> {
        let (namespace, tool) = (&self.facts.namespace, &self.facts.subject);
        let principal = self.requester.principal.as_ref();
        let Ok(catalogue) = self.external.catalogue(namespace, principal) else {
            return Ok(());
        };
        let Some(tools) = catalogue.with_results() else {
            return Ok(());
        };
        // Boxed to keep the futures of other calls small, since few servers list an `outputSchema`.
        let checked = Box::pin(self.check_result_by(&catalogue, tools, answer)).await;
        checked.map_err(|fault| {
            let message = format!("the result of {tool} does not fit its outputSchema: {fault}");
            CallError::new(CallErrorCode::OutputType, message)
        })
    }

    /// Checks a result, and counts and logs its fault. The fault is returned if the limit `output_schema` is `strict`.
    async fn check_result_by(
        &self,
        catalogue: &Catalogue,
        tools: Arc<ToolList>,
        answer: &Response,
    ) -> Result<(), String> {
        let (namespace, tool) = (&self.facts.namespace, &self.facts.subject);
        let Ok(result) = std::str::from_utf8(answer.payload()) else {
            return Ok(());
        };
        let checked = match tools.structured(tool, result) {
            Ok(None) => ResultCheck::Fits,
            Err(fault) => ResultCheck::Fault(fault),
            Ok(Some(part)) => match tools.check_structured(tool, part, true) {
                ResultCheck::Heavy => {
                    let (tool, part) = (Arc::clone(tool), part.to_owned());
                    let check = move || tools.check_structured(&tool, &part, false);
                    let heavy = heavy_work::run(&self.requester.principal, check).await;
                    // A result that cannot be checked now, because too much other work waits, is passed on.
                    heavy.unwrap_or(ResultCheck::Fits)
                }
                checked => checked,
            },
        };
        let ResultCheck::Fault(fault) = checked else {
            return Ok(());
        };
        self.external
            .note_violation(namespace, ProtocolViolation::OutputSchema);
        if catalogue.is_new_fault(tool, &fault) {
            let name = &namespace.name;
            tracing::warn!(
                namespace = %name,
                tool = &**tool,
                "a result of {tool} of the server of namespace {name} does not fit its outputSchema, and clients may refuse \
                 it: {fault} (configuration key output_schema)"
            );
        }
        match namespace.limits.output_schema {
            OutputSchema::Strict => Err(fault),
            OutputSchema::Off | OutputSchema::Warn => Ok(()),
        }
    }

    /// Mends a page of a list so that strict clients accept it.
    ///
    /// # Errors
    ///
    /// Returns the unchanged page if mending it is too much work for a message thread.
    fn mended(
        &self,
        kind: ListKind,
        opening: &ServerInfo,
        answer: Response,
    ) -> Result<Response, Box<LongPage>> {
        let ResponseOutcome::Result(page) = answer.outcome() else {
            return Ok(answer);
        };
        let namespace = &self.facts.namespace;
        let principal = self.requester.principal.as_ref();
        let Ok(catalogue) = self.external.catalogue(namespace, principal) else {
            return Ok(answer);
        };
        let key = self.page(opening);
        if page.len() > MENDED_HERE_MAX && catalogue.is_to_be_mended(key.as_ref(), &page) {
            return Err(Box::new(LongPage {
                version: catalogue.version(),
                catalogue,
                kind,
                era: opening.era(),
                key,
                page,
                answer,
            }));
        }
        let list = (kind, key.as_ref());
        Ok(
            match catalogue.mended(&namespace.name, list, (&page, opening.era())) {
                Some(page) => answer.with_payload(page),
                None => answer,
            },
        )
    }

    /// Mends a long page outside the I/O threads, so that no messages wait.
    ///
    /// # Errors
    ///
    /// `overloaded`: too many such computations are running and waiting.
    async fn mended_apart(&self, long: Box<LongPage>) -> Result<Response, CallError> {
        let name = self.facts.namespace.name.clone();
        let mend = move || {
            let list = (long.kind, long.key.as_ref());
            let mended = long.catalogue.mended(&name, list, (&long.page, long.era));
            match mended {
                Some(page) => long.answer.with_payload(page),
                None => long.answer,
            }
        };
        heavy_work::run(&self.requester.principal, mend).await
    }

    /// Replaces names of tasks in a response by the names that the client knows.
    fn published(&self, answer: Response) -> Response {
        let names = self.task_names.as_ref();
        match names.and_then(|names| names.published(answer.payload())) {
            Some(published) if !answer.is_error() => answer.with_payload(published.into()),
            _ => answer,
        }
    }

    /// The listener for the process's messages on behalf of this call.
    fn listener(&self, peer: &Peer) -> CallListener {
        CallListener {
            peer: peer.clone(),
            names: self.task_names.clone(),
        }
    }

    /// Creates the call's listener for those messages of a shared process that belong to no call.
    fn process_listener(&self, peer: &Peer) -> ProcessListener {
        ProcessListener {
            owner: self.requester.owner(),
            session: match &self.client {
                Client::Session(session) => Some(Arc::clone(session.tag())),
                Client::Legacy(_) | Client::Modern(_) | Client::Plain => None,
            },
            inbound: Arc::new(self.listener(peer)),
        }
    }

    /// Updates the known tasks from a response, and removes the tasks of other principals from it.
    fn with_tasks(&self, leased: &ConnectionLease, answer: Response) -> Response {
        let (process, principal) = (&leased.process, self.requester.principal.as_ref());
        if process.tasks().await_owner()
            && let Some(call) = answer.call_id()
        {
            let owner = || tasks::TaskOwner {
                caller: self.requester.owner(),
                ear: tasks::message_handler(
                    &self.external,
                    &self.facts.namespace,
                    &self.client,
                    leased,
                ),
            };
            process.tasks().claim(call, owner);
        }
        self.tasks.answered(&self.facts.method, process, &answer);
        match &*self.facts.method {
            tasks::LIST => tasks::own_list(&self.external.key, leased, principal, answer),
            _ => answer,
        }
    }

    /// Translates the response for this client.
    fn for_client(&self, opening: &ServerInfo, answer: Response) -> Response {
        let view = self.access.view(&self.facts.namespace);
        let part = match (&self.client, opening) {
            (Client::Modern(_), ServerInfo::Legacy(initialize)) => {
                let server = reply::LegacyServer::of(initialize);
                let part = match answer.outcome() {
                    ResponseOutcome::Result(result) => {
                        let time = self.facts.namespace.limits.ask_timeout;
                        let sealed =
                            state::sealed(&self.external.key, || self.bound(), &result, time);
                        ResponseOutcome::Result(sealed.map_or(result, Into::into))
                    }
                    error @ ResponseOutcome::Error(_) => error,
                };
                reply::to_modern(&self.facts.method, part, server, view.cache_scope())
            }
            (Client::Session(_) | Client::Legacy(_) | Client::Plain, ServerInfo::Modern(_)) => {
                reply::to_legacy(&self.facts.method, answer.outcome())
            }
            // If client and server have the same era, only lists of tools are changed: tools that the policy hides are removed.
            _ if &*self.facts.method != "tools/list" => return answer,
            _ => answer.outcome(),
        };
        answer.with_payload(match part {
            ResponseOutcome::Result(result) if &*self.facts.method == "tools/list" => {
                match view.of_page(result) {
                    Some(page) => page,
                    None => return unreadable_list(&self.facts.namespace),
                }
            }
            ResponseOutcome::Result(part) | ResponseOutcome::Error(part) => part,
        })
    }

    /// The properties of the request that a sealed state is bound to, so that a different request cannot use the state.
    fn bound(&self) -> BoundRequest<'_> {
        BoundRequest {
            principal: self.requester.principal.as_deref(),
            namespace: &self.facts.namespace.name,
            method: &self.facts.method,
            subject: &self.facts.subject,
            arguments: self.request.bytes(Key::Arguments).unwrap_or_default(),
        }
    }

    /// The page of a list that the request asks for, if it asks for one.
    fn page(&self, opening: &ServerInfo) -> Option<PageKey> {
        let cursor = self.request.raw(Key::Cursor);
        PageKey::of(opening.era(), &self.facts.method, cursor)
    }

    /// The last good list of the server. Only a shared connection's list applies to all clients.
    fn last_good(&self, target: &ConnectionTarget) -> Option<Response> {
        if target.key != ConnectionKey::Shared {
            return None;
        }
        let (pools, namespace) = (&self.external.pools, &self.facts.namespace);
        let server = served(namespace)?;
        let opening = pools.last_opened(server, target.open.era)?;
        let page = self.page(&opening)?;
        let result = self
            .external
            .catalogue(namespace, None)
            .ok()?
            .recall(&page)?;
        pools.fell_back(server, LastGood::List);
        Some(self.for_client(
            &opening,
            Response::from_outcome(ResponseOutcome::Result(result)),
        ))
    }

    /// Runs the call at a modern server in rounds: the server's input requests are sent to the client, until the server has all
    /// answers.
    async fn in_rounds(
        &self,
        process: &ProcessLease,
        peer: &Peer,
    ) -> Result<Response, MissingResponse> {
        let (capabilities, info) = (self.client.capabilities(), self.client.info());
        let gateway = ClientIdentity::gateway();
        let level = match &self.client {
            Client::Session(session) if peer.is_heard() => Some(session.log_level().as_str()),
            _ => None,
        };
        let metadata = ClientMetadata {
            capabilities: capabilities.get(),
            info: info.as_ref().unwrap_or(&gateway.info).get(),
            log_level: level,
        };
        let mut request = params::to_modern(self.request(), metadata).map_err(unreadable)?;
        let mut pages = AskedPages::default();
        for _ in 0..rounds::ROUNDS_MAX {
            let answer = self.send(process, &request, peer).await?;
            let required = match answer.is_error() {
                true => None,
                false => rounds::required(answer.payload())?,
            };
            match required {
                Some(required) => {
                    let settled = required.settle(&request, |asked| {
                        let asked = asked.into_iter().map(|(mut question, answer)| {
                            pages.identify(&mut question);
                            (question, Responder::Round(answer))
                        });
                        peer.ask(asked.collect());
                    });
                    request = settled.await?;
                }
                None => {
                    pages.completed(peer);
                    return Ok(answer);
                }
            }
        }
        Err(CallError::new(
            CallErrorCode::AskFailed,
            "The server asked its client too often",
        )
        .into())
    }

    /// Sends the request, unchanged or as the gateway has edited it.
    pub(super) async fn send(
        &self,
        process: &ProcessLease,
        request: &Request,
        peer: &Peer,
    ) -> Result<Response, MissingResponse> {
        let trace = peer.trace().map(|it| &**it);
        let request = self.requester.traced(request, trace);
        let headers = self.requester.traced_headers(trace);
        let account = peer.answers().map(|answers| CallAccount {
            answers: answers.clone(),
            owner: self.requester.owner(),
            request_id: self
                .requester
                .request_id
                .clone()
                .filter(|_| self.facts.method.is_tool_call()),
        });
        let sent = process.forward(&request, self.sink(peer), headers.as_ref(), account);
        self.answered(sent.map_err(unsent)?).await
    }

    /// Waits for the response; meanwhile the client can cancel the request, and its cancellation message is forwarded.
    async fn answered(&self, mut sent: LinkCall) -> Result<Response, MissingResponse> {
        *self.sent() = Some(sent.canceller());
        let answer = sent.answer().await;
        self.sent().take();
        let answer = answer.map_err(|error| MissingResponse {
            error,
            fate: RequestFate::of(&sent),
        })?;
        match answer.is_error() {
            false if answer.payload().starts_with(b"{") => Ok(answer),
            false => Err(self.no_object(&answer).into()),
            true => Ok(match errors::mended(answer.payload()) {
                Some(error) => answer.with_payload(error.into()),
                None => answer,
            }),
        }
    }

    /// The error for a result that is not a JSON object. No method of MCP has such a result, and clients that get one keep
    /// waiting.
    #[cold]
    fn no_object(&self, answer: &Response) -> CallError {
        let (namespace, method) = (&self.facts.namespace, &self.facts.method);
        self.external
            .note_violation(namespace, ProtocolViolation::NotAMessage);
        let found = match answer.payload().first() {
            Some(b'n') => "null",
            Some(b'"') => "a string",
            Some(b'[') => "a list",
            Some(b't' | b'f') => "true or false",
            _ => "a number",
        };
        let message = format!(
            "the server of namespace {} gave an answer to {} that is no response of MCP: \
             a result that is no object, but {found}",
            namespace.name, &**method
        );
        CallError::new(CallErrorCode::UpstreamError, message)
    }

    fn sent(&self) -> MutexGuard<'_, Option<Canceller>> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sink for messages that belong to the request; `None` if the request has no progress token.
    fn sink(&self, peer: &Peer) -> Option<Arc<dyn NotificationSink>> {
        let has_token = self.request.token().is_some();
        (has_token && peer.is_heard()).then(|| Arc::new(self.listener(peer)) as _)
    }

    /// Returns true if a request is sent again after its process ended or its backend did not accept it. This is allowed if the
    /// request never ran, or may safely run twice.
    fn may_resend(
        &self,
        unanswered: &MissingResponse,
        attempts: usize,
        tried: &[BackendId],
    ) -> bool {
        let namespace = &self.facts.namespace;
        let (retry, is_remote) = match &namespace.upstream {
            UpstreamKind::Remote(server) => (server.spec.retry, true),
            // A request to a stdio server is retried once, at another process.
            _ => (RemoteRetry { max: 1 }, false),
        };
        if unanswered.error.code != CallErrorCode::WorkerUnavailable
            // All backends that may be tried have been tried.
            || (is_remote && unanswered.fate == RequestFate::Unleased)
        {
            return false;
        }
        let unsent = unanswered.fate == RequestFate::Unsent;
        retry::may_resend(retry, attempts.max(tried.len()), unsent, || {
            self.is_harmless()
        }) && (tried.is_empty() || self.external.has_another(namespace, tried))
    }

    /// Returns true if the call may run twice without harm.
    fn is_harmless(&self) -> bool {
        let name = self.request.raw(Key::Name).and_then(json::raw);
        let name = name.and_then(jsonrpc::string);
        let principal = self.requester.principal.as_ref();
        let catalogue = self.external.catalogue(&self.facts.namespace, principal);
        catalogue.is_ok_and(|it| it.is_repeatable(&self.facts.method, name.as_deref()))
    }

    /// Records whether the state of the client's session is lost, in which case the session ends.
    fn note_lost(&self) {
        if let Client::Session(session) = &self.client
            && let Some(server) = served(&self.facts.namespace)
        {
            let lost = self.external.pools.has_lost(server, session.tag());
            self.lost.store(lost, Ordering::Relaxed);
        }
    }
}

/// Sends a ping and waits for its response, which shows that the server has read all messages sent before. An error counts as a
/// response.
async fn has_read(process: &ProcessLease) {
    if let Ok(sent) = process.request("ping", None, None) {
        let _ = timeout(READ_WAIT, sent).await;
    }
}

fn unsent(error: CallError) -> MissingResponse {
    let fate = RequestFate::Unsent;
    MissingResponse { error, fate }
}

pub(super) fn unreadable(error: Unreadable) -> CallError {
    CallError::new(CallErrorCode::InvalidArguments, error.to_string())
}

/// Returns true if a request failed because its server is unavailable or does not accept requests.
fn is_away(error: &CallError) -> bool {
    matches!(
        error.code,
        CallErrorCode::WorkerUnavailable | CallErrorCode::Overloaded
    )
}

/// Error response in place of a page of tools that cannot be parsed. It is sent if some tools are hidden from the caller, since
/// hidden tools cannot be removed from such a page.
fn unreadable_list(namespace: &Namespace) -> Response {
    let name = &namespace.name;
    tracing::warn!(
        namespace = %name,
        "the server of namespace {name} answered tools/list with a result that holds a key twice or no array of tools; \
         clients get an error, since some of the tools are hidden from them"
    );
    let message = "the server's list of tools cannot be read: its result holds a key twice, or `tools` is no array";
    let error = error_object(code::INTERNAL, message);
    Response::from_outcome(ResponseOutcome::Error(error))
}

fn refused(invalid: &state::InvalidState) -> Response {
    let error = error_object(code::INVALID_PARAMS, &invalid.to_string());
    Response::from_outcome(ResponseOutcome::Error(error))
}

/// An error of the gateway as a JSON-RPC error object.
pub(super) fn error_object(code: i32, message: &str) -> Bytes {
    serde_json::json!({ "code": code, "message": message })
        .to_string()
        .into()
}
