//! Delivers change notifications of a namespace to clients: to sessions that have, or had, a stream for server notifications,
//! and to `subscriptions/listen` requests.
//!
//! Announcing a change does not deliver it: the change is queued for a task, so that the announcing code does not wait for
//! thousands of clients. Equal changes queued before the task handles them are delivered once, since a client fetches the new
//! state after any notification.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use dashmap::DashMap;
use serde::{Deserialize, Serialize};
use slab::Slab;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tooldock_base::names::NamespaceName;
use tooldock_process::worker::Notice;

use crate::replicas::Replicas;
use crate::session::Session;
use crate::session::subscriptions::{URI_BYTES_MAX, URIS_MAX};
use crate::stream::{EventLog, Stream, StreamOwner, frame};

mod follow;
mod listener;

pub use follow::follow;
use listener::StreamListener;
pub use listener::{Filter, ListenGuard, TooManyUpdates};

/// Maximum number of updated resources of one namespace that wait for delivery; further updates in the same round are dropped.
const UPDATES_MAX: usize = 10_000;
/// Maximum length of the URIs of these resources together, in bytes: 4 MiB.
const UPDATE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Number of listeners' streams that a delivery writes to before it yields to the runtime.
const STEP: usize = 256;

/// Announces changes of namespaces to the sessions and listeners that are registered for them.
pub struct Audience {
    log: Arc<EventLog>,
    /// Replicas whose clients receive the changes that functions announce.
    replicas: Arc<Replicas>,
    /// Registrations by namespace. An entry is never removed: there is at most one for each namespace ever served.
    namespaces: DashMap<NamespaceName, Arc<NamespaceAudience>>,
    /// Counters of announced list changes, for code of the gateway that follows a namespace by [`Audience::overhear`].
    overheard: DashMap<NamespaceName, watch::Sender<u64>>,
    /// The changes to deliver, and whether the task runs. Plain data, short sections.
    noted: Mutex<PendingChanges>,
}

/// Sessions and listeners that receive the changes of one namespace.
#[derive(Default)]
pub(crate) struct NamespaceAudience {
    /// Weak references: a registration does not keep its session alive.
    sessions: Mutex<Slab<Weak<Session>>>,
    listeners: Mutex<Slab<Arc<StreamListener>>>,
}

/// Registration of a session for changes of its namespace; dropping it ends the registration.
pub(crate) struct Seat {
    members: Arc<NamespaceAudience>,
    key: usize,
}

#[derive(Default)]
struct PendingChanges {
    changes: HashMap<NamespaceName, Changes>,
    running: bool,
}

#[derive(Default)]
struct Changes {
    tools: bool,
    prompts: bool,
    resources: bool,
    updated: BTreeSet<Arc<str>>,
    /// The total size of the URIs in `updated`.
    updated_bytes: usize,
}

/// A change in a namespace of which clients are notified.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// The list of tools changed.
    Tools,
    /// The list of prompts changed.
    Prompts,
    /// The list of resources or of their templates changed.
    Resources,
    /// The content of one resource changed; only sessions and listeners subscribed to the resource are notified.
    Updated(Arc<str>),
}

impl Audience {
    /// An audience without registrations, whose sessions' streams are in `log`.
    pub fn new(log: Arc<EventLog>) -> Arc<Self> {
        Self::among(log, Replicas::alone())
    }

    /// An audience without registrations, of a gateway with replicas.
    pub fn among(log: Arc<EventLog>, replicas: Arc<Replicas>) -> Arc<Self> {
        Arc::new(Self {
            log,
            replicas,
            namespaces: DashMap::new(),
            overheard: DashMap::new(),
            noted: Mutex::default(),
        })
    }

    /// Registers a session until it ends; changes announced while its client is disconnected are kept in the event log. Called
    /// when the session opens a stream for server notifications; a second registration has no effect.
    pub fn join(&self, session: &Arc<Session>) {
        if session.is_seated() {
            return;
        }
        let members = self.members(&session.binding().namespace);
        let key = members.sessions().insert(Arc::downgrade(session));
        session.take_seat(Some(Box::new(Seat { members, key })));
    }

    /// Registers a `subscriptions/listen` stream for the changes that the filter names, until the guard is dropped.
    /// `subscription_id` is the request's id as raw JSON. When all streams are ended, this one ends with the request's result.
    pub fn listen(
        &self,
        namespace: &NamespaceName,
        filter: Filter,
        subscription_id: &str,
        stream: &Arc<Stream>,
    ) -> ListenGuard {
        let listener = Arc::new(StreamListener::new(filter, subscription_id, stream));
        let members = self.members(namespace);
        let key = members.listeners().insert(listener);
        ListenGuard::new(members, key)
    }

