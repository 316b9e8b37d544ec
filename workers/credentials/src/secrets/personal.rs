//! The personal values of all principals. They are kept separately from the snapshot, so that a new value changes no namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tooldock_base::redactor::Redactor;
use tooldock_base::secret::Secret;

use super::{Authorizer, Secrets};

/// The personal values of one principal, by key.
pub(crate) type Own = Arc<BTreeMap<String, Secret>>;

/// The personal values of all principals, as read by the last reload, and the authorizations of the gateway.
#[derive(Debug)]
pub struct PersonalSecrets {
    pub(crate) current: ArcSwap<BTreeMap<String, Own>>,
    /// Times when the gateway was authorized, in seconds since 1970, by server and principal.
    authorized: ArcSwap<BTreeMap<Authorizer, u64>>,
    changed: watch::Sender<()>,
}

impl Default for PersonalSecrets {
    fn default() -> Self {
        Self {
            current: ArcSwap::default(),
            authorized: ArcSwap::default(),
            changed: watch::Sender::new(()),
        }
    }
}

impl PersonalSecrets {
    /// Replaces the personal values by those that `secrets` contains.
    pub fn install(&self, secrets: &Secrets) {
        let before = self.current.load_full();
        let wanted = secrets.of_principals().map(|(name, own)| {
            let kept = before.get(name).filter(|kept| ***kept == *own);
            let own = kept.map_or_else(|| Arc::new(own.clone()), Arc::clone);
            (name.to_owned(), own)
        });
        let wanted: BTreeMap<_, _> = wanted.collect();
        if wanted != *before {
            self.current.store(Arc::new(wanted));
            self.changed.send_replace(());
        }
    }

    /// Replaces the authorizations. The values are the times when the gateway was authorized, in seconds since 1970.
    pub(crate) fn install_authorizations(&self, authorized: BTreeMap<Authorizer, u64>) {
        if authorized != **self.authorized.load() {
            self.authorized.store(Arc::new(authorized));
            self.changed.send_replace(());
        }
    }

    /// Time when the authorizer authorized the gateway, in seconds since 1970; `None` if it did not.
    pub(crate) fn authorized_since(&self, authorizer: &Authorizer) -> Option<u64> {
        self.authorized.load().get(authorizer).copied()
    }

    /// Subscribes to all changes of personal values and authorizations.
    pub fn subscribe(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    pub(crate) fn of(&self, principal: &str) -> Option<Own> {
        self.current.load().get(principal).cloned()
    }

    /// Hides in a text the values that any principal has under the names `slots`.
    pub(crate) fn hide(&self, slots: &BTreeSet<String>, text: &str) -> String {
        let all = self.current.load();
        let own = all.values().flat_map(|own| &**own);
        let own = own.filter(|(key, _)| slots.contains(*key));
        let hidden = Redactor::new(own.map(|(_, value)| value)).hide(text.into(), false);
        String::from_utf8_lossy(&hidden).into_owned()
    }
}
