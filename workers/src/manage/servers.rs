//! The servers of `$DATA/external/config.yaml`, as a manager changes them. Their keys are defined in `external`.
//!
//! The file is read and written as YAML, so comments in it are lost with the first change; the previous content is kept as
//! `config.yaml.previous`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tooldock_base::data_dir::write_atomically;
use tooldock_base::mask;
use tooldock_base::names::NamespaceName;
use tooldock_base::precedence::EXTERNAL_FILE;
use tooldock_base::regular_file;
use tooldock_base::tree_file;
use tooldock_base::yaml::{self, Mapping, Value};

use super::{NotDone, Workspace, blocking};
use crate::external::{check_entry, is_cached};

/// Maximum size of the servers' file, in bytes.
const BYTES_MAX: u64 = 1024 * 1024;
/// Maximum number of servers in the file; managers add no further ones.
pub(super) const SERVERS_MAX: usize = 1_000;
/// Maximum length of a text in an entry that a manager adds, in bytes.
const TEXT_MAX: usize = 64 * 1024;

/// A server of `external/config.yaml`, with its secrets masked.
#[derive(Debug, Clone, PartialEq)]
pub struct ManagedServer {
    /// The namespace under which the server is served.
    pub name: NamespaceName,
    /// True if the server is served under its namespace; false if it is switched off.
    pub enabled: bool,
    /// Keys of the server's entry. Values of variables are masked unless they are only a reference such as `${NAME}`; credentials
    /// in other values are masked as well.
    pub config: serde_json::Value,
}

/// Reason why `external/config.yaml` was not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServerRefused {
    /// The file already has a server with that name.
    #[error("there is a server {0} in external/config.yaml already; remove that one first")]
    Exists(NamespaceName),
    /// The file has no server with that name.
    #[error(
        "there is no server {0} in external/config.yaml; list_servers shows those there are, and servers of the gateway's own configuration are changed there"
    )]
    Unknown(NamespaceName),
    /// A key of the server's entry is not valid.
    #[error("{key}: {message}")]
    Invalid {
        /// Name of the invalid key.
        key: String,
        /// Description of the problem with the key.
        message: String,
    },
    /// A namespace with tool files already has the name.
    #[error("there is a namespace {0} with tool files already; choose another name")]
    Folder(NamespaceName),
    /// The gateway's configuration already uses the name.
    #[error("{0}")]
    Taken(NotDone),
    /// The file could not be read or written.
    #[error(transparent)]
    NotDone(#[from] NotDone),
}

