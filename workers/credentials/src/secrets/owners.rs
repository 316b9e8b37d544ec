//! Owners of credentials: the namespace that first received a value of a namespace's scope, and the server that first received
//! the personal values of its callers.
//!
//! ```text
//! $DATA/secrets.enc          values, and owners by name and key: a digest of the value, and the origin that received it
//!       secrets.owners.enc   owners, while secrets.enc cannot be written; encrypted as the values are
//! ```
//!
//! A value belongs to the name *and* the origin ([`Origin`]) that was served under the name when the value was first used.
//! Another origin that is served under the name later does not receive the value. For example, a folder that tool code creates
//! must not receive the values of the operator's server that had the name before. Only servers of the operator's file receive
//! all values of their names. A new value has no owner yet.
//!
//! The gateway records owners. They are stored together with the values, so that a tool, which runs as the gateway's user,
//! cannot remove them and keep the values. The gateway may be unable to write `secrets.enc`: it is a mount, a link or a file of
//! another user, has an older format, is not encrypted, or a command holds the lock. Then the owners are stored in a separate
//! file, and the next command that writes `secrets.enc` merges them. If neither file can be written, the owners are kept in
//! memory until the gateway ends.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tooldock_base::issue::Issue;
use tooldock_base::names::NamespaceName;
use tooldock_base::precedence::{Names, Origin, Source};
use tooldock_base::secret::Secret;
use tooldock_base::server_failure::FOREIGN;
use zeroize::Zeroizing;

use super::store::{self, Content, SecretStore, StoreContent};
use super::{Protection, Secrets, SecretsError, files};

/// Name of the file with the owners that could not be stored together with the values.
pub const OWNERS_FILE: &str = "secrets.owners.enc";

const MODE: u32 = 0o600;
const BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Maximum time that the gateway waits for the lock to record owners while a command writes secrets. If the time is over, the
/// owners are recorded at the next reload.
const PATIENCE: Duration = Duration::from_millis(500);

/// The owners of all values, and of the personal values of each server's callers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Owners {
    /// The owners of values, by namespace and by the secret's key.
    #[serde(default)]
    values: BTreeMap<String, BTreeMap<String, OwnedValue>>,
    /// Origins of the servers that own the personal values of their callers, by the server's name.
    #[serde(default)]
    personal: BTreeMap<String, Origin>,
    /// True if there may be owners that this record does not contain, for example because a file could not be read.
    #[serde(skip)]
    incomplete: bool,
}

/// The owners as read from the files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordedOwners {
    /// All owners that the files contain.
    pub owners: Owners,
    /// True if every owner is stored in `secrets.enc`, together with the values; false if some are in the separate file.
    pub beside_values: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnedValue {
    digest: String,
    origin: Origin,
}

/// The secrets that the currently served namespaces may receive, as computed from the owners of the values.
pub struct BoundSecrets {
    /// The secrets without the values that the served namespaces must not receive.
    pub secrets: Secrets,
    /// The owners of all values, including those that this computation added.
    pub owners: Owners,
    /// Issues about values that a namespace does not receive.
    pub issues: Vec<(NamespaceName, Issue)>,
}

impl Owners {
    /// Creates a record for unknown owners. With it, only namespaces of the operator's configuration receive values.
    pub fn unknown() -> Self {
        Self {
            incomplete: true,
            ..Self::default()
        }
    }

    /// Returns true if there may be owners that this record does not contain.
    pub fn is_incomplete(&self) -> bool {
        self.incomplete
    }

    /// Adds the owners of another record for values without an owner in this record, and for values that have changed since this
    /// record's owner was recorded.
    fn complete_with(&mut self, other: Self, secrets: &Secrets) {
        let current: BTreeMap<_, _> = secrets
            .of_scopes()
            .map(|(scope, key, value)| ((scope, key), digest(value)))
            .collect();
        for (scope, values) in other.values {
            for (key, value) in values {
                let current = current.get(&(scope.as_str(), key.as_str()));
                let own = self.values.get(&scope).and_then(|own| own.get(&key));
                if own.is_none_or(|own| Some(&own.digest) != current) {
                    let own = self.values.entry(scope.clone()).or_default();
                    own.insert(key, value);
                }
            }
        }
        for (name, origin) in other.personal {
            self.personal.entry(name).or_insert(origin);
        }
    }

