//! Resolution of configured servers into usable servers: the servers of all configuration files are merged, and the values of
//! variables are inserted.
//!
//! ```text
//! upstreams.stdio ───────┐
//! upstreams.remote ──────┤
//! upstreams.openapi ─────┼─▶ resolve ─▶ variables ─▶ ExternalServer or RemoteServer, in the snapshot
//! external/config.yaml ──┘
//! ```
//!
//! `check` resolves servers in the same way without serving them, for operators who want to find problems before a start.
//!
//! No I/O: variables are passed in. An error of one server affects only the outcome of that server.

mod check;
mod claims;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tooldock_base::config::{LimitsPatch, Sandbox};
use tooldock_base::issue::Issue;
use tooldock_base::names::NamespaceName;
use tooldock_base::precedence::{EXTERNAL_FILE, Kind, Names, Origin, Source};
use tooldock_base::server_failure::{ExternalFailure, FOREIGN, INVALID, InvalidServer, MISSING};
use tooldock_base::template::{NoValue, Sources, Template};
use tooldock_credentials::personal::Personal;
use tooldock_credentials::secrets::{OWNERS_FILE, Secrets};
use tooldock_process::child::variables::server_variables;

use crate::external::{
    ExternalServer, ServersFile, StdioServerConfig, StdioServersConfig, StdioSpec,
};
use crate::openapi::OpenApiServersConfig;
use crate::registry::{SecretsStatus, UpstreamKind};
use crate::remote::{self, RemoteServer, RemoteServerConfig, RemoteServersConfig};

pub use check::{CheckedServer, Finding, ServerCheck, check, check_file};
pub use claims::configured;

/// A server that a reload is to serve.
#[derive(Debug)]
pub(crate) struct External {
    /// Namespace of the server.
    pub(crate) name: NamespaceName,
    /// The resolved server, or the reason why it cannot be used.
    pub(crate) server: Result<Server, ExternalFailure>,
    /// Names of the variables that the server's configuration refers to.
    pub(crate) variables: Vec<String>,
    /// Status of the secrets that the server's configuration refers to.
    pub(crate) secrets_status: SecretsStatus,
    /// Issues about the server that do not prevent it from being used.
    pub(crate) issues: Vec<Issue>,
    /// Limits of the server's namespace, as configured.
    pub(crate) limits: LimitsPatch,
    /// File and key in which the server is configured.
    pub(crate) place: ServerPlace,
}

/// An external MCP server, started as a process or called over HTTP.
#[derive(Debug)]
pub(crate) enum Server {
    /// A stdio server: a program to run.
    Stdio(Arc<ExternalServer>),
    /// A remote server: a pool of backends.
    Remote(Arc<RemoteServer>),
}

impl Server {
    /// Returns the upstream for the server's namespace. If the server is unchanged, the upstream that serves now is returned.
    pub(crate) fn upstream(self, serving: Option<&UpstreamKind>) -> UpstreamKind {
        match (self, serving) {
            (Self::Stdio(wanted), Some(UpstreamKind::External(serving))) if wanted == *serving => {
                UpstreamKind::External(Arc::clone(serving))
            }
            (Self::Remote(wanted), Some(UpstreamKind::Remote(serving))) if wanted == *serving => {
                UpstreamKind::Remote(Arc::clone(serving))
            }
            (Self::Stdio(wanted), _) => UpstreamKind::External(wanted),
            (Self::Remote(wanted), _) => UpstreamKind::Remote(wanted),
        }
    }
}

/// Configuration key `upstreams:`, with the external MCP servers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServersConfig {
    /// Servers that run as child processes and exchange MCP messages over pipes.
    pub stdio: StdioServersConfig,
    /// MCP servers that are called over HTTP.
    pub remote: RemoteServersConfig,
    /// HTTP APIs whose operations are served as tools.
    pub openapi: OpenApiServersConfig,
    /// Refused changes of the operator's servers in `$DATA/config.yaml`, by server; each is a sentence. See [`crate::narrow`].
    #[serde(skip)]
    pub refused: BTreeMap<NamespaceName, Vec<String>>,
}

/// A server that is called over HTTP, as configured.
#[derive(Debug, Clone)]
pub struct HttpServer<'a> {
    /// Namespace of the server.
    pub name: &'a NamespaceName,
    /// Configuration key that contains the server: `upstreams.remote` or `upstreams.openapi`.
    pub key: &'static str,
    /// Settings of the remote server, or of the remote server that an API is served as.
    pub config: Cow<'a, RemoteServerConfig>,
}

