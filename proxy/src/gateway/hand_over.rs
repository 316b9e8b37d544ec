//! Handles an admitted request: reads its body, builds the caller, calls the service, and writes the service's reply.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, IF_NONE_MATCH};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use pingora_http::RequestHeader;
use pingora_proxy::Session;
use serde::Deserialize;
use serde::de::IgnoredAny;
use smallvec::SmallVec;
use tooldock_filters::route::RouteNamespace;
use tooldock_filters::{AdmittedHead, Fields, Reason, Rejection, RouteId, namespace, network};
use tooldock_sessions::caller::{Caller, Visibility};
use tooldock_sessions::profile::Profile;
use tooldock_upstream::reply::Reply;
use tooldock_upstream::service::AdmittedRequest;
use tooldock_upstream::web::WebRequest;
use tooldock_upstream::{AcceptFlags, Carrier, McpHead, MirroredHeaders};
use tooldock_workers::remote::is_of_the_gateway;

use super::admit::{NamespaceServer, tls_of};
use super::credential_validity::CredentialValidity;
use super::{Gateway, RequestContext, resource};
use crate::access_log::Pending as Logged;
use crate::body::{self, Body, BodyError, BodyLimits};
use crate::replicas::RequestFacts;
use crate::respond::{self, BodyRest, ClientGone, Envelope};
use crate::stream::{End, LongStream, first_of};
use crate::telemetry;
use crate::timeout::fast_timeout;
use crate::web_session::LoginEnd;

/// Time for which a call runs before the gateway begins to watch whether its client disconnects. Most calls have finished by
/// then, and watching costs more than a tenth of a call's CPU time.
const WATCH_AFTER: Duration = Duration::from_millis(50);

impl Gateway {
    /// Reads the request's body within the limits of the configuration; an `Err` is the refusal for the client.
    pub(super) async fn body(
        &self,
        session: &mut Session,
        passage: &RequestContext,
    ) -> Result<Body, Rejection> {
        self.body_within(session, passage, passage.rules.bodies)
            .await
    }

    /// Reads the request's body within the given limits; an `Err` is the refusal for the client.
    pub(super) async fn body_within(
        &self,
        session: &mut Session,
        passage: &RequestContext,
        limits: BodyLimits,
    ) -> Result<Body, Rejection> {
        let session = &mut session.downstream_session;
        let read = async {
            if body::awaits_continue(session, limits) {
                let _paused = passage.in_flight.paused();
                let invited = session.write_continue_response().await;
                invited.map_err(|_| BodyError::Broken)?;
            }
            body::read(session, limits, &self.metrics.bodies).await
        };
        read.await.map_err(|error| match error {
            BodyError::TooLarge => Rejection::body_too_large(limits.bytes as u64),
            BodyError::NoRoom => Rejection::bodies_full(),
            BodyError::TimedOut => Rejection::new(
                Reason::BodyTimeout,
                "The request body did not arrive in time.",
            ),
            BodyError::Broken => Rejection::new(
                Reason::BadRequest,
                "The request body broke off or is not framed as HTTP.",
            ),
        })
    }

