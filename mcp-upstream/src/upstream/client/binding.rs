//! What an external server keeps for one session: its own process, the resources it subscribed to on one of everybody.
//! It ends with the session.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use tooldock_workers::names::NamespaceName;

use super::ExternalServers;
use super::inbound::InboundHandler;
use super::watch::Watch;
use crate::session::Session;

/// One session's part.
pub(super) struct UpstreamBinding {
    external: Weak<ExternalServers>,
    tag: Arc<str>,
    /// Who hears its own process, if it has one.
    own: OnceLock<Arc<InboundHandler>>,
    /// Hears of its tasks on a process it shares, if it began any.
    tasks: OnceLock<Arc<InboundHandler>>,
    /// By URI.
    watches: Mutex<BTreeMap<Arc<str>, Watch>>,
}

impl UpstreamBinding {
    /// The session's, made when it is first wanted.
    pub(super) fn of(
        external: &Arc<ExternalServers>,
        namespace: &NamespaceName,
        session: &Arc<Session>,
    ) -> Arc<Self> {
        session.upstream_binding(namespace, || {
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
    pub(super) fn own_handler(
        &self,
        make: impl FnOnce() -> Arc<InboundHandler>,
    ) -> Arc<InboundHandler> {
        Arc::clone(self.own.get_or_init(make))
    }

    /// Whether the session has, or had, a process of its own.
    pub(super) fn has_own(&self) -> bool {
        self.own.get().is_some()
    }

    /// Who hears of the session's tasks on a process it shares.
    pub(super) fn task_handler(
        &self,
        make: impl FnOnce() -> Arc<InboundHandler>,
    ) -> Arc<InboundHandler> {
        Arc::clone(self.tasks.get_or_init(make))
    }

    /// The session has a general stream now: what waited for one goes there.
    pub(super) fn stream_opened(&self) {
        for handler in [&self.own, &self.tasks]
            .into_iter()
            .filter_map(OnceLock::get)
        {
            handler.stream_opened();
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

impl Drop for UpstreamBinding {
    fn drop(&mut self) {
        if self.own.get().is_some()
            && let Some(external) = self.external.upgrade()
        {
            external.processes.end_session(&self.tag);
        }
    }
}