    /// Decides which values the served namespaces receive. The namespace with the name of a value's scope receives the value if
    /// it is the recorded owner or comes from the operator's configuration, or if the value has no owner and all owners are
    /// known. It is then the owner. `personal`: servers that need personal values of their callers; the same rules hold for
    /// these.
    pub fn bind(
        &self,
        secrets: &Secrets,
        names: &Names,
        personal: &BTreeSet<NamespaceName>,
    ) -> BoundSecrets {
        let mut owners = Self {
            values: BTreeMap::new(),
            personal: self.personal.clone(),
            incomplete: self.incomplete,
        };
        let (mut foreign, mut issues) = (BTreeSet::new(), Vec::new());
        for (scope, key, value) in secrets.of_scopes() {
            let digest = digest(value);
            let known = self.values.get(scope).and_then(|own| own.get(key));
            let owner = known.filter(|it| it.digest == digest).map(|it| it.origin);
            let name = scope.parse::<NamespaceName>().ok();
            let served = name.as_ref().and_then(|name| names.served(name));
            let owner = match (owner, served) {
                (Some(owner), Some(served)) if !may_have(served, owner) => {
                    foreign.insert((scope.to_owned(), key.to_owned()));
                    issues.extend(name.map(|name| (name, not_given(key, scope, owner))));
                    Some(owner)
                }
                (None, Some(served)) if !self.may_take(served) => {
                    foreign.insert((scope.to_owned(), key.to_owned()));
                    issues.extend(name.map(|name| (name, not_known(key, scope))));
                    None
                }
                (owner, served) => served.or(owner),
            };
            if let Some(origin) = owner {
                let own = owners.values.entry(scope.to_owned()).or_default();
                own.insert(key.to_owned(), OwnedValue { digest, origin });
            }
        }
        let mut refused = BTreeMap::new();
        for name in personal {
            let Some(served) = names.served(name) else {
                continue;
            };
            let owner = self.personal.get(name.as_str()).copied();
            match owner.filter(|owner| !may_have(served, *owner)) {
                Some(owner) => {
                    refused.insert(name.clone(), Some(owner));
                }
                None if owner.is_none() && !self.may_take(served) => {
                    refused.insert(name.clone(), None);
                }
                None => {
                    owners.personal.insert(name.to_string(), served);
                }
            }
        }
        BoundSecrets {
            secrets: secrets.without(&foreign, refused),
            owners,
            issues,
        }
    }

    /// Returns true if a namespace of this origin may become the owner of credentials that have no recorded owner.
    fn may_take(&self, served: Origin) -> bool {
        !self.incomplete || served.source == Source::Operator
    }
}

/// Returns true if a namespace of the origin `served` may receive credentials whose owner is a namespace of the same name and the
/// origin `owner`.
fn may_have(served: Origin, owner: Origin) -> bool {
    served == owner || served.source == Source::Operator
}

fn digest(value: &Secret) -> String {
    tooldock_base::data_dir::short_hash(&Sha256::digest(value.expose().as_bytes()))
}

fn not_given(key: &str, scope: &str, owner: Origin) -> Issue {
    Issue {
        code: FOREIGN,
        subject: key.to_owned(),
        message: format!(
            "the value of scope {scope} was given to {owner}, and is not given to another namespace of that name; set a new value \
             if this one is to have it"
        ),
    }
}

fn not_known(key: &str, scope: &str) -> Issue {
    Issue {
        code: FOREIGN,
        subject: key.to_owned(),
        message: format!(
            "it is not known which namespace the value of scope {scope} was given to, since {OWNERS_FILE} cannot be read, so \
             this one does not get it; restore {OWNERS_FILE} and reload, or, if this namespace is to have the value, remove \
             {OWNERS_FILE} and set a new value with `tooldock secrets set`"
        ),
    }
}

