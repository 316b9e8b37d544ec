//! Registrations of sessions that are notified of changes of a namespace (`broadcast::Audience`).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use slab::Slab;

use super::Session;

/// Sessions that are notified of changes of one namespace, as weak references: a registration does not keep its session in
/// memory.
#[derive(Default)]
pub(crate) struct RegisteredSessions(Mutex<Slab<Weak<Session>>>);

/// Registration of a session for the changes of its namespace. Dropping this value ends the registration.
pub(crate) struct Registration {
    sessions: Arc<RegisteredSessions>,
    key: usize,
}

impl RegisteredSessions {
    /// Registers a session. The registration ends when the result is dropped.
    pub(crate) fn register(self: &Arc<Self>, session: &Arc<Session>) -> Registration {
        Registration {
            key: self.lock().insert(Arc::downgrade(session)),
            sessions: Arc::clone(self),
        }
    }

    /// Returns all registered sessions.
    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        // The references must be dropped after the lock is released: dropping the last reference to a session ends its
        // registration, which takes the same lock.
        let all = self.lock();
        all.iter().filter_map(|(_, it)| it.upgrade()).collect()
    }

    /// Returns the number of registrations, including those whose sessions were dropped.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, Slab<Weak<Session>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.sessions.lock().try_remove(self.key);
    }
}
