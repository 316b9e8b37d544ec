//! The record of an API key: its owner, its rights, and a salted hash of its text. The text itself is not stored anywhere.
//!
//! The hash is a single SHA-256 over salt and text, since it is computed for every request. A slow hash is needed only for texts
//! that can be guessed; a key consists of 238 random bits.

use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tooldock_base::key_maker::{KeyId, KeyMaker};
use tooldock_base::namespace_scope::NamespaceScope;
use tooldock_base::network::Cidr;

use super::credential::CredentialRecord;
use super::text::KeyKind;

/// Maximum number of entries of each list in a key's record; a longer list is refused as a mistake.
const LIST_MAX: usize = 64;
/// Maximum length of a key's name, in bytes; the same limit applies to every principal's name.
const NAME_BYTES_MAX: usize = 64;
/// Maximum length of the field `made_by`, in bytes, if another key created the key.
const MAKERS_BYTES_MAX: usize = 128;
/// Maximum length of the field `made_by`, in bytes, if a configured entry or an access token created the key. It is larger, since
/// principals of access tokens are long.
const CREDENTIAL_BYTES_MAX: usize = 1024;
/// Maximum length of a pattern or of a scope's name, in bytes.
const PATTERN_BYTES_MAX: usize = 128;
/// Maximum lifetime of a key: ten years. A key that is to be valid longer must be created without an expiry.
const LIFETIME_MAX: Duration = Duration::from_secs(10 * 366 * 24 * 3600);
/// Maximum rate of a key's limit, in uses per second. No machine could reach a higher one.
const RATE_MAX: u32 = 1_000_000;
/// Maximum burst of a key's limit, in uses. No machine could reach a larger one.
const BURST_MAX: u32 = 10_000_000;

/// The record of an API key in the file of keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyRecord {
    /// Public id of the key.
    pub id: KeyId,
    /// Name of the key's owner. Several keys may have the same name, so that a key can be replaced by another.
    pub name: String,
    /// Name of the key's creator, which precedes the key's own name in its principal; `None` if the operator created the key. So
    /// a creator cannot obtain the rights of another principal by giving that principal's name to a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_by: Option<String>,
    /// Id of the key that created this key; this key becomes invalid when that key does. `None` if the creator is not a key, and
    /// for keys created before this field existed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maker: Option<KeyId>,
    /// Creator of the key, if the creator is a configured entry or an access token and not a key. The key becomes invalid if the
    /// creator's entry is removed from the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<CredentialRecord>,
    /// Scopes of the key. It may call the tools that any of them allows.
    pub scopes: Vec<String>,
    /// Namespaces that the key may access, as names and glob patterns.
    pub namespaces: Vec<String>,
    /// Networks from which the key may be used; an empty list means all networks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<Cidr>,
    /// Rate limits of the key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<KeyLimit>,
    /// Time when the key was created.
    #[serde(with = "humantime_serde")]
    pub created: SystemTime,
    /// Time from which the key is no longer valid; `None` if it does not expire.
    #[serde(
        default,
        with = "humantime_serde",
        skip_serializing_if = "Option::is_none"
    )]
    pub expires: Option<SystemTime>,
    /// Time when the key was revoked; `None` if it was not.
    #[serde(
        default,
        with = "humantime_serde",
        skip_serializing_if = "Option::is_none"
    )]
    pub revoked: Option<SystemTime>,
    /// Time of the key's last use, accurate to about an hour.
    #[serde(
        default,
        with = "humantime_serde",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_used: Option<SystemTime>,
    /// Salt that is hashed together with the key's text.
    pub(super) salt: Bytes<16>,
    /// SHA-256 hash of the salt and the key's text.
    pub(super) hash: Bytes<32>,
}

/// A rate limit of one key. Written as `RATE`, `RATE/BURST`, or one of these with `:tool_call`; `RATE` is per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeyLimit {
    /// Allowed number of uses per second on average.
    pub rate: NonZeroU32,
    /// Maximum number of uses in a short burst.
    pub burst: NonZeroU32,
    /// Kind of use that the limit counts: requests or calls of tools.
    pub unit: KeyLimitUnit,
}

/// Kind of use that a key's limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeyLimitUnit {
    /// The limit counts HTTP requests.
    Request,
    /// The limit counts calls of tools.
    ToolCall,
}

