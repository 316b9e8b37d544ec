//! The key that session ids are sealed with: `SESSION_KEY`, or 32 random bytes kept in `$DATA/session.key`.
//!
//! The file is made once, readable by its owner alone, and there as a whole or not at all. It is never made from a token:
//! a token is handed to clients, and whoever holds the key can make session ids.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, bail};
use tooldock_upstream::session::SessionKey;
use tooldock_workers::secrets::Secret;

/// The file's name in the data directory.
const FILE: &str = "session.key";

/// How many bytes it holds.
const BYTES: usize = 32;

/// The key in force.
///
/// # Errors
///
/// When the file cannot be read or made, or holds something else than a key.
pub(crate) fn load(configured: Option<&Secret>, data_dir: &Path) -> anyhow::Result<SessionKey> {
    match configured {
        Some(text) => Ok(SessionKey::from_text(text.expose())),
        None => kept(&data_dir.join(FILE)).map(SessionKey::from_bytes),
    }
}

/// The key in the file, which is made if there is none. The caller holds the data directory's lock: nobody else makes
/// one meanwhile.
fn kept(file: &Path) -> anyhow::Result<[u8; BYTES]> {
    match read(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make(file).with_context(|| format!("cannot make {}", file.display()))
        }
        Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
        Ok(bytes) => match bytes.try_into() {
            Ok(key) => Ok(key),
            Err(_) => bail!(
                "{} is no session key: it does not hold exactly {BYTES} bytes; remove it and a new one is made, \
                 which ends all sessions",
                file.display()
            ),
        },
    }
}

/// The file's bytes; one more than a key has where there are more.
fn read(file: &Path) -> io::Result<Vec<u8>> {
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
    let mut bytes = Vec::with_capacity(BYTES + 1);
    File::open(file)?
        .take(BYTES as u64 + 1)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn make(file: &Path) -> anyhow::Result<[u8; BYTES]> {
    let mut key = [0; BYTES];
    getrandom::fill(&mut key).map_err(|error| anyhow::anyhow!("no randomness: {error}"))?;
    let staged = file.with_extension("key.new");
    match fs::remove_file(&staged) {
        // What a crash half way leaves behind.
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let mut open = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&staged)?;
    open.write_all(&key)?;
    open.sync_all()?;
    fs::rename(&staged, file)?;
    if let Some(directory) = file.parent() {
        File::open(directory)?.sync_all()?;
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_key_is_made_once_for_its_owner_alone() {
        let data = tempfile::tempdir().expect("directory");
        let file = data.path().join(FILE);
        // What a crash half way leaves behind.
        fs::write(data.path().join("session.key.new"), "half").expect("write");
        let made = kept(&file).expect("made");
        assert_ne!(made, [0; BYTES]);
        assert_eq!(kept(&file).expect("read"), made);
        let metadata = fs::metadata(&file).expect("there");
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(data.path()).expect("read").count(), 1);
    }

    #[test]
    fn what_is_no_key_is_named_and_left_alone() {
        let data = tempfile::tempdir().expect("directory");
        let file = data.path().join(FILE);
        for wrong in [&b""[..], &[1; BYTES - 1], &[1; BYTES + 1]] {
            fs::write(&file, wrong).expect("write");
            let error = kept(&file).expect_err("wrong size").to_string();
            assert!(error.contains("session.key is no session key"), "{error}");
            assert_eq!(fs::read(&file).expect("there"), wrong);
        }
        fs::remove_file(&file).expect("removed");
        symlink("/dev/zero", &file).expect("link");
        let error = format!("{:#}", kept(&file).expect_err("a link"));
        assert!(
            error.contains("session.key: it is no regular file"),
            "{error}"
        );
    }

    #[test]
    fn a_key_that_cannot_be_made_says_where() {
        let error = kept(Path::new("/proc/none/session.key")).expect_err("no directory");
        assert!(
            format!("{error:#}").starts_with("cannot make /proc/none/session.key: "),
            "{error:#}"
        );
    }
}