impl Workspace {
    /// Lists the servers of the file, sorted by name. Entries whose name is not valid for a namespace are skipped.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub async fn servers(&self) -> Result<Vec<ManagedServer>, NotDone> {
        let path = self.servers_file();
        let configured = Arc::clone(&self.configured_names());
        blocking(move || {
            let servers = servers_of(&read(&path)?);
            let shown = servers.iter().filter_map(|(name, entry)| {
                Some(ManagedServer {
                    name: name.as_str()?.parse().ok()?,
                    enabled: entry
                        .get("enabled")
                        .and_then(Value::as_bool)
                        .unwrap_or(true),
                    config: shown(entry),
                })
            });
            // If the configuration uses an entry's name, the configuration's server is served instead, so the entry is not
            // listed.
            let shown = shown.filter(|server| configured.winner(&server.name).is_none());
            let mut shown: Vec<_> = shown.collect();
            shown.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(shown)
        })
        .await
    }

    /// Returns true if `external/registry-cache.yaml` contains the package of the server that registries know as `name`.
    pub async fn registry_is_cached(&self, name: &str) -> bool {
        let (data, name) = (self.data.root().to_owned(), name.to_owned());
        let cached = blocking(move || Ok(is_cached(&data, &name)));
        cached.await.unwrap_or(false)
    }

    /// Adds a server. Its entry is checked as a reload would check it.
    ///
    /// # Errors
    ///
    /// When the file or the configuration already uses the name, the entry is not valid, or the file cannot be changed. The file
    /// is then unchanged.
    pub async fn add_server(
        &self,
        name: &NamespaceName,
        entry: serde_json::Value,
    ) -> Result<(), ServerRefused> {
        if let serde_json::Value::Object(keys) = &entry {
            check_texts(keys)?;
        }
        self.not_configured(name).map_err(ServerRefused::Taken)?;
        let entry = yaml::to_value(entry).map_err(|error| ServerRefused::Invalid {
            key: "config".to_owned(),
            message: error.to_string(),
        })?;
        check_entry(entry.clone()).map_err(|error| ServerRefused::Invalid {
            key: error.key,
            message: error.message,
        })?;
        let added = name.clone();
        let folder = self.data.tools_dir().join(name.as_str());
        self.change_servers(move |servers| {
            if folder.symlink_metadata().is_ok() {
                return Err(ServerRefused::Folder(added));
            }
            let key = Value::from(added.as_str());
            if servers.contains_key(&key) {
                return Err(ServerRefused::Exists(added));
            }
            if servers.len() >= SERVERS_MAX {
                let message = format!("external/config.yaml has {SERVERS_MAX} servers already");
                return Err(NotDone(message).into());
            }
            servers.insert(key, entry);
            Ok(())
        })
        .await
    }

    /// Removes a server from the file.
    ///
    /// # Errors
    ///
    /// When the file has no such server or cannot be changed.
    pub async fn remove_server(&self, name: &NamespaceName) -> Result<(), ServerRefused> {
        let removed = name.clone();
        self.change_servers(move |servers| {
            let gone = servers.shift_remove(Value::from(removed.as_str()));
            gone.map(drop).ok_or(ServerRefused::Unknown(removed))
        })
        .await
    }

    /// Enables or disables a server of the file.
    ///
    /// # Errors
    ///
    /// When the file has no such server or cannot be changed.
    pub async fn enable_server(
        &self,
        name: &NamespaceName,
        enabled: bool,
    ) -> Result<(), ServerRefused> {
        if enabled {
            self.not_configured(name).map_err(ServerRefused::Taken)?;
        }
        let changed = name.clone();
        self.change_servers(move |servers| {
            let entry = servers.get_mut(Value::from(changed.as_str()));
            let Some(Value::Mapping(entry)) = entry else {
                return Err(ServerRefused::Unknown(changed));
            };
            entry.insert("enabled".into(), enabled.into());
            Ok(())
        })
        .await
    }

    pub(super) fn servers_file(&self) -> PathBuf {
        self.data.root().join(EXTERNAL_FILE)
    }

    async fn change_servers(
        &self,
        change: impl FnOnce(&mut Mapping) -> Result<(), ServerRefused> + Send + 'static,
    ) -> Result<(), ServerRefused> {
        let lock = self.lock().await?;
        let path = self.servers_file();
        let changed = blocking(move || {
            let _lock = lock;
            let mut tree = read(&path)?;
            let mut servers = servers_of(&tree);
            if let Err(refused) = change(&mut servers) {
                return Ok(Err(refused));
            }
            tree.insert("servers".into(), Value::Mapping(servers));
            write(&path, tree)?;
            Ok(Ok(()))
        });
        changed.await?
    }
}

/// Returns an error if a text in a server's entry is longer than 64 KiB. The limit bounds the search for credentials, which
/// runs each time the entry is shown.
///
/// # Errors
///
/// [`ServerRefused::Invalid`] names the key.
pub fn check_texts(
    entry: &serde_json::Map<String, serde_json::Value>,
) -> Result<(), ServerRefused> {
    match long_text_in(entry, "") {
        None => Ok(()),
        Some((key, length)) => Err(ServerRefused::Invalid {
            key,
            message: format!("has {length} bytes, and a text may have at most {TEXT_MAX}"),
        }),
    }
}

