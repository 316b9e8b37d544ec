//! `explain`: why somebody sees a tool, or does not.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use tooldock_workers::effect::Effect;
use tooldock_workers::error::CallError;
use tooldock_workers::explain::{Explanation, Question};

use super::super::Management;
use super::super::core::CoreRequest;
use super::super::parameters::ServedNamespace;
use super::super::tool::{Hints, ManagementTool, Progress, written};

/// Whose rights are asked about, and where.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Asked {
    /// The id of an API key, as token_list shows it, or the name of a principal, as logs show it.
    #[serde(rename = "as")]
    who: String,
    /// The namespace's name, _system for the management tools.
    namespace: ServedNamespace,
    /// One tool of the namespace. Leave it out for all of them.
    #[serde(default)]
    tool: Option<String>,
}

/// Asks the core.
pub(in super::super) struct Explain;

impl ManagementTool for Explain {
    const NAME: &'static str = "explain";
    const DESCRIPTION: &'static str = "Say what a key or principal may do in a namespace, and which rule allows or refuses it: \
        whether the credential counts, its namespaces and scopes, the namespace's principals, tools_allow and tools_deny, \
        and the operator's. Nothing is called. After calling: the first rule with allows: false is what to change, for a \
        scope with token_create and token_revoke.";
    const HINTS: Hints = Hints::READS;
    const EFFECTS: &'static [Effect] = &[Effect::ReadsRights];
    type Parameters = Asked;
    type Outcome = Explanation;

    async fn run(
        management: Arc<Management>,
        asked: Asked,
        _: Progress,
    ) -> Result<Explanation, CallError> {
        let question = Question {
            who: asked.who,
            namespace: asked.namespace.0,
            tool: asked.tool,
        };
        let question = written(&question)?;
        management.ask_core(CoreRequest::Explain { question }).await
    }
}
