//! `POST /reload` (EX-80). The edge has authorized a request before this handler is called.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use http::StatusCode;
use serde_json::json;
use tokio::time::timeout;
use tooldock_base::names::NamespaceName;
use tooldock_workers::registry::{Namespace, Snapshot};
use tooldock_workers::reload::ReloadReport;

use super::condition::Condition;
use super::failing::{self, Failing};
use crate::error;
use crate::mcp::Core;
use crate::reply::Reply;

/// Time that the response waits for external servers that the reload has started. A server that cannot start usually fails
/// within it, and its failure is then part of the response.
const SETTLE: Duration = Duration::from_secs(2);

/// Reloads the namespaces and answers with a report. The reload succeeds even if a namespace fails: that namespace is listed in
/// `failed`, and the others are served.
pub(crate) async fn reload(core: &Core) -> Reply {
    let Some(reloader) = &core.reloader else {
        return error::rest_plain(
            StatusCode::SERVICE_UNAVAILABLE,
            "reload_unavailable",
            "This process cannot reload",
        );
    };
    let before = core.registry.snapshot();
    let down: BTreeMap<_, _> = before
        .namespaces
        .iter()
        .filter_map(|(name, namespace)| Some((name.clone(), failing::server(core, namespace)?)))
        .collect();
    match reloader.reload().await {
        Ok(report) => {
            let snapshot = core.registry.snapshot();
            // A reload also starts servers that had ended before.
            let started = report.workers_restarted.iter().chain(down.keys());
            let started = started.filter_map(|name| snapshot.namespaces.get(name));
            let settled = join_all(started.map(|namespace| {
                core.upstreams
                    .of(namespace)
                    .operations()
                    .settled(namespace)
                    .get()
            }));
            // If a server takes longer than `SETTLE` to fail, only `/ready` shows its failure.
            let settled = timeout(SETTLE, settled);
            let replicas = core.sessions.replicas();
            let (_, others) = tokio::join!(settled, replicas.other_reloads());
            let mut body = body(core, &report, &snapshot, &down);
            if let Some(others) = others {
                body["replicas"] = json!(others);
            }
            super::json(&body)
        }
        Err(reason) => {
            tracing::error!(%reason, "the reload failed; the old namespaces are still served");
            error::rest_plain(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", &reason)
        }
    }
}

/// Builds the report of a reload, with the issues of served namespaces (skipped files, clamped limits) and of files and folders
/// that are not namespaces.
fn body(
    core: &Core,
    report: &ReloadReport,
    snapshot: &Snapshot,
    down: &BTreeMap<NamespaceName, Failing>,
) -> serde_json::Value {
    let unserved = core.registry.unserved();
    let unserved = unserved.iter().map(|(name, issue)| (name.as_str(), issue));
    let ignored = core.registry.ignored();
    let ignored = ignored.iter().map(|(name, issue)| (name.as_str(), issue));
    // Changed namespaces are listed first, since the operator usually asks about them.
    let is_changed = |namespace: &&Arc<Namespace>| {
        let mut changed = report.workers_restarted.iter().chain(&report.deps_synced);
        changed.any(|name| *name == namespace.name)
    };
    let all = snapshot.namespaces.values();
    let (changed, others): (Vec<_>, Vec<_>) = all.partition(is_changed);
    let issues = changed.into_iter().chain(others).flat_map(|namespace| {
        let issues = namespace.issues.iter();
        issues.map(|issue| (namespace.name.as_str(), issue))
    });
    let issues: Vec<_> = issues
        .chain(unserved)
        .chain(ignored)
        .map(|(namespace, issue)| {
            json!({
                "namespace": namespace,
                "code": issue.code,
                "subject": issue.subject,
                "message": issue.message,
            })
        })
        .collect();
    let files: Vec<_> = snapshot
        .namespaces
        .values()
        .flat_map(|namespace| {
            namespace.files.iter().map(|file| {
                let mut file = json!(file);
                file["namespace"] = namespace.name.as_str().into();
                file
            })
        })
        .collect();
    let told = |namespace: &Namespace| {
        let mut failed = report.failed.iter();
        failed.any(|failure| failure.namespace == namespace.name.as_str())
    };
    // A server that failed before the reload and is still not ready is listed with the earlier reason.
    let is_up = |namespace: &Namespace| Condition::of(core, namespace).state == "ready";
    let servers = snapshot.namespaces.values().filter(|it| !told(it));
    let servers = servers.filter_map(|namespace| {
        let failing = failing::server(core, namespace);
        let last = down.get(&namespace.name).filter(|_| !is_up(namespace));
        let failing = failing.as_ref().or(last)?;
        Some(json!({
            "namespace": namespace.name,
            "code": failing.code,
            "message": failing.message,
        }))
    });
    let failed: Vec<_> = report
        .failed
        .iter()
        .map(|failure| {
            json!({
                "namespace": failure.namespace,
                "code": failure.code,
                "message": failure.message,
            })
        })
        .chain(servers)
        .collect();
    json!({
        "reloaded": true,
        "namespaces": report.namespaces,
        "workers_restarted": report.workers_restarted,
        "deps_synced": report.deps_synced,
        "removed": report.removed,
        "failed": failed,
        "issues": issues,
        "files": files,
        "coalesced": report.coalesced,
    })
}