impl SecretStore {
    /// The owners in the file of values, supplemented by those in the file of owners. If both name an owner of a value, that of
    /// the file of values is used, so an outdated file of owners has no effect.
    ///
    /// # Errors
    ///
    /// When the file of values contains no owners, and the file of owners cannot be read.
    pub(super) fn recorded_owners(
        &self,
        loaded: &StoreContent,
    ) -> Result<RecordedOwners, SecretsError> {
        let mut owners = loaded.owners.clone().unwrap_or_default();
        match (self.read_owners_file(), &loaded.owners) {
            (Ok(Some(file)), _) => {
                let secrets = Secrets::new(loaded.values.clone(), Default::default());
                owners.complete_with(file, &secrets);
            }
            (Ok(None), _) => {}
            (Err(error), Some(_)) => {
                tracing::warn!(%error, "the owners of secrets that stand in secrets.enc count alone");
            }
            (Err(error), None) => return Err(error),
        }
        Ok(RecordedOwners {
            beside_values: owners == loaded.owners.clone().unwrap_or_default(),
            owners,
        })
    }

    /// Stores the owners in the file of values. Returns false if that is not possible: the file must belong to the gateway's user
    /// and have the current format.
    ///
    /// # Errors
    ///
    /// When the values cannot be read.
    pub(super) fn store_owners(&self, owners: &Owners) -> Result<bool, SecretsError> {
        if !matches!(*self.protection(), Protection::Key(_)) || !self.is_own_file() {
            return Ok(false);
        }
        let Ok(_lock) = self.lock_within("the gateway records owners", PATIENCE) else {
            return Ok(false);
        };
        let loaded = self.load()?;
        // A file of an older format is not changed until a secret is set, because an older system may still have to read it.
        let Some(salt) = loaded.salt else {
            return Ok(false);
        };
        if loaded.owners.as_ref() != Some(owners) {
            let written = self.write_own_values(&loaded.values, Some(owners), Some(salt));
            if let Err(error) = written {
                tracing::debug!(%error, "the owners of secrets cannot be recorded beside the values");
                return Ok(false);
            }
        }
        self.remove_owners_file();
        Ok(true)
    }

    /// Returns true if this process may replace the file of values: it is not a link, and belongs to this user. Write permission
    /// is not checked: every tool runs as this user, and could prevent the replacement by removing the permission.
    fn is_own_file(&self) -> bool {
        fs::symlink_metadata(self.values_file()).is_ok_and(|found| {
            found.is_file() && found.uid() == rustix::process::geteuid().as_raw()
        })
    }

    /// Reads the file of owners; returns `None` if the file does not exist.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub(super) fn read_owners_file(&self) -> Result<Option<Owners>, SecretsError> {
        let path = self.directory().join(OWNERS_FILE);
        let Some(text) = files::read_up_to(&path, BYTES_MAX)? else {
            return Ok(None);
        };
        let is_plain = |text: &[u8]| serde_json::from_slice::<Owners>(text).is_ok();
        let plain = match store::opened(&path, &text, &self.protection(), is_plain)? {
            Content::Encrypted(opened) => opened.plain,
            Content::Plain => text,
        };
        let owners = serde_json::from_slice(&plain);
        owners.map(Some).map_err(|error| SecretsError::Damaged {
            path,
            reason: error.to_string(),
        })
    }

    /// Removes the file of owners. A failure is harmless: the file's owners are also in the file of values.
    pub(super) fn remove_owners_file(&self) {
        let _ = fs::remove_file(self.directory().join(OWNERS_FILE));
    }

    /// Writes the file of owners.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub(super) fn write_owners_file(&self, owners: &Owners) -> Result<(), SecretsError> {
        let json = Zeroizing::new(serde_json::to_vec(owners).expect("texts are JSON"));
        // The salt of the values is used, since the key for it is already derived; deriving another one takes a quarter of a
        // second.
        let salt = self.load().ok().and_then(|loaded| loaded.salt);
        let sealed = store::sealed(&json, &self.protection(), salt)?;
        let text = sealed.as_ref().map_or(&json[..], |it| it.as_bytes());
        let path = self.directory().join(OWNERS_FILE);
        files::replace(&path, text, MODE, files::UNFINISHED)
    }
}

#[cfg(test)]
mod tests {
    use tooldock_base::precedence::{Claim, Kind};

    use super::*;
    use crate::secrets::{Protection, SecretSource as _, SecretsKey};

    fn origin(source: Source, kind: Kind) -> Origin {
        Origin { source, kind }
    }

    fn names(origin: Origin) -> Names {
        let name: NamespaceName = "a".parse().unwrap();
        Names::settle([Claim {
            origin,
            ..Claim::folder(&name)
        }])
    }

