//! The switches of a listener. Data, not code paths: a handler reads the switch it needs, nothing asks which profile it
//! runs under.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tooldock_workers::names::NamespaceName;

use crate::protocol::ProtocolVersion;

/// Default for how long a request waits for its session's `notifications/initialized`.
pub const INITIALIZED_WAIT: Duration = Duration::from_secs(1);

/// One listener's rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// The profile's name, for logs only.
    pub name: &'static str,
    /// The one namespace that is served, where it is one.
    pub namespace: Option<NamespaceName>,
    /// Whether requests that name no namespace are served: as those of all namespaces at once, or of the one there is.
    pub unnamed_namespace: bool,
    /// The versions `initialize` negotiates; the first is offered to clients that ask for an unknown one. Not empty.
    pub versions: Vec<ProtocolVersion>,
    /// Whether JSON-RPC batches are taken.
    pub batch: BatchRule,
    /// When a session id must be sent.
    pub session: SessionRule,
    /// What `Accept` must say on POST.
    pub accept: AcceptRule,
    /// Whether `tools/*` in a session waits for `notifications/initialized` (versions from 2025-06-18 on).
    pub require_initialized: bool,
    /// How long a request waits for `notifications/initialized`.
    pub initialized_wait: Duration,
    /// The version of a request that names none and has no session.
    pub unnamed: ProtocolVersion,
    /// Whether a function's value is the whole result of `tools/call`, without content blocks (K-33).
    pub raw_result: bool,
    /// The shapes of REST answers.
    pub rest_shape: RestShape,
    /// Whether requests of 2026-07-28 are taken.
    pub modern: bool,
    /// Whether some tokens open some namespaces only. What a caller is told is then not for everyone who is let in.
    pub scoped_tokens: bool,
    /// Whether `/health` and `/ready` tell every client the whole, not only callers with a token. Pages of strange names and
    /// origins are told the status.
    pub open_probes: bool,
    /// The origin by which clients reach the gateway, without a slash at its end; empty where it is not known.
    pub public_url: String,
    /// What stands before the listener's paths where a front strips it: clients are told paths with it. Empty or
    /// `/` and a name, without a slash at the end.
    pub path_prefix: String,
}

/// Whether JSON-RPC batches are taken (K-11).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BatchRule {
    /// In 2025-03-26, the only revision that has them.
    #[serde(rename = "accept")]
    Accept2025_03_26,
    /// Never.
    #[serde(rename = "reject")]
    Reject,
}

/// When a session id must be sent (K-35).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionRule {
    /// In every version.
    #[serde(rename = "required")]
    Required,
    /// When the version in force is 2025-06-18 or later. The default of profiles; no configuration key selects it.
    #[serde(skip)]
    RequiredSince2025_06_18,
    /// Never; sessions are issued all the same.
    #[serde(rename = "optional")]
    Optional,
}

/// What `Accept` must say on POST (K-12).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AcceptRule {
    /// From 2025-06-18 on both media types by name, before that as lenient.
    Strict,
    /// JSON or a stream of events must be acceptable; the answer has the acceptable form.
    Lenient,
}

/// The shapes of REST answers (K-21).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RestShape {
    /// Bare values and arrays.
    V2,
    /// `{"tool", "result"}`, as ToolDock v1 answers.
    V1,
    /// `{"result", "isError"}`, as Tool Vault answers.
    Vault,
}

impl RestShape {
    /// How `/health` says that the process is up.
    pub(crate) fn healthy(self) -> &'static str {
        match self {
            Self::V2 => "ok",
            Self::V1 | Self::Vault => "healthy",
        }
    }
}

impl Profile {
    /// The core port.
    pub fn core() -> Self {
        Self {
            name: "core",
            namespace: None,
            unnamed_namespace: false,
            versions: vec![
                ProtocolVersion::V2025_11_25,
                ProtocolVersion::V2025_06_18,
                ProtocolVersion::V2025_03_26,
            ],
            batch: BatchRule::Accept2025_03_26,
            session: SessionRule::RequiredSince2025_06_18,
            accept: AcceptRule::Strict,
            require_initialized: true,
            initialized_wait: INITIALIZED_WAIT,
            unnamed: ProtocolVersion::FALLBACK,
            raw_result: false,
            rest_shape: RestShape::V2,
            modern: true,
            scoped_tokens: false,
            open_probes: false,
            public_url: String::new(),
            path_prefix: String::new(),
        }
    }

