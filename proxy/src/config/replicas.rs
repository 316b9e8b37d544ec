//! The keys `replicas:`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};
use tooldock_workers::remote::{Backend, Host};

use super::ConfigError;
use super::off::OFF;

/// A value that is found by itself.
const AUTO: &str = "auto";

/// `replicas:` — this gateway among its replicas, which share the sessions of one Redis, or of one data directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ReplicasConfig {
    /// The name of this replica; `auto` makes a random name and keeps it in the data directory.
    pub(crate) id: String,
    /// `host:port` where the others reach this one, or `off`.
    pub(crate) address: String,
    /// How the others are found: `auto`, by the store.
    pub(crate) peers: String,
    /// The longest wait of a shutdown for requests in flight.
    #[serde(with = "humantime_serde")]
    pub(crate) grace: std::time::Duration,
}

impl Default for ReplicasConfig {
    fn default() -> Self {
        Self {
            id: AUTO.to_owned(),
            address: OFF.to_owned(),
            peers: AUTO.to_owned(),
            grace: std::time::Duration::from_secs(30),
        }
    }
}

impl ReplicasConfig {
    /// The name that is set.
    pub(crate) fn name(&self) -> Option<&str> {
        (self.id != AUTO).then_some(&*self.id)
    }

    /// The address that others are told, and the one to listen at: the same where it is an IP address, and all IPv4
    /// addresses where it is a name.
    pub(crate) fn address(&self) -> Option<(&str, SocketAddr)> {
        let bound = self.bound().ok()??;
        Some((&self.address, bound))
    }

    fn bound(&self) -> Result<Option<SocketAddr>, String> {
        if self.address == OFF {
            return Ok(None);
        }
        let expected =
            "expected `off` or HOST:PORT, the address at which other replicas reach this one";
        let (_, port) = self.address.rsplit_once(':').ok_or(expected)?;
        if port.is_empty() || self.address.contains('/') {
            return Err(expected.to_owned());
        }
        let parsed = Backend::parse(&format!("http://{}/", self.address));
        match parsed.map_err(|_| expected)?.host {
            Host::Address(ip, _) if ip.is_unspecified() => Err(
                "names no address that others can reach: write this machine's name or address"
                    .into(),
            ),
            Host::Address(ip, port) => Ok(Some(SocketAddr::new(ip, port))),
            Host::Name(_, port) => Ok(Some(SocketAddr::new(
                IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                port,
            ))),
            Host::Unix(_) => Err(expected.to_owned()),
        }
    }

    /// Checks the values.
    ///
    /// # Errors
    ///
    /// The key at fault.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let name_is_usable = !self.id.is_empty()
            && self.id.len() <= 128
            && self.id.bytes().all(|byte| byte.is_ascii_graphic());
        if !name_is_usable {
            return Err(ConfigError::key(
                "replicas.id",
                "expected `auto` or a name of 1 to 128 visible characters",
            ));
        }
        if self.peers != AUTO {
            return Err(ConfigError::key(
                "replicas.peers",
                "expected `auto`: replicas find each other by sessions.store; lists and DNS names are not supported by this version",
            ));
        }
        let bound = self.bound();
        bound.map_err(|why| ConfigError::key("replicas.address", why))?;
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
        }
        for (config, key) in [
            (
                ReplicasConfig {
                    id: "two words".into(),
                    ..at("off")
                },
                "replicas.id",
            ),
            (
                ReplicasConfig {
                    peers: "dns:x:1".into(),
                    ..at("off")
                },
                "replicas.peers",
            ),
        ] {
            let error = config.check().expect_err(key).to_string();
            assert!(error.starts_with(key), "{error}");
        }
        assert_eq!(ReplicasConfig::default().check(), Ok(()));
    }
}
