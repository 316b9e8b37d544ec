//! HTTP APIs as MCP servers: [`ApiBackend`] answers the MCP messages of a session by requests to the API. Sessions, catalogue,
//! pins and limits therefore treat an API like any other remote server.
//!
//! ```text
//! session ── POST tools/call ──▶ ApiBackend ──▶ Operation::request ──▶ backend of the API
//!    ▲                              │ tools/list, initialize: from ApiDocument
//!    └── JSON-RPC response ◀────────┴──────── Operation::result ◀── response of the API
//!    ▲
//!    └── GET: a stream that reports changes of the document
//! ```
//!
//! An API answers `initialize` with MCP version 2025-11-25, and issues no session ids. The crate `tooldock-openapi` maps
//! documents to tools, requests and results; this module adds the messages of MCP, sends the requests, and applies the limits.

mod document;
mod messages;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use serde_json::{Map, Value};
use tokio::time::{Instant, sleep_until};
use tooldock_base::answers::{AnswerAccount, NoAnswerRoom};
use tooldock_base::config::Limits;
use tooldock_base::error::CallError;
use tooldock_base::heavy_work;
use tooldock_base::names::NamespaceName;
use tooldock_openapi::{ApiResponse, failed};
use tooldock_protocol::version::code;
use tooldock_workers::registry::Registry;
use tooldock_workers::remote::{BackendId, RemoteServer};

use self::document::{ApiDocument, LoadedApi};
use self::messages::{ApiMessage, TOOLS_CHANGED, error, initialized, result};
use super::answer::CountedBody;
use super::port::{
    Backend, BackendRequest, BackendResponse, BackendState, Backends, BodyError, HttpClient,
    RequestHeaders, ResponseBody, SendError,
};

/// Number of bytes after which the body of a response with an error status is not read further.
const ERROR_MAX: u64 = 64 * 1024;
/// Size of a response's body, in bytes. Larger bodies are converted outside the I/O threads.
const HEAVY: usize = 64 * 1024;
/// Headers that belong to the MCP message of a session, in lower case. They are not sent to the API, and neither are those that
/// begin with `mcp-`.
const OF_MESSAGES: [&str; 4] = ["accept", "content-type", "content-length", "last-event-id"];

/// HTTP client that wraps the backends of APIs in [`ApiBackend`]s. Returns the backends of other servers as `inner` does.
pub(super) struct ApiClient {
    pub(super) inner: Arc<dyn HttpClient>,
    pub(super) registry: Arc<Registry>,
}

impl HttpClient for ApiClient {
    fn backends(&self, server: &Arc<RemoteServer>) -> Arc<dyn Backends> {
        let inner = self.inner.backends(server);
        if server.spec.api.is_none() {
            return inner;
        }
        Arc::new(ApiBackends {
            document: ApiDocument::new(server, &self.inner, &inner),
            registry: Arc::clone(&self.registry),
            inner,
        })
    }

    fn current(&self, name: &NamespaceName) -> Option<Arc<dyn Backends>> {
        self.inner.current(name)
    }
}

/// The backends of an API, which answer MCP messages.
struct ApiBackends {
    document: Arc<ApiDocument>,
    registry: Arc<Registry>,
    inner: Arc<dyn Backends>,
}

impl ApiBackends {
    /// Wraps a backend in an [`ApiBackend`].
    fn wrapped(&self, inner: Option<Arc<dyn Backend>>) -> Option<Arc<dyn Backend>> {
        Some(Arc::new(ApiBackend {
            document: Arc::clone(&self.document),
            registry: Arc::clone(&self.registry),
            inner: inner?,
        }))
    }
}

impl Backends for ApiBackends {
    fn pick(&self, avoid: &[BackendId], hash: u64) -> Option<Arc<dyn Backend>> {
        self.wrapped(self.inner.pick(avoid, hash))
    }

    fn can_pick(&self, avoid: &[BackendId]) -> bool {
        self.inner.can_pick(avoid)
    }

    fn get(&self, id: &BackendId) -> Option<Arc<dyn Backend>> {
        self.wrapped(self.inner.get(id))
    }

    fn states(&self) -> Vec<BackendState> {
        self.inner.states()
    }
}

/// A backend of an API that answers MCP messages by requests to the API (`inner`).
struct ApiBackend {
    document: Arc<ApiDocument>,
    /// Registry with the limits of the API's namespace.
    registry: Arc<Registry>,
    inner: Arc<dyn Backend>,
}

#[async_trait]
impl Backend for ApiBackend {
    fn id(&self) -> &BackendId {
        self.inner.id()
    }

    fn accepts_new(&self) -> bool {
        self.inner.accepts_new()
    }

    fn is_healthy(&self) -> bool {
        self.inner.is_healthy()
    }

    async fn send(&self, request: BackendRequest) -> Result<BackendResponse, SendError> {
        match request.method {
            Method::POST => self.answered(request).await,
            Method::GET => Ok(self.changes(request.on_behalf_of)),
            _ => Ok(self.response(StatusCode::METHOD_NOT_ALLOWED, None, Bytes::new())),
        }
    }
}

