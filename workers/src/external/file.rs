//! `$DATA/external/config.yaml`: servers that are defined outside the gateway's configuration (EX-120).
//!
//! Tool code may be able to write to the file, so it is read like files of `tools/`: with a size limit, without following a
//! symlink out of its directory, and without blocking. An invalid entry disables only its server.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tooldock_base::names::NamespaceName;
use tooldock_base::precedence::{Claim, EXTERNAL_FILE};
use tooldock_base::server_failure::InvalidServer;
use tooldock_base::tree_file::{self, TreeFileError};
use tooldock_base::yaml::{self, Mapping, Value};

use super::config::StdioServerConfig;
use super::registry_name::{PackageType, RegistryCache, launch};

/// Path of the file with cached answers of package registries, relative to the data directory.
const CACHE_FILE: &str = "external/registry-cache.yaml";
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;

/// Maximum size of the servers' file, and of the file with cached answers of registries, in bytes.
const BYTES_MAX: u64 = 1024 * 1024;
/// Maximum number of servers in the file.
const SERVERS_MAX: usize = 1_000;

/// Parsed content of the servers' file, `external/config.yaml`.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServersFile {
    /// The servers by name, each with its configuration or the error in its entry.
    pub(crate) servers: BTreeMap<NamespaceName, Result<StdioServerConfig, InvalidServer>>,
    /// Names of entries that are not valid names of a namespace.
    pub(crate) invalid_names: Vec<String>,
    /// Warnings about the file that do not prevent a server from being served.
    pub(crate) remarks: Vec<String>,
}

/// Origin of the command in a server's entry: looked up by a name in a registry, or written in the entry itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum CommandSource {
    Registry,
    Custom,
}

/// Checks that `external/config.yaml` of a data directory can be used, if it exists.
///
/// # Errors
///
/// The problem, with the file's name.
pub fn check_servers_file(data: &Path) -> Result<(), String> {
    let read = ServersFile::read(data).map(drop);
    read.map_err(|error| format!("{EXTERNAL_FILE}: {error}"))
}

impl ServersFile {
    /// Reads `external/config.yaml` below a data directory; without the file there are no servers.
    ///
    /// # Errors
    ///
    /// The problem with the file as a whole, in one line.
    pub(crate) fn read(data: &Path) -> Result<Self, String> {
        let file = Self::read_at(&data.join(EXTERNAL_FILE), &data.join(CACHE_FILE))?;
        Ok(file.unwrap_or_default())
    }

    /// Reads a file other than `external/config.yaml` that has its format, with the cached answers of registries from the file's
    /// folder; `None` if the file does not exist.
    ///
    /// # Errors
    ///
    /// As [`ServersFile::read`].
    pub(crate) fn read_alone(path: &Path) -> Result<Option<Self>, String> {
        Self::read_at(path, &path.with_file_name("registry-cache.yaml"))
    }

    /// The namespaces that the file defines, each with its state. A name that another source defines too is a conflict.
    pub(crate) fn claims(&self) -> impl Iterator<Item = Claim> {
        let all = self.servers.iter();
        all.map(|(name, entry)| {
            // An invalid entry counts as enabled: its namespace is served as failed, with the reason.
            let enabled = entry.as_ref().map_or(true, |it| it.enabled);
            Claim::external(name, enabled)
        })
    }

    /// The names of the servers that use personal values of principals.
    pub(crate) fn personal(&self) -> impl Iterator<Item = &NamespaceName> {
        let all = self.servers.iter();
        let asks = all.filter(|(_, entry)| entry.as_ref().is_ok_and(|it| !it.personal.is_empty()));
        asks.map(|(name, _)| name)
    }

    fn read_at(path: &Path, cache_file: &Path) -> Result<Option<Self>, String> {
        let Some(tree) = read_yaml(path)? else {
            return Ok(None);
        };
        let mut file = Self::parse(tree, || cache(cache_file))?;
        file.remarks.extend(writable_by_all(path));
        Ok(Some(file))
    }

