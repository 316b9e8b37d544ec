//! Writes servers into the gateway's files: `$DATA/external/config.yaml`, the configuration file, and the secrets store.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tooldock_base::data_dir::write_atomically;
use tooldock_base::names::NamespaceName;
use tooldock_base::yaml::{self, Mapping, Value};
use tooldock_credentials::secrets::{Scope, SecretStore};
use tooldock_import_clients::{ClientServer, Kind};
use tooldock_workers::external::StdioServerConfig;
use tooldock_workers::manage::LockedServers;
use tooldock_workers::remote::RemoteServerConfig;
use tooldock_workers::servers;
use tooldock_workers::yaml_edit::{self, NewEntry};

use super::Gateway;
use crate::config;
use crate::operator::output::printable_lines;

/// Maximum size of the configuration file, in bytes.
const CONFIG_MAX: u64 = 4 * 1024 * 1024;

/// A server that is to be written, with its final name.
pub(super) struct PlacedServer {
    pub(super) name: NamespaceName,
    pub(super) server: ClientServer,
    /// Comment above the server's entry in the file; may be empty.
    pub(super) comment: String,
}

/// The servers that are to be written.
#[derive(Default)]
pub(super) struct ServerPlan(Vec<PlacedServer>);

/// Returns the keys of the configuration file below which servers of a kind are listed.
fn config_path(kind: Kind) -> [&'static str; 2] {
    match kind {
        Kind::Stdio => ["upstreams", "stdio"],
        Kind::Remote => ["upstreams", "remote"],
    }
}

/// The names of servers and namespaces that exist already. The files are read when the value is created.
pub(super) struct TakenNames {
    configured: BTreeMap<NamespaceName, String>,
    /// The servers in `external/config.yaml`.
    file: Mapping,
    tools: PathBuf,
}

impl TakenNames {
    pub(super) fn of(gateway: &Gateway) -> Self {
        let config = &gateway.effective.config;
        let claims = servers::configured(&config.upstreams, &config.toolman).into_iter();
        let mut configured = BTreeMap::new();
        for claim in claims {
            configured.entry(claim.name).or_insert(claim.place);
        }
        Self {
            configured,
            // An unreadable file counts as empty here; the error is reported when the file is changed.
            file: LockedServers::peek(gateway.data()).unwrap_or_default(),
            tools: gateway.data().join("tools"),
        }
    }

    /// Returns the file or key that uses a name already; `None` if the name is free.
    pub(super) fn place(&self, name: &NamespaceName) -> Option<String> {
        if let Some(place) = self.configured.get(name) {
            return Some(place.clone());
        }
        if self.tools.join(name.as_str()).symlink_metadata().is_ok() {
            return Some(format!("tools/{name}"));
        }
        let is_there = self.file.contains_key(Value::from(name.as_str()));
        is_there.then(|| "external/config.yaml".to_owned())
    }
}

/// Returns the place where a server of a kind is written, in the same form as [`TakenNames::place`].
pub(super) fn own_place(kind: Kind, name: &NamespaceName) -> String {
    match kind {
        Kind::Stdio => "external/config.yaml".to_owned(),
        Kind::Remote => format!("upstreams.remote.{name}"),
    }
}

/// Checks the keys and values of a server.
///
/// # Errors
///
/// The first wrong key, and the reason.
pub(super) fn check(server: &ClientServer) -> Result<(), String> {
    let entry = Value::Mapping(server.entry.clone());
    let checked = match server.kind {
        Kind::Stdio => yaml::from_value::<StdioServerConfig>(entry)
            .map_err(|error| error.to_string())?
            .validate(),
        Kind::Remote => yaml::from_value::<RemoteServerConfig>(entry)
            .map_err(|error| error.to_string())?
            .validate(),
    };
    checked.map_err(|error| error.to_string())
}

impl ServerPlan {
    pub(super) fn push(&mut self, server: PlacedServer) {
        self.0.push(server);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &PlacedServer> {
        self.0.iter()
    }

    pub(super) fn of(&self, kind: Kind) -> impl Iterator<Item = &PlacedServer> {
        self.0.iter().filter(move |it| it.server.kind == kind)
    }

    pub(super) fn has(&self, kind: Kind) -> bool {
        self.of(kind).next().is_some()
    }

    /// Returns the number of credentials of all servers.
    pub(super) fn secrets(&self) -> usize {
        self.0.iter().map(|it| it.server.secrets.len()).sum()
    }

    /// Iterates over the names of all credentials, each with the namespace it belongs to.
    pub(super) fn secret_names(&self) -> impl Iterator<Item = (&NamespaceName, &str)> {
        let all = self.0.iter();
        all.flat_map(|it| it.server.secrets.keys().map(|key| (&it.name, key.as_str())))
    }

    /// Stores all credentials in the secrets store, in one write.
    pub(super) fn store_secrets(&self, gateway: &Gateway) -> Result<(), String> {
        let store = SecretStore::new(gateway.data(), gateway.effective.secrets.protection());
        fs::create_dir_all(gateway.data())
            .map_err(|error| format!("{}: {error}", gateway.data().display()))?;
        let secrets = self.0.iter().flat_map(|it| {
            let scope = Scope::Namespace(it.name.clone());
            let own = it.server.secrets.iter();
            own.map(move |(key, value)| (key.clone(), scope.clone(), value.clone()))
        });
        let stored = store.set_all("import of servers", secrets);
        stored.map_err(|error| error.to_string())
    }

    /// Returns all servers as the section `upstreams:` of a configuration.
    pub(super) fn as_config(&self) -> Result<String, String> {
        let mut text = String::new();
        for kind in [Kind::Stdio, Kind::Remote] {
            text = self.put(&text, &config_path(kind), kind)?;
        }
        Ok(text)
    }

    /// Returns the text of the servers of a kind, as their file will contain it.
    pub(super) fn preview(&self, kind: Kind) -> Result<String, String> {
        match kind {
            Kind::Stdio => self.put("", &["servers"], kind),
            Kind::Remote => self.put("", &config_path(kind), kind),
        }
    }

    /// Returns the servers of a kind as entries of a YAML map.
    fn entries(&self, kind: Kind) -> Vec<NewEntry<'_>> {
        let entries = self.of(kind).map(|it| NewEntry {
            name: it.name.as_str(),
            entry: &it.server.entry,
            comment: &it.comment,
        });
        entries.collect()
    }

