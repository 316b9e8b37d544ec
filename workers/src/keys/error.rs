//! Why keys cannot be read or changed. Each error names the file and says what to do; none shows a key.

use std::io;
use std::path::PathBuf;

use super::text::KeyId;
use crate::file_lock::LockError;

/// Why the store cannot do what was asked. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// Somebody else is writing, or the lock cannot be taken.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The file is not what the store writes.
    #[error("{}: is damaged: {reason}; restore a backup of the file", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A newer version wrote it.
    #[error("{}: has format version {found}, and this version of tooldock reads 1; upgrade tooldock, or restore a backup", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u64,
    },
    /// The file system refused.
    #[error("{}: cannot {doing}: {source}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// The path it was tried on.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The system has no random bytes.
    #[error("no randomness for a key: {0}")]
    NoRandomness(#[from] getrandom::Error),
    /// What was wanted of a new key.
    #[error("{0}")]
    Invalid(String),
    /// There is no such key.
    #[error("there is no key with the id {0}; `tooldock keys list` shows those there are")]
    NoSuchKey(KeyId),
    /// More than the store takes.
    #[error(
        "there are {0} keys, the maximum; revoked and expired ones leave the file after 90 days"
    )]
    TooMany(usize),
}
