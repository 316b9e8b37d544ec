//! The key `listeners:` — the addresses on which the gateway listens, and the settings of each.
//!
//! A listener starts with the settings of its profile and may change single ones. This module only parses; other modules apply
//! the settings.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tooldock_base::names::{InvalidNamespaceName, NamespaceName};
use tooldock_filters::Auth;
use tooldock_sessions::profile::{AcceptRule, BatchRule, Profile, RestShape, SessionRule};
use tooldock_upstream::protocol::ProtocolVersion;

use super::address::{ListenAddress, SocketMode};
use super::profile::ProfileSpec;
use super::tls::{ClientAuth, TlsConfig};
use crate::header_edits::HeadersConfig;

/// A listener: an address on which the gateway listens, with its settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListenerConfig {
    /// The listener's name, which appears in logs and metrics.
    pub(crate) name: String,
    /// The address on which the listener listens.
    pub(crate) address: ListenAddress,
    /// The file permissions of the listener's Unix socket; `None` for the default, and for TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<SocketMode>,
    /// The profile, which decides the served paths and the default settings.
    pub(crate) profile: ProfileName,
    /// TLS settings; `None` if the listener does not use TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tls: Option<TlsConfig>,
    /// True if each connection must begin with a PROXY protocol header, which names the client's address.
    #[serde(default)]
    pub(crate) proxy_protocol: bool,
    /// Changes of header fields in requests and responses of this listener.
    #[serde(default, skip_serializing_if = "HeadersConfig::is_empty")]
    pub(crate) headers: HeadersConfig,
    /// Path prefix by which clients reach the gateway through a proxy in front of it; empty if there is none.
    #[serde(default)]
    pub(crate) path_prefix: String,
    /// True if MCP 2026-07-28 is served on the same URLs as the older versions.
    #[serde(default = "yes")]
    pub(crate) modern: bool,
    /// Requirement on the `Accept` header of MCP requests; `None` for that of the profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) accept: Option<AcceptRule>,
    /// Rule for JSON-RPC batches; `None` for that of the profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) batch: Option<BatchRule>,
    /// Rule for MCP requests without a session id; `None` for that of the profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) session: Option<SessionRule>,
    /// Protocol versions of MCP that `initialize` negotiates; `None` for those of the profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) versions: Option<Vec<ProtocolVersion>>,
    /// Version that is offered to a client which requests an unsupported one. With the profiles of ToolDock v1 it is also assumed
    /// for requests that name no version. `None` for the default of the profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) default_version: Option<ProtocolVersion>,
    /// The source of a request's namespace; `None` for that of the profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<NamespaceRule>,
    /// The form of REST responses; `None` for that of the profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rest_shape: Option<RestShape>,
    /// The accepted kinds of credentials; `None` for those of the profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) auth: Option<Vec<AuthScheme>>,
}

fn yes() -> bool {
    true
}

impl ListenerConfig {
    /// Creates a listener without TLS and with all settings of its profile.
    pub(crate) fn new(name: &str, address: ListenAddress, profile: ProfileName) -> Self {
        Self {
            name: name.to_owned(),
            address,
            mode: None,
            profile,
            tls: None,
            proxy_protocol: false,
            headers: HeadersConfig::default(),
            path_prefix: String::new(),
            modern: true,
            accept: None,
            batch: None,
            session: None,
            versions: None,
            default_version: None,
            namespace: None,
            rest_shape: None,
            auth: None,
        }
    }

    /// Returns the protocol rules of this listener: those of its profile, changed by the listener's own settings.
    pub(crate) fn answers(&self, spec: &ProfileSpec) -> Profile {
        let mut rules = (spec.answers)();
        rules.modern = self.modern;
        rules.path_prefix.clone_from(&self.path_prefix);
        rules.namespace = match &self.namespace {
            None => rules.namespace,
            Some(NamespaceRule::Fixed(name)) => Some(name.clone()),
            Some(_) => None,
        };
        rules.unnamed_namespace =
            rules.namespace.is_some() || self.namespace_source(spec) == NamespaceRule::Global;
        rules.rest_shape = self.rest_shape.unwrap_or(rules.rest_shape);
        if let Some(versions) = &self.versions {
            rules.versions = versions.clone();
            // The first version is offered to clients that request an unsupported one: preferably 2025-11-25.
            rules
                .versions
                .sort_by_key(|version| *version != ProtocolVersion::V2025_11_25);
        }
        if let Some(offered) = self.default_version {
            rules.versions.sort_by_key(|version| *version != offered);
            if rules.unnamed != ProtocolVersion::FALLBACK {
                rules.unnamed = offered;
            }
        }
        rules.accept = self.accept.unwrap_or(rules.accept);
        rules.batch = self.batch.unwrap_or(rules.batch);
        rules.session = self.session.unwrap_or(rules.session);
        rules
    }

