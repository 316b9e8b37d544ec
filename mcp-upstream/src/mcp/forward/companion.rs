//! What an external server keeps for one session: its own process, the resources it subscribed to on one of everybody.
//! It ends with the session.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use super::External;
use super::hub::Hub;
use super::watch::Watch;
use crate::session::Session;

/// One session's part.
pub(super) struct Companion {
    external: Weak<External>,
    tag: Arc<str>,
    /// Who hears its own process, if it has one.
    own: OnceLock<Arc<Hub>>,
    /// Hears of its tasks on a process it shares, if it began any.
    tasks: OnceLock<Arc<Hub>>,
    /// By URI.
    watches: Mutex<BTreeMap<Arc<str>, Watch>>,
}

impl Companion {
    /// The session's, made when it is first wanted.
    pub(super) fn of(external: &Arc<External>, session: &Arc<Session>) -> Arc<Self> {
        session.companion(|| {
            Arc::new(Self {
                external: Arc::downgrade(external),
                tag: Arc::clone(session.tag()),
                own: OnceLock::new(),
                tasks: OnceLock::new(),
                watches: Mutex::default(),
            })
        })
    }

    /// Who hears the session's own process.
    pub(super) fn own_hub(&self, make: impl FnOnce() -> Arc<Hub>) -> Arc<Hub> {
        Arc::clone(self.own.get_or_init(make))
    }

    /// Whether the session has, or had, a process of its own.
    pub(super) fn has_own(&self) -> bool {
        self.own.get().is_some()
    }

    /// Who hears of the session's tasks on a process it shares.
    pub(super) fn task_hub(&self, make: impl FnOnce() -> Arc<Hub>) -> Arc<Hub> {
        Arc::clone(self.tasks.get_or_init(make))
    }

    /// The session has a general stream now: what waited for one goes there.
    pub(super) fn kick(&self) {
        for hub in [&self.own, &self.tasks]
            .into_iter()
            .filter_map(OnceLock::get)
        {
            hub.kick();
        }
    }

    /// Whether the session watches that resource.
    pub(super) fn watches(&self, uri: &str) -> bool {
        self.lock().contains_key(uri)
    }

    /// Watches a resource for the session from now on.
    pub(super) fn keep(&self, uri: &str, watch: Watch) {
        let before = self.lock().insert(uri.into(), watch);
        drop(before);
    }

    /// Does not watch it any more.
    pub(super) fn leave(&self, uri: &str) {
        let left = self.lock().remove(uri);
        drop(left);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Watch>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        if self.own.get().is_some()
            && let Some(external) = self.external.upgrade()
        {
            external.processes.end_session(&self.tag);
        }
    }
}
