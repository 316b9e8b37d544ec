//! Peers: programs that serve streamable HTTP for a stdio server, as the gateway does. Finds and starts them.
//!
//! `make load-peers` installs the known peers; a missing one is reported. Each logs as little as possible, and is otherwise
//! started as its documentation describes. Other peers are named on the command line.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use serde_json::json;
use tempfile::TempDir;
use tokio::net::TcpStream;

use super::echo::{EchoProgram, Era};
use super::gateway::inherited;
use super::{Process, free_address};
use crate::message::{EchoCall, Envelope};
use crate::options::PeerCommand;

const READY_LIMIT: Duration = Duration::from_secs(30);
/// Name of fastmcp's configuration file with the server, in the peer's own folder.
const FASTMCP_CONFIG: &str = "mcp.json";
/// Name of the configuration file of mcp-proxy from crates.io.
const MCP_PROXY_CONFIG: &str = "proxy.toml";

/// A peer whose command line is defined here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Supergateway,
    McpProxyNode,
    McpProxyPython,
    Fastmcp,
    McpProxyCargo,
}

impl Kind {
    /// All known peers; the one in the gateway's own language comes first, since it is the closest.
    pub(crate) const ALL: [Self; 5] = [
        Self::McpProxyCargo,
        Self::Supergateway,
        Self::McpProxyNode,
        Self::McpProxyPython,
        Self::Fastmcp,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Supergateway => "supergateway (npm)",
            Self::McpProxyNode => "mcp-proxy (npm)",
            Self::McpProxyPython => "mcp-proxy (PyPI)",
            Self::Fastmcp => "fastmcp (PyPI)",
            Self::McpProxyCargo => "mcp-proxy (crates.io)",
        }
    }

    /// How the peer is used, and why.
    fn mode(self) -> &'static str {
        match self {
            Self::Supergateway => {
                "`--stateful`: a process for each session (without it, one for each request); `--logLevel none`"
            }
            Self::McpProxyNode => {
                "sessions, the default, on one process for all; `--server stream`"
            }
            Self::McpProxyPython => {
                "sessions, the default, on one process for all; `--log-level WARNING`"
            }
            Self::Fastmcp => {
                "`fastmcp run mcp.json --transport http`, its proxy of a server in a file; `--log-level WARNING`"
            }
            Self::McpProxyCargo => {
                "sessions, the default, on one process for all; default features, `log_level = \"warn\"`"
            }
        }
    }

    /// Path of its MCP endpoint.
    fn path(self) -> &'static str {
        match self {
            Self::McpProxyCargo => "/",
            _ => Envelope::PATH,
        }
    }

    /// The name under which the peer offers the echo server's tool.
    fn echo_tool(self) -> &'static str {
        match self {
            // This peer puts the backend's name before every tool.
            Self::McpProxyCargo => "echo/echo",
            _ => EchoCall::SMALL.tool,
        }
    }
}

/// A peer that can be started.
#[derive(Debug)]
pub(crate) enum Peer {
    Installed {
        kind: Kind,
        version: String,
        /// The program and its first arguments.
        program: Vec<PathBuf>,
    },
    Given(PeerCommand),
}

impl Peer {
    /// Finds an installed peer in the environments below the target directory; `None` if it is not installed.
    pub(crate) fn find(kind: Kind, target: &Path) -> Option<Self> {
        // The module is run by Python, since scripts of an environment name the folder in which it was installed, which
        // has moved since.
        let module = |environment: &str, distribution: &str, module: &str| {
            let environment = target.join("python-envs").join(environment);
            let version = distribution_version(&environment, distribution)?;
            let python = environment.join("bin/python");
            Some((version, vec![python, "-m".into(), module.into()]))
        };
        let (version, program) = match kind {
            Kind::Supergateway => node_package(target, "supergateway", "dist/index.js")?,
            Kind::McpProxyNode => node_package(target, "mcp-proxy", "dist/bin/mcp-proxy.mjs")?,
            Kind::McpProxyPython => module("peers", "mcp_proxy", "mcp_proxy")?,
            Kind::Fastmcp => module("peers-fastmcp", "fastmcp", "fastmcp.cli")?,
            Kind::McpProxyCargo => cargo_program(target, "mcp-proxy")?,
        };
        Some(Self::Installed {
            kind,
            version,
            program,
        })
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Installed { kind, .. } => kind.name(),
            Self::Given(given) => &given.name,
        }
    }

    /// The peer's version and how it is used.
    pub(crate) fn description(&self) -> String {
        match self {
            Self::Installed { kind, version, .. } => format!("{version}: {}", kind.mode()),
            Self::Given(_) => "(--peer)".to_owned(),
        }
    }

    /// Starts the peer in front of the echo server.
    pub(crate) async fn start(&self, echo: &EchoProgram, era: Era) -> anyhow::Result<Running> {
        let folder = TempDir::with_prefix("tooldock-load-peer-").context("a temporary folder")?;
        let address = free_address()?;
        let server = echo.command(era);
        let (path, echo_tool) = match self {
            Self::Installed { kind, .. } => (kind.path(), kind.echo_tool()),
            Self::Given(_) => (Envelope::PATH, EchoCall::SMALL.tool),
        };
        let (name, command) = match self {
            Self::Installed { kind, program, .. } => {
                if let Some((file, text)) = kind.config(address, &server) {
                    fs::write(folder.path().join(file), text).context(file)?;
                }
                let mut command = Command::new(&program[0]);
                command
                    .args(&program[1..])
                    .args(kind.arguments(address, &server))
                    .env_clear()
                    .envs(inherited())
                    .env("HOME", folder.path())
                    .current_dir(folder.path());
                (kind.name(), command)
            }
            // The folder and environment of this program, as the command may need them.
            Self::Given(given) => {
                let mut command = Command::new("sh");
                command.arg("-c").arg(given.script(address, &server));
                ("the peer", command)
            }
        };
        // Some peers end with their input, so it stays open.
        let log = folder.path().join("output.log");
        let mut process = Process::start_with_input(name, command, log)?;
        let ready = async || TcpStream::connect(address).await.is_ok();
        process.until(READY_LIMIT, ready).await?;
        Ok(Running {
            address,
            path,
            echo_tool,
            process,
            _folder: folder,
        })
    }
}

