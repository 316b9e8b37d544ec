//! Routing of a process's messages that belong to no call.
//!
//! A process of one session, or leased for one request, has a handler for its client, which receives all messages. A process of
//! several clients has no handler: its requests are refused, and its other messages are routed by kind.
//!
//! - A changed list or resource is announced to all subscribers of the namespace. The gateway writes its own message for this,
//!   since the text of the server's message may be about a client's call.
//! - A message that names a task is passed to the owner of the task ([`Tasks`]).
//! - Any other message is passed to a client only while all work of the server may belong only to that client's principal and
//!   namespace. This work includes calls in flight, abandoned calls that have no response yet, and tasks. A call that timed out,
//!   was cancelled or became a task may continue in the server, and the message does not show which call it is about. A wrong
//!   guess would show one tenant's data to another (DESIGN §3). Each session gets a message once, with its newest call.
//!
//! A server does not answer a cancelled call, as the protocol requires, so its messages could be withheld from all other
//! principals for ever. A process whose messages are withheld for that reason is *mute*; it is replaced after
//! `isolation_mute`.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use slab::Slab;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tooldock_base::names::NamespaceName;
use tooldock_protocol::jsonrpc::{
    Key, Notification, ProtocolViolation, RpcError, ServerRequest, notification,
};
use tooldock_protocol::version::code;
use tooldock_sessions::broadcast::{Audience, Change};
use tooldock_sessions::catalogue::Catalogue;

use super::tasks::Tasks;
use crate::link::{CallOwner, CallsInHand, Inbound};
use crate::metrics::ServerMetrics;

/// Maximum number of abandoned calls that are remembered until the server answers them. If there are more, the server counts as
/// working on abandoned calls until its process ends.
const GIVEN_UP_MAX: usize = 1024;

/// Router for those messages of one process that belong to no call.
pub struct InboundRouter {
    namespace: NamespaceName,
    audience: Arc<Audience>,
    catalogue: Arc<Catalogue>,
    metrics: Arc<ServerMetrics>,
    /// True once the process has sent a request to the client that uses it alone. It may then have data from the client's answer,
    /// which other clients must not see.
    asked: AtomicBool,
    /// Number of current users of the process: leases, and requests of the gateway on behalf of clients.
    users: AtomicUsize,
    tasks: Arc<Tasks>,
    /// Notified when a message was withheld from a client.
    withheld: Notify,
    /// Handler, listeners and abandoned calls. No other code is called while the lock is held.
    inner: Mutex<RouterState>,
}

#[derive(Default)]
struct RouterState {
    own: Option<Arc<dyn Inbound>>,
    /// Listeners of shared processes. Each receives messages that can only be about work of its owner.
    listening: Slab<NumberedListener>,
    /// Number of listeners registered so far, which a new listener gets as its number: a lower number means an older listener.
    listeners: u64,
    /// Abandoned calls that the server has not answered yet.
    given_up: HashMap<u64, CancelledCall>,
    /// True once more than [`GIVEN_UP_MAX`] calls were abandoned at the same time.
    countless: bool,
    /// Time since which messages are withheld from a listener, because they might be about a task or an abandoned call of others.
    mute_since: Option<Instant>,
}

/// A call that its client cancelled or dropped, and that the server has not answered.
struct CancelledCall {
    owner: Option<CallOwner>,
    at: Instant,
}

/// A listener of one user of a shared process, for messages that belong to no call.
#[derive(Clone)]
pub struct ProcessListener {
    /// The client that listens.
    pub owner: CallOwner,
    /// The tag of the client's session; `None` if it has no session.
    pub session: Option<Arc<str>>,
    /// Handler of the messages that the client gets.
    pub inbound: Arc<dyn Inbound>,
}

struct NumberedListener {
    number: u64,
    listener: ProcessListener,
}

/// Guard that counts as a user of a process, without a lease.
pub(crate) struct ProcessUseGuard(Arc<InboundRouter>);