    /// Returns the source of a request's namespace: the listener's setting, or else the profile's.
    pub(crate) fn namespace_source(&self, spec: &ProfileSpec) -> NamespaceRule {
        match (&self.namespace, spec.global) {
            (Some(rule), _) => rule.clone(),
            (None, true) => NamespaceRule::Global,
            (None, false) => NamespaceRule::Header,
        }
    }

    /// Returns true if this listener's own setting `auth` admits requests without credentials.
    pub(crate) fn is_open(&self) -> bool {
        self.auth
            .as_ref()
            .is_some_and(|schemes| schemes.contains(&AuthScheme::None))
    }

    /// Returns true if only this machine can connect. False with the PROXY protocol, since a load balancer on this machine may
    /// forward clients of other machines.
    pub(crate) fn is_for_this_machine(&self) -> bool {
        self.address.is_local() && !self.proxy_protocol
    }

    /// Returns whether requests on this listener need a bearer token: always, optionally, or not.
    pub(crate) fn admission_auth(&self, spec: &ProfileSpec) -> Auth {
        let schemes = self.auth.as_deref().unwrap_or(spec.auth);
        match (
            schemes.contains(&AuthScheme::Bearer),
            schemes.contains(&AuthScheme::None),
        ) {
            (true, true) => Auth::Optional,
            (false, true) => Auth::None,
            _ => Auth::Required,
        }
    }

    /// Returns true if clients may authenticate with `Authorization: Basic`, as browsers do.
    pub(crate) fn takes_basic(&self, spec: &ProfileSpec) -> bool {
        let schemes = self.auth.as_deref().unwrap_or(spec.auth);
        schemes.contains(&AuthScheme::Basic)
    }

    /// Returns true if the listener requests client certificates.
    pub(crate) fn asks_for_certificates(&self) -> bool {
        let tls = self.tls.as_ref();
        tls.is_some_and(|tls| tls.client_auth != ClientAuth::None)
    }

    /// Returns the URL of the MCP endpoint, with `<namespace>` as a placeholder; `None` if the listener does not serve MCP.
    pub(crate) fn mcp_url(&self) -> Option<String> {
        let spec = self.profile.spec();
        let serves = |path: &str| spec.paths.split(", ").any(|it| it == path);
        if !serves("/mcp") {
            return None;
        }
        let is_alone = matches!(self.namespace, Some(NamespaceRule::Fixed(_)));
        Some(match serves("/mcp/{namespace}") && !is_alone {
            true => format!("{}/mcp/<namespace>", self.url()),
            false => format!("{}/mcp", self.url()),
        })
    }

    /// Returns the listener's URL: `http://ADDRESS`, `https://ADDRESS`, or the Unix socket.
    pub(crate) fn url(&self) -> String {
        match (&self.address, &self.tls) {
            (ListenAddress::Unix(_), None) => self.address.to_string(),
            (ListenAddress::Unix(_), Some(_)) => format!("{} (TLS)", self.address),
            (ListenAddress::Tcp(address), None) => format!("http://{address}"),
            (ListenAddress::Tcp(address), Some(_)) => format!("https://{address}"),
        }
    }
}

/// `listeners[].profile`: the kind of service that a listener provides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ProfileName {
    /// Tools over MCP and REST.
    Core,
    /// The MCP server with the management tools.
    Manager,
    /// Prometheus metrics and health probes.
    Metrics,
    /// REST as ToolDock v1 served it.
    V1Rest,
    /// MCP as ToolDock v1 served it.
    V1Mcp,
    /// Web interface of ToolDock v1.
    V1Web,
    /// Tool Vault: a single namespace with its own REST paths and web interface.
    Vault,
}

/// `listeners[].namespace`: the source from which a request's namespace is taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum NamespaceRule {
    /// Requests name their namespace by the header `X-Namespace` or by the path.
    Header,
    /// The namespace is named by the path.
    Path,
    /// A request that names no namespace is for all namespaces.
    Global,
    /// All requests are for this namespace.
    Fixed(NamespaceName),
}