impl Kind {
    /// Name and content of the peer's configuration file with the server; `None` if it has none.
    fn config(self, address: SocketAddr, server: &[String]) -> Option<(&'static str, String)> {
        match self {
            Self::Fastmcp => Some((FASTMCP_CONFIG, fastmcp_config(server).to_string())),
            Self::McpProxyCargo => Some((MCP_PROXY_CONFIG, mcp_proxy_config(address, server))),
            _ => None,
        }
    }

    fn arguments(self, address: SocketAddr, server: &[String]) -> Vec<String> {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let at = format!("--host {} --port {}", address.ip(), address.port());
        match self {
            Self::Supergateway => {
                let quoted: Vec<String> = server.iter().map(|word| format!("'{word}'")).collect();
                let own = "--outputTransport streamableHttp --stateful --logLevel none --port";
                let stdio = ["--stdio".to_owned(), quoted.join(" ")];
                [&stdio[..], &words(own), &[address.port().to_string()]].concat()
            }
            Self::McpProxyNode => {
                [&words(&format!("{at} --server stream --"))[..], server].concat()
            }
            Self::McpProxyPython => {
                [&words(&format!("{at} --log-level WARNING --"))[..], server].concat()
            }
            Self::Fastmcp => words(&format!(
                "run {FASTMCP_CONFIG} --transport http {at} --log-level WARNING --no-banner"
            )),
            Self::McpProxyCargo => words(&format!("--config {MCP_PROXY_CONFIG}")),
        }
    }
}

fn fastmcp_config(server: &[String]) -> serde_json::Value {
    json!({"mcpServers": {"echo": {"command": server.first(), "args": server.get(1..)}}})
}

fn mcp_proxy_config(address: SocketAddr, server: &[String]) -> String {
    // A JSON string is also a TOML string, and so is an array of strings.
    let (command, arguments) = (json!(server.first()), json!(server.get(1..)));
    format!(
        "[proxy]\nname = \"load\"\n\n[proxy.listen]\nhost = \"{}\"\nport = {}\n\n\
         [[backends]]\nname = \"echo\"\ntransport = \"stdio\"\ncommand = {command}\nargs = {arguments}\n\n\
         [observability]\nlog_level = \"warn\"\n",
        address.ip(),
        address.port()
    )
}

/// A running peer with a server behind it.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    /// Path of its MCP endpoint.
    pub(crate) path: &'static str,
    /// The name under which the peer offers the echo server's tool.
    pub(crate) echo_tool: &'static str,
    process: Process,
    // Deleted after the process has ended.
    _folder: TempDir,
}

impl Running {
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The peer has no data to save, and not every peer ends on SIGTERM.
        self.process.kill();
    }
}

/// The version of a Node package, and the command that runs it: with the Node installed in the same folder, or the one on the
/// search path.
fn node_package(target: &Path, name: &str, script: &str) -> Option<(String, Vec<PathBuf>)> {
    let modules = target.join("node-peers/node_modules");
    let text = fs::read_to_string(modules.join(name).join("package.json")).ok()?;
    let package: serde_json::Value = serde_json::from_str(&text).ok()?;
    let script = modules.join(name).join(script);
    let own = modules.join(".bin/node");
    let node = if own.exists() { own } else { "node".into() };
    Some((
        package["version"].as_str()?.to_owned(),
        vec![node, script.is_file().then_some(script)?],
    ))
}

