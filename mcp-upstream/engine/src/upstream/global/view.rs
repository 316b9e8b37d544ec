//! Names of tools in all namespaces together, and the namespace that each name belongs to (K-06).
//!
//! `shared` comes first, then the other namespaces in the order of their names. A tool's name without a prefix belongs to the
//! first namespace that has such a tool; in later namespaces the tool is listed as `NAMESPACE_TOOL`. Every tool can be called by
//! its name with the prefix. Each tool is listed once. If even the name with the prefix is an earlier tool's own name, the tool
//! is not listed, but can be called in its namespace.
//!
//! A caller sees the namespaces that it may use, and names do not depend on other namespaces. Aggregates are omitted: they have
//! their own naming, and their active sets belong to sessions.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout_at};
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_sessions::caller::Caller;
use tooldock_sessions::catalogue::{ToolEntry, ToolList, View};
use tooldock_workers::registry::{Namespace, Snapshot, UpstreamKind};

use super::prefixed;
use crate::upstream::{MaybeReady, ToolsWait, Upstreams};

/// Maximum wait of a request for the lists of servers. A list that is late is replaced by the last known list; without a known
/// list, the namespace is omitted.
const WAIT: Duration = Duration::from_secs(5);
/// The namespace whose tools come first.
const FIRST: &str = "shared";

/// All tools that a caller may see at one moment.
pub struct GlobalTools {
    lists: Vec<(Arc<Namespace>, Arc<ToolList>)>,
    tools: Vec<PublishedTool>,
}

/// A published tool: its published name, the position of its namespace's list, and the tool's own name.
struct PublishedTool {
    name: Box<str>,
    list: usize,
    own: Box<str>,
}

/// A tool with its namespace and published name.
pub struct GlobalTool<'a> {
    /// The published name of the tool.
    pub name: &'a str,
    pub namespace: &'a Arc<Namespace>,
    /// The definition of the tool in its namespace, with the name that it has there.
    pub entry: &'a ToolEntry,
}

impl GlobalTools {
    /// Reads the tools of all namespaces that a caller may use. Namespaces whose tools are not known are omitted.
    ///
    /// # Errors
    ///
    /// When the caller may use namespaces, but the tools of none of them are known.
    pub async fn of(
        kinds: &Upstreams,
        snapshot: &Snapshot,
        caller: &Caller,
    ) -> Result<Self, CallError> {
        let deadline = Instant::now() + WAIT;
        let members = members(snapshot, caller);
        let read = members
            .iter()
            .map(|namespace| list(kinds, (namespace, caller), ToolsWait::Long, deadline));
        let read = join_all(read).await;
        let (mut lists, mut missing) = (Vec::new(), Vec::new());
        for (namespace, list) in members.into_iter().zip(read) {
            match list {
                Some(list) => lists.push((namespace, list)),
                None => missing.push(namespace.name.to_string()),
            }
        }
        if !missing.is_empty() {
            let missing = missing.join(", ");
            tracing::debug!(missing, "tools that are not known are left out");
            if lists.is_empty() {
                let reason =
                    format!("None of the namespaces can say which tools it has: {missing}");
                return Err(CallError::new(CallErrorCode::WorkerUnavailable, reason));
            }
        }
        let tools = named(&lists, caller);
        Ok(Self { lists, tools })
    }

    /// All published tools, each once.
    pub fn iter(&self) -> impl Iterator<Item = GlobalTool<'_>> {
        self.tools.iter().filter_map(|tool| {
            let (namespace, list) = &self.lists[tool.list];
            Some(GlobalTool {
                name: &tool.name,
                namespace,
                entry: list.tool(&tool.own)?,
            })
        })
    }
}

/// The namespaces that a caller may use, without aggregates, in the order in which they claim names.
pub fn members(snapshot: &Snapshot, caller: &Caller) -> Vec<Arc<Namespace>> {
    let all = snapshot.namespaces.values();
    let mut members: Vec<_> = all
        .filter(|it| !matches!(it.upstream, UpstreamKind::Aggregate(_)) && caller.may_use(it))
        .map(Arc::clone)
        .collect();
    // The namespaces of a snapshot are sorted by name, and the stable sort keeps that order.
    members.sort_by_key(|namespace| namespace.name.as_str() != FIRST);
    members
}

/// Finds the namespace that has a tool of this published name, and the tool's own name there.
pub async fn find(
    kinds: &Upstreams,
    snapshot: &Snapshot,
    caller: &Caller,
    name: &str,
) -> Option<(Arc<Namespace>, Box<str>)> {
    let deadline = Instant::now() + WAIT;
    let members = members(snapshot, caller);
    for namespace in &members {
        let list = list(kinds, (namespace, caller), ToolsWait::Short, deadline).await;
        if list.is_some_and(|list| View::of(caller, namespace).tool(&list, name).is_some()) {
            return Some((Arc::clone(namespace), name.into()));
        }
    }
    for namespace in &members {
        let own = name.strip_prefix(namespace.name.as_str());
        let Some(own) = own.and_then(|rest| rest.strip_prefix('_')) else {
            continue;
        };
        let list = list(kinds, (namespace, caller), ToolsWait::Short, deadline).await;
        if list.is_some_and(|list| View::of(caller, namespace).tool(&list, own).is_some()) {
            return Some((Arc::clone(namespace), own.into()));
        }
    }
    None
}

/// The tools of a namespace, if they are known by the deadline.
async fn list(
    kinds: &Upstreams,
    (namespace, caller): (&Arc<Namespace>, &Caller),
    wait: ToolsWait,
    deadline: Instant,
) -> Option<Arc<ToolList>> {
    let upstream = kinds.of(namespace).tool_lists();
    let read = match upstream.tools(namespace, caller.principal.as_ref(), wait) {
        MaybeReady::Now(list) => list.ok(),
        MaybeReady::Later(list) => timeout_at(deadline, list).await.ok().and_then(Result::ok),
    };
    read.or_else(|| upstream.tools_known(namespace))
}

/// Assigns the published names of all tools, by the same rule as [`find`].
fn named(lists: &[(Arc<Namespace>, Arc<ToolList>)], caller: &Caller) -> Vec<PublishedTool> {
    let mut bare: HashMap<&str, usize> = HashMap::new();
    let mut all = Vec::new();
    for (at, (namespace, list)) in lists.iter().enumerate() {
        let mut own: HashMap<&str, ()> = HashMap::new();
        for tool in View::of(caller, namespace).tools(list) {
            // If a namespace lists two tools with the same name, it runs the first.
            if own.insert(tool.name(), ()).is_none() {
                bare.entry(tool.name()).or_insert(at);
                all.push((at, tool.name()));
            }
        }
    }
    // Finds the tool that a name with a namespace's prefix belongs to.
    let by_prefix = |name: &str| {
        let mut lists = lists.iter().enumerate();
        lists.find_map(|(at, (namespace, list))| {
            let own = name.strip_prefix(namespace.name.as_str())?;
            let own = own.strip_prefix('_')?;
            let tool = View::of(caller, namespace).tool(list, own)?;
            Some((at, tool.name()))
        })
    };
    let place = |(at, own): (usize, &str)| {
        if bare.get(own) == Some(&at) {
            return Some(PublishedTool {
                name: own.into(),
                list: at,
                own: own.into(),
            });
        }
        let name = prefixed(&lists[at].0.name, own);
        let is_its_own = !bare.contains_key(&*name) && by_prefix(&name) == Some((at, own));
        is_its_own.then(|| PublishedTool {
            name: name.into(),
            list: at,
            own: own.into(),
        })
    };
    all.into_iter().filter_map(place).collect()
}
