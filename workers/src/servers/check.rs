//! Check of external servers for `tooldock check`: the servers that a reload would create, and problems that would otherwise
//! appear only when a server is started. Nothing is started and nothing is written.

use std::collections::BTreeSet;
use std::path::Path;

use tooldock_base::config::NamespacesConfig;
use tooldock_base::names::NamespaceName;
use tooldock_base::precedence::{COLLISION, Claim, EXTERNAL_FILE, Names};
use tooldock_base::server_failure::MISSING;
use tooldock_credentials::secrets::Secrets;

use super::{External, Server, ServerPlace, ServersConfig, resolve};
use crate::external::{ServersFile, not_startable};
use crate::manifest::effective_limits;
use crate::remote::Backend;
use crate::server_settings::Isolation;

/// Result of checking the external servers of a data directory and a configuration.
#[derive(Debug, Default)]
pub struct ServerCheck {
    /// The servers that a reload would serve, sorted by name.
    pub servers: Vec<CheckedServer>,
    /// Problems of the servers that the check found.
    pub findings: Vec<Finding>,
    /// The namespaces of all configured servers, including disabled ones and those that cannot start.
    pub names: BTreeSet<NamespaceName>,
}

/// A server in the result of a check.
#[derive(Debug, PartialEq, Eq)]
pub struct CheckedServer {
    /// The server's namespace.
    pub name: NamespaceName,
    /// Configuration key under which the server is configured.
    pub place: String,
    /// The program of a stdio server, without its arguments; the backends of a remote server.
    pub command: String,
    /// Sharing of the server's processes or sessions among clients.
    pub isolation: Isolation,
    /// The backends of a remote server; empty for a stdio server.
    pub backends: Vec<Backend>,
    /// True if host names of the backends may resolve to addresses that are not public; otherwise such addresses are refused.
    pub allow_private: bool,
    /// Reason why this machine cannot start a stdio server; `None` if no reason was found.
    pub lacks: Option<String>,
}

/// A problem that a check found. Contains no value of a variable.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    /// File or configuration key with the problem.
    pub place: String,
    /// The problem and the remedy.
    pub message: String,
    /// True if the problem can only be resolved by an edit; false for a warning, which may not apply on the gateway's machine
    /// with its environment and `PATH`.
    pub is_error: bool,
}

/// Checks all servers, as far as possible without starting them.
///
/// `claims` are the names that sources other than `external/config.yaml` use: the configuration, and folders.
pub fn check(
    data: &Path,
    configured: &ServersConfig,
    claims: Vec<Claim>,
    namespaces: &NamespacesConfig,
    secrets: &Secrets,
) -> ServerCheck {
    let path = data.join(EXTERNAL_FILE);
    let file = ServersFile::read(data);
    checked(&path, file, (configured, claims), namespaces, secrets)
}

/// Checks a file at any path that has the format of `external/config.yaml`.
pub fn check_file(path: &Path, namespaces: &NamespacesConfig, secrets: &Secrets) -> ServerCheck {
    let file = ServersFile::read_alone(path);
    let file = file.and_then(|file| file.ok_or_else(|| "no such file".into()));
    let none = ServersConfig::default();
    checked(path, file, (&none, Vec::new()), namespaces, secrets)
}

fn checked(
    path: &Path,
    file: Result<ServersFile, String>,
    (configured, claims): (&ServersConfig, Vec<Claim>),
    namespaces: &NamespacesConfig,
    secrets: &Secrets,
) -> ServerCheck {
    let mut checked = ServerCheck::default();
    let from = path;
    let path = path.display();
    let file = file.unwrap_or_else(|message| {
        checked.error(path.to_string(), message);
        ServersFile::default()
    });
    for remark in &file.remarks {
        checked.warning(path.to_string(), remark.clone());
    }
    for name in &file.invalid_names {
        let message = "is no namespace name: lower-case letters, digits, - and _ make one";
        checked.error(format!("{path}: servers.{name}"), message);
    }
    let environment = |name: &str| std::env::var(name).ok();
    let claims: Vec<_> = claims.into_iter().chain(file.claims()).collect();
    checked.names = claims.iter().map(|claim| claim.name.clone()).collect();
    let names = Names::settle(claims).with_refused(&configured.refused);
    for (_, issue) in names.all_issues() {
        checked.warning(issue.subject, issue.message);
    }
    let allowed = &namespaces.env_allowed;
    for external in resolve(configured, &file, &names, secrets, &environment, allowed) {
        checked.look_at(external, from, namespaces);
    }
    checked
}

