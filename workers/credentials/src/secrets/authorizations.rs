//! Tokens of the grant `authorization_code`, with which the gateway acts at remote servers on behalf of principals.
//!
//! ```text
//! $DATA/authorizations.enc    tokens, encrypted as the secrets are, under the same key
//!       authorizations.lock   lock of the only writer
//! ```
//!
//! The tokens have a separate file because they are renewed automatically, every hour or so, and a change of the file of secrets
//! would require a reload. The store keeps the file's content in memory and informs [`PersonalSecrets`] which principals have
//! authorized the gateway. The format of a token is known only to the code that fetches it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tokio::time::{MissedTickBehavior, interval};
use tooldock_base::file_lock::FileLock;
use tooldock_base::names::{NamespaceName, PrincipalName};
use tooldock_base::secret::Secret;
use zeroize::Zeroizing;

use super::envelope::Salt;
use super::store::{self, Content, SecretStore};
use super::{PersonalSecrets, SecretsError, files};

/// Name of the file of authorizations.
pub const AUTHORIZATIONS_FILE: &str = "authorizations.enc";
const LOCK_FILE: &str = "authorizations.lock";
const MODE: u32 = 0o600;
/// Prefix of the names of temporary files, which are renamed when they are complete.
const UNFINISHED: &str = ".tmp-authorizations-";
/// Maximum size of the file of authorizations, in bytes: enough for thousands of tokens.
const BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Maximum time that a writer waits for the lock while another writer holds it.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval at which the file's metadata are checked: changes of another process take effect within a second.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Identifies an authorization: the server, and the principal that authorizes the gateway.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Authorizer {
    /// The namespace of the remote server.
    pub namespace: NamespaceName,
    /// The principal that authorizes the gateway; `None` if the operator does, for all principals.
    pub principal: Option<PrincipalName>,
}

/// Tokens of one authorization, and the time when it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authorization {
    /// Time when the authorization was given, in seconds since 1970. Renewing the tokens does not change it.
    pub since: u64,
    /// The tokens of the authorization, in the format of the code that fetches them.
    pub tokens: Secret,
}

impl Authorization {
    /// Creates an authorization that was given at the current time.
    pub fn new(tokens: Secret) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            since: since.unwrap_or_default().as_secs(),
            tokens,
        }
    }
}

/// All authorizations, by authorizer.
type All = BTreeMap<Authorizer, Authorization>;

/// Store of authorizations. Its methods read and write files, so they must be called where blocking is allowed.
#[derive(Debug)]
pub struct AuthorizationStore {
    secrets: Arc<SecretStore>,
    personal: Arc<PersonalSecrets>,
    /// All authorizations, as last read from the file.
    known: Mutex<AuthorizationCache>,
}

#[derive(Debug, Default)]
struct AuthorizationCache {
    all: All,
    /// Id of the file from which `all` was read; `None` if no file was read, or none exists.
    file: Option<FileId>,
    /// Id of the last file that could not be read, so that its error is logged once.
    damaged: Option<FileId>,
}

