//! Keys for tests of the relay's connections and memory.

use std::sync::{Arc, Mutex};

use tooldock_base::key_maker::KeyId;
use tooldock_base::scope::ScopeTable;
use tooldock_credentials::keys::{ApiKey, KeyKind, KeyStore, NewKey};

use super::room::Counts;

/// Keys that are valid until they are revoked.
pub(super) struct Keys {
    store: KeyStore,
    revoked: Arc<Mutex<Vec<KeyId>>>,
    _folder: tempfile::TempDir,
}

impl Keys {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let store = KeyStore::open(folder.path().join("keys.json"), ScopeTable::default());
        Self {
            store: store.expect("no keys yet"),
            revoked: Arc::default(),
            _folder: folder,
        }
    }

    pub(super) fn make(&self) -> Arc<ApiKey> {
        let made = self.store.create(NewKey {
            name: "droid".into(),
            made_by: None,
            scopes: vec!["admin".into()],
            namespaces: vec!["*".into()],
            networks: Vec::new(),
            limits: Vec::new(),
            lifetime: None,
            kind: KeyKind::Relay,
        });
        let id = made.expect("a key").record.id;
        let tables = self.store.tables();
        Arc::clone(tables.load().get(id).expect("in force"))
    }

    pub(super) fn revoke(&self, key: &ApiKey) {
        let mut revoked = self.revoked.lock().expect("no panic");
        revoked.push(key.record().id);
    }

    pub(super) fn counts(&self) -> Counts {
        let revoked = Arc::clone(&self.revoked);
        Arc::new(move |key: &Arc<ApiKey>| {
            !revoked.lock().expect("no panic").contains(&key.record().id)
        })
    }
}
