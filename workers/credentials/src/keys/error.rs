//! Errors of reading or changing keys. Each names the file and the remedy; none shows a key.

use std::io;
use std::path::PathBuf;

use tooldock_base::file_lock::LockError;
use tooldock_base::key_maker::KeyId;

/// Reason why the store cannot carry out a request. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// Another process holds the lock, or the lock cannot be taken.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The file is not in the format of the store.
    #[error("{}: is damaged: {reason}; restore a backup of the file", path.display())]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Description of the damage.
        reason: String,
    },
    /// A newer version of tooldock wrote the file.
    #[error("{}: has format version {found}, and this version of tooldock reads 1; upgrade tooldock, or restore a backup", path.display())]
    Newer {
        /// Path of the file.
        path: PathBuf,
        /// The file's format version.
        found: u64,
    },
    /// The operating system returned an error.
    #[error("{}: cannot {doing}: {source}", path.display())]
    Io {
        /// The attempted action.
        doing: &'static str,
        /// The path that the action was tried on.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The system has no random bytes.
    #[error("no randomness for a key: {0}")]
    NoRandomness(#[from] getrandom::Error),
    /// A field of the new key is not valid.
    #[error("{0}")]
    Invalid(String),
    /// There is no such key.
    #[error("there is no key with the id {0}; `tooldock keys list` shows those there are")]
    NoSuchKey(KeyId),
    /// The store would have more keys than its maximum.
    #[error(
        "there are {0} keys, the maximum; revoked and expired ones leave the file after 90 days"
    )]
    TooMany(usize),
}
