//! Creators of API keys that do not use an API key themselves: entries of the configuration, and access tokens. Checks that
//! their entries still cover the keys that they created.
//!
//! A key created by an entry has no more rights than the entry. It is valid only while the configuration contains the entry, and
//! while the entry's namespaces include the key's. The key's record contains a salted hash of the entry, so an entry of the same
//! name with another token does not count as its creator.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tooldock_base::key_maker::{EntryHash, EntryName, MakerCredential};

use super::record::{Bytes, KeyRecord, NewKey, hash, whole_seconds};

/// The entries of a configuration whose credentials may create keys.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct KeyMakers(HashMap<EntryName, Vec<MakerEntry>>);

#[derive(Debug, PartialEq, Eq)]
struct MakerEntry {
    fingerprint: EntryHash,
    /// Namespaces that the entry's credentials may access; `None` if each credential lists its own.
    namespaces: Option<Arc<[String]>>,
}

impl KeyMakers {
    /// Adds an entry of the configuration. `namespaces` is `None` if each credential of the entry lists its own namespaces.
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

    /// Returns true if the configuration contains the entry that created a key, and the entry still covers the key.
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

    /// Marks keys as revoked if the entry that created them was removed or no longer covers them.
    ///
    /// Returns true if any key was marked.
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

/// The creator of a key in the key's record, if the creator is not a key itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CredentialRecord {
    /// The principal that created the key.
    pub principal: String,
    /// The entry of the configuration that created the key; the key becomes invalid if the entry is removed.
    pub(super) entry: EntryName,
    /// Hash over the key's salt and the configuration entry, by which a changed entry is detected.
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
/// Names the field of the request that exceeds the rights of the credential.
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
        // The lifetime is cut to whole seconds, because the expiry of keys is stored in seconds.
        let left = Duration::from_secs(left.unwrap_or_default().as_secs());
        wanted.lifetime = Some(wanted.lifetime.map_or(left, |asked| asked.min(left)));
    }
    wanted.made_by = Some(name_of(maker));
    Ok(wanted)
}

/// The creator's name, which precedes the names of its keys. It contains a colon, and names of keys do not, so it cannot be
/// mistaken for the name of a key.
fn name_of(maker: &MakerCredential) -> String {
    let entry = maker.entry.as_str();
    match maker.principal.strip_prefix(entry) {
        // In `oauth:ISSUER#SUBJECT`, a slash in the subject would separate names, so it is percent-encoded.
        Some(subject) => {
            let subject = subject.replace('%', "%25").replace('/', "%2F");
            format!("{entry}{subject}")
        }
        None => entry.to_string(),
    }
}