/// Returns the key of the first text that is too long, and that text's length in bytes.
fn long_text(value: &serde_json::Value, place: &str) -> Option<(String, usize)> {
    use serde_json::Value;
    match value {
        Value::String(text) => (text.len() > TEXT_MAX).then(|| (place.to_owned(), text.len())),
        Value::Array(all) => {
            let mut items = all.iter().enumerate();
            items.find_map(|(at, it)| long_text(it, &format!("{place}[{at}]")))
        }
        Value::Object(keys) => long_text_in(keys, place),
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}

fn long_text_in(
    keys: &serde_json::Map<String, serde_json::Value>,
    place: &str,
) -> Option<(String, usize)> {
    let inner = |name: &str| match place {
        "" => name.to_owned(),
        place => format!("{place}.{name}"),
    };
    keys.iter()
        .find_map(|(name, it)| match name.len() > TEXT_MAX {
            true => Some((inner("the name of a key"), name.len())),
            false => long_text(it, &inner(name)),
        })
}

/// Returns true if the file has a server with that name. A file that cannot be read counts as empty, since none of its servers
/// is served.
pub(super) fn has(path: &Path, name: &NamespaceName) -> bool {
    let tree = read(path).unwrap_or_default();
    servers_of(&tree).contains_key(Value::from(name.as_str()))
}

fn unreadable(reason: String) -> NotDone {
    NotDone(format!(
        "{EXTERNAL_FILE} cannot be used: {reason}; mend the file"
    ))
}

/// Reads the text of the servers' file; `None` if the file does not exist.
pub(super) fn read_text(path: &Path) -> Result<Option<String>, NotDone> {
    let folder = path.parent().unwrap_or(path);
    let tree = match folder.canonicalize() {
        Ok(tree) => tree,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(NotDone::io("read", folder, &error)),
    };
    let text = tree_file::read(path, &tree, BYTES_MAX);
    let text = text.map_err(|refused| unreadable(refused.to_string()))?;
    let text = text
        .map(|text| String::from_utf8(text.to_vec()))
        .transpose();
    text.map_err(|_| unreadable("no UTF-8 text".to_owned()))
}

/// Reads and parses the servers' file; empty if the file does not exist.
pub(super) fn read(path: &Path) -> Result<Mapping, NotDone> {
    let Some(text) = read_text(path)? else {
        return Ok(Mapping::new());
    };
    match yaml::from_str(&text).map_err(|error| unreadable(error.to_string()))? {
        Value::Null => Ok(Mapping::new()),
        Value::Mapping(tree) => Ok(tree),
        _ => Err(unreadable("no mapping".to_owned())),
    }
}

pub(super) fn servers_of(tree: &Mapping) -> Mapping {
    match tree.get("servers") {
        Some(Value::Mapping(servers)) => servers.clone(),
        _ => Mapping::new(),
    }
}

pub(super) fn write(path: &Path, tree: Mapping) -> Result<(), NotDone> {
    let text = yaml::to_string(&Value::Mapping(tree));
    let text = text.map_err(|error| NotDone(format!("cannot write {EXTERNAL_FILE}: {error}")))?;
    write_text(path, &text)
}

/// Writes the servers' file atomically, and stores its previous content in a second file.
pub(super) fn write_text(path: &Path, text: &str) -> Result<(), NotDone> {
    let folder = path.parent().unwrap_or(path);
    if text.len() as u64 > BYTES_MAX {
        return Err(NotDone(format!(
            "{EXTERNAL_FILE} would have more than {BYTES_MAX} bytes"
        )));
    }
    let failed = |error: io::Error| NotDone::io("write", path, &error);
    fs::create_dir_all(folder).map_err(failed)?;
    if let Ok(held) = regular_file::read(path, BYTES_MAX) {
        write_atomically(&path.with_extension("yaml.previous"), &held, 0o600).map_err(failed)?;
    }
    // Only the owner may read the file, because values of variables may be secrets.
    write_atomically(path, text.as_bytes(), 0o600).map_err(failed)
}

/// Returns an entry with possible secrets masked.
fn shown(entry: &Value) -> serde_json::Value {
    mask::server(&serde_json::to_value(entry).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_down_is_hidden_and_references_stay() {
        let entry: Value = yaml::from_str(
            "{ command: npx, args: [-y, pkg, --token=abc, --api-key, k3y, --port=1, '--token=${T}', 'https://u:pw@h/x'], \
             env: { A: literal, B: '${B}', C: 'x ${C}', N: 12 } }",
        )
        .expect("YAML");
        let shown = shown(&entry);
        assert_eq!(
            shown["args"],
            serde_json::json!([
                "-y",
                "pkg",
                "--token=***MASKED***",
                "--api-key",
                "***MASKED***",
                "--port=1",
                "--token=${T}",
                tooldock_base::logins::redact_credentials("https://u:pw@h/x")
            ])
        );
        assert!(!shown.to_string().contains("pw@"));
        assert_eq!(
            shown["env"],
            serde_json::json!({"A": "***MASKED***", "B": "${B}", "C": "***MASKED***", "N": "***MASKED***"})
        );
    }
}
