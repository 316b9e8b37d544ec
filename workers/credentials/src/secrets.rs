//! Secret values: the values of a namespace, and their store.
//!
//! ```text
//! $DATA/secrets.enc         values and owners, encrypted secrets/envelope.rs (version 2), secrets/fernet.rs (version 1)
//!       secrets.meta.yaml   keys and statuses, readable  secrets/meta.rs
//!       secrets.lock        lock of the only writer      file_lock.rs
//!       secrets.owners.enc  owners, while the gateway may not write secrets.enc   secrets/owners.rs
//!       authorizations.enc  tokens for remote servers    secrets/authorizations.rs
//! ```
//!
//! [`SecretStore`] reads and writes these files. Readers take no lock. The gateway itself writes only owners, and can run if all
//! of the files are read-only. [`SecretNames`] gives access for management, without any method that returns a value.

mod authorizations;
mod envelope;
mod error;
mod fernet;
mod files;
mod key;
mod meta;
mod names;
mod owners;
mod personal;
mod scope;
mod scoped;
mod scratch;
mod store;
mod transaction;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tooldock_base::config::GlobalSecrets;
use tooldock_base::names::NamespaceName;
use tooldock_base::precedence::Origin;
use tooldock_base::secret::Secret;

pub use authorizations::{AUTHORIZATIONS_FILE, Authorization, AuthorizationStore, Authorizer};
pub use error::SecretsError;
pub use key::{Protection, SecretsKey};
pub use meta::Status;
pub use names::{DeclaredSecret, SecretEntry, SecretNames, SecretsCheck};
pub use owners::{BoundSecrets, OWNERS_FILE, Owners, RecordedOwners};
pub use personal::PersonalSecrets;
pub use scope::{InvalidScope, Scope, check_key, check_new_key};
pub use scratch::Scratch;
pub use store::{META_FILE, SecretStore, VALUES_FILE};
pub use transaction::Transaction;

use meta::Meta;
use values::Values;

/// All secrets as they were read at one moment. Clones share the same data.
#[derive(Debug, Clone, Default)]
pub struct Secrets(Arc<All>);

#[derive(Debug, Default)]
struct All {
    values: Values,
    meta: Meta,
    /// Servers that get no personal values, because these belong to another server that had the same name; each with the origin
    /// of that other server, if it is known.
    not_personal: BTreeMap<NamespaceName, Option<Origin>>,
}

/// Secrets of one namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamespaceSecrets {
    /// The merged `KEY → value` map: global values, overridden by the namespace's own (SCR-09).
    pub values: BTreeMap<String, Secret>,
    /// Keys that were requested and have no value yet. They count as not configured (SCR-11).
    pub placeholders: BTreeSet<String>,
}

impl Secrets {
    fn new(values: Values, meta: Meta) -> Self {
        Self(Arc::new(All {
            values,
            meta,
            ..All::default()
        }))
    }

    /// Creates secrets that are given to every namespace.
    pub fn global<K: Into<String>>(values: impl IntoIterator<Item = (K, Secret)>) -> Self {
        let values = Values {
            global: values.into_iter().map(|(k, v)| (k.into(), v)).collect(),
            ..Values::default()
        };
        Self::new(values, Meta::default())
    }

    /// A copy of the secrets with a value added that only `namespace` gets.
    #[must_use]
    pub fn with(&self, namespace: &NamespaceName, key: &str, value: Secret) -> Self {
        self.with_scope(&Scope::Namespace(namespace.clone()), key, value)
    }

    /// A copy of the secrets with a value added in a scope.
    #[must_use]
    pub fn with_scope(&self, scope: &Scope, key: &str, value: Secret) -> Self {
        let mut values = self.0.values.clone();
        values.insert(key, scope, value);
        Self::new(values, self.0.meta.clone())
    }

