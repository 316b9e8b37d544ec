//! Installs the package of a server that `npx` or `uvx` runs before the server is started. The installation is a separate step
//! with its own time limit, since it may take minutes while the start of the server takes seconds.
//!
//! The step runs the same tool with the same package but without the server's program, so that the later start finds everything
//! in the tool's cache. If the command line is not understood, there is no separate step, and the start installs the package.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::timeout;
use tooldock_base::redactor::Redactor;
use tooldock_process::child::output::{LastLine, OutputLimit, Pump, Stream};
use tooldock_process::child::{Child, Exit, Priority, ProcessSpec, Stdin};

use super::process::ProcessHost;
use super::spec::{ExternalServer, StdioSpec};

/// Maximum time for an installer to end after SIGTERM; it is killed then.
const TERMINATE_GRACE: Duration = Duration::from_secs(2);

/// Options of `npx` that take no value and do not change the package.
const NPX_FLAGS: &[&str] = &[
    "-y",
    "--yes",
    "-q",
    "--quiet",
    "-s",
    "--silent",
    "--prefer-online",
    "--prefer-offline",
    "--offline",
];
/// Options of `npx` whose value is the next argument.
const NPX_VALUES: &[&str] = &["-p", "--package", "--registry", "--cache", "--userconfig"];
/// Options of `uvx` that take no value and do not change the package.
const UVX_FLAGS: &[&str] = &[
    "-q",
    "--quiet",
    "-v",
    "--verbose",
    "--offline",
    "--native-tls",
    "--no-index",
    "--no-config",
    "--no-progress",
    "--managed-python",
    "--no-managed-python",
];
const UVX_VALUES: &[&str] = &[
    "--from",
    "--with",
    "-w",
    "--with-requirements",
    "-p",
    "--python",
    "-i",
    "--index-url",
    "--default-index",
    "--index",
    "--extra-index-url",
    "-f",
    "--find-links",
    "--index-strategy",
    "--keyring-provider",
    "-c",
    "--constraints",
    "--overrides",
    "--prerelease",
    "--resolution",
    "--config-file",
    "--cache-dir",
    "--directory",
    "--project",
];

/// Command that installs the package of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstallStep {
    program: PathBuf,
    args: Vec<OsString>,
}

/// Reason why a package was not installed, as one line without secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotInstalled {
    /// The installer was ended because its time limit was over.
    #[error("not done after {}{}", humantime_serde::re::humantime::format_duration(*limit), said(last.as_deref()))]
    TooLong {
        /// The installer's time limit.
        limit: Duration,
        /// Last line that the installer printed.
        last: Option<String>,
    },
    /// The installer failed, or could not be started.
    #[error("{why}{}", said(last.as_deref()))]
    Failed {
        /// Exit status of the installer, or the reason why it could not be started.
        why: String,
        /// Last line that the installer printed.
        last: Option<String>,
    },
}

fn said(last: Option<&str>) -> String {
    last.map_or_else(String::new, |last| format!("; it said last: {last}"))
}

impl InstallStep {
    /// Returns the installation step of a server; `None` if there is no package to install, or the command line is not
    /// understood.
    pub fn of(spec: &StdioSpec) -> Option<Self> {
        let args: Option<Vec<&str>> = spec.args.iter().map(|it| it.to_str()).collect();
        let args = args?;
        let args = match spec.program.file_name()?.to_str()? {
            "npx" => npx(&args, |name| may_be_there(name, spec))?,
            "uvx" => uvx(&args)?,
            _ => return None,
        };
        Some(Self {
            program: spec.program.clone(),
            args: args.into_iter().map(Into::into).collect(),
        })
    }

