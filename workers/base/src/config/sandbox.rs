//! The key `sandbox:`: restrictions on the access of a namespace's processes to the rest of the machine. This module defines the
//! policy only; `tooldock-process` applies it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use bytesize::ByteSize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde::{Serialize, Serializer};

/// Minimum of the memory limit, in bytes. With less, a Python interpreter cannot start.
const MEMORY_MIN: ByteSize = ByteSize::mib(16);
/// Maximum number of entries in each of `read`, `write` and `network`.
const ENTRIES_MAX: usize = 256;
/// Text for error messages that lists the expected values of `sandbox`.
const EXPECTED: &str =
    "off, basic, strict, or a mapping with mode, read, write, network, memory, pids, cpu";

/// The strength of a sandbox. The variants are ordered from the weakest to the strongest.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum SandboxMode {
    /// The processes are not restricted.
    Off,
    /// The processes cannot access the gateway's own files, sockets, processes and listeners, nor those of other namespaces.
    #[default]
    Basic,
    /// The processes can access only files and addresses that are explicitly allowed.
    Strict,
}

impl SandboxMode {
    /// The sandbox mode as it is written in a configuration file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Basic => "basic",
            Self::Strict => "strict",
        }
    }
}

/// The sandbox of a namespace's processes as it is configured.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Sandbox {
    /// The strength of the sandbox.
    pub mode: SandboxMode,
    /// Paths that the processes may read, in addition to those that the mode allows. Relative paths begin at the working
    /// directory.
    pub read: Vec<PathBuf>,
    /// Paths that the processes may read and write.
    pub write: Vec<PathBuf>,
    /// Addresses to which connections are allowed. `None` allows all with `basic`, and none with `strict`.
    pub network: Option<SandboxNetwork>,
    /// Maximum size of the private writable memory of one process, in bytes.
    pub memory: Option<ByteSize>,
    /// Maximum number of processes and threads in the sandbox of one process.
    pub pids: Option<u32>,
    /// Maximum number of processors that the processes may use.
    pub cpu: Option<u32>,
    /// True if the sandbox was configured in a file that tools can write. `read` and `write` then allow no access to the data
    /// directory.
    pub by_namespace: bool,
}

/// The addresses to which processes may connect.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SandboxNetwork {
    /// No addresses: the processes cannot open internet sockets.
    None,
    /// Only the listed addresses may be connected to.
    Only(Vec<SandboxAddress>),
    /// Public addresses, not those of this machine or of private networks.
    Public,
}

/// A destination of connections, written as `host:port`. The port `*` means all ports.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SandboxAddress {
    /// The host name or IP address of the destination.
    pub host: String,
    /// The port of the destination; `None` means all ports.
    pub port: Option<u16>,
}

/// Error for a text that is not a destination of connections.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no destination: write host:port, such as api.example.com:443, [2001:db8::1]:443 or db.internal:*"
)]
pub struct InvalidSandboxAddress(String);

impl SandboxAddress {
    /// The host as an IP address; `None` if it is a name.
    pub fn literal(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    /// Returns true if a connection to `address` is allowed by this destination. `resolved` are the IP addresses of its host.
    pub fn allows(&self, address: SocketAddr, resolved: &[IpAddr]) -> bool {
        self.port.is_none_or(|port| port == address.port())
            && resolved
                .iter()
                .any(|it| it.to_canonical() == address.ip().to_canonical())
    }
}

impl FromStr for SandboxAddress {
    type Err = InvalidSandboxAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidSandboxAddress(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(invalid)?;
        let port = match port {
            "*" => None,
            port => Some(
                port.parse()
                    .ok()
                    .filter(|it| *it != 0)
                    .ok_or_else(invalid)?,
            ),
        };
        let bracketed = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
        let host = match bracketed {
            Some(address) => {
                address
                    .parse::<std::net::Ipv6Addr>()
                    .map_err(|_| invalid())?;
                address
            }
            None => host,
        };
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if host.is_empty() || host.len() > 253 || bracketed.is_none() && !host.bytes().all(is_name)
        {
            return Err(invalid());
        }
        Ok(Self {
            host: host.to_ascii_lowercase(),
            port,
        })
    }
}

impl fmt::Display for SandboxAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:", self.host)?,
            false => write!(f, "{}:", self.host)?,
        }
        match self.port {
            Some(port) => write!(f, "{port}"),
            None => f.write_str("*"),
        }
    }
}

impl SandboxNetwork {
    /// Returns true if each address that `other` allows is allowed here, too.
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (_, Self::None) | (Self::Public, Self::Public) => true,
            (Self::Only(mine), Self::Only(theirs)) => theirs.iter().all(|it| mine.contains(it)),
            (Self::None, _) | (Self::Only(_), Self::Public) | (Self::Public, Self::Only(_)) => {
                false
            }
        }
    }
}

