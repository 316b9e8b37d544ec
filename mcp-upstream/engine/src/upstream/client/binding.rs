//! State of one session at an external server: the session's own process, and its resource subscriptions on a shared one.
//! Dropped with the session.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use tooldock_base::names::NamespaceName;
use tooldock_sessions::session::Session;

use super::ExternalServers;
use super::inbound::InboundHandler;
use super::watch::Watch;

/// State of one external server for one session.
pub(super) struct UpstreamBinding {
    external: Weak<ExternalServers>,
    tag: Arc<str>,
    /// Handler for messages of the session's own process, if it has one.
    own: OnceLock<Arc<InboundHandler>>,
    /// Handler for messages about the session's tasks on a shared process, if it began any.
    tasks: OnceLock<Arc<InboundHandler>>,
    /// The session's subscriptions by URI.
    watches: Mutex<BTreeMap<Arc<str>, Watch>>,
}

impl UpstreamBinding {
    /// The state for a session, created on first use.
    pub(super) fn of(
        external: &Arc<ExternalServers>,
        namespace: &NamespaceName,
        session: &Arc<Session>,
    ) -> Arc<Self> {
        external.bindings.get_or_make(session, namespace, || Self {
            external: Arc::downgrade(external),
            tag: Arc::clone(session.tag()),
            own: OnceLock::new(),
            tasks: OnceLock::new(),
            watches: Mutex::default(),
        })
    }

    /// The handler for messages of the session's own process.
    pub(super) fn own_handler(
        &self,
        make: impl FnOnce() -> Arc<InboundHandler>,
    ) -> Arc<InboundHandler> {
        Arc::clone(self.own.get_or_init(make))
    }

    /// Returns true if the session has, or had, a process of its own.
    pub(super) fn has_own(&self) -> bool {
        self.own.get().is_some()
    }

    /// The handler for messages about the session's tasks on a shared process.
    pub(super) fn task_handler(
        &self,
        make: impl FnOnce() -> Arc<InboundHandler>,
    ) -> Arc<InboundHandler> {
        Arc::clone(self.tasks.get_or_init(make))
    }

    /// Sends the messages that were queued until the session opened its general stream.
    pub(super) fn stream_opened(&self) {
        for handler in [&self.own, &self.tasks]
            .into_iter()
            .filter_map(OnceLock::get)
        {
            handler.stream_opened();
        }
    }

    /// Returns true if the session is subscribed to the resource.
    pub(super) fn watches(&self, uri: &str) -> bool {
        self.lock().contains_key(uri)
    }

    /// Stores a subscription of the session, in place of a former one to the same URI.
    pub(super) fn keep(&self, uri: &str, watch: Watch) {
        let before = self.lock().insert(uri.into(), watch);
        drop(before);
    }

    /// Ends the session's subscription to a resource.
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
            external.pools.session_closed(&self.tag);
        }
    }
}
