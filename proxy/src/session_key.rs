//! The key that seals session ids: `SESSION_KEY`, or else 32 random bytes stored in `$DATA/session.key`.
//!
//! Whoever has the key can create valid session ids. Therefore it is never derived from a token, because tokens are given to
//! clients.

use std::path::Path;

use anyhow::bail;
use tooldock_base::secret::Secret;
use tooldock_sessions::session::SessionKey;

use crate::kept_file;

/// Name of the key's file in the data directory.
pub(crate) const FILE: &str = "session.key";

/// Length in bytes of the session key that is stored in a file.
const BYTES: usize = 32;

/// Loads the key: `configured` if it is set, otherwise the key in the data directory.
///
/// # Errors
///
/// When the file cannot be read or created, or does not contain a key.
pub(crate) fn load(configured: Option<&Secret>, data_dir: &Path) -> anyhow::Result<SessionKey> {
    match configured {
        Some(text) => Ok(SessionKey::from_text(text.expose())),
        None => read_or_create(&data_dir.join(FILE)).map(SessionKey::from_bytes),
    }
}

/// Reads the key from the file. Creates the file with a random key if it does not exist.
fn read_or_create(file: &Path) -> anyhow::Result<[u8; BYTES]> {
    let bytes = kept_file::read_or_make(file, BYTES, || {
        let mut key = vec![0; BYTES];
        getrandom::fill(&mut key)?;
        Ok(key)
    })?;
    match bytes.try_into() {
        Ok(key) => Ok(key),
        Err(_) => bail!(
            "{} is no session key: it does not hold exactly {BYTES} bytes; remove it and a new one is made, \
             which ends all sessions",
            file.display()
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_key_is_made_once_for_its_owner_alone() {
        let data = tempfile::tempdir().expect("directory");
        let file = data.path().join(FILE);
        // A leftover of a crash half way.
        fs::write(data.path().join("session.key.new.1"), "half").expect("write");
        let made = read_or_create(&file).expect("made");
        assert_ne!(made, [0; BYTES]);
        assert_eq!(read_or_create(&file).expect("read"), made);
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
            let error = read_or_create(&file).expect_err("wrong size").to_string();
            assert!(error.contains("session.key is no session key"), "{error}");
            assert_eq!(fs::read(&file).expect("there"), wrong);
        }
        fs::remove_file(&file).expect("removed");
        symlink("/dev/zero", &file).expect("link");
        let error = format!("{:#}", read_or_create(&file).expect_err("a link"));
        assert!(
            error.contains("session.key: it is no regular file"),
            "{error}"
        );
    }

    #[test]
    fn a_key_that_cannot_be_made_says_where() {
        let error = read_or_create(Path::new("/proc/none/session.key")).expect_err("no directory");
        assert!(
            format!("{error:#}").starts_with("cannot make /proc/none/session.key: "),
            "{error:#}"
        );
    }
}
