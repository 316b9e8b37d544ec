//! The beginning of a conversation with an external server: what it says of itself, through a process that is there.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;
use tooldock_workers::error::{CallError, CallErrorCode};
use tooldock_workers::registry::Namespace;

use super::isolation::Who;
use super::process::{OpenEra, Opening};
use super::{External, openings};
use crate::format::CacheScope;
use crate::mcp::Conversation;
use crate::protocol::ProtocolVersion;
use crate::session::Session;
use crate::stdio::metrics::LastGood;

/// How long a client waits for a server that was there before and has to be started again.
const PATIENCE: Duration = Duration::from_secs(2);

/// The result of `initialize` for a session whose client has said what it can be asked.
///
/// # Errors
///
/// Why its server cannot be reached.
pub(crate) async fn initialize(
    conversation: &Conversation<'_>,
    session: &Arc<Session>,
    version: ProtocolVersion,
) -> Result<Bytes, CallError> {
    let who = Who::Session(Arc::clone(session));
    let opening = of_server(conversation, &who, "initialize").await?;
    Ok(openings::initialize(&opening, version.as_str()))
}

/// The result of `server/discover`.
///
/// # Errors
///
/// Why the server cannot be reached.
pub(crate) async fn discover(
    conversation: &Conversation<'_>,
    versions: &[&str],
) -> Result<Bytes, CallError> {
    let who = conversation.who();
    let opening = of_server(conversation, &who, "server/discover").await?;
    let scope = CacheScope::of_lists(conversation.caller, &conversation.namespace);
    Ok(openings::discover(&opening, versions, scope))
}

/// What the server says of itself; while it is away, or slow to come back, what it last said. Its clients then begin as
/// ever, and find it there again, or hear why not, with what they ask for next.
async fn of_server(
    conversation: &Conversation<'_>,
    who: &Who,
    method: &str,
) -> Result<Opening, CallError> {
    let (external, namespace) = (&conversation.core.external, &conversation.namespace);
    let principal = conversation.caller.principal.as_ref();
    let place = external.place(namespace, who, principal, method).await?;
    let common = place.is_common();
    let leased = external.lease_at(namespace, who, place);
    tokio::pin!(leased);
    let early = timeout(PATIENCE, &mut leased).await.ok();
    let outcome = match early {
        Some(outcome) => outcome,
        // It was there for others a moment ago.
        None if common && let Some(opening) = last(external, namespace, who) => return Ok(opening),
        // The start of one's own, or of one nothing is known of, takes what it takes.
        None => leased.await,
    };
    match outcome {
        Ok(leased) => {
            leased.process.answered();
            Ok(leased.process.opening().clone())
        }
        // A limit is no reason to begin what cannot go on.
        Err(error) if error.code == CallErrorCode::Overloaded => Err(error),
        Err(error) => last(external, namespace, who).ok_or(error),
    }
}

fn last(external: &External, namespace: &Namespace, who: &Who) -> Option<Opening> {
    let era = match who.is_modern() {
        true => OpenEra::Modern,
        false => OpenEra::Legacy,
    };
    let opening = external.processes.last_opening(namespace, era)?;
    external.processes.fell_back(namespace, LastGood::Opening);
    Some(opening)
}