/// Properties requested for a new key.
#[derive(Debug, Clone)]
pub struct NewKey {
    /// Name of the key's owner, see [`KeyRecord::name`].
    pub name: String,
    /// Name of the key's creator, see [`KeyRecord::made_by`].
    pub made_by: Option<String>,
    /// Scopes of the key, see [`KeyRecord::scopes`].
    pub scopes: Vec<String>,
    /// Namespaces that the key may access, see [`KeyRecord::namespaces`].
    pub namespaces: Vec<String>,
    /// Networks from which the key may be used, see [`KeyRecord::networks`].
    pub networks: Vec<Cidr>,
    /// Rate limits of the key, see [`KeyRecord::limits`].
    pub limits: Vec<KeyLimit>,
    /// Lifetime of the key; `None` if it is valid until it is revoked.
    pub lifetime: Option<Duration>,
    /// Kind of the key, which determines the prefix of its text.
    pub kind: KeyKind,
}

impl NewKey {
    /// Checks the values that parsing does not check. The caller must check that the scopes exist.
    ///
    /// # Errors
    ///
    /// Names the field, and the problem with it.
    pub fn check(&self) -> Result<(), String> {
        check_name(&self.name)?;
        let makers = self.made_by.as_deref().unwrap_or_default();
        let most = match makers.contains(':') {
            true => CREDENTIAL_BYTES_MAX,
            false => MAKERS_BYTES_MAX,
        };
        if makers.len() > most {
            return Err("name: keys that keys have made make no further ones so deep".into());
        }
        if self.scopes.is_empty() {
            return Err("scopes: name at least one, as read, write or admin".into());
        }
        if self.namespaces.is_empty() {
            return Err("namespaces: name at least one, or * for all".into());
        }
        let lists = [
            ("scopes", self.scopes.len()),
            ("namespaces", self.namespaces.len()),
            ("networks", self.networks.len()),
            ("limits", self.limits.len()),
        ];
        if let Some((list, length)) = lists.iter().find(|(_, length)| *length > LIST_MAX) {
            return Err(format!("{list}: {length} are more than {LIST_MAX}"));
        }
        let mut texts = self.scopes.iter().chain(&self.namespaces);
        if let Some(long) = texts.find(|it| it.is_empty() || it.len() > PATTERN_BYTES_MAX) {
            let shown: String = long.chars().take(20).collect();
            return Err(format!(
                "{shown:?}: names and patterns have 1 to {PATTERN_BYTES_MAX} bytes"
            ));
        }
        NamespaceScope::new(&self.namespaces).map_err(|error| format!("namespaces: {error}"))?;
        match self.lifetime {
            Some(Duration::ZERO) => Err("expires: the key would never count".into()),
            Some(lifetime) if lifetime > LIFETIME_MAX => {
                Err("expires: at most 10 years; leave it out for a key without an end".into())
            }
            _ => Ok(()),
        }
    }
}

/// Checks that a name may be part of a principal's name. The rules are those for names in `admission.tokens`.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    let letter = |it: char| it.is_ascii_alphanumeric() || matches!(it, '-' | '_' | '.' | '@');
    let valid = name.len() <= NAME_BYTES_MAX
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.chars().all(letter);
    valid.then_some(()).ok_or_else(|| {
        format!(
            "name: use 1 to {NAME_BYTES_MAX} letters, digits, '-', '_', '.' and '@', beginning with a letter or digit"
        )
    })
}

impl KeyRecord {
    /// Creates the record of a new key. The key's text is only hashed, not stored.
    pub(super) fn new(
        id: KeyId,
        wanted: NewKey,
        maker: &KeyMaker,
        text: &[u8],
        salt: [u8; 16],
        now: SystemTime,
    ) -> Self {
        let now = whole_seconds(now);
        let (maker, credential) = match maker {
            KeyMaker::Key(id) => (Some(*id), None),
            KeyMaker::Credential(it) => (None, Some(CredentialRecord::of(it, &salt))),
            KeyMaker::Operator | KeyMaker::Barred(_) => (None, None),
        };
        Self {
            id,
            name: wanted.name,
            made_by: wanted.made_by,
            maker,
            credential,
            scopes: wanted.scopes,
            namespaces: wanted.namespaces,
            networks: wanted.networks,
            limits: wanted.limits,
            created: now,
            expires: wanted.lifetime.map(|it| now + it),
            revoked: None,
            last_used: None,
            salt: Bytes(salt),
            hash: Bytes(hash(&salt, text)),
        }
    }

