//! Makers of API keys: the credentials with which new keys are created. The edge passes the maker to the code that creates keys.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Reason that is reported if the edge has passed no maker.
const NO_MAKER: &str = "this caller makes no API keys";

/// The maker of a new API key: the credential of the caller of `token_create`, as the edge has admitted it.
#[derive(Debug, Clone)]
pub enum KeyMaker {
    /// The holder of the gateway's own bearer token. It may create all kinds of keys, and these are stored without a maker.
    Operator,
    /// An API key with which other keys are created.
    Key(KeyId),
    /// A credential that belongs to an entry of the configuration, such as a token, a client certificate or an access token.
    Credential(Arc<MakerCredential>),
    /// A credential that may not create keys. Contains the reason, for the error message.
    Barred(&'static str),
}

impl Default for KeyMaker {
    fn default() -> Self {
        Self::Barred(NO_MAKER)
    }
}

/// A credential that may create keys and is not an API key itself.
#[derive(Debug, PartialEq, Eq)]
pub struct MakerCredential {
    /// The entry of the configuration that has admitted the credential.
    pub entry: EntryName,
    /// The principal of the credential.
    pub principal: Arc<str>,
    /// Hash of the content of the configuration's entry.
    pub fingerprint: EntryHash,
    /// The namespaces that the credential opens, as names and glob patterns.
    pub namespaces: Arc<[String]>,
    /// Time at which the credential expires; `None` if it does not expire.
    pub ends: Option<SystemTime>,
}

/// The kind and the name of an entry in the configuration: `token:NAME`, `certificate:NAME` or `oauth:ISSUER`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EntryName(Box<str>);

impl EntryName {
    /// The entry's kind and name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Creates the name of an entry in `admission.tokens`.
    pub fn token(name: &str) -> Self {
        Self(format!("token:{name}").into())
    }

    /// Creates the name of an entry in `admission.certificates`.
    pub fn certificate(name: &str) -> Self {
        Self(format!("certificate:{name}").into())
    }

    /// Creates the name of an entry in `admission.oauth`.
    pub fn issuer(issuer: &str) -> Self {
        Self(format!("oauth:{issuer}").into())
    }
}

/// SHA-256 hash of an entry in the configuration.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct EntryHash([u8; 32]);

impl EntryHash {
    /// The bytes of the hash.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Computes the hash of an entry from the texts that define it.
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

/// The public id of an API key. It may appear in logs, and the key's record can be found by it directly.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeyId([u8; KeyId::BYTES]);

/// Error for a text that is not the id of an API key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "not the id of a key: it has 12 small letters and digits, as `tooldock keys list` shows it"
)]
pub struct InvalidKeyId;

impl KeyId {
    /// Number of characters in the id of an API key.
    pub const BYTES: usize = 12;
    /// Characters that may occur in the id of an API key. There are no capitals, so that an id is easy to spell.
    pub const ALPHABET: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

    /// The API key's id as text.
    #[inline]
    pub fn as_str(&self) -> &str {
        // The conversion cannot fail, because the id contains only ASCII characters.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// Converts the characters to an id; `None` if they are not one.
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
