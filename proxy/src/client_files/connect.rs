//! `tooldock connect`: creates an API key for an MCP client, and writes the gateway into the client's configuration file.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tooldock_base::data_dir::write_atomically;
use tooldock_base::regular_file;
use tooldock_base::secret::Secret;
use tooldock_credentials::keys::{KeyKind, KeyStore, MadeKey, NewKey};
use tooldock_import_clients::connect::{Endpoint, McpClient, UserFolders};

use super::{home, print_line};
use crate::cli::{ConnectArgs, ConnectClient, GatewayTrust};
use crate::config::{self, CoreUrl, DEFAULT_FILE, Effective, NamespaceRule, ProfileName};
use crate::operator::gateway::core_at;
use crate::{print, refuse};

/// Maximum size of an MCP client's file, in bytes.
const FILE_MAX: u64 = 64 * 1024 * 1024;
/// Maximum size of a file that contains an API key, in bytes.
const KEY_MAX: u64 = 4 * 1024;
/// Maximum number of backups beside a client's file; with more, the file is not changed.
const BACKUPS_MAX: usize = 100;
/// Text that stands in a printed entry in place of an API key.
const NO_KEY: &str = "YOUR-KEY";

/// Runs `tooldock connect`.
pub(crate) fn connect(arguments: &ConnectArgs) -> ExitCode {
    match connected(arguments) {
        Ok(text) => print(&text),
        Err(code) => code,
    }
}

fn client(of: ConnectClient) -> McpClient {
    match of {
        ConnectClient::ClaudeCode => McpClient::ClaudeCode,
        ConnectClient::ClaudeDesktop => McpClient::ClaudeDesktop,
        ConnectClient::Codex => McpClient::Codex,
        ConnectClient::Cursor => McpClient::Cursor,
        ConnectClient::Gemini => McpClient::Gemini,
        ConnectClient::LmStudio => McpClient::LmStudio,
        ConnectClient::Opencode => McpClient::OpenCode,
        ConnectClient::Vscode => McpClient::VsCode,
        ConnectClient::Windsurf => McpClient::Windsurf,
        ConnectClient::Zed => McpClient::Zed,
    }
}

fn connected(arguments: &ConnectArgs) -> Result<String, ExitCode> {
    let client = client(arguments.client);
    let effective =
        config::load_for_command(arguments.config.as_deref(), arguments.data_dir.as_deref());
    let effective = effective.map_err(refuse)?;
    let url = url(arguments, &effective).map_err(refuse)?;
    let name = match (&arguments.name, &arguments.namespace) {
        (Some(name), _) => name.clone(),
        (None, Some(namespace)) => format!("tooldock-{namespace}"),
        (None, None) => "tooldock".to_owned(),
    };
    let endpoint = |key| Endpoint {
        name: &name,
        url: &url,
        key,
    };
    if arguments.print {
        let (key, line) = match (&arguments.key_file, arguments.make_key) {
            (Some(file), _) => (
                key_of(file).map_err(refuse)?,
                "the key of --key-file is in this text",
            ),
            (None, true) => (
                create_key(arguments, &effective, &name)?.text,
                "a key is made, and is in this text",
            ),
            (None, false) => (
                Secret::new(NO_KEY),
                "no key is made: put one in the place of YOUR-KEY, or say --make-key",
            ),
        };
        let text = client
            .merged("", &endpoint(key.expose()), false)
            .map_err(refuse)?;
        print_line(&format!("tooldock: {line}"));
        return Ok(text);
    }
    let file = match &arguments.file {
        Some(file) => file.clone(),
        None => own_file(client).map_err(refuse)?,
    };
    let told = |error: io::Error| refuse(format_args!("{}: {error}", file.display()));
    let before = read(&file).map_err(told)?;
    let text = before.as_deref().unwrap_or_default();
    let not_merged = |error| {
        refuse(format_args!(
            "{}: {error}; nothing is changed, and no key is made. --replace writes over an entry, --name gives another name",
            file.display()
        ))
    };
    // The change is tried with a placeholder first, so that no key is created for a file that cannot be changed.
    let tried = client.merged(text, &endpoint(NO_KEY), arguments.replace);
    tried.map_err(not_merged)?;
    let (key, id) = match &arguments.key_file {
        Some(file) => (key_of(file).map_err(refuse)?, None),
        None => {
            let made = create_key(arguments, &effective, &name)?;
            (made.text.clone(), Some(made.record.id))
        }
    };
    let merged = client.merged(text, &endpoint(key.expose()), arguments.replace);
    let merged = merged.map_err(not_merged)?;
    let written = write(&file, before.as_deref(), &merged);
    if let Err(error) = written {
        if let Some(id) = id {
            // The new key is revoked, since no file contains it.
            let _ = store(&effective)?.revoke(id);
        }
        print_line(&format!(
            "tooldock: {}: {error}; nothing is changed",
            file.display()
        ));
        return Err(ExitCode::FAILURE);
    }
    let mut report = format!(
        "{}: {}.{name} leads to {url}\n",
        file.display(),
        client.servers_key()
    );
    if let Some(id) = id {
        report.push_str(&format!("key: {id}; `tooldock keys revoke {id}` ends it\n"));
    }
    report.push_str("Next: start the client anew.\n");
    Ok(report)
}