    fn parse(tree: Value, cache: impl FnOnce() -> RegistryCache) -> Result<Self, String> {
        let mut found = Self::default();
        let servers = match tree {
            Value::Null => return Ok(found),
            Value::Mapping(mut keys) => {
                let servers = keys.remove("servers").unwrap_or_default();
                for key in keys.keys() {
                    let key: String = key.as_str().unwrap_or("…").chars().take(80).collect();
                    let remark = format!("{key}: unknown key, it has no effect; use servers");
                    found.remarks.push(remark);
                }
                servers
            }
            _ => return Err("must be a mapping with the key \"servers\"".into()),
        };
        let servers = match servers {
            Value::Null => return Ok(found),
            Value::Mapping(servers) => servers,
            _ => return Err("servers: must be a mapping of names to servers".into()),
        };
        if servers.len() > SERVERS_MAX {
            return Err(format!("servers: more than {SERVERS_MAX} entries"));
        }
        let cache = cache();
        for (name, entry) in servers {
            let name = tooldock_base::template::scalar(name).unwrap_or_default();
            match name.parse::<NamespaceName>() {
                Ok(name) => {
                    found.servers.insert(name, server(entry, &cache));
                }
                Err(_) => found.invalid_names.push(name.chars().take(100).collect()),
            }
        }
        Ok(found)
    }
}

/// Returns true if `external/registry-cache.yaml` of a data directory contains the registry name.
pub(crate) fn is_cached(data: &Path, name: &str) -> bool {
    cache(&data.join(CACHE_FILE)).contains_key(name)
}

/// Checks an entry in the format of the file, and converts it.
///
/// # Errors
///
/// The invalid key, and the problem with it.
pub(crate) fn check_entry(entry: Value) -> Result<StdioServerConfig, InvalidServer> {
    server(entry, &RegistryCache::new())
}

/// End of the error message for a key in a stdio server's entry that only remote servers have.
const REMOTE: &str = "belongs to a remote server, which is reached over HTTP; remote servers stand in the operator's \
                      configuration (upstreams.remote), and a server here has a command or the name of a package";

/// Converts an entry of the file. A name in a registry is looked up in `cache`.
fn server(entry: Value, cache: &RegistryCache) -> Result<StdioServerConfig, InvalidServer> {
    let Value::Mapping(mut keys) = entry else {
        return Err(InvalidServer::new("entry", "must be a mapping of keys"));
    };
    // A key without a value is ignored.
    keys.retain(|_, value| !value.is_null());
    let source: Option<CommandSource> = take(&mut keys, "source", "must be registry or custom")?;
    let name: Option<String> = take(&mut keys, "name", "must be a text")?;
    let package_type: Option<PackageType> = take(&mut keys, "package_type", "must be npm or pypi")?;
    // Each key is deserialized separately, so that the error can name it.
    for (key, value) in &keys {
        let alone = Mapping::from_iter([(key.clone(), value.clone())]);
        if let Err(error) = yaml::from_value::<StdioServerConfig>(Value::Mapping(alone)) {
            let key = tooldock_base::template::scalar(key.clone()).unwrap_or_default();
            let text = error.to_string();
            let message = text.strip_prefix(&format!("{key}: ")).unwrap_or(&text);
            let message = match &*key {
                "backends" | "headers" | "oauth" | "url" => REMOTE.to_owned(),
                _ => message.replace(
                    "expected one of ",
                    match message.starts_with("unknown field `") {
                        true => "expected one of `source`, `name`, `package_type`, ",
                        false => "expected one of ",
                    },
                ),
            };
            return Err(InvalidServer::new(key, message));
        }
    }
    let mut config: StdioServerConfig = yaml::from_value(Value::Mapping(keys))
        .map_err(|error| InvalidServer::new("entry", error.to_string()))?;
    config.source = tooldock_base::precedence::Source::ExternalFile;
    if !config.enabled {
        // A server that is switched off is not validated further, because it may be unfinished.
        return Ok(config);
    }
    let source = source.unwrap_or(match name {
        Some(_) => CommandSource::Registry,
        None => CommandSource::Custom,
    });
    match (source, name) {
        (CommandSource::Registry, Some(name)) => {
            if !config.command.is_empty() {
                let message = "belongs to source: custom; a registry's name says what is run";
                return Err(InvalidServer::new("command", message));
            }
            let (command, mut args) = launch(&name, package_type, cache)?;
            args.append(&mut config.args);
            (config.command, config.args) = (command.into(), args);
        }
        (CommandSource::Registry, None) => {
            return Err(InvalidServer::new("name", "is missing"));
        }
        (CommandSource::Custom, _) => {}
    }
    config.validate()?;
    Ok(config)
}

/// Returns a warning if all users of the machine can write the file, because its content decides which commands the gateway
/// runs.
fn writable_by_all(file: &Path) -> Option<String> {
    [file.parent()?, file].into_iter().find_map(|path| {
        let mode = path.metadata().ok()?.mode();
        let sticky = path.is_dir() && mode & 0o1000 != 0;
        (mode & 0o002 != 0 && !sticky).then(|| {
            format!(
                "{}: every user of this machine can write here, and so run commands as the gateway; \
                 say chmod o-w",
                path.display()
            )
        })
    })
}

