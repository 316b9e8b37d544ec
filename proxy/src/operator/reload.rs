//! `tooldock reload`: makes this gateway and all replicas read their namespaces again, and prints the outcome of each.

use http::Method;
use serde_json::Value;

use super::client::GatewayClient;
use super::gateway::RunningGateway;
use super::output::{self, Cell, Colour, TerminalText};
use super::status::{self, list, word};
use super::{CommandFailure, Outcome};
use crate::cli::ReloadArgs;

pub(super) async fn run(arguments: ReloadArgs) -> Outcome {
    let client = GatewayClient::new(RunningGateway::find(&arguments.gateway)?)?;
    let report = client
        .json(Method::POST, &["operator", "reload"], &[])
        .await?;
    output::show(&match arguments.json {
        true => output::json(&report),
        false => {
            let mut text = TerminalText::for_stdout();
            write_report(&report, &mut text);
            if let Some(problem) = status::problem(&client).await? {
                text.push(format!("Problem: {problem}"));
            }
            text.into_text()
        }
    });
    match has_failed(&report) {
        true => Err(CommandFailure::Shown),
        false => Ok(()),
    }
}

/// Returns true if a namespace could not be reloaded, or a replica did not complete its reload.
fn has_failed(report: &Value) -> bool {
    let replicas = list(&report["replicas"]).iter();
    !list(&report["failed"]).is_empty() || replicas.into_iter().any(|it| !is_done(it))
}

/// Returns true if a replica has reloaded all its namespaces without a failure.
fn is_done(replica: &Value) -> bool {
    replica["outcome"] == DONE && replica["failed"].as_u64().unwrap_or_default() == 0
}

/// Outcome that a replica reports after a complete reload.
const DONE: &str = "ok";

fn write_report(report: &Value, text: &mut TerminalText) {
    let names = |key: &str| list(&report[key]).iter().map(word);
    let failure = |name: &str| {
        let mut failed = list(&report["failed"]).iter();
        failed.find(|it| it["namespace"] == name)
    };
    let mut rows = Vec::new();
    for name in names("namespaces") {
        let (outcome, colour, why) = match failure(name) {
            Some(failed) => ("failed", Colour::Red, word(&failed["message"])),
            None if names("workers_restarted").any(|it| it == name) => {
                ("started", Colour::Green, "")
            }
            None if names("deps_synced").any(|it| it == name) => {
                ("packages installed", Colour::Green, "")
            }
            None => ("unchanged", Colour::Dim, ""),
        };
        let outcome = Cell::new(outcome).coloured(colour);
        rows.push([name.into(), outcome, why.into()]);
    }
    for name in names("removed") {
        rows.push([name.into(), "removed".into(), "".into()]);
    }
    for failed in list(&report["failed"]) {
        let name = word(&failed["namespace"]);
        if !names("namespaces").any(|it| it == name) {
            let outcome = Cell::new("failed").coloured(Colour::Red);
            rows.push([name.into(), outcome, word(&failed["message"]).into()]);
        }
    }
    text.table(["NAMESPACE", "OUTCOME", "REASON"], &rows);
    let issues: Vec<_> = list(&report["issues"])
        .iter()
        .map(|it| {
            [
                word(&it["namespace"]).into(),
                word(&it["subject"]).into(),
                word(&it["message"]).into(),
            ]
        })
        .collect();
    if !issues.is_empty() {
        text.push("");
        text.table(["NAMESPACE", "ISSUE", "REASON"], &issues);
    }
    let replicas: Vec<_> = list(&report["replicas"])
        .iter()
        .map(|it| {
            let outcome = word(&it["outcome"]);
            let failed = it["failed"].as_u64().map(|it| it.to_string());
            let colour = if is_done(it) {
                Colour::Green
            } else {
                Colour::Red
            };
            let outcome = Cell::new(outcome).coloured(colour);
            [
                word(&it["name"]).into(),
                outcome,
                failed.unwrap_or_default().into(),
            ]
        })
        .collect();
    if !replicas.is_empty() {
        text.push("");
        text.table(["REPLICA", "OUTCOME", "FAILED"], &replicas);
    }
    text.push("");
    text.push("Namespaces were read again. The configuration file is read at SIGHUP (systemctl reload tooldock).");
}
