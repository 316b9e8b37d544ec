//! Makers of keys that are not keys themselves: entries of the configuration and access tokens, and the check that they still
//! cover the keys that they created.
//!
//! A key of such a maker opens no more than the maker and is valid only while the configuration has the maker's entry, with the
//! key's namespaces among its own. The record contains a salted hash of the entry: an entry of that name with another token is
//! another maker.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tooldock_base::key_maker::{EntryHash, EntryName, MakerCredential};

use super::record::{Bytes, KeyRecord, NewKey, hash, whole_seconds};

/// The entries of a configuration whose credentials make keys.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct KeyMakers(HashMap<EntryName, Vec<MakerEntry>>);

#[derive(Debug, PartialEq, Eq)]
struct MakerEntry {
    fingerprint: EntryHash,
    /// Namespaces that the entry's credentials open; `None` if each credential names its namespaces.
    namespaces: Option<Arc<[String]>>,
}

impl KeyMakers {
    /// Adds an entry. `namespaces` is `None` if each credential of the entry names its namespaces.
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

    /// Returns true if an entry covers a key that a credential created.
    fn stands_behind(&self, key: &KeyRecord, credential: &CredentialRecord) -> bool {
        let entries = self.0.get(&credential.entry).into_iter().flatten();
        let mut same = entries.filter(|entry| {
            let proof = hash(&key.salt.0, entry.fingerprint.bytes());
            credential.proof.matches(&proof)
        });
        same.any(|entry| {
            let own = entry.namespaces.as_ref();
            own.is_none_or(|own| super::lineage::opens_all(own, &key.namespaces))
        })
    }

    /// Marks the keys as revoked whose makers' entries were removed or no longer cover them.
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
            proof: Bytes(hash(salt, credential.fingerprint.bytes())),
        }
    }
}

/// Restricts the requested key to the rights of the credential that creates it.
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
    let entry = maker.entry.as_str();
    match maker.principal.strip_prefix(entry) {
        // `oauth:ISSUER#SUBJECT`: a slash in the subject would separate names.
        Some(subject) => {
            let subject = subject.replace('%', "%25").replace('/', "%2F");
            format!("{entry}{subject}")
        }
        None => entry.to_string(),
    }
}