    /// All values whose scope is a namespace, each with the namespace's name and the value's key.
    fn of_scopes(&self) -> impl Iterator<Item = (&str, &str, &Secret)> {
        let scopes = self.0.values.namespaces.iter();
        scopes.flat_map(|(scope, own)| {
            let own = own.iter();
            own.map(|(key, value)| (scope.as_str(), key.as_str(), value))
        })
    }

    /// A copy of the secrets without the values of `foreign`, which are pairs of namespace and key. Servers in `not_personal` get
    /// no personal values.
    fn without(
        &self,
        foreign: &BTreeSet<(String, String)>,
        not_personal: BTreeMap<NamespaceName, Option<Origin>>,
    ) -> Self {
        if foreign.is_empty() && not_personal.is_empty() {
            return self.clone();
        }
        let mut values = self.0.values.clone();
        for (scope, key) in foreign {
            if let Some(own) = values.namespaces.get_mut(scope) {
                own.remove(key);
            }
        }
        Self(Arc::new(All {
            values,
            meta: self.0.meta.clone(),
            not_personal,
        }))
    }

    /// Returns `Some` if the server of this name gets no personal values, because these belong to another namespace that had the
    /// name. The inner value is that namespace's origin, or `None` if it is unknown.
    pub fn personal_owner(&self, name: &NamespaceName) -> Option<Option<Origin>> {
        self.0.not_personal.get(name).copied()
    }

    /// The personal values of each principal, with the principal's name.
    pub(crate) fn of_principals(&self) -> impl Iterator<Item = (&str, &BTreeMap<String, Secret>)> {
        let all = self.0.values.principals.iter();
        all.map(|(name, own)| (name.as_str(), own))
    }

    /// The secrets of a namespace: global values, overridden by its own.
    pub fn for_namespace(&self, namespace: &NamespaceName) -> NamespaceSecrets {
        let values = self.0.values.merged(namespace.as_str());
        let placeholders = self.0.meta.placeholders(namespace.as_str());
        NamespaceSecrets {
            placeholders: placeholders
                .filter(|key| !values.contains_key(*key))
                .map(str::to_owned)
                .collect(),
            values,
        }
    }

    /// The secrets that the workers of a namespace get: its own, and the global ones that `global` allows. `declared` are the
    /// keys under `secrets:` in the namespace's `tooldock.yaml`.
    pub fn for_workers(
        &self,
        namespace: &NamespaceName,
        global: GlobalSecrets,
        declared: &[String],
    ) -> NamespaceSecrets {
        let mut secrets = self.for_namespace(namespace);
        if global == GlobalSecrets::Declared {
            let scope = Scope::Namespace(namespace.clone());
            let is_given = |key: &String| {
                declared.contains(key)
                    || self.0.values.get(key, &scope).is_some()
                    || self.0.meta.status(key, &scope).is_some()
            };
            secrets.values.retain(|key, _| is_given(key));
            secrets.placeholders.retain(is_given);
        }
        secrets
    }
}

/// Source of the gateway's secrets, read at each reload.
pub trait SecretSource: Send + Sync + 'static {
    /// Reads all current secrets. May read files and compute for a second, so it must be called where blocking is allowed.
    ///
    /// # Errors
    ///
    /// When there are secrets that cannot be read. The error names the file. An empty store is not an error.
    fn read(&self) -> Result<Secrets, SecretsError>;

    /// Reads the recorded owners of values. Reads files like `read`, so it must be called where blocking is allowed.
    ///
    /// # Errors
    ///
    /// When there is a record that cannot be read.
    fn owners(&self) -> Result<RecordedOwners, SecretsError> {
        Ok(RecordedOwners::default())
    }

    /// Records the owners of values. Returns true if they are stored in the file of the values, from which they cannot be removed
    /// separately. Writes files, so it must be called where blocking is allowed.
    ///
    /// # Errors
    ///
    /// When the owners cannot be written.
    fn record_owners(&self, owners: &Owners) -> Result<bool, SecretsError> {
        let _ = owners;
        Ok(true)
    }
}
