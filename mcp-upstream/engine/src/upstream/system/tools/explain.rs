//! The tool `explain`: lists the principals, and explains which rules apply between a principal and a tool.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tooldock_base::effect::Effect;
use tooldock_base::error::CallError;
use tooldock_workers::explain::{Explanation, Principals, Question};

use super::super::Management;
use super::super::core::CoreRequest;
use super::super::parameters::ServedNamespace;
use super::super::tool::{Hints, ManagementTool, Progress, invalid, written};

/// Parameters of `explain`: the principal, namespace and tool to explain.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct ExplainParameters {
    /// Id of an API key (token_list) or name of a principal (logs).
    #[serde(rename = "as", default)]
    principal: Option<String>,
    /// _system for the management tools.
    #[serde(default)]
    namespace: Option<ServedNamespace>,
    /// Leave it out for all tools.
    #[serde(default)]
    tool: Option<String>,
}

/// Result of `explain`: an explanation, or the list of principals.
#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct ExplainResult {
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    explanation: Option<Explanation>,
    /// The existing principals, if the request named none.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    principals: Option<Principals>,
}

/// The tool `explain`, which gets the explanation from the core.
pub(in super::super) struct Explain;

impl ManagementTool for Explain {
    const NAME: &'static str = "explain";
    const DESCRIPTION: &'static str = "Say what a key or principal may do in a namespace, and which rule allows or refuses it. Without \
        arguments: list the principals. Nothing is called. After calling: the first rule with allows: false \
        is what to change, for a scope with token_create and token_revoke.";
    const HINTS: Hints = Hints::READS;
    const EFFECTS: &'static [Effect] = &[Effect::ReadsRights];
    type Parameters = ExplainParameters;
    type Outcome = ExplainResult;

    async fn run(
        management: Arc<Management>,
        parameters: ExplainParameters,
        _: Progress,
    ) -> Result<ExplainResult, CallError> {
        let question = match parameters {
            ExplainParameters {
                principal: Some(who),
                namespace: Some(ServedNamespace(namespace)),
                tool,
            } => written(&Question {
                who,
                namespace,
                tool,
            })?,
            ExplainParameters {
                principal: None,
                namespace: None,
                tool: None,
            } => {
                let question = written(&json!({}))?;
                let principals = management.ask_core(CoreRequest::Explain { question });
                return Ok(ExplainResult {
                    explanation: None,
                    principals: Some(principals.await?),
                });
            }
            _ => {
                return Err(invalid(
                    "name both `as` and `namespace`, or nothing for the list of principals",
                ));
            }
        };
        let explanation = management.ask_core(CoreRequest::Explain { question });
        Ok(ExplainResult {
            explanation: Some(explanation.await?),
            principals: None,
        })
    }
}
