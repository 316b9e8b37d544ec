//! The gateway as an operator starts it: a configuration file, tokens in the environment, a folder of tools.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_yaml::{Mapping, Value};
use tempfile::TempDir;

use super::{Process, free_address};
use crate::message::Envelope;
use crate::options::Options;
use crate::plan::{ANNOUNCING_TOOL, ASYNC_TOOL, Layout, SYNC_TOOL};
use crate::processes::{self, Memory};
use crate::session;
use crate::wire::{Connection, exchange, get};

/// What differs from the gateway's defaults, with reasons.
const OVERRIDES: &str = include_str!("../../conf.yaml");

/// Tokens of a gateway that listens on loopback for seconds: no secrets.
pub(crate) const TOKEN: &str = "load-token-not-a-secret";
pub(crate) const WRONG_TOKEN: &str = "load-token-of-nobody-000";
const MANAGER_TOKEN: &str = "load-manager-token-not-a-secret";

/// The namespace under load.
pub(crate) const NAMESPACE: &str = "load";
/// A folder without tools, so that there is a namespace but no worker.
pub(crate) const EMPTY_NAMESPACE: &str = "empty";

/// Making the base environment may need the network and takes its time; with it in place, a start takes about a second.
const READY_LIMIT: Duration = Duration::from_secs(60);
const READY_LIMIT_WITH_BASE: Duration = Duration::from_secs(600);
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// A running gateway.
pub(crate) struct Gateway {
    pub(crate) address: SocketAddr,
    metrics: SocketAddr,
    process: Process,
    folder: TempDir,
}

impl Gateway {
    /// With a namespace of echo tools and its worker.
    pub(crate) async fn with_tools(options: &Options, layout: Layout) -> anyhow::Result<Self> {
        let gateway = Self::start(options, layout, NAMESPACE, &tools(), &[]).await?;
        // A gateway whose only namespace has failed is ready all the same, and says why.
        if let Err(error) = gateway.worker(NAMESPACE) {
            let (_, report) = get(gateway.address, "/ready", ANSWER_LIMIT).await?;
            return Err(error.context(report));
        }
        Ok(gateway)
    }

    /// With a namespace but no tool, so without any worker.
    pub(crate) async fn without_tools(options: &Options) -> anyhow::Result<Self> {
        Self::start(options, Layout::Separate, EMPTY_NAMESPACE, "", &[]).await
    }

    /// With stdio servers, by namespace, and no tools of its own.
    pub(crate) async fn with_stdio(
        options: &Options,
        servers: &[(&str, Vec<String>)],
    ) -> anyhow::Result<Self> {
        Self::start(options, Layout::Separate, EMPTY_NAMESPACE, "", servers).await
    }

    async fn start(
        options: &Options,
        layout: Layout,
        namespace: &str,
        tools: &str,
        stdio: &[(&str, Vec<String>)],
    ) -> anyhow::Result<Self> {
        let folder = TempDir::with_prefix("tooldock-load-").context("a temporary folder")?;
        let (core, metrics) = (free_address()?, free_address()?);
        let base = options.python_base_env()?;
        let limit = if base.exists() {
            READY_LIMIT
        } else {
            eprintln!(
                "making the Python environment {}: this needs a package index, once",
                base.display()
            );
            READY_LIMIT_WITH_BASE
        };
        let config = folder.path().join("tooldock.yaml");
        let text = configuration(core, metrics, layout, &base.to_string_lossy(), stdio)?;
        fs::write(&config, text).context("the gateway's configuration")?;
        let mut command = Command::new(options.gateway()?);
        command
            .arg("serve")
            .arg("-c")
            .arg(&config)
            .env_clear()
            .envs(inherited())
            .env("HOME", folder.path())
            .env("DATA_DIR", folder.path().join("data"))
            .env("BEARER_TOKEN", TOKEN)
            .env("MANAGER_INTERNAL_TOKEN", MANAGER_TOKEN);
        let log = folder.path().join("gateway.log");
        // The data directory must not be empty at the first start, or the gateway puts its first example there.
        drop_tools(&folder, namespace, tools)?;
        let process = Process::start("the gateway", command, log)?;
        let mut gateway = Self {
            address: core,
            metrics,
            process,
            folder,
        };
        let ready = async || matches!(get(core, "/ready", ANSWER_LIMIT).await, Ok((200, _)));
        gateway.process.until(limit, ready).await?;
        Ok(gateway)
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn memory(&self) -> anyhow::Result<Memory> {
        Memory::of(self.id())
    }

    /// The Python process of a namespace and its socket. Between it and the gateway stands a guard, whose arguments
    /// repeat the worker's.
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

    pub(crate) fn has_no_children(&self) -> bool {
        processes::descendants(self.id()).is_empty()
    }

    pub(crate) fn envelope(&self) -> Envelope<'static> {
        Envelope {
            to: self.address,
            token: TOKEN,
            namespace: NAMESPACE,
            session: None,
        }
    }

