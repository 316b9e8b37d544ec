//! The secret store: two files in the data directory, for any number of readers with the key, and one writer at a time.
//!
//! Reading takes no lock. Each file is replaced atomically. While the two differ for a moment, the file of values decides
//! ([`Meta::healed`]), so a reader gets the secrets either before or after a change.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tooldock_base::file_lock::FileLock;
use tooldock_base::regular_file;
use tooldock_base::yaml;
use zeroize::Zeroizing;

use super::envelope::{self, Fault, Salt};
use super::key::{Protection, SecretsKey};
use super::meta::Meta;
use super::values::{Document, Values, ValuesDocument};
use super::{
    Owners, RecordedOwners, Scope, Secret, SecretSource, Secrets, SecretsError, Transaction,
    check_new_key, files,
};

/// Name of the file with the values of the secrets.
pub const VALUES_FILE: &str = "secrets.enc";
/// Name of the file with the names of the secrets.
pub const META_FILE: &str = "secrets.meta.yaml";
const LOCK_FILE: &str = "secrets.lock";

const VALUES_MODE: u32 = 0o600;
const META_MODE: u32 = 0o600;

/// Maximum time that a writer waits for the lock while another writer holds it.
const PATIENCE: Duration = Duration::from_secs(10);

/// First line of a file of values that is not encrypted.
const INSECURE_HEAD: &str = "# Not encrypted (ALLOW_INSECURE_SECRETS=1): for local use only. `tooldock secrets rekey` encrypts it.\n";

/// The store of secrets in a data directory.
#[derive(Debug)]
pub struct SecretStore {
    directory: PathBuf,
    /// Protection of the values, replaced when the operator's settings are read again. The lock is held only to read or replace
    /// it.
    protection: Mutex<Arc<Protection>>,
    pub(super) patience: Duration,
}

/// Content of the store's files: values, names, and owners.
#[derive(Debug, Default)]
pub(super) struct StoreContent {
    pub(super) values: Values,
    /// Names of the secrets as stored in their file; after a crash they may be older than the values.
    pub(super) meta: Meta,
    /// Salt of the file of values, if the next write may use it again.
    pub(super) salt: Option<Salt>,
    /// The owners of the values, if the file of values contains them.
    pub(super) owners: Option<Owners>,
}

impl SecretStore {
    /// Creates the store in a data directory, without reading a file yet.
    pub fn new(data_dir: &Path, protection: Protection) -> Self {
        Self {
            directory: data_dir.to_owned(),
            protection: Mutex::new(Arc::new(protection)),
            patience: PATIENCE,
        }
    }

    /// Sets the protection with which values are subsequently read and written: a key, or none.
    pub fn set_protection(&self, protection: Protection) {
        let mut own = self
            .protection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *own = Arc::new(protection);
    }

    /// Returns true if a file with values exists.
    pub fn has_values(&self) -> bool {
        self.values_file().symlink_metadata().is_ok()
    }

    /// Path of the file with the values of the secrets.
    pub fn values_file(&self) -> PathBuf {
        self.directory.join(VALUES_FILE)
    }

    /// Path of the file with the names of the secrets.
    pub fn meta_file(&self) -> PathBuf {
        self.directory.join(META_FILE)
    }

    /// Sets the value of a secret.
    ///
    /// # Errors
    ///
    /// When the key or value cannot be an environment variable, or the store cannot be read or written. Nothing is changed
    /// then.
    pub fn set(&self, key: &str, scope: &Scope, value: Secret) -> Result<(), SecretsError> {
        check_new_key(key)?;
        super::values::check_value(key, &value)?;
        self.can_write()?;
        let mut transaction = self.begin("secrets set")?;
        transaction.set(key, scope, value);
        transaction.commit()
    }

    /// Sets the values of several secrets in one step.
    ///
    /// # Errors
    ///
    /// As [`SecretStore::set`].
    pub fn set_all(
        &self,
        purpose: &str,
        secrets: impl IntoIterator<Item = (String, Scope, Secret)>,
    ) -> Result<(), SecretsError> {
        self.can_write()?;
        let mut transaction = self.begin(purpose)?;
        for (key, scope, value) in secrets {
            check_new_key(&key)?;
            super::values::check_value(&key, &value)?;
            transaction.set(&key, &scope, value);
        }
        transaction.commit()
    }

    /// Removes a secret, with its value if it has one.
    ///
    /// # Errors
    ///
    /// As [`SecretStore::set`], and when there is no such secret.
    pub fn remove(&self, key: &str, scope: &Scope) -> Result<(), SecretsError> {
        let mut transaction = self.begin("secrets remove")?;
        if !transaction.remove(key, scope) {
            return Err(SecretsError::NoSuchSecret {
                key: key.to_owned(),
                scope: scope.clone(),
            });
        }
        transaction.commit()
    }

