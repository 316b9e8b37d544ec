//! The key `replicas:` of the configuration.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tooldock_base::mask;
use tooldock_workers::remote::{Backend, Host};

use super::ConfigError;
use super::off::OFF;
use super::replica_tls::ReplicaTls;

/// Value of a key that the gateway chooses automatically.
const AUTO: &str = "auto";

/// Maximum value of [`ReplicasConfig::grace`]. A longer time is probably a mistake, since service managers do not wait for days.
pub(crate) const GRACE_MAX: Duration = Duration::from_secs(24 * 3600);

/// Prefix of `replicas.peers` if it is a DNS name that has to be resolved.
const DNS: &str = "dns:";

/// `replicas:` — settings of several gateways that share the sessions of a Redis, or of a data directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ReplicasConfig {
    /// The name of this replica; `auto` generates a random name and stores it in the data directory.
    pub(crate) id: String,
    /// `host:port` at which the other replicas reach this one, or `off`.
    pub(crate) address: String,
    /// Addresses of other replicas to which requests may be forwarded.
    pub(crate) peers: Peers,
    /// Maximum time that a stopping replica waits for requests in flight.
    #[serde(with = "humantime_serde")]
    pub(crate) grace: Duration,
    /// TLS settings for connections from and to other replicas.
    pub(crate) tls: ReplicaTls,
}

/// `replicas.peers:` — the addresses to which requests may be forwarded. An address is only used if a replica has also announced
/// it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected `auto`, a list of HOST:PORT, or dns:NAME:PORT"
)]
pub(crate) enum Peers {
    /// A list of `HOST:PORT`, spelled exactly as the replicas announce them.
    List(Vec<String>),
    /// The word `auto`, or `dns:NAME:PORT` for a DNS name that resolves to the addresses.
    Word(String),
}

impl Peers {
    /// Parses the value of the variable `REPLICA_PEERS`, whose addresses are separated by commas.
    pub(crate) fn of_variable(text: &str) -> Self {
        match text == AUTO || text.starts_with(DNS) {
            true => Self::Word(text.to_owned()),
            false => Self::List(text.split(',').map(|it| it.trim().to_owned()).collect()),
        }
    }

    /// Returns the DNS name and port to resolve; `None` if no DNS name is configured.
    pub(crate) fn name(&self) -> Option<(&str, u16)> {
        let Self::Word(word) = self else {
            return None;
        };
        let (name, port) = word.strip_prefix(DNS)?.rsplit_once(':')?;
        match host(&format!("{name}:{port}")).ok()? {
            Host::Name(..) | Host::Address(..) => Some((name, port.parse().ok()?)),
            Host::Unix(_) => None,
        }
    }

    fn check(&self) -> Result<(), String> {
        match self {
            Self::List(addresses) if addresses.is_empty() => {
                Err("names no replica: write their addresses, or auto".to_owned())
            }
            Self::List(addresses) => addresses.iter().try_for_each(|address| {
                let checked = host(address);
                checked.map(drop).map_err(|_| {
                    format!(
                        "expected HOST:PORT, as another replica has it in replicas.address: {}",
                        address_text(address)
                    )
                })
            }),
            Self::Word(word) if word == AUTO || self.name().is_some() => Ok(()),
            Self::Word(word) => Err(format!(
                "expected `auto`, a list of HOST:PORT, or dns:NAME:PORT: {}",
                address_text(word)
            )),
        }
    }
}

/// Formats an invalid address for an error message. A URL is masked, since it may contain a password.
fn address_text(value: &str) -> String {
    let value = match value.contains(['@', '/']) {
        true => mask::address(value),
        false => value.to_owned(),
    };
    value.escape_debug().to_string()
}

/// Parses an address of the form `HOST:PORT`.
fn host(address: &str) -> Result<Host, ()> {
    let (_, port) = address.rsplit_once(':').ok_or(())?;
    if port.is_empty() || address.contains('/') {
        return Err(());
    }
    let parsed = Backend::parse(&format!("http://{address}/"));
    match parsed.map_err(|_| ())?.host {
        Host::Unix(_) => Err(()),
        host => Ok(host),
    }
}

impl Default for ReplicasConfig {
    fn default() -> Self {
        Self {
            id: AUTO.to_owned(),
            address: OFF.to_owned(),
            peers: Peers::Word(AUTO.to_owned()),
            grace: Duration::from_secs(30),
            tls: ReplicaTls::default(),
        }
    }
}

impl ReplicasConfig {
    /// Returns the configured name of this replica; `None` for `auto`.
    pub(crate) fn name(&self) -> Option<&str> {
        (self.id != AUTO).then_some(&*self.id)
    }

    /// Returns the address that is announced to other replicas, and the address to bind. They are equal for an IP address; for a
    /// host name, all IPv4 addresses are bound. `None` if `address` is `off`.
    pub(crate) fn address(&self) -> Option<(&str, SocketAddr)> {
        let bound = self.bound().ok()??;
        Some((&self.address, bound))
    }

