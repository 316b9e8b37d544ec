//! The initialization of a client of an external server: returns the server's description of itself, as a leased process sent it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tokio::time::timeout;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_protocol::bridge::server_info;
use tooldock_protocol::version::{Era, ProtocolVersion, ServerInfo};
use tooldock_servers::metrics::LastGood;
use tooldock_servers::pool::served;
use tooldock_sessions::session::Session;
use tooldock_workers::registry::Namespace;

use super::{ExternalServers, Requester};
use crate::upstream::{CallContext, Client};

/// Maximum wait of a client for a server that ran before and must be started again.
const PATIENCE: Duration = Duration::from_secs(2);

/// The result of `initialize` for a session whose client has declared its capabilities.
///
/// # Errors
///
/// The reason why the server cannot be reached.
pub(super) async fn initialize(
    external: &Arc<ExternalServers>,
    cx: &CallContext<'_>,
    session: &Arc<Session>,
    version: ProtocolVersion,
) -> Result<Bytes, CallError> {
    let client = Client::Session(Arc::clone(session));
    let opening = of_server(external, cx, &client, "initialize").await?;
    Ok(server_info::initialize(&opening, version.as_str()))
}

/// The result of `server/discover`.
///
/// # Errors
///
/// The reason why the server cannot be reached.
pub(super) async fn discover(
    external: &Arc<ExternalServers>,
    cx: &CallContext<'_>,
    versions: &[&str],
) -> Result<Bytes, CallError> {
    let opening = of_server(external, cx, &cx.client, "server/discover").await?;
    let scope = cx.view().cache_scope();
    Ok(server_info::discover(&opening, versions, scope))
}

/// The server's description of itself; the last known one while the server is unavailable, or slow to restart. Clients then
/// initialize as usual, and their next request reaches the server again, or reports why it is unavailable.
async fn of_server(
    external: &Arc<ExternalServers>,
    cx: &CallContext<'_>,
    client: &Client,
    method: &str,
) -> Result<ServerInfo, CallError> {
    let namespace = &cx.namespace;
    let requester = Requester::of(cx);
    let target = external.target(namespace, client, &requester, method);
    let target = match target.await {
        Err(error) if external.can_connect(cx, &error) => {
            // The last known description came from another principal's connection, and may name that principal's account.
            return Ok(unknown(namespace));
        }
        target => target?,
    };
    let common = target.is_common();
    let leased = external.lease(namespace, client, target);
    tokio::pin!(leased);
    let early = timeout(PATIENCE, &mut leased).await.ok();
    let outcome = match early {
        Some(outcome) => outcome,
        // The server served other clients shortly before, so its last description is used.
        None if common && let Some(opening) = last(external, namespace, client) => {
            return Ok(opening);
        }
        // Waits for the start of the client's own process, or of an unknown server, up to the time limit of the start.
        None => leased.await,
    };
    match outcome {
        Ok(leased) => {
            leased.process.answered();
            Ok(leased.process.opened().clone())
        }
        // If a limit is reached, further requests of the client would fail as well, so the initialization fails.
        Err(error) if error.code == CallErrorCode::Overloaded => Err(error),
        Err(error) => last(external, namespace, client).ok_or(error),
    }
}

/// Returns a description of a server that the caller cannot reach yet, since the caller lacks a credential. The caller's first
/// call then offers a link to give the credential.
fn unknown(namespace: &Namespace) -> ServerInfo {
    let info = json!({ "name": namespace.name, "version": env!("CARGO_PKG_VERSION") });
    let result = json!({
        "protocolVersion": ProtocolVersion::V2025_11_25.as_str(),
        "capabilities": { "tools": { "listChanged": true } },
        "serverInfo": info,
    });
    ServerInfo::Legacy(result.to_string().into())
}

fn last(external: &ExternalServers, namespace: &Namespace, client: &Client) -> Option<ServerInfo> {
    let era = match client.is_modern() {
        true => Era::Modern,
        false => Era::Legacy,
    };
    let server = served(namespace)?;
    let opening = external.pools.last_opened(server, era)?;
    external.pools.fell_back(server, LastGood::Opening);
    Some(opening)
}
