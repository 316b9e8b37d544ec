//! `/api/status`: the state of the whole gateway in one response, for `tooldock status`.

use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tooldock_sessions::caller::Caller;

use super::answer::{Answer, json_of};
use super::namespaces::namespace_json;
use super::overview::figures_with_uptime;
use crate::mcp::Core;

/// Responds with the dashboard, all namespaces, the expiry of certificates, the last reload and the replicas.
pub(super) fn status(core: &Core, caller: &Caller) -> Answer {
    let snapshot = core.registry.snapshot();
    let figures = core.figures.now(&core.metrics);
    let visible = snapshot.namespaces.values().filter(|it| caller.may_use(it));
    let namespaces: Vec<_> = visible
        .map(|namespace| namespace_json(core, caller, namespace, &figures))
        .collect();
    let unserved = core.registry.unserved();
    let unserved: Vec<_> = unserved
        .iter()
        .filter(|(name, _)| caller.opens(name))
        .map(|(name, issue)| json!({"name": name, "code": issue.code, "message": issue.message}))
        .collect();
    let ends = core.web.as_deref().map(|facts| facts.certificates.ends());
    let ends = ends.unwrap_or_default().into_iter();
    let certificates: Vec<_> = ends
        .map(|(listener, end)| json!({"listener": listener, "ends": at(OffsetDateTime::from_unix_timestamp(end).ok())}))
        .collect();
    let reload = core.registry.last_reload().map(|reload| {
        json!({
            "result": reload.result,
            "at": at(Some(reload.at.into())),
            "seconds": reload.took.as_secs_f64(),
            "problem": reload.problem,
        })
    });
    let pins = core.registry.pins().and_then(|it| it.problem());
    json_of(&json!({
        "gateway": figures_with_uptime(core, caller),
        "namespaces": namespaces,
        "unserved": unserved,
        "certificates": certificates,
        "reload": reload,
        "pins": pins.map(|problem| json!({ "problem": problem })),
        "replicas": core.sessions.replicas().state(),
    }))
}

/// A time in the format of the API; null if there is no time, or if it cannot be formatted.
fn at(time: Option<OffsetDateTime>) -> Value {
    time.and_then(|time| time.format(&Rfc3339).ok()).into()
}
