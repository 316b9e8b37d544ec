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
use tooldock_engine::upstream::{CallContext, Client, RequestMeta};
use tooldock_sessions::catalogue::ListKind;
use tooldock_sessions::session::Session;
use tooldock_workers::remote::{Mode, Transport};
use tooldock_workers::server_settings::Isolation;

use super::remote;
use crate::jsonrpc::{Key, Message};
use crate::mcp::Core;
use crate::mcp::head::AcceptFlags;
use crate::protocol::{Era, EraSupport};

/// Returns true if the session was opened in pass-through mode, and so has this mode to its end.
pub(in crate::mcp) fn has_session(session: &Session) -> bool {
    session.affinity().is_some()
}

/// Returns true if the message of a body is forwarded in pass-through mode. Legacy clients get this mode only by an explicit
/// setting, since client mode does more for their sessions: it splits batches, stores events that a client missed, and sends the
/// client's settings again in a new session at the server. `message`: `None` for a batch, which legacy clients alone can send.
pub(super) fn passes(
    core: &Core,
    cx: &CallContext<'_>,
    accept: AcceptFlags,
    message: Option<&Message<'_>>,
) -> bool {
    let pins = cx.namespace.limits.pins;
    let mode = remote(&cx.namespace).map(|server| server.spec.mode);
    if pins == PinMode::Enforce || core.engine.hooks.cover(&cx.namespace.name) {
        return false;
    }
    let (meta, method, members) = match (&cx.client, message) {
        (Client::Session(session), _) => return has_session(session),
        (Client::Legacy(_), _) => return mode == Some(Mode::PassThrough),
        (
            Client::Modern(meta),
            Some(Message::Request {
                method, members, ..
            }),
        ) => (meta, &**method, members),
        (Client::Modern(_) | Client::Plain, _) => return false,
    };
    let passes = match mode {
        None | Some(Mode::Client) => false,
        // Requests about tasks are handled in client mode, since only client mode records the owners of tasks.
        Some(Mode::PassThrough) => !takes_tasks(meta, method),
        // `server/discover` is answered in client mode, since the gateway supports both eras and so offers more than the server.
        Some(Mode::Auto) => {
            // Lists are handled in client mode, which records their definitions as pins. Lists of resources have no pins.
            let list = ListKind::of(method).filter(|it| *it != ListKind::Resources);
            let is_pinned_list = pins != PinMode::Off && list.is_some();
            method != "server/discover"
                && !is_pinned_list
                && !takes_tasks(meta, method)
                && as_it_is(cx, accept)
        }
    };
    // A request that continues a call of client mode is handled there, too.
    passes && !core.suspended.seals(members.get(Key::RequestState))
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
fn takes_tasks(meta: &RequestMeta, method: &str) -> bool {
    static TASKS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("tasks"));
    TASKS.find(&meta.capabilities).is_some() || method.starts_with("tasks/")
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
