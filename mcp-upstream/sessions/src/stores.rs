//! Session stores outside of the process, which implement the traits [`SessionStore`] and [`EventStore`].
//!
//! `sessions.store` selects the store: `memory` uses none, `disk` is [`disk::DiskStore`] for one machine, a Redis URL is
//! [`redis::RedisStore`] for replicas on several machines. A store keeps the record of each session and the events of its
//! streams, so that a session survives the process that opened it, and the tasks.
//!
//! `disk/directory.rs` and `redis/directory.rs` are the directories of replicas (`disk/folder.rs`: a locked folder per replica;
//! `disk/news.rs`: their news), `redis/budgets.rs` has budgets of shared limits, and `contract.rs` tests the facts that hold for
//! every store. `session/table/unrecorded.rs` handles a store that fails; `proxy/session_store.rs` opens the configured one.

use std::fmt;
use std::sync::Arc;

use crate::session::store::SessionStore;
use crate::stream::EventStore;
use crate::tasks::TaskStore;

#[cfg(test)]
pub(crate) mod contract;
pub mod disk;
pub mod redis;

/// The interfaces of a session store: records, events and tasks.
#[derive(Clone)]
pub struct Stores {
    /// Store of session records.
    pub sessions: Arc<dyn SessionStore>,
    /// Store of the events of session streams.
    pub events: Arc<dyn EventStore>,
    /// Store of tasks.
    pub tasks: Arc<dyn TaskStore>,
}

impl Stores {
    /// Creates the interfaces from one store.
    pub fn of<S: SessionStore + EventStore + TaskStore + 'static>(store: S) -> Self {
        let store = Arc::new(store);
        Self {
            sessions: Arc::clone(&store) as _,
            events: Arc::clone(&store) as _,
            tasks: store,
        }
    }
}

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stores").finish_non_exhaustive()
    }
}
