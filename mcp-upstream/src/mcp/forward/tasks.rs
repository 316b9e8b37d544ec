//! Whose tasks a shared process may hold.
//!
//! A server tells its clients' tasks apart by the connection, and several clients have one here. `tasks/list` would show
//! each of them the others'. So it passes to a shared process only as long as nobody else began a task there. The other
//! task methods name a task by its id, which its owner alone was told.

use std::sync::Arc;

use dashmap::DashMap;
use tooldock_workers::names::NamespaceName;

/// `None`: who needs no credentials.
type Principal = Option<Arc<str>>;

/// Who began tasks on shared processes, by namespace. As many as namespaces whose clients use tasks.
#[derive(Debug, Default)]
pub(super) struct TaskOwners(DashMap<NamespaceName, Owner>);

#[derive(Debug)]
enum Owner {
    One(Principal),
    Several,
}

impl TaskOwners {
    /// A request that asks for a task is about to go up.
    pub(super) fn began(&self, namespace: &NamespaceName, principal: Option<&Arc<str>>) {
        let mut owner = self
            .0
            .entry(namespace.clone())
            .or_insert_with(|| Owner::One(principal.cloned()));
        if let Owner::One(one) = &*owner
            && one.as_ref() != principal
        {
            *owner = Owner::Several;
        }
    }

    /// Whether a list of them would show somebody else's.
    pub(super) fn are_of_others(
        &self,
        namespace: &NamespaceName,
        principal: Option<&Arc<str>>,
    ) -> bool {
        let owner = self.0.get(namespace);
        owner.is_some_and(|owner| match &*owner {
            Owner::One(one) => one.as_ref() != principal,
            Owner::Several => true,
        })
    }
}