impl ServersConfig {
    /// Returns the servers that are called over HTTP: remote servers, and APIs.
    pub fn over_http(&self) -> impl Iterator<Item = HttpServer<'_>> {
        let remote = self.remote.iter().map(|(name, config)| HttpServer {
            name,
            key: ServerPlace::Remote.key(),
            config: Cow::Borrowed(config),
        });
        let apis = self.openapi.iter().map(|(name, config)| HttpServer {
            name,
            key: ServerPlace::OpenApi.key(),
            config: Cow::Owned(config.as_remote()),
        });
        remote.chain(apis)
    }
}

/// File and key in which a server is configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerPlace {
    /// The key `upstreams.stdio`, which the operator writes.
    Stdio,
    /// The key `upstreams.remote`, which the operator writes.
    Remote,
    /// The key `upstreams.openapi`, which the operator writes.
    OpenApi,
    /// The file `external/config.yaml`, which any process with write access to the data directory can change.
    File,
}

impl ServerPlace {
    /// Name of the file, if the operator's ceilings apply to it; `None` for the operator's own configuration.
    pub(crate) fn file(self) -> Option<&'static str> {
        match self {
            Self::Stdio | Self::Remote | Self::OpenApi => None,
            Self::File => Some(EXTERNAL_FILE),
        }
    }

    /// Configuration key that contains the servers of this place.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Stdio => "upstreams.stdio",
            Self::Remote => "upstreams.remote",
            Self::OpenApi => "upstreams.openapi",
            Self::File => "servers",
        }
    }
}

/// Resolves the servers that are served under their names, sorted by name. If several sources define a name, [`Names`] decides
/// which is served. `env_allowed` are the gateway's variables that servers of files in the data directory may use.
pub(crate) fn resolve(
    configured: &ServersConfig,
    file: &ServersFile,
    names: &Names,
    secrets: &Secrets,
    environment: &dyn Fn(&str) -> Option<String>,
    env_allowed: &[String],
) -> Vec<External> {
    let of = |source, kind| Origin { source, kind };
    let from_file = file.servers.iter().map(|(name, entry)| {
        let entry = entry
            .as_ref()
            .map_or_else(ServerEntry::Invalid, ServerEntry::Stdio);
        let origin = of(Source::ExternalFile, Kind::Stdio);
        (name, origin, ServerPlace::File, entry)
    });
    let stdio = configured.stdio.iter().map(|(name, config)| {
        let origin = of(config.source, Kind::Stdio);
        (name, origin, ServerPlace::Stdio, ServerEntry::Stdio(config))
    });
    let remote = configured.remote.iter().map(|(name, config)| {
        let origin = of(Source::Operator, Kind::Remote);
        (
            name,
            origin,
            ServerPlace::Remote,
            ServerEntry::Remote(config),
        )
    });
    let apis = configured
        .openapi
        .iter()
        .map(|(name, config)| (name, config.as_remote()));
    let apis: Vec<_> = apis.collect();
    let openapi = apis.iter().map(|(name, config)| {
        let origin = of(Source::Operator, Kind::Remote);
        (
            *name,
            origin,
            ServerPlace::OpenApi,
            ServerEntry::Remote(config),
        )
    });
    let all = from_file.chain(stdio).chain(remote).chain(openapi);
    let served = all.filter(|(name, origin, ..)| names.serves(name, *origin));
    let externals = served.map(|(name, _, place, entry)| {
        let mut external = one(name, place, entry, secrets, environment, env_allowed);
        external.issues.extend(names.issues(name));
        external
    });
    let mut externals: Vec<_> = externals.collect();
    externals.sort_by(|one, other| one.name.cmp(&other.name));
    externals
}

/// Resolves a stdio server that belongs only to an aggregate. `env_allowed` is as for [`resolve`].
pub(crate) fn stdio_member(
    name: &NamespaceName,
    config: &StdioServerConfig,
    secrets: &Secrets,
    environment: &dyn Fn(&str) -> Option<String>,
    env_allowed: &[String],
) -> External {
    let entry = ServerEntry::Stdio(config);
    one(
        name,
        ServerPlace::Stdio,
        entry,
        secrets,
        environment,
        env_allowed,
    )
}

/// Resolves a remote server that belongs only to an aggregate.
pub(crate) fn remote_member(
    name: &NamespaceName,
    config: &RemoteServerConfig,
    secrets: &Secrets,
    environment: &dyn Fn(&str) -> Option<String>,
) -> External {
    let entry = ServerEntry::Remote(config);
    one(name, ServerPlace::Remote, entry, secrets, environment, &[])
}

