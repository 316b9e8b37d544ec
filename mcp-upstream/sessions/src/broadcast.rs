//! Sends change notifications of a namespace to clients: to sessions that have, or had, a stream for server notifications, and to
//! `subscriptions/listen` requests.
//!
//! A change is queued first, and a task sends the notifications. So the code that announces a change does not wait for thousands
//! of clients. If equal changes are queued before the task handles them, one notification is sent, since a client fetches the new
//! state after any notification.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dashmap::DashMap;
use serde::{Deserialize, Serialize};
use slab::Slab;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tooldock_base::names::NamespaceName;
use tooldock_process::worker::Notice;

use crate::replicas::Replicas;
use crate::session::subscriptions::{URI_BYTES_MAX, URIS_MAX};
use crate::session::{RegisteredSessions, Session};
use crate::stream::{EventLog, Stream, StreamOwner, frame};

mod follow;
mod listener;

pub use follow::follow;
use listener::StreamListener;
pub use listener::{Filter, ListenGuard, TooManyUpdates};

/// Maximum number of updated resources of one namespace in the queue. Further updates are dropped until the queue is handled.
const UPDATES_MAX: usize = 10_000;
/// Maximum total length of the URIs of updated resources of one namespace in the queue, in bytes: 4 MiB.
const UPDATE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Number of streams to which the task writes notifications before it yields to other tasks.
const STEP: usize = 256;

/// The sessions and listen requests that are notified of changes, by namespace, and the queue of changes.
pub struct Audience {
    log: Arc<EventLog>,
    /// The other replicas of the gateway. A change that only this replica learns of is sent to them.
    replicas: Arc<Replicas>,
    /// Registered sessions and listen requests, by namespace. Entries are never removed; there is at most one for each namespace
    /// that was ever served.
    namespaces: DashMap<NamespaceName, Arc<NamespaceAudience>>,
    /// Counters of announced list changes, by namespace, for code within the gateway that waits for them by
    /// [`Audience::list_changes`].
    overheard: DashMap<NamespaceName, watch::Sender<u64>>,
    /// Queue of changes, with a flag that is true while the task that handles the queue runs. The lock is held only briefly.
    noted: Mutex<PendingChanges>,
}

/// The sessions and listen requests that are notified of changes of one namespace.
#[derive(Default)]
pub(crate) struct NamespaceAudience {
    sessions: Arc<RegisteredSessions>,
    listeners: Mutex<Slab<Arc<StreamListener>>>,
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
    /// Total length of the URIs in `updated`, in bytes.
    updated_bytes: usize,
}

/// A change of a namespace, of which clients are notified.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// The list of tools changed.
    Tools,
    /// The list of prompts changed.
    Prompts,
    /// The list of resources, or of resource templates, changed.
    Resources,
    /// The contents of the resource with this URI changed. Only sessions and listen requests that subscribe to it are notified.
    Updated(Arc<str>),
}

impl Audience {
    /// Creates an audience without registrations, for a gateway without replicas. `log` stores the events of the sessions'
    /// streams.
    pub fn new(log: Arc<EventLog>) -> Arc<Self> {
        Self::among(log, Replicas::alone())
    }

    /// Creates an audience without registrations, for a gateway with replicas. `log` stores the events of the sessions' streams.
    pub fn among(log: Arc<EventLog>, replicas: Arc<Replicas>) -> Arc<Self> {
        Arc::new(Self {
            log,
            replicas,
            namespaces: DashMap::new(),
            overheard: DashMap::new(),
            noted: Mutex::default(),
        })
    }

    /// Registers a session for notifications until it ends. Called when the session opens its stream for server notifications;
    /// further calls have no effect. While the client is disconnected, notifications are stored in the event log.
    pub fn join(&self, session: &Arc<Session>) {
        if session.is_registered() {
            return;
        }
        let members = self.members(&session.binding().namespace);
        session.set_registration(Some(members.sessions.register(session)));
    }