/// Identity of a file. It stays equal until the file is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileId {
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl AuthorizationStore {
    /// Creates the store in the folder of `secrets`, whose key also encrypts the store's file. `personal` is notified of each
    /// change, so that calls use new authorizations.
    pub fn new(secrets: Arc<SecretStore>, personal: Arc<PersonalSecrets>) -> Self {
        Self {
            secrets,
            personal,
            known: Mutex::default(),
        }
    }

    /// Path of the file of authorizations.
    pub fn file(&self) -> PathBuf {
        self.secrets.directory().join(AUTHORIZATIONS_FILE)
    }

    /// The authorization of an authorizer, as last read from the file.
    pub fn get(&self, authorizer: &Authorizer) -> Option<Authorization> {
        self.known().all.get(authorizer).cloned()
    }

    /// All authorizers with the times of their authorizations in seconds since 1970, as last read from the file.
    pub fn list(&self) -> Vec<(Authorizer, u64)> {
        let known = self.known();
        let all = known.all.iter();
        all.map(|(authorizer, given)| (authorizer.clone(), given.since))
            .collect()
    }

    /// Checks that the store can be written, so that a caller can fail before it starts an authorization.
    ///
    /// # Errors
    ///
    /// As [`SecretStore::can_write`].
    pub fn can_write(&self) -> Result<(), SecretsError> {
        self.secrets.can_write()
    }

    /// Stores an authorization, in place of the authorizer's previous one.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or written. Nothing is then changed.
    pub fn set(&self, authorizer: Authorizer, given: Authorization) -> Result<(), SecretsError> {
        self.can_write()?;
        self.change(|all| {
            all.insert(authorizer, given);
            true
        })
        .map(drop)
    }

    /// Removes an authorizer's authorization. Returns false if there was none.
    ///
    /// # Errors
    ///
    /// As [`AuthorizationStore::set`].
    pub fn remove(&self, authorizer: &Authorizer) -> Result<bool, SecretsError> {
        self.change(|all| all.remove(authorizer).is_some())
    }

    /// Replaces an authorizer's tokens by renewed ones, or removes them with `None`. If the current tokens differ from `before`,
    /// nothing is changed, and the function returns false.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or written. The change is then made in memory only, until the file is replaced, because the
    /// previous tokens can no longer be used.
    pub fn renew(
        &self,
        authorizer: &Authorizer,
        before: &Authorization,
        now: Option<Authorization>,
    ) -> Result<bool, SecretsError> {
        let renew = |all: &mut All| {
            if all.get(authorizer) != Some(before) {
                return false;
            }
            match now.clone() {
                Some(now) => all.insert(authorizer.clone(), now),
                None => all.remove(authorizer),
            };
            true
        };
        self.change(renew).inspect_err(|_| {
            let mut known = self.known();
            let (mut all, file) = (known.all.clone(), known.file);
            renew(&mut all);
            self.install(&mut known, all, file);
        })
    }

    /// Writes all authorizations again, encrypted under the current key of the secrets. Must be called after
    /// [`SecretStore::rekey`] changed that key; writes the content that was read under the previous key.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn rewrite(&self) -> Result<(), SecretsError> {
        let mut known = self.known();
        if known.all.is_empty() {
            return Ok(());
        }
        let _lock = self.lock()?;
        self.write(&known.all, None)?;
        known.file = self.file_id();
        Ok(())
    }

    /// Reads the file if it was replaced since it was last read.
    ///
    /// # Errors
    ///
    /// When the file cannot be read. The previous content is then kept.
    pub fn refresh(&self) -> Result<(), SecretsError> {
        let mut known = self.known();
        let file = self.file_id();
        if file == known.file {
            return Ok(());
        }
        match self.read() {
            Ok((all, _)) => {
                known.damaged = None;
                self.install(&mut known, all, file);
                Ok(())
            }
            Err(error) => {
                known.damaged = file;
                Err(error)
            }
        }
    }

    /// Reads the file whenever another process changes it. Runs until the future is dropped.
    pub async fn follow(self: Arc<Self>) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let store = Arc::clone(&self);
            let look = tokio::task::spawn_blocking(move || store.look());
            if let Err(error) = look.await {
                tracing::error!(%error, "a look at the authorizations failed; the next one follows");
            }
        }
    }

    fn look(&self) {
        let told = self.known().damaged;
        if told.is_some() && told == self.file_id() {
            return;
        }
        if let Err(error) = self.refresh() {
            tracing::error!(
                file = AUTHORIZATIONS_FILE,
                "the authorizations cannot be read, and those of before stay in use: {error}"
            );
        }
    }

    /// Reads the file, applies a change to its content, and writes it if `change` returns true.
    fn change(&self, change: impl FnOnce(&mut All) -> bool) -> Result<bool, SecretsError> {
        let mut known = self.known();
        let _lock = self.lock()?;
        let (mut all, salt) = self.read()?;
        let changes = change(&mut all);
        if changes {
            self.write(&all, salt)?;
        }
        let file = self.file_id();
        self.install(&mut known, all, file);
        Ok(changes)
    }

    fn install(&self, known: &mut AuthorizationCache, all: All, file: Option<FileId>) {
        let since = all.iter();
        let since = since.map(|(authorizer, given)| (authorizer.clone(), given.since));
        self.personal.install_authorizations(since.collect());
        (known.all, known.file) = (all, file);
    }

    fn lock(&self) -> Result<FileLock, SecretsError> {
        let path = self.secrets.directory().join(LOCK_FILE);
        let lock = FileLock::take(&path, "authorizations", PATIENCE)?;
        files::remove_unfinished(self.secrets.directory(), UNFINISHED);
        Ok(lock)
    }

    fn read(&self) -> Result<(All, Option<Salt>), SecretsError> {
        let path = self.file();
        let Some(text) = files::read_up_to(&path, BYTES_MAX)? else {
            return Ok((All::new(), None));
        };
        let is_plain = |text: &[u8]| serde_json::from_slice::<AuthorizationFile>(text).is_ok();
        match store::opened(&path, &text, &self.secrets.protection(), is_plain)? {
            Content::Encrypted(opened) => Ok((parsed(&path, &opened.plain)?, opened.salt)),
            Content::Plain => Ok((parsed(&path, &text)?, None)),
        }
    }

    fn write(&self, all: &All, salt: Option<Salt>) -> Result<(), SecretsError> {
        let stored = AuthorizationFile {
            version: 1,
            authorizations: all.iter().map(StoredAuthorization::of).collect(),
        };
        let json = serde_json::to_vec(&stored).expect("texts and numbers are JSON");
        let json = Zeroizing::new(json);
        if json.len() as u64 > BYTES_MAX / 2 {
            return Err(SecretsError::TooLarge(BYTES_MAX / 2));
        }
        let sealed = store::sealed(&json, &self.secrets.protection(), salt)?;
        let text = sealed.as_ref().map_or(&json[..], |it| it.as_bytes());
        files::replace(&self.file(), text, MODE, UNFINISHED)
    }

    fn file_id(&self) -> Option<FileId> {
        let file = fs::symlink_metadata(self.file()).ok()?;
        Some(FileId {
            inode: file.ino(),
            bytes: file.len(),
            modified: (file.mtime(), file.mtime_nsec()),
        })
    }

    fn known(&self) -> MutexGuard<'_, AuthorizationCache> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Content of the file of authorizations.
