//! A store in the tests' own process. All values are stored as JSON text, and each operation yields before it is done, as one
//! over a network would.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::task::yield_now;

use crate::session::store::SessionStore;
use crate::session::{Home, SessionId, SessionPatch, SessionRecord};
use crate::stores::Stores;
use crate::stream::store::{AppendOutcome, EventKind, Replay, StoredEvent, StreamRef};
use crate::stream::{EventStore, StoreError};
use crate::tasks::MemoryTasks;

/// A store of sessions and events in memory.
#[derive(Default)]
pub struct Shadow {
    sessions: Mutex<HashMap<String, String>>,
    /// Stored events by session and stream.
    events: Mutex<BTreeMap<(String, u32), Vec<String>>>,
    tasks: Arc<MemoryTasks>,
    /// Number of claims of sessions.
    claims: AtomicUsize,
    patches: AtomicUsize,
    /// Number of next operations that fail.
    failing: AtomicUsize,
}

impl Shadow {
    /// This store as the store of sessions and of events.
    pub fn stores(self: &Arc<Self>) -> Stores {
        Stores {
            sessions: Arc::clone(self) as _,
            events: Arc::clone(self) as _,
            tasks: Arc::clone(&self.tasks) as _,
        }
    }

    /// Number of claims of sessions.
    pub fn claims(&self) -> usize {
        self.claims.load(Ordering::Relaxed)
    }

    /// Number of stored changes of sessions.
    pub fn patches(&self) -> usize {
        self.patches.load(Ordering::Relaxed)
    }

    /// The record of a session.
    pub fn record(&self, id: &str) -> Option<SessionRecord> {
        let sessions = self.sessions.lock().expect("not poisoned");
        sessions.get(id).map(|text| read(text))
    }

    /// Number of streams with stored events.
    pub fn streams(&self) -> usize {
        self.events.lock().expect("not poisoned").len()
    }

    /// Makes the next operations fail.
    pub fn fail(&self, operations: usize) {
        self.failing.store(operations, Ordering::Relaxed);
    }

    async fn works(&self) -> Result<(), StoreError> {
        yield_now().await;
        let one_less = |left: usize| left.checked_sub(1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        match self.failing.fetch_update(set, fetch, one_less) {
            Ok(_) => Err(StoreError("out of order".into())),
            Err(_) => Ok(()),
        }
    }

    fn change(&self, id: &str, change: impl FnOnce(&mut SessionRecord)) -> bool {
        let mut sessions = self.sessions.lock().expect("not poisoned");
        let Some(text) = sessions.get_mut(id) else {
            return false;
        };
        let mut record = read(text);
        change(&mut record);
        *text = written(&record);
        true
    }
}

fn written(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain data")
}

fn read<T: DeserializeOwned>(text: &str) -> T {
    serde_json::from_str(text).expect("as written")
}

#[async_trait]
impl SessionStore for Shadow {
    async fn insert(&self, record: &SessionRecord) -> Result<bool, StoreError> {
        self.works().await?;
        let known = self.record(record.id.as_str());
        let is_own = known.is_none_or(|known| known.home.replica == record.home.replica);
        if is_own {
            let mut sessions = self.sessions.lock().expect("not poisoned");
            sessions.insert(record.id.as_str().into(), written(record));
        }
        Ok(is_own)
    }

    async fn load(&self, id: &str) -> Result<Option<SessionRecord>, StoreError> {
        self.works().await?;
        Ok(self.record(id))
    }

    async fn patch(&self, id: &SessionId, patch: &SessionPatch) -> Result<(), StoreError> {
        self.works().await?;
        let patch: SessionPatch = read(&written(patch));
        self.patches.fetch_add(1, Ordering::Relaxed);
        self.change(id.as_str(), |record| record.apply(&patch));
        Ok(())
    }

    async fn claim(
        &self,
        id: &SessionId,
        by: Home,
        from: Home,
    ) -> Result<Option<SessionRecord>, StoreError> {
        self.works().await?;
        let mut claimed = None;
        self.change(id.as_str(), |record| {
            if record.home == from {
                record.home = by;
                claimed = Some(record.clone());
            }
        });
        let taken = usize::from(claimed.is_some());
        self.claims.fetch_add(taken, Ordering::Relaxed);
        Ok(claimed)
    }

    async fn touch(&self, ids: &[SessionId]) -> Result<Vec<SessionId>, StoreError> {
        self.works().await?;
        let gone = |id: &&SessionId| self.record(id.as_str()).is_none();
        Ok(ids.iter().filter(gone).cloned().collect())
    }

    async fn remove(&self, id: &SessionId) -> Result<bool, StoreError> {
        self.works().await?;
        let mut sessions = self.sessions.lock().expect("not poisoned");
        sessions.remove(id.as_str());
        Ok(true)
    }
}

#[async_trait]
impl EventStore for Shadow {
    async fn append(
        &self,
        stream: StreamRef<'_>,
        event: &StoredEvent,
    ) -> Result<AppendOutcome, StoreError> {
        self.works().await?;
        let mut events = self.events.lock().expect("not poisoned");
        let key = (stream.session.as_str().to_owned(), stream.number);
        events.entry(key).or_default().push(written(event));
        Ok(AppendOutcome::Kept)
    }

    async fn read(&self, stream: StreamRef<'_>, max: usize) -> Result<Replay, StoreError> {
        self.works().await?;
        let events = self.events.lock().expect("not poisoned");
        let key = (stream.session.as_str().to_owned(), stream.number);
        let Some(events) = events.get(&key) else {
            return Ok(Replay::default());
        };
        let mut events: Vec<StoredEvent> = events.iter().map(|text| read(text)).collect();
        // Writes may overtake each other before they arrive here.
        events.sort_by_key(|event| event.sequence);
        let is_message = |event: &StoredEvent| matches!(event.kind, EventKind::Message(_));
        let messages = events.iter().filter(|event| is_message(event)).count();
        let mut surplus = messages.saturating_sub(max);
        let mut dropped = 0;
        events.retain(|event| {
            let goes = surplus > 0 && is_message(event);
            if goes {
                surplus -= 1;
                dropped = event.sequence;
            }
            !goes
        });
        Ok(Replay { events, dropped })
    }

    async fn forget(&self, session: &SessionId) -> Result<(), StoreError> {
        self.works().await?;
        let mut events = self.events.lock().expect("not poisoned");
        events.retain(|(owner, _), _| owner != session.as_str());
        Ok(())
    }
}
