//! The key of the secret store: a text that the operator sets, and the encryption keys derived from it.
//!
//! Deriving a key takes a quarter of a second on purpose. A process derives each key only once per salt. Since the salt of the
//! file changes only with the key, a gateway derives it at its first read and not at later reloads.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use pbkdf2::{Algorithm, Params, pbkdf2_hmac, pbkdf2_hmac_with_params};
use sha2::Sha256;
use tooldock_base::secret::Secret;
use zeroize::Zeroizing;

/// Number of PBKDF2 iterations of files that this version writes (K-01).
pub(super) const ITERATIONS: u32 = Params::RECOMMENDED_ROUNDS;

/// Minimum number of PBKDF2 iterations that a file may specify; a file with fewer is refused.
pub(super) const ITERATIONS_MIN: u32 = 1000;

/// Maximum number of PBKDF2 iterations that a file may specify. So many take seconds, and the file may come from an attacker.
pub(super) const ITERATIONS_MAX: u32 = 10 * ITERATIONS;

/// Maximum number of cached derived keys. The current file needs one; the others belong to former salts.
const DERIVED_MAX: usize = 4;

/// A derived encryption key of 256 bits.
pub(super) type DerivedKey = Zeroizing<[u8; 32]>;

/// The value of `SECRETS_KEY`, and keys derived from it.
pub struct SecretsKey {
    text: Secret,
    derived: Mutex<Vec<CachedKey>>,
    /// Number of PBKDF2 iterations for files that are written.
    pub(super) iterations: u32,
}

struct CachedKey {
    salt: Vec<u8>,
    iterations: u32,
    key: DerivedKey,
}

/// Protection of the values in the file of secrets.
#[derive(Debug)]
pub enum Protection {
    /// Values are encrypted with this key.
    Key(SecretsKey),
    /// Values are stored unencrypted: no key is set, and `ALLOW_INSECURE_SECRETS=1` allows that.
    Insecure,
    /// No key is configured. Only a store without values can be used.
    Unset,
}

impl Protection {
    /// Determines the protection from the operator's settings.
    pub fn new(key: Option<&Secret>, allow_insecure: bool) -> Self {
        match key {
            Some(key) => Self::Key(SecretsKey::new(key.clone())),
            None if allow_insecure => Self::Insecure,
            None => Self::Unset,
        }
    }
}

impl SecretsKey {
    /// Creates a key from the text of `SECRETS_KEY`.
    pub fn new(text: Secret) -> Self {
        Self {
            text,
            derived: Mutex::default(),
            iterations: ITERATIONS,
        }
    }

    /// Creates a key with few PBKDF2 iterations, so that tests are fast.
    #[cfg(test)]
    pub(crate) fn quick(text: &str) -> Self {
        Self {
            iterations: ITERATIONS_MIN,
            ..Self::new(Secret::new(text))
        }
    }

    /// Derives the encryption key for a salt. Slow, unless the derived key is cached.
    pub(super) fn derive(&self, salt: &[u8], iterations: u32) -> DerivedKey {
        // The lock is held while a key is derived, so that concurrent callers wait for it and do not derive the same key.
        let mut derived = self.derived.lock().unwrap_or_else(PoisonError::into_inner);
        let known = derived
            .iter()
            .find(|it| it.salt == salt && it.iterations == iterations);
        if let Some(known) = known {
            return known.key.clone();
        }
        let mut key = DerivedKey::default();
        let text = self.text.expose().as_bytes();
        match iterations {
            // Derives the same key as the general case, but within the crate `pbkdf2`: test builds optimise only that crate.
            ITERATIONS => {
                let algorithm = Algorithm::Pbkdf2Sha256;
                pbkdf2_hmac_with_params(text, salt, algorithm, Params::RECOMMENDED, &mut *key);
            }
            other => pbkdf2_hmac::<Sha256>(text, salt, other, &mut *key),
        }
        if derived.len() >= DERIVED_MAX {
            derived.remove(0);
        }
        derived.push(CachedKey {
            salt: salt.to_vec(),
            iterations,
            key: key.clone(),
        });
        key
    }
}

impl fmt::Debug for SecretsKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretsKey([redacted])")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_derived_once_per_salt_and_few_are_kept() {
        let key = SecretsKey::new(Secret::new("k"));
        let one = key.derive(b"salt", 1000);
        assert_eq!(one, key.derive(b"salt", 1000));
        assert_ne!(one, key.derive(b"salt", 1001));
        for salt in 0..10_u8 {
            key.derive(&[salt], 1000);
        }
        assert_eq!(
            ITERATIONS, 600_000,
            "what is written must not change with a library"
        );
        assert_eq!(key.derived.lock().unwrap().len(), DERIVED_MAX);
        assert!(!format!("{key:?}").contains("\"k\""));
    }
}