    /// Encrypts all values under another key, which all readers need from then on.
    ///
    /// # Errors
    ///
    /// When the store cannot be read under its present key, or cannot be written.
    pub fn rekey(&self, key: SecretsKey) -> Result<(), SecretsError> {
        let transaction = self.begin("secrets rekey")?;
        let protection = Protection::Key(key);
        let owners = transaction.owners();
        if owners.is_none() {
            // Reading the file of owners fails if it is damaged; the key is then not changed, so that the owners are not lost.
            self.read_owners_file()?;
        }
        self.write_values(transaction.values(), owners, &protection, None)?;
        self.set_protection(protection);
        // The owners are now in the file of values; the file of owners, which is encrypted with the old key, is no longer needed.
        self.remove_owners_file();
        transaction.commit()
    }

    /// All values in the format that the older Python system reads, encrypted under the store's key.
    ///
    /// # Errors
    ///
    /// When the store cannot be read, or has no key.
    pub fn export_fernet(&self) -> Result<String, SecretsError> {
        let protection = self.protection();
        let Protection::Key(key) = &*protection else {
            return Err(SecretsError::NoProtection);
        };
        let json = self.load()?.values.to_json()?;
        envelope::seal_fernet(&json, key, SystemTime::now()).map_err(SecretsError::NoRandomness)
    }

    /// Begins a change of the secrets: acquires the lock, then reads the files.
    ///
    /// # Errors
    ///
    /// When another writer holds the lock for too long, or the files cannot be read.
    pub fn begin(&self, purpose: &str) -> Result<Transaction<'_>, SecretsError> {
        let lock = self.lock(purpose)?;
        let mut loaded = self.load()?;
        loaded.owners = match self.recorded_owners(&loaded) {
            Ok(recorded) if recorded.owners != Owners::default() => Some(recorded.owners),
            Ok(_) => loaded.owners,
            Err(error) => {
                tracing::warn!(%error, "the owners of secrets in this file are not known");
                loaded.owners
            }
        };
        Ok(Transaction::new(self, lock, loaded))
    }

    /// Checks that the operator's settings allow writing, so that a caller can fail before it does other work.
    ///
    /// # Errors
    ///
    /// [`SecretsError::KeyMissing`] if there are values, otherwise [`SecretsError::NoProtection`].
    pub fn can_write(&self) -> Result<(), SecretsError> {
        match *self.protection() {
            Protection::Unset if self.has_values() => {
                Err(SecretsError::KeyMissing(self.values_file()))
            }
            Protection::Unset => Err(SecretsError::NoProtection),
            Protection::Key(_) | Protection::Insecure => Ok(()),
        }
    }

    /// Returns true if the operator has set a key or allowed unencrypted values, so that values can be read.
    pub(super) fn has_protection(&self) -> bool {
        !matches!(*self.protection(), Protection::Unset)
    }

    pub(super) fn lock(&self, purpose: &str) -> Result<FileLock, SecretsError> {
        self.lock_within(purpose, self.patience)
    }

    /// Acquires the lock of the store, waiting for up to `patience`.
    pub(super) fn lock_within(
        &self,
        purpose: &str,
        patience: Duration,
    ) -> Result<FileLock, SecretsError> {
        let lock = FileLock::take(&self.directory.join(LOCK_FILE), purpose, patience)?;
        files::remove_unfinished(&self.directory, files::UNFINISHED);
        Ok(lock)
    }

    pub(super) fn load(&self) -> Result<StoreContent, SecretsError> {
        let path = self.values_file();
        let (values, owners, salt) = match files::read(&path)? {
            None => Default::default(),
            Some(text) => decode(&path, &text, &self.protection())?,
        };
        Ok(StoreContent {
            values,
            meta: self.load_meta()?,
            salt,
            owners,
        })
    }

    pub(super) fn load_meta(&self) -> Result<Meta, SecretsError> {
        let path = self.meta_file();
        // Permissions are reduced, because earlier versions let all users read `secrets.meta.yaml`.
        if let Ok(file) = regular_file::open(&path) {
            regular_file::tighten(&file, META_MODE);
        }
        match files::read(&path)? {
            None => Ok(Meta::default()),
            Some(text) => {
                Meta::parse(&text).map_err(|reason| SecretsError::Damaged { path, reason })
            }
        }
    }

    pub(super) fn write_own_values(
        &self,
        values: &Values,
        owners: Option<&Owners>,
        salt: Option<Salt>,
    ) -> Result<(), SecretsError> {
        self.write_values(values, owners, &self.protection(), salt)
    }

    fn write_values(
        &self,
        values: &Values,
        owners: Option<&Owners>,
        protection: &Protection,
        salt: Option<Salt>,
    ) -> Result<(), SecretsError> {
        let text = encode(values, owners, protection, salt)?;
        files::replace(
            &self.values_file(),
            text.as_bytes(),
            VALUES_MODE,
            files::UNFINISHED,
        )
    }

    pub(super) fn write_meta(&self, meta: &Meta) -> Result<(), SecretsError> {
        let path = self.meta_file();
        let text = meta.to_yaml().map_err(|error| SecretsError::Damaged {
            path: path.clone(),
            reason: error.to_string(),
        })?;
        files::replace(&path, text.as_bytes(), META_MODE, files::UNFINISHED)
    }

    /// Path of the data directory.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn protection(&self) -> Arc<Protection> {
        let own = self
            .protection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&own)
    }
}

