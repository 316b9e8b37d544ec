//! Requests of clients with a lasting effect: resource subscriptions and a log level. If a process is replaced, they are sent
//! again to the new process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, OnceCell};
use tooldock_process::worker::LogLevel;

/// Maximum number of subscribed resources per connection key, for all its clients together; further subscriptions are refused.
pub(crate) const SUBSCRIPTIONS_MAX: usize = 10_000;

/// The subscriptions and the log level of the clients of one connection key.
#[derive(Debug, Default)]
pub(crate) struct ReplayState {
    /// The subscriptions and the log level. The lock is never held across an await.
    inner: Mutex<LastingRequests>,
    /// Notified when the set of subscribed resources changes.
    changed: Notify,
}

#[derive(Debug, Default)]
struct LastingRequests {
    /// Subscriptions by the resource's URI.
    subscriptions: HashMap<Arc<str>, SharedSubscription>,
    level: Option<LogLevel>,
}

/// A subscription to a resource, shared by all clients of the connection key that requested it.
#[derive(Debug, Default)]
struct SharedSubscription {
    clients: usize,
    /// Set once the server has confirmed the subscription. Clients that subscribe at the same time wait for the confirmation; if
    /// it fails, one of them sends the request again.
    confirmed: Arc<OnceCell<()>>,
}

/// A client's request whose effect must be restored in a process that replaces another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LastingRequest {
    /// `logging/setLevel`: requests log messages of this level and above.
    Level(LogLevel),
    /// `resources/subscribe`: requests notifications about a resource.
    Subscribe(Arc<str>),
    /// `resources/unsubscribe`: ends the notifications about a resource.
    Unsubscribe(Arc<str>),
}

impl LastingRequest {
    /// Reads a request with a lasting effect. Returns `None` for other requests.
    pub(crate) fn of(method: &str, params: Option<&RawValue>) -> Option<Self> {
        #[derive(Deserialize)]
        struct About {
            uri: Arc<str>,
        }
        #[derive(Deserialize)]
        struct From {
            level: Box<str>,
        }
        let uri = || {
            let about: About = serde_json::from_str(params?.get()).ok()?;
            Some(about.uri)
        };
        match method {
            "logging/setLevel" => {
                let from: From = serde_json::from_str(params?.get()).ok()?;
                Some(Self::Level(from.level.parse().ok()?))
            }
            "resources/subscribe" => uri().map(Self::Subscribe),
            "resources/unsubscribe" => uri().map(Self::Unsubscribe),
            _ => None,
        }
    }
}

/// Error for a subscription to one more resource than [`SUBSCRIPTIONS_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the server has the maximum of {SUBSCRIPTIONS_MAX} subscriptions")]
pub(crate) struct TooManySubscriptions;

impl ReplayState {
    /// Adds a client's subscription to a resource. Returns true for the resource's first subscription, which must be sent to the
    /// server.
    ///
    /// # Errors
    ///
    /// [`TooManySubscriptions`] beyond [`SUBSCRIPTIONS_MAX`] resources.
    pub(crate) fn subscribe(&self, uri: &str) -> Result<bool, TooManySubscriptions> {
        let mut inner = self.lock();
        if let Some(subscription) = inner.subscriptions.get_mut(uri) {
            subscription.clients += 1;
            return Ok(false);
        }
        if inner.subscriptions.len() >= SUBSCRIPTIONS_MAX {
            return Err(TooManySubscriptions);
        }
        let first = SharedSubscription {
            clients: 1,
            ..SharedSubscription::default()
        };
        inner.subscriptions.insert(uri.into(), first);
        self.changed.notify_waiters();
        Ok(true)
    }

    /// Returns the cell that is set when the server confirms a subscription. All clients of the subscription share it.
    pub(crate) fn confirmed(&self, uri: &str) -> Option<Arc<OnceCell<()>>> {
        let inner = self.lock();
        let subscription = inner.subscriptions.get(uri)?;
        Some(Arc::clone(&subscription.confirmed))
    }

    /// Removes a client's subscription to a resource. Returns true if it was the resource's last subscription; the server must
    /// then be unsubscribed.
    pub(crate) fn unsubscribe(&self, uri: &str) -> bool {
        let mut inner = self.lock();
        let Some(subscription) = inner.subscriptions.get_mut(uri) else {
            return false;
        };
        subscription.clients -= 1;
        if subscription.clients > 0 {
            return false;
        }
        inner.subscriptions.remove(uri);
        self.changed.notify_waiters();
        true
    }

    /// Records that a client wants log messages of this level and above. Returns true if this is lower than the current level, so
    /// that the server must be set to it.
    pub(crate) fn lower_level(&self, level: LogLevel) -> bool {
        let mut inner = self.lock();
        let lower = inner.level.is_none_or(|own| level < own);
        if lower {
            inner.level = Some(level);
        }
        lower
    }

    /// Restores the former level after the server refused `refused`, unless another level was requested in the meantime.
    pub(crate) fn restore_level(&self, refused: LogLevel, before: Option<LogLevel>) {
        let mut inner = self.lock();
        if inner.level == Some(refused) {
            inner.level = before;
        }
    }

    /// Returns the lowest log level that was requested; `None` if none was.
    pub(crate) fn level(&self) -> Option<LogLevel> {
        self.lock().level
    }

    /// Returns the URIs of the resources to which clients are subscribed.
    pub(crate) fn subscriptions(&self) -> Vec<Arc<str>> {
        self.lock().subscriptions.keys().cloned().collect()
    }

