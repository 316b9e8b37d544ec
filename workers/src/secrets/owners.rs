//! Owners of credentials: which namespace a value of a namespace's scope was given to, and which server got the personal
//! values of those who call it.
//!
//! ```text
//! $DATA/secrets.owners.enc   by name and key: a digest of the value, and the origin that got it; encrypted as the values are
//! ```
//!
//! A value belongs to the name *and* the origin ([`Origin`]) that was served under the name when the value was first used.
//! Another origin that has the name later does not get it: a folder that tool code makes is not the operator's server that
//! had the name before. The operator's file alone may take over what it names. A new value has no owner yet.
//!
//! The gateway writes the file, and serves on where it cannot: the owners are then known until it ends.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::store::{self, Content, SecretStore};
use super::{Secret, Secrets, SecretsError, files};
use crate::names::NamespaceName;
use crate::precedence::{Names, Origin, Source};
use crate::registry::Issue;

/// The file.
pub const OWNERS_FILE: &str = "secrets.owners.enc";
/// The code of an [`Issue`] about a value that belongs to another namespace of the name.
pub const FOREIGN: &str = "secret_of_another";

const MODE: u32 = 0o600;
const BYTES_MAX: u64 = 4 * 1024 * 1024;

/// All owners.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Owners {
    /// By the name of the scope, then by key.
    #[serde(default)]
    values: BTreeMap<String, BTreeMap<String, OwnedValue>>,
    /// The servers that get personal values, by name.
    #[serde(default)]
    personal: BTreeMap<String, Origin>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnedValue {
    digest: String,
    origin: Origin,
}

/// The secrets as the namespaces that are served now may have them.
pub(crate) struct Bound {
    /// Without the values that belong to other namespaces.
    pub(crate) secrets: Secrets,
    /// The owners with those that are new.
    pub(crate) owners: Owners,
    /// Issues about values that a namespace does not get.
    pub(crate) issues: Vec<(NamespaceName, Issue)>,
}

impl Owners {
    /// Gives each value to its owner alone, and one without an owner to the namespace that is served under its scope's name.
    /// `personal` are the servers that ask for personal values.
    pub(crate) fn bind(
        &self,
        secrets: &Secrets,
        names: &Names,
        personal: &BTreeSet<NamespaceName>,
    ) -> Bound {
        let mut owners = Self {
            values: BTreeMap::new(),
            personal: self.personal.clone(),
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
                    refused.insert(name.clone(), owner);
                }
                None => {
                    owners.personal.insert(name.to_string(), served);
                }
            }
        }
        Bound {
            secrets: secrets.without(&foreign, refused),
            owners,
            issues,
        }
    }
}

/// Whether a namespace of one origin gets the credentials that another one had under the name.
fn may_have(served: Origin, owner: Origin) -> bool {
    served == owner || served.source == Source::Operator
}

fn digest(value: &Secret) -> String {
    crate::data_dir::short_hash(&Sha256::digest(value.expose().as_bytes()))
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

impl SecretStore {
    /// The owners that are recorded; none where there is no file.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub(super) fn read_owners(&self) -> Result<Owners, SecretsError> {
        let path = self.directory().join(OWNERS_FILE);
        let Some(text) = files::read_up_to(&path, BYTES_MAX)? else {
            return Ok(Owners::default());
        };
        let is_plain = |text: &[u8]| serde_json::from_slice::<Owners>(text).is_ok();
        let plain = match store::opened(&path, &text, &self.protection(), is_plain)? {
            Content::Encrypted(opened) => opened.plain,
            Content::Plain => text,
        };
        serde_json::from_slice(&plain).map_err(|error| SecretsError::Damaged {
            path,
            reason: error.to_string(),
        })
    }

    /// Records the owners.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub(super) fn write_owners(&self, owners: &Owners) -> Result<(), SecretsError> {
        let json = Zeroizing::new(serde_json::to_vec(owners).expect("texts are JSON"));
        // Under the salt of the values, whose key is known: deriving another one would take a while.
        let salt = self.load().ok().and_then(|loaded| loaded.salt);
        let sealed = store::sealed(&json, &self.protection(), salt)?;
        let text = sealed.as_ref().map_or(&json[..], |it| it.as_bytes());
        let path = self.directory().join(OWNERS_FILE);
        files::replace(&path, text, MODE, files::UNFINISHED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::precedence::{Claim, Kind};
    use crate::secrets::{Protection, SecretsKey};

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

    fn has(bound: &Bound) -> bool {
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

    #[test]
    fn owners_are_kept_encrypted_and_read_again_under_a_new_key() {
        let folder = tempfile::tempdir().unwrap();
        let key = |text: &str| Protection::Key(SecretsKey::quick(text));
        let store = SecretStore::new(folder.path(), key("k"));
        assert_eq!(store.read_owners().unwrap(), Owners::default());
        let remote = names(origin(Source::Operator, Kind::Remote));
        let owners = Owners::default().bind(&secrets("v"), &remote, &BTreeSet::new());
        store.write_owners(&owners.owners).unwrap();
        let text = std::fs::read_to_string(folder.path().join(OWNERS_FILE)).unwrap();
        assert!(!text.contains("remote"), "{text}");
        store.rekey(SecretsKey::quick("other")).unwrap();
        let other = SecretStore::new(folder.path(), key("other"));
        assert_eq!(other.read_owners().unwrap(), owners.owners);
    }
}
