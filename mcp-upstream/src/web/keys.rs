//! `/api/keys`: lists, creates and revokes API keys, and shows which tools each key opens. The key itself is contained only in
//! the response to the request that creates it.

use std::sync::Arc;

use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tooldock_base::error::CallError;
use tooldock_base::key_maker::KeyId;
use tooldock_base::scope::ADMIN;
use tooldock_credentials::keys::{KeyRecord, KeyState, KeyStore};
use tooldock_engine::upstream::system::KeySummary;
use tooldock_sessions::caller::Caller;

use super::answer::{Answer, WebFailure, capitalised, json_of, with_status};
use super::request::ApiRequest;
use super::tools::{call, management};
use crate::mcp::Core;

/// Reads all keys, oldest first, on a thread for blocking work.
async fn records(core: &Core) -> Result<Vec<KeyRecord>, WebFailure> {
    let store = management(core)?.keys();
    let read = tokio::task::spawn_blocking(move || store.list()).await;
    let read = read.map_err(|_| WebFailure::refused("The key store was interrupted; try again"))?;
    read.map_err(|error| WebFailure::refused(capitalised(error.to_string())))
}

/// The state of keys that the request filters by; `None` for all. An invalid state is an error about the parameter `state`.
fn wanted_state(request: &ApiRequest) -> Result<Option<KeyState>, WebFailure> {
    let Some(text) = request.parameter("state") else {
        return Ok(None);
    };
    let all = [KeyState::Active, KeyState::Expired, KeyState::Revoked];
    let known = all.into_iter().find(|state| state.as_str() == text);
    known.map(Some).ok_or_else(|| {
        WebFailure::invalid("state", "state must be one of active, expired and revoked")
    })
}

/// Responds with the keys, newest first, and with the scopes that a new key may have.
pub(super) async fn list(core: &Arc<Core>, request: &ApiRequest) -> Answer {
    let wanted = request.wanted();
    let state = wanted_state(request)?;
    let now = std::time::SystemTime::now();
    let mut found = records(core).await?;
    found.reverse();
    found.retain(|key| {
        let is_named = wanted.is_empty()
            || key.principal().to_lowercase().contains(&wanted)
            || key.id.as_str().contains(&wanted);
        is_named && state.is_none_or(|state| key.state(now) == state)
    });
    let scopes = scopes(&management(core)?.keys());
    let shown = |key: KeyRecord| json!(KeySummary::of(&key));
    request.page_of("keys", found, shown, json!({ "scopes": scopes }))
}

/// The scopes with the patterns of tools that each opens.
fn scopes(store: &KeyStore) -> Vec<Value> {
    let table = store.scopes();
    let admin = std::iter::once(json!({"name": ADMIN, "tools": ["*"]}));
    let others = table.patterns();
    let others = others.map(|(name, tools)| json!({"name": name, "tools": tools}));
    admin.chain(others).collect()
}

/// The body of a request for a new key: its name and rights.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct KeyRequest {
    name: String,
    scopes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespaces: Option<Vec<String>>,
    #[serde(default)]
    networks: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
    #[serde(default)]
    limits: Vec<String>,
}

/// Creates a key, and responds with the key itself.
pub(super) async fn create(core: &Arc<Core>, caller: &Caller, request: &ApiRequest) -> Answer {
    if !request.is_private {
        return Err(WebFailure::new(
            StatusCode::FORBIDDEN,
            "insecure_connection",
            "A key is shown over TLS or on this machine only: use https, or `tooldock keys create` on the server.",
        ));
    }
    let wanted: KeyRequest = request.json()?;
    let mut made = call(core, caller, "token_create", &json!(wanted)).await?;
    // The management tool calls the value `token`; the web UI and the command line call it `key`.
    if let Some(members) = made.as_object_mut()
        && let Some(key) = members.remove("token")
    {
        members.insert("key".to_owned(), key);
    }
    with_status(StatusCode::CREATED, &made)
}

/// Parses the id of a key. The error does not repeat the text, since the caller may have sent the key itself.
fn id(text: &str) -> Result<KeyId, WebFailure> {
    text.parse()
        .map_err(|_| WebFailure::invalid("id", "id must be the id of a key, as the list shows it"))
}

fn unknown() -> WebFailure {
    WebFailure::not_found(
        "key_not_found",
        "There is no key of this id; the list shows those there are",
    )
}

async fn record(core: &Core, text: &str) -> Result<KeyRecord, WebFailure> {
    let id = id(text)?;
    let mut all = records(core).await?.into_iter();
    all.find(|key| key.id == id).ok_or_else(unknown)
}

/// Responds with a key and the number of tools that it opens in each namespace.
pub(super) async fn one(core: &Arc<Core>, text: &str) -> Answer {
    let found = record(core, text).await?;
    let mut shown = json!(KeySummary::of(&found));
    match management(core)?.reach_of(found.id.to_string()).await {
        Ok(reach) => {
            shown["opens"] = json!(reach.namespaces);
            shown["notes"] = json!(reach.notes);
        }
        Err(CallError { message, .. }) => {
            shown["opens"] = Value::Null;
            shown["notes"] = json!([message]);
        }
    }
    json_of(&shown)
}

/// Responds with the rules that apply between a key and a namespace, and with the tools that the key opens there.
pub(super) async fn rules(core: &Arc<Core>, caller: &Caller, text: &str, name: &str) -> Answer {
    let found = record(core, text).await?;
    let question = json!({"as": found.id.to_string(), "namespace": name});
    json_of(&call(core, caller, "explain", &question).await?)
}

/// Revokes a key, and the keys that it created.
pub(super) async fn revoke(core: &Arc<Core>, caller: &Caller, text: &str) -> Answer {
    let found = record(core, text).await?;
    let question = json!({"id": found.id.to_string()});
    json_of(&call(core, caller, "token_revoke", &question).await?)
}
