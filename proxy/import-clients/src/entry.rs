//! Entries of an MCP client's file: decides whether an entry is a command or a URL, and reads the keys that both kinds have.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use tooldock_base::secret::Secret;
use tooldock_base::yaml::{Mapping, Value as Yaml};

use crate::finding::{Finding, Weight, shown};
use crate::formats::{FileEntry, Inputs};
use crate::tree::{Member, Node, Value};
use crate::variable::{Folders, Text, is_name, parse};
use crate::{ClientFile, ClientServer, Kind, WantedVariable, name};

/// Keys that describe a server for people or for the client and do not affect the server. They are ignored without a report.
const SILENT: [&str; 14] = [
    "name",
    "description",
    "display_name",
    "displayName",
    "icon",
    "bundled",
    "gallery",
    "version",
    "type",
    "transport",
    "transportType",
    "$schema",
    "id",
    "registryUrl",
];

/// Keys that are not imported, each with the reason for the report.
const LOST: [(&str, &str); 12] = [
    (
        "dev",
        "watching and debugging are for the client that starts the server",
    ),
    (
        "required",
        "clients of the gateway start without the server, and /ready shows its state",
    ),
    (
        "oauth",
        "the client signed in by itself; write oauth for the server (docs/credentials.md), then run tooldock secrets authorize",
    ),
    (
        "auth",
        "the client signed in by itself; write oauth for the server (docs/credentials.md), then run tooldock secrets authorize",
    ),
    (
        "authProviderType",
        "the client signed in by itself; write oauth for the server (docs/credentials.md)",
    ),
    (
        "scopes",
        "scopes of a sign-in belong to oauth of the server (docs/credentials.md)",
    ),
    (
        "oauth_resource",
        "the resource of a sign-in belongs to oauth of the server (docs/credentials.md)",
    ),
    (
        "headersHelper",
        "the gateway runs no program for headers; give the value as a secret in credentials or headers.set",
    ),
    (
        "envFile",
        "the gateway reads no file of variables; write them in env, with tooldock secrets set for those that are secret",
    ),
    (
        "settings",
        "settings of an extension are for the client; give them as env or args of the server",
    ),
    (
        "source",
        "the command of an extension is known to the client alone",
    ),
    (
        "alwaysLoad",
        "clients of the gateway decide by themselves which tools they load",
    ),
];

/// Reads the keys of one entry and collects its findings.
pub(crate) struct Reader<'a> {
    pub(crate) entry: &'a FileEntry<'a>,
    file: &'a ClientFile<'a>,
    inputs: &'a Inputs,
    findings: &'a mut Vec<Finding>,
    /// Keys of the entry that were read.
    taken: BTreeSet<&'a str>,
    pub(crate) is_stdio: bool,
    pub(crate) disabled: bool,
    /// The imported entry, in the keys of the gateway's configuration.
    pub(crate) keys: Mapping,
    pub(crate) limits: Mapping,
    secrets: BTreeMap<String, Secret>,
    wanted: Vec<WantedVariable>,
}

/// Reads an entry. Returns `None` and records a finding if the entry is not a server.
pub(crate) fn read(
    entry: &FileEntry<'_>,
    inputs: &Inputs,
    file: &ClientFile<'_>,
    findings: &mut Vec<Finding>,
) -> Option<ClientServer> {
    let reader = Reader {
        entry,
        file,
        inputs,
        findings,
        taken: BTreeSet::new(),
        is_stdio: false,
        disabled: entry.disabled,
        keys: Mapping::new(),
        limits: Mapping::new(),
        secrets: BTreeMap::new(),
        wanted: Vec::new(),
    };
    reader.server()
}

