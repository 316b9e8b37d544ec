//! A secret of the gateway that is generated once and stored in a small file of the data directory.
//!
//! Only its owner can read the file, and it is created either completely or not at all. Tools run as the same user, so the file
//! hides the secret from other users of the machine, but not from tools.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use tooldock_base::regular_file;

/// Part of a temporary file's name, between the final name and random digits.
const STAGED: &str = ".new.";

/// Reads the file, at most one byte more than `bytes_max`. If it is missing, it is created with the bytes that `make` returns. If
/// several processes create it concurrently (such as the core and the manager on a new volume), all get the bytes of the first.
///
/// # Errors
///
/// If the file cannot be read or created. The message names the file.
pub(crate) fn read_or_make(
    file: &Path,
    bytes_max: usize,
    make: impl FnOnce() -> Result<Vec<u8>, getrandom::Error>,
) -> anyhow::Result<Vec<u8>> {
    match read(file, bytes_max) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let bytes = make().map_err(|error| anyhow::anyhow!("no randomness: {error}"))?;
            keep(file, &bytes)
                .and_then(|()| read(file, bytes_max))
                .with_context(|| format!("cannot make {}", file.display()))
        }
        read => {
            sweep(file);
            read.with_context(|| format!("cannot read {}", file.display()))
        }
    }
}

fn read(file: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    // Only a regular file is read: tools can write to this directory, and could place a link or a pipe at this path.
    if !fs::symlink_metadata(file)?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let open = regular_file::open(file)?;
    if open.metadata()?.mode() & 0o007 != 0 {
        tracing::warn!(
            "{} is open to every user of this machine: chmod 600 it",
            file.display()
        );
    }
    let mut bytes = Vec::with_capacity(bytes_max + 1);
    open.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Creates the file with these bytes. Does nothing if another process has created it meanwhile.
fn keep(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut staged = file.as_os_str().to_owned();
    staged.push(format!("{STAGED}{:016x}", fastrand::u64(..)));
    let staged = PathBuf::from(staged);
    let mut open = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&staged)?;
    let made = open
        .write_all(bytes)
        .and_then(|()| open.sync_all())
        .and_then(|()| publish(&staged, file));
    match made {
        Ok(()) => sweep(file),
        Err(error) => {
            let _ = fs::remove_file(&staged);
            return Err(error);
        }
    }
    if let Some(directory) = file.parent() {
        File::open(directory)?.sync_all()?;
    }
    Ok(())
}

/// Gives the temporary file its final name by a link, which, unlike a rename, never replaces an existing file.
fn publish(staged: &Path, file: &Path) -> io::Result<()> {
    match fs::hard_link(staged, file) {
        Ok(()) => Ok(()),
        Err(_) if file.symlink_metadata().is_ok() => Ok(()),
        // Some file systems support no links.
        Err(_) => fs::rename(staged, file),
    }
}

/// Removes temporary files: that of this process, and those left by crashes. Other processes do not need theirs any more, as the
/// final file exists.
fn sweep(file: &Path) {
    let (Some(directory), Some(name)) =
        (file.parent(), file.file_name().and_then(|it| it.to_str()))
    else {
        return;
    };
    let staged = format!("{name}{STAGED}");
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(&staged) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    #[test]
    fn all_that_make_the_file_at_once_get_what_the_first_one_made() {
        const MAKERS: u8 = 16;
        for _ in 0..8 {
            let data = tempfile::tempdir().expect("directory");
            let file = data.path().join("key");
            let together = Barrier::new(usize::from(MAKERS));
            let got: Vec<Vec<u8>> = thread::scope(|scope| {
                let makers: Vec<_> = (0..MAKERS)
                    .map(|mine| {
                        let (file, together) = (&file, &together);
                        scope.spawn(move || {
                            read_or_make(file, 4, || {
                                together.wait();
                                Ok(vec![mine; 4])
                            })
                        })
                    })
                    .collect();
                let ended = makers
                    .into_iter()
                    .map(|maker| maker.join().expect("no panic"));
                ended.map(|made| made.expect("made")).collect()
            });
            let kept = fs::read(&file).expect("there");
            assert!(got.iter().all(|got| *got == kept), "{got:?}");
            assert_eq!(fs::read_dir(data.path()).expect("read").count(), 1);
        }
    }
}