    /// Returns a future that completes when the set of subscribed resources changes.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Returns true if any client is subscribed to a resource.
    pub(crate) fn is_awaited(&self) -> bool {
        !self.lock().subscriptions.is_empty()
    }

    /// Returns true if there is a subscription or a log level to restore in a replacement process.
    pub(crate) fn has_lasting_state(&self) -> bool {
        let inner = self.lock();
        inner.level.is_some() || !inner.subscriptions.is_empty()
    }

    /// Records a request with a lasting effect, for a key that has only one client.
    pub(crate) fn note(&self, wish: LastingRequest) {
        let mut inner = self.lock();
        match wish {
            LastingRequest::Level(level) => inner.level = Some(level),
            LastingRequest::Subscribe(uri) => {
                // A single client needs only a single subscription. A subscription beyond the limit is not recorded, so it is not
                // restored after a restart.
                if inner.subscriptions.len() < SUBSCRIPTIONS_MAX {
                    let subscription = inner.subscriptions.entry(uri).or_default();
                    subscription.clients = 1;
                }
            }
            LastingRequest::Unsubscribe(uri) => {
                inner.subscriptions.remove(&uri);
            }
        }
    }

    /// Takes over the subscriptions and the log level of another key, and clears them there.
    pub(crate) fn take_over(&self, other: &Self) {
        let other = std::mem::take(&mut *other.lock());
        if other.subscriptions.is_empty() && other.level.is_none() {
            return;
        }
        let mut inner = self.lock();
        for (uri, subscription) in other.subscriptions {
            // The subscription need not be sent here: a process for this key sends it when it starts.
            let own = inner.subscriptions.entry(uri);
            let own = own.or_insert_with(|| SharedSubscription {
                clients: 0,
                confirmed: subscription.confirmed,
            });
            own.clients += subscription.clients;
        }
        inner.level = inner.level.or(other.level);
        drop(inner);
        self.changed.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, LastingRequests> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_subscriber_asks_and_the_last_one_ends_it() {
        let replay_state = ReplayState::default();
        assert!(!replay_state.is_awaited());
        assert_eq!(replay_state.subscribe("test://a"), Ok(true));
        assert_eq!(replay_state.subscribe("test://a"), Ok(false));
        assert!(replay_state.is_awaited());
        assert!(!replay_state.unsubscribe("test://a"));
        assert!(replay_state.unsubscribe("test://a"));
        assert!(!replay_state.unsubscribe("test://a"));
        assert!(!replay_state.is_awaited());
    }

    #[test]
    fn there_is_an_end_to_subscriptions() {
        let replay_state = ReplayState::default();
        for number in 0..SUBSCRIPTIONS_MAX {
            assert_eq!(replay_state.subscribe(&number.to_string()), Ok(true));
        }
        assert_eq!(replay_state.subscribe("more"), Err(TooManySubscriptions));
        assert_eq!(replay_state.subscribe("7"), Ok(false));
    }

    #[test]
    fn what_a_client_asks_for_itself_is_read_from_its_request() {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).expect("JSON");
        let wish = |method, params: &str| LastingRequest::of(method, Some(&raw(params)));
        let uri = r#"{"uri":"test:\u002f\u002fa","x":1}"#;
        assert_eq!(
            wish("resources/subscribe", uri),
            Some(LastingRequest::Subscribe("test://a".into()))
        );
        assert_eq!(
            wish("resources/unsubscribe", uri),
            Some(LastingRequest::Unsubscribe("test://a".into()))
        );
        assert_eq!(
            wish("logging/setLevel", r#"{"level":"debug"}"#),
            Some(LastingRequest::Level(LogLevel::Debug))
        );
        assert_eq!(wish("logging/setLevel", r#"{"level":"loud"}"#), None);
        assert_eq!(wish("resources/read", uri), None);
        assert_eq!(LastingRequest::of("resources/subscribe", None), None);
    }

    #[test]
    fn the_most_curious_client_sets_the_level_and_a_refused_one_is_taken_back() {
        let replay_state = ReplayState::default();
        assert!(replay_state.lower_level(LogLevel::Warning));
        assert!(!replay_state.lower_level(LogLevel::Error));
        assert!(!replay_state.lower_level(LogLevel::Warning));
        assert!(replay_state.lower_level(LogLevel::Debug));
        replay_state.restore_level(LogLevel::Debug, Some(LogLevel::Warning));
        assert_eq!(replay_state.level(), Some(LogLevel::Warning));
        replay_state.restore_level(LogLevel::Debug, None);
        assert_eq!(replay_state.level(), Some(LogLevel::Warning));
    }

    #[test]
    fn one_client_that_asks_twice_is_one() {
        let replay_state = ReplayState::default();
        for _ in 0..2 {
            replay_state.note(LastingRequest::Subscribe("test://a".into()));
        }
        assert!(replay_state.has_lasting_state());
        replay_state.note(LastingRequest::Unsubscribe("test://a".into()));
        assert!(!replay_state.has_lasting_state());
        replay_state.note(LastingRequest::Level(LogLevel::Info));
        assert!(replay_state.has_lasting_state() && !replay_state.is_awaited());
    }

    #[test]
    fn what_lasted_elsewhere_is_taken_over_with_its_counts() {
        let (one, other) = (ReplayState::default(), ReplayState::default());
        for replay_state in [&one, &other] {
            replay_state.subscribe("test://a").expect("the first");
        }
        assert!(other.lower_level(LogLevel::Debug));
        one.take_over(&other);
        assert!(!other.is_awaited());
        assert_eq!(one.level(), Some(LogLevel::Debug));
        assert!(!one.unsubscribe("test://a"));
        assert!(one.unsubscribe("test://a"));
    }
}