/// Guard of a registered listener. Dropping it removes the listener from the shared process.
pub struct ListenerGuard {
    router: Arc<InboundRouter>,
    key: usize,
}

impl InboundRouter {
    pub(super) fn new(
        namespace: NamespaceName,
        audience: Arc<Audience>,
        catalogue: Arc<Catalogue>,
        metrics: Arc<ServerMetrics>,
    ) -> Arc<Self> {
        Arc::new(Self {
            namespace,
            audience,
            catalogue,
            metrics,
            asked: AtomicBool::new(false),
            users: AtomicUsize::new(0),
            tasks: Arc::default(),
            withheld: Notify::new(),
            inner: Mutex::default(),
        })
    }

    /// Returns the record of the tasks on the process and their owners.
    pub(crate) fn tasks(&self) -> &Arc<Tasks> {
        &self.tasks
    }

    /// Returns true if the server may still work on an abandoned call or task.
    pub(crate) fn has_unfinished(&self) -> bool {
        !self.lock().is_settled() || !self.tasks.are_over()
    }

    /// Sets the handler that receives all messages. `None` removes it; changes are then announced to the subscribers again.
    pub(crate) fn set_own(&self, handler: Option<Arc<dyn Inbound>>) {
        let before = std::mem::replace(&mut self.lock().own, handler);
        // The former handler is dropped outside the lock, since it may own large data.
        drop(before);
    }

    /// Registers a listener of a shared process. It receives those messages, such as log messages, that can only be about work of
    /// its owner.
    pub(crate) fn hear(self: &Arc<Self>, listener: ProcessListener) -> ListenerGuard {
        let mut inner = self.lock();
        let number = inner.listeners;
        inner.listeners += 1;
        let key = inner
            .listening
            .insert(NumberedListener { number, listener });
        drop(inner);
        ListenerGuard {
            router: Arc::clone(self),
            key,
        }
    }

