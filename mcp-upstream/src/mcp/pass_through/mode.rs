//! Which messages of a remote server are passed on: what its `mode` says, and with `auto` what is known without asking.
//!
//! A legacy session has one mode from `initialize` to its end: it is passed on if its record says where to.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use tooldock_workers::external::Isolation;
use tooldock_workers::remote::{Mode, Transport};

use super::remote;
use crate::mcp::head::AcceptFlags;
use crate::protocol::{Era, EraSupport};
use crate::upstream::{CallContext, Client};

/// Whether a legacy message is passed on. A session is where the operator says so: client mode does more for it (it takes
/// batches apart, keeps what its client missed, and tells a new session what the old one was told).
pub(super) fn legacy(cx: &CallContext<'_>) -> bool {
    if let Some(session) = cx.session() {
        return session.affinity().is_some();
    }
    remote(&cx.namespace).is_some_and(|server| server.spec.mode == Mode::PassThrough)
}

/// Whether a request of 2026-07-28 is passed on.
pub(super) fn modern(cx: &CallContext<'_>, accept: AcceptFlags, method: &str) -> bool {
    match remote(&cx.namespace).map(|server| server.spec.mode) {
        None | Some(Mode::Client) => false,
        // Whose a task is, the gateway's own client knows.
        Some(Mode::PassThrough) => !takes_tasks(cx, method),
        // What the gateway offers is more than what the server does: it bridges.
        Some(Mode::Auto) => {
            method != "server/discover" && !takes_tasks(cx, method) && as_it_is(cx, accept)
        }
    }
}

/// Whether nothing of a request would have to change on its way.
fn as_it_is(cx: &CallContext<'_>, accept: AcceptFlags) -> bool {
    accept.json_acceptable
        && accept.sse_named
        && changes_nothing(cx)
        && speaks_modern(cx.upstream.speaks(&cx.namespace, Era::Modern))
}

/// Whether a request is about a task, or may begin one.
fn takes_tasks(cx: &CallContext<'_>, method: &str) -> bool {
    static TASKS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("tasks"));
    let declared = match &cx.client {
        Client::Modern(meta) => TASKS.find(&meta.capabilities).is_some(),
        _ => false,
    };
    declared || method.starts_with("tasks/")
}

/// Whether the server is known to speak 2026-07-28.
fn speaks_modern(known: Option<EraSupport>) -> bool {
    matches!(
        known,
        Some(EraSupport::Modern | EraSupport::ModernAtLeast | EraSupport::Dual)
    )
}

/// Whether the configuration wants nothing that only client mode can do.
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
