//! A server of a client's file, in the gateway's keys.

use std::collections::BTreeMap;

use tooldock_base::names::NamespaceName;
use tooldock_base::secret::Secret;
use tooldock_base::yaml::Mapping;

/// Kind of a server, which decides where it is configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A command, under `servers` of `external/config.yaml` or under `upstreams.stdio`.
    Stdio,
    /// A URL, under `upstreams.remote`.
    Remote,
}

/// A server of a client's file.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientServer {
    /// The name in the file.
    pub label: String,
    /// A valid name derived from the label. Other servers may have the same name.
    pub name: NamespaceName,
    /// Line in the file, from 1.
    pub line: usize,
    /// The kind of the server.
    pub kind: Kind,
    /// The keys of the gateway. Credentials appear as `${NAME}`.
    pub entry: Mapping,
    /// Credentials of the file, by the names under which `entry` refers to them.
    pub secrets: BTreeMap<String, Secret>,
    /// Variables without a value in the file.
    pub wanted: Vec<WantedVariable>,
}

/// A variable that an entry refers to, and that the file has no value for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedVariable {
    /// Name in the entry.
    pub name: String,
    /// The reference as the file spells it, such as `${input:token}`.
    pub spelled: String,
    /// Description of the input.
    pub description: Option<String>,
    /// Line in the file, from 1.
    pub line: usize,
    /// The key, as `SERVER.KEY`.
    pub key: String,
}