    fn bound(&self) -> Result<Option<SocketAddr>, String> {
        if self.address == OFF {
            return Ok(None);
        }
        let shown = address_text(&self.address);
        let expected = || {
            format!(
                "expected `off` or HOST:PORT, the address at which other replicas reach this one: {shown}"
            )
        };
        match host(&self.address).map_err(|()| expected())? {
            Host::Address(ip, _) if ip.is_unspecified() => Err(format!(
                "{shown} names no address that others can reach: write this machine's name or address"
            )),
            Host::Address(ip, port) => Ok(Some(SocketAddr::new(ip, port))),
            Host::Name(_, port) => Ok(Some(SocketAddr::new(
                IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                port,
            ))),
            Host::Unix(_) => Err(expected()),
        }
    }

    /// Checks the values of this section.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] that names the faulty key.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let name_is_usable = !self.id.is_empty()
            && self.id.len() <= 128
            && self.id.bytes().all(|byte| byte.is_ascii_graphic());
        if !name_is_usable {
            return Err(ConfigError::key(
                "replicas.id",
                format!(
                    "expected `auto` or a name of 1 to 128 visible characters: {:?}",
                    self.id
                ),
            ));
        }
        let peers = self.peers.check();
        peers.map_err(|why| ConfigError::key("replicas.peers", why))?;
        let bound = self.bound();
        let bound = bound.map_err(|why| ConfigError::key("replicas.address", why))?;
        let tls = self.tls.check(bound.is_some());
        tls.map_err(|(key, why)| ConfigError::key(format!("replicas.{key}"), why))?;
        // The other replicas resolve the DNS name to IP addresses, so that this replica must announce its IP address, too.
        if self.peers.name().is_some()
            && bound.is_some()
            && self.address.parse::<SocketAddr>().is_err()
        {
            return Err(ConfigError::key(
                "replicas.address",
                format!(
                    "expected an IP address and a port: by replicas.peers, replicas look each other's addresses up, and would \
                     not find a name: {}",
                    self.address
                ),
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str) -> ReplicasConfig {
        ReplicasConfig {
            address: address.into(),
            ..ReplicasConfig::default()
        }
    }

    #[test]
    fn an_ip_address_is_bound_as_it_is_and_a_name_on_all_addresses() {
        assert_eq!(at("off").address(), None);
        let bound = |address: &str| at(address).address().expect(address).1.to_string();
        assert_eq!(bound("10.0.0.7:7000"), "10.0.0.7:7000");
        assert_eq!(bound("[::1]:7000"), "[::1]:7000");
        assert_eq!(bound("gateway-0.gateways:7000"), "0.0.0.0:7000");
    }

    fn peers(peers: &str, address: &str) -> ReplicasConfig {
        ReplicasConfig {
            peers: serde_json::from_str(peers).expect("a list or a word"),
            ..at(address)
        }
    }

    #[test]
    fn peers_are_a_list_or_a_name_that_is_looked_up() {
        assert_eq!(Peers::of_variable("auto"), ReplicasConfig::default().peers);
        let list = peers(r#"["gateway-1:7100", "[::1]:7100"]"#, "host:1");
        assert_eq!(Peers::of_variable("gateway-1:7100, [::1]:7100"), list.peers);
        assert_eq!((list.check(), list.peers.name()), (Ok(()), None));
        let name = peers(r#""dns:gateways.example:7100""#, "10.0.0.7:7100");
        assert_eq!(Peers::of_variable("dns:gateways.example:7100"), name.peers);
        assert_eq!(name.check(), Ok(()));
        assert_eq!(name.peers.name(), Some(("gateways.example", 7100)));
        let wrong = serde_json::from_str::<Peers>("7").expect_err("a number");
        assert!(wrong.to_string().contains("dns:NAME:PORT"), "{wrong}");
    }

    #[test]
    fn wrong_values_name_their_key() {
        for address in [
            "7000",
            "host",
            "host:",
            "host:0",
            "host:port",
            "0.0.0.0:7000",
            "http://host:1",
        ] {
            let error = at(address).check().expect_err(address).to_string();
            assert!(error.starts_with("replicas.address: "), "{error}");
            assert!(error.contains(address), "{error}");
        }
        for address in ["http://me:hush@host:1", "me:hush@host:1", "redis://:hush"] {
            let list = peers(&format!("[{address:?}]"), "off");
            for config in [at(address), list] {
                let error = config.check().expect_err(address).to_string();
                assert!(
                    error.contains("***MASKED***") && !error.contains("hush"),
                    "{error}"
                );
            }
        }
        for (config, key) in [
            (
                ReplicasConfig {
                    id: "two words".into(),
                    ..at("off")
                },
                "replicas.id",
            ),
            (peers(r#""dns:x""#, "off"), "replicas.peers"),
            (peers(r#""dns:x:0""#, "off"), "replicas.peers"),
            (peers(r#""gateway-1:7100""#, "off"), "replicas.peers"),
            (peers("[]", "off"), "replicas.peers"),
            (peers(r#"["gateway-1"]"#, "off"), "replicas.peers"),
            (peers(r#"["a:1", "http://b:2"]"#, "off"), "replicas.peers"),
            (peers(r#""dns:x:1""#, "host:1"), "replicas.address"),
        ] {
            let error = config.check().expect_err(key).to_string();
            assert!(error.starts_with(key), "{error}");
        }
        assert_eq!(ReplicasConfig::default().check(), Ok(()));
    }
}
