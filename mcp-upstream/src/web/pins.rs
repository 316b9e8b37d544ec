//! `/api/pins`: recorded definitions of servers' tools and prompts, the changes of these definitions, and operators' decisions
//! about the changes.

use std::sync::Arc;

use serde_json::json;
use tooldock_base::heavy_work;
use tooldock_base::names::NamespaceName;
use tooldock_engine::engine::shortened;
use tooldock_sessions::caller::Caller;
use tooldock_workers::pins::{Approval, PinState, Pins, PinsError, server_name};

use super::answer::{Answer, WebFailure, json_of};
use super::request::ApiRequest;
use super::trail;
use crate::mcp::Core;

/// Minimum number of characters of a digest by which a request may identify a version.
const DIGEST_MIN: usize = 8;
/// Number of characters of a digest that messages show.
const DIGEST_SHOWN: usize = 12;

fn pins(core: &Core) -> Result<Arc<Pins>, WebFailure> {
    let pins = core.registry.pins().cloned();
    pins.ok_or_else(|| {
        WebFailure::refused(
            "This process serves no servers; the core keeps the pins of their definitions",
        )
    })
}

/// Responds with the recorded definitions. They can be limited by parameters: to a `namespace` (otherwise all that the caller may
/// use), to a `name`, and to states in `state`, such as `changed,new`.
pub(super) fn list(core: &Core, caller: &Caller, request: &ApiRequest) -> Answer {
    let pins = pins(core)?;
    let (namespace, name) = (request.parameter("namespace"), request.parameter("name"));
    let wanted = states(request)?;
    if let Some(namespace) = namespace {
        named(core, caller, namespace)?;
    }
    let mut found = pins.list(namespace, name, |own| may_see(caller, own));
    if found.is_empty()
        && let Some(namespace) = namespace
    {
        is_known(core, caller, &pins, namespace, name)?;
    }
    found.retain(|it| wanted.contains(&it.state));
    let shown = |pin: &_| serde_json::to_value(pin).unwrap_or_default();
    let rest = json!({ "problem": pins.problem() });
    request.page_of("pins", found, |pin| shown(&pin), rest)
}

fn states(request: &ApiRequest) -> Result<Vec<PinState>, WebFailure> {
    let Some(text) = request.parameter("state") else {
        return Ok(PinState::ALL.to_vec());
    };
    let known = |word: &str| PinState::ALL.into_iter().find(|it| it.as_str() == word);
    let states: Option<Vec<_>> = text.split(',').map(known).collect();
    states.ok_or_else(|| {
        WebFailure::invalid(
            "state",
            "state must be approved, changed, new or suspicious, or several with commas",
        )
    })
}

/// Returns true if the caller may use a namespace. Members of an aggregate are usable if their aggregate is.
fn opens(caller: &Caller, name: &NamespaceName) -> bool {
    caller.opens(&name.owner())
}

/// Returns true if the caller may use the namespace of a record.
fn may_see(caller: &Caller, own: &str) -> bool {
    server_name(own).is_some_and(|own| opens(caller, &own))
}

/// Approves the pending version of each definition of a namespace, or only of the definition `name`. With `digest`, only versions
/// whose digest begins with it are considered. A definition with several such versions is skipped; if `name` is given, the
/// request is refused instead, and nothing is approved.
pub(super) async fn approve(
    core: &Core,
    caller: &Caller,
    request: &ApiRequest,
    namespace: &str,
) -> Answer {
    let (pins, own) = (pins(core)?, named(core, caller, namespace)?);
    let name = request.parameter("name").map(str::to_owned);
    let digest = request.parameter("digest").map(str::to_ascii_lowercase);
    if digest.as_ref().is_some_and(|it| it.len() < DIGEST_MIN) {
        let message = format!("digest must be at least the first {DIGEST_MIN} characters");
        return Err(WebFailure::invalid("digest", message));
    }
    is_known(core, caller, &pins, namespace, name.as_deref())?;
    let operation = operation("approve_pins", namespace, name.as_deref());
    let work = {
        let (pins, name, digest) = (Arc::clone(&pins), name.clone(), digest.clone());
        move || pins.approve(&own, name.as_deref(), digest.as_deref())
    };
    let versions = |done: &Approval| {
        let approved = done.approved.iter();
        let version = |(_, name, digest): &(_, String, String)| {
            format!("approve_pins {namespace} {} {digest}", shortened(name))
        };
        approved.map(version).collect()
    };
    let done = decided(core, caller, &operation, versions, work).await?;
    if let (Some((_, name, digests)), true) = (done.skipped.first(), name.is_some()) {
        let message = format!(
            "Several versions of {} wait for approval: {}; compare them by `tooldock pins diff {namespace}`, and name the one to \
             approve by --digest (parameter digest)",
            shortened(name),
            beginnings(digests)
        );
        return Err(WebFailure::refused(message));
    }
    let is_empty = done.approved.is_empty() && done.skipped.is_empty();
    if let (true, Some(digest)) = (is_empty, digest) {
        return Err(WebFailure::not_found(
            "pin_not_found",
            format!(
                "No version with the digest {digest} waits for approval; the server may have changed it again"
            ),
        ));
    }
    let approved = done.approved.into_iter();
    let approved: Vec<_> = approved
        .map(|(kind, name, digest)| json!({"kind": kind, "name": name, "digest": digest}))
        .collect();
    let skipped = done.skipped.into_iter();
    let skipped: Vec<_> = skipped
        .map(|(kind, name, digests)| json!({"kind": kind, "name": name, "digests": digests}))
        .collect();
    json_of(&json!({ "approved": approved, "skipped": skipped }))
}

