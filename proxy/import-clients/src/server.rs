//! A server that was read from a client's file, in the keys of the gateway's configuration.

use std::collections::BTreeMap;

use tooldock_base::names::NamespaceName;
use tooldock_base::secret::Secret;
use tooldock_base::yaml::Mapping;

/// Kind of an imported server, which determines where it is configured in the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A server that is run as a command. It is configured under `servers` of `external/config.yaml` or under `upstreams.stdio`.
    Stdio,
    /// A server with a URL. It is configured under `upstreams.remote`.
    Remote,
}

/// A server that was read from a client's file.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientServer {
    /// The name of the server in the client's file.
    pub label: String,
    /// A valid name of a namespace, derived from the label. Several servers of a file may get the same name.
    pub name: NamespaceName,
    /// Line of the server in the file, from 1.
    pub line: usize,
    /// The kind of the server.
    pub kind: Kind,
    /// The entry for the server in the keys of the gateway's configuration. Credentials appear as `${NAME}`.
    pub entry: Mapping,
    /// Credentials of the file, by the names under which `entry` refers to them.
    pub secrets: BTreeMap<String, Secret>,
    /// Variables that the entry refers to and for which the file has no value.
    pub wanted: Vec<WantedVariable>,
}

/// A variable that an entry refers to and for which the file has no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedVariable {
    /// Name of the variable, as the server's entry refers to it: `${NAME}`.
    pub name: String,
    /// The reference as the file spells it, such as `${input:token}`.
    pub spelled: String,
    /// Description of the variable, if the file describes it as an input.
    pub description: Option<String>,
    /// Line of the file on which the variable is used, from 1.
    pub line: usize,
    /// The key that contains the reference, as `SERVER.KEY`.
    pub key: String,
}
