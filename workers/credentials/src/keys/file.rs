//! Reads and replaces the file of API keys, `keys.json`, always as a whole.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tooldock_base::data_dir::replace_file;
use tooldock_base::file_lock::belong_to_owner_of;
use tooldock_base::regular_file;

use super::error::KeysError;
use super::lineage;
use super::record::KeyRecord;

/// Prefix of the names of temporary files. Files that a crash left are removed by the next writer.
const UNFINISHED: &str = ".tmp-keys-";

const VERSION: u64 = 1;

/// Maximum size of the file of keys, in bytes: enough for the maximum number of keys with long lists.
const BYTES_MAX: u64 = 512 * 1024 * 1024;

/// Metadata that distinguish the versions of the file of keys without reading it. Every change replaces the file by a rename, so
/// at least the inode or the time differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
    /// Time of the last change of the file's metadata, in seconds and nanoseconds. A change of permissions counts, too: a file
    /// that could not be read may be readable now.
    changed: (i64, i64),
}

impl Stamp {
    /// Reads the stamp of the current file; `None` if there is no file or its metadata cannot be read.
    pub(super) fn of(path: &Path) -> Option<Self> {
        fs::metadata(path).ok().map(|it| Self::from(&it))
    }

    /// Returns true if the file has at most `bytes` bytes, according to its metadata.
    pub(super) fn is_within(&self, bytes: u64) -> bool {
        self.length <= bytes
    }
}

impl From<&fs::Metadata> for Stamp {
    fn from(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            length: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFileContent {
    version: u64,
    keys: Vec<KeyRecord>,
}

#[derive(Serialize)]
struct Storing<'a> {
    version: u64,
    keys: &'a [KeyRecord],
}

/// Reads the keys of the file and the file's stamp. A key is marked as invalid if the key that created it is invalid. If there
/// is no file, returns no keys and no stamp.
pub(super) fn read(path: &Path) -> Result<(Vec<KeyRecord>, Option<Stamp>), KeysError> {
    let told = |source: io::Error| KeysError::Io {
        doing: "read",
        path: path.to_owned(),
        source,
    };
    let file = match regular_file::open_following(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), None)),
        Err(error) => return Err(told(error)),
    };
    let metadata = file.metadata().map_err(told)?;
    if metadata.len() > BYTES_MAX {
        return Err(told(io::Error::other("larger than 512 MiB")));
    }
    let mut text = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or_default() + 1);
    file.take(BYTES_MAX).read_to_end(&mut text).map_err(told)?;
    Ok((parse(path, &text)?, Some(Stamp::from(&metadata))))
}

fn parse(path: &Path, text: &[u8]) -> Result<Vec<KeyRecord>, KeysError> {
    #[derive(Deserialize)]
    struct Version {
        version: u64,
    }
    let damaged = |reason: String| KeysError::Damaged {
        path: path.to_owned(),
        reason,
    };
    // The version is checked first: a file of a newer version contains other fields, which would be reported as damage.
    if let Ok(Version { version }) = serde_json::from_slice(text)
        && version != VERSION
    {
        return Err(KeysError::Newer {
            path: path.to_owned(),
            found: version,
        });
    }
    let mut stored: KeyFileContent =
        serde_json::from_slice(text).map_err(|error| damaged(error.to_string()))?;
    debug_assert_eq!(stored.version, VERSION);
    let mut ids = std::collections::HashSet::with_capacity(stored.keys.len());
    match stored.keys.iter().find(|record| !ids.insert(record.id)) {
        Some(twice) => Err(damaged(format!("it has the key {} twice", twice.id))),
        None => {
            lineage::settle(&mut stored.keys);
            Ok(stored.keys)
        }
    }
}

/// Replaces the file of keys atomically; only its owner can read it. The caller must hold the lock.
pub(super) fn write(path: &Path, keys: &[KeyRecord]) -> Result<(), KeysError> {
    let told = |source: io::Error| KeysError::Io {
        doing: "write",
        path: path.to_owned(),
        source,
    };
    let version = VERSION;
    let text = serde_json::to_vec_pretty(&Storing { version, keys });
    let text = text.map_err(|error| told(error.into()))?;
    let owner = |file: &File| -> io::Result<()> {
        let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        belong_to_owner_of(file, directory)
    };
    replace_file(path, &text, 0o600, UNFINISHED, owner).map_err(told)
}

/// Removes temporary files that a killed writer left. The caller must hold the lock.
pub(super) fn remove_unfinished(path: &Path) {
    let entries = path
        .parent()
        .and_then(|directory| fs::read_dir(directory).ok());
    for entry in entries.into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            let _ = fs::remove_file(entry.path());
        }
    }
}
