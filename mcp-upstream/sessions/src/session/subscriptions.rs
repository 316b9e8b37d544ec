//! Resources that a session subscribes to.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of resources that one session, or one listener, subscribes to.
pub const URIS_MAX: usize = 1000;
/// Maximum length of the URIs of one session's, or one listener's, subscriptions together, in bytes: 64 KiB.
pub(crate) const URI_BYTES_MAX: usize = 64 * 1024;

/// Memory of one subscription without its URI, in bytes.
const COST: usize = 400;
/// Number of copies of a subscribed URI, if the resource belongs to an external server: in the subscriber's set, in the state
/// kept for the subscriber, and in the pool of the server's processes.
const URI_COPIES: usize = 4;

/// The approximate memory of subscriptions, in bytes, from their number and the bytes of their URIs.
pub const fn cost(subscriptions: usize, uris: usize) -> usize {
    subscriptions * COST + uris * URI_COPIES
}

/// Resources that one session subscribes to, as URIs in the client's spelling.
#[derive(Debug, Default)]
pub struct Subscriptions {
    /// Subscribed URIs. The lock is never held across an await.
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

/// Error: the session has the maximum number of subscriptions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many resource subscriptions in this session")]
pub struct TooManySubscriptions;

impl Subscriptions {
    /// Restores the subscriptions of a session's record.
    pub(super) fn recorded(all: BTreeSet<Box<str>>) -> Self {
        let bytes = all.iter().map(|uri| uri.len()).sum();
        Self {
            uris: Mutex::new(Uris { all, bytes }),
        }
    }

    /// All URIs that the session subscribes to, for its record.
    pub(super) fn all(&self) -> BTreeSet<Box<str>> {
        self.lock().all.clone()
    }

    /// Subscribes to a resource; has no effect if the session subscribes to it already. Returns true if the subscription is new.
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

    /// Unsubscribes from a resource. Returns true if the session subscribed to it.
    pub(super) fn remove(&self, uri: &str) -> bool {
        let mut uris = self.lock();
        let removed = uris.all.remove(uri);
        if removed {
            uris.bytes -= uri.len();
        }
        removed
    }

    /// Returns the resources of `updated` to which the session subscribes.
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

    /// Returns true if the session subscribes to this resource.
    #[cfg(any(test, feature = "testing"))]
    pub fn contains(&self, uri: &str) -> bool {
        self.lock().all.contains(uri)
    }

    /// The approximate memory of the subscriptions, in bytes.
    pub(super) fn weight(&self) -> usize {
        let uris = self.lock();
        cost(uris.all.len(), uris.bytes)
    }

    /// Removes all subscriptions.
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
