//! `POST /reload` (EX-80). Its three controls are the edge's; by the time a request is here it may reload.

use std::sync::Arc;

use async_trait::async_trait;
use axum::extract::State;
use http::StatusCode;
use serde_json::json;
use tooldock_workers::registry::Snapshot;
use tooldock_workers::reload::ReloadReport;

use crate::error;
use crate::reply::Reply;
use crate::state::Core;

/// Whoever can reload the namespaces.
#[async_trait]
pub trait ReloadControl: Send + Sync {
    /// Rescans the folders and swaps in what changed. A second reload at the same time shares the first one's outcome.
    ///
    /// # Errors
    ///
    /// Why nothing was changed, in one line.
    async fn reload(&self) -> Result<Arc<ReloadReport>, String>;
}

/// A namespace that failed does not fail the reload: it is named in `failed`, the others are served.
pub(super) async fn reload(State(core): State<Arc<Core>>) -> Reply {
    let Some(reloader) = &core.reloader else {
        return error::rest_plain(
            StatusCode::SERVICE_UNAVAILABLE,
            "reload_unavailable",
            "This process cannot reload",
        );
    };
    match reloader.reload().await {
        Ok(report) => super::json(&body(&report, &core.registry.snapshot())),
        Err(reason) => {
            tracing::error!(%reason, "the reload failed; what was served before is served on");
            error::rest_plain(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", &reason)
        }
    }
}

/// What was done, and what is wrong with the namespaces that are served all the same: skipped files, clamped limits.
fn body(report: &ReloadReport, snapshot: &Snapshot) -> serde_json::Value {
    let issues: Vec<_> = snapshot
        .namespaces
        .values()
        .flat_map(|namespace| {
            namespace.issues.iter().map(|issue| {
                json!({
                    "namespace": namespace.name,
                    "code": issue.code,
                    "subject": issue.subject,
                    "message": issue.message,
                })
            })
        })
        .collect();
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
        .collect();
    json!({
        "reloaded": true,
        "namespaces": report.namespaces,
        "workers_restarted": report.workers_restarted,
        "deps_synced": report.deps_synced,
        "removed": report.removed,
        "failed": failed,
        "issues": issues,
        "coalesced": report.coalesced,
    })
}
