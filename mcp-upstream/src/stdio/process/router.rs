//! Who hears what a process says that belongs to no call.
//!
//! A process of one session, or leased for one request, has a handler of its own and that hears everything. A process
//! of many has none: requests are refused, and the rest is one of these.
//!
//! - A list or a resource that changed: the audience of the namespace hears of the change, in our words. The server's
//!   may be about a client's call.
//! - What names a task goes to the owner of the task ([`Tasks`]).
//! - Anything else reaches a client only while that client's call is all the server can be doing: its call is the only
//!   one in flight, and every call before had its own answer. A call that ran out of time, was cancelled or became a
//!   task may go on in the server, and nothing says which call the server speaks of; guessing would show one tenant's
//!   words to another (DESIGN §3).

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use slab::Slab;
use tooldock_workers::names::NamespaceName;

use super::tasks::Tasks;
use crate::broadcast::{Audience, Change};
use crate::catalogue::Catalogue;
use crate::jsonrpc::{Key, Notification, ProtocolViolation, RpcError, ServerRequest, notification};
use crate::protocol::code;
use crate::stdio::link::Inbound;
use crate::stdio::metrics::ServerMetrics;

/// Calls that were given up and are remembered until the server answers them. With more, the server counts as busy with
/// them for as long as it lives.
const GIVEN_UP_MAX: usize = 1024;

/// Who hears one process.
pub(crate) struct InboundRouter {
    namespace: NamespaceName,
    audience: Arc<Audience>,
    catalogue: Arc<Catalogue>,
    metrics: Arc<ServerMetrics>,
    /// It asked whoever had it for itself: it may know now what nobody else is to be told.
    asked: AtomicBool,
    /// Those who use the process now.
    users: AtomicUsize,
    tasks: Arc<Tasks>,
    /// Plain data; nothing is called under it.
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    own: Option<Arc<dyn Inbound>>,
    /// Those of the users who want to hear what can only be meant for them.
    listening: Slab<Arc<dyn Inbound>>,
    /// Calls the server may still work on although nobody waits for them.
    given_up: HashSet<u64>,
    /// There were more of these than are remembered.
    countless: bool,
}

/// A use of a process without a lease; dropping it ends the use.
pub(crate) struct InUse(Arc<InboundRouter>);

