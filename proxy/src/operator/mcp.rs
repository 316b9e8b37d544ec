//! MCP client for one namespace. It uses the official SDK, Streamable HTTP of 2025-11-25, and the HTTP client of the command.

use std::borrow::Cow;

use http::Method;
use rmcp::model::{ClientConfig, Tool};
use rmcp::service::{ClientInitializeError, ClientLifecycleMode, ClientServiceExt as _};
use rmcp::service::{RoleClient, RunningService, ServiceError};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientHandler, ErrorData};
use serde_json::{Value, json};

use super::client::{GatewayClient, cause};
use super::{CommandFailure, Outcome};
use crate::nearest::proposal;

/// Name, version and capabilities that the client sends when it opens a session.
pub(super) fn client_info(capabilities: Value) -> ClientConfig {
    let info = json!({
        "protocolVersion": "2025-11-25",
        "clientInfo": {"name": "tooldock", "version": env!("CARGO_PKG_VERSION")},
        "capabilities": capabilities,
    });
    serde_json::from_value(info).expect("the members of the specification")
}

/// An open MCP session with a namespace.
pub(super) type McpSession<H> = RunningService<RoleClient, H>;

/// Names of the namespaces that the token opens. Empty if the listener does not list namespaces.
///
/// # Errors
///
/// The gateway cannot be reached, or refuses the token.
pub(super) async fn namespaces(client: &GatewayClient) -> Outcome<Vec<String>> {
    let listed = client.json(Method::GET, &["namespaces"], &[]).await?;
    let listed = listed.as_array().into_iter().flatten();
    let names = listed.filter_map(|it| it["name"].as_str().or(it.as_str()));
    Ok(names.map(str::to_owned).collect())
}

/// Opens an MCP session with a namespace. `handler` receives the server's messages.
pub(super) async fn open<H: ClientHandler>(
    client: &GatewayClient,
    namespace: &str,
    handler: H,
) -> Outcome<McpSession<H>> {
    let mut config = StreamableHttpClientTransportConfig::with_uri(client.mcp_url(namespace)?);
    // Some namespaces answer without creating a session.
    config.allow_stateless = true;
    let transport = StreamableHttpClientTransport::with_client(client.http().clone(), config);
    let opened = handler
        .serve_with_lifecycle(transport, ClientLifecycleMode::Initialize)
        .await;
    opened.map_err(|error| match error {
        ClientInitializeError::JsonRpcError(error) => command_failure(&error),
        other => CommandFailure::Refused(format!("{namespace}: {}", cause(&other))),
    })
}

/// Requests the list of all tools of a namespace.
pub(super) async fn list<H: ClientHandler>(session: &McpSession<H>) -> Outcome<Vec<Tool>> {
    session.list_all_tools().await.map_err(failed)
}

/// Returns an error if `name` is not among `names`. `list` is the command that the error message proposes for listing them.
pub(super) fn check_name<'a>(
    kind: &str,
    name: &str,
    names: impl Iterator<Item = &'a str> + Clone,
    list: &str,
) -> Outcome {
    if names.clone().any(|it| it == name) {
        return Ok(());
    }
    let proposed = proposal(name, names);
    let proposed = match proposed.is_empty() {
        true => format!("; `{list}` lists those that the token opens"),
        false => proposed,
    };
    Err(CommandFailure::Usage(format!(
        "there is no {kind} {name}{proposed}"
    )))
}

/// Converts an error of the MCP client to a command's failure.
pub(super) fn failed(error: ServiceError) -> CommandFailure {
    match error {
        ServiceError::McpError(error) => command_failure(&error),
        other => CommandFailure::Refused(cause(&other)),
    }
}

fn command_failure(error: &ErrorData) -> CommandFailure {
    CommandFailure::Refused(format!("{} ({})", error.message, error.code.0))
}

/// The input schema of a tool.
pub(super) fn input_schema(tool: &Tool) -> Value {
    Value::Object((*tool.input_schema).clone())
}

/// The tool's title, from the tool itself or from its annotations. Empty if it has none.
pub(super) fn title(tool: &Tool) -> &str {
    let annotated = tool.annotations.as_ref().and_then(|it| it.title.as_deref());
    tool.title.as_deref().or(annotated).unwrap_or_default()
}

/// The tool's description. Empty if it has none.
pub(super) fn description(tool: &Tool) -> &str {
    tool.description.as_ref().map_or("", Cow::as_ref)
}
