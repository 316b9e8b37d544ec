//! Reads and replaces the files of the secret store.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

use tooldock_base::data_dir::replace_file;
use tooldock_base::file_lock::belong_to_owner_of;
use tooldock_base::regular_file;

use super::SecretsError;

/// Prefix of the names of temporary files of the secrets. Files that a crash left are removed by the next writer.
pub(super) const UNFINISHED: &str = ".tmp-secrets-";

/// Maximum size of a file of the store, in bytes: the largest document, encrypted and in base64, with its header.
const BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Reads a file of the store; returns `None` if the file does not exist.
pub(super) fn read(path: &Path) -> Result<Option<zeroize::Zeroizing<Vec<u8>>>, SecretsError> {
    read_up_to(path, BYTES_MAX)
}

/// Reads a file of at most `bytes_max` bytes; returns `None` if the file does not exist.
pub(super) fn read_up_to(
    path: &Path,
    bytes_max: u64,
) -> Result<Option<zeroize::Zeroizing<Vec<u8>>>, SecretsError> {
    let told = |source: io::Error| SecretsError::Io {
        doing: "read",
        path: path.to_owned(),
        source,
    };
    // Links are followed: in a store that is mounted read-only, the files may be links.
    let file = match regular_file::open_following(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(told(error)),
    };
    let metadata = file.metadata().map_err(told)?;
    if metadata.len() > bytes_max {
        let most = bytes_max / (1024 * 1024);
        return Err(told(io::Error::other(format!("larger than {most} MiB"))));
    }
    // The text is read into a single allocation: growing it would leave copies of unencrypted secrets in memory.
    let room = usize::try_from(metadata.len()).unwrap_or_default() + 1;
    let mut content = zeroize::Zeroizing::new(Vec::with_capacity(room));
    file.take(bytes_max)
        .read_to_end(&mut content)
        .map_err(told)?;
    Ok(Some(content))
}

/// Replaces a file atomically. Its permissions are `mode`, regardless of the umask. If root writes the file, it is given to the
/// directory's owner, because the gateway must be able to read it.
pub(super) fn replace(
    path: &Path,
    content: &[u8],
    mode: u32,
    unfinished: &str,
) -> Result<(), SecretsError> {
    let owner = |file: &File| -> io::Result<()> {
        let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        belong_to_owner_of(file, directory)
    };
    replace_file(path, content, mode, unfinished, owner).map_err(|source| SecretsError::Io {
        doing: "write",
        path: path.to_owned(),
        source,
    })
}

/// Removes temporary files with the prefix `unfinished` that a killed writer left. The caller must hold the lock.
pub(super) fn remove_unfinished(directory: &Path, unfinished: &str) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(unfinished) {
            let _ = fs::remove_file(entry.path());
        }
    }
}
