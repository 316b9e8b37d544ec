//! The gateway, started as by an operator: with a configuration file, tokens in the environment, and a folder of tools.

mod setup;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::process::Signal;
use tempfile::TempDir;

use super::{Process, free_address, signal};
use crate::message::{Envelope, FIRST_ID};
use crate::options::Options;
use crate::processes::{self, Memory};
use crate::wire::{exchange, get};

pub(crate) use setup::{Layout, Setup, threads};

/// Tokens of a gateway that listens on loopback for seconds: no secrets.
pub(crate) const TOKEN: &str = "load-token-not-a-secret";
pub(crate) const WRONG_TOKEN: &str = "load-token-of-nobody-000";
/// Token whose digest is in `conf.yaml`. It opens [`NAMESPACE`] only.
pub(crate) const NAMED_TOKEN: &str = "load-token-of-one-namespace";
const MANAGER_TOKEN: &str = "load-manager-token-not-a-secret";

/// The namespace under load.
pub(crate) const NAMESPACE: &str = "load";
/// A folder without tools, for a namespace without a worker.
pub(crate) const EMPTY_NAMESPACE: &str = "empty";

/// The code of a namespace of echo tools.
pub(crate) const TOOLS: &str = include_str!("../../tools/echo.py");

/// Tools that return their text.
pub(crate) const ASYNC_TOOL: &str = "echo_async";
pub(crate) const SYNC_TOOL: &str = "echo_sync";
/// Tool that notifies every open stream of its namespace that the list of tools has changed.
pub(crate) const ANNOUNCING_TOOL: &str = "announce";

/// Time limit for a start, without and with making the base environment, which may need the network. A start with an
/// existing environment takes about a second.
const READY_LIMIT: Duration = Duration::from_secs(60);
const READY_LIMIT_WITH_BASE: Duration = Duration::from_secs(600);
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// Time limit for the process to end, as its calls are answered first.
const END_LIMIT: Duration = Duration::from_secs(60);

/// A running gateway.
pub(crate) struct Gateway {
    pub(crate) address: SocketAddr,
    metrics: SocketAddr,
    process: Process,
    launch: Launch,
}

/// The command that starts a gateway, including restarts over the same data directory.
struct Launch {
    program: PathBuf,
    config: PathBuf,
    variables: Vec<(String, String)>,
    ready_limit: Duration,
    // Deleted after the last process that uses it has ended.
    folder: Arc<TempDir>,
}

impl Launch {
    fn process(&self, arguments: &[&str], log: &str) -> anyhow::Result<Process> {
        let folder = self.folder.path();
        let mut command = Command::new(&self.program);
        command
            .arg("serve")
            .arg("-c")
            .arg(&self.config)
            .args(arguments)
            .env_clear()
            .envs(inherited())
            .env("HOME", folder)
            .env("DATA_DIR", folder.join("data"))
            .env("BEARER_TOKEN", TOKEN)
            .env("MANAGER_INTERNAL_TOKEN", MANAGER_TOKEN)
            .envs(self.variables.iter().cloned());
        Process::start("the gateway", command, self.config.with_extension(log))
    }
}

impl Gateway {
    /// Starts a gateway with a namespace of echo tools and its worker.
    pub(crate) async fn with_tools(options: &Options, layout: Layout) -> anyhow::Result<Self> {
        let gateway = Self::start(options, &Setup::new(layout).python(NAMESPACE)).await?;
        gateway.has_worker(NAMESPACE).await?;
        Ok(gateway)
    }

    /// Starts a gateway and waits until it is ready: the worker of every folder runs, or has failed.
    pub(crate) async fn start(options: &Options, setup: &Setup) -> anyhow::Result<Self> {
        let folder = TempDir::with_prefix("tooldock-load-").context("a temporary folder")?;
        Self::start_in(Arc::new(folder), options, setup).await
    }

    /// Starts another process over the data directory of this one, and waits until it is ready.
    pub(crate) async fn beside(&self, options: &Options, setup: &Setup) -> anyhow::Result<Self> {
        Self::start_in(Arc::clone(&self.launch.folder), options, setup).await
    }

    async fn start_in(
        folder: Arc<TempDir>,
        options: &Options,
        setup: &Setup,
    ) -> anyhow::Result<Self> {
        let (core, metrics) = (free_address()?, free_address()?);
        let base = options.python_base_env()?;
        let ready_limit = if base.exists() {
            READY_LIMIT
        } else {
            eprintln!(
                "making the Python environment {}: this needs a package index, once",
                base.display()
            );
            READY_LIMIT_WITH_BASE
        };
        // Processes over the same data directory have separate configuration files.
        let config = folder.path().join(format!("gateway-{}.yaml", core.port()));
        let text = setup.configuration(core, metrics, &base.to_string_lossy())?;
        fs::write(&config, text).context("the gateway's configuration")?;
        // Otherwise the gateway would create its first example in the empty data directory.
        for (namespace, code) in &setup.folders {
            write_code(folder.path(), namespace, code)?;
        }
        let launch = Launch {
            program: options.gateway()?,
            config,
            variables: setup.variables.clone(),
            ready_limit,
            folder,
        };
        let mut gateway = Self {
            address: core,
            metrics,
            process: launch.process(&[], "log")?,
            launch,
        };
        gateway.is_ready().await?;
        Ok(gateway)
    }

