//! `/api/me`, `/api/dashboard` and `/api/events`: the state of the gateway, now and as it changes (GUI-03).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::MissedTickBehavior;
use tooldock_engine::metrics::figures::{Figures, Rates};
use tooldock_sessions::caller::Caller;
use tooldock_workers::registry::Snapshot;

use super::answer::{Answer, json_of};
use super::namespaces::namespace_json;
use super::request::ApiRequest;
use super::streams;
use crate::mcp::Core;
use crate::rest;

/// Interval at which a stream checks for changes.
const EVERY: Duration = Duration::from_secs(1);
/// Maximum number of namespaces that a stream of the overview reports.
const NAMESPACES_MAX: usize = 500;

pub(super) fn me(core: &Core, caller: &Caller, request: &ApiRequest) -> Answer {
    let url = &caller.profile.public_url;
    let prefix = &caller.profile.path_prefix;
    json_of(&json!({
        "mcp_url": (!url.is_empty()).then(|| format!("{url}{prefix}/mcp")),
        "principal": caller.principal_name(),
        "version": env!("CARGO_PKG_VERSION"),
        "management": core.management.is_some(),
        "secure": request.is_private,
    }))
}

pub(super) fn dashboard(core: &Core, caller: &Caller) -> Answer {
    json_of(&figures_with_uptime(core, caller))
}

/// The values of the dashboard, with the time since the gateway's start.
pub(super) fn figures_with_uptime(core: &Core, caller: &Caller) -> Value {
    let mut dashboard = figures_of(core, caller);
    dashboard["uptime_seconds"] = core.health.uptime_seconds().into();
    dashboard
}

/// The values of the dashboard, without those that change every second.
fn figures_of(core: &Core, caller: &Caller) -> Value {
    let snapshot = core.registry.snapshot();
    let figures = core.figures.now(&core.metrics);
    let visible = || snapshot.namespaces.values().filter(|it| caller.may_use(it));
    let servers = || visible().filter(|it| it.is_server());
    let running = servers().filter(|it| !is_down(core, it)).count();
    let tools: usize = visible().map(|it| rest::tool_count(core, caller, it)).sum();
    let Rates {
        calls,
        error_rate,
        p95_ms,
    } = figures.of_all();
    let status = match (core.health.is_draining(), core.health.is_ready()) {
        (true, _) => "draining",
        (_, true) => "ready",
        _ => "starting",
    };
    let problem = core
        .registry
        .problem()
        .map(|it| json!({"code": it.code, "subject": it.subject, "message": it.message}));
    let facts = core.web.as_deref();
    json!({
        "namespaces": visible().count(),
        "tools": tools,
        "servers": {"total": servers().count(), "running": running},
        "data_dir": facts.map(|it| it.data_dir.display().to_string()),
        "host_data_dir": facts.map(|it| it.host_data_dir.clone()),
        "version": env!("CARGO_PKG_VERSION"),
        "status": status,
        "sessions": core.sessions.count(),
        "streams": core.metrics.streams.open_now(),
        "calls_per_minute": calls,
        "error_rate": error_rate,
        "p95_ms": p95_ms,
        "problem": problem,
    })
}

fn is_down(core: &Core, namespace: &tooldock_workers::registry::Namespace) -> bool {
    rest::failing::of(core, namespace).is_some()
}

pub(super) fn events(core: &Arc<Core>, caller: &Caller) -> Answer {
    let (fed, told) = (Arc::clone(core), caller.clone());
    streams::open(core, caller, move |stream| async move {
        let mut tick = tokio::time::interval(EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = SentOverview::default();
        loop {
            tick.tick().await;
            let Some(event) = last.changes(&fed, &told) else {
                continue;
            };
            if !stream.event("overview", &event) {
                return;
            }
        }
    })
}

/// The state that a stream of the overview has sent to its client.
#[derive(Default)]
struct SentOverview {
    dashboard: Option<Value>,
    namespaces: BTreeMap<String, Value>,
}

impl SentOverview {
    /// The changes since the last event of the stream; `None` if nothing changed.
    fn changes(&mut self, core: &Core, caller: &Caller) -> Option<Value> {
        let snapshot = core.registry.snapshot();
        let figures = core.figures.now(&core.metrics);
        let now = overview(core, caller, &snapshot, &figures);
        let changed: Vec<_> = now
            .iter()
            .filter(|(name, value)| self.namespaces.get(*name) != Some(value))
            .map(|(_, value)| value.clone())
            .collect();
        let removed: Vec<_> = self
            .namespaces
            .keys()
            .filter(|name| !now.contains_key(*name))
            .cloned()
            .collect();
        let dashboard = figures_of(core, caller);
        if changed.is_empty() && removed.is_empty() && self.dashboard.as_ref() == Some(&dashboard) {
            return None;
        }
        self.namespaces = now;
        self.dashboard = Some(dashboard.clone());
        let mut event = json!({"dashboard": dashboard, "namespaces": changed, "removed": removed});
        event["dashboard"]["uptime_seconds"] = core.health.uptime_seconds().into();
        if snapshot.namespaces.len() > NAMESPACES_MAX {
            event["more"] = true.into();
        }
        Some(event)
    }
}

fn overview(
    core: &Core,
    caller: &Caller,
    snapshot: &Snapshot,
    figures: &Figures,
) -> BTreeMap<String, Value> {
    let visible = snapshot.namespaces.values().filter(|it| caller.may_use(it));
    let first = visible.take(NAMESPACES_MAX);
    let shown = first.map(|it| {
        (
            it.name.to_string(),
            namespace_json(core, caller, it, figures),
        )
    });
    shown.collect()
}
