//! The namespaces and servers that receive a secret, for the list of secrets.

use std::collections::BTreeMap;
use std::path::Path;

use super::Scope;
use crate::config::{GlobalSecrets, NamespacesConfig};
use crate::external::{self, ServersConfig};
use crate::names::NamespaceName;
use crate::scan;

/// Names that one line of the list may have.
const NAMED_MAX: usize = 10;

/// The namespaces under `tools/` and the servers of a data directory, with the secrets that each asks for.
#[derive(Debug)]
pub struct Recipients {
    /// The rule for namespaces without one of their own.
    by_default: GlobalSecrets,
    /// Namespaces of Python tools: their rule, and the keys that they declare.
    namespaces: BTreeMap<NamespaceName, (GlobalSecrets, Vec<String>)>,
    /// Servers, and the variables that their entries name.
    servers: BTreeMap<NamespaceName, Vec<String>>,
}

impl Recipients {
    /// Reads the namespaces below a data directory, and the servers there and in the configuration. A directory that is
    /// not there has no namespaces.
    pub fn read(data: &Path, namespaces: &NamespacesConfig, servers: &ServersConfig) -> Self {
        let sources = scan::scan(&data.join("tools")).unwrap_or_default();
        let sources = sources.into_iter().filter(|it| it.has_python);
        Self {
            by_default: namespaces.defaults.global_secrets,
            namespaces: sources
                .map(|source| {
                    let (limits, ..) = source.manifest.effective_limits(&source.name, namespaces);
                    let rule = limits.global_secrets;
                    (source.name, (rule, source.manifest.secrets))
                })
                .collect(),
            servers: external::named_variables(data, servers),
        }
    }

    /// The recipients of a secret, in words. `scope` is as [`Scope`] shows it.
    pub fn of(&self, key: &str, scope: &str) -> String {
        match scope.parse() {
            Ok(Scope::Global) => self.of_global(key),
            Ok(Scope::Namespace(name)) => match self.servers.get(&name) {
                Some(names) if !names.iter().any(|it| it == key) => {
                    "nobody: the server's entry does not name it".to_owned()
                }
                _ => name.to_string(),
            },
            Ok(Scope::Principal(_)) | Err(_) => "servers with personal values".to_owned(),
        }
    }

    fn of_global(&self, key: &str) -> String {
        let is_given = |rule: GlobalSecrets, declared: &[String]| {
            rule == GlobalSecrets::All || declared.iter().any(|it| it == key)
        };
        let (given, not): (Vec<_>, Vec<_>) = self
            .namespaces
            .iter()
            .partition(|(_, (rule, declared))| is_given(*rule, declared));
        let mut parts = Vec::new();
        match (self.by_default, not.is_empty()) {
            (GlobalSecrets::All, true) => parts.push("all namespaces".to_owned()),
            (GlobalSecrets::All, false) => {
                let not = names(not.into_iter().map(|(name, _)| name));
                parts.push(format!("all namespaces but {not}"));
            }
            (GlobalSecrets::Declared, _) if given.is_empty() => {}
            (GlobalSecrets::Declared, _) => {
                parts.push(names(given.into_iter().map(|(name, _)| name)));
            }
        }
        let servers = self.servers.iter();
        let mut servers = servers
            .filter(|(_, names)| names.iter().any(|it| it == key))
            .map(|(name, _)| name)
            .peekable();
        if servers.peek().is_some() {
            parts.push(names(servers));
        }
        match parts.is_empty() {
            true => "nobody: no namespace declares it".to_owned(),
            false => parts.join(", "),
        }
    }
}

/// Names in one text, those beyond [`NAMED_MAX`] counted.
fn names<'a>(names: impl Iterator<Item = &'a NamespaceName>) -> String {
    let names: Vec<_> = names.map(NamespaceName::as_str).collect();
    let named = names[..names.len().min(NAMED_MAX)].join(", ");
    match names.len().saturating_sub(NAMED_MAX) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::yaml;

    #[test]
    fn the_recipients_of_a_secret_are_named() {
        let data = tempfile::tempdir().unwrap();
        for (name, manifest) in [
            ("a", "secrets: [TOKEN]"),
            ("b", "secrets: []"),
            ("kept", "global_secrets: declared"),
        ] {
            let folder = data.path().join("tools").join(name);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("tooldock.yaml"), manifest).unwrap();
            fs::write(folder.join("tool.py"), "").unwrap();
        }
        let servers = ServersConfig {
            stdio: yaml::from_str("{ time: { command: x, env: { KEY: '${OTHER}' } } }").unwrap(),
            ..ServersConfig::default()
        };
        let told = |config: &str, key: &str, scope: &str| {
            let namespaces = yaml::from_str(config).unwrap();
            Recipients::read(data.path(), &namespaces, &servers).of(key, scope)
        };
        let declared = "defaults: { global_secrets: declared }";
        for (config, key, scope, expected) in [
            ("{}", "TOKEN", "global", "all namespaces but kept"),
            ("{}", "OTHER", "global", "all namespaces but kept, time"),
            (declared, "TOKEN", "global", "a"),
            (declared, "OTHER", "global", "time"),
            (
                declared,
                "ANY",
                "global",
                "nobody: no namespace declares it",
            ),
            (declared, "ANY", "b", "b"),
            ("{}", "OTHER", "time", "time"),
            (
                "{}",
                "ANY",
                "time",
                "nobody: the server's entry does not name it",
            ),
            ("{}", "ANY", "principal:ada", "servers with personal values"),
        ] {
            assert_eq!(told(config, key, scope), expected, "{config} {key} {scope}");
        }
    }
}
