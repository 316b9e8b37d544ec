//! A temporary file with a text that a person edits. It is stored in memory if the system has a file system for that, can be
//! read by its owner only, and is wiped and removed in every case except `kill -9`. Files left by `kill -9` are removed when the
//! next temporary file of the same store is created.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use tooldock_base::data_dir::short_hash;
use zeroize::Zeroizing;

/// Folders for the temporary file: a file system in memory, and a fallback.
const PLACES: [&str; 2] = ["/dev/shm", "/tmp"];

const FILE: &str = "secrets.yaml";

/// Maximum size of the edited file, in bytes; no valid document of secrets is larger.
const BYTES_MAX: u64 = 2 * 1024 * 1024;

/// A temporary file for an editor, removed on drop. Its folder contains nothing else, since editors create copies beside it.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Writes the text to a file in a new folder that only this user can read. `store` is the path of the store that the text
    /// comes from. The caller must hold its lock, so any earlier temporary files of this store are leftovers and are removed.
    ///
    /// # Errors
    ///
    /// When the file cannot be created in either folder.
    pub fn new(store: &Path, text: &[u8]) -> io::Result<Self> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for place in PLACES {
            match Self::within(Path::new(place), store, text) {
                Ok(scratch) => return Ok(scratch),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn within(place: &Path, store: &Path, text: &[u8]) -> io::Result<Self> {
        let prefix = format!(
            "tooldock-secrets-{}-",
            short_hash(store.as_os_str().as_encoded_bytes())
        );
        remove_left_over(place, &prefix);
        let mut random = [0; 8];
        getrandom::fill(&mut random)?;
        let folder = place.join(format!("{prefix}{}", tooldock_base::data_dir::hex(&random)));
        fs::DirBuilder::new().mode(0o700).create(&folder)?;
        let scratch = Self(folder);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(scratch.path())?;
        file.write_all(text)?;
        Ok(scratch)
    }

    /// Path of the temporary file.
    pub fn path(&self) -> PathBuf {
        self.0.join(FILE)
    }

    /// Reads the current content of the file.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, or is larger than any document of secrets.
    pub fn read(&self) -> io::Result<Zeroizing<Vec<u8>>> {
        let mut text = Zeroizing::new(Vec::with_capacity(64 * 1024));
        File::open(self.path())?
            .take(BYTES_MAX + 1)
            .read_to_end(&mut text)?;
        match text.len() as u64 > BYTES_MAX {
            true => Err(io::Error::other("larger than 2 MiB")),
            false => Ok(text),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        wipe(&self.0);
    }
}

/// Overwrites all files of a folder, then removes the folder.
fn wipe(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let _ = overwrite(&entry.path());
    }
    let _ = fs::remove_dir_all(folder);
}

fn overwrite(path: &Path) -> io::Result<()> {
    if !path.symlink_metadata()?.is_file() {
        return Ok(());
    }
    let mut file = OpenOptions::new().write(true).open(path)?;
    let mut left = file.metadata()?.len();
    let zeros = [0; 4096];
    while left > 0 {
        let length = left.min(zeros.len() as u64);
        file.write_all(&zeros[..usize::try_from(length).unwrap_or(zeros.len())])?;
        left -= length;
    }
    file.sync_all()
}

fn remove_left_over(place: &Path, prefix: &str) {
    let own = rustix::process::geteuid().as_raw();
    let is_ours = |name: &OsString, path: &Path| {
        name.to_string_lossy().starts_with(prefix)
            && path
                .symlink_metadata()
                .is_ok_and(|it| it.is_dir() && it.uid() == own)
    };
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        if is_ours(&entry.file_name(), &entry.path()) {
            wipe(&entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_file_is_its_owners_alone_and_goes_with_everything_beside_it() {
        let place = tempfile::tempdir().unwrap();
        let store = Path::new("/data");
        let scratch = Scratch::within(place.path(), store, b"text").unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&scratch.path()), mode(&scratch.0)), (0o600, 0o700));
        assert_eq!(&**scratch.read().unwrap(), b"text");
        fs::write(scratch.0.join(".secrets.yaml.swp"), "copy").unwrap();
        // Simulates a process that was killed.
        std::mem::forget(scratch);
        let next = Scratch::within(place.path(), store, b"").unwrap();
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
        let other = Scratch::within(place.path(), Path::new("/other"), b"").unwrap();
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2);
        drop((next, other));
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }
}