    /// Reads the body if the route has one, calls the service, and returns its reply; `None` if the client has disconnected. An
    /// `Err` is the refusal for the client.
    pub(super) async fn hand_over(
        &self,
        session: &mut Session,
        passage: &mut RequestContext,
        mut admitted: AdmittedHead,
    ) -> Result<Option<Reply>, Rejection> {
        let route = admitted.route;
        let takes_body = route.takes_body(&session.req_header().method);
        let Body {
            bytes: body,
            held: _held,
        } = if takes_body {
            let body = self.body(session, passage).await?;
            if let Some(mut again) = self.admit_after_body(session, passage)? {
                passage.permit = again.permit.take();
                admitted = again;
            }
            body
        } else {
            Body::EMPTY
        };
        if let Some(logged) = &mut passage.logged
            && route.is_mcp()
        {
            logged.message(&body);
        }
        let admission = &passage.rules.admission;
        if admission.counts_messages(&admitted, &session.req_header().method)
            && waits_for_an_answer(&body)
        {
            passage.permit = admission.enter(&admitted)?;
        }
        if let Some(sink) = &self.traces {
            let (header, started) = (session.req_header(), passage.started);
            let route = (route.id, route.label);
            passage.trace = telemetry::begin(sink, route, &header.method, &header.headers, started);
        }
        let caller = Caller {
            namespace: admitted.namespace.take(),
            principal: admitted
                .principal
                .as_ref()
                .map(|principal| Arc::clone(principal.name())),
            client: admitted.client,
            request_id: passage.request_id.clone().unwrap_or_default(),
            profile: passage
                .profile
                .take()
                .unwrap_or_else(|| Arc::new(Profile::core())),
            manager: admitted.manager,
            // The headers are only copied if they may be sent to a remote server.
            headers: (passage.leads_to != NamespaceServer::Processes)
                .then(|| Arc::new(headers_for_servers(session, &admitted))),
            visibility: visibility(&admitted, passage.leads_to),
            grant: admitted
                .principal
                .as_ref()
                .and_then(|it| it.grant().map(Arc::clone)),
            maker: admitted
                .principal
                .as_ref()
                .map(|it| it.maker().clone())
                .unwrap_or_default(),
            relay: None,
            toolset: toolset(route.namespace, session.req_header().uri.query()),
            note: passage.logged.as_mut().and_then(Logged::call_note),
            key_limits: admitted
                .principal
                .as_ref()
                .and_then(|it| it.shared_limits()),
            budget: passage.budget.clone(),
            status_only: admitted.status_only,
            trace: passage.trace.clone(),
        };
        let header = session.req_header();
        let session_id = match route.namespace {
            RouteNamespace::OrSession => namespace::session_id(header)?.map(Cow::into_owned),
            _ => None,
        };
        let request = AdmittedRequest {
            route: route.id,
            method: header.method.clone(),
            head: std::mem::take(&mut passage.head),
            session: session_id,
            tool: admitted.tool,
            rest: admitted.rest,
            known: if_none_match(&header.headers).filter(|_| route.id == RouteId::Ui),
            namespace_in_path: admitted.namespace_in_path,
            accepts_v1: !route.is_mcp() && accepts_v1(&header.headers),
            query: header
                .uri
                .query()
                .filter(|_| !route.is_mcp())
                .map(str::to_owned),
            body,
            web: (route.id == RouteId::Api).then(|| Box::new(web_request(session, passage))),
        };
        let reply = match &self.replicas {
            Some(replicas) if may_be_elsewhere(&request) => {
                let met = RequestFacts {
                    listener: passage.listener(session).map_err(|_| gone())?,
                    peer: passage.peer(session),
                    certificate: passage.shown_certificate(session),
                    request_id: passage.request_id(),
                };
                let arrival = passage.arrival.as_deref();
                let forwarded = replicas.forwarded(session.req_header(), arrival, met);
                let call = replicas.answer(&self.service, caller, request, forwarded);
                while_client_stays(session, Box::pin(call)).await
            }
            _ => while_client_stays(session, self.service.handle(caller, request)).await,
        };
        if let Some(Reply::Events { .. }) = &reply {
            self.admit_again(session, passage)?;
        }
        Ok(reply)
    }

    /// Writes a reply of the service to the client.
    pub(super) async fn write(
        &self,
        session: &mut Session,
        passage: &mut RequestContext,
        reply: Reply,
        envelope: &Envelope<'_>,
    ) -> Result<HandOverOutcome, ClientGone> {
        // When the process stops, Pingora turns keep-alive off for new requests only, so it is turned off here for running ones.
        if *self.stops.borrow() {
            session.set_keepalive(None);
        }
        let _answer = passage.trace.as_ref().map(|it| it.part("answer"));
        let unread = !session.is_body_done();
        let reply = resource::with_metadata_url(session, passage, reply);
        if let (Some(code), Some(logged)) = (reply.head().refused, &mut passage.logged) {
            logged.entry.because(code);
        }
        // The permit is released before the response is written, so that the client's next request finds it free.
        if matches!(reply, Reply::Full { .. } | Reply::Opening { .. }) {
            passage.permit = None;
        }
        match reply {
            Reply::Full { head, body } if unread => {
                Box::pin(respond::unread(session, head, body, envelope)).await?;
            }
            Reply::Full { head, body } => respond::full(session, head, body, envelope).await?,
            Reply::Opening {
                head,
                body,
                session: opened,
            } => {
                respond::full(session, head, body, envelope).await?;
                opened.delivered();
            }
            Reply::Body { head, body } => {
                // This is a stream of another replica's session, which does not count as a concurrent request.
                if session.req_header().method == Method::GET {
                    passage.permit = None;
                }
                let rest = match unread {
                    true => respond::leave_body(session),
                    false => BodyRest::LeftAlone,
                };
                Box::pin(respond::body(session, head, body, envelope)).await?;
                rest.discard(session).await;
            }
            Reply::Elsewhere { unreachable, .. } => {
                let (head, body) = (unreachable.head, unreachable.body);
                respond::full(session, head, body, envelope).await?;
            }
            Reply::Events {
                head,
                events,
                guards,
            } => {
                if unread && !respond::read_past(session).await {
                    return Err(ClientGone);
                }
                let status = head.status.as_u16();
                let request_id = passage.request_id.clone().unwrap_or_default();
                let lasting = passage.lasting.as_ref();
                let login = passage.login.as_deref();
                let fields = Fields::of(&session.req_header().headers);
                let stream = LongStream {
                    head,
                    events,
                    guards,
                    revoked: first_of(
                        lasting.and_then(|it| it.taken_back(self, &fields)),
                        login.map(|it| Box::pin(it.until_ended()) as End),
                    ),
                    lasts: [
                        passage.certificate_counts_for(session),
                        lasting.and_then(CredentialValidity::left),
                        login.map(LoginEnd::left),
                    ]
                    .into_iter()
                    .flatten()
                    .min(),
                };
                let logged = &mut passage.logged;
                // The future is boxed to keep the future of usual responses small.
                Box::pin(stream.start(session, envelope, &request_id, logged, &self.metrics))
                    .await?;
                passage.left_with = Some(status);
                // An open stream is no longer counted as a request; streams have a separate limit.
                passage.permit = None;
                return Ok(HandOverOutcome::Left);
            }
        }
        Ok(HandOverOutcome::Whole)
    }
}

