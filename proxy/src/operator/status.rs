//! `tooldock status`: the state of the whole gateway, printed once or repeatedly.

use std::io::IsTerminal as _;
use std::time::Duration;

use http::Method;
use serde_json::Value;

use super::client::GatewayClient;
use super::gateway::RunningGateway;
use super::output::{self, Cell, Colour, TerminalText};
use super::{CommandFailure, Outcome};
use crate::cli::StatusArgs;

/// Interval at which `--watch` prints the state again.
const EVERY: Duration = Duration::from_secs(2);
/// Escape sequence that clears a terminal and moves the cursor to its beginning.
const CLEAR: &str = "\x1b[H\x1b[2J\x1b[3J";

pub(super) async fn run(arguments: StatusArgs) -> Outcome {
    let client = GatewayClient::new(RunningGateway::find(&arguments.gateway)?)?;
    if !arguments.watch {
        let status = request_status(&client).await?;
        output::show(&match arguments.json {
            true => output::json(&status),
            false => status_text(&status, &client),
        });
        return Ok(());
    }
    let clear = match std::io::stdout().is_terminal() && !arguments.json {
        true => CLEAR,
        false => "",
    };
    let mut tick = tokio::time::interval(EVERY);
    loop {
        tick.tick().await;
        let text = match request_status(&client).await {
            Ok(status) if arguments.json => output::json_line(&status),
            Ok(status) => status_text(&status, &client) + if clear.is_empty() { "\n" } else { "" },
            // The failure is shown and the next attempt follows: the gateway may be restarting.
            Err(CommandFailure::Unreachable(reason)) => {
                eprint!("{clear}");
                CommandFailure::Unreachable(reason).exit();
                continue;
            }
            Err(failure) => return Err(failure),
        };
        if !output::show(&format!("{clear}{text}")) {
            return Ok(());
        }
    }
}

async fn request_status(client: &GatewayClient) -> Outcome<Value> {
    client.json(Method::GET, &["operator", "status"], &[]).await
}

/// Requests the problem of the gateway as a whole, such as an invalid configuration. `None` if there is none.
pub(super) async fn problem(client: &GatewayClient) -> Outcome<Option<String>> {
    let status = request_status(client).await?;
    let message = &status["gateway"]["problem"]["message"];
    Ok(message.as_str().map(str::to_owned))
}

fn status_text(status: &Value, client: &GatewayClient) -> String {
    let mut text = TerminalText::for_stdout();
    let url = client.gateway().address.url.to_string();
    write_status(status, &url, &mut text);
    text.into_text()
}

fn write_status(status: &Value, url: &str, text: &mut TerminalText) {
    let gateway = &status["gateway"];
    let number = |key: &str| gateway[key].as_u64().unwrap_or_default();
    text.push(format!(
        "tooldock {} at {url}: {}, up {}",
        word(&gateway["version"]),
        word(&gateway["status"]),
        time(number("uptime_seconds")),
    ));
    text.push(format!(
        "{}, {}, {} ({} running), {}, {}",
        count(number("namespaces"), "namespace"),
        count(number("tools"), "tool"),
        count(
            gateway["servers"]["total"].as_u64().unwrap_or_default(),
            "server"
        ),
        gateway["servers"]["running"],
        count(number("sessions"), "session"),
        count(number("streams"), "stream"),
    ));
    text.push(match &status["reload"] {
        Value::Null => "Last reload: none has ended yet".to_owned(),
        reload => {
            let problem = reload["problem"].as_str();
            let problem = problem.map_or(String::new(), |it| format!(": {it}"));
            format!(
                "Last reload: {} at {} ({:.1} s){problem}",
                word(&reload["result"]),
                word(&reload["at"]),
                reload["seconds"].as_f64().unwrap_or_default(),
            )
        }
    });
    if let Some(message) = gateway["problem"]["message"].as_str() {
        text.push(format!("Problem: {message}"));
    }
    if let Some(message) = status["pins"]["problem"].as_str() {
        text.push(format!("Pins: {message}"));
    }
    namespaces(status, text);
    certificates(status, text);
    replicas(status, text);
}

fn namespaces(status: &Value, text: &mut TerminalText) {
    let mut rows = Vec::new();
    for namespace in list(&status["namespaces"]) {
        let reason = namespace["error"]["message"].as_str();
        rows.push([
            word(&namespace["name"]).into(),
            word(&namespace["kind"]).into(),
            state(word(&namespace["state"])),
            namespace["tool_count"].to_string().into(),
            reason.unwrap_or_default().into(),
        ]);
        for backend in list(&namespace["backends"]) {
            let shown = match (&backend["draining"], &backend["healthy"]) {
                (Value::Bool(true), _) => "draining",
                (_, Value::Bool(true)) => "up",
                _ => "down",
            };
            rows.push([
                format!("  {}", word(&backend["backend"])).into(),
                "backend".into(),
                state(shown),
                "".into(),
                word(&backend["problem"]).into(),
            ]);
        }
        for member in list(&namespace["members"]) {
            rows.push([
                format!("  {}", word(&member["name"])).into(),
                "member".into(),
                state(word(&member["state"])),
                "".into(),
                word(&member["reason"]).into(),
            ]);
        }
        for waiting in ["changed", "new", "suspicious"] {
            let names: Vec<_> = list(&namespace["pins"][waiting]).iter().map(word).collect();
            if !names.is_empty() {
                rows.push([
                    "  definitions".into(),
                    "pins".into(),
                    state(waiting),
                    "".into(),
                    names.join(", ").into(),
                ]);
            }
        }
        // The issue of a member that is down is omitted: such a member has a separate row.
        let issues = list(&namespace["issues"]).iter();
        for issue in issues.filter(|issue| issue["code"] != "member_down") {
            rows.push([
                format!("  {}", word(&issue["subject"])).into(),
                "issue".into(),
                state(word(&issue["code"])),
                "".into(),
                word(&issue["message"]).into(),
            ]);
        }
    }
    for unserved in list(&status["unserved"]) {
        rows.push([
            word(&unserved["name"]).into(),
            "".into(),
            Cell::new("not served").coloured(Colour::Red),
            "".into(),
            word(&unserved["message"]).into(),
        ]);
    }
    if !rows.is_empty() {
        text.push("");
        text.table(["NAMESPACE", "KIND", "STATE", "TOOLS", "REASON"], &rows);
    }
}

