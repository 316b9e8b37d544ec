//! Decides which messages for a remote server are forwarded in pass-through mode: by the server's `mode`, or for `mode: auto` by
//! facts that the gateway already has, without a request to the server.
//!
//! Under `pins: enforce` no message is passed through, since the gateway must check lists before clients get them. Messages of a
//! namespace with a hook are not passed through either, since hooks see the messages of client mode alone.
//!
//! A legacy session has one mode from `initialize` to its end: its messages are forwarded if its record names a backend.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use tooldock_base::config::PinMode;
use tooldock_engine::upstream::{CallContext, Client};
use tooldock_sessions::catalogue::ListKind;
use tooldock_workers::remote::{Mode, Transport};
use tooldock_workers::server_settings::Isolation;

use super::remote;
use crate::mcp::head::AcceptFlags;
use crate::protocol::{Era, EraSupport};
use tooldock_engine::hooks::Hooks;

/// Returns true if a legacy message is forwarded in pass-through mode. Sessions use pass-through only by an explicit setting,
/// since client mode does more for them: it splits batches, stores events that a client missed, and sends the client's
/// settings again in a new session at the server.
pub(super) fn legacy(hooks: &Hooks, cx: &CallContext<'_>) -> bool {
    if cx.namespace.limits.pins == PinMode::Enforce || hooks.cover(&cx.namespace.name) {
        return false;
    }
    if let Some(session) = cx.session() {
        return session.affinity().is_some();
    }
    remote(&cx.namespace).is_some_and(|server| server.spec.mode == Mode::PassThrough)
}

/// Returns true if a request of 2026-07-28 is passed through.
pub(super) fn modern(
    hooks: &Hooks,
    cx: &CallContext<'_>,
    accept: AcceptFlags,
    method: &str,
) -> bool {
    let pins = cx.namespace.limits.pins;
    if pins == PinMode::Enforce || hooks.cover(&cx.namespace.name) {
        return false;
    }
    match remote(&cx.namespace).map(|server| server.spec.mode) {
        None | Some(Mode::Client) => false,
        // Requests about tasks are handled in client mode, since only client mode records the owners of tasks.
        Some(Mode::PassThrough) => !takes_tasks(cx, method),
        // `server/discover` is answered in client mode, since the gateway supports both eras and so offers more than the server.
        Some(Mode::Auto) => {
            // Lists are handled in client mode, which records their definitions as pins. Lists of resources have no pins.
            let list = ListKind::of(method).filter(|it| *it != ListKind::Resources);
            let is_pinned_list = pins != PinMode::Off && list.is_some();
            method != "server/discover"
                && !is_pinned_list
                && !takes_tasks(cx, method)
                && as_it_is(cx, accept)
        }
    }
}

/// Returns true if client mode would forward the request and its answer unchanged.
fn as_it_is(cx: &CallContext<'_>, accept: AcceptFlags) -> bool {
    accept.json_acceptable
        && accept.sse_named
        && changes_nothing(cx)
        && speaks_modern(
            cx.upstream
                .server_facts()
                .known_eras(&cx.namespace, Era::Modern),
        )
}

/// Returns true if a request is about a task, or may start one.
fn takes_tasks(cx: &CallContext<'_>, method: &str) -> bool {
    static TASKS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("tasks"));
    let declared = match &cx.client {
        Client::Modern(meta) => TASKS.find(&meta.capabilities).is_some(),
        _ => false,
    };
    declared || method.starts_with("tasks/")
}

/// Returns true if the server is known to support 2026-07-28.
fn speaks_modern(known: Option<EraSupport>) -> bool {
    matches!(
        known,
        Some(EraSupport::Modern | EraSupport::ModernAtLeast | EraSupport::Dual)
    )
}

/// Returns true if the namespace's configuration requires nothing that only client mode can do.
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
