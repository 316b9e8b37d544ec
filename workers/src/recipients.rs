//! Recipients of secrets: the namespaces and servers that receive each secret, for the list of secrets.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use tooldock_base::config::{GlobalSecrets, NamespacesConfig};
use tooldock_base::names::NamespaceName;
use tooldock_base::precedence::{Claim, Kind, Names};
use tooldock_credentials::secrets::{Owners, Scope, SecretSource};

use crate::external::ServersFile;
use crate::scan::{self, NamespaceSource};
use crate::servers::{self, ServersConfig};

/// Maximum number of names in one line of the list of secrets.
const NAMED_MAX: usize = 10;

/// The namespaces under `tools/` and the servers of a data directory, with the secrets that each receives.
#[derive(Debug)]
pub struct Recipients {
    /// Rule for the namespaces without a rule of their own: which global secrets they receive.
    by_default: GlobalSecrets,
    /// Namespaces of Python tools, each with its rule for global secrets and the names of the secrets that it declares.
    namespaces: BTreeMap<NamespaceName, (GlobalSecrets, Vec<String>)>,
    /// Servers, each with the names of the variables that its entry refers to.
    servers: BTreeMap<NamespaceName, Vec<String>>,
    /// The namespace that is served under each name; `None` if that is not known.
    names: Option<Names>,
    /// Values, as pairs of a namespace and a key, that the namespace does not receive, because they were set for a different
    /// namespace that had the same name earlier.
    foreign: BTreeSet<(NamespaceName, String)>,
}

impl Recipients {
    /// Reads the namespaces below a data directory, and the servers there and in the configuration. If the directory does not
    /// exist, there are no namespaces.
    pub fn read(data: &Path, namespaces: &NamespacesConfig, servers: &ServersConfig) -> Self {
        let sources = scan::scan(&data.join("tools")).unwrap_or_default();
        let sources = sources.into_iter().filter(NamespaceSource::has_code);
        Self {
            by_default: namespaces.defaults.global_secrets,
            namespaces: sources
                .map(|source| {
                    let (limits, ..) = source.manifest.effective_limits(&source.name, namespaces);
                    let rule = limits.global_secrets;
                    (source.name, (rule, source.manifest.secrets))
                })
                .collect(),
            servers: servers::named_variables(data, servers),
            names: None,
            foreign: BTreeSet::new(),
        }
    }

    /// Excludes namespaces whose name is used by another source, and values that do not belong to the namespace of their
    /// scope, as a reload does. `claims` are the names of the configuration and of folders. If the store of secrets cannot be
    /// read, no value is excluded.
    #[must_use]
    pub fn with_owners(
        mut self,
        data: &Path,
        store: &dyn SecretSource,
        claims: impl IntoIterator<Item = Claim>,
    ) -> Self {
        let file = ServersFile::read(data).unwrap_or_default();
        let names = Names::settle(claims.into_iter().chain(file.claims()));
        let is_folder = |name: &NamespaceName| {
            let served = names.served(name);
            served.map(|origin| origin.kind == Kind::Folder)
        };
        self.namespaces
            .retain(|name, _| is_folder(name) == Some(true));
        self.servers
            .retain(|name, _| is_folder(name) == Some(false));
        if let Ok(secrets) = store.read() {
            let owners = store.owners();
            let owners = owners.map_or_else(|_| Owners::unknown(), |recorded| recorded.owners);
            let issues = owners.bind(&secrets, &names, &BTreeSet::new()).issues;
            let foreign = issues.into_iter();
            self.foreign = foreign.map(|(name, it)| (name, it.subject)).collect();
        }
        self.names = Some(names);
        self
    }

    /// The recipients of a secret, as text. `scope` is the text form of a [`Scope`].
    pub fn of(&self, key: &str, scope: &str) -> String {
        match scope.parse() {
            Ok(Scope::Global) => self.of_global(key),
            Ok(Scope::Namespace(name)) => match self.why_not(key, &name) {
                Some(why) => format!("nobody: {why}"),
                None => name.to_string(),
            },
            Ok(Scope::Principal(_)) | Err(_) => "servers with personal values".to_owned(),
        }
    }

    /// Returns the reason why the namespace `name` does not receive the value `key` in its scope; `None` if it receives it.
    fn why_not(&self, key: &str, name: &NamespaceName) -> Option<&'static str> {
        if let Some(names) = &self.names {
            match names.winner(name) {
                None => return Some("there is no namespace of that name"),
                Some(claim) if !claim.enabled => return Some("the server is switched off"),
                Some(_) => {}
            }
        }
        if self.foreign.contains(&(name.clone(), key.to_owned())) {
            return Some("the value was given to another namespace of that name; set a new one");
        }
        let variables = self.servers.get(name)?;
        let is_named = variables.iter().any(|it| it == key);
        (!is_named).then_some("the server's entry does not name it")
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

/// Joins names to a text; names beyond [`NAMED_MAX`] are only counted.
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

    use tooldock_base::secret::Secret;
    use tooldock_base::yaml;
    use tooldock_credentials::secrets::{Protection, SecretStore, SecretsKey};

    use super::*;
    use crate::servers::configured;

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

    #[test]
    fn a_value_of_another_namespace_of_the_name_is_received_by_nobody() {
        let data = tempfile::tempdir().unwrap();
        let name: NamespaceName = "near".parse().unwrap();
        let folder = data.path().join("tools/near");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("tool.py"), "").unwrap();
        let key = Protection::Key(SecretsKey::new(Secret::new("key")));
        let store = SecretStore::new(data.path(), key);
        store
            .set("TOKEN", &Scope::Namespace(name.clone()), Secret::new("v"))
            .unwrap();
        let servers = ServersConfig {
            remote: yaml::from_str("{ near: { backends: ['http://a/mcp'] } }").unwrap(),
            ..ServersConfig::default()
        };
        let remote = Names::settle(configured(&servers, &Default::default()));
        let secrets = store.read().unwrap();
        let bound = Owners::default().bind(&secrets, &remote, &BTreeSet::new());
        store.record_owners(&bound.owners).unwrap();
        let told = |claims: Vec<Claim>, key: &str, scope: &str| {
            let read = Recipients::read(data.path(), &Default::default(), &Default::default());
            read.with_owners(data.path(), &store, claims).of(key, scope)
        };
        let folders = || vec![Claim::folder(&name)];
        let foreign =
            "nobody: the value was given to another namespace of that name; set a new one";
        assert_eq!(told(folders(), "TOKEN", "near"), foreign);
        assert_eq!(told(folders(), "OTHER", "near"), "near");
        assert_eq!(
            told(folders(), "TOKEN", "none"),
            "nobody: there is no namespace of that name"
        );
        let remote = configured(&servers, &Default::default());
        assert_eq!(told(remote, "TOKEN", "near"), "near");
    }
}
