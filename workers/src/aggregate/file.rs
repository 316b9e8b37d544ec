//! `tools.toml`: the file of an aggregate, with its servers and the tools that are initially active.
//!
//! Each error is one line with the file, the line, the column and the remedy. Reading the file looks up no value and starts no
//! server: a command that is not found, or a variable that is not set, is later an error of that server and not of the file.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod keys;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Read as _};
use std::path::Path;
use std::time::Duration;

use toml::de::DeValue;
use tooldock_base::names::NamespaceName;
use tooldock_base::regular_file;
use tooldock_base::server_failure::InvalidServer;
use tooldock_base::template::Template;

use super::spec::{
    ActivationScope, ActivePatterns, AggregateOptions, AggregateSpec, Member, MemberKind, Pin,
    ToolNames,
};
use crate::external::{Restart, StdioServerConfig};
use crate::remote::{BackendConfig, HeadersConfig, RemoteServerConfig};
use crate::server_settings::Isolation;
use keys::{AggregateText, Keys, Value};

/// Maximum size of an aggregate's file, in bytes.
const FILE_MAX: u64 = 1024 * 1024;
/// Maximum number of servers in an aggregate's file.
const SERVERS_MAX: usize = 1_000;
/// Maximum number of patterns of initially active tools in an aggregate's file.
const PATTERNS_MAX: usize = 10_000;
/// Maximum length of a server's `namespace`, in characters. Names of tools begin with it, and clients limit their length.
const PREFIX_MAX: usize = 64;
/// Default of the maximum time for a server to answer with its tools.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Transport that an aggregate is served over. It decides which keys the aggregate's file may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServedOver {
    /// The aggregate is a namespace of a gateway, which may have further namespaces.
    Http,
    /// The aggregate is the only namespace of a process and is served on the process's standard input and output.
    Stdio,
}

impl ServedOver {
    /// The default of a server's key `restart`. A gateway must keep its servers running, because its clients cannot restart
    /// them.
    fn restart(self) -> Restart {
        match self {
            Self::Http => Restart::OnFailure,
            Self::Stdio => Restart::Never,
        }
    }
}

/// Reads the file of an aggregate. Relative paths in it are relative to the file's folder.
///
/// # Errors
///
/// A one-line message with the file, the position in it, the problem, and the remedy.
pub fn read(path: &Path, over: ServedOver) -> Result<AggregateSpec, String> {
    let name = path.display().to_string();
    let text = text(path).map_err(|reason| format!("{name}: {reason}"))?;
    let source = AggregateText {
        name: &name,
        text: &text,
    };
    let folder = path.parent().unwrap_or(Path::new(""));
    spec(source, path, (folder, over))
}

fn text(path: &Path) -> Result<String, String> {
    let cannot_read = |error: io::Error| format!("cannot be read: {error}");
    let metadata = fs::metadata(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            let here = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
            let here = here.parent().unwrap_or(Path::new("/")).display();
            format!(
                "there is no such file in {here}: write one with a [[servers]] table for each server, with namespace = \"time\" and command = \"uvx mcp-server-time\", or name another with --config"
            )
        }
        _ => cannot_read(error),
    })?;
    if !metadata.is_file() {
        return Err("cannot be read: it is no regular file".into());
    }
    let file = regular_file::open_following(path).map_err(cannot_read)?;
    let mut bytes = Vec::new();
    let read = file.take(FILE_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(format!("is larger than {FILE_MAX} bytes"));
    }
    String::from_utf8(bytes).map_err(|_| "is no UTF-8 text".into())
}

fn spec(
    source: AggregateText<'_>,
    path: &Path,
    (folder, over): (&Path, ServedOver),
) -> Result<AggregateSpec, String> {
    let mut keys = source.keys()?;
    let active = active(source, &mut keys)?;
    let options = options(source, &mut keys)?;
    let servers = servers(source, &mut keys)?;
    keys.finish()?;
    let mut members: Vec<Member> = Vec::new();
    for server in servers {
        members.push(member(source, server, (folder, over))?);
    }
    Ok(AggregateSpec {
        file: path.to_owned(),
        members,
        active,
        options,
    })
}

fn active(source: AggregateText<'_>, keys: &mut Keys<'_>) -> Result<ActivePatterns, String> {
    let patterns = keys.texts("active_toolsets", PATTERNS_MAX)?;
    let texts = patterns.iter().map(|(text, _)| text.clone()).collect();
    ActivePatterns::new(texts).map_err(|error| {
        let wrong = patterns.iter().find(|(text, _)| *text == error.pattern);
        let at = wrong.map_or(0, |(_, at)| *at);
        source.error(at, format_args!("active_toolsets: {error}"))
    })
}

