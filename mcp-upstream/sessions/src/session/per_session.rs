//! Values that a part of the gateway has for each session, such as the session's connection at an MCP server.
//!
//! A part of the gateway owns a [`PerSession`], a table of values of its own type. The session holds a guard for each of its
//! values, so that closing or dropping the session drops the values.

use std::sync::Arc;

use dashmap::{DashMap, Entry};
use tooldock_base::names::NamespaceName;

use super::Session;

/// Values of sessions, by session and namespace: the session's own namespace, or a member of its aggregate.
pub struct PerSession<T>(Arc<DashMap<Key, Arc<T>>>);

/// Key of a value: the session's tag, the session's epoch, and the namespace. The epoch is necessary because a session can leave
/// this process and come back with another epoch while an earlier call of the session still runs here.
type Key = (Arc<str>, u32, NamespaceName);

/// Guard that a session holds. Dropping the guard ends the state that another part of the gateway has for the session.
pub(super) trait SessionGuard: Send {}

/// Guard that removes a session's value from its table when it is dropped.
struct ValueGuard<T> {
    values: Arc<DashMap<Key, Arc<T>>>,
    key: Key,
}

impl<T: Send + Sync + 'static> PerSession<T> {
    /// Returns the session's value for a namespace. `make` creates the value on first use, and must not use this table. For a
    /// closed session, the new value is returned but not kept.
    pub fn get_or_make(
        &self,
        session: &Session,
        namespace: &NamespaceName,
        make: impl FnOnce() -> T,
    ) -> Arc<T> {
        let key = (Arc::clone(session.tag()), session.epoch, namespace.clone());
        let value = match self.0.entry(key.clone()) {
            Entry::Occupied(entry) => return Arc::clone(entry.get()),
            Entry::Vacant(entry) => Arc::clone(&entry.insert(Arc::new(make()))),
        };
        session.hold(Box::new(ValueGuard {
            values: Arc::clone(&self.0),
            key,
        }));
        value
    }
}

impl<T> Default for PerSession<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Send + Sync> SessionGuard for ValueGuard<T> {}

impl<T> Drop for ValueGuard<T> {
    fn drop(&mut self) {
        // The table's lock is released before the value is dropped, since dropping the value may run code of any length.
        drop(self.values.remove(&self.key));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use super::*;
    use crate::session::tests::session;

    #[test]
    fn a_value_lives_until_its_session_is_closed_or_dropped() {
        let values = PerSession::default();
        let namespace: NamespaceName = "calc".parse().unwrap();
        let other: NamespaceName = "notes".parse().unwrap();
        let (closed, dropped) = (session(), session());
        let make = |session: &Session, name| values.get_or_make(session, name, || 1);
        let value = make(&closed, &namespace);
        assert!(Arc::ptr_eq(&value, &make(&closed, &namespace)));
        assert!(!Arc::ptr_eq(&value, &make(&closed, &other)));
        let kept: Vec<Weak<i32>> = vec![
            Arc::downgrade(&value),
            Arc::downgrade(&make(&closed, &other)),
            Arc::downgrade(&make(&dropped, &namespace)),
        ];
        drop(value);
        assert!(kept.iter().all(|it| it.strong_count() == 1));
        closed.close();
        drop(dropped);
        assert!(kept.iter().all(|it| it.strong_count() == 0));
        drop(make(&closed, &namespace));
        assert!(values.0.is_empty(), "a closed session stores nothing");
    }
}
