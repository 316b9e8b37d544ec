//! The setup of a gateway: namespaces, the layout of its threads, and its configuration file.

use std::net::SocketAddr;

use anyhow::Context;
use serde_json::json;
use serde_yaml::Value;

use super::TOOLS;
use crate::servers::free_address;
use crate::servers::redis::Redis;

/// The configuration that differs from the gateway's defaults, with reasons.
const OVERRIDES: &str = include_str!("../../../conf.yaml");

/// The session key of replicas that listen on loopback for seconds: no secret.
const SESSION_KEY: &str = "load-session-key-of-all-replicas";

/// How the gateway's threads share work (`work_stealing`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// A runtime per thread, the default.
    Separate,
    /// One runtime whose threads take each other's work.
    Stealing,
}

/// The namespaces of a gateway, and its configuration in addition to `conf.yaml`.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    layout: Layout,
    /// Namespaces with a folder, and the code in it. A namespace without code has no worker.
    pub(super) folders: Vec<(String, String)>,
    /// Namespaces of stdio servers, and their command lines.
    stdio: Vec<(String, Vec<String>)>,
    config: Vec<String>,
    /// The address of the management tools; `None` without them.
    manager: Option<SocketAddr>,
    /// Environment variables of the gateway.
    pub(super) variables: Vec<(String, String)>,
}

impl Setup {
    /// A setup without namespaces.
    pub(crate) fn new(layout: Layout) -> Self {
        Self {
            layout,
            folders: Vec::new(),
            stdio: Vec::new(),
            config: Vec::new(),
            manager: None,
            variables: Vec::new(),
        }
    }

    /// Adds a namespace of Python echo tools.
    pub(crate) fn python(self, namespace: &str) -> Self {
        self.code(namespace, TOOLS.to_owned())
    }

    /// Adds a namespace of Python tools with its code.
    pub(crate) fn code(mut self, namespace: &str, code: String) -> Self {
        self.folders.push((namespace.to_owned(), code));
        self
    }

    /// Adds a namespace without tools, so without a worker.
    pub(crate) fn empty(self, namespace: &str) -> Self {
        self.code(namespace, String::new())
    }

    /// Adds a namespace whose stdio server is started by a command line.
    pub(crate) fn stdio(mut self, namespace: &str, command: Vec<String>) -> Self {
        self.stdio.push((namespace.to_owned(), command));
        self
    }

    /// Serves the management tools on a separate listener.
    pub(crate) fn manager(mut self, address: SocketAddr) -> Self {
        self.manager = Some(address);
        self
    }

    /// Sets an environment variable of the gateway.
    pub(crate) fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Makes the gateway a replica with sessions in a Redis.
    pub(crate) fn replica(self, name: &str, redis: &Redis) -> anyhow::Result<Self> {
        let keys = json!({
            "sessions": {"store": redis.url()},
            "replicas": {"id": name, "address": free_address()?.to_string()},
        });
        let setup = self.config(&keys.to_string());
        Ok(setup.variable("SESSION_KEY", SESSION_KEY))
    }

    /// Makes the gateway a process with sessions in a data directory that several processes may share.
    pub(crate) fn process(self, name: &str) -> Self {
        self.config("sessions: { store: disk }")
            .variable("REPLICA_ID", name)
            .variable("SESSION_KEY", SESSION_KEY)
    }

    /// Adds keys over those of `conf.yaml`: maps are merged, everything else is replaced.
    pub(crate) fn config(mut self, yaml: &str) -> Self {
        self.config.push(yaml.to_owned());
        self
    }

    /// Builds the gateway's configuration file.
    pub(super) fn configuration(
        &self,
        core: SocketAddr,
        metrics: SocketAddr,
        base: &str,
    ) -> anyhow::Result<String> {
        let mut config = serde_yaml::from_str(OVERRIDES).context("load-tests/conf.yaml")?;
        for own in &self.config {
            let own = serde_yaml::from_str(own).context("a scenario's keys")?;
            merge(&mut config, own);
        }
        let listener = |profile: &str, address: SocketAddr| json!({"name": profile, "profile": profile, "address": address});
        let servers: serde_json::Map<_, _> = self
            .stdio
            .iter()
            .filter_map(|(name, command)| Some((name.clone(), server(command)?)))
            .collect();
        let mut listeners = vec![listener("core", core), listener("metrics", metrics)];
        listeners.extend(self.manager.map(|address| listener("manager", address)));
        let own = json!({
            "listeners": listeners,
            "work_stealing": self.layout == Layout::Stealing,
            "workers": {"base_env": base},
            "upstreams": {"stdio": servers},
        });
        let own = serde_yaml::to_value(own).context("the program's keys")?;
        merge(&mut config, own);
        serde_yaml::to_string(&config).context("the gateway's configuration")
    }
}

/// Merges keys into a configuration, as the gateway does with its own files.
fn merge(config: &mut Value, over: Value) {
    match (config, over) {
        (Value::Mapping(config), Value::Mapping(over)) => {
            for (key, value) in over {
                match config.get_mut(&key) {
                    Some(known) => merge(known, value),
                    None => {
                        config.insert(key, value);
                    }
                }
            }
        }
        (config, over) => *config = over,
    }
}

/// The configuration of a stdio server: its command line, and the defaults for other keys.
fn server(command: &[String]) -> Option<serde_json::Value> {
    let (program, arguments) = command.split_first()?;
    Some(json!({"command": program, "args": arguments}))
}

/// The number of the gateway's threads in its configuration, and of nginx's worker processes.
pub(crate) fn threads() -> anyhow::Result<usize> {
    let overrides: Value = serde_yaml::from_str(OVERRIDES).context("load-tests/conf.yaml")?;
    let threads = overrides
        .get("threads")
        .and_then(Value::as_u64)
        .context("load-tests/conf.yaml: threads")?;
    usize::try_from(threads).context("load-tests/conf.yaml: threads")
}

#[cfg(test)]
mod tests {
    use super::super::NAMESPACE;
    use super::*;

    #[test]
    fn addresses_are_merged_into_the_overrides() {
        let (core, metrics) = (
            "127.0.0.1:1".parse().unwrap(),
            "127.0.0.1:2".parse().unwrap(),
        );
        let setup = Setup::new(Layout::Stealing)
            .stdio("echo", vec!["/x".into(), "-y".into()])
            .config("sessions: { ttl: 1h }\nadmission: { limits: { body: 1MiB } }");
        let text = setup.configuration(core, metrics, "/base").unwrap();
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
        assert_eq!(config["sessions"]["ttl"], "1h");
        let limits = &config["admission"]["limits"];
        assert_eq!(limits["body"], "1MiB");
        assert!(limits["sessions_per_principal"].as_u64().unwrap() > 200_000);
        assert_eq!(threads().unwrap(), 2);
    }
}