impl ApiBackend {
    /// Answers an MCP message.
    async fn answered(&self, request: BackendRequest) -> Result<BackendResponse, SendError> {
        let json =
            |body: String| self.response(StatusCode::OK, Some("application/json"), body.into());
        let Some(message) = ApiMessage::of(&request.body) else {
            // Notifications need no answer, and an API sends no requests that a response could belong to.
            return Ok(self.response(StatusCode::ACCEPTED, None, Bytes::new()));
        };
        let id = message.id.get().to_owned();
        let is_known =
            ["initialize", "ping", "tools/list", "tools/call"].contains(&&*message.method);
        if !is_known {
            return Ok(json(error(
                &id,
                code::METHOD_NOT_FOUND,
                "an API has tools alone",
            )));
        }
        if message.method == "ping" {
            return Ok(json(result(&id, "{}")));
        }
        let principal = request.on_behalf_of.as_ref();
        if message.method == "initialize" {
            self.document.refreshed(principal).await;
        }
        let loaded = match self.document.loaded(principal).await? {
            Ok(loaded) => loaded,
            Err(why) => return Ok(json(error(&id, code::INTERNAL, &why))),
        };
        Ok(json(match &*message.method {
            "initialize" => result(&id, &initialized(loaded.api.title())),
            "tools/list" => match loaded.page(message.cursor().as_deref()) {
                Some(page) => result(&id, page),
                None => error(&id, code::INVALID_PARAMS, "the cursor is not known"),
            },
            _ => {
                let (name, arguments) = message.call();
                if loaded.api.operation(&name).is_none() {
                    let message = format!("there is no tool {name:?}");
                    return Ok(json(error(&id, code::INVALID_PARAMS, &message)));
                }
                let called = self.called(loaded, name, arguments, request).await?;
                result(&id, &called)
            }
        }))
    }

    /// Calls an operation. Returns the result of the tool call as JSON.
    async fn called(
        &self,
        loaded: Arc<LoadedApi>,
        name: String,
        arguments: Map<String, Value>,
        request: BackendRequest,
    ) -> Result<String, SendError> {
        let Some(operation) = loaded.api.operation(&name) else {
            return Ok(failed("the tool is gone").to_string());
        };
        let built = match operation.request(&loaded.base, &arguments) {
            Ok(built) => built,
            Err(error) => return Ok(failed(&error.to_string()).to_string()),
        };
        let principal = request.on_behalf_of.clone();
        let answers = request.answers.clone();
        let sent = BackendRequest {
            method: built.method,
            target: Some(built.target),
            headers: headers(&request.headers, built.headers).into(),
            body: built.body.into(),
            ..request
        };
        let mut response = self.inner.send(sent).await?;
        let allowed = self.max_result(&name);
        let max = match response.status.is_success() {
            true => allowed,
            false => ERROR_MAX,
        };
        let answers = answers.as_ref();
        let body = match read(&mut response, max, answers).await {
            Ok(body) => body,
            Err(Unread::TooLarge(body)) if !response.status.is_success() => body,
            Err(Unread::NoRoom(no_room)) => {
                return Ok(failed(&CallError::from(no_room).message).to_string());
            }
            Err(Unread::TooLarge(_)) => {
                let text = format!(
                    "The response is larger than {max} bytes (limits.max_result): ask for less at once."
                );
                return Ok(failed(&text).to_string());
            }
            Err(Unread::Cut(error)) => {
                return Ok(failed(&format!("The API did not answer: {error}.")).to_string());
            }
        };
        let (status, headers, size) = (response.status, response.headers, body.len());
        let convert = move || {
            let response = ApiResponse {
                status,
                headers: &headers,
                body: &body,
            };
            let operation = loaded.api.operation(&name);
            let result = operation.map(|it| it.result(&response).to_string());
            fitting(result.unwrap_or_default(), allowed)
        };
        match size > HEAVY {
            false => Ok(convert()),
            true => {
                let converted = heavy_work::run(&principal, convert).await;
                Ok(converted.unwrap_or_else(|error| failed(&error.message).to_string()))
            }
        }
    }

    /// Returns the maximum size of a tool's result, in bytes: `limits.max_result` of the tool or its namespace.
    fn max_result(&self, tool: &str) -> u64 {
        let default = || Limits::default().max_result.as_u64();
        let namespace = self.registry.find(self.document.namespace());
        namespace.map_or_else(default, |it| it.max_result_of(tool))
    }

    /// Returns the event stream that reports changed tools.
    fn changes(&self, principal: Option<Arc<str>>) -> BackendResponse {
        let document = Arc::clone(&self.document);
        let body = ChangesBody {
            seen: document.revision(),
            due: Instant::now() + document.interval(),
            document,
            principal,
        };
        let mut response = self.response(StatusCode::OK, Some("text/event-stream"), Bytes::new());
        response.body = Box::new(body);
        response
    }