    /// The principal of requests with this key: `key:`, followed by the names of the key's creators and its own name, separated
    /// by slashes. It is unambiguous: names of static tokens contain no colon, so no token looks like a key, and names of keys
    /// contain no slash.
    pub fn principal(&self) -> String {
        format!("key:{}", self.full_name())
    }

    /// The field `made_by` of a key named `name` that this key creates. If the name is that of this key, the new key gets the
    /// same principal, so that it can replace this key.
    pub fn makes(&self, name: &str) -> Option<String> {
        match name == self.name {
            true => self.made_by.clone(),
            false => Some(self.full_name()),
        }
    }

    /// The key's name, preceded by the names of its creators, separated by slashes.
    pub fn full_name(&self) -> String {
        match &self.made_by {
            Some(maker) => format!("{maker}/{}", self.name),
            None => self.name.clone(),
        }
    }

    /// State of the key at the time `now`.
    pub fn state(&self, now: SystemTime) -> KeyState {
        if self.revoked.is_some() {
            return KeyState::Revoked;
        }
        match self.expires {
            Some(end) if end <= now => KeyState::Expired,
            _ => KeyState::Active,
        }
    }

    /// Returns true if the key expired or was revoked longer than `kept` ago, so that its record may be removed.
    pub(super) fn is_history(&self, now: SystemTime, kept: Duration) -> bool {
        let ended = match (self.revoked, self.expires) {
            (Some(revoked), _) => revoked,
            (None, Some(expires)) => expires,
            (None, None) => return false,
        };
        now.duration_since(ended).is_ok_and(|since| since > kept)
    }
}

/// State of an API key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KeyState {
    /// The key is valid.
    Active,
    /// The key's lifetime is over.
    Expired,
    /// The key was revoked.
    Revoked,
}

impl KeyState {
    /// The state as text, such as `active`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
        }
    }
}

/// Computes the salted hash of a key's text.
pub(super) fn hash(salt: &[u8; 16], text: &[u8]) -> [u8; 32] {
    let mut digest = Sha256::new();
    digest.update(salt);
    digest.update(text);
    digest.finalize().into()
}

/// Cuts a time to whole seconds, as the file stores it.
pub(super) fn whole_seconds(time: SystemTime) -> SystemTime {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    UNIX_EPOCH + Duration::from_secs(since.as_secs())
}

/// The salt or the hash of a key, stored in hexadecimal. It is never printed, although it is useless without the key's text.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct Bytes<const N: usize>(pub(super) [u8; N]);

impl<const N: usize> Bytes<N> {
    /// Returns true if both values are equal. The duration does not depend on the position of a difference.
    pub(super) fn matches(&self, other: &[u8; N]) -> bool {
        self.0.as_slice().ct_eq(other.as_slice()).into()
    }
}

impl<const N: usize> TryFrom<String> for Bytes<N> {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let wrong = || format!("{} hexadecimal digits are needed", 2 * N);
        let (pairs, []) = text.as_bytes().as_chunks::<2>() else {
            return Err(wrong());
        };
        let digit = |byte: u8| char::from(byte).to_digit(16).map(|it| it as u8);
        let bytes = pairs
            .iter()
            .map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
        let bytes: Option<Vec<u8>> = bytes.collect();
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or_else(wrong)
    }
}

impl<const N: usize> From<Bytes<N>> for String {
    fn from(bytes: Bytes<N>) -> Self {
        tooldock_base::data_dir::hex(&bytes.0)
    }
}

impl<const N: usize> std::fmt::Debug for Bytes<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[redacted]")
    }
}