    async fn is_ready(&mut self) -> anyhow::Result<()> {
        let core = self.address;
        let ready = async || matches!(get(core, "/ready", ANSWER_LIMIT).await, Ok((200, _)));
        self.process.until(self.launch.ready_limit, ready).await
    }

    /// Kills the process (SIGKILL), as a crash does.
    pub(crate) fn kill(&mut self) -> anyhow::Result<()> {
        self.process.child.kill().context("killing the gateway")?;
        self.process.child.wait().context("its end")?;
        Ok(())
    }

    /// Asks the process to end (SIGTERM), and waits until it has.
    pub(crate) async fn stop(&mut self) -> anyhow::Result<()> {
        signal(self.id(), Signal::TERM);
        self.process.ended(END_LIMIT).await
    }

    /// Starts the process again, once it has ended, and waits until it is ready.
    pub(crate) async fn start_again(&mut self) -> anyhow::Result<()> {
        self.process = self.launch.process(&[], "again.log")?;
        self.is_ready().await
    }

    /// Replaces the process by a successor (`serve --upgrade`), and waits until the process before has ended.
    pub(crate) async fn upgrade(&mut self) -> anyhow::Result<()> {
        let mut successor = self.launch.process(&["--upgrade"], "upgrade.log")?;
        let before = &mut self.process;
        let limit = self.launch.ready_limit + END_LIMIT;
        successor
            .until(limit, async || before.has_ended())
            .await
            .context("the successor")?;
        self.process = successor;
        self.is_ready().await
    }

    /// Size of the used pages of the sessions on disk, including the write-ahead log, in bytes.
    pub(crate) fn session_bytes(&self) -> anyhow::Result<u64> {
        const SCRIPT: &str = "import sqlite3, sys\n\
            ask = lambda name: sessions.execute('PRAGMA ' + name).fetchone()[0]\n\
            sessions = sqlite3.connect('file:' + sys.argv[1] + '?mode=ro', uri=True)\n\
            print((ask('page_count') - ask('freelist_count')) * ask('page_size'))";
        let file = self.launch.folder.path().join("data/sessions.db");
        let mut command = Command::new("python3");
        let told = command.arg("-c").arg(SCRIPT).arg(&file).output()?;
        let text = String::from_utf8_lossy(&told.stdout);
        text.trim().parse().with_context(|| {
            let error = String::from_utf8_lossy(&told.stderr);
            format!("the pages of {}: {text}{error}", file.display())
        })
    }

    /// Checks that a namespace has a worker. A gateway is also ready if workers have failed, and reports why.
    pub(crate) async fn has_worker(&self, namespace: &str) -> anyhow::Result<()> {
        if let Err(error) = self.worker(namespace) {
            // The core listener shows unauthenticated clients only its status.
            let (_, report) = get(self.metrics, "/ready", ANSWER_LIMIT).await?;
            return Err(error.context(report));
        }
        Ok(())
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn memory(&self) -> anyhow::Result<Memory> {
        Memory::of(self.id())
    }

    /// Returns the Python process of a namespace, and its socket. The guard of the process is skipped: its own arguments include
    /// all arguments of the worker.
    pub(crate) fn worker(&self, namespace: &str) -> anyhow::Result<(u32, PathBuf)> {
        let found = processes::descendants(self.id())
            .into_iter()
            .find_map(|process| {
                let arguments = processes::arguments(process);
                let value = |name: &str| {
                    let at = arguments.iter().position(|argument| argument == name)?;
                    arguments.get(at + 1)
                };
                let is_worker = !arguments.iter().any(|argument| argument == "__guard")
                    && arguments
                        .iter()
                        .any(|argument| argument == "app.worker_main")
                    && value("--namespace")? == namespace;
                is_worker.then_some((process, PathBuf::from(value("--socket")?)))
            });
        found.with_context(|| format!("no worker of {namespace} below the gateway"))
    }

    pub(crate) fn envelope(&self) -> Envelope<'static> {
        Envelope::new(self.address, TOKEN, NAMESPACE)
    }

    /// Adds a folder of echo tools, which is served after a reload.
    pub(crate) fn add_tools(&self, namespace: &str) -> anyhow::Result<()> {
        self.write_code(namespace, TOOLS)
    }

