//! `tooldock tools`: lists the tools of one namespace, or of all namespaces that the token opens.

use rmcp::ClientHandler;
use rmcp::model::ClientConfig;
use serde_json::{Value, json};

use super::client::GatewayClient;
use super::gateway::RunningGateway;
use super::mcp;
use super::output::{self, TerminalText, shortened};
use super::{CommandFailure, Outcome};
use crate::cli::ToolsArgs;

/// Maximum length of a description in a table, in characters.
const DESCRIPTION_MAX: usize = 80;

/// Handler for the server's messages in sessions that only list tools. It ignores all messages.
#[derive(Clone, Copy)]
struct Lister;

impl ClientHandler for Lister {
    fn get_info(&self) -> ClientConfig {
        mcp::client_info(json!({}))
    }
}

pub(super) async fn run(arguments: ToolsArgs) -> Outcome {
    let client = GatewayClient::new(RunningGateway::find(&arguments.gateway)?)?;
    let names = mcp::namespaces(&client).await?;
    let wanted = match &arguments.namespace {
        Some(name) => {
            let all = names.iter().map(String::as_str);
            mcp::check_name("namespace", name, all, "tooldock tools")?;
            vec![name.clone()]
        }
        None => names,
    };
    let mut listed = Vec::new();
    let mut failures = 0;
    for namespace in &wanted {
        match tools_of(&client, namespace).await {
            Ok(tools) => listed.extend(tools.into_iter().map(|tool| (namespace.clone(), tool))),
            Err(failure @ CommandFailure::Refused(_)) if arguments.namespace.is_none() => {
                failures += 1;
                // Prints the failure and continues with the other namespaces.
                failure.exit();
            }
            Err(failure) => return Err(failure),
        }
    }
    output::show(&match arguments.json {
        true => as_json(&listed),
        false => as_text(&listed, arguments.namespace.is_none()),
    });
    match failures {
        0 => Ok(()),
        _ => Err(CommandFailure::Shown),
    }
}

async fn tools_of(client: &GatewayClient, namespace: &str) -> Outcome<Vec<rmcp::model::Tool>> {
    let session = mcp::open(client, namespace, Lister).await?;
    let tools = mcp::list(&session).await;
    // A failure to close the session is ignored: the list has arrived, and the session expires by itself.
    let _ = session.cancel().await;
    tools
}

fn as_json(listed: &[(String, rmcp::model::Tool)]) -> String {
    let listed: Vec<_> = listed
        .iter()
        .map(|(namespace, tool)| {
            let mut shown: Value = json!(tool);
            shown["namespace"] = namespace.as_str().into();
            shown
        })
        .collect();
    output::json(&listed)
}

fn as_text(listed: &[(String, rmcp::model::Tool)], all: bool) -> String {
    let mut text = TerminalText::for_stdout();
    let row = |tool: &rmcp::model::Tool| {
        let description = shortened(mcp::description(tool), DESCRIPTION_MAX);
        [
            (&*tool.name).into(),
            mcp::title(tool).into(),
            description.into(),
        ]
    };
    if all {
        let rows: Vec<_> = listed
            .iter()
            .map(|(namespace, tool)| {
                let [name, title, description] = row(tool);
                [namespace.into(), name, title, description]
            })
            .collect();
        text.table(["NAMESPACE", "TOOL", "TITLE", "DESCRIPTION"], &rows);
    } else {
        let rows: Vec<_> = listed.iter().map(|(_, tool)| row(tool)).collect();
        text.table(["TOOL", "TITLE", "DESCRIPTION"], &rows);
    }
    text.into_text()
}
