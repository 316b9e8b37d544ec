//! Notifications of clients that are for their server.

use std::sync::Arc;

use dashmap::DashMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tooldock_workers::names::NamespaceName;

use super::isolation::Who;
use super::process::{Opening, ProcessKey};
use crate::mcp::Conversation;

/// What the gateway acts on itself.
const OURS: [&str; 3] = [
    "notifications/initialized",
    "initialized",
    "notifications/cancelled",
];
/// What one of several clients must not tell a server they share.
const PRIVATE: [&str; 2] = ["notifications/roots/list_changed", "notifications/progress"];

/// Notifications of one namespace that are on their way at a time. Each may wait for a process; beyond, they are dropped.
const ON_THE_WAY_MAX: usize = 32;

/// The notifications on their way, by namespace. Holds nothing of a namespace that has none.
#[derive(Debug, Default)]
pub(super) struct Notices(DashMap<NamespaceName, Arc<Semaphore>>);

impl Notices {
    /// A place for one more, if there is one.
    fn begin(&self, namespace: &NamespaceName) -> Option<OwnedSemaphorePermit> {
        if !self.0.contains_key(namespace) {
            // Whoever has a place holds on to what it is one of.
            self.0.retain(|_, places| Arc::strong_count(places) > 1);
        }
        let entry = self.0.entry(namespace.clone());
        let places = entry.or_insert_with(|| Arc::new(Semaphore::new(ON_THE_WAY_MAX)));
        Arc::clone(&places).try_acquire_owned().ok()
    }
}

/// Passes a whole notification on, if its server is to hear of it. Does not wait: that nobody could be told is no error of
/// who said it.
pub(crate) fn notify(conversation: &Conversation<'_>, message: &str, method: &str) {
    let core = conversation.core;
    if OURS.contains(&method) || !core.external.serves(&conversation.namespace) {
        return;
    }
    let external = Arc::clone(&core.external);
    let Some(on_the_way) = external.notices.begin(&conversation.namespace.name) else {
        tracing::debug!(namespace = %conversation.namespace.name, "a client's notification was dropped: too many at a time");
        return;
    };
    let namespace = Arc::clone(&conversation.namespace);
    let principal = conversation.caller.principal.clone();
    let who = conversation.who();
    let (method, message) = (method.to_owned(), message.to_owned());
    // Bounded by its place and by the time a process may take to start.
    tokio::spawn(async move {
        let _on_the_way = on_the_way;
        let place = external.place(&namespace, &who, principal.as_ref(), &method);
        let Ok(place) = place.await else {
            return;
        };
        let private = PRIVATE.contains(&&*method);
        let told = match place.key {
            ProcessKey::Session(_) => true,
            ProcessKey::Shared | ProcessKey::Principal(_) => !private,
            // One that was started for nothing else would hear of what it knows nothing of.
            ProcessKey::Exclusive => false,
        };
        if !told {
            return;
        }
        let Ok(leased) = external.lease_at(&namespace, &who, place).await else {
            return;
        };
        let alike = matches!(
            (&who, leased.process.opening()),
            (Who::Modern(_), Opening::Modern(_))
                | (Who::Session(_) | Who::Bare, Opening::Legacy(_))
        );
        if alike || !private {
            let _ = leased.process.notify(&message);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_has_so_many_on_their_way_and_others_have_their_own() {
        let notices = Notices::default();
        let [a, b]: [NamespaceName; 2] = ["a", "b"].map(|name| name.parse().expect("a name"));
        let mut held: Vec<_> = std::iter::from_fn(|| notices.begin(&a)).collect();
        assert_eq!(held.len(), ON_THE_WAY_MAX);
        assert!(notices.begin(&b).is_some() && notices.begin(&a).is_none());
        held.pop();
        assert!(notices.begin(&a).is_some());
        held.clear();
        // What has none is forgotten with the next that begins.
        let _b = notices.begin(&b);
        let c = "c".parse().expect("a name");
        let _c = notices.begin(&c);
        assert_eq!(notices.0.len(), 2);
    }
}