impl Sandbox {
    /// A sandbox with the given mode and no further settings.
    pub fn of(mode: SandboxMode) -> Self {
        Self {
            mode,
            ..Self::default()
        }
    }

    /// The addresses to which connections are allowed under the mode. `None` if all are allowed.
    pub fn network_in_force(&self) -> Option<SandboxNetwork> {
        match self.mode {
            SandboxMode::Off => None,
            SandboxMode::Basic => self.network.clone(),
            SandboxMode::Strict => Some(self.network.clone().unwrap_or(SandboxNetwork::None)),
        }
    }

    /// Returns true if `other` is at least as strict as this sandbox: it allows nothing that is forbidden here.
    pub fn covers(&self, other: &Self) -> bool {
        fn at_most<T: PartialOrd>(most: Option<T>, asked: Option<T>) -> bool {
            most.is_none_or(|most| asked.is_some_and(|asked| asked <= most))
        }
        if self.mode == SandboxMode::Off {
            return true;
        }
        let network = match (self.network_in_force(), other.network_in_force()) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(mine), Some(theirs)) => mine.covers(&theirs),
        };
        let readable = |path: &PathBuf| {
            let open = self.read.iter().chain(&self.write);
            is_below_any(path, open)
        };
        other.mode >= self.mode
            && network
            && other.read.iter().all(readable)
            && other
                .write
                .iter()
                .all(|path| is_below_any(path, self.write.iter()))
            && at_most(self.memory, other.memory)
            && at_most(self.pids, other.pids)
            && at_most(self.cpu, other.cpu)
    }

    /// Removes from this sandbox all paths, addresses and limits that exceed `ceiling`. Returns a sentence for each change.
    pub fn lower_to(&mut self, ceiling: &Self) -> Vec<String> {
        let mut said = Vec::new();
        if self.mode < ceiling.mode {
            said.push(format!(
                "{} is below the ceiling; {} applies",
                self.mode.as_str(),
                ceiling.mode.as_str()
            ));
            self.mode = ceiling.mode;
        }
        if let Some(most) = ceiling.network_in_force()
            && self.mode != SandboxMode::Off
            && !self
                .network_in_force()
                .is_some_and(|asked| most.covers(&asked))
        {
            said.push("network is above the ceiling, which applies".to_owned());
            self.network = Some(most);
        }
        let mut bound = |key: &str, asked: Option<u64>, most: Option<u64>| match (asked, most) {
            (None, Some(most)) => Some(most),
            (Some(asked), Some(most)) if asked > most => {
                said.push(format!(
                    "{key} {asked} is above the ceiling; {most} applies"
                ));
                Some(most)
            }
            (asked, _) => asked,
        };
        let small = |it: Option<u64>| it.and_then(|it| u32::try_from(it).ok());
        let bytes = |it: Option<ByteSize>| it.map(|it| it.as_u64());
        self.memory = bound("memory", bytes(self.memory), bytes(ceiling.memory)).map(ByteSize::b);
        self.pids = small(bound(
            "pids",
            self.pids.map(Into::into),
            ceiling.pids.map(Into::into),
        ));
        self.cpu = small(bound(
            "cpu",
            self.cpu.map(Into::into),
            ceiling.cpu.map(Into::into),
        ));
        if ceiling.mode == SandboxMode::Strict {
            let own = [PathBuf::from(".")];
            let readable = ceiling.read.iter().chain(&ceiling.write).chain(&own);
            let readable: Vec<_> = readable.cloned().collect();
            let writable: Vec<_> = ceiling.write.iter().chain(&own).cloned().collect();
            for (key, paths, open) in [
                ("read", &mut self.read, &readable),
                ("write", &mut self.write, &writable),
            ] {
                paths.retain(|path| {
                    let is_open = is_below_any(path, open.iter());
                    if !is_open {
                        said.push(format!("{key}: {} is above the ceiling", path.display()));
                    }
                    is_open
                });
            }
        }
        said
    }

    /// Checks the settings of the sandbox.
    ///
    /// # Errors
    ///
    /// The first invalid setting, with its key.
    pub fn check(&self) -> Result<(), String> {
        for (key, paths) in [("read", &self.read), ("write", &self.write)] {
            if paths.len() > ENTRIES_MAX {
                return Err(format!("{key}: more than {ENTRIES_MAX} entries"));
            }
            for path in paths {
                let shown = path.display();
                if path.as_os_str().is_empty() || path.as_os_str().as_encoded_bytes().contains(&0) {
                    return Err(format!("{key}: {shown:?} is no path"));
                }
                if path.is_relative() && path.components().any(|it| it == Component::ParentDir) {
                    return Err(format!(
                        "{key}: {shown} leads out of the working directory; write an absolute path"
                    ));
                }
            }
        }
        if let Some(SandboxNetwork::Only(addresses)) = &self.network
            && addresses.len() > ENTRIES_MAX
        {
            return Err(format!("network: more than {ENTRIES_MAX} entries"));
        }
        if let Some(memory) = self.memory.filter(|it| *it < MEMORY_MIN) {
            return Err(format!("memory: {memory} is less than {MEMORY_MIN}"));
        }
        for (key, number) in [("pids", self.pids), ("cpu", self.cpu)] {
            if number == Some(0) {
                return Err(format!("{key}: must be greater than zero"));
            }
        }
        Ok(())
    }
}

