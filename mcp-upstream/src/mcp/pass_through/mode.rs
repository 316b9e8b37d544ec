//! Which messages of a remote server are passed on: what its `mode` says, and with `auto` what is known without asking.
//!
//! A legacy session has one mode from `initialize` to its end: it is passed on if its record says where to.

use tooldock_workers::external::Isolation;
use tooldock_workers::registry::Namespace;
use tooldock_workers::remote::{Mode, Transport};

use super::remote;
use crate::mcp::head::AcceptFlags;
use crate::mcp::initialize::Asked;
use crate::protocol::{Era, EraSupport, ProtocolVersion};
use crate::upstream::CallContext;

/// Whether a legacy message is passed on; `opening` is what an `initialize` asks for.
pub(super) fn legacy(
    cx: &CallContext<'_>,
    accept: AcceptFlags,
    opening: Option<&Asked<'_>>,
) -> bool {
    if let Some(session) = cx.session() {
        return session.affinity().is_some();
    }
    match remote(&cx.namespace).map(|server| server.spec.mode) {
        None | Some(Mode::Client) => false,
        Some(Mode::PassThrough) => true,
        Some(Mode::Auto) => opening.is_some_and(|asked| {
            let version = asked.version.parse().ok();
            let version = version.filter(|version| cx.caller.profile.supports(*version));
            // A client of an earlier version may send batches, which only client mode takes apart.
            version.is_some_and(|version| version >= ProtocolVersion::V2025_06_18)
                && as_it_is(cx, accept, Era::Legacy)
        }),
    }
}

/// Whether a request of 2026-07-28 is passed on.
pub(super) fn modern(cx: &CallContext<'_>, accept: AcceptFlags, method: &str) -> bool {
    match remote(&cx.namespace).map(|server| server.spec.mode) {
        None | Some(Mode::Client) => false,
        Some(Mode::PassThrough) => true,
        // What the gateway offers is more than what the server does: it bridges.
        Some(Mode::Auto) => method != "server/discover" && as_it_is(cx, accept, Era::Modern),
    }
}

/// Whether nothing of a conversation in that era would have to change on its way.
fn as_it_is(cx: &CallContext<'_>, accept: AcceptFlags, era: Era) -> bool {
    accept.json_acceptable
        && accept.sse_named
        && changes_nothing(&cx.namespace)
        && speaks(cx.upstream.speaks(&cx.namespace, era), era)
}

/// Whether the server is known to speak an era.
fn speaks(known: Option<EraSupport>, era: Era) -> bool {
    match era {
        Era::Legacy => matches!(known, Some(EraSupport::Legacy | EraSupport::Dual)),
        Era::Modern => matches!(
            known,
            Some(EraSupport::Modern | EraSupport::ModernAtLeast | EraSupport::Dual)
        ),
    }
}

/// Whether the configuration wants nothing that only client mode can do.
fn changes_nothing(namespace: &Namespace) -> bool {
    remote(namespace).is_some_and(|server| {
        server.spec.isolation == Isolation::Auto && server.spec.transport != Transport::Sse
    }) && namespace.policy.allows_every_tool()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_passed_on_to_only_in_an_era_it_is_known_to_speak() {
        use EraSupport::{Dual, Legacy, Modern, ModernAtLeast};
        for (known, legacy, modern) in [
            (None, false, false),
            (Some(Legacy), true, false),
            (Some(Modern), false, true),
            (Some(ModernAtLeast), false, true),
            (Some(Dual), true, true),
        ] {
            assert_eq!(speaks(known, Era::Legacy), legacy, "{known:?}");
            assert_eq!(speaks(known, Era::Modern), modern, "{known:?}");
        }
    }
}
