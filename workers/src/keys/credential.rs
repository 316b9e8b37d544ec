//! Makers of keys that are not keys themselves: entries of the configuration and access tokens, and the check that they still
//! stand behind the keys that they made.
//!
//! A key of such a maker opens no more than the maker and is valid only while the configuration has the maker's entry, with
//! the key's namespaces among its own. The record keeps a salted hash of the entry: an entry of that name with another token
//! is another maker.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::record::{Bytes, KeyRecord, NewKey, hash, whole_seconds};
use super::text::KeyId;

/// Reason for callers that the edge gave no maker.
const NO_MAKER: &str = "this caller makes no API keys";

/// The maker of a new API key: the credential with which `token_create` was called, as admitted at the edge.
#[derive(Debug, Clone)]
pub enum KeyMaker {
    /// The holder of the gateway's own bearer token: keys of any kind, which have no maker.
    Operator,
    /// An API key.
    Key(KeyId),
    /// An entry of the configuration, or an access token.
    Credential(Arc<MakerCredential>),
    /// A credential that may not make keys. The text is the reason, for the error message.
    Barred(&'static str),
}

impl Default for KeyMaker {
    fn default() -> Self {
        Self::Barred(NO_MAKER)
    }
}

/// A credential that makes keys and is not a key.
#[derive(Debug, PartialEq, Eq)]
pub struct MakerCredential {
    /// The entry of the configuration that the credential belongs to.
    pub entry: EntryName,
    /// The principal of the credential.
    pub principal: Arc<str>,
    /// Hash over the entry.
    pub fingerprint: EntryHash,
    /// Namespaces that the credential opens: names and globs.
    pub namespaces: Arc<[String]>,
    /// End of the credential, if it ends by itself.
    pub ends: Option<SystemTime>,
}

/// The kind and the name of an entry: `token:NAME`, `certificate:NAME` or `oauth:ISSUER`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EntryName(Box<str>);

impl EntryName {
    /// The name of an entry of `admission.tokens`.
    pub fn token(name: &str) -> Self {
        Self(format!("token:{name}").into())
    }

    /// The name of an entry of `admission.certificates`.
    pub fn certificate(name: &str) -> Self {
        Self(format!("certificate:{name}").into())
    }

    /// The name of an entry of `admission.oauth`.
    pub fn issuer(issuer: &str) -> Self {
        Self(format!("oauth:{issuer}").into())
    }
}

/// SHA-256 over an entry of the configuration.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct EntryHash([u8; 32]);

impl EntryHash {
    /// The hash of an entry, over the texts that make it up.
    pub fn of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Self(hash.finalize().into())
    }
}

impl std::fmt::Debug for EntryHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[redacted]")
    }
}

/// The entries of a configuration whose credentials make keys.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct KeyMakers(HashMap<EntryName, Vec<MakerEntry>>);

#[derive(Debug, PartialEq, Eq)]
struct MakerEntry {
    fingerprint: EntryHash,
    /// Namespaces that the entry's credentials open; `None` if each credential names its own.
    namespaces: Option<Arc<[String]>>,
}

impl KeyMakers {
    /// Adds an entry. `namespaces` is `None` if each credential of the entry names its own.
    pub fn add(
        &mut self,
        name: EntryName,
        fingerprint: EntryHash,
        namespaces: Option<Arc<[String]>>,
    ) {
        self.0.entry(name).or_default().push(MakerEntry {
            fingerprint,
            namespaces,
        });
    }

    /// Returns true if an entry stands behind a key that a credential made.
    fn stands_behind(&self, key: &KeyRecord, credential: &CredentialRecord) -> bool {
        let entries = self.0.get(&credential.entry).into_iter().flatten();
        let mut same = entries.filter(|entry| {
            let proof = hash(&key.salt.0, &entry.fingerprint.0);
            credential.proof.matches(&proof)
        });
        same.any(|entry| {
            let own = entry.namespaces.as_ref();
            own.is_none_or(|own| super::lineage::opens_all(own, &key.namespaces))
        })
    }

    /// Marks the keys as revoked whose makers' entries are gone or no longer cover them.
    ///
    /// Returns true if there are any.
    pub(super) fn end_keys(&self, records: &mut [KeyRecord]) -> bool {
        let mut ended = false;
        for record in records {
            let Some(credential) = &record.credential else {
                continue;
            };
            if record.revoked.is_none() && !self.stands_behind(record, credential) {
                record.revoked = Some(record.created);
                ended = true;
            }
        }
        ended
    }
}

/// The maker of a key, as the file has it, if the maker is not a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CredentialRecord {
    /// The principal that made the key.
    pub principal: String,
    /// The entry of the configuration that the key ends with.
    pub(super) entry: EntryName,
    /// Hash over the key's salt and the entry.
    pub(super) proof: Bytes<32>,
}

impl CredentialRecord {
    pub(super) fn of(credential: &MakerCredential, salt: &[u8; 16]) -> Self {
        Self {
            principal: credential.principal.to_string(),
            entry: credential.entry.clone(),
            proof: Bytes(hash(salt, &credential.fingerprint.0)),
        }
    }
}

/// Cuts the requested key to the rights of the credential that makes it.
///
/// # Errors
///
/// The field that asks for more than the credential has.
pub(super) fn within(
    mut wanted: NewKey,
    maker: &MakerCredential,
    now: SystemTime,
) -> Result<NewKey, String> {
    if !super::lineage::opens_all(&maker.namespaces, &wanted.namespaces) {
        let own = maker.namespaces.join(", ");
        return Err(format!(
            "namespaces: this credential makes keys for {own} alone"
        ));
    }
    if let Some(end) = maker.ends {
        let left = end.duration_since(whole_seconds(now));
        // Cut to seconds, in which the ends of keys are kept.
        let left = Duration::from_secs(left.unwrap_or_default().as_secs());
        wanted.lifetime = Some(wanted.lifetime.map_or(left, |asked| asked.min(left)));
    }
    wanted.made_by = Some(name_of(maker));
    Ok(wanted)
}

/// The maker's name, which precedes the names of its keys. Names of keys have no colon, so that no key's name can be mistaken for
/// it.
fn name_of(maker: &MakerCredential) -> String {
    let entry = &maker.entry.0;
    match maker.principal.strip_prefix(&**entry) {
        // `oauth:ISSUER#SUBJECT`: a slash in the subject would separate names.
        Some(subject) => {
            let subject = subject.replace('%', "%25").replace('/', "%2F");
            format!("{entry}{subject}")
        }
        None => entry.to_string(),
    }
}
