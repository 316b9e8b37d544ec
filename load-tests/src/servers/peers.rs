//! Programs that put streamable HTTP in front of a stdio server, as the gateway does: how each is found and started.
//!
//! `make load-environments` installs those known here; one that is not there is reported as missing. Each logs as little as
//! it can be told to, and is otherwise as its documentation starts it. Others are given on the command line.

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
use crate::options::PeerCommand;

const READY_LIMIT: Duration = Duration::from_secs(30);
/// What fastmcp is told of the server, in the peer's own folder.
const FASTMCP_CONFIG: &str = "mcp.json";

/// One whose usage is known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Supergateway,
    McpProxyNode,
    McpProxyPython,
    Fastmcp,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [
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
        }
    }

    /// How it is used, and why.
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
    /// In the environments below the target directory; nothing where it is not installed.
    pub(crate) fn find(kind: Kind, target: &Path) -> Option<Self> {
        // Scripts of an environment name the folder it was installed in, which has moved since.
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

    /// Its version and how it is used.
    pub(crate) fn description(&self) -> String {
        match self {
            Self::Installed { kind, version, .. } => format!("{version}: {}", kind.mode()),
            Self::Given(_) => "(--peer)".to_owned(),
        }
    }

    /// Starts it in front of the echo server.
    pub(crate) async fn start(&self, echo: &EchoProgram, era: Era) -> anyhow::Result<Running> {
        let folder = TempDir::with_prefix("tooldock-load-peer-").context("a temporary folder")?;
        let address = free_address()?;
        let server = echo.command(era);
        let (name, command) = match self {
            Self::Installed { kind, program, .. } => {
                if *kind == Kind::Fastmcp {
                    let text = fastmcp_config(&server).to_string();
                    fs::write(folder.path().join(FASTMCP_CONFIG), text).context(FASTMCP_CONFIG)?;
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
            // Where and with what environment it was typed, since that may be what it needs.
            Self::Given(given) => {
                let mut command = Command::new("sh");
                command.arg("-c").arg(given.script(address, &server));
                ("the peer", command)
            }
        };
        // Some end with their input, so that stays open.
        let log = folder.path().join("output.log");
        let mut process = Process::start_with_input(name, command, log)?;
        let ready = async || TcpStream::connect(address).await.is_ok();
        process.until(READY_LIMIT, ready).await?;
        Ok(Running {
            address,
            process,
            _folder: folder,
        })
    }
}

impl Kind {
    fn arguments(self, address: SocketAddr, server: &[String]) -> Vec<String> {
        let (host, port) = (address.ip().to_string(), address.port().to_string());
        let (host, port) = (host.as_str(), port.as_str());
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        match self {
            Self::Supergateway => {
                let quoted: Vec<String> = server.iter().map(|word| format!("'{word}'")).collect();
                words(&[
                    "--stdio",
                    &quoted.join(" "),
                    "--outputTransport",
                    "streamableHttp",
                    "--stateful",
                    "--logLevel",
                    "none",
                    "--port",
                    port,
                ])
            }
            Self::McpProxyNode => {
                let own = ["--host", host, "--port", port, "--server", "stream", "--"];
                [words(&own), server.to_vec()].concat()
            }
            Self::McpProxyPython => {
                let own = [
                    "--host",
                    host,
                    "--port",
                    port,
                    "--log-level",
                    "WARNING",
                    "--",
                ];
                [words(&own), server.to_vec()].concat()
            }
            Self::Fastmcp => words(&[
                "run",
                FASTMCP_CONFIG,
                "--transport",
                "http",
                "--host",
                host,
                "--port",
                port,
                "--log-level",
                "WARNING",
                "--no-banner",
            ]),
        }
    }
}

fn fastmcp_config(server: &[String]) -> serde_json::Value {
    json!({"mcpServers": {"echo": {"command": server.first(), "args": server.get(1..)}}})
}

/// A peer with a server behind it.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
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
        // It has nothing to save, and not every one of them ends when asked to.
        self.process.kill();
    }
}

/// The version of a package, and how it is run: by the Node installed beside it, or the one on the search path.
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

/// From the name of its folder, `NAME-VERSION.dist-info`.
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
        assert_eq!(found(), [const { None }; 4]);
        let modules = "node-peers/node_modules/supergateway";
        put(
            target.path(),
            &format!("{modules}/package.json"),
            r#"{"version":"4.0.0"}"#,
        );
        assert_eq!(found()[0], None, "half installed");
        put(target.path(), &format!("{modules}/dist/index.js"), "");
        for package in [
            "peers/lib/python3.11/site-packages/mcp_proxy-0.13.0",
            "peers-fastmcp/lib/python3.11/site-packages/fastmcp_slim-4.1.0",
            "peers-fastmcp/lib/python3.11/site-packages/fastmcp-4.1.2",
        ] {
            let file = format!("python-envs/{package}.dist-info/METADATA");
            put(target.path(), &file, "");
        }
        let versions = found().map(Option::unwrap_or_default);
        assert_eq!(versions, ["4.0.0", "", "0.13.0", "4.1.2"]);
    }

    #[test]
    fn the_server_s_command_line_reaches_every_peer_whole() {
        let server = ["/a b/echo", "--era", "dual"].map(str::to_owned);
        let arguments = |kind: Kind| {
            let all = kind.arguments("127.0.0.1:4000".parse().unwrap(), &server);
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
    }

    #[test]
    fn a_peer_of_the_command_line_has_its_name() {
        let peer = Peer::Given(PeerCommand::parse("mine=x {port} {server}").unwrap());
        assert_eq!(peer.name(), "mine");
    }
}
