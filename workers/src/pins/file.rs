//! Reading and replacing the file `pins.json`, always as a whole.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tooldock_base::data_dir::write_atomically;
use tooldock_base::file_lock::FileLock;
use tooldock_base::regular_file;

use super::record::{FORMAT, PinFile};

/// Maximum size of `pins.json`, in bytes.
const FILE_MAX: u64 = 512 * 1024 * 1024;
/// Maximum time that a writer waits for the lock of `pins.json`.
const PATIENCE: Duration = Duration::from_secs(5);

/// Path of `pins.json`.
#[derive(Debug)]
pub(super) struct PinsFile {
    path: PathBuf,
    /// Path of the lock file that writers lock.
    lock: PathBuf,
    /// Maximum size of the file that is read or written, in bytes.
    max: u64,
}

/// Metadata that identify a version of the file without reading it. They differ after each change, because every change is a
/// rename.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl PinsFile {
    pub(super) fn new(path: PathBuf) -> Self {
        let lock = path.with_extension("lock");
        Self {
            path,
            lock,
            max: FILE_MAX,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The stamp of the current file; `None` if the file does not exist.
    pub(super) fn stamp(&self) -> Option<Stamp> {
        let metadata = fs::metadata(&self.path).ok()?;
        Some(Stamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            length: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }

    /// Reads the records from the file; empty if the file does not exist.
    ///
    /// # Errors
    ///
    /// The reason why the file cannot be read, in one line with the remedy.
    pub(super) fn read(&self) -> Result<(PinFile, Option<Stamp>), String> {
        let stamp = self.stamp();
        let bytes = match regular_file::read(&self.path, self.max) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok((PinFile::default(), None));
            }
            Err(error) => return Err(self.unusable(&error.to_string())),
        };
        let value: serde_json::Value =
            serde_json::from_slice(&bytes).map_err(|error| self.unusable(&error.to_string()))?;
        // Checked before the records are deserialized, because a later format may have other fields.
        match value.get("format").and_then(serde_json::Value::as_u64) {
            Some(format) if format <= FORMAT => {}
            Some(format) => {
                return Err(format!(
                    "{}: written by a newer version (format {format}, this one reads up to {FORMAT}); upgrade, or move the file \
                     away, and the definitions are recorded anew; until then nothing is recorded, and with pins: enforce all \
                     definitions are hidden",
                    self.path.display()
                ));
            }
            None => return Err(self.unusable("it has no format")),
        }
        let records = serde_json::from_value(value);
        Ok((
            records.map_err(|error| self.unusable(&error.to_string()))?,
            stamp,
        ))
    }

    fn unusable(&self, why: &str) -> String {
        format!(
            "{}: cannot be read: {why}; restore it, or move it away, and the definitions are recorded anew; until then nothing is \
             recorded, and with pins: enforce all definitions are hidden",
            self.path.display()
        )
    }

    /// Acquires the lock that a process must hold while it writes the file.
    ///
    /// # Errors
    ///
    /// The reason why the lock was not acquired, in one line.
    pub(super) fn lock(&self) -> Result<FileLock, String> {
        FileLock::take(&self.lock, "recording pins", PATIENCE).map_err(|error| error.to_string())
    }

    /// Replaces the file with these records, and returns the new file's stamp.
    ///
    /// # Errors
    ///
    /// The reason why the file was not written, in one line; the old file is then unchanged.
    pub(super) fn replace(&self, records: &PinFile) -> Result<Option<Stamp>, String> {
        let written = serde_json::to_vec_pretty(records).map_err(io::Error::from);
        if let Ok(bytes) = &written
            && bytes.len() as u64 > self.max
        {
            return Err(format!(
                "{}: cannot be written: {} bytes are more than the {} that are read again; drop records by `tooldock pins \
                 forget NAMESPACE`",
                self.path.display(),
                bytes.len(),
                self.max
            ));
        }
        let written = written.and_then(|bytes| write_atomically(&self.path, &bytes, 0o600));
        written.map_err(|error| {
            format!(
                "{}: cannot be written: {error}; make the folder writable, and free space on its disk",
                self.path.display()
            )
        })?;
        Ok(self.stamp())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pins::record::NamespaceRecord;

    #[test]
    fn a_file_that_could_not_be_read_again_is_not_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut file = PinsFile::new(folder.path().join("pins.json"));
        file.max = 1_000;
        let mut records = PinFile::default();
        file.replace(&records).expect("written");
        for at in 0..100 {
            let name = format!("namespace{at}");
            records.namespaces.insert(name, NamespaceRecord::default());
        }
        let refused = file.replace(&records).expect_err("too large");
        assert!(refused.contains("cannot be written"), "{refused}");
        let (read, _) = file.read().expect("readable");
        assert_eq!(read, PinFile::default());
    }
}