    /// Replaces the code in a namespace's folder, which is served after a reload.
    pub(crate) fn write_code(&self, namespace: &str, code: &str) -> anyhow::Result<()> {
        write_code(self.launch.folder.path(), namespace, code)
    }

    /// Replaces the code in a namespace's folder by one of its versions, and reloads; returns the gateway's report, and the
    /// milliseconds until it came. From then on the new code must answer.
    pub(crate) async fn change(
        &self,
        namespace: &str,
        version: u64,
    ) -> anyhow::Result<(f64, serde_json::Value)> {
        self.write_code(namespace, &versioned(version))?;
        let start = Instant::now();
        let report = self.reload().await.context("POST /reload")?;
        let ms = start.elapsed().as_secs_f64() * 1e3;
        let mut call = self.envelope().of(namespace).call("version");
        let called = exchange(self.address, call.with_id(FIRST_ID), ANSWER_LIMIT);
        let (status, _, body) = called.await?;
        let expected = format!("version {version} of the code");
        ensure!(
            status == 200 && body.contains(&expected),
            "after the reload with {expected} {status}: {body}"
        );
        Ok((ms, report))
    }

    /// Sends `POST /reload` and returns the gateway's report.
    pub(crate) async fn reload(&self) -> anyhow::Result<serde_json::Value> {
        let request = format!(
            "POST /reload HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\nX-Manager-Token: {MANAGER_TOKEN}\r\n\
             Content-Length: 0\r\n\r\n",
            self.address
        );
        let (status, _, body) = exchange(self.address, request.as_bytes(), ANSWER_LIMIT).await?;
        ensure!(status == 200, "/reload answered {status}: {body}");
        serde_json::from_str(&body).with_context(|| format!("/reload answered {body}"))
    }

    async fn metrics(&self) -> anyhow::Result<String> {
        let (status, text) = get(self.metrics, "/metrics", ANSWER_LIMIT).await?;
        ensure!(status == 200, "/metrics answered {status}");
        Ok(text)
    }

    /// The value of a series on the metrics listener; `None` if the series does not exist.
    pub(crate) async fn metric(&self, series: &str) -> anyhow::Result<Option<f64>> {
        Ok(value_of(&self.metrics().await?, series))
    }

    /// The sum of all series with a name, whatever their labels.
    pub(crate) async fn metric_sum(&self, name: &str) -> anyhow::Result<f64> {
        Ok(sum_of(&self.metrics().await?, name))
    }
}

/// The code of a namespace that changes, in one of its versions: the tools [`ASYNC_TOOL`] and `version`.
pub(crate) fn versioned(version: u64) -> String {
    include_str!("../../tools/versioned.py").replace("VERSION", &version.to_string())
}

fn value_of(text: &str, series: &str) -> Option<f64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    line.trim().parse().ok()
}

fn sum_of(text: &str, name: &str) -> f64 {
    let values = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let is_whole = rest.starts_with('{') || rest.starts_with(' ');
        is_whole.then(|| line.rsplit(' ').next()?.parse::<f64>().ok())?
    });
    values.sum()
}

/// Environment variables that servers inherit: search paths of programs, and package indexes.
pub(super) fn inherited() -> impl Iterator<Item = (String, String)> {
    std::env::vars().filter(|(name, _)| {
        let upper = name.to_ascii_uppercase();
        let packages = ["PIP_", "UV_", "SSL_CERT"]
            .iter()
            .any(|prefix| upper.starts_with(prefix));
        name == "PATH" || packages || upper.ends_with("_PROXY")
    })
}

/// Writes the code of a namespace. Empty code makes the folder without a file.
fn write_code(folder: &Path, namespace: &str, code: &str) -> anyhow::Result<()> {
    let tools = folder.join("data/tools").join(namespace);
    fs::create_dir_all(&tools).context("the namespace's folder")?;
    if code.is_empty() {
        return Ok(());
    }
    fs::write(tools.join("echo.py"), code).context("the tool file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_found_by_its_whole_name() {
        let text =
            "# HELP a b\nstart_seconds_sum 1.5\nstart_seconds_sum_more 2\nstate{a=\"b\"} 3\n";
        assert_eq!(value_of(text, "start_seconds_sum"), Some(1.5));
        assert_eq!(value_of(text, "state{a=\"b\"}"), Some(3.0));
        assert_eq!(value_of(text, "start"), None);
    }

    #[test]
    fn a_sum_takes_all_labels_of_one_name() {
        let text = "# TYPE a counter\na{x=\"1 2\"} 3\na{x=\"2\"} 4.5\na_b 7\na 1\n";
        assert_eq!(sum_of(text, "a"), 8.5);
        assert_eq!(sum_of(text, "b"), 0.0);
    }
}