#[derive(Clone, Copy)]
enum ServerEntry<'a> {
    Stdio(&'a StdioServerConfig),
    Remote(&'a RemoteServerConfig),
    Invalid(&'a InvalidServer),
}

impl ServerEntry<'_> {
    fn limits(self) -> LimitsPatch {
        match self {
            Self::Stdio(config) => config.own_limits(),
            Self::Remote(config) => config.own_limits(),
            Self::Invalid(_) => LimitsPatch::default(),
        }
    }
}

fn one(
    name: &NamespaceName,
    place: ServerPlace,
    entry: ServerEntry<'_>,
    secrets: &Secrets,
    environment: &dyn Fn(&str) -> Option<String>,
    env_allowed: &[String],
) -> External {
    let (variables, issues, server) = match entry {
        ServerEntry::Stdio(config) => (
            variables(config),
            odd_arguments(config),
            spec(name, config, secrets, environment, env_allowed)
                .map(|spec| ExternalServer::new(name.clone(), spec))
                .map(|server| Server::Stdio(Arc::new(server))),
        ),
        ServerEntry::Remote(config) => (
            remote::variables(config),
            Vec::new(),
            remote::spec(name, config, secrets, environment).map(|spec| {
                let server = RemoteServer::new(name.clone(), spec);
                Server::Remote(Arc::new(server))
            }),
        ),
        ServerEntry::Invalid(error) => {
            let failure = failure(name, INVALID, error.clone());
            (Vec::new(), Vec::new(), Err(failure))
        }
    };
    let secrets_status = match &server {
        Err(failure) if failure.code == MISSING => SecretsStatus::Missing,
        _ if variables.is_empty() => SecretsStatus::NoSecretsNeeded,
        _ => SecretsStatus::Ok,
    };
    External {
        name: name.clone(),
        server,
        variables,
        secrets_status,
        issues,
        limits: entry.limits(),
        place,
    }
}

/// The names of the variables that the entries of servers refer to as `${NAME}`, by server. Contains the servers of the
/// configuration, and those of `external/config.yaml` below the data directory unless that file cannot be read.
pub fn named_variables(
    data: &Path,
    configured: &ServersConfig,
) -> BTreeMap<NamespaceName, Vec<String>> {
    let file = ServersFile::read(data).unwrap_or_default();
    let of_file = file.servers.iter();
    let of_file = of_file.filter_map(|(name, entry)| Some((name, variables(entry.as_ref().ok()?))));
    let stdio = configured.stdio.iter();
    let stdio = stdio.map(|(name, config)| (name, variables(config)));
    let remote = configured.over_http();
    let remote = remote.map(|it| (it.name, remote::variables(&it.config)));
    let all = of_file.chain(stdio).chain(remote);
    all.map(|(name, names)| (name.clone(), names)).collect()
}

/// The names of the variables that a server's `env` refers to, each once.
fn variables(config: &StdioServerConfig) -> Vec<String> {
    let names = config.env.values().flat_map(Template::names);
    let names: BTreeSet<_> = names.map(str::to_owned).collect();
    names.into_iter().collect()
}

/// Returns issues about arguments that look like references to variables. Such references are not replaced in arguments.
fn odd_arguments(config: &StdioServerConfig) -> Vec<Issue> {
    let odd = config
        .args
        .iter()
        .enumerate()
        .filter(|(_, argument)| looks_like_a_reference(argument));
    let issues = odd.map(|(index, _)| Issue {
        code: "not_replaced",
        subject: format!("args[{index}]"),
        message: "${…} is replaced in env only: arguments can be read by every user of the machine"
            .into(),
    });
    issues.collect()
}

fn spec(
    name: &NamespaceName,
    config: &StdioServerConfig,
    secrets: &Secrets,
    environment: &dyn Fn(&str) -> Option<String>,
    env_allowed: &[String],
) -> Result<StdioSpec, ExternalFailure> {
    let owner = secrets.personal_owner(name);
    if let Some(owner) = owner.filter(|_| !config.personal.is_empty()) {
        let what = match owner {
            Some(owner) => format!(
                "{owner} of this name got the personal values of its callers, and this server gets none; give this server another name"
            ),
            None => format!(
                "it is not known which server of this name had personal values, since {OWNERS_FILE} cannot be read, and this server gets none; restore {OWNERS_FILE} and reload"
            ),
        };
        return Err(failure(name, FOREIGN, InvalidServer::new("personal", what)));
    }
    let secrets = secrets.for_namespace(&name.owner()).values;
    let sources = Sources {
        secrets: &secrets,
        environment,
        allowed: match config.source {
            Source::Operator => None,
            Source::DataFile | Source::Folder | Source::ExternalFile => Some(env_allowed),
        },
    };
    let mut env = server_variables();
    let mut hidden = Vec::new();
    let mut personal = Personal::new(&config.personal);
    for (variable, template) in &config.env {
        let wrong = |what: String| InvalidServer::new(format!("env.{variable}"), what);
        let told = |error: NoValue| {
            let reason = wrong(error.to_string());
            match error {
                // The server counts as failed, so that it does not continue with the value of a variable that is no longer
                // allowed.
                NoValue::Missing(_) | NoValue::NotAllowed(_) => failure(name, MISSING, reason),
                NoValue::Own(_) | NoValue::Malformed => failure(name, INVALID, reason),
            }
        };
        if personal.take(variable, template, &sources).map_err(told)? {
            env.remove(OsStr::new(variable));
            continue;
        }
        let value = template.fill(&sources).map_err(told)?;
        if value.expose().contains('\0') {
            let reason = wrong("must not contain a NUL".into());
            return Err(failure(name, INVALID, reason));
        }
        hidden.extend(template.hidden(&sources));
        env.insert(variable.into(), value);
    }
    let cwd = std::path::absolute(&config.cwd).map_err(|error| {
        let reason = InvalidServer::new("cwd", error.to_string());
        failure(name, INVALID, reason)
    })?;
    Ok(StdioSpec {
        program: Path::new(&config.command).to_owned(),
        args: config.args.iter().map(Into::into).collect(),
        env: env.into_iter().collect(),
        personal,
        secrets: hidden,
        cwd,
        settings: config.settings(),
        sandbox: Sandbox::default(),
    })
}

fn failure(name: &NamespaceName, code: &'static str, reason: InvalidServer) -> ExternalFailure {
    ExternalFailure::new(name, "cannot be started", code, reason)
}

/// Returns true for arguments such as `--token=${TOKEN}`. Arguments with spaces are excluded, since they are shell scripts.
fn looks_like_a_reference(argument: &str) -> bool {
    argument.contains("${") && argument.contains('}') && !argument.contains(char::is_whitespace)
}

#[cfg(test)]
mod tests {
    use tooldock_base::precedence::COLLISION;
    use tooldock_base::secret::Secret;
    use tooldock_base::yaml;

    use super::*;
    use crate::external::check_entry;

    fn configured(yaml: &str) -> ServersConfig {
        ServersConfig {
            stdio: yaml::from_str(yaml).expect(yaml),
            ..ServersConfig::default()
        }
    }

    fn stdio(server: Result<Server, ExternalFailure>) -> Arc<ExternalServer> {
        match server {
            Ok(Server::Stdio(server)) => server,
            other => panic!("no stdio server: {other:?}"),
        }
    }

    /// The servers of both places, without any folder.
    fn resolved_all(
        configured: &ServersConfig,
        file: &ServersFile,
        secrets: &Secrets,
        environment: &dyn Fn(&str) -> Option<String>,
        env_allowed: &[String],
    ) -> Vec<External> {
        let claims = claims::configured(configured, &BTreeMap::new());
        let names = Names::settle(claims.into_iter().chain(file.claims()));
        resolve(configured, file, &names, secrets, environment, env_allowed)
    }

    fn resolved(yaml: &str, secrets: &Secrets) -> External {
        let environment = |name: &str| (name == "HERE").then(|| "hunter2".to_owned());
        let file = ServersFile::default();
        let mut all = resolved_all(&configured(yaml), &file, secrets, &environment, &[]);
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    fn one_secret() -> Secrets {
        Secrets::global([("STORED", Secret::new("hunter3"))])
    }

    #[test]
    fn a_server_gets_its_variables_and_nothing_else_of_the_gateway() {
        let external = resolved(
            "{ a: { command: x, env: { ONE: '${HERE}', TWO: 'b ${STORED}', PATH: /only } } }",
            &one_secret(),
        );
        let server = stdio(external.server);
        let value = |name: &str| {
            let found = server.spec.env.iter().find(|(key, _)| key == name);
            found.map(|(_, value)| value.expose())
        };
        assert_eq!(value("ONE"), Some("hunter2"));
        assert_eq!(value("TWO"), Some("b hunter3"));
        assert_eq!(value("PATH"), Some("/only"));
        assert!(value("LANG").is_some());
        // Set by the test runner: stands for any variable of the gateway.
        assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
        assert_eq!(value("CARGO_MANIFEST_DIR"), None);
        assert_eq!(external.variables, ["HERE", "STORED"]);
        let hidden: Vec<_> = server.spec.secrets.iter().map(Secret::expose).collect();
        assert_eq!(hidden, ["hunter2", "hunter2", "hunter3", "b hunter3"]);
        assert_eq!(external.place, ServerPlace::Stdio);
        assert_eq!(external.secrets_status, SecretsStatus::Ok);
        assert!(server.spec.cwd.is_absolute());
    }

    #[test]
    fn a_missing_variable_fails_the_server_and_names_variable_and_key() {
        let external = resolved(
            "{ a: { command: x, env: { A: '${HERE}', TOKEN: 'x${STORED}' } } }",
            &Secrets::default(),
        );
        assert_eq!(external.secrets_status, SecretsStatus::Missing);
        let failure = external.server.unwrap_err();
        let text = &failure.error.message;
        assert!(
            text.contains("env.TOKEN: ${STORED} is set neither"),
            "{text}"
        );
        assert!(!text.contains("hunter2"), "{text}");
        assert_eq!(
            (failure.code, failure.keeps_old),
            ("missing_variable", false)
        );
    }

    #[test]
    fn a_server_of_a_file_that_tools_can_write_gets_allowed_variables_and_secrets_alone() {
        let environment = |name: &str| Some(format!("value of {name}"));
        let file = |variable: &str| {
            let entry = yaml::from_str(&format!(
                "{{ command: x, env: {{ A: '${{{variable}}}' }} }}"
            ));
            let entry = check_entry(entry.expect("YAML")).expect("an entry");
            let mut file = ServersFile::default();
            file.servers.insert("a".parse().expect("a name"), Ok(entry));
            file
        };
        let resolved = |variable: &str, allowed: &[String]| {
            let none = ServersConfig::default();
            let secrets = one_secret();
            let file = file(variable);
            let mut all = resolved_all(&none, &file, &secrets, &environment, allowed);
            all.remove(0).server
        };
        let allowed = ["REGION".to_owned()];
        for variable in ["REGION", "STORED"] {
            assert!(resolved(variable, &allowed).is_ok(), "{variable}");
        }
        let failure = resolved("AWS_SECRET", &allowed).expect_err("not allowed");
        let message = &failure.error.message;
        assert!(message.contains("namespaces.env_allowed"), "{message}");
        assert!(!failure.keeps_old);
        assert!(resolved("REGION", &[]).is_err());
        // The operator's own servers may name any variable.
        let operators = configured("{ a: { command: x, env: { A: '${AWS_SECRET}' } } }");
        let (none, secrets) = (ServersFile::default(), Secrets::default());
        let mut all = resolved_all(&operators, &none, &secrets, &environment, &[]);
        assert!(all.remove(0).server.is_ok());
    }

    #[test]
    fn what_is_switched_off_is_not_there() {
        let configured = configured("{ a: { command: x, enabled: false }, b: { command: x } }");
        let mut file = ServersFile::default();
        let wrong = InvalidServer::new("command", "is missing or empty");
        file.servers.insert("a".parse().unwrap(), Err(wrong));
        let all = resolved_all(&configured, &file, &Secrets::default(), &|_| None, &[]);
        assert_eq!(all.len(), 1, "nor is its name free for another place");
        assert_eq!(all[0].name.as_str(), "b");
    }

    #[test]
    fn of_two_servers_of_one_name_the_operators_is_used() {
        let mut file = ServersFile::default();
        for name in ["a", "b"] {
            let wrong = InvalidServer::new("command", "is missing or empty");
            file.servers.insert(name.parse().unwrap(), Err(wrong));
        }
        let configured = configured("{ a: { command: mine } }");
        let mut all = resolved_all(&configured, &file, &Secrets::default(), &|_| None, &[]);
        assert_eq!(all[0].issues[0].code, COLLISION);
        let mine = stdio(all.remove(0).server);
        assert_eq!(mine.spec.program, Path::new("mine"));
        let failure = all[0].server.as_ref().unwrap_err();
        assert!(failure.error.message.contains("command: is missing"));
        assert!(failure.keeps_old);
    }

    #[test]
    fn a_reference_in_an_argument_is_pointed_out_and_a_script_is_not() {
        let external = resolved(
            "{ a: { command: sh, args: [-c, 'exec x ${HERE}', '--token=${HERE}'] } }",
            &Secrets::default(),
        );
        assert_eq!(external.issues.len(), 1);
        assert_eq!(external.issues[0].subject, "args[2]");
        let server = stdio(external.server);
        assert_eq!(server.spec.args[2], "--token=${HERE}");
    }
}