fn options(source: AggregateText<'_>, keys: &mut Keys<'_>) -> Result<AggregateOptions, String> {
    let defaults = AggregateOptions::default();
    let scope = choice(
        source,
        keys,
        "activation_scope",
        &[
            ("session", ActivationScope::Session),
            ("principal", ActivationScope::Principal),
            ("process", ActivationScope::Process),
        ],
    )?;
    let tool_names = choice(
        source,
        keys,
        "tool_names",
        &[("safe", ToolNames::Safe), ("as_is", ToolNames::AsIs)],
    )?;
    let mut switch = |key, default| Ok::<_, String>(keys.switch(key)?.unwrap_or(default));
    Ok(AggregateOptions {
        activation_scope: scope,
        notify_on_activation: switch("notify_on_activation", defaults.notify_on_activation)?,
        activation_patterns: switch("activation_patterns", defaults.activation_patterns)?,
        token_estimates: switch("token_estimates", defaults.token_estimates)?,
        toolman_search: switch("toolman_search", defaults.toolman_search)?,
        toolman_call: switch("toolman_call", defaults.toolman_call)?,
        activation_schemas: keys.switch("activation_schemas")?,
        tool_names: tool_names.unwrap_or_default(),
    })
}

/// Returns the servers' tables in the order of the file. A server may be written as `[[servers]]`, `[[server]]` or
/// `[servers.NAME]`.
fn servers<'a>(source: AggregateText<'a>, keys: &mut Keys<'a>) -> Result<Vec<Keys<'a>>, String> {
    let mut servers = Vec::new();
    for key in ["servers", "server"] {
        let Some(value) = keys.take(key) else {
            continue;
        };
        let at = value.span().start;
        match value.into_inner() {
            DeValue::Array(values) => {
                for value in values {
                    servers.push((None, value));
                }
            }
            DeValue::Table(table) => {
                let named = table.into_iter();
                servers.extend(named.map(|(name, value)| (Some(name), value)));
            }
            other => {
                return Err(keys.wrong(at, key, "tables, each written below [[servers]]", &other));
            }
        }
    }
    if servers.len() > SERVERS_MAX {
        let message = format!(
            "there are {} servers, more than {SERVERS_MAX}",
            servers.len()
        );
        return Err(source.error(0, message));
    }
    servers.sort_by_key(|(_, value)| value.span().start);
    let tables = servers.into_iter().map(|(name, value): (_, Value<'a>)| {
        let at = value.span().start;
        match value.into_inner() {
            DeValue::Table(table) => {
                let keys = Keys::new(source, "a server", at, table);
                Ok(match name {
                    Some(name) => keys.named(name.get_ref(), name.span().start),
                    None => keys,
                })
            }
            other => Err(keys.wrong(at, "a server", "a table below [[servers]]", &other)),
        }
    });
    tables.collect()
}

