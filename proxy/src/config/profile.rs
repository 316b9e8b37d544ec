//! The profiles: a row of data for each. Code that handles requests reads the data and never the profile's name.
//!
//! A listener begins with the row of its profile, and its own keys change single values of it.

use tooldock_filters::{RouteGroup, RouteGroups};
use tooldock_sessions::profile::Profile;

use super::listener::{AuthScheme, ProfileName};

/// The properties of a profile.
pub(crate) struct ProfileSpec {
    /// The routes that the profile serves.
    pub(crate) routes: RouteGroups,
    /// True when a request that names no namespace is for all namespaces.
    pub(crate) global: bool,
    /// The kinds of credentials that are accepted.
    pub(crate) auth: &'static [AuthScheme],
    /// How requests are answered: versions, batches, sessions, Accept, shapes.
    pub(crate) answers: fn() -> Profile,
    /// The paths that the profile serves, for display to the operator.
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
    ]),
    global: false,
    auth: &[AuthScheme::Bearer],
    answers: Profile::vault,
    paths: "/mcp, /tools/list, /tools/call, /tools/{name}, /openapi.json, /ui/, /health, /ready",
};

impl ProfileSpec {
    /// Returns true if the MCP endpoints of namespaces are served, which may have aliases.
    pub(crate) fn has_aliases(&self) -> bool {
        let is_of_the_management = (self.answers)().namespace.is_some_and(|it| it.is_system());
        self.routes.has_mcp_endpoints() && !is_of_the_management
    }
}

impl ProfileName {
    /// The properties of the profile.
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
