//! `initialize`: the version is settled, the session is opened.

use http::{HeaderName, HeaderValue, StatusCode};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::head::{AcceptFlags, SESSION_HEADER};
use super::{Conversation, acceptable, gauge, store_failure};
use crate::content;
use crate::envelope;
use crate::error::Failure;
use crate::protocol::ProtocolVersion;
use crate::reply::{Head, Reply};
use crate::session::Binding;

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(
        borrow,
        default,
        rename = "protocolVersion",
        deserialize_with = "envelope::present"
    )]
    protocol_version: Option<&'a RawValue>,
}

/// Answers `initialize` and issues the session id (EX-01).
pub(super) async fn answer(
    conversation: &Conversation<'_>,
    accept: AcceptFlags,
    id: &str,
    params: Option<&RawValue>,
) -> Result<Reply, Failure> {
    if conversation.session.is_some() {
        return Err(Failure::Shape(
            "the session is initialized already; send initialize without Mcp-Session-Id".into(),
        ));
    }
    let params: Params<'_> = envelope::fields(params, "params")?;
    let asked = params
        .protocol_version
        .and_then(envelope::string)
        .ok_or_else(|| Failure::InvalidParams("params.protocolVersion must be a string".into()))?;
    let profile = &conversation.caller.profile;
    // An unknown version is answered with our default: the client decides whether it can live with it (MCP-05).
    let version: ProtocolVersion = asked
        .parse()
        .ok()
        .filter(|version| profile.supports(*version))
        .unwrap_or_else(|| profile.default_version());
    acceptable(conversation.caller, accept, version)?;

    let core = conversation.core;
    let binding = Binding {
        namespace: conversation.namespace.name.clone(),
        principal: conversation.caller.principal.clone(),
        version,
    };
    let created = core
        .sessions
        .create(binding, Instant::now())
        .await
        .map_err(|error| store_failure(&error))?;
    core.metrics.sessions_created.inc();
    core.metrics.sessions_evicted.inc_by(created.evicted as u64);
    core.metrics.sessions.set(gauge(core.sessions.count()));

    let session = HeaderValue::from_str(created.session.id().as_str())
        .expect("a session id is visible ASCII");
    let head = Head::json(StatusCode::OK).with(HeaderName::from_static(SESSION_HEADER), session);
    Ok(Reply::Full {
        head,
        body: body(conversation, id, version).into(),
    })
}

fn body(conversation: &Conversation<'_>, id: &str, version: ProtocolVersion) -> Vec<u8> {
    let namespace = &conversation.namespace;
    let mut result = json!({
        "protocolVersion": version,
        "capabilities": { "tools": { "listChanged": true } },
        "serverInfo": {
            "name": format!("tooldock/{}", namespace.name),
            "version": env!("CARGO_PKG_VERSION"),
        },
    });
    if !namespace.description.is_empty() {
        result["instructions"] = namespace.description.as_str().into();
    }
    let mut out = Vec::with_capacity(512);
    content::begin(&mut out, id);
    out.extend_from_slice(result.to_string().as_bytes());
    out.push(b'}');
    out
}
