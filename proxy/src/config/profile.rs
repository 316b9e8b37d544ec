//! What each profile is: one row of data per profile. Nothing that handles requests asks which profile it runs under.
//!
//! A listener begins with the row of its profile, and its own keys change single values of it.

use tooldock_filters::{RouteGroup, RouteGroups};
use tooldock_upstream::profile::Profile;

use super::listener::{AuthScheme, ProfileName};

/// A profile.
pub(crate) struct ProfileSpec {
    /// Which routes it serves.
    pub(crate) routes: RouteGroups,
    /// How a caller says who it is.
    pub(crate) auth: &'static [AuthScheme],
    /// How requests are answered: versions, batches, sessions, Accept, shapes.
    pub(crate) answers: fn() -> Profile,
    /// What it serves, for the eyes of the operator.
    pub(crate) paths: &'static str,
}

const CORE: ProfileSpec = ProfileSpec {
    routes: RouteGroups::of(&[
        RouteGroup::Mcp,
        RouteGroup::Sse,
        RouteGroup::Rest,
        RouteGroup::Reload,
        RouteGroup::Probes,
        RouteGroup::Discovery,
    ]),
    auth: &[AuthScheme::Bearer],
    answers: Profile::core,
    paths: "/mcp, /mcp/{namespace}, /sse, /messages, /tools, /namespaces, /openapi.json, /reload, /health, /ready",
};

const MANAGER: ProfileSpec = ProfileSpec {
    routes: RouteGroups::of(&[
        RouteGroup::Mcp,
        RouteGroup::Sse,
        RouteGroup::Probes,
        RouteGroup::Discovery,
    ]),
    auth: &[AuthScheme::Bearer],
    answers: Profile::manager,
    paths: "/mcp, /sse, /messages, /health, /ready",
};

const METRICS: ProfileSpec = ProfileSpec {
    routes: RouteGroups::of(&[RouteGroup::Metrics, RouteGroup::Probes]),
    auth: &[AuthScheme::Bearer],
    answers: Profile::metrics,
    paths: "/metrics, /health, /ready",
};

const WEB: ProfileSpec = ProfileSpec {
    routes: RouteGroups::of(&[RouteGroup::Mcp, RouteGroup::Web, RouteGroup::Probes]),
    auth: &[AuthScheme::Bearer, AuthScheme::Basic],
    answers: Profile::web,
    paths: "/, /assets, /api, /mcp, /mcp/{namespace}, /health, /ready",
};

impl ProfileName {
    /// The profile's row; `None` for one that this version does not serve.
    pub(crate) fn spec(self) -> Option<&'static ProfileSpec> {
        match self {
            Self::Core => Some(&CORE),
            Self::Manager => Some(&MANAGER),
            Self::Metrics => Some(&METRICS),
            Self::V1Web => Some(&WEB),
            Self::V1Rest | Self::V1Mcp | Self::Vault => None,
        }
    }
}
