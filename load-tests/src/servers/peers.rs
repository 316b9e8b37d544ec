//! Peers: programs that serve streamable HTTP for a stdio server, as the gateway does. Finds and starts them.
//!
//! `scenarios.yaml` lists the known peers, which `make load-peers` installs; a missing one is reported. Other peers are named on
//! the command line.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use serde::Deserialize;
use serde_json::json;

use super::Server;
use super::echo::{EchoProgram, Era};
use super::gateway::inherited;
use crate::message::{EchoCall, Envelope};
use crate::options::Options;
use crate::scenario::PLAN;

const NAME_MAX: usize = 40;

/// A program that serves streamable HTTP for a stdio server, and how it is started.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Peer {
    pub(crate) name: String,
    /// How the peer is used, and why.
    mode: String,
    /// Path of its MCP endpoint.
    #[serde(default = "usual_path")]
    pub(crate) path: String,
    /// The name under which the peer offers the echo server's tool.
    #[serde(default = "usual_tool")]
    pub(crate) tool: String,
    /// Name of a crate with a program.
    cargo: Option<String>,
    /// Name of a Node package, and its script.
    node: Option<[String; 2]>,
    /// Names of a Python environment, a distribution in it, and its module.
    python: Option<[String; 3]>,
    arguments: Vec<String>,
    /// Files in the peer's own folder.
    #[serde(default)]
    config: BTreeMap<String, String>,
    /// The program with its first arguments; empty for a peer of the command line, whose argument is a script.
    #[serde(skip)]
    program: Vec<PathBuf>,
    #[serde(skip)]
    version: String,
}

fn usual_path() -> String {
    Envelope::PATH.to_owned()
}

fn usual_tool() -> String {
    EchoCall::SMALL.tool.to_owned()
}

impl Peer {
    /// Parses `NAME=COMMAND` of the command line.
    ///
    /// # Errors
    ///
    /// The fault, in words for the user.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (name, command) = text
            .split_once('=')
            .ok_or("NAME=COMMAND, such as gateway='gateway --port {port} -- {server}'")?;
        let is_plain =
            |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
        if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(is_plain) {
            return Err(format!(
                "the name {name:?} must be 1 to {NAME_MAX} letters, digits, '-', '_' or '.'"
            ));
        }
        for place in ["{port}", "{server}"] {
            if !command.contains(place) {
                return Err(format!("the command of {name} has no {place}"));
            }
        }
        Ok(Self {
            name: name.to_owned(),
            mode: String::new(),
            path: usual_path(),
            tool: usual_tool(),
            cargo: None,
            node: None,
            python: None,
            // The peer replaces the shell, so that the started process is the peer.
            arguments: vec![format!("exec {command}")],
            config: BTreeMap::new(),
            program: Vec::new(),
            version: "(--peer)".to_owned(),
        })
    }

    /// All peers that can be started, and the names of those that are not installed.
    pub(crate) fn all(options: &Options) -> anyhow::Result<(Vec<Self>, Vec<&'static str>)> {
        let target = options.target_folder()?;
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for peer in &PLAN.peers {
            match peer.installed(&target) {
                Some(peer) => found.push(peer),
                None => missing.push(peer.name.as_str()),
            }
        }
        found.extend(options.peers.iter().cloned());
        Ok((found, missing))
    }

    /// The peer with its version and program in the environments below the target directory; `None` if it is not installed.
    fn installed(&self, target: &Path) -> Option<Self> {
        let node = self.node.iter();
        let node = node.map(|[name, script]| node_package(target, name, script));
        // Python runs the module, since scripts of an environment name the folder in which it was installed, which has moved
        // since.
        let python = self.python.iter().map(|[environment, name, module]| {
            let environment = target.join("python-envs").join(environment);
            let version = distribution_version(&environment, name)?;
            let python = environment.join("bin/python");
            Some((version, vec![python, "-m".into(), module.into()]))
        });
        let cargo = self.cargo.iter().map(|name| cargo_program(target, name));
        let (version, program) = node.chain(python).chain(cargo).next()??;
        Some(Self {
            version,
            program,
            ..self.clone()
        })
    }

    /// The peer's version and how it is used.
    pub(crate) fn description(&self) -> String {
        match self.mode.is_empty() {
            true => self.version.clone(),
            false => format!("{}: {}", self.version, self.mode),
        }
    }

    /// Starts the peer in front of the echo server.
    pub(crate) async fn start(&self, echo: &EchoProgram) -> anyhow::Result<RunningPeer> {
        let server = echo.command(Era::Legacy);
        let started = Server::start(&self.name, |folder, address| {
            for (file, text) in &self.config {
                fs::write(folder.join(file), filled(text, address, &server))
                    .context(file.clone())?;
            }
            let Some((program, first)) = self.program.split_first() else {
                // The folder and environment of this program, as the command may need them.
                let mut command = Command::new("sh");
                command.arg("-c").args(self.words(address, &server));
                return Ok(command);
            };
            let mut command = Command::new(program);
            command
                .args(first)
                .args(self.words(address, &server))
                .env_clear()
                .envs(inherited())
                .env("HOME", folder)
                .current_dir(folder);
            Ok(command)
        });
        started.await.map(RunningPeer)
    }

    fn words(&self, address: SocketAddr, server: &[String]) -> Vec<String> {
        let words = self.arguments.iter().map(|word| match word.as_str() {
            "{words}" => server.to_vec(),
            word => vec![filled(word, address, server)],
        });
        words.collect::<Vec<_>>().concat()
    }
}

