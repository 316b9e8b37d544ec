//! The public keys of an issuer, parsed from its JWKS document. A token's header selects the key.
//!
//! A key is used only for signatures, only for the algorithm for which it is published, and only with an algorithm of its own
//! kind. So a token cannot choose the kind of key that verifies it.

use std::fmt;

use jsonwebtoken::DecodingKey;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::algorithm::{Algorithm, KeyKind};

/// Maximum number of keys in an issuer's document; larger documents are refused. No real issuer publishes as many.
const KEYS_MAX: usize = 100;

/// Maximum number of keys that are tried for a token whose header names no key.
const TRIES_MAX: usize = 8;

/// Public keys of an issuer, with which signatures of tokens are verified.
pub struct KeySet {
    keys: Vec<IssuerKey>,
    /// Digest of the document that the keys were parsed from. Used to detect an unchanged document.
    digest: [u8; 32],
}

struct IssuerKey {
    id: Option<String>,
    kind: KeyKind,
    /// Name of the only algorithm that the key may be used with; `None` if the document names none.
    algorithm: Option<String>,
    public: DecodingKey,
    /// Digest of the key's JSON object. Used to compare key sets.
    digest: [u8; 32],
}

/// The reason why a document is not accepted as a key set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKeys {
    /// The document is not a JWKS (a JSON object with a list `keys`).
    #[error("it is no JWKS: a JSON object with the list `keys` is expected")]
    NotJwks,
    /// The document contains more than 100 keys.
    #[error("it has more than {KEYS_MAX} keys")]
    TooMany,
    /// The document contains no key that can verify signatures of tokens.
    #[error(
        "none of its keys can sign tokens: an RSA, P-256, P-384 or Ed25519 key for signatures is needed"
    )]
    NoneUsable,
}

impl KeySet {
    /// Parses a JWKS document. Keys that cannot verify signatures of tokens are skipped, such as keys for encryption or of
    /// unknown types.
    ///
    /// # Errors
    ///
    /// [`InvalidKeys`] if the document is malformed or too large, or if no key remains.
    pub fn parse(document: &[u8]) -> Result<Self, InvalidKeys> {
        #[derive(Deserialize)]
        struct Jwks {
            keys: Vec<Value>,
        }
        let Jwks { keys } = serde_json::from_slice(document).map_err(|_| InvalidKeys::NotJwks)?;
        if keys.len() > KEYS_MAX {
            return Err(InvalidKeys::TooMany);
        }
        let keys: Vec<_> = keys.into_iter().filter_map(IssuerKey::of).collect();
        if keys.is_empty() {
            return Err(InvalidKeys::NoneUsable);
        }
        Ok(Self {
            keys,
            digest: Sha256::digest(document).into(),
        })
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns true if the set contains no keys. Always false, since [`KeySet::parse`] refuses such sets.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns true if the other set contains a key that is missing in this set.
    pub(super) fn lacks_some_of(&self, other: &Self) -> bool {
        let is_here = |key: &IssuerKey| self.keys.iter().any(|it| it.digest == key.digest);
        !other.keys.iter().all(is_here)
    }

    /// Returns true if both sets were parsed from identical documents.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.digest == other.digest
    }

    /// The keys that may have signed a token: all with the token's key id, or, if it has none, all that match its algorithm.
    pub(super) fn candidates<'a>(
        &'a self,
        id: Option<&'a str>,
        algorithm: Algorithm,
    ) -> impl Iterator<Item = &'a DecodingKey> {
        let fits = move |key: &&IssuerKey| {
            let named = id.is_none_or(|id| key.id.as_deref() == Some(id));
            let published = key.algorithm.as_deref();
            named
                && key.kind == algorithm.key_kind()
                && published.is_none_or(|it| Algorithm::of_name(it) == Some(algorithm))
        };
        let found = self.keys.iter().filter(fits).take(TRIES_MAX);
        found.map(|key| &key.public)
    }

    /// Returns true if the set contains a key with this id.
    pub(super) fn knows(&self, id: &str) -> bool {
        self.keys.iter().any(|key| key.id.as_deref() == Some(id))
    }
}