impl ServerCheck {
    fn look_at(&mut self, external: External, file: &Path, namespaces: &NamespacesConfig) {
        let place = match external.place {
            ServerPlace::Stdio | ServerPlace::Remote | ServerPlace::OpenApi => {
                format!("{}.{}", external.place.key(), external.name)
            }
            ServerPlace::File => {
                format!("{}: servers.{}", file.display(), external.name)
            }
        };
        let at = |key: &str| format!("{place}.{key}");
        let (.., clamped) = effective_limits(
            &external.limits,
            external.place.file(),
            &external.name,
            namespaces,
        );
        for issue in &clamped {
            self.warning(at("limits"), issue.message.clone());
        }
        let own = external.issues.iter();
        // Collisions of names are excluded: they are reported once for all sources.
        for issue in own.filter(|it| it.code != COLLISION) {
            self.warning(at(&issue.subject), issue.message.clone());
        }
        match external.server {
            Err(failure) => self.findings.push(Finding {
                place: at(&failure.reason.key),
                message: failure.reason.message,
                is_error: failure.code != MISSING,
            }),
            Ok(Server::Remote(server)) => {
                let backends = server.spec.backends.iter().map(|it| it.id.to_string());
                self.servers.push(CheckedServer {
                    name: external.name,
                    place,
                    command: backends.collect::<Vec<_>>().join(" "),
                    isolation: server.spec.isolation,
                    backends: server
                        .spec
                        .backends
                        .iter()
                        .map(|it| it.backend.clone())
                        .collect(),
                    allow_private: server.spec.allow_private,
                    lacks: None,
                });
            }
            Ok(Server::Stdio(server)) => {
                let lacks = not_startable(&server.spec);
                if let Some((key, message)) = &lacks {
                    self.warning(at(key), message.clone());
                }
                self.servers.push(CheckedServer {
                    name: external.name,
                    place,
                    command: server.spec.program.display().to_string(),
                    isolation: server.spec.settings.isolation,
                    backends: Vec::new(),
                    allow_private: false,
                    lacks: lacks.map(|(_, message)| message),
                });
            }
        }
    }

    fn error(&mut self, place: impl Into<String>, message: impl Into<String>) {
        self.findings.push(Finding {
            place: place.into(),
            message: message.into(),
            is_error: true,
        });
    }

