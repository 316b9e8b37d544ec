//! Makers of API keys: keys, entries of the configuration and access tokens, as the edge names them to the code that makes keys.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Reason for callers that the edge gave no maker.
const NO_MAKER: &str = "this caller makes no API keys";

/// The maker of a new API key: the credential with which `token_create` was called, as admitted at the edge.
#[derive(Debug, Clone)]
pub enum KeyMaker {
    /// The holder of the gateway's own bearer token, who may create keys of any kind. Such keys have no maker.
    Operator,
    /// An API key.
    Key(KeyId),
    /// An entry of the configuration, or an access token.
    Credential(Arc<MakerCredential>),
    /// A credential that may not create keys. The text is the reason, for the error message.
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
    /// Kind and name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

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
    /// The bytes of the hash.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The hash of an entry, over the texts that define it.
    pub fn of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Self(hash.finalize().into())
    }
}

impl fmt::Debug for EntryHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

/// A key's public name: it may appear in logs, and leads to the key's record in one step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeyId([u8; KeyId::BYTES]);

/// Error of a text that is not a key's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "not the id of a key: it has 12 small letters and digits, as `tooldock keys list` shows it"
)]
pub struct InvalidKeyId;

impl KeyId {
    /// Number of characters.
    pub const BYTES: usize = 12;
    /// Characters of an id: without capitals, so that it is easy to spell.
    pub const ALPHABET: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

    /// The id as text.
    #[inline]
    pub fn as_str(&self) -> &str {
        // The id contains only characters of the alphabet.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The id of these characters; `None` if they are not an id.
    #[inline]
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let id: [u8; Self::BYTES] = bytes.try_into().ok()?;
        id.iter()
            .all(|byte| Self::ALPHABET.contains(byte))
            .then_some(Self(id))
    }
}

impl FromStr for KeyId {
    type Err = InvalidKeyId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::of(text.as_bytes()).ok_or(InvalidKeyId)
    }
}

impl TryFrom<String> for KeyId {
    type Error = InvalidKeyId;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<KeyId> for String {
    fn from(id: KeyId) -> Self {
        id.as_str().to_owned()
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