    /// Adds the servers of a kind to the text of a file, below the keys `path`.
    fn put(&self, text: &str, path: &[&str], kind: Kind) -> Result<String, String> {
        let entries = self.entries(kind);
        if entries.is_empty() {
            return Ok(text.to_owned());
        }
        yaml_edit::put_all(text, path, entries).map_err(|error| error.to_string())
    }

    /// Writes the servers with a command into `external/config.yaml`.
    pub(super) fn write_data_file(&self, gateway: &Gateway) -> Result<(), String> {
        let mut file = LockedServers::open(gateway.data()).map_err(|error| error.to_string())?;
        let put = file.put_all(&self.entries(Kind::Stdio));
        put.map_err(|(name, error)| format!("{name}: {error}"))?;
        let path = file.path().to_owned();
        match file.save() {
            Ok(false) => Ok(()),
            Ok(true) => {
                super::print_line(&format!(
                    "tooldock: {}: its comments are lost, since it has servers in braces; the file before stands beside it as config.yaml.previous",
                    path.display()
                ));
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Writes the servers with a URL into the configuration file.
    pub(super) fn write_config_file(&self, gateway: &Gateway) -> Result<(), String> {
        let path = &gateway.config_file;
        let before = read_config(path)?;
        let put = self.put(&before, &config_path(Kind::Remote), Kind::Remote);
        let text = put.map_err(|reason| {
            let part = self.preview(Kind::Remote).unwrap_or_default();
            let part = printable_lines(&part);
            format!(
                "{}: {reason}; add this part by hand:\n{part}",
                path.display()
            )
        })?;
        write_config(path, &before, &text)
    }
}

/// Reads the configuration file; returns an empty text if it is missing.
fn read_config(path: &Path) -> Result<String, String> {
    let told = |error: io::Error| format!("{}: {error}", path.display());
    let bytes = match tooldock_base::regular_file::read_following(path, CONFIG_MAX) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        Err(error) => return Err(told(error)),
    };
    String::from_utf8(bytes.to_vec()).map_err(|_| format!("{}: no UTF-8 text", path.display()))
}

/// Replaces the configuration file atomically. If the file was valid before, it is only replaced by a valid one.
fn write_config(path: &Path, before: &str, text: &str) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt as _;
    if let (Ok(()), Err(error)) = (config::check_text(before), config::check_text(text)) {
        return Err(format!("{}: not changed: {error}", path.display()));
    }
    let told = |error: io::Error| format!("{}: {error}", path.display());
    // If the path is a symbolic link, its target is replaced and the link stays.
    let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mode = match fs::metadata(&target) {
        Ok(metadata) => metadata.permissions().mode() & 0o7777,
        Err(_) => 0o600,
    };
    let target = std::path::absolute(&target).map_err(told)?;
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder).map_err(told)?;
    }
    write_atomically(&target, text.as_bytes(), mode).map_err(told)
}

/// Removes a server from the file that contains it. Returns the file, and for the configuration file also the section, as a text
/// for the user; `None` if there is no such server.
pub(super) fn remove(gateway: &Gateway, name: &NamespaceName) -> Result<Option<String>, String> {
    let mut file = LockedServers::open(gateway.data()).map_err(|error| error.to_string())?;
    if file.remove(name) {
        file.save().map_err(|error| error.to_string())?;
        return Ok(Some("external/config.yaml".to_owned()));
    }
    let path = &gateway.config_file;
    let before = read_config(path)?;
    for kind in [Kind::Stdio, Kind::Remote] {
        let tree: Mapping = yaml::from_str(&before).unwrap_or_default();
        let [upstreams, key] = config_path(kind);
        let is_there = tree
            .get(upstreams)
            .and_then(|it| it.get(key)?.get(name.as_str()));
        if is_there.is_some() {
            let text = yaml_edit::remove(&before, &config_path(kind), name.as_str());
            let text = text.map_err(|error| {
                format!(
                    "{}: {error}; remove {upstreams}.{key}.{name} by hand",
                    path.display()
                )
            })?;
            write_config(path, &before, &text)?;
            return Ok(Some(format!("{upstreams}.{key} of {}", path.display())));
        }
    }
    Ok(None)
}