    /// Runs the installer until it ends. It runs as the server would: with the server's environment and directory, under the
    /// guard, with its output in the log. Must be called in the runtime that owns child processes. Dropping the future ends the
    /// installer.
    ///
    /// # Errors
    ///
    /// [`NotInstalled`], if the installer cannot be started, fails, or takes longer than `limit`.
    pub async fn run(
        &self,
        server: &ExternalServer,
        host: &ProcessHost,
        limit: Duration,
    ) -> Result<(), NotInstalled> {
        let process = ProcessSpec {
            program: self.program.clone(),
            args: self.args.clone(),
            env: server.spec.env.clone(),
            cwd: server.spec.cwd.clone(),
            stdin: Stdin::Null,
            priority: Priority::Low,
            sandbox: None,
        };
        let servers = host.servers();
        let metrics = servers.processes_of(&server.name, host.metrics.processes());
        let spawned = Child::spawn(&process, &host.guard, &metrics).await;
        let mut child = spawned.map_err(|error| NotInstalled::Failed {
            why: error.to_string(),
            last: None,
        })?;
        let last = LastLine::default();
        let output = OutputLimit::new(servers.output_suppressed(&server.name))
            .hiding(Redactor::new(&server.spec.secrets))
            .remembering(&last)
            .keeping(host.output.of(&server.name), None);
        let stdout = child.take_stdout().map(|reader| Pump {
            namespace: server.name.clone(),
            stream: Stream::Stdout,
            reader,
            limit: output.clone(),
            addressed: false,
        });
        let stderr = child.take_stderr().map(|reader| Pump {
            namespace: server.name.clone(),
            stream: Stream::Stderr,
            reader,
            limit: output,
            addressed: false,
        });
        let log = async {
            let stdout = async {
                if let Some(pump) = stdout {
                    pump.log().await;
                }
            };
            let stderr = async {
                if let Some(pump) = stderr {
                    pump.log().await;
                }
            };
            tokio::join!(stdout, stderr);
        };
        // The log ends as well, since the guard ends the installer's remaining processes, which close their output.
        let ended = timeout(limit, async { tokio::join!(child.wait(), log).0 }).await;
        match ended {
            Ok(Exit::Code(0)) => Ok(()),
            Ok(exit) => Err(NotInstalled::Failed {
                why: exit.to_string(),
                last: last.line(),
            }),
            Err(_) => {
                child.stop(TERMINATE_GRACE).await;
                Err(NotInstalled::TooLong {
                    limit,
                    last: last.line(),
                })
            }
        }
    }
}

/// Converts the arguments of `npx -y PACKAGE ARGS` to those of `npx --yes --package=PACKAGE -c :`, which installs the package
/// and runs the shell command `:`, which does nothing.
fn npx(args: &[&str], may_be_there: impl Fn(&str) -> bool) -> Option<Vec<String>> {
    let (options, package) = split(args, NPX_FLAGS, NPX_VALUES)?;
    let named = |it: &&&str| {
        matches!(**it, "-p" | "--package") || it.starts_with("--package=") || it.starts_with("-p=")
    };
    let mut step: Vec<String> = options.iter().map(|it| (*it).to_owned()).collect();
    if !options.iter().any(|it| named(&it)) {
        // If a program with the package's name exists, npx would run it and install nothing.
        if package.starts_with(['.', '/', '~']) || may_be_there(package) {
            return None;
        }
        step.push(format!("--package={package}"));
    }
    if !options.iter().any(|it| matches!(*it, "-y" | "--yes")) {
        step.insert(0, "--yes".to_owned());
    }
    step.extend(["-c".to_owned(), ":".to_owned()]);
    Some(step)
}

/// Converts the arguments of `uvx PACKAGE ARGS` to those of `uvx --from PACKAGE python -I -S -c ""`, which installs the package
/// and runs a Python command that imports nothing of it.
fn uvx(args: &[&str]) -> Option<Vec<String>> {
    let (options, command) = split(args, UVX_FLAGS, UVX_VALUES)?;
    let from = |it: &&str| *it == "--from" || it.starts_with("--from=");
    let mut step: Vec<String> = options.iter().map(|it| (*it).to_owned()).collect();
    if !options.iter().any(from) {
        step.extend(["--from".to_owned(), command.to_owned()]);
    }
    step.extend(["python", "-I", "-S", "-c", ""].map(str::to_owned));
    Some(step)
}

/// Splits arguments into the options and the first argument that is not an option. `None` if there is no such argument, or an
/// option is unknown, since the next argument might be its value.
fn split<'a>(
    args: &'a [&'a str],
    flags: &[&str],
    values: &[&str],
) -> Option<(&'a [&'a str], &'a str)> {
    let mut at = 0;
    loop {
        let word = *args.get(at)?;
        at += match word {
            "--" => return Some((&args[..at], args.get(at + 1)?)),
            _ if !word.starts_with('-') => return Some((&args[..at], word)),
            _ if flags.contains(&word) => 1,
            _ if values.contains(&word) => 2,
            _ if word.starts_with("--")
                && word
                    .split_once('=')
                    .is_some_and(|(name, _)| values.contains(&name)) =>
            {
                1
            }
            _ => return None,
        };
    }
}

