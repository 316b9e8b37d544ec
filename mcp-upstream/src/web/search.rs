//! `/api/search`: finds namespaces, tools, servers, files, secrets and keys by a part of their names. Kinds that the caller's
//! credential does not open are omitted.

use std::sync::Arc;

use serde::Serialize;
use serde_json::json;
use tooldock_base::effect::Effect;
use tooldock_sessions::caller::Caller;
use tooldock_sessions::catalogue::View;

use super::answer::{Answer, WebFailure, json_of};
use super::request::ApiRequest;
use super::tools::management;
use super::{All, PathEffects, Same, check};
use crate::mcp::Core;

/// Maximum length of the searched text, in bytes.
const TEXT_MAX: usize = 200;
/// Maximum number of results that are collected before the best are selected; further ones are ignored.
const GATHERED_MAX: usize = 5000;
/// Default number of results in a response.
const RESULTS: usize = 50;

/// A result of the search. Results are sorted by rank first, and then by kind and name.
#[derive(Debug, Serialize, PartialEq, Eq, PartialOrd, Ord)]
struct SearchResult {
    #[serde(skip)]
    rank: usize,
    kind: ResultKind,
    /// The name of the found object, or the id of a key.
    name: String,
    /// The namespace of a tool or file, or the scope of a secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    of: Option<String>,
    /// A description, or the principal of a key.
    #[serde(skip_serializing_if = "String::is_empty")]
    about: String,
}

#[derive(Debug, Clone, Copy, Serialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "snake_case")]
enum ResultKind {
    Namespace,
    Tool,
    Server,
    Folder,
    Secret,
    Key,
}

/// The results of a search while they are collected.
struct SearchResults {
    wanted: String,
    found: Vec<SearchResult>,
}

impl SearchResults {
    /// Adds an object if its name or description contains the searched text.
    fn add(&mut self, kind: ResultKind, name: &str, of: Option<&str>, about: &str) {
        if self.found.len() >= GATHERED_MAX {
            return;
        }
        let Some(rank) = rank(&self.wanted, name, about) else {
            return;
        };
        let about = about.lines().next().unwrap_or_default();
        self.found.push(SearchResult {
            rank,
            kind,
            name: name.to_owned(),
            of: of.map(str::to_owned),
            about: about.chars().take(TEXT_MAX).collect(),
        });
    }
}

/// The rank of an object among the results, 0 for the best; `None` if neither its name nor its description contains the text.
fn rank(wanted: &str, name: &str, about: &str) -> Option<usize> {
    let name = name.to_lowercase();
    match name.find(wanted) {
        Some(0) if name.len() == wanted.len() => Some(0),
        Some(0) => Some(1),
        Some(_) => Some(2),
        None => about.to_lowercase().contains(wanted).then_some(3),
    }
}

pub(super) async fn search(core: &Arc<Core>, caller: &Caller, request: &ApiRequest) -> Answer {
    let wanted = request.wanted();
    if wanted.is_empty() || wanted.len() > TEXT_MAX {
        return Err(WebFailure::invalid(
            "q",
            format!("q must be a part of a name, of 1 to {TEXT_MAX} bytes"),
        ));
    }
    let limit = match request.parameter("limit") {
        None => RESULTS,
        Some(_) => request.limit()?,
    };
    let found = Vec::new();
    let mut results = SearchResults { wanted, found };
    served(core, caller, &mut results);
    if core.management.is_some() {
        managed(core, caller, &mut results).await?;
    }
    let mut found = results.found;
    found.sort_unstable();
    let total = found.len();
    found.truncate(limit);
    json_of(&json!({"results": found, "total": total}))
}

/// Adds served namespaces, and those of their tools that are known without a request to a server.
fn served(core: &Arc<Core>, caller: &Caller, results: &mut SearchResults) {
    let snapshot = core.registry.snapshot();
    for namespace in snapshot.namespaces.values() {
        if !caller.may_use(namespace) {
            continue;
        }
        let name = namespace.name.as_str();
        let kind = match namespace.is_server() {
            true => ResultKind::Server,
            false => ResultKind::Namespace,
        };
        results.add(kind, name, None, &namespace.description);
        let Some(list) = core
            .upstreams
            .of(namespace)
            .tool_lists()
            .listed_now(namespace, caller)
        else {
            continue;
        };
        for tool in View::of(caller, namespace).tools(&list) {
            results.add(
                ResultKind::Tool,
                tool.name(),
                Some(name),
                &tool.description(),
            );
        }
    }
}

/// Adds folders, secrets and keys, as far as the caller's credential opens them.
async fn managed(
    core: &Arc<Core>,
    caller: &Caller,
    results: &mut SearchResults,
) -> Result<(), WebFailure> {
    const KEYS: PathEffects = All(&[Effect::HandlesKeys]);
    let opens = |does| check(caller, does).is_ok();
    let management = management(core)?;
    if opens(Same("list_namespaces")) {
        for folder in management.workspace.namespaces().await? {
            results.add(ResultKind::Folder, folder.name.as_str(), None, "");
        }
    }
    let (secrets, keys) = (opens(Same("list_secrets")), opens(KEYS));
    let (names, store) = (management.secret_names(), management.keys());
    // A store that cannot be read contributes no results. The reason is shown on the page of that store.
    let read = tokio::task::spawn_blocking(move || {
        let secrets = secrets.then(|| names.list(None).unwrap_or_default());
        let keys = keys.then(|| store.list().unwrap_or_default());
        (secrets.unwrap_or_default(), keys.unwrap_or_default())
    });
    let (secrets, keys) = read
        .await
        .map_err(|_| WebFailure::refused("The search was interrupted; try again"))?;
    for secret in secrets {
        results.add(ResultKind::Secret, &secret.key, Some(&secret.scope), "");
    }
    for key in keys {
        results.add(ResultKind::Key, key.id.as_str(), None, &key.principal());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_names_come_before_beginnings_and_those_before_descriptions() {
        let rank = |name, about| rank("add", name, about);
        assert_eq!(rank("Add", ""), Some(0));
        assert_eq!(rank("add_user", ""), Some(1));
        assert_eq!(rank("re_add", ""), Some(2));
        assert_eq!(rank("sum", "Adds numbers"), Some(3));
        assert_eq!(rank("sum", "of numbers"), None);
    }
}