impl IssuerKey {
    /// Parses a key of a JWKS document. Returns `None` for a key that cannot verify tokens.
    fn of(value: Value) -> Option<Self> {
        let algorithm = value.get("alg").and_then(Value::as_str).map(str::to_owned);
        let digest = Sha256::digest(value.to_string()).into();
        let key: Jwk = serde_json::from_value(value).ok()?;
        let kind = match &key.algorithm {
            AlgorithmParameters::RSA(_) => KeyKind::Rsa,
            AlgorithmParameters::EllipticCurve(it) => match it.curve {
                EllipticCurve::P256 => KeyKind::P256,
                EllipticCurve::P384 => KeyKind::P384,
                _ => return None,
            },
            AlgorithmParameters::OctetKeyPair(it) if it.curve == EllipticCurve::Ed25519 => {
                KeyKind::Ed25519
            }
            _ => return None,
        };
        let signs = key.common.public_key_use.as_ref();
        let signs = signs.is_none_or(|it| *it == PublicKeyUse::Signature);
        let verifies = key.common.key_operations.as_ref();
        let verifies = verifies.is_none_or(|it| it.contains(&KeyOperations::Verify));
        (signs && verifies).then_some(())?;
        Some(Self {
            id: key.common.key_id.clone(),
            kind,
            algorithm,
            public: DecodingKey::from_jwk(&key).ok()?,
            digest,
        })
    }
}

impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids = self.keys.iter().map(|key| &key.id);
        f.debug_list().entries(ids).finish()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(keys: Value) -> Result<KeySet, InvalidKeys> {
        KeySet::parse(json!({ "keys": keys }).to_string().as_bytes())
    }

    fn ed(id: &str, more: Value) -> Value {
        let mut key = json!({ "kty": "OKP", "crv": "Ed25519", "kid": id, "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo" });
        let members = key.as_object_mut().unwrap();
        members.extend(more.as_object().unwrap().clone());
        key
    }

    #[test]
    fn keys_for_other_purposes_and_of_other_kinds_are_left_out() {
        let keys = json!([
            ed("signs", json!({ "use": "sig", "alg": "EdDSA" })),
            ed("encrypts", json!({ "use": "enc" })),
            ed("derives", json!({ "key_ops": ["deriveKey"] })),
            { "kty": "oct", "kid": "shared", "k": "c2VjcmV0" },
            { "kty": "new", "kid": "new" },
            7,
        ]);
        let set = set(keys).unwrap();
        assert_eq!(set.len(), 1);
        assert!(set.knows("signs") && !set.knows("shared"));
        assert_eq!(set.candidates(Some("signs"), Algorithm::EdDsa).count(), 1);
        assert_eq!(set.candidates(None, Algorithm::EdDsa).count(), 1);
        assert_eq!(set.candidates(Some("signs"), Algorithm::Rs256).count(), 0);
    }

    #[test]
    fn a_set_says_whether_it_lacks_a_key_of_another() {
        let of = |keys: Value| set(keys).unwrap();
        let (a, b) = (ed("a", json!({})), ed("b", json!({})));
        let both = of(json!([a, b]));
        assert!(of(json!([a])).lacks_some_of(&both));
        assert!(!both.lacks_some_of(&of(json!([b]))));
        assert!(!of(json!([b, a])).lacks_some_of(&both));
        let replaced = ed("a", json!({ "alg": "EdDSA" }));
        assert!(of(json!([replaced, b])).lacks_some_of(&both));
    }

    #[test]
    fn a_key_that_is_published_for_another_algorithm_is_no_candidate() {
        let set = set(json!([ed("a", json!({ "alg": "ES256" }))])).unwrap();
        assert_eq!(set.candidates(Some("a"), Algorithm::EdDsa).count(), 0);
    }

    #[test]
    fn what_is_no_set_of_keys_is_refused() {
        assert_eq!(KeySet::parse(b"<html>").unwrap_err(), InvalidKeys::NotJwks);
        assert_eq!(set(json!([])).unwrap_err(), InvalidKeys::NoneUsable);
        let many: Vec<_> = (0..=KEYS_MAX)
            .map(|it| ed(&it.to_string(), json!({})))
            .collect();
        assert_eq!(set(json!(many)).unwrap_err(), InvalidKeys::TooMany);
    }
}