/// Returns the URL at which the client reaches the MCP endpoint.
fn url(arguments: &ConnectArgs, effective: &Effective) -> Result<String, String> {
    let trust = GatewayTrust {
        ca: None,
        insecure: false,
    };
    let base = match &arguments.url {
        Some(url) if url.starts_with("http://") || url.starts_with("https://") => url.clone(),
        Some(_) => return Err("--url: write http://HOST:PORT or https://HOST".to_owned()),
        None => match effective.config.admission.public_url.origin() {
            Some(origin) => {
                let is_own = origin.parse::<CoreUrl>().is_ok_and(|it| it.is_local());
                // The configuration file was not named by the user, but found in the current folder. It may come from another
                // author, and its public URL could send the API key to any host.
                if arguments.config.is_none() && !is_own {
                    let source = effective
                        .source
                        .as_deref()
                        .unwrap_or(Path::new(DEFAULT_FILE));
                    let source = source.display();
                    return Err(format!(
                        "admission.public_url of {source} is {origin}, which is no address of this machine, and the key would \
                         go there: say -c {source} or --url {origin} if it is yours"
                    ));
                }
                origin.to_owned()
            }
            None => core_at(effective, None, &trust)?.0.url.to_string(),
        },
    };
    if base.starts_with("unix:") {
        return Err("the core listens on a Unix socket alone, which no client reaches: name its address with --url".to_owned());
    }
    let base = base.trim_end_matches('/');
    let base = base.strip_suffix("/mcp").unwrap_or(base);
    match &arguments.namespace {
        Some(namespace) => Ok(format!("{base}/mcp/{namespace}")),
        None => {
            let is_header = |it: &config::ListenerConfig| {
                it.namespace_source(it.profile.spec()) == NamespaceRule::Header
            };
            let mut cores = effective.config.listeners.iter();
            let core = cores.find(|it| it.profile == ProfileName::Core);
            match core.is_some_and(is_header) && arguments.url.is_none() {
                true => Err("name a namespace: tooldock connect CLIENT NAMESPACE. For all of them at once, the listener needs namespace: global".to_owned()),
                false => Ok(format!("{base}/mcp")),
            }
        }
    }
}

fn store(effective: &Effective) -> Result<KeyStore, ExitCode> {
    let store = KeyStore::open(effective.keys_file(), effective.scopes()).map_err(refuse)?;
    store.set_makers(effective.config.admission.key_makers());
    Ok(store)
}

/// Creates an API key for the namespace, as `tooldock keys create` does.
fn create_key(
    arguments: &ConnectArgs,
    effective: &Effective,
    name: &str,
) -> Result<MadeKey, ExitCode> {
    fs::create_dir_all(&effective.data_dir).map_err(refuse)?;
    let namespaces = match &arguments.namespace {
        Some(namespace) => namespace.to_string(),
        None => "*".to_owned(),
    };
    let wanted = NewKey {
        name: format!("{}-{name}", client_name(arguments.client)),
        made_by: None,
        scopes: arguments.scope.clone(),
        namespaces: vec![namespaces],
        networks: Vec::new(),
        limits: Vec::new(),
        lifetime: None,
        kind: KeyKind::Gateway,
    };
    store(effective)?.create(wanted).map_err(refuse)
}

