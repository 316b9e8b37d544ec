//! `POST /explain`: the rights of a credential in a namespace, with the rules that grant them. Without a namespace, the numbers
//! of tools that the credential opens; for `{}`, the list of principals. Access is controlled as for `/reload`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout_at};
use tooldock_base::names::NamespaceName;
use tooldock_engine::upstream::{ToolOrigin, ToolsWait};
use tooldock_workers::aggregate;
use tooldock_workers::explain::{
    self, Credential, Explanation, NamespaceReach, Question, Reach, ReachQuestion, Rule, ToolAccess,
};
use tooldock_workers::registry::{Namespace, UpstreamKind, startup};

use super::condition::Condition;
use super::json;
use crate::error;
use crate::mcp::Core;
use crate::reply::Reply;

/// Time limit for reading the tool lists of all namespaces, when the tools that a credential opens are counted.
const REACH_WAIT: Duration = Duration::from_secs(3);

/// Maximum number of tools that one answer of `/explain` lists. Of the tools beyond it, only the number is given.
const TOOLS_MAX: usize = 1000;

/// Answers a question about the rights of a credential, as described in the body.
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
    if let Ok(ReachQuestion { who }) = serde_json::from_slice(&body) {
        if !core.registry.wait_for_scan().await {
            return error::rest_starting(&startup::starting(&NamespaceName::global()));
        }
        return match credentials.find(&who) {
            Ok(credential) => json(&reach(core, &credential).await),
            Err(message) => refused(StatusCode::NOT_FOUND, "principal_not_found", &message),
        };
    }
    let question: Question = match serde_json::from_slice(&body) {
        Ok(question) => question,
        Err(error) => return not_understood(error),
    };
    if core.registry.awaits(&question.namespace) {
        return error::rest_starting(&startup::starting(&question.namespace));
    }
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
    let condition = served.as_deref().map(|it| Condition::of(core, it));
    if let Some(condition) = &condition
        && let Some(problem) = condition.problem()
    {
        notes.push(format!("{name} is {}: {problem}", condition.state));
    }
    let (mut tools, mut left_out) = (Vec::new(), 0);
    if let Some(namespace) = &served {
        notes.extend(core.registry.sandbox_of(namespace).map(|it| it.in_words()));
        notes.extend(super::pins::of(core, namespace).and_then(|it| it.in_words(name)));
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
        state: condition.map(|it| it.state.to_owned()),
        tool: question.tool,
        allowed: rules.iter().all(|rule| rule.allows),
        rules,
        tools,
        left_out,
        notes,
    }
}

/// Counts the tools that a credential opens, by namespace. Tools by which aggregates manage their members are not counted.
/// Namespaces whose tools are not known within [`REACH_WAIT`] are omitted.
async fn reach(core: &Core, credential: &Credential) -> Reach {
    let until = Instant::now() + REACH_WAIT;
    let snapshot = core.registry.load();
    let open = snapshot.namespaces.values().filter(|namespace| {
        let rules = explain::of_namespace(credential, &namespace.name, Some(namespace));
        rules.iter().all(|rule| rule.allows)
    });
    let mut reach = Reach {
        principal: credential.principal.to_string(),
        credential: credential.named.clone(),
        ..Reach::default()
    };
    let (mut open_tools, mut are_all_known) = (0, true);
    let mut refused = Vec::new();
    for namespace in open {
        let listed = names(core, namespace, &credential.principal);
        let Ok(Ok(names)) = timeout_at(until, listed).await else {
            are_all_known = false;
            continue;
        };
        let tools_of = names.into_iter();
        let tools_of = tools_of.filter(|name| !is_own_of_aggregate(core, namespace, name));
        let tools_of: Vec<_> = tools_of.collect();
        let tools = tools_of.len();
        let tools_of = tools_of.into_iter();
        let (open, not): (Vec<_>, Vec<_>) = tools_of
            .map(|name| access(core, credential, namespace, name))
            .partition(|tool| tool.allowed);
        open_tools += open.len();
        refused.extend(not.into_iter().map(|tool| tool.name).take(TOOLS_MAX));
        refused.truncate(TOOLS_MAX);
        reach.namespaces.push(NamespaceReach {
            namespace: namespace.name.to_string(),
            open: open.len(),
            tools,
        });
    }
    if open_tools == 0 && are_all_known && !opens_management(core, credential) {
        reach.notes = why_nothing(credential, &reach.namespaces, &refused);
    }
    reach
}

