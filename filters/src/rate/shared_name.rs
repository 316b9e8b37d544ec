//! Names of a limit that replicas share, and of its budgets.

use std::hash::{Hash, Hasher};

use sha2::{Digest, Sha256};

/// Name of a limit that all replicas derive in the same way; the names of the limit's budgets are derived from it. Names are
/// digests that reveal no principals, keys or addresses. They are equal in processes of the same build; another build may
/// derive other names, and then shares no budgets with this one.
#[derive(Debug, Clone)]
pub(crate) struct SharedName(Sha256);

impl SharedName {
    /// Derives the name of the limit from its description.
    pub(crate) fn new(words: &str) -> Self {
        Self(Sha256::new_with_prefix(words).chain_update([0]))
    }

    /// Derives the name of the budget of a key.
    pub(crate) fn of(&self, key: &impl Hash) -> [u8; 16] {
        let mut digest = Feeding(self.0.clone());
        key.hash(&mut digest);
        let digest: [u8; 32] = digest.0.finalize().into();
        *digest.first_chunk().expect("16 of 32 bytes")
    }
}

/// Hasher that feeds its input into a digest.
struct Feeding(Sha256);

impl Hasher for Feeding {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Unused: the digest is read from the field.
    fn finish(&self) -> u64 {
        0
    }
}
