//! Who hears what a process says that belongs to no call.
//!
//! A process of one session, or leased for one request, has a handler of its own and that hears everything. A process
//! of many has none: changes go to the audience of the namespace, requests are refused, and anything else reaches a
//! client only where exactly one uses the process. With two, nothing says which of them it is meant for, and guessing
//! would show one tenant's words to another (DESIGN §3).

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde::Deserialize;
use slab::Slab;
use tooldock_workers::names::NamespaceName;

use crate::bridge::news;
use crate::protocol::code;
use crate::stdio::link::Inbound;
use crate::stdio::lists::Lists;
use crate::stdio::message::{Notification, Oddity, RpcError, ServerRequest};
use crate::stdio::metrics::ServerMetrics;
use crate::stdio::splice;
use crate::stream::audience::{Audience, Change};

/// Who hears one process.
pub(crate) struct Switch {
    namespace: NamespaceName,
    audience: Arc<Audience>,
    lists: Arc<Lists>,
    metrics: Arc<ServerMetrics>,
    /// What it says of changes is not everybody's: that they are there is said in our words.
    keeps_words: AtomicBool,
    /// It asked whoever had it for itself: it may know now what nobody else is to be told.
    asked: AtomicBool,
    /// Those who use the process now.
    users: AtomicUsize,
    /// Plain data; nothing is called under it.
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    own: Option<Arc<dyn Inbound>>,
    /// Those of the users who want to hear what can only be meant for them.
    listening: Slab<Arc<dyn Inbound>>,
}

/// A user's ear at a process of many; dropping it takes it away.
pub(crate) struct Hearing {
    switch: Arc<Switch>,
    key: usize,
}

impl Switch {
    pub(super) fn new(
        namespace: NamespaceName,
        audience: Arc<Audience>,
        lists: Arc<Lists>,
        metrics: Arc<ServerMetrics>,
    ) -> Arc<Self> {
        Arc::new(Self {
            namespace,
            audience,
            lists,
            metrics,
            keeps_words: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            users: AtomicUsize::new(0),
            inner: Mutex::default(),
        })
    }

    /// Gives everything to one handler, or to the audience again.
    pub(crate) fn set_own(&self, handler: Option<Arc<dyn Inbound>>) {
        let before = std::mem::replace(&mut self.lock().own, handler);
        // Outside the lock: it may be the last of much.
        drop(before);
    }

    /// Whether the namespace is told of changes without the server's own words: of a process that is not everybody's they
    /// may hold what is not.
    pub(super) fn keep_words(&self, keep: bool) {
        self.keeps_words.store(keep, Ordering::Release);
    }

    /// Hears what can only be meant for this user of a process of many: log messages, while nobody else uses it.
    pub(crate) fn hear(self: &Arc<Self>, handler: Arc<dyn Inbound>) -> Hearing {
        let key = self.lock().listening.insert(handler);
        Hearing {
            switch: Arc::clone(self),
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

    /// Tells the audience what changed. `false`: the notification is about something else.
    pub(super) fn announce(&self, notification: &Notification<'_>) -> bool {
        let Some(change) = change(notification) else {
            return false;
        };
        self.note(&change);
        if self.keeps_words.load(Ordering::Acquire) {
            self.audience.announce(&self.namespace, change);
        } else {
            let message = &notification.message;
            self.audience.pass_on(&self.namespace, change, message);
        }
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
        let Some(message) = news::untagged(&notification.message) else {
            own.notification(notification.clone());
            return;
        };
        let message = Bytes::from(message);
        own.notification(Notification {
            method: notification.method,
            params: news::params(&message)
                .map(|(text, params)| message.slice(splice::span(text, params.get()))),
            message: message.clone(),
        });
    }

    fn note(&self, change: &Change) {
        if *change == Change::Tools {
            self.lists.changed();
        }
    }

    fn own(&self) -> Option<Arc<dyn Inbound>> {
        self.lock().own.clone()
    }

    /// The one user there is, if it listens.
    fn only_user(&self) -> Option<Arc<dyn Inbound>> {
        let inner = self.lock();
        let mut listening = inner.listening.iter().map(|(_, handler)| handler);
        let users = self.users.load(Ordering::Acquire);
        match (users, listening.next(), listening.next()) {
            (1, Some(handler), None) => Some(Arc::clone(handler)),
            _ => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inbound for Switch {
    fn notification(&self, notification: Notification<'_>) {
        if let Some(own) = self.own() {
            if notification.method == "notifications/tools/list_changed" {
                self.lists.changed();
            }
            own.notification(notification);
        } else if !self.announce(&notification)
            && let Some(user) = self.only_user()
        {
            user.notification(notification);
        }
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

    fn oddity(&self, oddity: Oddity) {
        self.metrics.oddity(oddity);
    }
}

impl Drop for Hearing {
    fn drop(&mut self) {
        let handler = self.switch.lock().listening.try_remove(self.key);
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

impl fmt::Debug for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Switch")
            .field("namespace", &self.namespace)
            .field("users", &self.users.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::session::config::EventLogConfig;
    use crate::stream::{MemoryEventLog, Pulse, StreamMetrics};

    pub(in crate::stdio::process) fn audience() -> Arc<Audience> {
        let pulse = Pulse::new(std::time::Duration::from_secs(15));
        let metrics = StreamMetrics::unregistered();
        Audience::new(Arc::new(MemoryEventLog::new(
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

    fn switch() -> Arc<Switch> {
        Switch::new(
            "ns".parse().expect("a name"),
            audience(),
            Arc::default(),
            ServerMetrics::unregistered("ns"),
        )
    }

    fn say(switch: &Switch, method: &str) {
        switch.notification(Notification {
            method,
            params: None,
            message: bytes::Bytes::new(),
        });
    }

    #[tokio::test]
    async fn a_log_message_of_a_shared_process_reaches_its_user_only_while_that_is_the_only_one() {
        let switch = switch();
        let (one, other) = (Arc::new(Ear::default()), Arc::new(Ear::default()));
        let _hearing = switch.hear(Arc::clone(&one) as _);
        switch.enter();
        say(&switch, "notifications/message");
        assert_eq!(one.heard(), 1);
        // Another one that listens, and one that does not.
        switch.enter();
        let second = switch.hear(Arc::clone(&other) as _);
        say(&switch, "notifications/message");
        drop(second);
        say(&switch, "notifications/message");
        assert_eq!((one.heard(), other.heard()), (1, 0));
        switch.leave();
        say(&switch, "notifications/message");
        // A change is the audience's.
        say(&switch, "notifications/tools/list_changed");
        assert_eq!(one.heard(), 2);
    }

    #[tokio::test]
    async fn the_owner_of_a_process_hears_everything() {
        let switch = switch();
        let owner = Arc::new(Ear::default());
        switch.set_own(Some(Arc::clone(&owner) as _));
        say(&switch, "notifications/message");
        say(&switch, "notifications/tools/list_changed");
        switch.set_own(None);
        say(&switch, "notifications/message");
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
        let switch = switch();
        let owner = Arc::new(Words::default());
        switch.set_own(Some(Arc::clone(&owner) as _));
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
            switch.heard(&Notification {
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
