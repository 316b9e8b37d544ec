//! `/api/servers/{id}/stderr` and `/restart`: the output of a server's processes, and their restart.
//! `/api/namespaces/{name}/output`: the output of a namespace of any kind.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;
use tooldock_process::child::output::{RecentLine, RecentLines};
use tooldock_sessions::caller::Caller;
use tooldock_workers::registry::{Namespace, UpstreamKind};

use super::answer::{Answer, WebFailure, capitalised, json_of};
use super::namespaces::found;
use super::request::ApiRequest;
use super::servers::{one, server_id};
use super::tools::management;
use super::{streams, trail};
use crate::mcp::Core;
use crate::rest::output::line;

/// Default number of output lines in a response.
const LINES: usize = 100;
/// Time for which a stream collects lines before it sends them, so that a server with much output causes few wake-ups.
const GATHERING: Duration = Duration::from_millis(100);

/// Finds the served server with this name.
async fn served(core: &Core, id: &str) -> Result<Arc<Namespace>, WebFailure> {
    let name = server_id(id)?;
    let found = core.registry.namespace(name.as_str());
    if let Some(namespace) = found.filter(|it| it.is_server()) {
        return Ok(namespace);
    }
    let managed = management(core)?.workspace.servers().await?;
    Err(match managed.iter().find(|it| it.name == name) {
        Some(entry) if !entry.enabled => {
            WebFailure::refused(format!("The server {name} is disabled; enable it first"))
        }
        Some(_) => WebFailure::refused(format!(
            "The server {name} is not served yet; reload to see why"
        )),
        None => WebFailure::not_found("server_not_found", format!("There is no server {name}")),
    })
}

async fn output(core: &Core, id: &str) -> Result<Arc<RecentLines>, WebFailure> {
    let namespace = served(core, id).await?;
    let output = core
        .upstreams
        .of(&namespace)
        .operations()
        .output(&namespace);
    output.ok_or_else(|| {
        let why = silence(&namespace.upstream);
        WebFailure::refused(format!("The server {} {why}", namespace.name))
    })
}

/// Text that explains why a namespace has no output.
fn silence(upstream: &UpstreamKind) -> &'static str {
    match upstream {
        UpstreamKind::Remote(_) => "is reached over HTTP, so it has no standard error here",
        UpstreamKind::Aggregate(_) => {
            "stands for several servers: each of them has a standard error of its own, which the log shows"
        }
        UpstreamKind::Failed(_) => "could not be loaded, so no process of it prints",
        UpstreamKind::Empty => "has no tools, so no process of it prints",
        _ => "is not served any more",
    }
}

/// The output of a namespace's processes; an error for a namespace without processes.
fn output_in(core: &Core, caller: &Caller, name: &str) -> Result<Arc<RecentLines>, WebFailure> {
    let namespace = found(core, caller, name)?;
    let output = core
        .upstreams
        .of(&namespace)
        .operations()
        .output(&namespace);
    output.ok_or_else(|| {
        let message = format!("The namespace {name} {}", silence(&namespace.upstream));
        WebFailure::not_found("no_output", message)
    })
}

/// Reads a number from the query; `None` if the parameter is absent.
fn number(request: &ApiRequest, name: &str) -> Result<Option<u64>, WebFailure> {
    let Some(text) = request.parameter(name) else {
        return Ok(None);
    };
    let number = text.parse().map(Some);
    number.map_err(|_| WebFailure::invalid(name, format!("{name} must be the number of a line")))
}

/// Responds with the last output lines of a server, oldest first.
pub(super) async fn stderr(core: &Arc<Core>, request: &ApiRequest, id: &str) -> Answer {
    last_lines(request, "server_id", id, &*output(core, id).await?)
}

/// Responds with the last output lines of a namespace, oldest first.
pub(super) fn output_of(
    core: &Arc<Core>,
    caller: &Caller,
    request: &ApiRequest,
    name: &str,
) -> Answer {
    last_lines(request, "namespace", name, &*output_in(core, caller, name)?)
}

fn last_lines(request: &ApiRequest, key: &str, name: &str, output: &RecentLines) -> Answer {
    let limit = match request.parameter("limit") {
        None => LINES,
        Some(_) => request.limit()?,
    };
    let lines = output.after(0);
    let last = &lines[lines.len().saturating_sub(limit)..];
    let mut body = json!({
        "lines": last.iter().map(line).collect::<Vec<_>>(),
        "total": lines.len(),
    });
    body[key] = name.into();
    json_of(&body)
}

/// Responds with a stream of a server's output lines as they arrive.
pub(super) async fn events(
    core: &Arc<Core>,
    caller: &Caller,
    request: &ApiRequest,
    id: &str,
) -> Answer {
    let lines = output(core, id).await?;
    follow(core, caller, request, lines, |kept| Some(line(kept)))
}

/// Responds with a stream of a namespace's output lines as they arrive.
pub(super) fn output_events(
    core: &Arc<Core>,
    caller: &Caller,
    request: &ApiRequest,
    name: &str,
) -> Answer {
    let lines = output_in(core, caller, name)?;
    follow(core, caller, request, lines, |kept| Some(line(kept)))
}

/// Opens a stream of output lines as they arrive. With `after`, the stored lines after that number are sent first. `shown`
/// converts a line to the form of the API; if it returns `None`, the line is omitted.
pub(super) fn follow(
    core: &Arc<Core>,
    caller: &Caller,
    request: &ApiRequest,
    lines: Arc<RecentLines>,
    shown: impl Fn(&RecentLine) -> Option<Value> + Send + 'static,
) -> Answer {
    let mut newest = lines.newest();
    let after = number(request, "after")?.unwrap_or_else(|| *newest.borrow());
    streams::open(core, caller, move |stream| async move {
        let mut told = after;
        loop {
            newest.mark_unchanged();
            for kept in lines.after(told) {
                told = kept.number;
                if let Some(line) = shown(&kept)
                    && !stream.event("line", &line)
                {
                    return;
                }
            }
            if newest.changed().await.is_err() {
                return;
            }
            sleep(GATHERING).await;
        }
    })
}

/// Restarts the server's processes. Calls that run there fail.
pub(super) async fn restart(core: &Arc<Core>, caller: &Caller, id: &str) -> Answer {
    let restarted = restarted(core, id).await;
    trail::note(core, caller, "restart_server", &restarted);
    json_of(&one(core, caller, &restarted?.name).await?)
}

async fn restarted(core: &Core, id: &str) -> Result<Arc<Namespace>, WebFailure> {
    let namespace = served(core, id).await?;
    if matches!(namespace.upstream, UpstreamKind::Aggregate(_)) {
        return Err(WebFailure::refused(format!(
            "The server {} stands for several servers, which are restarted one by one",
            namespace.name
        )));
    }
    let restarted = core
        .upstreams
        .of(&namespace)
        .operations()
        .restart(&namespace);
    restarted.map_err(|error| WebFailure::refused(capitalised(error.message)))?;
    Ok(namespace)
}