    /// Opens an MCP session on a connection of its own.
    pub(crate) async fn open_session(&self) -> anyhow::Result<String> {
        session::open(self.envelope()).await
    }

    /// The same over a connection that is there already.
    pub(crate) async fn open_session_on(
        &self,
        connection: &mut Connection,
    ) -> anyhow::Result<String> {
        session::open_on(self.envelope(), connection).await
    }

    /// Puts a new folder of echo tools beside the others. It is served after a reload.
    pub(crate) fn add_tools(&self, namespace: &str) -> anyhow::Result<()> {
        drop_tools(&self.folder, namespace, &tools())
    }

    /// `POST /reload`, to its answer.
    pub(crate) async fn reload(&self) -> anyhow::Result<()> {
        let request = format!(
            "POST /reload HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\nX-Manager-Token: {MANAGER_TOKEN}\r\n\
             Content-Length: 0\r\n\r\n",
            self.address
        );
        let (status, _, body) = exchange(self.address, request.as_bytes(), ANSWER_LIMIT).await?;
        ensure!(status == 200, "/reload answered {status}: {body}");
        Ok(())
    }

    /// The value of a series on the metrics listener; nothing where there is none of that name.
    pub(crate) async fn metric(&self, series: &str) -> anyhow::Result<Option<f64>> {
        let (status, text) = get(self.metrics, "/metrics", ANSWER_LIMIT).await?;
        ensure!(status == 200, "/metrics answered {status}");
        Ok(value_of(&text, series))
    }
}

fn value_of(text: &str, series: &str) -> Option<f64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    line.trim().parse().ok()
}

/// How many threads the gateway has in its configuration, and nginx worker processes.
pub(crate) fn threads() -> anyhow::Result<usize> {
    let overrides: Value = serde_yaml::from_str(OVERRIDES).context("load-tests/conf.yaml")?;
    let threads = overrides
        .get("threads")
        .and_then(Value::as_u64)
        .context("load-tests/conf.yaml: threads")?;
    usize::try_from(threads).context("load-tests/conf.yaml: threads")
}

fn configuration(
    core: SocketAddr,
    metrics: SocketAddr,
    layout: Layout,
    base: &str,
    stdio: &[(&str, Vec<String>)],
) -> anyhow::Result<String> {
    let mut config: Mapping = serde_yaml::from_str(OVERRIDES).context("load-tests/conf.yaml")?;
    let listener = |name: &str, address: SocketAddr| {
        let keys = [
            ("name", name),
            ("profile", name),
            ("address", &address.to_string()),
        ];
        Value::Mapping(
            keys.into_iter()
                .map(|(key, value)| (key.into(), value.into()))
                .collect(),
        )
    };
    let listeners = vec![listener("core", core), listener("metrics", metrics)];
    config.insert("listeners".into(), Value::Sequence(listeners));
    config.insert("work_stealing".into(), (layout == Layout::Stealing).into());
    let workers: Mapping = [("base_env".into(), base.into())].into_iter().collect();
    config.insert("workers".into(), Value::Mapping(workers));
    let servers: Mapping = stdio
        .iter()
        .filter_map(|(name, command)| Some(((*name).into(), server(command)?)))
        .collect();
    let upstreams: Mapping = [("stdio".into(), Value::Mapping(servers))]
        .into_iter()
        .collect();
    config.insert("upstreams".into(), Value::Mapping(upstreams));
    serde_yaml::to_string(&config).context("the gateway's configuration")
}