    fn secrets(value: &str) -> Secrets {
        Secrets::global([("ALL", Secret::new("1"))]).with(
            &"a".parse().unwrap(),
            "KEY",
            Secret::new(value),
        )
    }

    fn has(bound: &BoundSecrets) -> bool {
        let own = bound.secrets.for_namespace(&"a".parse().unwrap()).values;
        assert!(own.contains_key("ALL"), "global values stay");
        own.contains_key("KEY")
    }

    #[test]
    fn a_value_stays_with_the_origin_that_got_it_until_there_is_a_new_value() {
        let remote = names(origin(Source::Operator, Kind::Remote));
        let folder = names(origin(Source::Folder, Kind::Folder));
        let none = BTreeSet::new();
        let first = Owners::default().bind(&secrets("v"), &remote, &none);
        assert!(has(&first) && first.issues.is_empty());
        let planted = first.owners.bind(&secrets("v"), &folder, &none);
        assert!(!has(&planted));
        assert_eq!(planted.issues[0].1.code, FOREIGN);
        let told = &planted.issues[0].1.message;
        assert!(told.contains("a remote server of the operator's"), "{told}");
        assert_eq!(planted.owners, first.owners, "and it stays so");
        let unserved = planted.owners.bind(&secrets("v"), &Names::default(), &none);
        assert_eq!(
            unserved.owners, first.owners,
            "while nothing is served, too"
        );
        let back = unserved.owners.bind(&secrets("v"), &remote, &none);
        assert!(has(&back));
        let new = back.owners.bind(&secrets("w"), &folder, &none);
        assert!(has(&new));
        let stdio = names(origin(Source::Operator, Kind::Stdio));
        assert!(has(&new.owners.bind(&secrets("w"), &stdio, &none)));
    }

    #[test]
    fn personal_values_go_to_no_other_origin_of_the_name() {
        let name: NamespaceName = "a".parse().unwrap();
        let asks = BTreeSet::from([name.clone()]);
        let remote = names(origin(Source::Operator, Kind::Remote));
        let planted = names(origin(Source::ExternalFile, Kind::Stdio));
        let first = Owners::default().bind(&Secrets::default(), &remote, &asks);
        assert_eq!(first.secrets.personal_owner(&name), None);
        let second = first.owners.bind(&Secrets::default(), &planted, &asks);
        assert!(second.secrets.personal_owner(&name).is_some());
        let again = second.owners.bind(&Secrets::default(), &remote, &asks);
        assert_eq!(again.secrets.personal_owner(&name), None);
    }

    fn key(text: &str) -> Protection {
        Protection::Key(SecretsKey::quick(text))
    }

    /// A store with the value `v` of scope `a`, and the owners after a remote server of the operator has used it.
    fn used(folder: &std::path::Path) -> (SecretStore, Owners) {
        let store = SecretStore::new(folder, key("k"));
        store
            .set("KEY", &"a".parse().unwrap(), Secret::new("v"))
            .unwrap();
        let remote = names(origin(Source::Operator, Kind::Remote));
        let asks = BTreeSet::from(["a".parse().unwrap()]);
        let bound = Owners::default().bind(&secrets("v"), &remote, &asks);
        (store, bound.owners)
    }

    fn recorded(store: &SecretStore) -> RecordedOwners {
        store.owners().unwrap()
    }

    #[test]
    fn owners_cannot_be_removed_without_the_values_nor_replaced_by_older_ones() {
        let folder = tempfile::tempdir().unwrap();
        let (store, owners) = used(folder.path());
        let file = folder.path().join(OWNERS_FILE);
        // In the form that an earlier version left.
        store.write_owners_file(&owners).unwrap();
        let known = recorded(&store);
        assert_eq!((&known.owners, known.beside_values), (&owners, false));
        assert!(store.record_owners(&owners).unwrap());
        assert!(!file.exists());
        let beside = RecordedOwners {
            owners: owners.clone(),
            beside_values: true,
        };
        assert_eq!(recorded(&store), beside);
        let planted = names(origin(Source::ExternalFile, Kind::Stdio));
        let asks = BTreeSet::from(["a".parse().unwrap()]);
        let bound = recorded(&store).owners.bind(&secrets("v"), &planted, &asks);
        assert!(!has(&bound));
        assert!(
            bound
                .secrets
                .personal_owner(&"a".parse().unwrap())
                .is_some()
        );
        // Another record of the value, encrypted under the right key.
        let other = Owners::default().bind(&secrets("v"), &planted, &asks);
        store.write_owners_file(&other.owners).unwrap();
        assert_eq!(recorded(&store).owners, owners);
        fs::write(&file, "garbage").unwrap();
        assert_eq!(recorded(&store).owners, owners);
        // Commands keep the owners of unchanged values.
        store
            .set("OTHER", &"b".parse().unwrap(), Secret::new("w"))
            .unwrap();
        assert_eq!(recorded(&store).owners, owners);
        let text = fs::read_to_string(store.values_file()).unwrap();
        assert!(!text.contains("remote"), "{text}");
    }