    /// Registers a stream without a session for changes of all lists of a namespace, until the guard is dropped.
    pub fn join_alone(&self, namespace: &NamespaceName, stream: &Arc<Stream>) -> ListenGuard {
        let members = self.members(namespace);
        let key = members
            .listeners()
            .insert(Arc::new(StreamListener::alone(stream)));
        ListenGuard::new(members, key)
    }

    /// Announces a change to the sessions and listeners of a namespace, and a change of tools also to those of
    /// [`NamespaceName::global`]. Does not wait; the delivery runs in the runtime this is called in.
    pub fn announce(self: &Arc<Self>, namespace: &NamespaceName, change: Change) {
        if change == Change::Tools {
            self.announce_to(&NamespaceName::global(), change.clone());
        }
        self.announce_to(namespace, change);
    }

    /// Announces a change here and at all replicas. For changes that only this replica learns of; files and servers are watched
    /// by each replica.
    pub fn announce_everywhere(self: &Arc<Self>, namespace: &NamespaceName, change: Change) {
        if self.replicas.are_many()
            && let Ok(news) = serde_json::to_string(&(namespace, &change))
        {
            self.replicas.tell(news);
        }
        self.announce(namespace, change);
    }

    /// Announces a change received from another replica. Messages in the format of another version are ignored.
    pub fn hear(self: &Arc<Self>, news: &str) {
        if let Ok((namespace, change)) = serde_json::from_str::<(NamespaceName, Change)>(news) {
            self.announce(&namespace, change);
        }
    }

    fn announce_to(self: &Arc<Self>, namespace: &NamespaceName, change: Change) {
        if !matches!(change, Change::Updated(_))
            && let Some(overheard) = self.overheard.get(namespace)
        {
            overheard.send_modify(|count| *count += 1);
        }
        if !self.namespaces.contains_key(namespace) {
            return;
        }
        let start = {
            let mut noted = self.noted();
            if !noted.changes.contains_key(namespace) {
                noted.changes.insert(namespace.clone(), Changes::default());
            }
            if let Some(changes) = noted.changes.get_mut(namespace) {
                changes.note(change);
            }
            !std::mem::replace(&mut noted.running, true)
        };
        if !start {
            return;
        }
        match Handle::try_current() {
            Ok(runtime) => {
                // The task ends when nothing is left to deliver.
                runtime.spawn(Arc::clone(self).deliver());
            }
            Err(_) => self.noted().running = false,
        }
    }

    /// A counter that changes whenever a list of the namespace is announced to have changed, whether or not a client listens.
    pub fn overhear(&self, namespace: &NamespaceName) -> watch::Receiver<u64> {
        let overheard = self.overheard.entry(namespace.clone()).or_default();
        overheard.subscribe()
    }

    /// Announces changes to a single session, if it has or had a stream for server notifications.
    pub async fn tell(&self, session: &Arc<Session>, changes: &[Change]) {
        for change in changes {
            self.broadcast(std::slice::from_ref(session), &change.message(None))
                .await;
        }
    }

    async fn deliver(self: Arc<Self>) {
        let mut delivery = Delivery {
            audience: &self,
            done: false,
        };
        loop {
            // The lock is released at the end of this statement, before the loop's body.
            let round = self.noted().take();
            if round.is_empty() {
                delivery.done = true;
                return;
            }
            for (namespace, changes) in round {
                let members = self.members(&namespace);
                self.tell_sessions(&members, &changes).await;
                tell_listeners(&members, &changes).await;
            }
        }
    }

    async fn tell_sessions(&self, members: &NamespaceAudience, changes: &Changes) {
        let sessions = members.all_sessions();
        if sessions.is_empty() {
            return;
        }
        for change in changes.lists() {
            self.broadcast(&sessions, &change.message(None)).await;
        }
        let mut subscribers: BTreeMap<&Arc<str>, Vec<Arc<Session>>> = BTreeMap::new();
        for session in &sessions {
            for uri in session.subscriptions().among(&changes.updated) {
                let subscribed = subscribers.entry(uri).or_default();
                subscribed.push(Arc::clone(session));
            }
        }
        for (uri, sessions) in subscribers {
            let change = Change::Updated(Arc::clone(uri));
            self.broadcast(&sessions, &change.message(None)).await;
        }
    }

    async fn broadcast(&self, sessions: &[Arc<Session>], message: &[u8]) {
        let owners: Vec<&dyn StreamOwner> = sessions.iter().map(|it| it as _).collect();
        self.log.broadcast(&owners, message).await;
    }

    fn members(&self, namespace: &NamespaceName) -> Arc<NamespaceAudience> {
        if let Some(members) = self.namespaces.get(namespace) {
            return Arc::clone(&members);
        }
        let members = self.namespaces.entry(namespace.clone()).or_default();
        Arc::clone(&members)
    }

