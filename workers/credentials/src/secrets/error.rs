//! Errors of reading or writing secrets. Their messages name the file and the remedy; none contains a value.

use std::io;
use std::path::PathBuf;

use tooldock_base::file_lock::LockError;

use super::Scope;

/// Reason why an operation on the store of secrets failed. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum SecretsError {
    /// An encrypted file exists, but no key is configured to decrypt it.
    #[error("{}: is encrypted, and SECRETS_KEY is not set; set SECRETS_KEY or SECRETS_KEY_FILE to the key it was written with", .0.display())]
    KeyMissing(PathBuf),
    /// There is neither a key nor the permission to store values unencrypted.
    #[error(
        "SECRETS_KEY is not set; `openssl rand -base64 32` makes a key (ALLOW_INSECURE_SECRETS=1 stores values unencrypted, for local use only)"
    )]
    NoProtection,
    /// The file is not encrypted, although a key is set.
    #[error("{}: is not encrypted, and SECRETS_KEY is set; to encrypt the file, run `tooldock secrets rekey` with ALLOW_INSECURE_SECRETS=1, without SECRETS_KEY, and with the key in SECRETS_KEY_NEW", .0.display())]
    NotEncrypted(PathBuf),
    /// The file is not encrypted, and the operator has not allowed that.
    #[error("{}: is not encrypted, and ALLOW_INSECURE_SECRETS is not set; set it to 1 to use the file as it is, for local use only", .0.display())]
    InsecureNotAllowed(PathBuf),
    /// The file was written with another key, or is damaged: authenticated encryption cannot distinguish the two.
    #[error("{}: cannot be decrypted: SECRETS_KEY is not the key it was written with, or the file is damaged; restore the key or a backup of the file", .0.display())]
    CannotDecrypt(PathBuf),
    /// The file of secrets does not have the format of the store.
    #[error("{}: is damaged: {reason}; restore a backup of the file", path.display())]
    Damaged {
        /// Path of the damaged file.
        path: PathBuf,
        /// Description of the damage.
        reason: String,
    },
    /// A newer version of tooldock wrote the file of secrets.
    #[error("{}: has format version {found}, and this version of tooldock reads 1 and 2; upgrade tooldock, or restore a backup", path.display())]
    Newer {
        /// Path of the file of the newer version.
        path: PathBuf,
        /// The file's format version.
        found: u64,
    },
    /// Another process holds the lock, or the lock cannot be acquired.
    #[error(transparent)]
    Lock(#[from] LockError),
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
    #[error("no randomness for encryption: {0}")]
    NoRandomness(getrandom::Error),
    /// The secret's key is not a valid name of an environment variable.
    #[error(
        "{0:?} is no key: use letters, digits and '_', not beginning with a digit, at most 256 characters"
    )]
    InvalidKey(String),
    /// The secret's key looks like the value of a secret. The message does not repeat it.
    #[error(
        "this key looks like the value of a secret, and nothing was stored; name the environment variable that gets the \
         value, such as GITHUB_TOKEN, and type the value into `tooldock secrets set`. A value that was shown to a model or \
         stands in a log counts no more: revoke it where it was made"
    )]
    ValueAsKey,
    /// The secret's value cannot be the value of an environment variable.
    #[error("the value of {key} {reason}")]
    InvalidValue {
        /// The key of the secret.
        key: String,
        /// Description of the problem, without the value.
        reason: &'static str,
    },
    /// The scope has no secret with this key.
    #[error("there is no secret {key} in scope {scope}; the list of secrets shows what there is")]
    NoSuchSecret {
        /// The key of the secret.
        key: String,
        /// The scope in which the secret was looked up.
        scope: Scope,
    },
    /// All secrets together would be larger than the maximum, given in bytes.
    #[error("the secrets are larger than {} KiB in all", .0 / 1024)]
    TooLarge(u64),
    /// The text that a person edited is not a valid document of secrets.
    #[error("{0}")]
    InvalidDocument(String),
}
