//! A table with an entry for each secret, by scope and key. The entry is the secret's value, or its status.

use std::collections::BTreeMap;
use std::fmt;

use super::Scope;
use super::scope::PRINCIPAL;

/// The entries of one scope, by the secret's key.
pub(super) type Entries<V> = BTreeMap<String, V>;

/// The entries of all scopes: global ones, those of namespaces, and those of principals. Names are kept as they are in the file,
/// even invalid ones, so that no entry of the file is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ScopedEntries<V> {
    pub(super) global: Entries<V>,
    pub(super) namespaces: BTreeMap<String, Entries<V>>,
    pub(super) principals: BTreeMap<String, Entries<V>>,
}

/// Scope of an entry, with the name as in the file, valid or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryOwner<'a> {
    /// The entry is for every namespace.
    Everybody,
    /// The entry is for the namespace of this name.
    Namespace(&'a str),
    /// The entry is for the principal of this name.
    Principal(&'a str),
}

impl fmt::Display for EntryOwner<'_> {
    /// Writes the scope in the form used on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everybody => Scope::Global.fmt(f),
            Self::Namespace(name) => f.write_str(name),
            Self::Principal(name) => write!(f, "{PRINCIPAL}{name}"),
        }
    }
}

impl<V> Default for ScopedEntries<V> {
    fn default() -> Self {
        Self {
            global: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            principals: BTreeMap::new(),
        }
    }
}

impl<V> ScopedEntries<V> {
    pub(super) fn get(&self, key: &str, scope: &Scope) -> Option<&V> {
        let entries = match scope {
            Scope::Global => Some(&self.global),
            Scope::Namespace(name) => self.namespaces.get(name.as_str()),
            Scope::Principal(name) => self.principals.get(name.as_str()),
        };
        entries?.get(key)
    }

    pub(super) fn insert(&mut self, key: &str, scope: &Scope, value: V) {
        let entries = match scope {
            Scope::Global => &mut self.global,
            Scope::Namespace(name) => self.namespaces.entry(name.to_string()).or_default(),
            Scope::Principal(name) => self.principals.entry(name.to_string()).or_default(),
        };
        entries.insert(key.to_owned(), value);
    }

    /// The entries of an owner; an empty table is added if there are none.
    pub(super) fn of_mut(&mut self, owner: EntryOwner<'_>) -> &mut Entries<V> {
        match owner {
            EntryOwner::Everybody => &mut self.global,
            EntryOwner::Namespace(name) => self.namespaces.entry(name.to_owned()).or_default(),
            EntryOwner::Principal(name) => self.principals.entry(name.to_owned()).or_default(),
        }
    }

    /// Removes an entry; returns true if there was one. Also removes the table of the namespace or principal if no entry is left
    /// in it.
    pub(super) fn remove(&mut self, key: &str, scope: &Scope) -> bool {
        match scope {
            Scope::Global => self.global.remove(key).is_some(),
            Scope::Namespace(name) => remove_of(&mut self.namespaces, name.as_str(), key),
            Scope::Principal(name) => remove_of(&mut self.principals, name.as_str(), key),
        }
    }

    /// All entries with their owners: global ones first, those of principals last.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&str, EntryOwner<'_>, &V)> {
        let named = |(key, value)| (String::as_str(key), value);
        let global = self.global.iter().map(named);
        let global = global.map(|(key, value)| (key, EntryOwner::Everybody, value));
        let namespaces = self.namespaces.iter().flat_map(move |(name, own)| {
            let own = own.iter().map(named);
            own.map(|(key, value)| (key, EntryOwner::Namespace(name), value))
        });
        let principals = self.principals.iter().flat_map(move |(name, own)| {
            let own = own.iter().map(named);
            own.map(|(key, value)| (key, EntryOwner::Principal(name), value))
        });
        global.chain(namespaces).chain(principals)
    }

    /// Entries of a namespace: global ones, then its own, which take precedence.
    pub(super) fn of_namespace(&self, namespace: &str) -> impl Iterator<Item = (&String, &V)> {
        let own = self.namespaces.get(namespace);
        self.global.iter().chain(own.into_iter().flatten())
    }
}

fn remove_of<V>(all: &mut BTreeMap<String, Entries<V>>, name: &str, key: &str) -> bool {
    let Some(own) = all.get_mut(name) else {
        return false;
    };
    let removed = own.remove(key).is_some();
    if own.is_empty() {
        all.remove(name);
    }
    removed
}