impl SecretSource for SecretStore {
    fn read(&self) -> Result<Secrets, SecretsError> {
        let loaded = self.load()?;
        let meta = loaded.meta.healed(&loaded.values);
        Ok(Secrets::new(loaded.values, meta))
    }

    fn owners(&self) -> Result<RecordedOwners, SecretsError> {
        self.recorded_owners(&self.load()?)
    }

    fn record_owners(&self, owners: &Owners) -> Result<bool, SecretsError> {
        if self.store_owners(owners)? {
            return Ok(true);
        }
        let unchanged = self.read_owners_file().ok().flatten();
        if unchanged.as_ref() != Some(owners) {
            self.write_owners_file(owners)?;
        }
        Ok(false)
    }
}

/// Decoded content of a file of the store.
pub(super) enum Content {
    /// The file was encrypted; contains the decrypted text.
    Encrypted(envelope::OpenedEnvelope),
    /// The file is not encrypted, which the operator allowed.
    Plain,
}

/// Encrypts a document. Returns `None` if the operator allowed storing it unencrypted.
pub(super) fn sealed(
    document: &[u8],
    protection: &Protection,
    salt: Option<Salt>,
) -> Result<Option<Zeroizing<String>>, SecretsError> {
    match protection {
        Protection::Key(key) => envelope::seal(document, key, salt, SystemTime::now())
            .map(|text| Some(Zeroizing::new(text)))
            .map_err(SecretsError::NoRandomness),
        Protection::Insecure => Ok(None),
        Protection::Unset => Err(SecretsError::NoProtection),
    }
}

/// Decrypts a file. `is_plain` returns true for a text that has the format of an unencrypted file.
pub(super) fn opened(
    path: &Path,
    text: &[u8],
    protection: &Protection,
    is_plain: impl FnOnce(&[u8]) -> bool,
) -> Result<Content, SecretsError> {
    let damaged = |reason: String| SecretsError::Damaged {
        path: path.to_owned(),
        reason,
    };
    let is_encrypted = envelope::is_envelope(text);
    if text.trim_ascii().is_empty() {
        return Err(damaged("the file is empty".to_owned()));
    }
    match protection {
        Protection::Key(key) if is_encrypted => {
            let opened = envelope::open(text, key).map_err(|fault| match fault {
                Fault::Damaged(reason) => damaged(reason),
                Fault::CannotDecrypt => SecretsError::CannotDecrypt(path.to_owned()),
                Fault::Newer(found) => SecretsError::Newer {
                    path: path.to_owned(),
                    found,
                },
            })?;
            Ok(Content::Encrypted(opened))
        }
        Protection::Insecure | Protection::Unset if is_encrypted => {
            Err(SecretsError::KeyMissing(path.to_owned()))
        }
        Protection::Key(_) if is_plain(text) => Err(SecretsError::NotEncrypted(path.to_owned())),
        Protection::Key(_) => Err(damaged("not the JSON of an encrypted file".to_owned())),
        Protection::Insecure => Ok(Content::Plain),
        Protection::Unset => Err(SecretsError::InsecureNotAllowed(path.to_owned())),
    }
}

fn encode(
    values: &Values,
    owners: Option<&Owners>,
    protection: &Protection,
    salt: Option<Salt>,
) -> Result<Zeroizing<String>, SecretsError> {
    // The text is created before the protection is checked, so that the maximum size also applies to an unencrypted file.
    if let Some(text) = sealed(&values.to_json_with(owners)?, protection, salt)? {
        return Ok(text);
    }
    let text = yaml::to_string(&ValuesDocument(values, None))
        .map_err(|error| SecretsError::InvalidDocument(error.to_string()))?;
    Ok(Zeroizing::new(format!("{INSECURE_HEAD}{text}")))
}

fn decode(
    path: &Path,
    text: &[u8],
    protection: &Protection,
) -> Result<(Values, Option<Owners>, Option<Salt>), SecretsError> {
    let damaged = |reason: String| SecretsError::Damaged {
        path: path.to_owned(),
        reason,
    };
    let is_plain = |text: &[u8]| Document::from_yaml(text).is_ok();
    match opened(path, text, protection, is_plain)? {
        Content::Encrypted(opened) => {
            let mut document = Values::from_json(&opened.plain).map_err(|place| {
                damaged(format!(
                    "what is encrypted is no document of secrets: {place}"
                ))
            })?;
            let owners = document.take_owners();
            Ok((document.into_parts().0, owners, opened.salt))
        }
        Content::Plain => {
            let document = Document::from_yaml(text).map_err(damaged)?;
            Ok((document.into_parts().0, None, None))
        }
    }
}

#[cfg(test)]
mod tests;
