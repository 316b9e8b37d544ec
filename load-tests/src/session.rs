//! Opens MCP sessions: `initialize`, then `notifications/initialized`.

use std::time::Duration;

use anyhow::Context;
use tokio::task::JoinSet;

use crate::message::Envelope;
use crate::wire::{Connection, Target};

const NONE: &str = "initialize gave no session";
const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const HELLO: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"tooldock-load","version":"1"}}}"#;
pub(crate) const READY: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// Opens a session on a separate connection; returns the session's id.
pub(crate) async fn open(envelope: Envelope<'_>) -> anyhow::Result<String> {
    offered(envelope).await?.context(NONE)
}

/// Opens a session with a server that may have none; `None` if it has none.
pub(crate) async fn offered(envelope: Envelope<'_>) -> anyhow::Result<Option<String>> {
    let opened = async {
        let mut connection = Connection::open(&Target::Http(envelope.to)).await?;
        offered_on(envelope, &mut connection).await
    };
    tokio::time::timeout(LIMIT, opened)
        .await
        .context("no session in time")?
}

/// Opens a session on an existing connection, without a time limit.
pub(crate) async fn open_on(
    envelope: Envelope<'_>,
    connection: &mut Connection,
) -> anyhow::Result<String> {
    offered_on(envelope, connection).await?.context(NONE)
}

/// Opens `count` sessions one after another on a new connection, without a time limit.
pub(crate) async fn several(envelope: Envelope<'_>, count: usize) -> anyhow::Result<Vec<String>> {
    let mut connection = Connection::open(&Target::Http(envelope.to)).await?;
    let mut sessions = Vec::with_capacity(count);
    for _ in 0..count {
        sessions.push(open_on(envelope, &mut connection).await?);
    }
    Ok(sessions)
}

/// Opens `count` sessions on a few connections.
pub(crate) async fn many(envelope: Envelope<'static>, count: usize) -> anyhow::Result<Vec<String>> {
    const CONNECTIONS: usize = 16;
    let mut connections = JoinSet::new();
    for at in 0..CONNECTIONS {
        let share = count / CONNECTIONS + usize::from(at < count % CONNECTIONS);
        connections.spawn(several(envelope, share));
    }
    let opened = tokio::time::timeout(LIMIT, connections.join_all()).await;
    let opened: anyhow::Result<Vec<_>> = opened
        .context("sessions were not open in time")?
        .into_iter()
        .collect();
    Ok(opened?.concat())
}

async fn offered_on(
    envelope: Envelope<'_>,
    connection: &mut Connection,
) -> anyhow::Result<Option<String>> {
    let answer = connection.ask(&envelope.post(HELLO)).await?;
    answer.has_status(200, "initialize")?;
    let session = answer.header("mcp-session-id").map(str::to_owned);
    let ready = envelope.in_session(session.as_deref()).post(READY);
    let answer = connection.ask(&ready).await?;
    answer.has_status(202, "notifications/initialized")?;
    Ok(session)
}