/// Replaces the places in an argument or a file by the address and the command line of the server.
fn filled(text: &str, address: SocketAddr, server: &[String]) -> String {
    let quoted = server
        .iter()
        .map(|word| format!("'{}'", word.replace('\'', r"'\''")));
    text.replace("{host}", &address.ip().to_string())
        .replace("{port}", &address.port().to_string())
        .replace("{server}", &quoted.collect::<Vec<_>>().join(" "))
        .replace("{program}", &json!(server.first()).to_string())
        .replace("{options}", &json!(server.get(1..)).to_string())
}

/// A running peer. It has no data to save, and not every peer ends on SIGTERM, so that it is killed.
pub(crate) struct RunningPeer(pub(crate) Server);

impl Drop for RunningPeer {
    fn drop(&mut self) {
        self.0.process.kill();
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
        let found = || -> Vec<Option<String>> {
            let peers = PLAN.peers.iter();
            peers
                .map(|peer| {
                    let description = peer.installed(target.path())?.description();
                    Some(description.split_once(':').unwrap().0.to_owned())
                })
                .collect()
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
        let versions: Vec<_> = found().into_iter().map(Option::unwrap_or_default).collect();
        assert_eq!(versions, ["0.6.0", "4.0.0", "", "0.13.0", "4.1.2"]);
    }

    #[test]
    fn the_server_s_command_line_reaches_every_peer_whole() {
        let server = ["/a b/echo", "--era", "dual"].map(str::to_owned);
        let address = "127.0.0.1:4000".parse().unwrap();
        let [cargo, supergateway, node, python, fastmcp] = &PLAN.peers[..] else {
            panic!("five peers");
        };
        for peer in [supergateway, node, python, fastmcp] {
            let words = peer.words(address, &server);
            assert!(words.contains(&"4000".to_owned()), "{words:?}");
        }
        let words = supergateway.words(address, &server);
        assert_eq!(words[1], "'/a b/echo' '--era' 'dual'");
        for peer in [node, python] {
            let words = peer.words(address, &server);
            let at = words.iter().position(|word| word == "--").unwrap();
            assert_eq!(words[at + 1..], server);
        }
        let text = filled(&fastmcp.config["mcp.json"], address, &server);
        let told: serde_json::Value = serde_json::from_str(&text).unwrap();
        let told = &told["mcpServers"]["echo"];
        assert_eq!(told["command"], server[0]);
        assert_eq!(told["args"], json!(server[1..]));
        let text = filled(&cargo.config["proxy.toml"], address, &server);
        for line in [
            "host = \"127.0.0.1\"",
            "port = 4000",
            "command = \"/a b/echo\"",
            r#"args = ["--era","dual"]"#,
        ] {
            assert!(text.lines().any(|told| told == line), "{line}: {text}");
        }
        for peer in [cargo, fastmcp] {
            let files = peer.config.keys().all(|file| peer.arguments.contains(file));
            assert!(files, "{}: its file is among its arguments", peer.name);
        }
    }

    #[test]
    fn a_command_gets_its_address_and_the_server_quoted() {
        let peer = Peer::parse("agent-1=agent -l {host}:{port} --env A=b -- {server}").unwrap();
        assert_eq!(peer.name, "agent-1");
        let server = ["/a b/echo", "it's"].map(str::to_owned);
        assert_eq!(
            peer.words("127.0.0.1:4000".parse().unwrap(), &server),
            [r"exec agent -l 127.0.0.1:4000 --env A=b -- '/a b/echo' 'it'\''s'"]
        );
    }

    #[test]
    fn a_command_that_cannot_work_is_refused_with_its_reason() {
        for (wrong, why) in [
            ("agent", "NAME=COMMAND"),
            ("=x {port} {server}", "name"),
            ("a|b=x {port} {server}", "name"),
            ("a=x {server}", "{port}"),
            ("a=x {port}", "{server}"),
        ] {
            let error = Peer::parse(wrong).unwrap_err();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }
}