    /// The REST port of ToolDock v1: all namespaces at once, or the one that a header names.
    pub fn v1_rest() -> Self {
        Self {
            name: "v1-rest",
            rest_shape: RestShape::V1,
            ..Self::core()
        }
    }

    /// The MCP port of ToolDock v1: namespaces by path, or all at once; no session is needed.
    pub fn v1_mcp() -> Self {
        Self {
            name: "v1-mcp",
            versions: vec![ProtocolVersion::V2025_11_25, ProtocolVersion::V2025_03_26],
            batch: BatchRule::Reject,
            session: SessionRule::Optional,
            accept: AcceptRule::Lenient,
            require_initialized: false,
            unnamed: ProtocolVersion::V2025_11_25,
            rest_shape: RestShape::V1,
            ..Self::core()
        }
    }

    /// The port of Tool Vault: one namespace, for clients that send one request and read one answer.
    ///
    /// # Panics
    ///
    /// Never: the name is a valid one.
    pub fn vault() -> Self {
        Self {
            name: "vault",
            namespace: Some("vault".parse().expect("a valid name")),
            versions: vec![
                ProtocolVersion::V2025_11_25,
                ProtocolVersion::V2025_06_18,
                ProtocolVersion::V2025_03_26,
                ProtocolVersion::V2024_11_05,
            ],
            rest_shape: RestShape::Vault,
            ..Self::v1_mcp()
        }
    }

    /// The manager port: the rules of the core port, for the management tools alone (MCP-41).
    pub fn manager() -> Self {
        Self {
            name: "manager",
            namespace: Some(NamespaceName::system()),
            ..Self::core()
        }
    }

    /// The web UI: the rules of the core port for what its page calls.
    pub fn web() -> Self {
        Self {
            name: "v1-web",
            session: SessionRule::Optional,
            ..Self::core()
        }
    }

    /// This process's own pipes: every revision that has a transport of lines, and nobody to keep apart.
    pub fn stdio(namespace: NamespaceName) -> Self {
        Self {
            name: "stdio",
            namespace: Some(namespace),
            versions: vec![
                ProtocolVersion::V2025_11_25,
                ProtocolVersion::V2025_06_18,
                ProtocolVersion::V2025_03_26,
                ProtocolVersion::V2024_11_05,
            ],
            session: SessionRule::Optional,
            accept: AcceptRule::Lenient,
            require_initialized: false,
            ..Self::core()
        }
    }

    /// The relay's socket: one namespace, and nobody who speaks HTTP or sends a version.
    pub fn relay(namespace: NamespaceName) -> Self {
        Self {
            name: "relay",
            scoped_tokens: true,
            ..Self::stdio(namespace)
        }
    }

    /// The metrics port: health checks beside the counters, which say more.
    pub fn metrics() -> Self {
        Self {
            name: "metrics",
            open_probes: true,
            ..Self::core()
        }
    }

    /// The version offered to a client that asks for one that is not served.
    pub fn default_version(&self) -> ProtocolVersion {
        self.versions
            .first()
            .copied()
            .unwrap_or(ProtocolVersion::V2025_11_25)
    }

    /// Whether a version is served here.
    pub fn supports(&self, version: ProtocolVersion) -> bool {
        self.versions.contains(&version)
    }

    /// Whether a request of this version must name its session.
    pub fn session_required(&self, version: ProtocolVersion) -> bool {
        match self.session {
            SessionRule::Required => true,
            SessionRule::RequiredSince2025_06_18 => version >= ProtocolVersion::V2025_06_18,
            SessionRule::Optional => false,
        }
    }

    /// Whether a batch of this version is taken.
    pub fn batch_accepted(&self, version: ProtocolVersion) -> bool {
        self.batch == BatchRule::Accept2025_03_26 && version == ProtocolVersion::V2025_03_26
    }
}
