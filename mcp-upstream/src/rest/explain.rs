//! `POST /explain`: the rights of a caller in a namespace, and the rules behind them; for `{}`, the list of principals.
//! Access is controlled as for `/reload`.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Map, Value};
use tooldock_workers::aggregate;
use tooldock_workers::explain::{self, Credential, Explanation, Question, Rule, ToolAccess};
use tooldock_workers::registry::Namespace;

use super::json;
use crate::error;
use crate::mcp::Core;
use crate::reply::Reply;
use crate::upstream::{Behind, ToolsWait};

/// The most tools that one answer lists.
const TOOLS_MAX: usize = 1000;

/// Answers a question about somebody's rights.
pub(crate) async fn explain(core: &Core, body: Bytes) -> Reply {
    let refused = |status, code, message: &str| error::rest_plain(status, code, message);
    let not_understood = |error: serde_json::Error| {
        let message = format!("The question is not understood: {error}");
        refused(StatusCode::BAD_REQUEST, "bad_request", &message)
    };
    let Some(credentials) = &core.credentials else {
        let message = "This process admits nobody and cannot explain anybody's rights";
        return refused(
            StatusCode::SERVICE_UNAVAILABLE,
            "explain_unavailable",
            message,
        );
    };
    let asks_nothing =
        serde_json::from_slice(&body).is_ok_and(|it: Map<String, Value>| it.is_empty());
    if asks_nothing {
        return json(&credentials.principals());
    }
    let question: Question = match serde_json::from_slice(&body) {
        Ok(question) => question,
        Err(error) => return not_understood(error),
    };
    let credential = match credentials.find(&question.who) {
        Ok(credential) => credential,
        Err(message) => return refused(StatusCode::NOT_FOUND, "principal_not_found", &message),
    };
    json(&answer(core, &credential, question).await)
}

async fn answer(core: &Core, credential: &Credential, question: Question) -> Explanation {
    let name = &question.namespace;
    let served = core.registry.admitted(name);
    let mut rules = explain::of_namespace(credential, name, served.as_deref());
    let mut notes = credential.notes.clone();
    let is_open = rules.iter().all(|rule| rule.allows);
    let (mut tools, mut left_out) = (Vec::new(), 0);
    if let Some(namespace) = &served {
        if let Some(tool) = &question.tool {
            rules.extend(of_tool(core, credential, namespace, tool));
        }
        match names(core, namespace, &credential.principal).await {
            Ok(names) => match &question.tool {
                Some(tool) if !names.iter().any(|name| name == tool) => {
                    notes.push(format!("{name} lists no tool {tool} at the moment"));
                }
                Some(_) => {}
                None if is_open => {
                    left_out = names.len().saturating_sub(TOOLS_MAX);
                    let shown = names.into_iter().take(TOOLS_MAX);
                    tools = shown
                        .map(|tool| access(core, credential, namespace, tool))
                        .collect();
                }
                None => {}
            },
            Err(reason) => notes.push(format!("the tools of {name} are not known: {reason}")),
        }
    }
    Explanation {
        principal: credential.principal.to_string(),
        credential: credential.named.clone(),
        namespace: name.to_string(),
        tool: question.tool,
        allowed: rules.iter().all(|rule| rule.allows),
        rules,
        tools,
        left_out,
        notes,
    }
}

/// All tools that a namespace offers a principal, hidden or not.
async fn names(
    core: &Core,
    namespace: &Arc<Namespace>,
    principal: &Arc<str>,
) -> Result<Vec<String>, String> {
    let upstream = core.upstreams.of(namespace);
    let list = upstream.tools(namespace, Some(principal), ToolsWait::Short);
    let list = list.get().await;
    let list = list.map_err(|failed| failed.message.to_string())?;
    let names = list.entries().iter();
    Ok(names.map(|tool| tool.name().to_owned()).collect())
}

/// The rules of a tool, and those of the namespaces that stand behind an aggregate's.
fn of_tool(
    core: &Core,
    credential: &Credential,
    namespace: &Arc<Namespace>,
    tool: &str,
) -> Vec<Rule> {
    let mut rules = explain::of_tool(credential, namespace, tool);
    let mut behind = core.upstreams.of(namespace).behind(namespace, tool);
    for _ in 0..=aggregate::DEPTH_MAX {
        let Some(Behind {
            namespace,
            tool,
            is_served,
        }) = behind
        else {
            break;
        };
        rules.extend(explain::of_member(credential, &namespace, &tool, is_served));
        behind = core.upstreams.of(&namespace).behind(&namespace, &tool);
    }
    rules
}

fn access(
    core: &Core,
    credential: &Credential,
    namespace: &Arc<Namespace>,
    name: String,
) -> ToolAccess {
    let rules = of_tool(core, credential, namespace, &name);
    let refused = rules.into_iter().find(|rule| !rule.allows);
    ToolAccess {
        allowed: refused.is_none(),
        refused_by: refused.map(|rule| format!("{}: {}", rule.rule, rule.says)),
        name,
    }
}
