//! `tooldock sessions`: lists the sessions of the queried gateway, or ends one session.

use http::Method;
use serde_json::{Value, json};

use super::Outcome;
use super::client::GatewayClient;
use super::gateway::RunningGateway;
use super::output::{self, TerminalText};
use super::status::{list, time, word};
use crate::cli::{SessionsArgs, SessionsCommand};

/// Maximum number of sessions that one request returns.
const PAGE: &str = "500";

pub(super) async fn run(arguments: SessionsArgs) -> Outcome {
    let client = GatewayClient::new(RunningGateway::find(&arguments.gateway)?)?;
    if let Some(SessionsCommand::End { id }) = arguments.command {
        let path = ["operator", "sessions", &id];
        let ended = client.json(Method::DELETE, &path, &[]).await?;
        output::show(&match arguments.json {
            true => output::json(&ended),
            false => format!("{} has ended.\n", output::printable_lines(&id)),
        });
        return Ok(());
    }
    let mut sessions = all(&client).await?;
    if let Some(namespace) = &arguments.namespace {
        sessions.retain(|session| session["namespace"] == namespace.as_str());
    }
    output::show(&match arguments.json {
        true => output::json(&json!({"sessions": sessions, "total": sessions.len()})),
        false => as_text(&sessions),
    });
    Ok(())
}

async fn all(client: &GatewayClient) -> Outcome<Vec<Value>> {
    let mut sessions = Vec::new();
    let mut cursor = String::new();
    loop {
        let query = [("limit", PAGE), ("cursor", &*cursor)];
        let page = client
            .json(Method::GET, &["operator", "sessions"], &query)
            .await?;
        sessions.extend_from_slice(list(&page["sessions"]));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = next.to_owned(),
            None => return Ok(sessions),
        }
    }
}

fn as_text(sessions: &[Value]) -> String {
    let mut text = TerminalText::for_stdout();
    let rows: Vec<_> = sessions
        .iter()
        .map(|session| {
            let client = &session["client"];
            let client = format!("{} {}", word(&client["name"]), word(&client["version"]));
            [
                word(&session["id"]).into(),
                word(&session["namespace"]).into(),
                word(&session["principal"]).into(),
                client.trim().into(),
                word(&session["protocol_version"]).into(),
                time(session["last_used_seconds"].as_u64().unwrap_or_default()).into(),
                session["streams"].to_string().into(),
            ]
        })
        .collect();
    let titles = [
        "ID",
        "NAMESPACE",
        "PRINCIPAL",
        "CLIENT",
        "VERSION",
        "IDLE",
        "STREAMS",
    ];
    text.table(titles, &rows);
    text.into_text()
}
