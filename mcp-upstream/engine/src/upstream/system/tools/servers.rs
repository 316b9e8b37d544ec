//! Tools for MCP servers of other authors, which are configured in `external/config.yaml`: `list_servers`, `add_server`,
//! `remove_server`.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tooldock_base::effect::Effect;
use tooldock_base::error::CallError;
use tooldock_base::mask;
use tooldock_workers::manage::{ServerRefused, check_texts};

use super::super::Management;
use super::super::parameters::{Namespace, Nothing};
use super::super::registry_package::with_package;
use super::super::tool::{Hints, ManagementTool, Progress, Time, invalid, refused};

/// The tool `list_servers`, which lists the servers of the file.
pub(in super::super) struct ListServers;

#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct ListedServer {
    /// The server's name, which is its namespace.
    name: String,
    /// True if the server is enabled; false if it is switched off in the file.
    enabled: bool,
    /// The keys of the server's entry in the file, with masked credentials.
    config: Map<String, Value>,
}

impl ManagementTool for ListServers {
    const NAME: &'static str = "list_servers";
    const DESCRIPTION: &'static str = "List the servers that add_server added, credentials masked; list_namespaces shows the operator's, \
        too. After calling: add_server, remove_server, or read_output(namespace) for what one printed.";
    const HINTS: Hints = Hints::READS;
    const EFFECTS: &'static [Effect] = &[Effect::ReadsConfiguration];
    type Parameters = Nothing;
    type Outcome = Vec<ListedServer>;

    async fn run(
        management: Arc<Management>,
        _: Nothing,
        _: Progress,
    ) -> Result<Vec<ListedServer>, CallError> {
        let servers = management.workspace.servers().await?;
        let listed = servers.into_iter().map(|server| ListedServer {
            name: server.name.to_string(),
            enabled: server.enabled,
            config: match server.config {
                Value::Object(keys) => keys,
                _ => Map::new(),
            },
        });
        Ok(listed.collect())
    }
}

/// Text for models: `${NAME}` is not replaced outside of `env`.
const ARGUMENTS: &str = "Arguments are passed as they are, and ${NAME} in them is never replaced, since every user of the machine can read them";

/// The tool `add_server`, which adds a server to the file.
pub(in super::super) struct AddServer;

/// Parameters of `add_server`: a new server's name and entry.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct NewServer {
    /// Name of the new server, and of its namespace.
    name: Namespace,
    /// A package: {"source": "registry", "name": "mcp-server-time", "package_type": "pypi", "args": []}. A command: {"command":
    /// "npx", "args": ["-y", "PACKAGE"]}. Variables: "env": {"API_KEY": "${API_KEY}"}, where ${API_KEY} is a secret of this
    /// namespace.
    config: Map<String, Value>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct AddedServer {
    added: bool,
    name: String,
}

impl ManagementTool for AddServer {
    const NAME: &'static str = "add_server";
    const DESCRIPTION: &'static str = "Add an MCP server that others wrote, as a namespace: an npm or PyPI package or a command, run as the \
        gateway's user. Never put a value of a secret into the entry: write ${NAME} as the value of a \
        variable in `env`, never in `args`, and call prepare_secret(key, namespace). search_registry finds \
        servers. After calling: reload_core, which installs and starts it; then list_namespaces, test_tool, \
        and read_output where it does not start.";
    const HINTS: Hints = Hints::ADDS.not_idempotent();
    const EFFECTS: &'static [Effect] = &[Effect::RunsCode];
    const TIME: Time = Time::Short;
    type Parameters = NewServer;
    type Outcome = AddedServer;

    async fn run(
        management: Arc<Management>,
        NewServer {
            name: Namespace(name),
            config,
        }: NewServer,
        _: Progress,
    ) -> Result<AddedServer, CallError> {
        // The lengths of all texts are checked first, since the search for secrets in them costs time.
        check_texts(&config).map_err(not_changed)?;
        if let Some(place) = mask::pasted(&config) {
            return Err(invalid(format!(
                "config.{place}: looks like the value of a secret, and was not stored. Write ${{NAME}} as the value of a \
                 variable in `env`, call prepare_secret(key, namespace) for NAME, and let the user set the value. {ARGUMENTS}. \
                 Nothing was changed"
            )));
        }
        if let Some(at) = reference_in_arguments(&config) {
            return Err(invalid(format!(
                "config.args[{at}]: {ARGUMENTS}. Give the value by a variable in `env`, such as {{\"NAME\": \"${{NAME}}\"}}, if \
                 the server reads one. Nothing was changed"
            )));
        }
        let config = with_package(&management, Value::Object(config)).await;
        let config = config.map_err(|message| invalid(format!("config.name: {message}")))?;
        let added = management.workspace.add_server(&name, config).await;
        added.map_err(not_changed)?;
        Ok(AddedServer {
            added: true,
            name: name.to_string(),
        })
    }
}