/// Returns true if a request may belong to a session or a suspended call that another replica has.
fn may_be_elsewhere(request: &AdmittedRequest) -> bool {
    matches!(request.route, RouteId::Mcp | RouteId::Messages)
}

/// Returns the refusal of a forwarded request whose listener was removed by a reload meanwhile.
fn gone() -> Rejection {
    Rejection::new(Reason::NotFound, "The listener of this request is gone.")
}

/// Copies the request headers that may be sent to remote servers. Credentials for the gateway are removed, whatever the
/// configuration. Only an issuer's access token is kept, for servers with `credentials: pass`.
fn headers_for_servers(session: &Session, admitted: &AdmittedHead) -> HeaderMap {
    let mut headers = session.req_header().headers.clone();
    let grant = admitted.principal.as_ref().and_then(|it| it.grant());
    let has_access_token = grant.is_some_and(|grant| grant.token_scopes().is_some());
    let stays = |name: &HeaderName| {
        is_of_the_gateway(name.as_str()) && !(has_access_token && *name == AUTHORIZATION)
    };
    let staying: SmallVec<[HeaderName; 2]> =
        headers.keys().filter(|it| stays(it)).cloned().collect();
    for name in &staying {
        headers.remove(name);
    }
    headers
}

/// Returns the data of a request that the web UI's handlers need.
fn web_request(session: &Session, passage: &RequestContext) -> WebRequest {
    let header = session.req_header();
    let text = |name| header.headers.get(name).and_then(|it| it.to_str().ok());
    let peer = passage.peer(session);
    WebRequest {
        path: header.uri.path().to_owned(),
        content_type: text(CONTENT_TYPE).unwrap_or_default().to_owned(),
        wants_events: text(ACCEPT).is_some_and(|accept| accept.contains("text/event-stream")),
        is_tls: tls_of(session).is_some(),
        // A proxy whose PROXY protocol header names no client may forward clients of other machines, so it does not count as
        // local.
        is_local: (peer.address.is_loopback() || peer.address == network::UNIX)
            && !peer.names_no_client,
    }
}

/// Returns the value of the client's `If-None-Match`.
fn if_none_match(headers: &HeaderMap) -> Option<String> {
    let known = headers.get(IF_NONE_MATCH)?.to_str().ok()?;
    Some(known.to_owned())
}

/// Returns true if a client requests the response formats of ToolDock v1 (K-21).
fn accepts_v1(headers: &HeaderMap) -> bool {
    const V1: &str = "application/vnd.tooldock.v1+json";
    let names = |value: &HeaderValue| {
        let ranges = value.to_str().unwrap_or_default().split(',');
        let mut types = ranges.map(|range| range.split(';').next().unwrap_or_default().trim());
        types.any(|name| name.eq_ignore_ascii_case(V1))
    };
    headers.get_all(ACCEPT).iter().any(names)
}

/// Returns the handle of a toolset in a query such as `/mcp/toolman?toolset=…`, without decoding. Only routes of a single
/// namespace accept it. Routes of OpenAPI documents do not, since the paths in a document would lead to other tools.
fn toolset(namespace: RouteNamespace, query: Option<&str>) -> Option<Arc<str>> {
    let is_of_one = matches!(
        namespace,
        RouteNamespace::Required | RouteNamespace::OrSession
    );
    let mut pairs = query.filter(|_| is_of_one)?.split('&');
    let found = pairs.find_map(|pair| pair.strip_prefix("toolset="));
    found.filter(|handle| !handle.is_empty()).map(Into::into)
}