    /// Returns true if the process has sent its client a request. It may then have stored data from the client's answer.
    pub(crate) fn has_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    /// Counts one more user of the process. Must be called before anything is sent for the user.
    pub(super) fn enter(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts one user of the process less.
    pub(super) fn leave(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }

    /// Counts a user of the process until the returned guard is dropped.
    pub(crate) fn in_use(self: &Arc<Self>) -> ProcessUseGuard {
        self.enter();
        ProcessUseGuard(Arc::clone(self))
    }

    /// Announces a change of a list or resource to the subscribers of the namespace. Returns false if the notification reports no
    /// such change.
    pub(super) fn announce(&self, notification: &Notification<'_>) -> bool {
        let Some(change) = change(notification) else {
            return false;
        };
        self.note(&change);
        self.audience.announce(&self.namespace, change);
        true
    }

    /// Passes a notification of the gateway's own subscription to the process's handler or, if there is none, to the subscribers
    /// of the namespace.
    pub(super) fn heard(&self, notification: &Notification<'_>) {
        let Some(own) = self.own() else {
            self.announce(notification);
            return;
        };
        let Some(change) = change(notification) else {
            return;
        };
        self.note(&change);
        // The handler's client does not know the gateway's subscription, so its id is removed from the message.
        let Some(message) = notification::untagged(&notification.message) else {
            own.notification(notification.clone());
            return;
        };
        let message = Bytes::from(message);
        own.notification(Notification {
            method: notification.method,
            params: notification::members(&message)
                .and_then(|members| Some(message.slice_ref(members.raw(Key::Params)?.as_bytes()))),
            message: message.clone(),
        });
    }

    /// Marks the server's list of tools as outdated, whichever of its processes reports a change. The list is read from the
    /// shared process and is used for a long time. If that process is not running, only a client's process can report a change.
    /// If the change is specific to that client, the list is read once in vain.
    fn note(&self, change: &Change) {
        if *change == Change::Tools {
            self.catalogue.changed();
        }
    }

    /// Informs the handler that the process has ended and is not replaced.
    pub(super) fn ended_for_good(&self) {
        if let Some(own) = self.own() {
            own.ended_for_good();
        }
    }

    fn own(&self) -> Option<Arc<dyn Inbound>> {
        self.lock().own.clone()
    }

    /// Returns the listeners that may receive a message that names no call, at most one per session. `in_hand`: function that
    /// returns the common owner of the calls in flight.
    fn hearers(&self, in_hand: &dyn Fn() -> CallsInHand) -> Vec<Arc<dyn Inbound>> {
        // Without listeners, the owner of the calls need not be determined.
        if self.lock().listening.is_empty() {
            return Vec::new();
        }
        // `in_hand` locks the link's calls, so it is called before this router is locked: `given_up` takes the two locks in that
        // order as well.
        let in_hand = in_hand();
        let mut inner = self.lock();
        let Some(owner) = inner.only_owner(self.users.load(Ordering::Acquire), in_hand) else {
            return Vec::new();
        };
        let foreign = inner.given_up.values();
        let foreign = foreign.filter(|it| it.owner.as_ref() != Some(&owner));
        let since = foreign.map(|it| it.at).min();
        let is_mute = since.is_some() || inner.countless || !self.tasks.are_of(&owner);
        let mut heard = inner.listening.iter();
        if is_mute {
            if heard.any(|(_, it)| it.listener.owner == owner) {
                let since = since.unwrap_or_else(Instant::now);
                inner.mute_since.get_or_insert(since);
                drop(inner);
                self.withheld.notify_one();
            }
            return Vec::new();
        }
        let heard = heard.map(|(_, it)| it);
        let mut heard: Vec<_> = heard.filter(|it| it.listener.owner == owner).collect();
        heard.sort_unstable_by_key(|it| std::cmp::Reverse(it.number));
        let mut told = HashSet::new();
        heard.retain(|it| {
            let session = it.listener.session.as_ref();
            session.is_none_or(|session| told.insert(session))
        });
        let heard = heard.into_iter();
        heard.map(|it| Arc::clone(&it.listener.inbound)).collect()
    }

    /// Waits until the messages of the process have been withheld for `limit` and no task that a client still wants is running.
    pub(super) async fn is_mute_for(&self, limit: Duration) {
        loop {
            let since = self.mute_since();
            let Some(since) = since else {
                self.withheld.notified().await;
                continue;
            };
            let now = Instant::now();
            if since + limit > now {
                sleep_until(since + limit).await;
            } else if self.tasks.are_running() {
                sleep_until(now + limit).await;
            } else {
                return;
            }
        }
    }

    /// Returns the time since which messages are withheld; `None` if no abandoned call or task is unfinished.
    fn mute_since(&self) -> Option<Instant> {
        let is_over = !self.has_unfinished();
        let mut inner = self.lock();
        if is_over {
            inner.mute_since = None;
        }
        inner.mute_since
    }

    fn lock(&self) -> MutexGuard<'_, RouterState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inbound for InboundRouter {
    fn notification(&self, notification: Notification<'_>) {
        self.notification_beside(notification, &|| CallsInHand::Mixed);
    }

    fn notification_beside(
        &self,
        notification: Notification<'_>,
        in_hand: &dyn Fn() -> CallsInHand,
    ) {
        if let Some(own) = self.own() {
            if notification.method == "notifications/tools/list_changed" {
                self.catalogue.changed();
            }
            own.notification(notification);
        } else if !self.announce(&notification) && !self.tasks.tell(&notification) {
            for listener in self.hearers(in_hand) {
                listener.notification(notification.clone());
            }
        }
    }

    fn given_up(&self, call: u64, owner: Option<&CallOwner>) {
        let (owner, at) = (owner.cloned(), Instant::now());
        let mut inner = self.lock();
        if inner.given_up.len() < GIVEN_UP_MAX {
            inner.given_up.insert(call, CancelledCall { owner, at });
        } else {
            inner.countless = true;
        }
    }

    fn settled(&self, call: u64) {
        self.lock().given_up.remove(&call);
    }

    fn began_task(&self, call: Option<u64>, result: &RawValue) {
        self.tasks.begin(call, result);
    }

    fn request(&self, request: ServerRequest) {
        match self.own() {
            Some(own) => {
                if request.method() != "ping" {
                    self.asked.store(true, Ordering::Release);
                }
                own.request(request);
            }
            None => {
                request.answer(Err(RpcError {
                    code: code::METHOD_NOT_FOUND,
                    message: "this process serves several clients, none of which can be asked",
                }));
            }
        }
    }

    fn violation(&self, violation: ProtocolViolation) {
        self.metrics.violation(violation);
    }
}

impl RouterState {
    /// Returns the client to which all work of the server belongs; `None` if it may belong to several, or if no client listens:
    /// - with a single user and a single listener: the listener's owner, even if the owners of pending calls are not known;
    /// - with pending calls: their common owner, even if clients without a pending call listen, too;
    /// - without pending calls: the common owner of all listeners.
    fn only_owner(&self, users: usize, in_hand: CallsInHand) -> Option<CallOwner> {
        let mut listening = self.listening.iter().map(|(_, it)| &it.listener.owner);
        let first = listening.next()?;
        match in_hand {
            _ if users == 1 && self.listening.len() == 1 => Some(first.clone()),
            CallsInHand::Of(owner) => Some(owner),
            CallsInHand::Empty => listening.all(|it| it == first).then(|| first.clone()),
            CallsInHand::Mixed => None,
        }
    }