fn is_below_any<'a>(path: &Path, mut folders: impl Iterator<Item = &'a PathBuf>) -> bool {
    let climbs = path.components().any(|it| it == Component::ParentDir);
    !climbs
        && folders.any(|folder| match folder == Path::new(".") {
            true => path.is_relative(),
            false => path.starts_with(folder),
        })
}

/// The keys of a sandbox that is written as a mapping.
#[derive(Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct SandboxKeys {
    #[serde(default)]
    mode: SandboxMode,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    read: Vec<PathBuf>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    write: Vec<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    network: Option<SandboxNetwork>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memory: Option<ByteSize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pids: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cpu: Option<u32>,
}

impl Serialize for Sandbox {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let plain = Self {
            by_namespace: self.by_namespace,
            ..Self::of(self.mode)
        };
        if *self == plain {
            return self.mode.serialize(serializer);
        }
        let Self {
            mode,
            read,
            write,
            network,
            memory,
            pids,
            cpu,
            by_namespace: _,
        } = self.clone();
        SandboxKeys {
            mode,
            read,
            write,
            network,
            memory,
            pids,
            cpu,
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Sandbox {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ModeOrKeys;

        impl<'de> Visitor<'de> for ModeOrKeys {
            type Value = Sandbox;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Sandbox, E> {
                let modes = [SandboxMode::Off, SandboxMode::Basic, SandboxMode::Strict];
                let mode = modes.into_iter().find(|mode| mode.as_str() == text);
                mode.map(Sandbox::of)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Sandbox, E> {
                // `false` is accepted as `off`, because YAML 1.1 tools convert `off` to `false`.
                match value {
                    false => Ok(Sandbox::of(SandboxMode::Off)),
                    true => Err(E::invalid_value(de::Unexpected::Bool(true), &self)),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Sandbox, A::Error> {
                let keys = SandboxKeys::deserialize(MapAccessDeserializer::new(map))?;
                let sandbox = Sandbox {
                    mode: keys.mode,
                    read: keys.read,
                    write: keys.write,
                    network: keys.network,
                    memory: keys.memory,
                    pids: keys.pids,
                    cpu: keys.cpu,
                    by_namespace: false,
                };
                sandbox.check().map_err(de::Error::custom)?;
                Ok(sandbox)
            }
        }

        deserializer.deserialize_any(ModeOrKeys)
    }
}

impl Serialize for SandboxNetwork {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_str("none"),
            Self::Public => serializer.serialize_str("public"),
            Self::Only(addresses) => {
                serializer.collect_seq(addresses.iter().map(ToString::to_string))
            }
        }
    }
}

impl<'de> Deserialize<'de> for SandboxNetwork {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WordOrList;

        impl<'de> Visitor<'de> for WordOrList {
            type Value = SandboxNetwork;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("none, public or a list of host:port")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<SandboxNetwork, E> {
                match text {
                    "none" => Ok(SandboxNetwork::None),
                    "public" => Ok(SandboxNetwork::Public),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_seq<A: de::SeqAccess<'de>>(
                self,
                mut list: A,
            ) -> Result<SandboxNetwork, A::Error> {
                let mut addresses = Vec::new();
                while let Some(text) = list.next_element::<String>()? {
                    addresses.push(text.parse().map_err(de::Error::custom)?);
                }
                Ok(SandboxNetwork::Only(addresses))
            }
        }

        deserializer.deserialize_any(WordOrList)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yaml;

    fn parsed(text: &str) -> Sandbox {
        yaml::from_str(text).expect(text)
    }

    #[test]
    fn a_mode_alone_and_a_mapping_are_read_and_written_back() {
        for (text, mode) in [
            ("off", SandboxMode::Off),
            ("false", SandboxMode::Off),
            ("basic", SandboxMode::Basic),
            ("strict", SandboxMode::Strict),
            ("{ mode: strict }", SandboxMode::Strict),
            ("{ memory: 1GiB }", SandboxMode::Basic),
        ] {
            let sandbox = parsed(text);
            assert_eq!(sandbox.mode, mode, "{text}");
            let written = serde_json::to_string(&sandbox).expect("JSON");
            assert_eq!(parsed(&written), sandbox, "{written}");
        }
        let sandbox = parsed(
            "{ mode: strict, read: [/srv/a], write: [b], network: [Api.Example.com:443, '[::1]:*'], \
             memory: 1GiB, pids: 256, cpu: 2 }",
        );
        let written = serde_json::to_string(&sandbox).expect("JSON");
        assert_eq!(parsed(&written), sandbox, "{written}");
        let Some(SandboxNetwork::Only(addresses)) = &sandbox.network else {
            panic!("no list: {sandbox:?}")
        };
        assert_eq!(addresses[0].to_string(), "api.example.com:443");
        assert_eq!(addresses[1].to_string(), "[::1]:*");
    }

    #[test]
    fn a_wrong_value_is_named_with_its_key_or_the_allowed_values() {
        for (text, part) in [
            ("on", "off, basic, strict"),
            ("true", "off, basic, strict"),
            ("{ mode: hard }", "hard"),
            ("{ modes: off }", "modes"),
            ("{ network: all }", "none, public or a list"),
            ("{ network: [example.com] }", "host:port"),
            ("{ network: ['example.com:0'] }", "host:port"),
            ("{ network: ['::1:80'] }", "host:port"),
            ("{ read: [''] }", "read"),
            ("{ write: [../other] }", "write: ../other leads out"),
            ("{ memory: 1KiB }", "memory"),
            ("{ pids: 0 }", "pids"),
            ("{ cpu: 0 }", "cpu"),
        ] {
            let error = yaml::from_str::<Sandbox>(text).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_ceiling_closes_what_is_open_beyond_it_and_says_so() {
        for (asked, ceiling, applies, changes) in [
            ("off", "off", "off", 0),
            ("off", "basic", "basic", 1),
            ("strict", "basic", "strict", 0),
            (
                "basic",
                "{ mode: basic, network: public }",
                "{ mode: basic, network: public }",
                1,
            ),
            ("strict", "{ mode: basic, network: public }", "strict", 0),
            (
                "{ mode: basic, memory: 2GiB, pids: 5 }",
                "{ mode: off, memory: 1GiB, pids: 9, cpu: 3 }",
                "{ mode: basic, memory: 1GiB, pids: 5, cpu: 3 }",
                1,
            ),
            (
                "{ mode: strict, read: [/etc, data, /srv/x], write: [/srv/x/y] }",
                "{ mode: strict, read: [/srv] }",
                "{ mode: strict, read: [data, /srv/x] }",
                2,
            ),
        ] {
            let mut sandbox = parsed(asked);
            let said = sandbox.lower_to(&parsed(ceiling));
            assert_eq!(sandbox, parsed(applies), "{asked} under {ceiling}");
            assert_eq!(said.len(), changes, "{said:?}");
        }
    }

    #[test]
    fn a_sandbox_covers_what_is_at_least_as_strict() {
        for (wide, narrow, covers) in [
            ("off", "off", true),
            ("off", "strict", true),
            ("basic", "off", false),
            ("basic", "{ mode: basic, read: [/x] }", false),
            (
                "{ mode: basic, read: [/x] }",
                "{ mode: basic, read: [/x/y] }",
                true,
            ),
            (
                "{ mode: basic, read: [/x] }",
                "{ mode: basic, write: [/x/y] }",
                false,
            ),
            (
                "{ mode: basic, read: [/x] }",
                "{ mode: basic, read: [/x/../y] }",
                false,
            ),
            ("{ mode: basic, network: public }", "basic", false),
            ("basic", "{ mode: basic, network: public }", true),
            ("{ mode: strict, network: public }", "strict", true),
            ("strict", "{ mode: strict, network: public }", false),
            ("{ mode: basic, memory: 1GiB }", "basic", false),
        ] {
            assert_eq!(
                parsed(wide).covers(&parsed(narrow)),
                covers,
                "{wide} / {narrow}"
            );
        }
    }

    #[test]
    fn a_destination_goes_by_address_and_port() {
        let address: SandboxAddress = "db.internal:5432".parse().expect("a destination");
        let resolved = ["10.0.0.5".parse().expect("an address")];
        assert!(address.allows("10.0.0.5:5432".parse().expect("an address"), &resolved));
        assert!(address.allows(
            "[::ffff:10.0.0.5]:5432".parse().expect("an address"),
            &resolved
        ));
        assert!(!address.allows("10.0.0.5:5433".parse().expect("an address"), &resolved));
        assert!(!address.allows("10.0.0.6:5432".parse().expect("an address"), &resolved));
    }
}