/// A user's ear at a process of many; dropping it takes it away.
pub(crate) struct ListenerGuard {
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
            inner: Mutex::default(),
        })
    }

    /// Whose the tasks of the process are.
    pub(crate) fn tasks(&self) -> &Arc<Tasks> {
        &self.tasks
    }

    /// Whether the server may still work on something that nobody waits for.
    pub(crate) fn has_unfinished(&self) -> bool {
        !self.lock().is_settled() || !self.tasks.are_over()
    }

    /// Gives everything to one handler, or to the audience again.
    pub(crate) fn set_own(&self, handler: Option<Arc<dyn Inbound>>) {
        let before = std::mem::replace(&mut self.lock().own, handler);
        // Outside the lock: it may be the last of much.
        drop(before);
    }

    /// Hears what can only be meant for this user of a process of many: log messages, while nobody else uses it.
    pub(crate) fn hear(self: &Arc<Self>, handler: Arc<dyn Inbound>) -> ListenerGuard {
        let key = self.lock().listening.insert(handler);
        ListenerGuard {
            router: Arc::clone(self),
            key,
        }
    }

    /// Whether the process may hold an answer of the client it was opened for.
    pub(crate) fn has_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    /// Somebody uses the process from now on, before anything of it is sent.
    pub(super) fn enter(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    /// And does not any more.
    pub(super) fn leave(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }

    /// The same, for as long as what it gives back is kept.
    pub(crate) fn in_use(self: &Arc<Self>) -> InUse {
        self.enter();
        InUse(Arc::clone(self))
    }

    /// Tells the audience what changed. `false`: the notification is about something else.
    pub(super) fn announce(&self, notification: &Notification<'_>) -> bool {
        let Some(change) = change(notification) else {
            return false;
        };
        self.note(&change);
        self.audience.announce(&self.namespace, change);
        true
    }

    /// What the process says on the subscription the gateway holds there: for its owner, else for the audience.
    pub(super) fn heard(&self, notification: &Notification<'_>) {
        let Some(own) = self.own() else {
            self.announce(notification);
            return;
        };
        let Some(change) = change(notification) else {
            return;
        };
        self.note(&change);
        // Without the id of a subscription its owner knows nothing of.
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

    /// The word of a process that is not everybody's counts, too. The one of everybody may be away, idle or not started,
    /// while its list is good for long; then nobody else says that the server has other tools. Where the change was one
    /// client's alone, the list is read once more, and says what it did.
    fn note(&self, change: &Change) {
        if *change == Change::Tools {
            self.catalogue.changed();
        }
    }

    /// Tells who has the process for itself that it ended, and that no other one takes its place.
    pub(super) fn ended_for_good(&self) {
        if let Some(own) = self.own() {
            own.ended_for_good();
        }
    }

    fn own(&self) -> Option<Arc<dyn Inbound>> {
        self.lock().own.clone()
    }

    /// The one user there is, if it listens and the server can be doing nothing else.
    fn only_user(&self) -> Option<Arc<dyn Inbound>> {
        let inner = self.lock();
        let mut listening = inner.listening.iter().map(|(_, handler)| handler);
        // Under the lock: whoever gave a call up before leaving is noted.
        let users = self.users.load(Ordering::Acquire);
        let only = match (users, listening.next(), listening.next()) {
            (1, Some(handler), None) if inner.is_settled() => Arc::clone(handler),
            _ => return None,
        };
        drop(inner);
        self.tasks.are_over().then_some(only)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inbound for InboundRouter {
    fn notification(&self, notification: Notification<'_>) {
        if let Some(own) = self.own() {
            if notification.method == "notifications/tools/list_changed" {
                self.catalogue.changed();
            }
            own.notification(notification);
        } else if !self.announce(&notification)
            && !self.tasks.tell(&notification)
            && let Some(user) = self.only_user()
        {
            user.notification(notification);
        }
    }

    fn given_up(&self, call: u64) {
        let mut inner = self.lock();
        if inner.given_up.len() < GIVEN_UP_MAX {
            inner.given_up.insert(call);
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

impl Inner {
    /// Whether every call that was given up has been answered since.
    fn is_settled(&self) -> bool {
        self.given_up.is_empty() && !self.countless
    }
}

impl Drop for InUse {
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
struct Updated {
    uri: Arc<str>,
}

fn change(notification: &Notification<'_>) -> Option<Change> {
    Some(match notification.method {
        "notifications/tools/list_changed" => Change::Tools,
        "notifications/prompts/list_changed" => Change::Prompts,
        "notifications/resources/list_changed" => Change::Resources,
        "notifications/resources/updated" => {
            let params = notification.params.as_ref()?;
            Change::Updated(serde_json::from_slice::<Updated>(params).ok()?.uri)
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

    use super::*;
    use crate::session::config::EventLogConfig;
    use crate::stream::{EventLog, Pulse, StreamMetrics};

    pub(in crate::stdio::process) fn audience() -> Arc<Audience> {
        let pulse = Pulse::new(std::time::Duration::from_secs(15));
        let metrics = StreamMetrics::unregistered();
        Audience::new(Arc::new(EventLog::new(
            EventLogConfig::default(),
            pulse,
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

    #[tokio::test]
    async fn a_log_message_of_a_shared_process_reaches_its_user_only_while_that_is_the_only_one() {
        let router = router();
        let (one, other) = (Arc::new(Ear::default()), Arc::new(Ear::default()));
        let _hearing = router.hear(Arc::clone(&one) as _);
        router.enter();
        say(&router, "notifications/message");
        assert_eq!(one.heard(), 1);
        // Another one that listens, and one that does not.
        router.enter();
        let second = router.hear(Arc::clone(&other) as _);
        say(&router, "notifications/message");
        drop(second);
        say(&router, "notifications/message");
        assert_eq!((one.heard(), other.heard()), (1, 0));
        router.leave();
        say(&router, "notifications/message");
        // A change is the audience's.
        say(&router, "notifications/tools/list_changed");
        assert_eq!(one.heard(), 2);
    }

    #[tokio::test]
    async fn a_call_that_was_given_up_keeps_others_from_hearing_until_the_server_answers_it() {
        let router = router();
        // One client's call runs out of time, with or without another's in flight.
        router.enter();
        router.given_up(7);
        router.leave();
        let ear = Arc::new(Ear::default());
        let _hearing = router.hear(Arc::clone(&ear) as _);
        router.enter();
        for method in ["notifications/message", "x/unknown"] {
            say(&router, method);
        }
        assert_eq!(ear.heard(), 0);
        // Another process of ours, another id.
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
        (0..all).for_each(|call| router.given_up(call));
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
        let _hearing = router.hear(Arc::clone(&ear) as _);
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
        let stream = crate::stream::Stream::detached(&Pulse::new(Duration::from_secs(15)));
        let filter = crate::broadcast::Filter {
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
