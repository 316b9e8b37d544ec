//! The resources a session wants to hear of.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Resources one session, or one listener, may subscribe to.
pub(crate) const URIS_MAX: usize = 1000;
/// Bytes of their URIs together: 64 KiB.
pub(crate) const URI_BYTES_MAX: usize = 64 * 1024;

/// A resource somebody subscribes to costs this beside its URI, in bytes, and its URI is held so often where the resource is
/// an external server's: by who subscribes, by what is kept for that one, and by the pool of the server's processes.
const COST: usize = 400;
const URI_COPIES: usize = 4;

/// What so many subscriptions with so many bytes of URIs cost, in bytes, about.
pub(crate) const fn cost(subscriptions: usize, uris: usize) -> usize {
    subscriptions * COST + uris * URI_COPIES
}

/// Resource URIs, as the client spelled them.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    /// Guards plain data; nothing awaits under it.
    uris: Mutex<Uris>,
}

#[derive(Debug, Default)]
struct Uris {
    all: BTreeSet<Box<str>>,
    bytes: usize,
}

impl Uris {
    fn check(&self, uri: &str) -> Result<(), TooManySubscriptions> {
        let bytes = self.bytes.saturating_add(uri.len());
        let full = self.all.len() >= URIS_MAX || bytes > URI_BYTES_MAX;
        match full && !self.all.contains(uri) {
            true => Err(TooManySubscriptions),
            false => Ok(()),
        }
    }
}

/// The session subscribes to as much as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many resource subscriptions in this session")]
pub struct TooManySubscriptions;

impl Subscriptions {
    /// Those of a record.
    pub(super) fn recorded(all: BTreeSet<Box<str>>) -> Self {
        let bytes = all.iter().map(|uri| uri.len()).sum();
        Self {
            uris: Mutex::new(Uris { all, bytes }),
        }
    }

    /// All of them, for a record.
    pub(super) fn all(&self) -> BTreeSet<Box<str>> {
        self.lock().all.clone()
    }

    /// Subscribes; again is fine. Answers whether the subscription is new.
    ///
    /// # Errors
    ///
    /// [`TooManySubscriptions`] beyond 1000 URIs or 64 KiB of them.
    pub(super) fn add(&self, uri: &str) -> Result<bool, TooManySubscriptions> {
        let mut uris = self.lock();
        if uris.all.contains(uri) {
            return Ok(false);
        }
        uris.check(uri)?;
        uris.all.insert(uri.into());
        uris.bytes += uri.len();
        Ok(true)
    }

    /// Unsubscribes. Answers whether there was such a subscription.
    pub(super) fn remove(&self, uri: &str) -> bool {
        let mut uris = self.lock();
        let removed = uris.all.remove(uri);
        if removed {
            uris.bytes -= uri.len();
        }
        removed
    }

    /// Which of these resources the session wants to hear of.
    pub(crate) fn among<'a>(&self, updated: &'a BTreeSet<Arc<str>>) -> Vec<&'a Arc<str>> {
        let uris = self.lock();
        if uris.all.len() < updated.len() {
            let own = uris.all.iter();
            own.filter_map(|uri| updated.get(&**uri)).collect()
        } else {
            let all = updated.iter();
            all.filter(|uri| uris.all.contains(&***uri)).collect()
        }
    }

    /// Whether the session wants to hear of that resource.
    #[cfg(test)]
    pub(crate) fn contains(&self, uri: &str) -> bool {
        self.lock().all.contains(uri)
    }

    /// What they cost, in bytes, about.
    pub(super) fn weight(&self) -> usize {
        let uris = self.lock();
        cost(uris.all.len(), uris.bytes)
    }

    /// Drops them all.
    pub(super) fn clear(&self) {
        *self.lock() = Uris::default();
    }

    fn lock(&self) -> MutexGuard<'_, Uris> {
        self.uris.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_is_subscribed_once_and_unsubscribed_once() {
        let subscriptions = Subscriptions::default();
        subscriptions.add("test://a").expect("the first");
        subscriptions.add("test://a").expect("again");
        let updated = |uris: &[&str]| uris.iter().map(|uri| Arc::from(*uri)).collect();
        let heard = |updated: &BTreeSet<Arc<str>>| {
            let heard = subscriptions.among(updated).into_iter();
            heard.map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(heard(&updated(&["test://a"])), ["test://a"]);
        assert_eq!(
            heard(&updated(&["test://b", "test://a", "test://A"])),
            ["test://a"]
        );
        assert!(heard(&updated(&["test://A"])).is_empty());
        assert!(subscriptions.remove("test://a"));
        assert!(!subscriptions.remove("test://a"));
        assert_eq!(subscriptions.lock().bytes, 0);
    }

    #[test]
    fn there_is_an_end_to_how_much_one_session_remembers() {
        let subscriptions = Subscriptions::default();
        for number in 0..URIS_MAX {
            subscriptions.add(&number.to_string()).expect("within");
        }
        assert_eq!(subscriptions.add("more"), Err(TooManySubscriptions));
        subscriptions.add("7").expect("one that is there");
        subscriptions.clear();
        let long = "x".repeat(URI_BYTES_MAX);
        subscriptions.add(&long).expect("just so");
        assert_eq!(subscriptions.add("x"), Err(TooManySubscriptions));
        assert!(subscriptions.remove(&long));
        subscriptions.add("x").expect("room again");
    }
}