    #[test]
    fn owners_of_a_new_value_come_from_the_file_until_they_stand_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let (store, owners) = used(folder.path());
        assert!(store.record_owners(&owners).unwrap());
        store
            .set("KEY", &"a".parse().unwrap(), Secret::new("w"))
            .unwrap();
        let folder_names = names(origin(Source::Folder, Kind::Folder));
        let newer = owners.bind(&secrets("w"), &folder_names, &BTreeSet::new());
        store.write_owners_file(&newer.owners).unwrap();
        let known = recorded(&store);
        assert_eq!((&known.owners, known.beside_values), (&newer.owners, false));
        // The next command takes them over.
        store
            .set("MORE", &"a".parse().unwrap(), Secret::new("x"))
            .unwrap();
        store.remove_owners_file();
        assert_eq!(recorded(&store).owners, newer.owners);
    }

    #[test]
    fn a_store_that_the_gateway_may_not_write_keeps_owners_in_a_file() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let (store, owners) = used(folder.path());
        let values = store.values_file();
        let before = fs::read(&values).unwrap();
        let editing = store.lock("secrets edit").unwrap();
        assert!(!store.record_owners(&owners).unwrap());
        drop(editing);
        assert_eq!(fs::read(&values).unwrap(), before);
        assert_eq!(recorded(&store).owners, owners);
        store.remove_owners_file();
        let elsewhere = folder.path().join("elsewhere");
        fs::rename(&values, &elsewhere).unwrap();
        symlink(&elsewhere, &values).unwrap();
        assert!(!store.record_owners(&owners).unwrap());
        assert!(values.is_symlink());
        assert_eq!(recorded(&store).owners, owners);
    }

    #[test]
    fn while_a_file_of_owners_cannot_be_read_values_go_to_the_operators_namespaces_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = used(folder.path());
        assert_eq!(
            recorded(&store),
            RecordedOwners {
                owners: Owners::default(),
                beside_values: true,
            }
        );
        fs::write(folder.path().join(OWNERS_FILE), "garbage").unwrap();
        store.owners().unwrap_err();
        let asks = BTreeSet::from(["a".parse().unwrap()]);
        let planted = names(origin(Source::Folder, Kind::Folder));
        let bound = Owners::unknown().bind(&secrets("v"), &planted, &asks);
        assert!(!has(&bound));
        let told = &bound.issues[0].1;
        assert_eq!(told.code, FOREIGN);
        assert!(told.message.contains("tooldock secrets set"), "{told:?}");
        let name = "a".parse().unwrap();
        assert_eq!(bound.secrets.personal_owner(&name), Some(None));
        let remote = names(origin(Source::Operator, Kind::Remote));
        let bound = Owners::unknown().bind(&secrets("v"), &remote, &asks);
        assert!(has(&bound) && bound.secrets.personal_owner(&name).is_none());
    }

    #[test]
    fn owners_are_read_again_under_a_new_key() {
        let folder = tempfile::tempdir().unwrap();
        let (store, owners) = used(folder.path());
        store.write_owners_file(&owners).unwrap();
        let text = fs::read_to_string(folder.path().join(OWNERS_FILE)).unwrap();
        assert!(!text.contains("remote"), "{text}");
        store.rekey(SecretsKey::quick("other")).unwrap();
        let other = SecretStore::new(folder.path(), key("other"));
        assert_eq!(recorded(&other).owners, owners);
    }
}
