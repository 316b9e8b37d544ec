//! Visibility of an aggregate's entries: whether a client may learn about an entry.
//!
//! | member | visible |
//! |---|---|
//! | a server of the aggregate alone | all that the file's policy allows |
//! | a namespace that clients can also call directly | to callers with access to that namespace, all that its policy allows |
//! | another aggregate | by the same rules, for its members |
//!
//! A tool is visible only if the scopes of the caller's credential also open it in its own namespace.
//!
//! If a session's own instance of a server has permanently ended, that server offers nothing in the session (AGG-35).

use std::sync::{Arc, OnceLock};

use tooldock_sessions::catalogue::View;
use tooldock_workers::registry::Namespace;

use super::catalogue::{EntryKind, PublishedEntry};
use super::request::{AggregateRequest, may_reach};
use crate::upstream::ServerCopy;

/// The members' namespaces by position, each looked up once per request; `None` for members that the caller may not use.
pub(super) struct VisibleMembers(Box<[OnceLock<Option<Arc<Namespace>>>]>);

impl VisibleMembers {
    /// Creates the value for this number of members. No namespace is looked up yet: each lookup is made when it is first needed.
    pub(super) fn new(members: usize) -> Self {
        Self((0..members).map(|_| OnceLock::new()).collect())
    }

    /// Returns true if the caller of a request may learn about an entry.
    pub(super) fn shows(&self, asked: &AggregateRequest<'_>, entry: &PublishedEntry) -> bool {
        is_open(asked, entry)
            && self
                .member(asked, entry.member)
                .is_some_and(|namespace| is_open_in(asked, entry, namespace))
    }

    /// The namespace of a member that the caller may use.
    fn member(&self, asked: &AggregateRequest<'_>, at: usize) -> Option<&Arc<Namespace>> {
        let known = self.0.get(at)?.get_or_init(|| {
            let slot = &asked.live.slots[at];
            let namespace = slot.namespace(&asked.shared.home.registry)?;
            let is_open = may_reach(asked.cx.caller, slot, &namespace)
                && asked.copy(Arc::clone(&namespace)) != ServerCopy::Ended;
            is_open.then_some(namespace)
        });
        known.as_ref()
    }
}

/// Returns true if the caller of a request could learn about an entry if the entry's server were available.
pub(super) fn reveals_entry(asked: &AggregateRequest<'_>, entry: &PublishedEntry) -> bool {
    let slot = &asked.live.slots[entry.member];
    let namespace = slot.namespace(&asked.shared.home.registry);
    is_open(asked, entry)
        && namespace.is_some_and(|namespace| {
            may_reach(asked.cx.caller, slot, &namespace) && is_open_in(asked, entry, &namespace)
        })
}

/// Returns true if the policy of the aggregate allows an entry.
fn is_open(asked: &AggregateRequest<'_>, entry: &PublishedEntry) -> bool {
    // Patterns may be written for the published or for the original name.
    let mut names = [Some(&entry.published), entry.unsafe_name.as_ref()]
        .into_iter()
        .flatten();
    entry.kind != EntryKind::Tool || names.all(|name| asked.cx.view().allows_tool(name))
}

/// Returns true if the policy of the entry's member and the caller's scopes allow an entry.
fn is_open_in(
    asked: &AggregateRequest<'_>,
    entry: &PublishedEntry,
    namespace: &Arc<Namespace>,
) -> bool {
    let is_tool = entry.kind == EntryKind::Tool;
    (!is_tool || View::of(asked.cx.caller, namespace).allows_tool(&entry.own))
        && (!super::is_aggregate(namespace)
            || inside(asked, namespace, entry, |inner, entry| {
                inner.is_visible(entry)
            }))
}

/// Evaluates `says` for the corresponding entry inside a member that is an aggregate itself, on behalf of this caller. Returns
/// false if there is no such entry.
fn inside(
    asked: &AggregateRequest<'_>,
    namespace: &Arc<Namespace>,
    entry: &PublishedEntry,
    says: impl Fn(&AggregateRequest<'_>, &PublishedEntry) -> bool,
) -> bool {
    let runner = asked.shared.runner(namespace);
    let cx = asked.child(asked.cx.body, Arc::clone(namespace), runner.upstream());
    let Ok(inner) = AggregateRequest::new(asked.shared, &cx, None) else {
        return false;
    };
    let inner_entry = inner.catalogue.find(entry.kind, &entry.own);
    inner_entry.is_some_and(|entry| says(&inner, entry))
}