/// A stdio server as an operator writes it; everything but its command line is at its default.
fn server(command: &[String]) -> Option<Value> {
    let (program, arguments) = command.split_first()?;
    let arguments = arguments.iter().map(|argument| argument.as_str().into());
    let keys: Mapping = [
        ("command".into(), program.as_str().into()),
        ("args".into(), Value::Sequence(arguments.collect())),
    ]
    .into_iter()
    .collect();
    Some(Value::Mapping(keys))
}

/// What servers get of this process's environment: where programs are, and where packages come from.
pub(super) fn inherited() -> impl Iterator<Item = (String, String)> {
    std::env::vars().filter(|(name, _)| {
        let upper = name.to_ascii_uppercase();
        let packages = ["PIP_", "UV_", "SSL_CERT"]
            .iter()
            .any(|prefix| upper.starts_with(prefix));
        name == "PATH" || packages || upper.ends_with("_PROXY")
    })
}

fn tools() -> String {
    format!(
        "from fastmcp import Context\nfrom fastmcp.tools import tool\n\n\n@tool\nasync def {ASYNC_TOOL}(text: str) -> str:\n    \
         \"\"\"Gives the text back.\"\"\"\n    return text\n\n\n@tool\ndef {SYNC_TOOL}(text: str) -> str:\n    \
         \"\"\"Gives the text back, from a thread.\"\"\"\n    return text\n\n\n\
         @tool\nasync def {ANNOUNCING_TOOL}(ctx: Context) -> str:\n    \
         \"\"\"Tells every open stream that the tools have changed.\"\"\"\n    \
         await ctx.send_tool_list_changed()\n    return \"announced\"\n"
    )
}

/// An empty source makes the folder and no file.
fn drop_tools(folder: &TempDir, namespace: &str, source: &str) -> anyhow::Result<()> {
    let tools = folder.path().join("data/tools").join(namespace);
    fs::create_dir_all(&tools).context("the namespace's folder")?;
    if source.is_empty() {
        return Ok(());
    }
    fs::write(tools.join("echo.py"), source).context("the tool file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_merged_into_the_overrides() {
        let (core, metrics) = (
            "127.0.0.1:1".parse().unwrap(),
            "127.0.0.1:2".parse().unwrap(),
        );
        let text = configuration(
            core,
            metrics,
            Layout::Stealing,
            "/base",
            &[("echo", vec!["/x".into(), "-y".into()])],
        )
        .unwrap();
        let config: Value = serde_yaml::from_str(&text).unwrap();
        assert_eq!(config["listeners"][0]["address"], "127.0.0.1:1");
        assert_eq!(config["listeners"][1]["profile"], "metrics");
        assert_eq!(config["work_stealing"], true);
        assert_eq!(config["workers"]["base_env"], "/base");
        assert_eq!(
            config["namespaces"]["overrides"][NAMESPACE]["max_concurrency"],
            64
        );
        assert!(config["admission"]["flood"]["rate"].as_u64().unwrap() >= 1_000_000);
        assert_eq!(config["upstreams"]["stdio"]["echo"]["command"], "/x");
        assert_eq!(config["upstreams"]["stdio"]["echo"]["args"][0], "-y");
        assert_eq!(threads().unwrap(), 2);
    }

    #[test]
    fn a_series_is_found_by_its_whole_name() {
        let text =
            "# HELP a b\nstart_seconds_sum 1.5\nstart_seconds_sum_more 2\nstate{a=\"b\"} 3\n";
        assert_eq!(value_of(text, "start_seconds_sum"), Some(1.5));
        assert_eq!(value_of(text, "state{a=\"b\"}"), Some(3.0));
        assert_eq!(value_of(text, "start"), None);
    }
}
