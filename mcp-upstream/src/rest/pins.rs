//! Counts of a namespace's pinned definitions that wait for an operator's decision, for `/ready`, `explain` and the metrics.

use tooldock_base::config::PinMode;
use tooldock_workers::explain::{self, Rule};
use tooldock_workers::pins::{PinCounts, PinKind};
use tooldock_workers::registry::{Namespace, UpstreamKind};

use crate::mcp::Core;

/// Counts the pins of a namespace; for an aggregate, also those of the servers that its own file defines. `None` if nothing is
/// pinned.
pub(crate) fn of(core: &Core, namespace: &Namespace) -> Option<PinCounts> {
    let pins = core.registry.pins()?;
    let own = |it: &Namespace| {
        let is_pinned = it.limits.pins != PinMode::Off;
        pins.counts(&it.name).filter(|_| is_pinned)
    };
    match &namespace.upstream {
        UpstreamKind::External(_) | UpstreamKind::Remote(_) => own(namespace),
        UpstreamKind::Aggregate(aggregate) => {
            let members = aggregate.own_namespaces().filter_map(|it| own(it));
            members.reduce(PinCounts::with)
        }
        UpstreamKind::Worker(_)
        | UpstreamKind::Empty
        | UpstreamKind::System
        | UpstreamKind::Failed(_) => None,
    }
}

/// The rule that refuses a tool of a server until its definition is approved; `None` if no pin refuses it.
pub(super) fn rule(core: &Core, namespace: &Namespace, tool: &str) -> Option<Rule> {
    let pins = core.registry.pins()?.known(&namespace.name)?;
    let held = pins.held_back(PinKind::Tool, tool)?;
    Some(explain::of_pins(&namespace.name, held))
}
