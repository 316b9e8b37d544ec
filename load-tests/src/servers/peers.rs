//! Programs that put streamable HTTP in front of a stdio server, as the gateway does: how each is found and started.
//!
//! `make load-environments` installs them; one that is not there is reported as missing. Each logs as little as it can be
//! told to, and is otherwise as its documentation starts it.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use tempfile::TempDir;
use tokio::net::TcpStream;

use super::echo::{EchoProgram, Era};
use super::gateway::inherited;
use super::{Process, free_address};

const READY_LIMIT: Duration = Duration::from_secs(30);

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Supergateway,
    McpProxyNode,
    McpProxyPython,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] =
        [Self::Supergateway, Self::McpProxyNode, Self::McpProxyPython];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Supergateway => "supergateway (npm)",
            Self::McpProxyNode => "mcp-proxy (npm)",
            Self::McpProxyPython => "mcp-proxy (PyPI)",
        }
    }

    /// The mode it was used in, and why.
    pub(crate) fn mode(self) -> &'static str {
        match self {
            Self::Supergateway => {
                "--stateful: a process for each session (without it, a process for each request, and for requests of \
                 2026-07-28 in either mode, which it passes on only to servers that speak 2026-07-28); --logLevel none"
            }
            Self::McpProxyNode => {
                "with sessions (default) on one process for all; requests of 2026-07-28 on the same; --server stream"
            }
            Self::McpProxyPython => {
                "with sessions (default) on one process for all; does not speak 2026-07-28; --log-level WARNING"
            }
        }
    }
}

/// A peer that is installed.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) kind: Kind,
    pub(crate) version: String,
    /// The program and its first arguments.
    program: Vec<PathBuf>,
}

impl Peer {
    /// In the environments below the target directory; nothing where it is not installed.
    pub(crate) fn find(kind: Kind, target: &Path) -> Option<Self> {
        let (version, program) = match kind {
            Kind::Supergateway => node_package(target, "supergateway", "dist/index.js")?,
            Kind::McpProxyNode => node_package(target, "mcp-proxy", "dist/bin/mcp-proxy.mjs")?,
            Kind::McpProxyPython => {
                let environment = target.join("python-envs/peers");
                let python = environment.join("bin/python");
                let version = distribution_version(&environment, "mcp_proxy")?;
                // Its script names the folder it was installed in, which has moved since.
                (version, vec![python, "-m".into(), "mcp_proxy".into()])
            }
        };
        Some(Self {
            kind,
            version,
            program,
        })
    }

    /// Starts it in front of the echo server.
    pub(crate) async fn start(&self, echo: &EchoProgram, era: Era) -> anyhow::Result<Running> {
        let folder = TempDir::with_prefix("tooldock-load-peer-").context("a temporary folder")?;
        let address = free_address()?;
        let mut command = Command::new(&self.program[0]);
        command
            .args(&self.program[1..])
            .args(self.arguments(address, &echo.command(era)))
            .env_clear()
            .envs(inherited())
            .env("HOME", folder.path())
            .current_dir(folder.path());
        // It ends with its input, so that stays open.
        let log = folder.path().join("output.log");
        let mut process = Process::start_with_input(self.kind.name(), command, log)?;
        let ready = async || TcpStream::connect(address).await.is_ok();
        process.until(READY_LIMIT, ready).await?;
        Ok(Running {
            address,
            process,
            _folder: folder,
        })
    }

    fn arguments(&self, address: SocketAddr, server: &[String]) -> Vec<String> {
        let (host, port) = (address.ip().to_string(), address.port().to_string());
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        match self.kind {
            Kind::Supergateway => {
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
                    &port,
                ])
            }
            Kind::McpProxyNode => {
                let own = ["--host", &host, "--port", &port, "--server", "stream", "--"];
                [words(&own), server.to_vec()].concat()
            }
            Kind::McpProxyPython => {
                let own = [
                    "--host",
                    &host,
                    "--port",
                    &port,
                    "--log-level",
                    "WARNING",
                    "--",
                ];
                [words(&own), server.to_vec()].concat()
            }
        }
    }
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
        let found =
            || Kind::ALL.map(|kind| Peer::find(kind, target.path()).map(|peer| peer.version));
        assert_eq!(found(), [None, None, None]);
        let modules = "node-peers/node_modules/supergateway";
        put(
            target.path(),
            &format!("{modules}/package.json"),
            r#"{"version":"4.0.0"}"#,
        );
        assert_eq!(found()[0], None, "half installed");
        put(target.path(), &format!("{modules}/dist/index.js"), "");
        put(
            target.path(),
            "python-envs/peers/lib/python3.11/site-packages/mcp_proxy-0.13.0.dist-info/METADATA",
            "",
        );
        assert_eq!(found(), [Some("4.0.0".into()), None, Some("0.13.0".into())]);
    }

    #[test]
    fn the_server_s_command_line_reaches_every_peer_whole() {
        let server = ["/a b/echo", "--era", "dual"].map(str::to_owned);
        let arguments = |kind| {
            let peer = Peer {
                kind,
                version: String::new(),
                program: Vec::new(),
            };
            let address = "127.0.0.1:4000".parse().unwrap();
            let all = peer.arguments(address, &server);
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
    }
}