impl<'a> Reader<'a> {
    fn server(mut self) -> Option<ClientServer> {
        if !self.entry.node.is_map() {
            self.note_at(
                self.entry.line,
                None,
                Weight::Lost,
                "is no server: a server is a map of keys".into(),
            );
            return None;
        }
        let kind = match (self.command(), self.url()) {
            (Some(command), None) => {
                self.is_stdio = true;
                self.shared_keys();
                self.stdio(command)?
            }
            (None, Some(url)) => {
                self.shared_keys();
                self.remote(&url)?
            }
            (Some(_), Some(url)) => {
                let why = "stands beside a URL, which counts; remove one of the two";
                self.lost(self.entry.line, "command", why);
                self.shared_keys();
                self.remote(&url)?
            }
            (None, None) => {
                let kind = self.peek("type").and_then(Node::text).map(shown);
                let why = match kind.as_deref() {
                    Some(kind @ ("builtin" | "platform" | "frontend" | "inline_python")) => {
                        format!(
                            "is left out: it is a part of the client (type {kind}), and no server"
                        )
                    }
                    _ => "is left out: it has neither a command nor a URL".to_owned(),
                };
                self.note_at(self.entry.line, None, Weight::Lost, why);
                return None;
            }
        };
        self.rest();
        Some(self.finished(kind))
    }

    fn finished(mut self, kind: Kind) -> ClientServer {
        self.wanted
            .retain(|it| !self.secrets.contains_key(&it.name));
        if let Some(limits) = self.take_limits() {
            self.keys.insert("limits".into(), Yaml::Mapping(limits));
        }
        if self.disabled {
            self.keys.insert("enabled".into(), false.into());
        }
        ClientServer {
            label: self.entry.label.clone(),
            name: name::valid(&self.entry.label),
            line: self.entry.line,
            kind,
            entry: self.keys,
            secrets: self.secrets,
            wanted: self.wanted,
        }
    }

    /// Reports the keys of the entry that were not read.
    fn rest(&mut self) {
        for Member { key, line, node } in self.entry.node.members() {
            if self.taken.contains(key.as_str()) || SILENT.contains(&key.as_str()) {
                continue;
            }
            if matches!(&node.value, Value::Null | Value::Bool(false))
                || (key == "source" && node.text() == Some("custom"))
            {
                continue;
            }
            let lost = LOST.iter().find(|(known, _)| known == key);
            let why = lost.map_or("is not known here and is left out", |(_, why)| why);
            self.lost(*line, key, why);
        }
    }

    /// Returns the value of a key without marking the key as read.
    pub(crate) fn peek(&self, key: &str) -> Option<&'a Node> {
        let node = self.entry.node.get(key)?;
        (!matches!(node.value, Value::Null)).then_some(node)
    }

    /// Returns the value of a key and marks the key as read, so that it is not reported as unknown.
    pub(crate) fn take(&mut self, key: &str) -> Option<&'a Node> {
        let member = self
            .entry
            .node
            .members()
            .iter()
            .rev()
            .find(|it| it.key == key)?;
        self.taken.insert(&member.key);
        (!matches!(member.node.value, Value::Null)).then_some(&member.node)
    }

    /// Parses a text that may contain variables. Variables for which the file has no value are recorded.
    pub(crate) fn parsed(&mut self, text: &str, line: usize, key: &str) -> Text {
        let folders = Folders {
            project: &self.entry.base,
            home: self.file.home,
        };
        let parsed = parse(text, &folders);
        for reference in parsed.references {
            let description = reference.input.and_then(|id| self.inputs.get(&id).cloned());
            let wanted = WantedVariable {
                name: reference.name,
                spelled: reference.spelled,
                description: description.filter(|it| !it.is_empty()),
                line,
                key: self.key(Some(key)),
            };
            if !self.wanted.iter().any(|it| it.name == wanted.name) {
                self.wanted.push(wanted);
            }
        }
        for spelled in parsed.unknown {
            let why = format!(
                "{} is a variable of the client, and stays as it is: write its value",
                shown(&spelled)
            );
            self.lost(line, key, &why);
        }
        parsed.text
    }

    /// Stores a credential, and returns the name that replaces it in the entry. Equal values get the same name.
    pub(crate) fn keep(&mut self, wanted: &str, value: &str) -> String {
        let wanted = match is_name(wanted) {
            true => wanted.to_owned(),
            false => crate::variable::variable_name(wanted),
        };
        let mut name = wanted.clone();
        let mut number = 2;
        loop {
            match self.secrets.get(&name) {
                Some(held) if held.expose() == value => return name,
                None if !self.wanted.iter().any(|it| it.name == name) => break,
                _ => {}
            }
            name = format!("{wanted}_{number}");
            number += 1;
        }
        self.secrets.insert(name.clone(), Secret::new(value));
        name
    }

    /// Removes a variable from the list of variables without a value, since its value was found.
    pub(crate) fn has_value(&mut self, name: &str) {
        self.wanted.retain(|it| it.name != name);
    }

    /// Makes a path absolute: relative paths begin at `base`, and `~/` is the user's home folder.
    pub(crate) fn absolute(&self, base: &Path, path: &str) -> PathBuf {
        match (path.strip_prefix("~/"), self.file.home) {
            (Some(rest), Some(home)) => home.join(rest),
            _ => base.join(path.trim_start_matches("./")),
        }
    }

    /// Reports a key that is not imported and whose omission gives clients no additional access.
    pub(crate) fn lost(&mut self, line: usize, key: &str, why: &str) {
        self.note_at(line, Some(key), Weight::Lost, why.to_owned());
    }

    /// Reports how a key is imported.
    pub(crate) fn note(&mut self, line: usize, key: &str, why: &str) {
        self.note_at(line, Some(key), Weight::Note, why.to_owned());
    }

    /// Reports a key that restricted the server's access in the client and cannot be imported. The imported server is disabled.
    pub(crate) fn security(&mut self, line: usize, key: &str, why: &str) {
        self.disabled = true;
        self.note_at(line, Some(key), Weight::Security, why.to_owned());
    }

    pub(crate) fn note_at(&mut self, line: usize, key: Option<&str>, weight: Weight, why: String) {
        let key = self.key(key);
        self.findings.push(Finding {
            line,
            key,
            weight,
            why,
        });
    }

    fn key(&self, key: Option<&str>) -> String {
        let label = match self.entry.label.as_str() {
            "" => "(no name)".to_owned(),
            label => shown(label),
        };
        match key {
            Some(key) => {
                let parts = key.split('.').map(shown);
                format!("{label}.{}", parts.collect::<Vec<_>>().join("."))
            }
            None => label,
        }
    }
}