/// A program built by `cargo install --root`, and its version from the list that cargo keeps there.
fn cargo_program(target: &Path, name: &str) -> Option<(String, Vec<PathBuf>)> {
    let root = target.join("cargo-peers");
    let text = fs::read_to_string(root.join(".crates2.json")).ok()?;
    let list: serde_json::Value = serde_json::from_str(&text).ok()?;
    let version = list["installs"].as_object()?.keys().find_map(|package| {
        // An entry has the form NAME VERSION (SOURCE).
        let mut words = package.split(' ');
        (words.next() == Some(name)).then_some(())?;
        words.next().map(str::to_owned)
    })?;
    let program = root.join("bin").join(name);
    Some((version, vec![program.is_file().then_some(program)?]))
}

/// The version in the name of a package's folder, `NAME-VERSION.dist-info`.
fn distribution_version(environment: &Path, name: &str) -> Option<String> {
    let libraries = fs::read_dir(environment.join("lib")).ok()?.flatten();
    let packages =
        libraries.filter_map(|library| fs::read_dir(library.path().join("site-packages")).ok());
    packages.flatten().flatten().find_map(|entry| {
        let file = entry.file_name();
        let rest = file.to_str()?.strip_prefix(name)?.strip_prefix('-')?;
        Some(rest.strip_suffix(".dist-info")?.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(folder: &Path, file: &str, text: &str) {
        let path = folder.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn peers_are_missing_until_they_are_installed() {
        let target = tempfile::tempdir().unwrap();
        let found = || {
            Kind::ALL.map(|kind| {
                let peer = Peer::find(kind, target.path())?;
                let description = peer.description();
                Some(description.split_once(':').unwrap().0.to_owned())
            })
        };
        assert_eq!(found(), [const { None }; 5]);
        let modules = "node-peers/node_modules/supergateway";
        put(
            target.path(),
            &format!("{modules}/package.json"),
            r#"{"version":"4.0.0"}"#,
        );
        assert_eq!(found()[1], None, "half installed");
        put(target.path(), &format!("{modules}/dist/index.js"), "");
        for package in [
            "peers/lib/python3.11/site-packages/mcp_proxy-0.13.0",
            "peers-fastmcp/lib/python3.11/site-packages/fastmcp_slim-4.1.0",
            "peers-fastmcp/lib/python3.11/site-packages/fastmcp-4.1.2",
        ] {
            let file = format!("python-envs/{package}.dist-info/METADATA");
            put(target.path(), &file, "");
        }
        put(
            target.path(),
            "cargo-peers/.crates2.json",
            r#"{"installs":{"other 1.0.0 (registry+x)":{},"mcp-proxy 0.6.0 (registry+x)":{"bins":["mcp-proxy"]}}}"#,
        );
        assert_eq!(found()[0], None, "half installed");
        put(target.path(), "cargo-peers/bin/mcp-proxy", "");
        let versions = found().map(Option::unwrap_or_default);
        assert_eq!(versions, ["0.6.0", "4.0.0", "", "0.13.0", "4.1.2"]);
    }

    #[test]
    fn the_server_s_command_line_reaches_every_peer_whole() {
        let server = ["/a b/echo", "--era", "dual"].map(str::to_owned);
        let address = "127.0.0.1:4000".parse().unwrap();
        let arguments = |kind: Kind| {
            let all = kind.arguments(address, &server);
            assert!(all.contains(&"4000".to_owned()), "{all:?}");
            all
        };
        assert_eq!(
            arguments(Kind::Supergateway)[1],
            "'/a b/echo' '--era' 'dual'"
        );
        for kind in [Kind::McpProxyNode, Kind::McpProxyPython] {
            let all = arguments(kind);
            let at = all.iter().position(|word| word == "--").unwrap();
            assert_eq!(all[at + 1..], server);
        }
        assert!(arguments(Kind::Fastmcp).contains(&FASTMCP_CONFIG.to_owned()));
        let told = &fastmcp_config(&server)["mcpServers"]["echo"];
        assert_eq!(told["command"], server[0]);
        assert_eq!(told["args"], json!(server[1..]));
        let (file, text) = Kind::McpProxyCargo.config(address, &server).unwrap();
        assert!(
            Kind::McpProxyCargo
                .arguments(address, &server)
                .contains(&file.to_owned())
        );
        for line in [
            "host = \"127.0.0.1\"",
            "port = 4000",
            "command = \"/a b/echo\"",
            r#"args = ["--era","dual"]"#,
        ] {
            assert!(text.lines().any(|told| told == line), "{line}: {text}");
        }
    }

    #[test]
    fn a_peer_of_the_command_line_has_its_name() {
        let peer = Peer::Given(PeerCommand::parse("mine=x {port} {server}").unwrap());
        assert_eq!(peer.name(), "mine");
    }
}
