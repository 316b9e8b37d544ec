//! The tool `test_tool`: a single call in the core, with the namespace's secrets and packages (BLD-06).

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use tooldock_base::effect::Effect;
use tooldock_base::error::CallError;

use super::super::Management;
use super::super::core::CoreRequest;
use super::super::parameters::Namespace;
use super::super::tool::{Hints, ManagementTool, Progress, Time, invalid, refused};

/// Maximum length of a tool's name, in bytes.
const NAME_MAX: usize = 128;

/// The tool `test_tool`, which runs a tool once.
pub(in super::super) struct TestTool;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Trial {
    namespace: Namespace,
    /// As list_tools shows it.
    tool_name: String,
    /// Arguments of the tool.
    #[serde(deserialize_with = "object_or_null")]
    #[schemars(with = "Map<String, Value>")]
    input: Map<String, Value>,
    /// Toolset that toolman_activate answered with, for a tool that it turned on.
    #[serde(default)]
    toolset: Option<String>,
}

/// Reads `null` as no arguments, as `tools/call` does.
fn object_or_null<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Map<String, Value>, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[derive(Debug, Default, Serialize, JsonSchema)]
pub(in super::super) struct TrialReport {
    success: bool,
    /// The result of the tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
    /// The reason why the tool failed; absent if it succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// The Python traceback, if the tool's code failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    traceback: Option<String>,
}

impl ManagementTool for TestTool {
    const NAME: &'static str = "test_tool";
    const DESCRIPTION: &'static str = "Run a tool once, with the namespace's packages and secrets, and show its result or its traceback. It \
        really runs and may change things elsewhere. Call reload_core first if it is new or changed. If \
        success is false: a KeyError of a variable is a missing secret (check_secrets), dependency_error a \
        missing package (add_requirement); else mend the code with write_tool.";
    const HINTS: Hints = Hints::REPLACES.not_idempotent().open_world();
    // The tool can run any tool of any namespace, with that namespace's secrets.
    const EFFECTS: &'static [Effect] = &[Effect::RunsCode];
    const TIME: Time = Time::Long;
    type Parameters = Trial;
    type Outcome = TrialReport;

    async fn run(
        management: Arc<Management>,
        Trial {
            namespace: Namespace(namespace),
            tool_name,
            input,
            toolset,
        }: Trial,
        _: Progress,
    ) -> Result<TrialReport, CallError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if tool_name.is_empty() || tool_name.len() > NAME_MAX || !tool_name.chars().all(plain) {
            return Err(invalid(
                "tool_name: not a tool's name; list_tools shows the names there are",
            ));
        }
        let sealed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let is_toolset = |it: &String| !it.is_empty() && it.chars().all(sealed);
        if toolset.as_ref().is_some_and(|it| !is_toolset(it)) {
            return Err(invalid(
                "toolset: not a toolset that toolman_activate answers with; call it by test_tool for one, or leave toolset out",
            ));
        }
        let request = CoreRequest::Call {
            namespace: namespace.clone(),
            tool: tool_name,
            input: Value::Object(input).to_string().into(),
            toolset,
        };
        let answer = management.answer_of(request).await?;
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        if answer.status.is_success() {
            return Ok(TrialReport {
                success: true,
                result: Some(body),
                ..TrialReport::default()
            });
        }
        if body["error"]["code"] == "namespace_not_found" {
            return Err(match management.workspace.exists(&namespace).await {
                Ok(()) => refused(format!(
                    "The folder of {namespace} exists in the tools directory, but the core has not loaded it: call reload_core"
                )),
                Err(_) => refused(
                    "The core serves no such namespace; list_namespaces shows those there are",
                ),
            });
        }
        Ok(failed(&body))
    }
}

/// The report of a failed test, from the core's error in the format of REST.
fn failed(body: &Value) -> TrialReport {
    let error = &body["error"];
    let code = error["code"].as_str().unwrap_or_default();
    let message = error["message"]
        .as_str()
        .unwrap_or("the core gave no reason");
    let hint = match code {
        "tool_not_found" => {
            ". Call list_tools to see the names, and reload_core if the tool or its file is new or was mended"
        }
        _ => "",
    };
    TrialReport {
        error: Some(match code {
            // With these codes, the message is the text that the tool itself raised.
            "internal_error" | "tool_error" => message.to_owned(),
            code => format!("{code}: {message}{hint}"),
        }),
        traceback: error["details"]["traceback"].as_str().map(str::to_owned),
        ..TrialReport::default()
    }
}
