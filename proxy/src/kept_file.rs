//! A secret of this gateway that is made once and kept in a small file of the data directory.
//!
//! The file is readable by its owner alone, and there as a whole or not at all. Tools run as the same user: what is kept
//! so is hidden from other users of the machine, not from them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;

/// What the file holds, at most one byte more than `bytes_max`; without a file, what `make` makes for it. The caller
/// holds the data directory's lock: nobody else makes the file meanwhile.
///
/// # Errors
///
/// When the file cannot be read or made. The message names it.
pub(crate) fn read_or_make(
    file: &Path,
    bytes_max: usize,
    make: impl FnOnce() -> Result<Vec<u8>, getrandom::Error>,
) -> anyhow::Result<Vec<u8>> {
    match read(file, bytes_max) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let bytes = make().map_err(|error| anyhow::anyhow!("no randomness: {error}"))?;
            keep(file, &bytes).with_context(|| format!("cannot make {}", file.display()))?;
            Ok(bytes)
        }
        read => read.with_context(|| format!("cannot read {}", file.display())),
    }
}

fn read(file: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    // Tools write into this directory: a link could lead anywhere, a pipe would never end.
    let metadata = fs::symlink_metadata(file)?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    if metadata.mode() & 0o007 != 0 {
        tracing::warn!(
            "{} is open to every user of this machine: chmod 600 it",
            file.display()
        );
    }
    let mut bytes = Vec::with_capacity(bytes_max + 1);
    File::open(file)?
        .take(bytes_max as u64 + 1)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn keep(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut staged = file.as_os_str().to_owned();
    staged.push(".new");
    let staged = PathBuf::from(staged);
    match fs::remove_file(&staged) {
        // What a crash half way leaves behind.
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut open = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&staged)?;
    open.write_all(bytes)?;
    open.sync_all()?;
    fs::rename(&staged, file)?;
    if let Some(directory) = file.parent() {
        File::open(directory)?.sync_all()?;
    }
    Ok(())
}