#[derive(Serialize, Deserialize)]
struct AuthorizationFile<'a> {
    version: u8,
    #[serde(borrow)]
    authorizations: Vec<StoredAuthorization<'a>>,
}

#[derive(Serialize, Deserialize)]
struct StoredAuthorization<'a> {
    namespace: NamespaceName,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    principal: Option<String>,
    since: u64,
    #[serde(borrow)]
    tokens: std::borrow::Cow<'a, str>,
}

impl<'a> StoredAuthorization<'a> {
    fn of((authorizer, given): (&Authorizer, &'a Authorization)) -> Self {
        let principal = authorizer.principal.as_ref();
        Self {
            namespace: authorizer.namespace.clone(),
            principal: principal.map(|it| it.as_str().to_owned()),
            since: given.since,
            tokens: given.tokens.expose().into(),
        }
    }
}

fn parsed(path: &Path, json: &[u8]) -> Result<All, SecretsError> {
    let damaged = |reason: String| SecretsError::Damaged {
        path: path.to_owned(),
        reason,
    };
    let stored: AuthorizationFile<'_> = serde_json::from_slice(json).map_err(|error| {
        // Only the position is reported: the parser's message may quote secrets of the file.
        let (line, column) = (error.line(), error.column());
        damaged(format!(
            "no list of authorizations (line {line}, column {column})"
        ))
    })?;
    if stored.version != 1 {
        return Err(SecretsError::Newer {
            path: path.to_owned(),
            found: stored.version.into(),
        });
    }
    let entries = stored.authorizations.into_iter().map(|entry| {
        let principal = entry.principal.map(|it| it.parse()).transpose();
        let principal = principal.map_err(|error| damaged(format!("{error}")))?;
        let authorizer = Authorizer {
            namespace: entry.namespace,
            principal,
        };
        let given = Authorization {
            since: entry.since,
            tokens: Secret::new(entry.tokens),
        };
        Ok((authorizer, given))
    });
    entries.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secrets::{Protection, SecretsKey};

    struct House {
        folder: tempfile::TempDir,
        personal: Arc<PersonalSecrets>,
        store: AuthorizationStore,
    }

    impl House {
        fn new(protection: Protection) -> Self {
            Self::at(tempfile::tempdir().unwrap(), protection)
        }

        fn at(folder: tempfile::TempDir, protection: Protection) -> Self {
            let secrets = Arc::new(SecretStore::new(folder.path(), protection));
            let personal = Arc::new(PersonalSecrets::default());
            let store = AuthorizationStore::new(secrets, Arc::clone(&personal));
            Self {
                folder,
                personal,
                store,
            }
        }

        fn text(&self) -> String {
            String::from_utf8(fs::read(self.store.file()).unwrap()).unwrap()
        }
    }

    fn key(text: &str) -> Protection {
        Protection::Key(SecretsKey::quick(text))
    }

    fn ada(namespace: &str) -> Authorizer {
        Authorizer {
            namespace: namespace.parse().unwrap(),
            principal: Some("ada".parse().unwrap()),
        }
    }

    fn given(tokens: &str) -> Authorization {
        Authorization::new(Secret::new(tokens))
    }

    #[test]
    fn what_was_given_is_kept_encrypted_and_other_processes_read_it() {
        let house = House::new(key("k"));
        assert!(house.store.refresh().is_ok() && house.store.list().is_empty());
        house.store.set(ada("a"), given("hunter2")).unwrap();
        assert!(!house.text().contains("hunter2"));
        assert_eq!(
            house.personal.authorized_since(&ada("a")),
            Some(house.store.list()[0].1)
        );

        let other = House::at(house.folder, key("k"));
        assert_eq!(other.store.get(&ada("a")), None);
        other.store.refresh().unwrap();
        let read = other.store.get(&ada("a")).unwrap();
        assert_eq!(read.tokens.expose(), "hunter2");
        assert!(!format!("{:?} {read:?}", other.store).contains("hunter2"));

        let renewed = Authorization {
            tokens: Secret::new("hunter3"),
            ..read.clone()
        };
        let renew = |before, now| other.store.renew(&ada("a"), before, now).unwrap();
        assert!(renew(&read, Some(renewed.clone())));
        assert!(!renew(&read, None), "somebody replaced them meanwhile");
        assert!(renew(&renewed, None));
        assert!(!other.store.remove(&ada("a")).unwrap());
        assert_eq!(other.personal.authorized_since(&ada("a")), None);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_an_error_and_what_was_read_stays() {
        let house = House::new(key("k"));
        house.store.set(ada("a"), given("1")).unwrap();
        fs::write(house.store.file(), "{").unwrap();
        assert!(
            house
                .store
                .refresh()
                .unwrap_err()
                .to_string()
                .contains("damaged")
        );
        assert!(house.store.set(ada("b"), given("2")).is_err());
        assert_eq!(house.text(), "{");
        let before = house.store.get(&ada("a")).unwrap();
        assert!(
            house
                .store
                .renew(&ada("a"), &before, Some(given("3")))
                .is_err()
        );
        let now = house.store.get(&ada("a")).unwrap();
        assert_eq!(now.tokens.expose(), "3", "the one of before counts no more");
        assert_eq!(house.text(), "{");

        let other = House::at(house.folder, key("another"));
        fs::remove_file(other.store.file()).unwrap();
        other.store.set(ada("b"), given("2")).unwrap();
        let unset = House::at(other.folder, Protection::Unset);
        let told = unset.store.refresh().unwrap_err().to_string();
        assert!(told.contains("SECRETS_KEY is not set"), "{told}");
        let wrong = House::at(unset.folder, key("wrong"));
        assert!(matches!(
            wrong.store.refresh(),
            Err(SecretsError::CannotDecrypt(_))
        ));
    }

    #[test]
    fn another_key_of_the_secrets_is_the_key_of_the_authorizations_too() {
        let house = House::new(key("old"));
        house.store.set(ada("a"), given("hunter2")).unwrap();
        house.store.secrets.set_protection(key("new"));
        house.store.rewrite().unwrap();
        let other = House::at(house.folder, key("new"));
        other.store.refresh().unwrap();
        assert!(other.store.get(&ada("a")).is_some());
    }

    #[test]
    fn without_a_key_tokens_are_kept_as_they_are_where_that_is_allowed() {
        let house = House::new(Protection::Insecure);
        house.store.set(ada("a"), given("hunter2")).unwrap();
        assert!(house.text().contains("hunter2"));
        let other = House::at(house.folder, Protection::Insecure);
        other.store.refresh().unwrap();
        assert!(other.store.get(&ada("a")).is_some());
        let keyed = House::at(other.folder, key("k"));
        assert!(matches!(
            keyed.store.refresh(),
            Err(SecretsError::NotEncrypted(_))
        ));
        let unset = House::new(Protection::Unset);
        assert!(unset.store.set(ada("a"), given("1")).is_err());
    }
}
