//! Handles `initialize`: negotiates the protocol version, reads the client's capabilities, and opens a session.
//!
//! Over HTTP+SSE the session exists already, and only the client's description is added.

use std::borrow::Cow;
use std::sync::Arc;

use http::{HeaderName, HeaderValue, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;
use tooldock_engine::upstream::CallContext;
use tooldock_sessions::session::client;
use tooldock_sessions::session::{
    Binding, ClientFacts, PatchRefused, Session, SessionPatch, SessionTransport, UnclaimedSession,
};

use super::head::{AcceptFlags, SESSION_HEADER};
use super::{Core, acceptable, create_session, forget_session};
use crate::jsonrpc::{self, RequestError};
use crate::protocol::ProtocolVersion;
use crate::reply::{Head, Reply};

#[derive(Deserialize)]
struct InitializeParams<'a> {
    #[serde(
        borrow,
        default,
        rename = "protocolVersion",
        deserialize_with = "jsonrpc::present"
    )]
    protocol_version: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "jsonrpc::present")]
    capabilities: Option<&'a RawValue>,
    #[serde(
        borrow,
        default,
        rename = "clientInfo",
        deserialize_with = "jsonrpc::present"
    )]
    client_info: Option<&'a RawValue>,
}

/// The parameters of `initialize` that the gateway reads.
pub(super) struct InitializeRequest<'a> {
    pub(super) version: Cow<'a, str>,
    pub(super) client: ClientFacts,
}

/// Answers `initialize` and returns the new session's id in a header (EX-01).
pub(super) async fn answer(
    core: &Arc<Core>,
    cx: &CallContext<'_>,
    accept: AcceptFlags,
    id: &str,
    params: Option<&RawValue>,
) -> Result<Reply, RequestError> {
    if cx.session().is_some() {
        return Err(again());
    }
    let asked = read(params)?;
    let profile = &cx.caller.profile;
    let version = asked.version.parse().ok();
    let version = version.filter(|version| profile.supports(*version));
    // An unknown version is answered with the listener's default version; the client decides if it can use that (MCP-05).
    let version = version.unwrap_or_else(|| profile.default_version());
    acceptable(cx.caller, accept, version)?;

    let binding = Binding {
        namespace: cx.namespace.name.clone(),
        principal: cx.caller.principal.clone(),
        version,
        transport: SessionTransport::Streamable,
    };
    let session = create_session(core, binding, Some(asked.client)).await?;
    // Dropping this removes the session if the client disconnects before it has the response.
    let unclaimed = UnclaimedSession::new(Arc::clone(core) as _, &session);
    let opened = body(cx, &session, id, version).await;
    let body = match opened {
        Ok(body) => body,
        Err(failure) => {
            // The session is removed, since its response could not be built.
            forget_session(core, &session).await?;
            return Err(failure);
        }
    };
    let value =
        HeaderValue::from_str(session.id().as_str()).expect("a session id is visible ASCII");
    let head = Head::json(StatusCode::OK).with(HeaderName::from_static(SESSION_HEADER), value);
    Ok(Reply::Opening {
        head,
        body: body.into(),
        session: unclaimed,
    })
}

/// Creates the error for an `initialize` in a session that is initialized already.
pub(super) fn again() -> RequestError {
    RequestError::Shape(
        "the session is initialized already; send initialize without Mcp-Session-Id".into(),
    )
}

/// Builds the response to `initialize` in a session of HTTP+SSE. Its version is 2024-11-05 or any that the listener serves.
pub(crate) async fn over_sse(
    core: &Arc<Core>,
    cx: &CallContext<'_>,
    session: &Arc<Session>,
    id: &str,
    params: Option<&RawValue>,
) -> Result<Vec<u8>, RequestError> {
    let asked = read(params)?;
    let profile = &cx.caller.profile;
    let version = asked.version.parse().ok();
    let version = version
        .filter(|version| *version == ProtocolVersion::V2024_11_05 || profile.supports(*version));
    let version = version.unwrap_or_else(|| profile.default_version());
    let client = asked.client;
    let opened = SessionPatch::Initialize { version, client };
    core.changes.commit(session, opened).await?;
    let body = body(cx, session, id, version).await?;
    cx.upstream.stream_opened(&cx.namespace, session);
    Ok(body)
}

/// Reads the parameters of `initialize`.
pub(super) fn read<'a>(
    params: Option<&'a RawValue>,
) -> Result<InitializeRequest<'a>, RequestError> {
    let params: InitializeParams<'a> = jsonrpc::fields(params, "params")?;
    let version = params
        .protocol_version
        .and_then(jsonrpc::string)
        .ok_or_else(|| {
            RequestError::InvalidParams("params.protocolVersion must be a string".into())
        })?;
    jsonrpc::object(params.capabilities, "params.capabilities")?;
    jsonrpc::object(params.client_info, "params.clientInfo")?;
    // The length is checked before any state is created or changed for the client.
    client::check(params.capabilities, params.client_info).map_err(PatchRefused::from)?;
    let capabilities = match params.capabilities {
        Some(capabilities) => capabilities.to_owned(),
        None => RawValue::from_string("{}".into()).expect("an empty object is JSON"),
    };
    Ok(InitializeRequest {
        version,
        client: ClientFacts {
            capabilities: capabilities.into(),
            info: params.client_info.map(|info| info.to_owned().into()),
        },
    })
}

async fn body(
    cx: &CallContext<'_>,
    session: &Arc<Session>,
    id: &str,
    version: ProtocolVersion,
) -> Result<Vec<u8>, RequestError> {
    let answered = cx.upstream.initialize(cx, id, session, version);
    answered.get().await.map_err(RequestError::Upstream)
}