/// Reads one server of the file.
fn member(
    source: AggregateText<'_>,
    mut keys: Keys<'_>,
    (folder, over): (&Path, ServedOver),
) -> Result<Member, String> {
    let begin = keys.at();
    let (prefix, at) = match (keys.text("namespace")?, keys.name()) {
        (Some(given), _) => given,
        (None, Some(name)) => name,
        (None, None) => {
            let message = "this server has no namespace: write namespace = \"NAME\", or namespace = \"\" for names without a prefix";
            return Err(source.error(begin, message));
        }
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    if prefix.len() > PREFIX_MAX || !prefix.bytes().all(plain) {
        let message = format!(
            "namespace must be at most {PREFIX_MAX} letters, digits, \"_\", \"-\" and \".\", since names of tools begin with it"
        );
        return Err(source.error(at, message));
    }
    let command = keys.text("command")?;
    let url = keys.text("url")?;
    let from = keys.text("from")?;
    let run = Run {
        cwd: keys.text("cwd")?,
        env: keys.values("env")?,
        isolation_at: keys.place_of("isolation"),
        isolation: choice(
            source,
            &mut keys,
            "isolation",
            &[
                ("auto", Isolation::Auto),
                ("shared", Isolation::Shared),
                ("session", Isolation::Session),
                ("principal", Isolation::Principal),
            ],
        )?,
        restart_at: keys.place_of("restart"),
        restart: choice(
            source,
            &mut keys,
            "restart",
            &[
                ("never", Restart::Never),
                ("on-failure", Restart::OnFailure),
                ("always", Restart::Always),
            ],
        )?,
    };
    let headers_at = keys.place_of("headers");
    let headers = keys.values("headers")?;
    let connect_at = keys.place_of("connect_timeout");
    let connect_timeout = keys.duration("connect_timeout")?;
    let timeout_at = keys.place_of("timeout");
    let timeout = keys.duration("timeout")?;
    let pin = keys.text("pin")?;
    keys.finish()?;

    let kind = match (command, url, from) {
        (Some((command, at)), None, None) => {
            if command.trim().is_empty() {
                let message =
                    "command is empty: write the line that starts the server, as in a shell";
                return Err(source.error(at, message));
            }
            if let Some(at) = headers_at {
                let message = "headers are for a server with a url: leave them out";
                return Err(source.error(at, message));
            }
            well_formed(source, "env", &run.env)?;
            let mut config = run.of_command(command, (folder, over));
            config.limits.timeout = timeout;
            config.validate().map_err(|wrong| match &*wrong.key {
                "limits.timeout" => {
                    let at = timeout_at.unwrap_or(at);
                    source.error(at, format_args!("timeout {}", wrong.message))
                }
                _ => of_server(source, at, &run.env, &wrong),
            })?;
            MemberKind::Stdio(Box::new(config))
        }
        (None, Some((url, at)), None) => {
            run.only_for_commands(source, [run.restart_at.map(|at| ("restart", at)), None])?;
            once_each(source, &headers)?;
            well_formed(source, "headers", &headers)?;
            let mut config = of_url(url, &headers, run.isolation);
            config.limits.timeout = timeout;
            if let Some(limit) = connect_timeout {
                config.timeouts.connect = limit;
            }
            config.validate().map_err(|wrong| match &*wrong.key {
                "timeouts.connect" => {
                    let at = connect_at.unwrap_or(at);
                    source.error(at, format_args!("connect_timeout {}", wrong.message))
                }
                "limits.timeout" => {
                    let at = timeout_at.unwrap_or(at);
                    source.error(at, format_args!("timeout {}", wrong.message))
                }
                _ => of_server(source, at, &headers, &wrong),
            })?;
            MemberKind::Remote(Box::new(config))
        }
        (None, None, Some((name, at))) => {
            if over == ServedOver::Stdio {
                let message = "from is for an aggregate that a gateway serves over HTTP: there is no other namespace here. Write the command or the url of the server";
                return Err(source.error(at, message));
            }
            let isolation = run.isolation_at.map(|at| ("isolation", at));
            let restart = run.restart_at.map(|at| ("restart", at));
            run.only_for_commands(source, [isolation, restart])?;
            let timeout = timeout_at.map(|at| ("timeout", at));
            if let Some((key, at)) = timeout.or(headers_at.map(|at| ("headers", at))) {
                let message = format!(
                    "{key} is not for a server with from: the namespace it names has its own"
                );
                return Err(source.error(at, message));
            }
            let name: NamespaceName = name.parse().map_err(|error| {
                source.error(at, format_args!("from names no namespace: {error}"))
            })?;
            MemberKind::Namespace(name)
        }
        (None, None, None) => {
            let message =
                format!("the server {prefix:?} has neither command nor url: write one of them");
            return Err(source.error(begin, message));
        }
        (Some(_), Some((_, at)), _) => {
            let message = "a server has command or url, not both: leave out one of them";
            return Err(source.error(at, message));
        }
        (_, _, Some((_, at))) => {
            let message = "a server with from has no command and no url: leave out one of them";
            return Err(source.error(at, message));
        }
    };
    let pin = pin.map(|(pin, at)| {
        let read: Result<Pin, _> = pin.parse();
        read.map_err(|wrong| source.error(at, format_args!("pin {wrong}")))
    });
    Ok(Member {
        prefix,
        kind,
        connect_timeout: connect_timeout.unwrap_or(CONNECT_TIMEOUT),
        pin: pin.transpose()?,
    })
}

/// Keys of a server that define how it is run: `cwd`, `env`, `isolation`, `restart`. Each is stored with the byte offset of its
/// value in the file, for errors.
struct Run {
    cwd: Option<(String, usize)>,
    env: BTreeMap<String, (String, usize)>,
    isolation: Option<Isolation>,
    isolation_at: Option<usize>,
    restart: Option<Restart>,
    restart_at: Option<usize>,
}

impl Run {
    fn of_command(
        &self,
        command: String,
        (folder, over): (&Path, ServedOver),
    ) -> StdioServerConfig {
        let here = match folder.as_os_str().is_empty() {
            true => Path::new("."),
            false => folder,
        };
        let cwd = self.cwd.as_ref().map(|(cwd, _)| Path::new(cwd));
        let defaults = StdioServerConfig::default();
        StdioServerConfig {
            command: "sh".into(),
            args: vec!["-c".into(), command],
            env: templates(&self.env),
            // `join` with an absolute path returns that path unchanged.
            cwd: cwd.map_or_else(|| here.to_owned(), |cwd| here.join(cwd)),
            isolation: self.isolation.unwrap_or(defaults.isolation),
            restart: self.restart.unwrap_or(over.restart()),
            ..defaults
        }
    }

    /// Returns an error for keys that only a server with a command may have: `env`, `cwd` and those in `more`.
    fn only_for_commands(
        &self,
        source: AggregateText<'_>,
        more: [Option<(&str, usize)>; 2],
    ) -> Result<(), String> {
        let env = self.env.values().next().map(|(_, at)| ("env", *at));
        let cwd = self.cwd.as_ref().map(|(_, at)| ("cwd", *at));
        let mut keys = [env, cwd].into_iter().chain(more).flatten();
        match keys.next() {
            Some((key, at)) => {
                let message = format!("{key} is for a server with a command: leave it out");
                Err(source.error(at, message))
            }
            None => Ok(()),
        }
    }
}

fn of_url(
    url: String,
    headers: &BTreeMap<String, (String, usize)>,
    isolation: Option<Isolation>,
) -> RemoteServerConfig {
    let defaults = RemoteServerConfig::default();
    RemoteServerConfig {
        backends: vec![BackendConfig::new(url)],
        headers: HeadersConfig {
            set: templates(headers),
            ..HeadersConfig::default()
        },
        isolation: isolation.unwrap_or(defaults.isolation),
        // Addresses of private networks are allowed: a user who can write this file can already run any command through it.
        allow_private: true,
        ..defaults
    }
}

/// Returns an error if a value has a malformed `${NAME}` reference.
fn well_formed(
    source: AggregateText<'_>,
    key: &str,
    values: &BTreeMap<String, (String, usize)>,
) -> Result<(), String> {
    for (name, (text, at)) in values {
        let template = Template::new(text);
        let wrong = template.check();
        wrong.map_err(|wrong| source.error(*at, format_args!("{key}.{name}: {wrong}")))?;
    }
    Ok(())
}

/// Returns an error if two headers differ only in upper and lower case.
fn once_each(
    source: AggregateText<'_>,
    headers: &BTreeMap<String, (String, usize)>,
) -> Result<(), String> {
    let mut seen = BTreeMap::new();
    for (name, (_, at)) in headers {
        if let Some((other, before)) = seen.insert(name.to_ascii_lowercase(), (name, *at)) {
            let message =
                format!("headers: {other} and {name} are the same header: leave out one of them");
            return Err(source.error(before.max(*at), message));
        }
    }
    Ok(())
}

fn templates(values: &BTreeMap<String, (String, usize)>) -> BTreeMap<String, Template> {
    let values = values.iter();
    values
        .map(|(name, (text, _))| (name.clone(), Template::new(text)))
        .collect()
}

/// Returns the error about a key of a server, with the key's position in the file.
fn of_server(
    source: AggregateText<'_>,
    at: usize,
    named: &BTreeMap<String, (String, usize)>,
    wrong: &InvalidServer,
) -> String {
    let own = named
        .iter()
        .find(|(name, _)| wrong.key.ends_with(&format!(".{name}")));
    match own {
        Some((name, (_, at))) => source.error(*at, format_args!("{name}: {}", wrong.message)),
        None if wrong.key.starts_with("backends") => {
            source.error(at, format_args!("url {}", wrong.message))
        }
        None => source.error(at, wrong),
    }
}

/// Reads a key whose value must be a name in `words`, and returns the value that belongs to the name.
fn choice<T: Copy>(
    source: AggregateText<'_>,
    keys: &mut Keys<'_>,
    key: &'static str,
    words: &[(&str, T)],
) -> Result<Option<T>, String> {
    let Some((said, at)) = keys.text(key)? else {
        return Ok(None);
    };
    match words.iter().find(|(word, _)| *word == said) {
        Some((_, value)) => Ok(Some(*value)),
        None => {
            let words: Vec<_> = words
                .iter()
                .map(|(word, _)| format!("\"{word}\""))
                .collect();
            let message = format!("{key} must be one of {}", words.join(", "));
            Err(source.error(at, message))
        }
    }
}

#[cfg(test)]
mod tests;
