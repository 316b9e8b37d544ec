//! Access to the secret store without values: lists secrets, requests them, and sets their values.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;
use tooldock_base::names::NamespaceName;
use tooldock_base::secret::Secret;

use super::meta::{Meta, Status};
use super::scoped::EntryOwner;
use super::store::SecretStore;
use super::{Scope, SecretsError, check_new_key};

/// A secret that a namespace declares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredSecret {
    /// Name of the secret, which is that of the environment variable.
    pub key: String,
    /// Names of the references in the default text that `env` gives to the variable; used if the secret has no value. `None` if
    /// `env` does not set the variable.
    pub default: Option<Vec<String>>,
}

/// Access to the names and statuses of secrets. No method returns a value. All methods read files and may wait for the lock, so
/// they must be called where blocking is allowed.
#[derive(Debug, Clone)]
pub struct SecretNames(Arc<SecretStore>);

/// Name, scope and status of a secret, without its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SecretEntry {
    /// Name of the secret, which is that of an environment variable.
    pub key: String,
    /// Scope of the secret, as text.
    pub scope: String,
    /// Status of the secret: set, or a placeholder.
    pub status: Status,
}

/// Status of the secrets that a namespace declares.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SecretsCheck {
    /// Declared secrets with a value.
    pub satisfied: Vec<String>,
    /// Declared secrets that were neither requested nor set.
    pub missing: Vec<String>,
    /// Declared secrets that were requested and have no value yet.
    pub placeholders: Vec<String>,
}

impl SecretNames {
    /// Gives access to a store without a way to read its values.
    pub fn of(store: Arc<SecretStore>) -> Self {
        Self(store)
    }

    /// Path of the file with the names of the secrets.
    pub fn meta_file(&self) -> PathBuf {
        self.0.meta_file()
    }

    /// Lists all secrets, global ones first, or those of one scope.
    ///
    /// # Errors
    ///
    /// When the store cannot be read.
    pub fn list(&self, scope: Option<&Scope>) -> Result<Vec<SecretEntry>, SecretsError> {
        let scope = scope.map(Scope::to_string);
        let meta = self.meta()?;
        let entries = meta.entries().map(|(key, owner, status)| SecretEntry {
            key: key.to_owned(),
            scope: owner.to_string(),
            status: *status,
        });
        let wanted = entries.filter(|it| scope.as_ref().is_none_or(|scope| *scope == it.scope));
        Ok(wanted.collect())
    }

    /// Requests a secret: creates a placeholder, unless the secret exists already. Returns its status afterwards.
    ///
    /// # Errors
    ///
    /// When the key cannot name an environment variable, or the store cannot be read or written.
    pub fn prepare(&self, key: &str, scope: &Scope) -> Result<Status, SecretsError> {
        check_new_key(key)?;
        let _lock = self.0.lock("prepare_secret")?;
        // After a crash, a secret may have a value but no entry. Its value is then not requested again.
        if let Some(status) = self.meta()?.status(key, scope) {
            return Ok(status);
        }
        let mut meta = self.0.load_meta()?;
        meta.insert(key, scope, Status::Placeholder);
        self.0.write_meta(&meta)?;
        Ok(Status::Placeholder)
    }

    /// Sets the value of a secret.
    ///
    /// # Errors
    ///
    /// When the key or value cannot be an environment variable, or the store cannot be read or written. Nothing is then
    /// changed.
    pub fn set(&self, key: &str, scope: &Scope, value: Secret) -> Result<(), SecretsError> {
        self.0.set(key, scope, value)
    }

    /// Removes a secret, with its value if it has one.
    ///
    /// # Errors
    ///
    /// When there is no such secret, or the store cannot be read or written.
    pub fn remove(&self, key: &str, scope: &Scope) -> Result<(), SecretsError> {
        self.0.remove(key, scope)
    }

    /// Groups the secrets that a namespace declares, or that were requested in its own scope, by their status. Each key is listed
    /// once. A variable to which the namespace's own `env` gives a value counts as set, since its tools receive that value.
    ///
    /// # Errors
    ///
    /// When the store cannot be read.
    pub fn check(
        &self,
        namespace: &NamespaceName,
        declared: &[DeclaredSecret],
    ) -> Result<SecretsCheck, SecretsError> {
        let meta = self.meta()?;
        let own = Scope::Namespace(namespace.clone());
        let of = |key: &str| [meta.status(key, &own), meta.status(key, &Scope::Global)];
        let is_set = |key: &str| of(key).contains(&Some(Status::Set));
        let mut check = SecretsCheck::default();
        let prepared = meta
            .entries()
            .filter(|(_, owner, _)| *owner == EntryOwner::Namespace(namespace.as_str()));
        let prepared = prepared.map(|(key, ..)| (key, None));
        let declared = declared.iter().map(|it| (&*it.key, it.default.as_ref()));
        let mut seen = BTreeSet::new();
        for (key, default) in declared
            .chain(prepared)
            .filter(|(key, _)| seen.insert(*key))
        {
            let statuses = of(key);
            let has_default = |names: &Vec<String>| names.iter().all(|name| is_set(name));
            let place = if is_set(key) || default.is_some_and(has_default) {
                &mut check.satisfied
            } else if statuses.contains(&Some(Status::Placeholder)) {
                &mut check.placeholders
            } else {
                &mut check.missing
            };
            place.push(key.to_owned());
        }
        Ok(check)
    }

    /// The names of the secrets, corrected to match the file of values. If no key is set to decrypt the values, the names are
    /// returned as stored.
    fn meta(&self) -> Result<Meta, SecretsError> {
        match self.0.has_protection() {
            true => {
                let loaded = self.0.load()?;
                Ok(loaded.meta.healed(&loaded.values))
            }
            false => self.0.load_meta(),
        }
    }
}
