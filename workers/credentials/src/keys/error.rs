//! Errors of reading or changing API keys. Their messages name the file and the remedy; none contains a key.

use std::io;
use std::path::PathBuf;

use tooldock_base::file_lock::LockError;
use tooldock_base::key_maker::KeyId;

/// Reason why an operation on the store of API keys failed. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// Another process holds the lock, or the lock cannot be acquired.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The file of keys does not have the format of the store.
    #[error("{}: is damaged: {reason}; restore a backup of the file", path.display())]
    Damaged {
        /// Path of the damaged file.
        path: PathBuf,
        /// Description of the damage.
        reason: String,
    },
    /// A newer version of tooldock wrote the file of keys.
    #[error("{}: has format version {found}, and this version of tooldock reads 1; upgrade tooldock, or restore a backup", path.display())]
    Newer {
        /// Path of the file of the newer version.
        path: PathBuf,
        /// The file's format version.
        found: u64,
    },
    /// The operating system returned an error.
    #[error("{}: cannot {doing}: {source}", path.display())]
    Io {
        /// The attempted action, such as "read".
        doing: &'static str,
        /// Path of the file or folder on which the action was attempted.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The operating system could not provide random bytes.
    #[error("no randomness for a key: {0}")]
    NoRandomness(#[from] getrandom::Error),
    /// A field of the new key is not valid.
    #[error("{0}")]
    Invalid(String),
    /// No key has the given id.
    #[error("there is no key with the id {0}; `tooldock keys list` shows those there are")]
    NoSuchKey(KeyId),
    /// The file already contains the maximum number of keys, which is given.
    #[error(
        "there are {0} keys, the maximum; revoked and expired ones leave the file after 90 days"
    )]
    TooMany(usize),
}