    fn noted(&self) -> MutexGuard<'_, PendingChanges> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running delivery. If it breaks off, by a panic or with its runtime, the next change starts another.
struct Delivery<'a> {
    audience: &'a Audience,
    done: bool,
}

impl Drop for Delivery<'_> {
    fn drop(&mut self) {
        // After the end of this delivery, another may be running by now.
        if !self.done {
            self.audience.noted().running = false;
        }
    }
}

async fn tell_listeners(members: &NamespaceAudience, changes: &Changes) {
    let mut listeners = members.all_listeners();
    // Clients number their requests from the same start, so most listeners have the same id and receive the same frame. The
    // listeners are sorted by id, so that only the frames of one id are in memory at a time.
    listeners.sort_by(|one, other| one.subscription_id().cmp(&other.subscription_id()));
    let mut framed = HashMap::new();
    let mut framed_for = None;
    for some in listeners.chunks(STEP) {
        for listener in some {
            let id = listener.subscription_id();
            if id != framed_for {
                framed.clear();
                framed_for = id;
            }
            for change in listener.among(changes) {
                let message = || frame::message(None, &change.message(id));
                let frame = framed.entry(change.clone()).or_insert_with(message);
                listener.push(frame.clone());
            }
        }
        tokio::task::yield_now().await;
    }
}

impl NamespaceAudience {
    fn all_sessions(&self) -> Vec<Arc<Session>> {
        // The references are dropped after the lock: the last reference to a session frees its seat, which takes the lock.
        let all = self.sessions();
        all.iter().filter_map(|(_, it)| it.upgrade()).collect()
    }

    fn all_listeners(&self) -> Vec<Arc<StreamListener>> {
        let all = self.listeners();
        all.iter().map(|(_, it)| Arc::clone(it)).collect()
    }

    fn sessions(&self) -> MutexGuard<'_, Slab<Weak<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listeners(&self) -> MutexGuard<'_, Slab<Arc<StreamListener>>> {
        self.listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.members.sessions().try_remove(self.key);
    }
}

impl PendingChanges {
    /// Removes and returns all queued changes; without any, the task ends. Changes queued during delivery wait for the next
    /// round, so that a namespace that changes constantly does not delay the others.
    fn take(&mut self) -> HashMap<NamespaceName, Changes> {
        let round = std::mem::take(&mut self.changes);
        self.running = !round.is_empty();
        round
    }
}

impl Changes {
    fn note(&mut self, change: Change) {
        match change {
            Change::Tools => self.tools = true,
            Change::Prompts => self.prompts = true,
            Change::Resources => self.resources = true,
            Change::Updated(uri) => {
                let bytes = self.updated_bytes.saturating_add(uri.len());
                // A session's subscribed URIs are bounded together, so no client can have subscribed to a longer URI.
                let fits = uri.len() <= URI_BYTES_MAX
                    && self.updated.len() < UPDATES_MAX
                    && bytes <= UPDATE_BYTES_MAX;
                if fits && self.updated.insert(uri) {
                    self.updated_bytes = bytes;
                }
            }
        }
    }

    fn lists(&self) -> impl Iterator<Item = Change> {
        let lists = [
            (self.tools, Change::Tools),
            (self.prompts, Change::Prompts),
            (self.resources, Change::Resources),
        ];
        let changed = lists.into_iter().filter(|(changed, _)| *changed);
        changed.map(|(_, change)| change)
    }
}

impl Change {
    /// The notification about this change; for a listener, `subscription_id` is the id of its subscription as raw JSON.
    pub fn message(&self, subscription_id: Option<&str>) -> Vec<u8> {
        let method = match self {
            Self::Tools => "notifications/tools/list_changed",
            Self::Prompts => "notifications/prompts/list_changed",
            Self::Resources => "notifications/resources/list_changed",
            Self::Updated(_) => "notifications/resources/updated",
        };
        let mut fields = Vec::new();
        if let Self::Updated(uri) = self {
            fields.push(format!(r#""uri":{}"#, serde_json::Value::from(&**uri)));
        }
        if let Some(id) = subscription_id {
            fields.push(format!(
                r#""_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}"#
            ));
        }
        let params = if fields.is_empty() {
            String::new()
        } else {
            format!(r#","params":{{{}}}"#, fields.join(","))
        };
        format!(r#"{{"jsonrpc":"2.0","method":"{method}"{params}}}"#).into_bytes()
    }
}

impl From<Notice> for Change {
    fn from(notice: Notice) -> Self {
        match notice {
            Notice::ToolsChanged => Self::Tools,
            Notice::PromptsChanged => Self::Prompts,
            Notice::ResourcesChanged => Self::Resources,
            Notice::ResourceUpdated { uri } => Self::Updated(uri),
        }
    }
}

impl fmt::Debug for Audience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Audience")
            .field("namespaces", &self.namespaces.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