/// The tool `remove_server`, which removes a server from the file.
pub(in super::super) struct RemoveServer;

/// Parameters of `remove_server`: the name of a server.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct NamedServer {
    /// As list_servers shows it.
    name: Namespace,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct RemovedServer {
    removed: bool,
    name: String,
}

impl ManagementTool for RemoveServer {
    const NAME: &'static str = "remove_server";
    const DESCRIPTION: &'static str = "Remove a server that add_server added; its secrets stay until remove_secret. Ask the user first. \
        After calling: reload_core.";
    const HINTS: Hints = Hints::REPLACES.not_idempotent();
    const EFFECTS: &'static [Effect] = &[Effect::RunsCode];
    type Parameters = NamedServer;
    type Outcome = RemovedServer;

    async fn run(
        management: Arc<Management>,
        NamedServer {
            name: Namespace(name),
        }: NamedServer,
        _: Progress,
    ) -> Result<RemovedServer, CallError> {
        let removed = management.workspace.remove_server(&name).await;
        if matches!(removed, Err(ServerRefused::Unknown(_)))
            && management.workspace.exists(&name).await.is_ok()
        {
            return Err(refused(format!(
                "{name} is a namespace with tool files and no server; delete_namespace removes it. Nothing was changed"
            )));
        }
        removed.map_err(not_changed)?;
        Ok(RemovedServer {
            removed: true,
            name: name.to_string(),
        })
    }
}

/// The position of the first argument with a `${NAME}`, which is never replaced there. Shells and mcp-remote are
/// exempt, since they replace such names themselves.
fn reference_in_arguments(config: &Map<String, Value>) -> Option<usize> {
    const SHELLS: [&str; 6] = ["sh", "bash", "dash", "zsh", "ksh", "ash"];
    let arguments = config.get("args").and_then(Value::as_array)?;
    let command = config
        .get("command")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let command = command.rsplit('/').next().unwrap_or_default();
    let mut texts = arguments.iter().filter_map(Value::as_str);
    let replaces = SHELLS.contains(&command)
        || texts.any(|it| it == "mcp-remote" || it.starts_with("mcp-remote@"));
    let is_reference = |it: &Value| {
        let text = it.as_str().unwrap_or_default();
        text.split_once("${")
            .is_some_and(|(_, after)| after.contains('}'))
    };
    (!replaces).then(|| arguments.iter().position(is_reference))?
}

fn not_changed(error: ServerRefused) -> CallError {
    match error {
        ServerRefused::Invalid { key, message } => {
            invalid(format!("config.{key}: {message}. Nothing was changed"))
        }
        ServerRefused::NotDone(error) => error.into(),
        error => {
            let mut message = error.to_string();
            if let Some(first) = message.get_mut(..1) {
                first.make_ascii_uppercase();
            }
            refused(format!("{message}. Nothing was changed"))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::tool::read;
    use super::*;

    #[test]
    fn references_in_arguments_are_found_but_where_the_program_replaces_them() {
        let found = |config: Value| reference_in_arguments(config.as_object().expect("an object"));
        assert_eq!(
            found(json!({"command": "x", "args": ["--token", "a ${T} b"]})),
            Some(1)
        );
        assert_eq!(
            found(json!({"name": "a/b", "args": ["--token=${T}"]})),
            Some(0)
        );
        for config in [
            json!({"command": "/bin/sh", "args": ["-c", "exec run --token ${T}"]}),
            json!({"command": "npx", "args": ["-y", "mcp-remote", "https://h", "--header", "Authorization:${T}"]}),
            json!({"command": "x", "args": ["$T", "${", 1], "env": {"T": "${T}"}}),
            json!({"command": "x"}),
        ] {
            assert_eq!(found(config.clone()), None, "{config}");
        }
    }

    #[test]
    fn a_complaint_about_a_wrong_type_does_not_repeat_the_value() {
        for arguments in [
            r#"{"name":"a","config":"ghp_c4n4ry at line 3"}"#,
            r#"{"name":"a","config":"c4n4ry\", expected x"}"#,
        ] {
            let error = read::<NewServer>(arguments.as_bytes()).expect_err(arguments);
            assert!(
                error
                    .message
                    .starts_with("config: invalid type: string, expected"),
                "{}",
                error.message
            );
            assert!(!error.message.contains("c4n4ry"), "{}", error.message);
        }
    }
}
