//! Names by which replicas identify a shared rate limit and its budgets.

use std::hash::{Hash, Hasher};

use sha2::{Digest, Sha256};

/// Name of a shared rate limit, from which the names of its budgets are derived. All replicas derive the same names. Names are
/// digests, so they reveal no principals, keys or addresses. Another build of the gateway may derive other names; then it shares
/// no budgets with this one.
#[derive(Debug, Clone)]
pub(crate) struct SharedName(Sha256);

impl SharedName {
    /// Derives the name of a limit from a text that describes the limit.
    pub(crate) fn new(words: &str) -> Self {
        Self(Sha256::new_with_prefix(words).chain_update([0]))
    }

    /// Derives the name of a key's budget.
    pub(crate) fn of(&self, key: &impl Hash) -> [u8; 16] {
        let mut digest = Feeding(self.0.clone());
        key.hash(&mut digest);
        let digest: [u8; 32] = digest.0.finalize().into();
        *digest.first_chunk().expect("16 of 32 bytes")
    }
}

/// Hasher that writes the hashed bytes into a SHA-256 digest.
struct Feeding(Sha256);

impl Hasher for Feeding {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Never used; `Hasher` requires it. The digest is read from the field instead.
    fn finish(&self) -> u64 {
        0
    }
}
