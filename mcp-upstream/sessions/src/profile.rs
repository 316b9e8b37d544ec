//! Rules of a listener as data: a handler reads the rule that it needs, and no code checks the profile's name.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tooldock_base::names::NamespaceName;
use tooldock_protocol::version::ProtocolVersion;

/// The default time for which a request waits for its session's `notifications/initialized`.
pub const INITIALIZED_WAIT: Duration = Duration::from_secs(1);

/// The rules of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// The profile's name, for logs only.
    pub name: &'static str,
    /// The only namespace that the listener serves; `None` if it serves all namespaces.
    pub namespace: Option<NamespaceName>,
    /// True if requests without a namespace are served: as requests for all namespaces, or for the listener's only one. False
    /// if they are refused.
    pub unnamed_namespace: bool,
    /// Protocol versions that `initialize` negotiates. The first is offered to clients that request an unknown version. Not
    /// empty.
    pub versions: Vec<ProtocolVersion>,
    /// The rule for JSON-RPC batches.
    pub batch: BatchRule,
    /// The rule for requests without a session id.
    pub session: SessionRule,
    /// The media types that `Accept` must allow on POST.
    pub accept: AcceptRule,
    /// True if a `tools/*` request in a session waits for the session's `notifications/initialized` (versions from 2025-06-18
    /// on); false if it is served at once.
    pub require_initialized: bool,
    /// Time limit of a request's wait for `notifications/initialized`.
    pub initialized_wait: Duration,
    /// Protocol version of a request that neither states a version nor belongs to a session.
    pub unnamed: ProtocolVersion,
    /// True if a function's return value is the complete result of `tools/call`, without content blocks (K-33).
    pub raw_result: bool,
    /// The form of REST answers.
    pub rest_shape: RestShape,
    /// True if requests of protocol version 2026-07-28 are accepted.
    pub modern: bool,
    /// True if some tokens give access to some namespaces only, so that responses may differ between callers.
    pub scoped_tokens: bool,
    /// True if `/health` and `/ready` return all details to every client; false if only to callers with a token. Pages from
    /// unknown host names and origins get only the status in both cases.
    pub open_probes: bool,
    /// Origin (scheme, host and port) by which clients reach the gateway, without a slash at its end; empty if unknown.
    pub public_url: String,
    /// Path prefix that a proxy in front of the gateway strips from requests; the gateway adds it to paths that it sends to
    /// clients. Empty, or `/` and a name, without a slash at the end.
    pub path_prefix: String,
}

/// The rule for JSON-RPC batches (K-11).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BatchRule {
    /// Batches are accepted in 2025-03-26, the only revision that has them.
    #[serde(rename = "accept")]
    Accept2025_03_26,
    /// Batches are refused.
    #[serde(rename = "reject")]
    Reject,
}

/// The rule for requests without a session id (K-35).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionRule {
    /// A session id is required in every version.
    #[serde(rename = "required")]
    Required,
    /// A session id is required from version 2025-06-18 on. The default of profiles; no configuration key selects it.
    #[serde(skip)]
    RequiredSince2025_06_18,
    /// A session id is not required, although sessions are issued.
    #[serde(rename = "optional")]
    Optional,
}

/// The media types that `Accept` must allow on POST (K-12).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AcceptRule {
    /// `Accept` must list `application/json` and `text/event-stream` by name from 2025-06-18 on; before that it must allow JSON.
    Strict,
    /// `Accept` must allow JSON or a stream of events; the response has an allowed media type.
    Lenient,
}

/// The form of REST answers (K-21).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RestShape {
    /// The response body is the bare value or array.
    V2,
    /// The response body is `{"tool", "result"}`, the form of ToolDock v1.
    V1,
    /// The response body is `{"result", "isError"}`, the form of Tool Vault.
    Vault,
}

impl RestShape {
    /// The status in `/health` while the process is up.
    pub fn healthy(self) -> &'static str {
        match self {
            Self::V2 => "ok",
            Self::V1 | Self::Vault => "healthy",
        }
    }
}

impl Profile {
    /// Rules of the core port.
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

    /// Rules of the REST port of ToolDock v1: all namespaces, or the namespace that a header names.
    pub fn v1_rest() -> Self {
        Self {
            name: "v1-rest",
            rest_shape: RestShape::V1,
            ..Self::core()
        }
    }

    /// Rules of the MCP port of ToolDock v1: namespaces by path, or all at once; no session is needed.
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

    /// Rules of the Tool Vault port: one namespace, for clients that send one request and read one response.
    ///
    /// # Panics
    ///
    /// Never: the name is valid.
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

    /// Rules of the manager port: those of the core port, restricted to the management tools (MCP-41).
    pub fn manager() -> Self {
        Self {
            name: "manager",
            namespace: Some(NamespaceName::system()),
            ..Self::core()
        }
    }

    /// Rules of the web UI: those of the core port, for the requests of its page.
    pub fn web() -> Self {
        Self {
            name: "v1-web",
            session: SessionRule::Optional,
            ..Self::core()
        }
    }

    /// Rules for the standard input and output of the gateway's own process: the protocol versions up to 2025-11-25, and a single
    /// client.
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

    /// Rules of the relay's socket: one namespace, for clients that do not use HTTP and send no protocol version.
    pub fn relay(namespace: NamespaceName) -> Self {
        Self {
            name: "relay",
            scoped_tokens: true,
            ..Self::stdio(namespace)
        }
    }

    /// Rules of the metrics port. Health checks there show all details, since the metrics on the same port contain them as well.
    pub fn metrics() -> Self {
        Self {
            name: "metrics",
            open_probes: true,
            ..Self::core()
        }
    }

    /// The version offered to a client that requests a version that is not served.
    pub fn default_version(&self) -> ProtocolVersion {
        self.versions
            .first()
            .copied()
            .unwrap_or(ProtocolVersion::V2025_11_25)
    }

    /// Returns true if the listener serves a version.
    pub fn supports(&self, version: ProtocolVersion) -> bool {
        self.versions.contains(&version)
    }

    /// Returns true if a request of this protocol version must contain a session id.
    pub fn session_required(&self, version: ProtocolVersion) -> bool {
        match self.session {
            SessionRule::Required => true,
            SessionRule::RequiredSince2025_06_18 => version >= ProtocolVersion::V2025_06_18,
            SessionRule::Optional => false,
        }
    }

    /// Returns true if a batch in this protocol version is accepted.
    pub fn batch_accepted(&self, version: ProtocolVersion) -> bool {
        self.batch == BatchRule::Accept2025_03_26 && version == ProtocolVersion::V2025_03_26
    }
}
