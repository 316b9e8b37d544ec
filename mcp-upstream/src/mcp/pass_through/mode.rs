//! Decides which messages for a remote server are forwarded in pass-through mode: by the server's `mode`, or with `auto` by the
//! facts already known, without a request to the server.
//!
//! Under `pins: enforce` nothing is passed through, since lists must be read before clients get them.
//!
//! A legacy session has one mode from `initialize` to its end: its messages are forwarded if its record names a backend.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use tooldock_base::config::PinMode;
use tooldock_workers::remote::{Mode, Transport};
use tooldock_workers::server_settings::Isolation;

use super::remote;
use crate::mcp::head::AcceptFlags;
use crate::protocol::{Era, EraSupport};
use crate::upstream::{CallContext, Client};
use tooldock_sessions::catalogue::ListKind;

/// Returns true if a legacy message is forwarded in pass-through mode. Sessions require an explicit setting for that, since
/// client mode does more for them: it splits batches, stores events that a client missed, and repeats the client's settings in
/// a new session.
pub(super) fn legacy(cx: &CallContext<'_>) -> bool {
    if cx.namespace.limits.pins == PinMode::Enforce {
        return false;
    }
    if let Some(session) = cx.session() {
        return session.affinity().is_some();
    }
    remote(&cx.namespace).is_some_and(|server| server.spec.mode == Mode::PassThrough)
}

/// Returns true if a request of 2026-07-28 is passed through.
pub(super) fn modern(cx: &CallContext<'_>, accept: AcceptFlags, method: &str) -> bool {
    let pins = cx.namespace.limits.pins;
    if pins == PinMode::Enforce {
        return false;
    }
    match remote(&cx.namespace).map(|server| server.spec.mode) {
        None | Some(Mode::Client) => false,
        // Task ownership is tracked in client mode only.
        Some(Mode::PassThrough) => !takes_tasks(cx, method),
        // `server/discover` is answered in client mode, which bridges eras and so offers more than the server.
        Some(Mode::Auto) => {
            // Lists are recorded in client mode, but for resources, which have no pins.
            let list = ListKind::of(method).filter(|it| *it != ListKind::Resources);
            let is_pinned_list = pins != PinMode::Off && list.is_some();
            method != "server/discover"
                && !is_pinned_list
                && !takes_tasks(cx, method)
                && as_it_is(cx, accept)
        }
    }
}

/// Returns true if client mode would not change the request or its answer.
fn as_it_is(cx: &CallContext<'_>, accept: AcceptFlags) -> bool {
    accept.json_acceptable
        && accept.sse_named
        && changes_nothing(cx)
        && speaks_modern(cx.upstream.speaks(&cx.namespace, Era::Modern))
}

/// Returns true if a request concerns a task, or may start one.
fn takes_tasks(cx: &CallContext<'_>, method: &str) -> bool {
    static TASKS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("tasks"));
    let declared = match &cx.client {
        Client::Modern(meta) => TASKS.find(&meta.capabilities).is_some(),
        _ => false,
    };
    declared || method.starts_with("tasks/")
}

/// Returns true if the server is known to speak 2026-07-28.
fn speaks_modern(known: Option<EraSupport>) -> bool {
    matches!(
        known,
        Some(EraSupport::Modern | EraSupport::ModernAtLeast | EraSupport::Dual)
    )
}

/// Returns true if the configuration requires nothing that only client mode can do.
fn changes_nothing(cx: &CallContext<'_>) -> bool {
    remote(&cx.namespace).is_some_and(|server| {
        server.spec.isolation == Isolation::Auto && server.spec.transport != Transport::Sse
    }) && cx.view().allows_every_tool()
        && !cx.namespace.limits.coerce_arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_passed_on_only_to_a_server_that_is_known_to_speak_its_era() {
        use EraSupport::{Dual, Legacy, Modern, ModernAtLeast};
        for (known, passes) in [
            (None, false),
            (Some(Legacy), false),
            (Some(Modern), true),
            (Some(ModernAtLeast), true),
            (Some(Dual), true),
        ] {
            assert_eq!(speaks_modern(known), passes, "{known:?}");
        }
    }
}