fn certificates(status: &Value, text: &mut TerminalText) {
    let rows: Vec<_> = list(&status["certificates"])
        .iter()
        .map(|it| [word(&it["listener"]).into(), word(&it["ends"]).into()])
        .collect();
    if !rows.is_empty() {
        text.push("");
        text.table(["LISTENER", "CERTIFICATE ENDS"], &rows);
    }
}

fn replicas(status: &Value, text: &mut TerminalText) {
    let replicas = &status["replicas"];
    if replicas.is_null() {
        return;
    }
    let own = match (&replicas["store"], &replicas["rival"]) {
        (_, Value::Bool(true)) => Cell::new("another process has its name").coloured(Colour::Red),
        (store, _) if store == "up" => state("up"),
        _ => Cell::new("the store does not answer").coloured(Colour::Red),
    };
    let mut rows = vec![[
        format!("{} (this one)", word(&replicas["name"])).into(),
        own,
    ]];
    for other in list(&replicas["others"]) {
        let problem = other["problem"].as_str();
        let differs = (other["sources"] == "differ").then_some("serves other namespaces");
        let shown = match problem.or(differs) {
            Some(problem) => Cell::new(problem).coloured(Colour::Yellow),
            None => state("up"),
        };
        rows.push([word(&other["name"]).into(), shown]);
    }
    text.push("");
    text.table(["REPLICA", "STATE"], &rows);
}

fn state(state: &str) -> Cell {
    Cell::new(state).coloured(Colour::of_state(state))
}

pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(super) fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub(super) fn count(number: u64, thing: &str) -> String {
    match number {
        1 => format!("1 {thing}"),
        _ => format!("{number} {thing}s"),
    }
}

/// A duration as text with its two largest units, such as `3h 20m`.
pub(super) fn time(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3600..86400 => format!("{}h {}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d {}h", seconds / 86400, seconds % 86400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn states_stand_with_their_reasons() {
        let status = json!({
            "gateway": {"version": "1", "status": "ready", "uptime_seconds": 3700, "namespaces": 2, "tools": 1,
                "servers": {"total": 1, "running": 0}, "sessions": 1, "streams": 0, "problem": null},
            "namespaces": [
                {"name": "calc", "kind": "python", "state": "ready", "tool_count": 1, "error": null, "backends": [],
                    "pins": {"mode": "warn", "changed": ["add", "sum"]},
                    "members": [], "issues": [{"code": "syntax_error", "subject": "x.py", "message": "line 3"}]},
                {"name": "far", "kind": "remote", "state": "failed", "tool_count": 0, "error": {"message": "refused"},
                    "backends": [{"backend": "a:1", "healthy": false, "problem": "no\u{1b}route"},
                        {"backend": "b:1", "healthy": true, "draining": true, "problem": null}], "members": [],
                    "issues": []}],
            "unserved": [{"name": "odd", "code": "c", "message": "taken"}],
            "certificates": [{"listener": "core", "ends": "2030-01-01T00:00:00Z"}],
            "reload": {"result": "partial", "at": "2026-01-01T00:00:00Z", "seconds": 0.25, "problem": null},
            "replicas": {"name": "a", "store": "up", "rival": false, "others": [{"name": "b", "problem": "no address"}]},
        });
        let mut text = TerminalText::default();
        write_status(&status, "http://x", &mut text);
        let expected = "tooldock 1 at http://x: ready, up 1h 1m\n\
            2 namespaces, 1 tool, 1 server (0 running), 1 session, 0 streams\n\
            Last reload: partial at 2026-01-01T00:00:00Z (0.2 s)\n\
            \n\
            NAMESPACE      KIND     STATE         TOOLS  REASON\n\
            calc           python   ready         1\n\
            \x20 definitions  pins     changed              add, sum\n\
            \x20 x.py         issue    syntax_error         line 3\n\
            far            remote   failed        0      refused\n\
            \x20 a:1          backend  down                 no\\u{1b}route\n\
            \x20 b:1          backend  draining\n\
            odd                     not served           taken\n\
            \n\
            LISTENER  CERTIFICATE ENDS\n\
            core      2030-01-01T00:00:00Z\n\
            \n\
            REPLICA       STATE\n\
            a (this one)  up\n\
            b             no address\n";
        assert_eq!(text.into_text(), expected);
    }
}