    /// Returns true if the server has answered every abandoned call.
    fn is_settled(&self) -> bool {
        self.given_up.is_empty() && !self.countless
    }
}

impl Drop for ProcessUseGuard {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Drop for ListenerGuard {
    fn drop(&mut self) {
        let handler = self.router.lock().listening.try_remove(self.key);
        drop(handler);
    }
}

#[derive(Deserialize)]
struct ResourceUpdate {
    uri: Arc<str>,
}

fn change(notification: &Notification<'_>) -> Option<Change> {
    Some(match notification.method {
        "notifications/tools/list_changed" => Change::Tools,
        "notifications/prompts/list_changed" => Change::Prompts,
        "notifications/resources/list_changed" => Change::Resources,
        "notifications/resources/updated" => {
            let params = notification.params.as_ref()?;
            Change::Updated(serde_json::from_slice::<ResourceUpdate>(params).ok()?.uri)
        }
        _ => return None,
    })
}

impl fmt::Debug for InboundRouter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InboundRouter")
            .field("namespace", &self.namespace)
            .field("users", &self.users.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use tooldock_sessions::session::config::EventLogConfig;
    use tooldock_sessions::stream::{EventLog, KeepAlive, StreamMetrics};

    use super::*;

    pub(in crate::pool::process) fn audience() -> Arc<Audience> {
        let keep_alive = KeepAlive::new(std::time::Duration::from_secs(15));
        let metrics = StreamMetrics::unregistered();
        Audience::new(Arc::new(EventLog::new(
            EventLogConfig::default(),
            keep_alive,
            metrics,
        )))
    }

    #[derive(Default)]
    struct Ear(AtomicUsize);

    impl Inbound for Ear {
        fn notification(&self, _: Notification<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn request(&self, _: ServerRequest) {}
    }

    impl Ear {
        fn heard(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    fn router() -> Arc<InboundRouter> {
        InboundRouter::new(
            "ns".parse().expect("a name"),
            audience(),
            Arc::default(),
            ServerMetrics::unregistered("ns"),
        )
    }

    fn say(router: &InboundRouter, method: &str) {
        router.notification(Notification {
            method,
            params: None,
            message: bytes::Bytes::new(),
        });
    }

    fn owner(principal: &str) -> CallOwner {
        CallOwner {
            principal: Some(principal.into()),
            aggregate: None,
        }
    }

    fn listener(principal: &str, session: Option<&str>, ear: &Arc<Ear>) -> ProcessListener {
        ProcessListener {
            owner: owner(principal),
            session: session.map(Into::into),
            inbound: Arc::clone(ear) as _,
        }
    }

    /// Passes a log message to the router while the given calls are in flight.
    fn log_beside(router: &InboundRouter, in_hand: CallsInHand) {
        let notification = Notification {
            method: "notifications/message",
            params: None,
            message: bytes::Bytes::new(),
        };
        router.notification_beside(notification, &|| in_hand.clone());
    }

    #[tokio::test]
    async fn a_log_message_reaches_a_principal_only_while_all_calls_in_flight_are_its_own() {
        let router = router();
        let ears = [(); 4].map(|()| Arc::new(Ear::default()));
        let [first, second, other, bobs] = &ears;
        let _first = router.hear(listener("ada", Some("s"), first));
        router.enter();
        log_beside(&router, CallsInHand::Mixed);
        assert_eq!(first.heard(), 1, "a lone user");
        // This adds a second call of the same session; the next line adds a call of another session.
        let _second = router.hear(listener("ada", Some("s"), second));
        let _other = router.hear(listener("ada", Some("t"), other));
        router.enter();
        router.enter();
        log_beside(&router, CallsInHand::Of(owner("ada")));
        let heard = || ears.each_ref().map(|ear| ear.heard());
        assert_eq!(
            heard(),
            [1, 1, 1, 0],
            "each session once, in its newest call"
        );
        let bob = router.hear(listener("bob", None, bobs));
        router.enter();
        for in_hand in [CallsInHand::Mixed, CallsInHand::Empty] {
            log_beside(&router, in_hand);
        }
        assert_eq!(heard(), [1, 1, 1, 0]);
        // At first, only calls of Ada are in flight; after that, only calls of Bob.
        log_beside(&router, CallsInHand::Of(owner("ada")));
        log_beside(&router, CallsInHand::Of(owner("bob")));
        assert_eq!(heard(), [1, 2, 2, 1]);
        drop(bob);
        // This adds a call of the same principal that came through an aggregate.
        let aggregate = Some("all".parse().expect("a name"));
        log_beside(
            &router,
            CallsInHand::Of(CallOwner {
                aggregate,
                ..owner("ada")
            }),
        );
        assert_eq!(heard(), [1, 2, 2, 1]);
    }

    #[tokio::test]
    async fn a_cancelled_call_withholds_nothing_from_its_own_principal() {
        let router = router();
        router.given_up(7, Some(&owner("ada")));
        let (ada, bob) = (Arc::new(Ear::default()), Arc::new(Ear::default()));
        for (name, ear) in [("ada", &ada), ("bob", &bob)] {
            let _hearing = router.hear(listener(name, None, ear));
            log_beside(&router, CallsInHand::Of(owner(name)));
        }
        assert_eq!((ada.heard(), bob.heard()), (1, 0));
        // This call was abandoned, and its owner is not known.
        router.given_up(8, None);
        let _hearing = router.hear(listener("ada", None, &ada));
        log_beside(&router, CallsInHand::Of(owner("ada")));
        assert_eq!(ada.heard(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_is_mute_while_it_withholds_messages_for_a_call_without_an_answer() {
        const LIMIT: Duration = Duration::from_secs(30);
        let router = router();
        let is_mute = async |router: &Arc<InboundRouter>| {
            let waited = tokio::time::timeout(LIMIT * 3, router.is_mute_for(LIMIT));
            waited.await.is_ok()
        };
        router.given_up(7, Some(&owner("ada")));
        assert!(!is_mute(&router).await, "no client waited for a word");
        let bob = Arc::new(Ear::default());
        let hearing = router.hear(listener("bob", None, &bob));
        router.given_up(8, Some(&owner("ada")));
        router.settled(7);
        let before = Instant::now();
        log_beside(&router, CallsInHand::Of(owner("bob")));
        drop(hearing);
        assert!(is_mute(&router).await);
        assert_eq!(before.elapsed(), LIMIT);
        router.settled(8);
        assert!(!is_mute(&router).await, "it is answered");
    }

    #[tokio::test(start_paused = true)]
    async fn a_mute_process_is_kept_while_it_runs_a_task() {
        const LIMIT: Duration = Duration::from_secs(30);
        let router = router();
        let created = r#"{"task":{"taskId":"t","status":"working"}}"#;
        router.began_task(Some(7), serde_json::from_str(created).expect("JSON"));
        let bob = Arc::new(Ear::default());
        let _hearing = router.hear(listener("bob", None, &bob));
        log_beside(&router, CallsInHand::Of(owner("bob")));
        let waited = tokio::time::timeout(LIMIT * 3, router.is_mute_for(LIMIT));
        assert!(waited.await.is_err());
        // The server may never report that a cancelled task has ended.
        let params = r#"{"taskId":"t","status":"cancelled"}"#;
        router.notification(Notification {
            method: "notifications/tasks/status",
            params: Some(params.into()),
            message: Bytes::new(),
        });
        let waited = tokio::time::timeout(LIMIT * 3, router.is_mute_for(LIMIT));
        assert!(waited.await.is_ok());
    }

    #[tokio::test]
    async fn a_change_is_no_log_message() {
        let router = router();
        let one = Arc::new(Ear::default());
        let _hearing = router.hear(listener("ada", None, &one));
        router.enter();
        say(&router, "notifications/message");
        // A changed list is announced to all subscribers.
        say(&router, "notifications/tools/list_changed");
        assert_eq!(one.heard(), 1);
    }

    #[tokio::test]
    async fn a_call_that_was_given_up_keeps_others_from_hearing_until_the_server_answers_it() {
        let router = router();
        // A call of a client is abandoned, with or without another client's call in flight.
        router.enter();
        router.given_up(7, Some(&owner("bob")));
        router.leave();
        let ear = Arc::new(Ear::default());
        let _hearing = router.hear(listener("ada", None, &ear));
        router.enter();
        for method in ["notifications/message", "x/unknown"] {
            say(&router, method);
        }
        assert_eq!(ear.heard(), 0);
        // 8 is the id of a call on another connection.
        router.settled(8);
        say(&router, "notifications/message");
        assert_eq!(ear.heard(), 0);
        router.settled(7);
        say(&router, "notifications/message");
        assert_eq!(ear.heard(), 1);
    }

    #[tokio::test]
    async fn more_calls_given_up_than_are_remembered_are_never_forgotten() {
        let router = router();
        let all = GIVEN_UP_MAX as u64 + 1;
        (0..all).for_each(|call| router.given_up(call, None));
        (0..all).for_each(|call| router.settled(call));
        assert!(router.has_unfinished());
        assert!(router.lock().given_up.is_empty());
    }

    #[tokio::test]
    async fn a_task_keeps_others_from_hearing_until_it_is_over() {
        let router = router();
        let created = r#"{"task":{"taskId":"t","status":"working"}}"#;
        router.began_task(Some(7), serde_json::from_str(created).expect("JSON"));
        let ear = Arc::new(Ear::default());
        let _hearing = router.hear(listener("ada", None, &ear));
        router.enter();
        let status = |status: &str| {
            let params = format!(r#"{{"taskId":"t","status":"{status}"}}"#);
            router.notification(Notification {
                method: "notifications/tasks/status",
                params: Some(params.into()),
                message: Bytes::new(),
            });
        };
        status("working");
        say(&router, "notifications/message");
        assert_eq!(ear.heard(), 0);
        status("completed");
        say(&router, "notifications/tasks/status");
        assert_eq!(ear.heard(), 0);
        say(&router, "notifications/message");
        assert_eq!(ear.heard(), 1);
    }

    #[tokio::test]
    async fn a_change_at_a_shared_process_is_told_in_our_words() {
        let audience = audience();
        let name = "ns".parse().expect("a name");
        let router = InboundRouter::new(
            "ns".parse().expect("a name"),
            Arc::clone(&audience),
            Arc::default(),
            ServerMetrics::unregistered("ns"),
        );
        let stream =
            tooldock_sessions::stream::Stream::detached(&KeepAlive::new(Duration::from_secs(15)));
        let filter = tooldock_sessions::broadcast::Filter {
            tools: true,
            ..Default::default()
        };
        let _guard = audience.listen(&name, filter, "1", &stream);
        let mut events = stream.read();
        let message = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"x":"of ada"}}"#;
        router.notification(Notification {
            method: "notifications/tools/list_changed",
            params: Some(Bytes::from_static(br#"{"x":"of ada"}"#)),
            message: Bytes::from_static(message.as_bytes()),
        });
        let heard = events.next().await.expect("the change");
        let heard = String::from_utf8(heard.to_vec()).expect("UTF-8");
        assert!(heard.contains("tools/list_changed"), "{heard}");
        assert!(!heard.contains("of ada"), "{heard}");
    }

    #[tokio::test]
    async fn the_owner_of_a_process_hears_everything() {
        let router = router();
        let owner = Arc::new(Ear::default());
        router.set_own(Some(Arc::clone(&owner) as _));
        say(&router, "notifications/message");
        say(&router, "notifications/tools/list_changed");
        router.set_own(None);
        say(&router, "notifications/message");
        assert_eq!(owner.heard(), 2);
    }

    #[derive(Default)]
    struct Words(Mutex<Vec<(String, String)>>);

    impl Inbound for Words {
        fn notification(&self, notification: Notification<'_>) {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
            let params = text(notification.params.as_deref().unwrap_or_default());
            let mut heard = self.0.lock().expect("not poisoned");
            heard.push((text(&notification.message), params));
        }

        fn request(&self, _: ServerRequest) {}
    }

    #[tokio::test]
    async fn the_owner_of_a_modern_process_hears_its_words_without_the_gateways_subscription() {
        let router = router();
        let owner = Arc::new(Words::default());
        router.set_own(Some(Arc::clone(&owner) as _));
        let tag = r#","_meta":{"io.modelcontextprotocol/subscriptionId":65536}"#;
        let mut expected = Vec::new();
        for tag in [tag, ""] {
            let params = format!(r#"{{"n":1.50,"uri":"test://a"{tag}}}"#);
            let told = r#"{"n":1.50,"uri":"test://a"}"#;
            let message = |params: &str| {
                format!(
                    r#"{{"x":1e400,"jsonrpc":"2.0", "m\u0065thod":"notifications/resources/updated","params":{params}}}"#
                )
            };
            router.heard(&Notification {
                method: "notifications/resources/updated",
                message: message(&params).into(),
                params: Some(params.into()),
            });
            expected.push((message(told), told.to_owned()));
        }
        assert_eq!(*owner.0.lock().expect("not poisoned"), expected);
    }

    #[test]
    fn an_update_names_its_resource() {
        let params = bytes::Bytes::from_static(br#"{"uri":"test://a","more":1}"#);
        let notification = |params| Notification {
            method: "notifications/resources/updated",
            params,
            message: bytes::Bytes::new(),
        };
        let updated = change(&notification(Some(params)));
        assert_eq!(updated, Some(Change::Updated("test://a".into())));
        assert_eq!(change(&notification(None)), None);
    }
}