/// The first characters of digests, for messages.
fn beginnings(digests: &[String]) -> String {
    let begin = |it: &String| it.chars().take(DIGEST_SHOWN).collect::<String>();
    digests.iter().map(begin).collect::<Vec<_>>().join(", ")
}

/// Deletes the records of a namespace: of all definitions, or only of the definition `name`.
pub(super) async fn forget(
    core: &Core,
    caller: &Caller,
    request: &ApiRequest,
    namespace: &str,
) -> Answer {
    let (pins, own) = (pins(core)?, named(core, caller, namespace)?);
    let name = request.parameter("name").map(str::to_owned);
    is_known(core, caller, &pins, namespace, name.as_deref())?;
    let operation = operation("forget_pins", namespace, name.as_deref());
    let work = move || pins.forget(&own, name.as_deref());
    let done = decided(core, caller, &operation, |_| Vec::new(), work).await?;
    let forgotten: Vec<_> = done
        .into_iter()
        .map(|(kind, name)| json!({"kind": kind, "name": name}))
        .collect();
    json_of(&json!({ "forgotten": forgotten }))
}

/// The operation as text for the audit log.
fn operation(what: &str, namespace: &str, name: Option<&str>) -> String {
    match name {
        Some(name) => format!("{what} {namespace} {}", shortened(name)),
        None => format!("{what} {namespace}"),
    }
}

/// Makes a decision about definitions. The decision is written to a file, so it runs outside the message threads. The
/// audit log gets the lines that `lines` makes of the result; if there are none, it gets `operation`.
async fn decided<T: Send + 'static>(
    core: &Core,
    caller: &Caller,
    operation: &str,
    lines: impl FnOnce(&T) -> Vec<String>,
    work: impl FnOnce() -> Result<T, PinsError> + Send + 'static,
) -> Result<T, WebFailure> {
    let done = heavy_work::run(&caller.principal, work).await;
    let done = match done {
        Ok(done) => done.map_err(|error| WebFailure::refused(error.to_string())),
        Err(error) => Err(WebFailure::refused(error.message)),
    };
    let mut lines = done.as_ref().map(lines).unwrap_or_default();
    if lines.is_empty() {
        lines.push(operation.to_owned());
    }
    for line in &lines {
        trail::note(core, caller, line, &done);
    }
    done
}

fn named(core: &Core, caller: &Caller, namespace: &str) -> Result<NamespaceName, WebFailure> {
    let own = server_name(namespace);
    let own = own.filter(|own| opens(caller, own));
    own.ok_or_else(|| unknown(core, caller, namespace))
}

/// Returns an error if a namespace or a definition has no record. A served namespace may have no records yet.
fn is_known(
    core: &Core,
    caller: &Caller,
    pins: &Pins,
    namespace: &str,
    name: Option<&str>,
) -> Result<(), WebFailure> {
    let is_recorded = !pins.list(Some(namespace), None, |_| true).is_empty();
    let is_served = || {
        let name = server_name(namespace);
        name.is_some_and(|name| core.registry.find(&name).is_some())
    };
    if !is_recorded && !is_served() {
        return Err(unknown(core, caller, namespace));
    }
    let Some(name) = name else { return Ok(()) };
    let found = pins.list(Some(namespace), Some(name), |_| true);
    if found.iter().any(|it| it.namespace == namespace) {
        return Ok(());
    }
    if let Some(other) = found.iter().find(|it| may_see(caller, &it.namespace)) {
        let message = format!(
            "{} is a definition of {}: name that",
            shortened(name),
            other.namespace
        );
        return Err(WebFailure::not_found("pin_not_found", message));
    }
    let near = pins.nearest(Some(namespace), name, |own| may_see(caller, own));
    Err(WebFailure::not_found(
        "pin_not_found",
        format!(
            "{namespace} has no recorded definition {}{}",
            shortened(name),
            proposed(near)
        ),
    ))
}

/// The failure for a namespace that does not exist, or that the caller may not use. Both cases get the same message, so that the
/// caller cannot distinguish them.
fn unknown(core: &Core, caller: &Caller, namespace: &str) -> WebFailure {
    let near = core
        .registry
        .pins()
        .and_then(|it| it.nearest(None, namespace, |own| may_see(caller, own)));
    WebFailure::not_found(
        "namespace_not_found",
        format!(
            "There is no namespace {}, and no record of one{}",
            shortened(namespace),
            proposed(near)
        ),
    )
}

fn proposed(near: Option<String>) -> String {
    near.map_or_else(String::new, |near| format!("; did you mean {near}?"))
}