    /// Registers the stream of a `subscriptions/listen` request for the changes in `filter`, until the guard is dropped.
    /// `subscription_id` is the request's id as raw JSON. When the gateway ends all streams, this one ends with the request's
    /// result.
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

    /// Registers a stream that belongs to no session for changes of all lists of a namespace, until the guard is dropped.
    pub fn join_alone(&self, namespace: &NamespaceName, stream: &Arc<Stream>) -> ListenGuard {
        let members = self.members(namespace);
        let key = members
            .listeners()
            .insert(Arc::new(StreamListener::alone(stream)));
        ListenGuard::new(members, key)
    }

    /// Queues a notification of a change for the sessions and listen requests of a namespace. A change of tools is also queued
    /// for those that use all namespaces ([`NamespaceName::global`]). Does not wait; must be called within a Tokio runtime, which
    /// sends the notifications.
    pub fn announce(self: &Arc<Self>, namespace: &NamespaceName, change: Change) {
        if change == Change::Tools {
            self.announce_to(&NamespaceName::global(), change.clone());
        }
        self.announce_to(namespace, change);
    }

    /// Announces a change here and at all other replicas. For changes that only this replica learns of. Changes of files and
    /// servers need not be sent, since each replica watches these itself.
    pub fn announce_everywhere(self: &Arc<Self>, namespace: &NamespaceName, change: Change) {
        if self.replicas.are_many()
            && let Ok(news) = serde_json::to_string(&(namespace, &change))
        {
            self.replicas.tell(news);
        }
        self.announce(namespace, change);
    }

    /// Announces a change that another replica has sent. Messages in the format of another gateway version are ignored.
    pub fn announce_from_replica(self: &Arc<Self>, news: &str) {
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
                // The task ends by itself when the queue is empty.
                runtime.spawn(Arc::clone(self).deliver());
            }
            Err(_) => self.noted().running = false,
        }
    }

    /// Returns a counter that is increased with each announced change of a list of the namespace, even if no client is
    /// registered.
    pub fn list_changes(&self, namespace: &NamespaceName) -> watch::Receiver<u64> {
        let overheard = self.overheard.entry(namespace.clone()).or_default();
        overheard.subscribe()
    }

    /// Sends notifications of changes to a single session, if it has or had a stream for server notifications.
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
            // The queue's lock is released at the end of this statement, before notifications are sent.
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
        let sessions = members.sessions.all();
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

/// A running task that sends notifications. If it ends early, by a panic or together with its runtime, the next change starts
/// another task.
struct Delivery<'a> {
    audience: &'a Audience,
    done: bool,
}

impl Drop for Delivery<'_> {
    fn drop(&mut self) {
        // If this task has ended regularly, another task may be running by now, and the flag belongs to that task.
        if !self.done {
            self.audience.noted().running = false;
        }
    }
}

async fn tell_listeners(members: &NamespaceAudience, changes: &Changes) {
    let mut listeners = members.all_listeners();
    // Clients usually number their requests from the same start, so many listen requests have the same id and get the same
    // bytes. Sorting by id means that only the notifications for one id are in memory at a time.
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
    fn all_listeners(&self) -> Vec<Arc<StreamListener>> {
        let all = self.listeners();
        all.iter().map(|(_, it)| Arc::clone(it)).collect()
    }

    fn listeners(&self) -> MutexGuard<'_, Slab<Arc<StreamListener>>> {
        self.listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingChanges {
    /// Removes and returns all queued changes. If there are none, the task ends. Changes that are queued while notifications are
    /// sent wait for the next call, so that a namespace that changes constantly does not delay others.
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
                // A longer URI can be ignored: the URIs of a session's subscriptions have a total limit, so no client can
                // subscribe to it.
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
    /// Builds the notification of this change. For a listen request, `subscription_id` is its id as raw JSON; else `None`.
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

#[cfg(test)]
mod tests;