/// Returns true if `npx` may find a program called `name` without installing a package. A name with a scope or a version is
/// always a package.
fn may_be_there(name: &str, spec: &StdioSpec) -> bool {
    if name.contains(['@', '/', ':']) {
        return false;
    }
    let value = |key: &str| {
        let found = spec.env.iter().find(|(own, _)| own == key);
        found.map(|(_, value)| value.expose())
    };
    if value("npm_config_prefix").is_some() || value("NPM_CONFIG_PREFIX").is_some() {
        return true;
    }
    let local = spec
        .cwd
        .ancestors()
        .map(|folder| folder.join("node_modules/.bin"));
    let path = std::env::split_paths(OsStr::new(value("PATH").unwrap_or_default()));
    let beside = spec.program.parent().map(Path::to_owned);
    let mut folders = local.chain(path).chain(beside);
    folders.any(|folder| {
        !folder.as_os_str().as_bytes().is_empty() && folder.join(name).symlink_metadata().is_ok()
    })
}

#[cfg(test)]
mod tests {
    use tooldock_base::secret::Secret;

    use super::*;
    use crate::external::StdioSettings;

    fn step(line: &str) -> Option<String> {
        let mut words = line.split(' ');
        let spec = StdioSpec {
            program: words.next().expect("a program").into(),
            args: words.map(Into::into).collect(),
            personal: Default::default(),
            env: vec![("PATH".into(), Secret::new("/nowhere"))],
            secrets: Vec::new(),
            cwd: "/".into(),
            settings: StdioSettings::default(),
            sandbox: Default::default(),
        };
        let step = InstallStep::of(&spec)?;
        let program = step.program.display().to_string();
        let args = step.args.iter().map(|it| match it.to_str() {
            Some("") => "''".to_owned(),
            other => other.expect("text").to_owned(),
        });
        Some(
            [program]
                .into_iter()
                .chain(args)
                .collect::<Vec<_>>()
                .join(" "),
        )
    }

    #[test]
    fn the_package_alone_is_installed_and_nothing_of_it_is_run() {
        for (line, expected) in [
            (
                "npx -y @scope/server@1.2 --stdio --package=x",
                "npx -y --package=@scope/server@1.2 -c :",
            ),
            (
                "/opt/npx a-server stdio",
                "/opt/npx --yes --package=a-server -c :",
            ),
            (
                "npx --yes -p @a/b -p c the-command -x",
                "npx --yes -p @a/b -p c -c :",
            ),
            (
                "npx -y --registry=http://r/ a@latest",
                "npx -y --registry=http://r/ --package=a@latest -c :",
            ),
            (
                "uvx mcp-server-time --local-timezone UTC",
                "uvx --from mcp-server-time python -I -S -c ''",
            ),
            (
                "uvx --from mcp[cli]==2.3 --with=x --python 3.12 mcp run",
                "uvx --from mcp[cli]==2.3 --with=x --python 3.12 python -I -S -c ''",
            ),
        ] {
            assert_eq!(step(line).as_deref(), Some(expected), "{line}");
        }
    }

    #[test]
    fn of_what_is_not_understood_nothing_is_installed_beforehand() {
        for line in [
            "node server.js",
            "npx",
            "npx -y",
            "npx -y ./server",
            "npx --no-install a-server",
            "npx -c 'a b'",
            "npx --strange a-server",
            "uvx",
            "uvx --strange mcp-server-time",
            "uvx --no-cache mcp-server-time",
        ] {
            assert_eq!(step(line), None, "{line}");
        }
    }

    #[test]
    fn a_program_that_is_there_is_not_looked_for_in_a_registry() {
        let folder = tempfile::tempdir().expect("a folder");
        let bin = folder.path().join("node_modules/.bin");
        std::fs::create_dir_all(&bin).expect("a folder");
        std::fs::write(bin.join("mine"), "").expect("a file");
        let below = folder.path().join("below");
        std::fs::create_dir(&below).expect("a folder");
        let installed = |name: &str| {
            let spec = StdioSpec {
                program: "npx".into(),
                args: vec!["-y".into(), name.into()],
                personal: Default::default(),
                env: Vec::new(),
                secrets: Vec::new(),
                cwd: below.clone(),
                settings: StdioSettings::default(),
                sandbox: Default::default(),
            };
            InstallStep::of(&spec).is_some()
        };
        assert!(!installed("mine"));
        assert!(installed("mine@1.0") && installed("@me/mine") && installed("other"));
    }
}