/// A server specified on a command line.
#[derive(Clone, Default)]
pub struct ServerOptions {
    /// The program and its arguments; empty for a server with a URL.
    pub command: Vec<String>,
    /// The server's URL; `None` for a command.
    pub url: Option<String>,
    /// Environment variables of the program. Values may be credentials.
    pub env: Vec<(String, String)>,
    /// Headers of the requests to the server. Values may be credentials.
    pub headers: Vec<(String, String)>,
    /// The transport for the URL: `http` or `sse`.
    pub transport: Option<String>,
}

/// Reads a server that is specified on the command line, by the rules for servers in a file.
pub(crate) fn read_given(
    label: &str,
    given: &ServerOptions,
    file: &ClientFile<'_>,
    findings: &mut Vec<Finding>,
) -> Option<ClientServer> {
    let node = |value| Node { line: 1, value };
    let text = |text: &str| node(Value::Text(text.to_owned()));
    let member = |key: &str, node| Member {
        key: key.to_owned(),
        line: 1,
        node,
    };
    let pairs = |pairs: &[(String, String)]| {
        let pairs = pairs.iter().map(|(key, value)| member(key, text(value)));
        node(Value::Map(pairs.collect()))
    };
    let mut members = Vec::new();
    if let Some((command, arguments)) = given.command.split_first() {
        let arguments = arguments.iter().map(|it| text(it)).collect();
        members.push(member("command", text(command)));
        members.push(member("args", node(Value::List(arguments))));
    }
    members.extend(given.url.iter().map(|url| member("url", text(url))));
    members.extend(given.transport.iter().map(|it| member("type", text(it))));
    if !given.env.is_empty() {
        members.push(member("env", pairs(&given.env)));
    }
    if !given.headers.is_empty() {
        members.push(member("headers", pairs(&given.headers)));
    }
    let tree = node(Value::Map(members));
    let entry = FileEntry {
        label: label.to_owned(),
        line: 1,
        node: &tree,
        base: file.folder.to_owned(),
        disabled: false,
    };
    read(&entry, &Inputs::new(), file, findings)
}
