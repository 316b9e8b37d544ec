//! `tooldock call`: calls one tool once. Progress, log messages and questions appear on standard error.

use std::io::IsTerminal as _;

use rmcp::model::{CallToolRequestParams, ClientRequest, Request, ServerResult};
use rmcp::service::PeerRequestOptions;
use serde_json::{Value, json};

use self::arguments::GivenArguments;
use self::conversation::Conversation;
use super::client::GatewayClient;
use super::gateway::RunningGateway;
use super::mcp::{self, McpSession};
use super::output;
use super::status::{list, word};
use super::{CommandFailure, Outcome};
use crate::cli::{CallArgs, CallOutput};

mod arguments;
mod conversation;

/// Lowest level of the tool's log messages that are shown.
const LOG_LEVEL: &str = "info";

pub(super) async fn run(arguments: CallArgs) -> Outcome {
    let given = GivenArguments::read(&arguments.arguments, arguments.json.as_deref());
    let given = given.map_err(CommandFailure::Usage)?;
    let as_json = arguments.output == CallOutput::Json || given.json_is_wanted;
    let client = GatewayClient::new(RunningGateway::find(&arguments.gateway)?)?;
    let namespaces = mcp::namespaces(&client).await?;
    let names = namespaces.iter().map(String::as_str);
    mcp::check_name("namespace", &arguments.namespace, names, "tooldock tools")?;
    let session = mcp::open(&client, &arguments.namespace, Conversation::new()).await?;
    let outcome = called(&session, &arguments, given).await;
    // A failure to close the session is ignored: the call's outcome is already available, and the session expires by itself.
    let _ = session.cancel().await;
    let result = outcome?;
    let is_error = result["isError"] == true;
    match (as_json, is_error) {
        (true, _) => {
            let structured = result.get("structuredContent").filter(|_| !is_error);
            output::show(&output::json(structured.unwrap_or(&result)));
        }
        (false, false) => {
            output::show(&text_of(&result));
        }
        // Errors of the tool go to standard error: standard output is for results.
        (false, true) => eprint!("{}", text_of(&result)),
    }
    match is_error {
        true => Err(CommandFailure::Shown),
        false => Ok(()),
    }
}

/// Calls the tool. Returns its result unchanged, as JSON.
#[allow(
    deprecated,
    reason = "log messages are deprecated in MCP and still sent"
)]
async fn called(
    session: &McpSession<Conversation>,
    arguments: &CallArgs,
    given: GivenArguments,
) -> Outcome<Value> {
    let tools = mcp::list(session).await?;
    let names = tools.iter().map(|tool| &*tool.name);
    let list = format!("tooldock tools {}", arguments.namespace);
    mcp::check_name("tool", &arguments.tool, names, &list)?;
    let tool = tools.iter().find(|tool| tool.name == *arguments.tool);
    let schema = tool.map(mcp::input_schema).unwrap_or_default();
    let values = given.typed(&schema).map_err(CommandFailure::Usage)?;
    let logs = session.peer_info();
    if logs.is_some_and(|info| info.capabilities.logging.is_some()) {
        let level = serde_json::from_value(json!({ "level": LOG_LEVEL }));
        // A failure to set the log level is ignored: the server then decides which log messages it sends.
        let _ = session.set_level(level.expect("a level")).await;
    }
    let params: CallToolRequestParams =
        serde_json::from_value(json!({"name": arguments.tool, "arguments": values}))
            .expect("a name and an object");
    let request = ClientRequest::CallToolRequest(Request::new(params));
    let options = PeerRequestOptions::no_options();
    let mut call = session
        .send_cancellable_request(request, options)
        .await
        .map_err(mcp::failed)?;
    let answer = tokio::select! {
        answer = &mut call.rx => answer,
        interrupted = tokio::signal::ctrl_c() => {
            drop(interrupted);
            let _ = call.cancel(Some("the user pressed Ctrl-C".to_owned())).await;
            return Err(CommandFailure::Interrupted);
        }
    };
    let answer = answer.map_err(|_| {
        CommandFailure::Refused("the connection ended before the result came".to_owned())
    })?;
    match answer.map_err(mcp::failed)? {
        ServerResult::CallToolResult(result) => Ok(json!(result)),
        other => Err(CommandFailure::Refused(format!(
            "the answer is no result of a tool: {}",
            json!(other)
        ))),
    }
}

/// The result as text: its content blocks, or the structured content if there are no blocks.
fn text_of(result: &Value) -> String {
    let blocks: Vec<_> = list(&result["content"]).iter().map(block).collect();
    if blocks.is_empty() {
        return result
            .get("structuredContent")
            .map_or(String::new(), output::json);
    }
    let mut text = output::printable_lines(&blocks.join("\n"));
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

fn block(block: &Value) -> String {
    let kind = word(&block["type"]);
    match kind {
        "text" => word(&block["text"]).to_owned(),
        "resource" => match block["resource"]["text"].as_str() {
            Some(text) => text.to_owned(),
            None => format!("[resource {}]", word(&block["resource"]["uri"])),
        },
        "resource_link" => format!("[resource {}]", word(&block["uri"])),
        _ => format!(
            "[{kind} {}: {} of base64; --output json has it]",
            word(&block["mimeType"]),
            super::status::count(word(&block["data"]).len() as u64, "byte"),
        ),
    }
}

/// Returns true if questions can be asked: both standard input and standard error are a terminal.
fn has_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_shown_as_the_text_of_its_blocks() {
        let result = json!({"content": [{"type": "text", "text": "a\u{1b}b\nc"},
            {"type": "image", "mimeType": "image/png", "data": "AAAA"},
            {"type": "resource_link", "uri": "file:///x"}]});
        let expected = "a\\u{1b}b\nc\n[image image/png: 4 bytes of base64; --output json has it]\n[resource file:///x]\n";
        assert_eq!(text_of(&result), expected);
        assert_eq!(
            text_of(&json!({"content": [], "structuredContent": 5})),
            "5\n"
        );
    }
}
