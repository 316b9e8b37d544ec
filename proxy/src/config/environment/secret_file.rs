//! Secrets from files. Each variable that contains a secret has a second variable with `_FILE` appended to its name, which names
//! a file with the secret. A file has advantages over a variable: it is not inherited by child processes, not shown by `ps e` or
//! `docker inspect`, and can change while the gateway runs.

use std::io::Read;
use std::path::Path;

use tooldock_base::regular_file;

/// Environment variables that contain a secret, each with the variable that can name a file with the secret instead.
const SECRETS: [(&str, &str); 5] = [
    ("BEARER_TOKEN", "BEARER_TOKEN_FILE"),
    ("MANAGER_INTERNAL_TOKEN", "MANAGER_INTERNAL_TOKEN_FILE"),
    ("SECRETS_KEY", "SECRETS_KEY_FILE"),
    ("SECRETS_KEY_NEW", "SECRETS_KEY_NEW_FILE"),
    ("SESSION_KEY", "SESSION_KEY_FILE"),
];

/// Maximum size of a file with a secret, in bytes.
const BYTES_MAX: u64 = 64 * 1024;

/// Returns the `_FILE` variable that belongs to a variable with a secret; `None` for other variables.
pub(super) fn variable_of(secret: &str) -> Option<&'static str> {
    let found = SECRETS.iter().find(|(name, _)| *name == secret);
    found.map(|(_, file)| *file)
}

/// Returns true if a variable names a file with a secret.
pub(super) fn is_variable(name: &str) -> bool {
    SECRETS.iter().any(|(_, file)| *file == name)
}

/// Reads the secret in a file, without the newline that an editor adds at its end. The error never contains the file's content.
pub(super) fn read(file: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    // Pipes are refused: the start would block until a process writes to it, and a reload would find it empty.
    regular_file::open_following(file)
        .and_then(|open| open.take(BYTES_MAX + 1).read_to_end(&mut bytes))
        .map_err(|error| error.to_string())?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err("larger than 64 KiB, which no secret is".to_owned());
    }
    let text = String::from_utf8(bytes).map_err(|_| "is not UTF-8".to_owned())?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    if text.is_empty() {
        return Err("is empty".to_owned());
    }
    Ok(text.to_owned())
}