/// Returns true if a message counts towards the limit on concurrent requests. Notifications and responses do not, since running
/// calls may wait for them. `ping` does not, since clients send it to check the server while calls run. An unreadable message
/// counts.
fn waits_for_an_answer(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Message<'a> {
        #[serde(borrow, default)]
        method: Option<Cow<'a, str>>,
        #[serde(default)]
        id: Option<IgnoredAny>,
    }
    let asks = |message: &Message<'_>| {
        let method = message.method.as_deref();
        message.id.is_some() && method.is_some_and(|method| method != "ping")
    };
    let batch = body.trim_ascii_start().starts_with(b"[");
    let asks = if batch {
        serde_json::from_slice::<Vec<Message<'_>>>(body).map(|batch| batch.iter().any(asks))
    } else {
        serde_json::from_slice::<Message<'_>>(body).map(|message| asks(&message))
    };
    asks.unwrap_or(true)
}

/// How far a request was handled when Pingora's phase ended.
pub(super) enum HandOverOutcome {
    /// The complete response was written.
    Whole,
    /// The head was written; the rest is sent as a long stream.
    Left,
}

/// Runs a call. If its client disconnects first, the call is dropped and `None` is returned. The engine decides what happens to a
/// dropped call: a call in a legacy session continues, any other is cancelled (DESIGN §3, *Disconnect*).
///
/// Two events end the wait: the call finishes, or the client closes its connection or stream. Bytes that a client sends before
/// its response arrives do not mean that it disconnected. They end the watch, and the connection is closed after this response.
async fn while_client_stays(
    session: &mut Session,
    mut call: impl Future<Output = Reply> + Unpin,
) -> Option<Reply> {
    if let Ok(reply) = fast_timeout(WATCH_AFTER, &mut call).await {
        return Some(reply);
    }
    tokio::select! {
        reply = &mut call => return Some(reply),
        idle = session.downstream_session.read_body_or_idle(true) => match idle {
            Err(error) if respond::sent_ahead(&error) => session.set_keepalive(None),
            _ => return None,
        },
    }
    Some(call.await)
}

/// Returns the namespaces that a token opens. They are only needed for requests that concern more than one namespace.
fn visibility(admitted: &AdmittedHead, leads_to: NamespaceServer) -> Visibility {
    let one_was_admitted = matches!(
        admitted.route.namespace,
        RouteNamespace::Required | RouteNamespace::OrSession
    ) && leads_to != NamespaceServer::OtherNamespaces;
    match &admitted.principal {
        Some(principal) if !one_was_admitted => {
            let principal = Arc::clone(principal);
            Visibility::Only(Arc::new(move |namespace| principal.opens(namespace)))
        }
        _ => Visibility::All,
    }
}

/// Collects the headers of an MCP request for the service.
pub(super) fn mcp_head(
    header: &RequestHeader,
    fields: &Fields<'_>,
    admitted: &AdmittedHead,
) -> McpHead {
    let text = |value: &HeaderValue| {
        let value = value.as_bytes();
        // The slower, lossy conversion is only needed for values that are not UTF-8.
        match std::str::from_utf8(value) {
            Ok(text) => text.to_owned(),
            Err(_) => String::from_utf8_lossy(value).into_owned(),
        }
    };
    let version = fields.protocol_version().map(text);
    let mirrors = MirroredHeaders::wanted(version.as_deref(), fields.names_method());
    McpHead {
        session: fields.session_id().map(text),
        accept: AcceptFlags {
            json_named: admitted.accept.json_named,
            sse_named: admitted.accept.sse_named,
            json_acceptable: admitted.accept.json_acceptable,
            sse_acceptable: admitted.accept.sse_acceptable,
        },
        // Only streams can be resumed, which are opened by GET.
        last_event_id: (header.method == Method::GET)
            .then(|| fields.last_event_id().map(text))
            .flatten(),
        mirrored: mirrors.then(|| Box::new(MirroredHeaders::from_headers(&header.headers))),
        carrier: Carrier::Http,
        version,
    }
}

#[cfg(test)]
mod tests {
    use super::waits_for_an_answer;

    #[test]
    fn requests_wait_for_an_answer_and_what_running_calls_wait_for_does_not() {
        for message in [
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}"#,
            r#"{"jsonrpc":"2.0","id":"a","method":"tools\/call"}"#,
            r#" [{"method":"notifications/x"},{"id":2,"method":"tools/list"}]"#,
            "no message",
            "",
        ] {
            assert!(waits_for_an_answer(message.as_bytes()), "{message}");
        }
        for message in [
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{"action":"accept"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"no"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#,
            r#"[{"id":1,"result":{}},{"method":"notifications/x"}]"#,
        ] {
            assert!(!waits_for_an_answer(message.as_bytes()), "{message}");
        }
    }
}