fn client_name(client: ConnectClient) -> String {
    use clap::ValueEnum as _;
    let value = client.to_possible_value();
    value.map(|it| it.get_name().to_owned()).unwrap_or_default()
}

fn key_of(file: &Path) -> Result<Secret, String> {
    let told = |error: io::Error| format!("--key-file: {}: {error}", file.display());
    let bytes = regular_file::read_following(file, KEY_MAX).map_err(told)?;
    let text = std::str::from_utf8(&bytes).unwrap_or_default();
    let key = text.lines().next().unwrap_or_default().trim();
    let is_key = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
    match is_key {
        true => Ok(Secret::new(key)),
        false => Err(format!(
            "--key-file: {}: its first line is no key",
            file.display()
        )),
    }
}

/// Returns the path of the client's configuration file for the current user.
fn own_file(client: McpClient) -> Result<PathBuf, String> {
    let home = home().ok_or("HOME is not set: name the client's file with --file")?;
    if client == McpClient::Codex
        && let Some(folder) = std::env::var_os("CODEX_HOME")
    {
        return Ok(PathBuf::from(folder).join("config.toml"));
    }
    let config = match (
        cfg!(target_os = "macos"),
        std::env::var_os("XDG_CONFIG_HOME"),
    ) {
        (true, _) => home.join("Library/Application Support"),
        (false, Some(folder)) if !folder.is_empty() => folder.into(),
        (false, _) => home.join(".config"),
    };
    Ok(client.file(UserFolders {
        home: &home,
        config: &config,
    }))
}

fn read(file: &Path) -> io::Result<Option<String>> {
    match regular_file::read_following(file, FILE_MAX) {
        Ok(bytes) => String::from_utf8(bytes.to_vec())
            .map(Some)
            .map_err(|_| io::Error::other("no UTF-8 text")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Replaces the client's file atomically, readable for its owner alone. The previous content is stored in a backup beside it.
fn write(file: &Path, before: Option<&str>, text: &str) -> io::Result<()> {
    // If the path is a symbolic link, as dotfile managers create it, the target is replaced and the link stays.
    let file = match file.canonicalize() {
        Ok(target) => target,
        Err(_) => std::path::absolute(file)?,
    };
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    if let Some(before) = before {
        let mode = fs::metadata(&file)?.permissions().mode() & 0o7777;
        back_up(&file, before, mode)?;
    }
    // The file contains an API key from now on, so that only its owner may read it.
    write_atomically(&file, text.as_bytes(), 0o600)
}

/// Stores the previous content of a file beside it as `FILE.bak`, or with a number if that file has different content.
fn back_up(file: &Path, before: &str, mode: u32) -> io::Result<()> {
    for number in 1..=BACKUPS_MAX {
        let mut backup = OsString::from(file);
        backup.push(".bak");
        if number > 1 {
            backup.push(format!(".{number}"));
        }
        let backup = Path::new(&backup);
        let mut options = OpenOptions::new();
        match options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(backup)
        {
            Ok(mut made) => {
                made.write_all(before.as_bytes())?;
                return made.set_permissions(fs::Permissions::from_mode(mode));
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let is_same = regular_file::read(backup, FILE_MAX)
                    .is_ok_and(|kept| *kept == *before.as_bytes());
                if is_same {
                    return Ok(());
                }
            }
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other(format!(
        "there are {BACKUPS_MAX} files FILE.bak already; remove some"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_writes_over_no_file_and_equal_ones_are_kept_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("mcp.json");
        let at = |name: &str| fs::read_to_string(folder.path().join(name)).expect(name);
        fs::write(folder.path().join("mcp.json.bak"), "of the user").expect("written");
        for _ in 0..2 {
            back_up(&file, "before", 0o640).expect("kept");
        }
        back_up(&file, "later", 0o600).expect("kept");
        assert_eq!(at("mcp.json.bak"), "of the user");
        assert_eq!(at("mcp.json.bak.2"), "before");
        assert_eq!(at("mcp.json.bak.3"), "later");
        let mode = fs::metadata(folder.path().join("mcp.json.bak.2")).expect("there");
        assert_eq!(mode.permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 3);
    }
}
