//! Reading and replacing the store's files.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

use super::SecretsError;
use crate::data_dir::replace_file;
use crate::file_lock::belong_to_owner_of;
use crate::regular_file;

/// What the names of unfinished files of the secrets begin with. What a crash leaves is removed by the next writer.
pub(super) const UNFINISHED: &str = ".tmp-secrets-";

/// The largest file: a document of the largest size, encrypted and in base64, with room for a header.
const BYTES_MAX: u64 = 4 * 1024 * 1024;

/// A file's content; `None` if there is no such file.
pub(super) fn read(path: &Path) -> Result<Option<zeroize::Zeroizing<Vec<u8>>>, SecretsError> {
    read_up_to(path, BYTES_MAX)
}

/// The same of a file that may have so many bytes.
pub(super) fn read_up_to(
    path: &Path,
    bytes_max: u64,
) -> Result<Option<zeroize::Zeroizing<Vec<u8>>>, SecretsError> {
    let told = |source: io::Error| SecretsError::Io {
        doing: "read",
        path: path.to_owned(),
        source,
    };
    // A read-only store may be mounted as links.
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
    // One allocation, so that nothing is left behind where the text is not encrypted.
    let room = usize::try_from(metadata.len()).unwrap_or_default() + 1;
    let mut content = zeroize::Zeroizing::new(Vec::with_capacity(room));
    file.take(bytes_max)
        .read_to_end(&mut content)
        .map_err(told)?;
    Ok(Some(content))
}

/// Replaces a file in one step. `mode` does not depend on the umask. What root writes belongs to the directory's owner:
/// the gateway must be able to read it.
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

/// Removes what a writer that was killed left under such a name. Only the one who holds the lock may ask for it.
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