    /// Builds a response of the backend. `kind`: the value of `Content-Type`.
    fn response(
        &self,
        status: StatusCode,
        kind: Option<&'static str>,
        body: Bytes,
    ) -> BackendResponse {
        let kind = kind.map(|it| (header::CONTENT_TYPE, HeaderValue::from_static(it)));
        BackendResponse {
            backend: self.inner.id().clone(),
            status,
            headers: kind.into_iter().collect(),
            body: Box::new(WholeBody(Some(body))),
        }
    }
}

/// Returns the headers of a request to the API: the operation's headers (`own`), and the headers of the client and the gateway
/// that do not belong to the MCP message (`passed`). The operation's headers replace passed ones of the same name.
fn headers(passed: &RequestHeaders, own: HeaderMap) -> HeaderMap {
    let mut all = own.clone();
    for (name, value) in passed.iter() {
        let is_of_message =
            OF_MESSAGES.contains(&name.as_str()) || name.as_str().starts_with("mcp-");
        if !is_of_message && !own.contains_key(name) {
            all.append(name, value.clone());
        }
    }
    all
}

/// Returns the result, or a failure if the result has more than `max` bytes. A response below the limit can exceed it as a
/// result, since structured content repeats its text.
fn fitting(result: String, max: u64) -> String {
    let size = result.len();
    match size as u64 > max {
        false => result,
        true => failed(&format!(
            "The result has {size} bytes as text and as structured content, and {max} are allowed (limits.max_result): ask for \
             less at once."
        ))
        .to_string(),
    }
}

/// Reason why a body was not read completely.
enum Unread {
    /// The body is larger than the limit. Contains the beginning of the body.
    TooLarge(Bytes),
    /// All buffered responses together have reached their memory limit.
    NoRoom(NoAnswerRoom),
    /// The connection failed before the end of the body.
    Cut(BodyError),
}

/// Reads the body of a response. Stops with an error once more than `max` bytes have arrived. The bytes are added to `answers`,
/// the total over all responses. Unlike [`answer::body`], keeps the beginning of a body that is too large, which error texts show.
async fn read(
    response: &mut BackendResponse,
    max: u64,
    answers: Option<&AnswerAccount>,
) -> Result<Bytes, Unread> {
    let mut counted = CountedBody::new(answers);
    let mut all = BytesMut::new();
    while let Some(piece) = response.body.chunk().await.map_err(Unread::Cut)? {
        all.extend_from_slice(&piece);
        if all.len() as u64 > max {
            return Err(Unread::TooLarge(all.freeze()));
        }
        counted.has(all.len()).map_err(Unread::NoRoom)?;
    }
    Ok(all.freeze())
}

/// A body that is returned in a single chunk.
struct WholeBody(Option<Bytes>);

#[async_trait]
impl ResponseBody for WholeBody {
    async fn chunk(&mut self) -> Result<Option<Bytes>, BodyError> {
        Ok(self.0.take().filter(|it| !it.is_empty()))
    }

    fn is_over(&self) -> bool {
        self.0.is_none()
    }
}

/// Body of the event stream that reports changed tools. While a session reads it, the document is read again at its interval.
struct ChangesBody {
    document: Arc<ApiDocument>,
    principal: Option<Arc<str>>,
    /// Revision of the document when the stream began or last reported a change.
    seen: u64,
    /// Time of the next look at the document.
    due: Instant,
}

#[async_trait]
impl ResponseBody for ChangesBody {
    async fn chunk(&mut self) -> Result<Option<Bytes>, BodyError> {
        loop {
            let revision = self.document.revision();
            if revision != self.seen {
                self.seen = revision;
                return Ok(Some(Bytes::from_static(TOOLS_CHANGED.as_bytes())));
            }
            sleep_until(self.due).await;
            self.document.check(self.principal.as_ref()).await;
            self.due = Instant::now() + self.document.interval();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_that_grows_beyond_its_limit_is_a_failure_of_the_tool() {
        assert_eq!(fitting("{}".to_owned(), 2), "{}");
        let failure = fitting("x".repeat(21), 20);
        assert!(failure.contains("\"isError\":true"), "{failure}");
        assert!(failure.contains("has 21 bytes"), "{failure}");
    }

    #[test]
    fn each_value_of_a_repeated_header_is_passed_on() {
        let map = |pairs: &[(&'static str, &'static str)]| {
            let mut map = HeaderMap::new();
            for (name, value) in pairs {
                let name = http::HeaderName::from_static(name);
                map.append(name, HeaderValue::from_static(value));
            }
            map
        };
        let passed = map(&[
            ("x-tag", "a"),
            ("x-tag", "b"),
            ("accept", "text/event-stream"),
            ("mcp-session-id", "1"),
            ("x-own", "of the client"),
        ]);
        let own = map(&[("accept", "application/json"), ("x-own", "argument")]);
        let expected = map(&[
            ("accept", "application/json"),
            ("x-own", "argument"),
            ("x-tag", "a"),
            ("x-tag", "b"),
        ]);
        assert_eq!(headers(&passed.into(), own), expected);
    }
}