fn take<T: DeserializeOwned>(
    keys: &mut Mapping,
    key: &str,
    otherwise: &str,
) -> Result<Option<T>, InvalidServer> {
    let value = keys.remove(key).map(yaml::from_value).transpose();
    value.map_err(|_| InvalidServer::new(key, otherwise))
}

/// Reads the cached answers of registries; empty if the file cannot be read.
fn cache(path: &Path) -> RegistryCache {
    #[derive(Deserialize)]
    struct File {
        #[serde(default)]
        servers: RegistryCache,
    }
    let read = read_yaml(path).and_then(|tree| match tree {
        None | Some(Value::Null) => Ok(RegistryCache::new()),
        Some(tree) => yaml::from_value(tree)
            .map(|file: File| file.servers)
            .map_err(|error| error.to_string()),
    });
    read.unwrap_or_else(|error| {
        tracing::warn!(file = CACHE_FILE, %error, "the file cannot be used; package names are taken as they are");
        RegistryCache::new()
    })
}

fn read_yaml(path: &Path) -> Result<Option<Value>, String> {
    let directory = path.parent().unwrap_or(path);
    let tree = match directory.canonicalize() {
        Ok(tree) => tree,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let text = match tree_file::read(path, &tree, BYTES_MAX) {
        Ok(Some(text)) => text,
        Ok(None) => return Ok(None),
        Err(TreeFileError::Outside) => return Err("a symlink that leaves its directory".into()),
        Err(refused) => return Err(refused.to_string()),
    };
    let tree = yaml::from_slice(&text);
    tree.map(Some)
        .map_err(|error| format!("not valid YAML: {error}"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use tooldock_base::tree_file::{make_pipe, without_waiting};

    use super::*;

    fn parse(yaml: &str) -> ServersFile {
        ServersFile::parse(yaml::from_str(yaml).unwrap(), RegistryCache::new).unwrap()
    }

    fn one(entry: &str) -> Result<StdioServerConfig, InvalidServer> {
        let mut file = parse(&format!("servers: {{ a: {entry} }}"));
        file.servers.remove("a").unwrap()
    }

    #[test]
    fn the_example_of_both_sources_is_read() {
        let file = parse(
            r#"
servers:
  github:
    source: registry
    name: "modelcontextprotocol/server-github"
    enabled: true
    env:
      GITHUB_TOKEN: ${GITHUB_TOKEN}
  mssql:
    source: custom
    command: npx
    args: ["-y", "@anthropic/mcp-server-mssql"]
    isolation: session
    env:
      MSSQL_CONNECTION_STRING: ${MSSQL_CONNECTION_STRING}
"#,
        );
        let github = file.servers["github"].as_ref().unwrap();
        assert_eq!(github.command, "npx");
        assert_eq!(github.args, ["-y", "@modelcontextprotocol/server-github"]);
        let mssql = file.servers["mssql"].as_ref().unwrap();
        assert_eq!(mssql.args, ["-y", "@anthropic/mcp-server-mssql"]);
        assert_eq!(mssql.isolation, crate::server_settings::Isolation::Session);
        assert_eq!(
            mssql.env.keys().collect::<Vec<_>>(),
            ["MSSQL_CONNECTION_STRING"]
        );
    }

    #[test]
    fn a_wrong_entry_fails_alone_and_names_its_key() {
        let file = parse("servers: { good: { command: x }, bad: { command: [] }, Bad.Name: {} }");
        assert!(file.servers["good"].is_ok());
        assert_eq!(file.servers["bad"].as_ref().unwrap_err().key, "command");
        assert_eq!(file.invalid_names, ["Bad.Name"]);
        for (entry, key) in [
            ("x", "entry"),
            ("{ source: git }", "source"),
            ("{ source: registry }", "name"),
            ("{ source: registry, name: a/b, command: x }", "command"),
            ("{ name: '--help' }", "name"),
            ("{ name: a/b, package_type: deb }", "package_type"),
            ("{ source: custom }", "command"),
            ("{ command: x, port: 1 }", "port"),
            ("{ command: x, isolation: none }", "isolation"),
            ("{ command: x, env: hunter2 }", "env"),
            ("{ command: x, idle_stop: soon }", "idle_stop"),
            ("{ command: x, warm: -1 }", "warm"),
        ] {
            let error = one(entry).unwrap_err();
            assert_eq!(error.key, key, "{entry}: {error}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
        let unknown = one("{ comand: x }").unwrap_err().to_string();
        assert!(
            unknown.starts_with("comand: unknown field `comand`, expected one of `source`, `name`, `package_type`, `command`"),
            "{unknown}"
        );
        let remote = one("{ url: 'https://h/mcp' }").unwrap_err().to_string();
        assert!(remote.contains("upstreams.remote"), "{remote}");
    }

    #[test]
    fn limits_of_an_entry_are_read_and_checked() {
        let config = one("{ command: x, limits: { tools_deny: ['drop_*'] } }").unwrap();
        assert_eq!(config.limits.tools_deny.unwrap(), ["drop_*"]);
        let error = one("{ command: x, limits: { tools_deny: ['['] } }").unwrap_err();
        assert_eq!(error.key, "limits.tools_deny");
        let error = one("{ command: x, limits: { tool_deny: [] } }").unwrap_err();
        assert!(error.to_string().contains("tool_deny"), "{error}");
    }

    #[test]
    fn a_file_that_everybody_can_write_and_an_unknown_key_are_remarked() {
        use std::os::unix::fs::PermissionsExt as _;
        let data = tempfile::tempdir().unwrap();
        let path = data.path().join(EXTERNAL_FILE);
        fs::create_dir(data.path().join("external")).unwrap();
        fs::write(&path, "servers: { a: { command: x } }\nserver: {}").unwrap();
        let remarks = |mode| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            ServersFile::read(data.path()).unwrap().remarks
        };
        let private = remarks(0o600);
        assert_eq!(private.len(), 1);
        assert!(private[0].starts_with("server: unknown key"), "{private:?}");
        let open = remarks(0o666);
        assert!(open[1].contains("chmod o-w"), "{open:?}");
    }

    #[test]
    fn a_package_of_the_other_index_is_run_by_its_installer() {
        let config = one("{ name: mcp-server-time, package_type: pypi, args: [--utc] }").unwrap();
        assert_eq!(config.command, "uvx");
        assert_eq!(config.args, ["mcp-server-time", "--utc"]);
    }

    #[test]
    fn an_unfinished_entry_may_be_switched_off() {
        assert!(!one("{ source: registry, enabled: false }").unwrap().enabled);
    }

    #[test]
    fn a_file_that_is_none_at_all_says_why() {
        for yaml in ["[a]", "{ servers: [a] }", "{ servers: x }"] {
            let tree = yaml::from_str(yaml).unwrap();
            assert!(
                ServersFile::parse(tree, RegistryCache::new).is_err(),
                "{yaml}"
            );
        }
        assert!(parse("servers:").servers.is_empty() && parse("").servers.is_empty());
    }

    #[test]
    fn the_file_is_read_with_what_registries_said() {
        let data = tempfile::tempdir().unwrap();
        assert!(ServersFile::read(data.path()).unwrap().servers.is_empty());
        fs::create_dir(data.path().join("external")).unwrap();
        fs::write(
            data.path().join(CACHE_FILE),
            "servers: { a/time: { package_type: pypi, package: mcp-server-time } }",
        )
        .unwrap();
        fs::write(
            data.path().join(EXTERNAL_FILE),
            "servers: { time: { name: a/time } }",
        )
        .unwrap();
        let file = ServersFile::read(data.path()).unwrap();
        assert_eq!(file.servers["time"].as_ref().unwrap().command, "uvx");
        fs::write(data.path().join(CACHE_FILE), "servers: [").unwrap();
        let file = ServersFile::read(data.path()).unwrap();
        assert_eq!(
            file.servers["time"].as_ref().unwrap().args,
            ["-y", "@a/time"]
        );
    }

    #[test]
    fn a_pipe_a_link_out_and_a_wall_of_brackets_are_refused_without_waiting() {
        let data = tempfile::tempdir().unwrap();
        fs::create_dir(data.path().join("external")).unwrap();
        let file = data.path().join(EXTERNAL_FILE);
        let read = || {
            let data = data.path().to_owned();
            without_waiting(move || ServersFile::read(&data)).unwrap_err()
        };
        make_pipe(&file);
        assert_eq!(read(), "not a regular file");
        fs::remove_file(&file).unwrap();
        fs::write(data.path().join("secret"), "servers: {}").unwrap();
        symlink("../secret", &file).unwrap();
        assert_eq!(read(), "a symlink that leaves its directory");
        fs::remove_file(&file).unwrap();
        fs::write(&file, "[".repeat(50_000)).unwrap();
        assert_eq!(read(), format!("not valid YAML: {}", yaml::UNREADABLE));
        fs::write(&file, "servers: {a: {command: x}, a: {command: y}}").unwrap();
        assert!(read().starts_with("not valid YAML: "), "{}", read());
    }
}