impl ProfileName {
    /// Returns the profile's name in the configuration.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Core => "core",
            Self::Manager => "manager",
            Self::Metrics => "metrics",
            Self::V1Rest => "v1-rest",
            Self::V1Mcp => "v1-mcp",
            Self::V1Web => "v1-web",
            Self::Vault => "vault",
        }
    }

    /// Returns the port on which clients expect a listener with this profile.
    pub(crate) fn usual_port(self) -> u16 {
        match self {
            Self::Core => 8000,
            Self::Manager => 8001,
            Self::Metrics => 9090,
            Self::V1Rest => 18006,
            Self::V1Mcp => 18007,
            Self::V1Web => 18080,
            Self::Vault => 60124,
        }
    }

    /// Returns true if the profile serves tools.
    pub(crate) fn serves_tools(self) -> bool {
        !matches!(self, Self::Manager | Self::Metrics)
    }
}

impl TryFrom<String> for NamespaceRule {
    type Error = InvalidNamespaceName;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Ok(match text.as_str() {
            "header" => Self::Header,
            "path" => Self::Path,
            "global" => Self::Global,
            name => Self::Fixed(NamespaceName::from_str(name)?),
        })
    }
}

impl From<NamespaceRule> for String {
    fn from(rule: NamespaceRule) -> Self {
        rule.to_string()
    }
}

impl fmt::Display for NamespaceRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Header => "header",
            Self::Path => "path",
            Self::Global => "global",
            Self::Fixed(name) => name.as_str(),
        })
    }
}

/// A kind of credentials, as an entry of `listeners[].auth`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AuthScheme {
    /// The header `Authorization: Bearer` is accepted.
    Bearer,
    /// The header `Authorization: Basic` is accepted.
    Basic,
    /// Requests without credentials are accepted.
    None,
}

#[cfg(test)]
mod tests {
    use tooldock_base::yaml;

    use super::*;

    fn address() -> ListenAddress {
        "127.0.0.1:8000".parse().expect("an address")
    }

    #[test]
    fn the_url_of_mcp_is_that_of_the_profile() {
        let url = |more: &str| {
            let text = format!("{{ name: x, address: '127.0.0.1:8000', {more} }}");
            let listener: ListenerConfig = yaml::from_str(&text).expect("a listener");
            listener.mcp_url()
        };
        for (listener, expected) in [
            (
                "profile: core",
                Some("http://127.0.0.1:8000/mcp/<namespace>"),
            ),
            (
                "profile: v1-mcp",
                Some("http://127.0.0.1:8000/mcp/<namespace>"),
            ),
            (
                "profile: core, namespace: calc",
                Some("http://127.0.0.1:8000/mcp"),
            ),
            ("profile: manager", Some("http://127.0.0.1:8000/mcp")),
            ("profile: vault", Some("http://127.0.0.1:8000/mcp")),
            ("profile: metrics", None),
            ("profile: v1-rest", None),
        ] {
            assert_eq!(url(listener).as_deref(), expected, "{listener}");
        }
        let encrypted = url("profile: core, tls: { cert: a, key: b }");
        assert_eq!(
            encrypted.as_deref(),
            Some("https://127.0.0.1:8000/mcp/<namespace>")
        );
    }

    #[test]
    fn a_listener_needs_name_address_and_profile_only() {
        let listener: ListenerConfig =
            yaml::from_str("{ name: core, address: '127.0.0.1:8000', profile: core }")
                .expect("valid");
        let expected = ListenerConfig::new("core", address(), ProfileName::Core);
        assert_eq!(listener, expected);
    }

    #[test]
    fn the_newest_version_is_offered_first_where_it_is_served() {
        let offered = |versions: &[ProtocolVersion]| {
            let mut listener = ListenerConfig::new("core", address(), ProfileName::Core);
            listener.versions = Some(versions.to_vec());
            let spec = listener.profile.spec();
            listener.answers(spec).default_version()
        };
        let (new, middle, old) = (
            ProtocolVersion::V2025_11_25,
            ProtocolVersion::V2025_06_18,
            ProtocolVersion::V2025_03_26,
        );
        assert_eq!(offered(&[old, middle, new]), new);
        assert_eq!(offered(&[old, middle]), old);
    }

    #[test]
    fn every_switch_keeps_its_spelling() {
        let text = "{ name: x, address: '[::1]:1', profile: v1-mcp, accept: lenient, batch: reject, session: optional, \
                    versions: ['2025-03-26'], namespace: my-tools, rest_shape: v1, auth: [bearer, none], \
                    tls: { cert: c, key: k, client_ca: a, client_auth: required } }";
        let listener: ListenerConfig = yaml::from_str(text).expect("valid");
        let again = yaml::from_str(&yaml::to_string(&listener).expect("yaml")).expect("valid");
        assert_eq!(listener, again);
        assert_eq!(
            listener.namespace.map(String::from).as_deref(),
            Some("my-tools")
        );
    }
}
