//! A hasher for keys that are hashes already and need no further hashing.

use std::hash::{BuildHasherDefault, Hasher};

/// Creates [`Fingerprint`] hashers for a `HashMap` whose keys are hashes already.
pub(crate) type Fingerprints = BuildHasherDefault<Fingerprint>;

/// Hasher that returns the `u64` written to it unchanged, for keys that are hashes already.
#[derive(Debug, Default)]
pub(crate) struct Fingerprint(u64);

impl Hasher for Fingerprint {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, fingerprint: u64) {
        self.0 = fingerprint;
    }
}
