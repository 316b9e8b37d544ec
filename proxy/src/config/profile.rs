//! The profiles of listeners, each as a value of [`ProfileSpec`]. Code that handles requests reads these values, and never
//! compares the profile's name.
//!
//! A listener begins with the values of its profile; its own keys replace single ones.

use tooldock_filters::{RouteGroup, RouteGroups};
use tooldock_sessions::profile::Profile;

use super::listener::{AuthScheme, ProfileName};

/// The properties of a listener's profile.
pub(crate) struct ProfileSpec {
    /// The groups of routes that the profile serves.
    pub(crate) routes: RouteGroups,
    /// True if a request that names no namespace is for all namespaces; false if it must name one.
    pub(crate) global: bool,
    /// The kinds of credentials that the profile accepts.
    pub(crate) auth: &'static [AuthScheme],
    /// Function that returns the protocol rules: versions, batches, sessions, `Accept`, response forms.
    pub(crate) answers: fn() -> Profile,
    /// The paths that the profile serves, as a text for the operator.
    pub(crate) paths: &'static str,
}

const CORE: ProfileSpec = ProfileSpec {
    routes: RouteGroups::of(&[
        RouteGroup::Mcp,
        RouteGroup::Front,
        RouteGroup::Sse,
        RouteGroup::Rest,
        RouteGroup::Reload,
        RouteGroup::Probes,
        RouteGroup::Discovery,
        RouteGroup::Connect,
    ]),
    global: false,
    auth: &[AuthScheme::Bearer],
    answers: Profile::core,
    paths: "/mcp, /mcp/{namespace}, /sse, /messages, /tools, /namespaces, /openapi.json, /reload, /operator, /health, /ready",
};

const MANAGER: ProfileSpec = ProfileSpec {
    routes: RouteGroups::of(&[
        RouteGroup::Mcp,
        RouteGroup::Front,
        RouteGroup::Sse,
        RouteGroup::Probes,
        RouteGroup::Discovery,
    ]),
    global: false,
    auth: &[AuthScheme::Bearer],
    answers: Profile::manager,
    paths: "/mcp, /sse, /messages, /health, /ready",
};

const METRICS: ProfileSpec = ProfileSpec {
    routes: RouteGroups::of(&[RouteGroup::Metrics, RouteGroup::Probes]),
    global: false,
    auth: &[AuthScheme::Bearer],
    answers: Profile::metrics,
    paths: "/metrics, /health, /ready",
};

const V1_WEB: ProfileSpec = ProfileSpec {
    routes: RouteGroups::of(&[
        RouteGroup::Mcp,
        RouteGroup::Front,
        RouteGroup::Web,
        RouteGroup::Probes,
    ]),
    global: false,
    auth: &[AuthScheme::Bearer, AuthScheme::Basic],
    answers: Profile::web,
    paths: "/, /assets, /api, /mcp, /mcp/{namespace}, /health, /ready",
};

const V1_REST: ProfileSpec = ProfileSpec {
    routes: RouteGroups::of(&[RouteGroup::Rest, RouteGroup::Probes, RouteGroup::Discovery]),
    global: true,
    auth: &[AuthScheme::Bearer],
    answers: Profile::v1_rest,
    paths: "/tools, /tools/{name}, /openapi.json, /namespaces, /health, /ready",
};

const V1_MCP: ProfileSpec = ProfileSpec {
    routes: RouteGroups::of(&[
        RouteGroup::Mcp,
        RouteGroup::Front,
        RouteGroup::McpInfo,
        RouteGroup::Probes,
        RouteGroup::Discovery,
        RouteGroup::Connect,
    ]),
    global: true,
    auth: &[AuthScheme::Bearer],
    answers: Profile::v1_mcp,
    paths: "/mcp, /mcp/{namespace}, /mcp/namespaces, /mcp/info, /mcp/{namespace}/info, /health, /ready",
};

const VAULT: ProfileSpec = ProfileSpec {
    routes: RouteGroups::of(&[
        RouteGroup::Mcp,
        RouteGroup::Front,
        RouteGroup::Vault,
        RouteGroup::Ui,
        RouteGroup::Probes,
        RouteGroup::Discovery,
        RouteGroup::Connect,
    ]),
    global: false,
    auth: &[AuthScheme::Bearer],
    answers: Profile::vault,
    paths: "/mcp, /tools/list, /tools/call, /tools/{name}, /openapi.json, /ui/, /health, /ready",
};

impl ProfileSpec {
    /// Returns true if the profile serves MCP endpoints of namespaces, which may have aliases.
    pub(crate) fn has_aliases(&self) -> bool {
        let is_of_the_management = (self.answers)().namespace.is_some_and(|it| it.is_system());
        self.routes.has_mcp_endpoints() && !is_of_the_management
    }
}

impl ProfileName {
    /// Returns the properties of the profile.
    pub(crate) fn spec(self) -> &'static ProfileSpec {
        match self {
            Self::Core => &CORE,
            Self::Manager => &MANAGER,
            Self::Metrics => &METRICS,
            Self::V1Rest => &V1_REST,
            Self::V1Mcp => &V1_MCP,
            Self::V1Web => &V1_WEB,
            Self::Vault => &VAULT,
        }
    }
}
