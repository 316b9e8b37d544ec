//! Tokens, and the key of the secrets store, that `serve --dev` generates and stores in the data directory for later runs.

use std::path::Path;

use anyhow::bail;
use tooldock_base::secret::Secret;

use super::GeneratedTokens;
use crate::kept_file;

/// Name of the file in the data directory that contains the bearer token.
pub(crate) const TOKEN_FILE: &str = "dev.token";

/// Name of the file in the data directory that contains the manager token, which `POST /reload` requires.
const MANAGER_TOKEN_FILE: &str = "dev.manager-token";

/// Name of the file in the data directory that contains the key of the secrets store.
const SECRETS_KEY_FILE: &str = "dev.secrets-key";

/// Returns the bearer token that an earlier run stored in the data directory, or generates and stores one.
///
/// # Errors
///
/// If the file cannot be read or created, or does not contain a valid token.
pub(crate) fn kept_token(data_dir: &Path) -> anyhow::Result<Secret> {
    read_or_create(
        &data_dir.join(TOKEN_FILE),
        "token",
        "remove it and a new one is made, or set BEARER_TOKEN",
    )
}

/// Returns the manager token that an earlier run stored in the data directory, or generates and stores one.
///
/// # Errors
///
/// If the file cannot be read or created, or does not contain a valid token.
pub(crate) fn kept_manager_token(data_dir: &Path) -> anyhow::Result<Secret> {
    read_or_create(
        &data_dir.join(MANAGER_TOKEN_FILE),
        "token",
        "remove it and a new one is made, or set MANAGER_INTERNAL_TOKEN",
    )
}

/// Returns the key of the secrets store that an earlier run stored in the data directory, or generates and stores one.
///
/// # Errors
///
/// If the file cannot be read or created, or does not contain a valid key.
pub(crate) fn kept_secrets_key(data_dir: &Path) -> anyhow::Result<Secret> {
    read_or_create(
        &data_dir.join(SECRETS_KEY_FILE),
        "key",
        "restore it, or set SECRETS_KEY to the key that the secrets were written with",
    )
}

/// Returns the key of the secrets store that an earlier `serve --dev` stored in the data directory; `None` if there is none.
///
/// # Errors
///
/// If the file cannot be read, or does not contain a valid key.
pub(crate) fn found_secrets_key(data_dir: &Path) -> anyhow::Result<Option<Secret>> {
    found(data_dir, SECRETS_KEY_FILE, kept_secrets_key)
}

/// Returns the bearer token that an earlier `serve --dev` stored in the data directory; `None` if there is none.
///
/// # Errors
///
/// If the file cannot be read, or does not contain a valid token.
pub(crate) fn found_token(data_dir: &Path) -> anyhow::Result<Option<Secret>> {
    found(data_dir, TOKEN_FILE, kept_token)
}

/// Returns the manager token that an earlier `serve --dev` stored in the data directory; `None` if there is none.
///
/// # Errors
///
/// If the file cannot be read, or does not contain a valid token.
pub(crate) fn found_manager_token(data_dir: &Path) -> anyhow::Result<Option<Secret>> {
    found(data_dir, MANAGER_TOKEN_FILE, kept_manager_token)
}

fn found(
    data_dir: &Path,
    file: &str,
    read: fn(&Path) -> anyhow::Result<Secret>,
) -> anyhow::Result<Option<Secret>> {
    match data_dir.join(file).symlink_metadata() {
        Ok(_) => read(data_dir).map(Some),
        Err(_) => Ok(None),
    }
}

fn read_or_create(file: &Path, kind: &str, remedy: &str) -> anyhow::Result<Secret> {
    let length = GeneratedTokens::LENGTH;
    let made = || Ok(format!("{}\n", GeneratedTokens::one()?.expose()).into_bytes());
    let bytes = kept_file::read_or_make(file, length + 1, made)?;
    let token = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    match str::from_utf8(token) {
        // Only hexadecimal digits are accepted: the token is printed in lines for a shell, and must need no quoting there.
        Ok(text) if token.len() == length && token.iter().all(u8::is_ascii_hexdigit) => {
            Ok(Secret::new(text))
        }
        _ => bail!(
            "{} holds no {kind} of --dev, which has {length} hexadecimal digits; {remedy}",
            file.display()
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_token_is_made_once_for_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let data = tempfile::tempdir().expect("directory");
        let made = kept_token(data.path()).expect("made");
        assert_eq!(made.expose().len(), GeneratedTokens::LENGTH);
        assert_eq!(kept_token(data.path()).expect("kept"), made);
        let file = data.path().join(TOKEN_FILE);
        let mode = fs::metadata(&file).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        for wrong in ["", "hush", "$(reboot)", &format!("{}0", made.expose())] {
            fs::write(&file, wrong).expect("write");
            let error = kept_token(data.path()).expect_err("no token").to_string();
            assert!(
                error.contains("dev.token holds no token of --dev"),
                "{error}"
            );
            assert!(!error.contains("hush"), "{error}");
        }
    }
}