impl FromStr for KeyLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || {
            format!(
                "{text:?} is no limit: write RATE, RATE/BURST, or one of these and :tool_call, as 10/20 or 5/5:tool_call; \
                 rates go to {RATE_MAX} per second, bursts to {BURST_MAX}"
            )
        };
        let (numbers, unit) = match text.split_once(':') {
            None => (text, KeyLimitUnit::Request),
            Some((numbers, "request")) => (numbers, KeyLimitUnit::Request),
            Some((numbers, "tool_call")) => (numbers, KeyLimitUnit::ToolCall),
            Some(_) => return Err(wrong()),
        };
        let (rate, burst) = numbers.split_once('/').unwrap_or((numbers, numbers));
        let number = |text: &str, most: u32| {
            let number = text.parse::<NonZeroU32>().ok();
            number.filter(|it| it.get() <= most).ok_or_else(wrong)
        };
        Ok(Self {
            rate: number(rate, RATE_MAX)?,
            burst: number(burst, BURST_MAX)?,
            unit,
        })
    }
}

impl std::fmt::Display for KeyLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.rate, self.burst)?;
        match self.unit {
            KeyLimitUnit::Request => Ok(()),
            KeyLimitUnit::ToolCall => f.write_str(":tool_call"),
        }
    }
}

impl TryFrom<String> for KeyLimit {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<KeyLimit> for String {
    fn from(limit: KeyLimit) -> Self {
        limit.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_written_as_they_are_read() {
        for (text, written) in [
            ("10", "10/10"),
            ("10/20", "10/20"),
            ("5/6:tool_call", "5/6:tool_call"),
            ("5:request", "5/5"),
        ] {
            assert_eq!(text.parse::<KeyLimit>().unwrap().to_string(), written);
        }
        for wrong in [
            "",
            "0",
            "1/0",
            "1/2/3",
            "x",
            "1:calls",
            "-1",
            "2000000",
            "1/99999999",
        ] {
            assert!(wrong.parse::<KeyLimit>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_key_that_could_not_be_used_as_it_is_meant_is_refused() {
        let good = || NewKey {
            name: "ci".into(),
            made_by: None,
            scopes: vec!["read".into()],
            namespaces: vec!["*".into()],
            networks: Vec::new(),
            limits: Vec::new(),
            lifetime: None,
            kind: KeyKind::Gateway,
        };
        assert_eq!(good().check(), Ok(()));
        let refused = |change: fn(&mut NewKey)| {
            let mut key = good();
            change(&mut key);
            key.check().expect_err("refused")
        };
        assert!(refused(|key| key.name = "key:ci".into()).starts_with("name: "));
        assert!(refused(|key| key.name = "x".repeat(65)).starts_with("name: "));
        assert!(refused(|key| key.made_by = Some("x".repeat(129))).starts_with("name: "));
        assert!(refused(|key| key.scopes.clear()).starts_with("scopes: "));
        assert!(refused(|key| key.namespaces.clear()).starts_with("namespaces: "));
        assert!(refused(|key| key.namespaces = vec!["[".into()]).starts_with("namespaces: "));
        assert!(refused(|key| key.scopes = vec!["x".into(); 65]).starts_with("scopes: 65"));
        assert!(refused(|key| key.lifetime = Some(Duration::ZERO)).starts_with("expires: "));
        assert!(refused(|key| key.lifetime = Some(Duration::MAX)).starts_with("expires: "));
    }

    #[test]
    fn a_key_that_a_key_makes_is_a_principal_of_its_own_unless_it_has_its_makers_name() {
        let made = |name: &str, made_by: Option<String>| KeyRecord {
            name: name.into(),
            made_by,
            maker: None,
            credential: None,
            id: "000000000000".parse().expect("an id"),
            scopes: Vec::new(),
            namespaces: Vec::new(),
            networks: Vec::new(),
            limits: Vec::new(),
            created: UNIX_EPOCH,
            expires: None,
            revoked: None,
            last_used: None,
            salt: Bytes([0; 16]),
            hash: Bytes([0; 32]),
        };
        let droid = made("droid", None);
        let boss = made("boss", droid.makes("boss"));
        let deeper = made("x", boss.makes("x"));
        let again = made("boss", boss.makes("boss"));
        let names = [&droid, &boss, &deeper, &again].map(KeyRecord::principal);
        let expected = [
            "key:droid",
            "key:droid/boss",
            "key:droid/boss/x",
            "key:droid/boss",
        ];
        assert_eq!(names, expected);
        assert_eq!(made("droid", droid.makes("droid")).principal(), "key:droid");
    }
}