    fn warning(&mut self, place: impl Into<String>, message: impl Into<String>) {
        self.findings.push(Finding {
            place: place.into(),
            message: message.into(),
            is_error: false,
        });
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use tooldock_base::yaml;

    use std::collections::BTreeMap;

    use crate::scan;

    use super::*;

    fn looked_at(data: &Path, configured: &str) -> ServerCheck {
        let configured = ServersConfig {
            stdio: yaml::from_str(configured).unwrap(),
            ..ServersConfig::default()
        };
        let mut claims = crate::servers::configured(&configured, &BTreeMap::new());
        claims.extend(scan::claims(&data.join("tools")));
        check(
            data,
            &configured,
            claims,
            &NamespacesConfig::default(),
            &Secrets::default(),
        )
    }

    fn file(text: &str) -> tempfile::TempDir {
        let data = tempfile::tempdir().unwrap();
        fs::create_dir(data.path().join("external")).unwrap();
        fs::write(data.path().join(EXTERNAL_FILE), text).unwrap();
        data
    }

    #[test]
    fn servers_of_both_places_are_listed_with_their_place() {
        let data =
            file("servers: { b: { command: sh, isolation: session }, c: { enabled: false } }");
        let checked = looked_at(data.path(), "{ a: { command: /bin/sh } }");
        assert_eq!(checked.findings, []);
        let [a, b] = &checked.servers[..] else {
            panic!("{checked:?}")
        };
        assert_eq!((a.name.as_str(), &*a.place), ("a", "upstreams.stdio.a"));
        assert!(b.place.ends_with("/external/config.yaml: servers.b"));
        assert_eq!((&*b.command, b.isolation), ("sh", Isolation::Session));
    }

    #[test]
    fn everything_wrong_has_a_place_and_only_what_an_edit_mends_is_an_error() {
        let data = file(
            "servers: { Bad.Name: {}, kind: { command: sh, isolation: none }, none: {}, \
             token: { command: sh, env: { T: '${NOT_SET_ANYWHERE}' } }, \
             gone: { command: no-such-server }, there: { command: /no/such }, \
             lost: { command: sh, cwd: /no/such }, big: { command: sh, limits: { timeout: 2days } } }\n\
             other: 1",
        );
        fs::create_dir_all(data.path().join("tools/both")).unwrap();
        let checked = looked_at(data.path(), "{ both: { command: sh, args: ['${X}'] } }");
        let mut found: Vec<(String, bool)> = checked
            .findings
            .iter()
            .map(|it| {
                let below = it.place.rsplit_once("external/config.yaml");
                let place = below.map_or(&*it.place, |(_, rest)| {
                    rest.trim_start_matches(": servers.")
                });
                (place.to_owned(), it.is_error)
            })
            .collect();
        found.sort();
        let expected = [
            ("", false),
            ("Bad.Name", true),
            ("big.limits", false),
            ("gone.command", false),
            ("kind.isolation", true),
            ("lost.cwd", false),
            ("none.command", true),
            ("there.command", false),
            ("token.env.T", false),
            ("tools/both", false),
            ("upstreams.stdio.both.args[0]", false),
        ];
        assert_eq!(found, expected.map(|(place, it)| (place.to_owned(), it)));
    }

    #[test]
    fn a_file_of_servers_is_checked_wherever_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("servers.yaml");
        let look = || check_file(&path, &NamespacesConfig::default(), &Secrets::default());
        let missing = look();
        assert!(missing.findings[0].is_error && missing.findings[0].message == "no such file");
        fs::write(
            &path,
            "servers: { a: { command: sh }, b: { command: sh, warm: -1 } }",
        )
        .unwrap();
        let checked = look();
        assert_eq!(checked.servers[0].name.as_str(), "a");
        let place = format!("{}: servers.b.warm", path.display());
        assert_eq!(checked.findings[0].place, place);
    }

    #[test]
    fn a_file_that_is_no_yaml_is_an_error_and_hides_nothing_else() {
        let data = file("servers: [");
        let checked = looked_at(data.path(), "{ a: { command: sh } }");
        assert_eq!(checked.servers.len(), 1);
        assert!(checked.findings[0].place.ends_with(EXTERNAL_FILE));
        assert!(checked.findings[0].is_error);
    }

    #[test]
    fn a_command_is_looked_for_where_the_server_would() {
        let data = tempfile::tempdir().unwrap();
        let at = data.path().display();
        let program = data.path().join("server");
        fs::write(&program, "").unwrap();
        let found = |config: &str| looked_at(data.path(), config).findings.is_empty();
        let by_path = format!("{{ a: {{ command: server, env: {{ PATH: {at} }} }} }}");
        let relative = format!("{{ a: {{ command: ./server, cwd: {at} }} }}");
        assert!(!found(&by_path), "it cannot be run");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(found(&by_path) && found(&relative));
        assert!(!found("{ a: { command: server } }"));
    }
}
