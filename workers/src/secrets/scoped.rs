//! Something for each secret, by scope and key: its value, or its status.

use std::collections::BTreeMap;

use super::Scope;

/// The entries of one scope, by key.
pub(super) type Entries<V> = BTreeMap<String, V>;

/// Global entries and those of namespaces. Namespaces are kept by the names in the file, valid or not: nothing in the file
/// is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Scoped<V> {
    pub(super) global: Entries<V>,
    pub(super) namespaces: BTreeMap<String, Entries<V>>,
}

impl<V> Default for Scoped<V> {
    fn default() -> Self {
        Self {
            global: BTreeMap::new(),
            namespaces: BTreeMap::new(),
        }
    }
}

impl<V> Scoped<V> {
    pub(super) fn get(&self, key: &str, scope: &Scope) -> Option<&V> {
        let entries = match scope {
            Scope::Global => Some(&self.global),
            Scope::Namespace(name) => self.namespaces.get(name.as_str()),
        };
        entries?.get(key)
    }

    pub(super) fn insert(&mut self, key: &str, scope: &Scope, value: V) {
        let entries = match scope {
            Scope::Global => &mut self.global,
            Scope::Namespace(name) => self.namespaces.entry(name.to_string()).or_default(),
        };
        entries.insert(key.to_owned(), value);
    }

    /// Says whether there was such an entry. A namespace goes with its last one.
    pub(super) fn remove(&mut self, key: &str, scope: &Scope) -> bool {
        match scope {
            Scope::Global => self.global.remove(key).is_some(),
            Scope::Namespace(name) => {
                let Some(own) = self.namespaces.get_mut(name.as_str()) else {
                    return false;
                };
                let removed = own.remove(key).is_some();
                if own.is_empty() {
                    self.namespaces.remove(name.as_str());
                }
                removed
            }
        }
    }

    /// All entries with the names of their namespaces, global ones first.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&str, Option<&str>, &V)> {
        let global = self.global.iter();
        let global = global.map(|(key, value)| (key.as_str(), None, value));
        let own = self.namespaces.iter().flat_map(|(name, own)| {
            let own = own.iter();
            own.map(|(key, value)| (key.as_str(), Some(name.as_str()), value))
        });
        global.chain(own)
    }

    /// What a namespace gets: global entries, then its own, which win.
    pub(super) fn of_namespace(&self, namespace: &str) -> impl Iterator<Item = (&String, &V)> {
        let own = self.namespaces.get(namespace);
        self.global.iter().chain(own.into_iter().flatten())
    }
}