/// Returns true if a tool belongs to an aggregate itself and serves to manage its members' tools. Every key can see these tools,
/// and they are useless without a tool of a member.
fn is_own_of_aggregate(core: &Core, namespace: &Arc<Namespace>, tool: &str) -> bool {
    let mut publisher = Arc::clone(namespace);
    let mut origin = core
        .upstreams
        .of(namespace)
        .tool_lists()
        .origin(namespace, tool);
    for _ in 0..=aggregate::DEPTH_MAX {
        let Some(found) = origin else {
            break;
        };
        publisher = found.namespace;
        origin = core
            .upstreams
            .of(&publisher)
            .tool_lists()
            .origin(&publisher, &found.tool);
    }
    matches!(publisher.upstream, UpstreamKind::Aggregate(_))
}

/// Returns true if a credential gives access to the management tools.
fn opens_management(core: &Core, credential: &Credential) -> bool {
    let system = NamespaceName::system();
    let served = core.registry.admitted(&system);
    served.is_some_and(|served| {
        let rules = explain::of_namespace(credential, &system, Some(&served));
        rules.iter().all(|rule| rule.allows)
    })
}

/// Explains why a credential opens no tool: one sentence with the reason, and, if possible, one with a change that would open
/// some tools.
fn why_nothing(
    credential: &Credential,
    namespaces: &[NamespaceReach],
    refused: &[String],
) -> Vec<String> {
    let patterns = credential.patterns.join(", ");
    if let Some(ended) = &credential.ended {
        return vec![format!("it opens nothing: {ended}")];
    }
    if namespaces.is_empty() {
        return vec![format!(
            "it opens nothing at the moment: no namespace that is served fits {patterns}"
        )];
    }
    let named: Vec<_> = namespaces.iter().map(|it| &*it.namespace).take(5).collect();
    let named = named.join(", ");
    let (Some(grant), false) = (&credential.grant, refused.is_empty()) else {
        return vec![format!(
            "it opens nothing at the moment: {named} has no tool that is open to it"
        )];
    };
    let scopes: Vec<_> = grant.tools.names().collect();
    let example = explain::example_patterns(refused.iter().map(String::as_str));
    let example = serde_json::to_string(&example).unwrap_or_default();
    vec![
        format!(
            "it opens nothing: none of the {} tools of {named} fits the patterns of scope {}",
            refused.len(),
            scopes.join(", ")
        ),
        format!(
            "a scope of their names opens them, as relay.scopes: {{ my-scope: {example} }} in the configuration; scope admin \
             opens all"
        ),
    ]
}

/// Returns the names of all tools that a namespace offers to a principal, including hidden tools.
async fn names(
    core: &Core,
    namespace: &Arc<Namespace>,
    principal: &Arc<str>,
) -> Result<Vec<String>, String> {
    let upstream = core.upstreams.of(namespace).tool_lists();
    let list = upstream.tools(namespace, Some(principal), ToolsWait::Short);
    let list = list.get().await;
    let list = list.map_err(|failed| failed.message.to_string())?;
    let names = list.entries().iter();
    Ok(names.map(|tool| tool.name().to_owned()).collect())
}

/// Returns the rules that apply to a tool. For an aggregate's tool, they include the rules of the namespaces from which it comes.
fn of_tool(
    core: &Core,
    credential: &Credential,
    namespace: &Arc<Namespace>,
    tool: &str,
) -> Vec<Rule> {
    let mut rules = explain::of_tool(credential, namespace, tool);
    rules.extend(super::pins::rule(core, namespace, tool));
    let mut origin = core
        .upstreams
        .of(namespace)
        .tool_lists()
        .origin(namespace, tool);
    for _ in 0..=aggregate::DEPTH_MAX {
        let Some(ToolOrigin {
            namespace,
            tool,
            is_served,
        }) = origin
        else {
            break;
        };
        rules.extend(explain::of_member(credential, &namespace, &tool, is_served));
        rules.extend(super::pins::rule(core, &namespace, &tool));
        origin = core
            .upstreams
            .of(&namespace)
            .tool_lists()
            .origin(&namespace, &tool);
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
