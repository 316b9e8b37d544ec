//! A change of the secrets, from acquiring the lock to the last rename.
//!
//! The values and their names are in two files, which cannot be replaced together. Names that lose their value are removed first,
//! then the values are written, then the new names. If the process ends in between, the file of values decides
//! ([`Meta::healed`]), so the secrets are as before the change or as after it.

use std::collections::BTreeMap;

use serde::Serialize;
use tooldock_base::file_lock::FileLock;
use tooldock_base::names::NamespaceName;
use tooldock_base::secret::Secret;
use tooldock_base::yaml;
use zeroize::Zeroizing;

use super::envelope::Salt;
use super::meta::{Meta, Status};
use super::scoped::EntryOwner;
use super::store::{SecretStore, StoreContent};
use super::values::{Document, Values};
use super::{DeclaredSecret, Owners, Scope, SecretsError};

/// Comment at the beginning of the document that a person edits.
const HELP: &str = "\
# Secrets: one line KEY: VALUE each, under global:, namespaces: NAME:, or principals: NAME: for personal values.
# A key without a value is a placeholder. Quote values with : # or quotes in them.
# Save and leave the editor to keep the changes; a file that cannot be read changes nothing.
";

/// A change of the secrets: the lock is held, and the files were read. Dropping it without [`Transaction::commit`] changes
/// nothing.
#[derive(Debug)]
pub struct Transaction<'a> {
    store: &'a SecretStore,
    values: Values,
    meta: Meta,
    before: Values,
    on_disk: Meta,
    salt: Option<Salt>,
    owners: Option<Owners>,
    _lock: FileLock,
}

impl<'a> Transaction<'a> {
    pub(super) fn new(store: &'a SecretStore, lock: FileLock, loaded: StoreContent) -> Self {
        Self {
            store,
            meta: loaded.meta.healed(&loaded.values),
            before: loaded.values.clone(),
            values: loaded.values,
            on_disk: loaded.meta,
            salt: loaded.salt,
            owners: loaded.owners,
            _lock: lock,
        }
    }

    pub(super) fn values(&self) -> &Values {
        &self.values
    }

    pub(super) fn owners(&self) -> Option<&Owners> {
        self.owners.as_ref()
    }

    pub(super) fn set(&mut self, key: &str, scope: &Scope, value: Secret) {
        self.values.insert(key, scope, value);
        self.meta.insert(key, scope, Status::Set);
    }

    pub(super) fn remove(&mut self, key: &str, scope: &Scope) -> bool {
        let value = self.values.remove(key, scope);
        self.meta.remove(key, scope) || value
    }

    /// Writes all secrets as YAML for a person to edit, with values in plain text.
    ///
    /// # Errors
    ///
    /// When a name cannot be represented in YAML.
    pub fn document(&self) -> Result<Zeroizing<String>, SecretsError> {
        let mut document = EditDocument::default();
        for (key, owner, value) in self.values.entries() {
            document.of_mut(owner).insert(key, Some(value.expose()));
        }
        for (key, owner, status) in self.meta.entries() {
            if *status == Status::Placeholder {
                document.of_mut(owner).insert(key, None);
            }
        }
        let yaml = yaml::to_string(&document)
            .map(Zeroizing::new)
            .map_err(|error| SecretsError::InvalidDocument(error.to_string()))?;
        Ok(Zeroizing::new(format!("{HELP}{}", *yaml)))
    }

    /// Replaces all secrets by those of an edited document. Returns true if the secrets changed.
    ///
    /// # Errors
    ///
    /// The problem with the document, and its position. No value is quoted.
    pub fn replace(&mut self, text: &[u8]) -> Result<bool, SecretsError> {
        let document = Document::from_yaml(text).map_err(SecretsError::InvalidDocument)?;
        document.check_sections(text)?;
        document.check()?;
        let (values, without) = document.into_parts();
        let meta = Meta::of_document(&values, &without);
        let is_change = values != self.values || meta != self.meta;
        (self.values, self.meta) = (values, meta);
        Ok(is_change)
    }

    /// Keys of the declared secrets that have neither a stored value nor a default in the namespace's own `env`.
    pub fn lacking<'k>(
        &self,
        namespace: &NamespaceName,
        declared: &'k [DeclaredSecret],
    ) -> Vec<&'k str> {
        let values = self.values.merged(namespace.as_str());
        let has_default = |names: &Vec<String>| names.iter().all(|it| values.contains_key(it));
        let lacking = declared.iter().filter(|it| {
            !values.contains_key(&it.key) && !it.default.as_ref().is_some_and(has_default)
        });
        lacking.map(|it| it.key.as_str()).collect()
    }

    /// Writes the changes to the files.
    ///
    /// # Errors
    ///
    /// When a file cannot be written. The secrets are then as they were before.
    pub fn commit(mut self) -> Result<(), SecretsError> {
        let leaving = self.leaving();
        if leaving != self.on_disk {
            self.store.write_meta(&leaving)?;
            self.on_disk = leaving;
        }
        let stores = self.values != self.before;
        if stores {
            let owners = self.owners.as_ref();
            self.store
                .write_own_values(&self.values, owners, self.salt)?;
        }
        if self.meta == self.on_disk {
            return Ok(());
        }
        match self.store.write_meta(&self.meta) {
            // Not an error: the values are stored, and missing names are restored from them.
            Err(error) if stores => {
                tracing::warn!(%error, "the secrets are stored; the file of their names is behind until the next change");
                Ok(())
            }
            written => written,
        }
    }

    /// The names in the file without those whose values this change removes. They are written before the values. If the process
    /// ends in between, a missing name is restored from its value, which is still stored.
    fn leaving(&self) -> Meta {
        let mut leaving = self.on_disk.clone();
        for (key, owner, _) in self.before.entries() {
            let Ok(scope) = owner.to_string().parse::<Scope>() else {
                continue;
            };
            if self.meta.status(key, &scope).is_none() {
                leaving.remove(key, &scope);
            }
        }
        leaving
    }
}

/// The document that a person edits: keys with their values in plain text, and keys without a value.
#[derive(Default, Serialize)]
struct EditDocument<'a> {
    global: BTreeMap<&'a str, Option<&'a str>>,
    namespaces: BTreeMap<&'a str, BTreeMap<&'a str, Option<&'a str>>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    principals: BTreeMap<&'a str, BTreeMap<&'a str, Option<&'a str>>>,
}

impl<'a> EditDocument<'a> {
    fn of_mut(&mut self, owner: EntryOwner<'a>) -> &mut BTreeMap<&'a str, Option<&'a str>> {
        match owner {
            EntryOwner::Everybody => &mut self.global,
            EntryOwner::Namespace(name) => self.namespaces.entry(name).or_default(),
            EntryOwner::Principal(name) => self.principals.entry(name).or_default(),
        }
    }
}
