//! The table of all paths. A listener serves the groups of its profile. A new surface consists of a group of rows here and a
//! handler.
//!
//! The first row whose pattern matches the path is used. In a pattern, `{namespace}` and `{name}` match exactly one segment,
//! decoded, and `{rest}` at its end matches the remainder. The paths with most traffic come first.

mod aliases;
mod pattern;

use std::borrow::Cow;

use http::Method;
use tooldock_base::route::RouteId;

pub use self::aliases::EndpointAliases;
use self::pattern::{Pattern, Segments};
use crate::fields::Fields;
use crate::path;
use crate::rejection::{ErrorShape, Reason, Rejection, quoted};
use crate::version::modern_version_named;

/// A row of the table of routes.
#[derive(Debug)]
pub struct RouteSpec {
    /// The group that the row is served with.
    pub group: RouteGroup,
    /// The purpose of a request to the route.
    pub id: RouteId,
    /// The methods of the route.
    pub methods: Methods,
    /// The paths of the route.
    pattern: Pattern,
    /// The clients that may use the route.
    pub access: RouteAccess,
    /// How requests to the route name their namespace.
    pub namespace: RouteNamespace,
    /// The body of a POST or PUT.
    pub body: RouteBody,
    /// The route's name in metrics and messages.
    pub label: &'static str,
}

macro_rules! table {
    ($($group:ident | $id:ident | $methods:ident | $pattern:literal | $access:ident | $namespace:ident | $body:ident | $label:literal)*) => {
        &[$(RouteSpec {
            group: RouteGroup::$group,
            id: RouteId::$id,
            methods: Methods::$methods,
            pattern: Pattern::new($pattern),
            access: RouteAccess::$access,
            namespace: RouteNamespace::$namespace,
            body: RouteBody::$body,
            label: $label,
        }),*]
    };
}

// Some clients join their base URL with a slash, so `/mcp/` is `/mcp`.
#[rustfmt::skip]
static ROUTES: &[RouteSpec] = table! {
//  group     | id         | methods | pattern                                  | access    | namespace | body          | label
    Mcp       | Mcp        | MCP     | "/mcp"                                   | Principal | Required  | Json          | "/mcp"
    McpInfo   | McpNamespaces | GET  | "/mcp/namespaces"                        | Principal | None      | None          | "/mcp/namespaces"
    McpInfo   | McpInfo    | GET     | "/mcp/info"                              | Principal | None      | None          | "/mcp/info"
    McpInfo   | McpInfo    | GET     | "/mcp/{namespace}/info"                  | Principal | Required  | None          | "/mcp/info"
    Mcp       | Mcp        | MCP     | "/mcp/{namespace}"                       | Principal | Required  | Json          | "/mcp"
    Mcp       | Mcp        | MCP     | "/mcp/"                                  | Principal | Required  | Json          | "/mcp"
    Mcp       | Mcp        | MCP     | "/mcp/{namespace}/"                      | Principal | Required  | Json          | "/mcp"
    Sse       | Messages   | POST    | "/messages"                              | Principal | OrSession | Json          | "/messages"
    Sse       | Sse        | GET     | "/sse"                                   | Principal | Required  | None          | "/sse"
    Vault     | ToolIndex  | GET     | "/tools/list"                            | Principal | Required  | None          | "/tools/list"
    Vault     | VaultCall  | POST    | "/tools/call"                            | Principal | Required  | Json          | "/tools/call"
    Vault     | Tool       | POST    | "/tools/{name}"                          | Principal | Required  | JsonOrNothing | "/tools/{name}"
    Vault     | OpenApi    | GET     | "/openapi.json"                          | Principal | OrQuery   | None          | "/openapi.json"
    Rest      | ToolIndex  | GET_POST | "/tools/list"                           | Principal | Required  | JsonOrNothing | "/tools/list"
    Rest      | Tool       | POST    | "/tools/{name}"                          | Principal | Required  | JsonOrNothing | "/tools/{name}"
    Rest      | Tools      | GET     | "/tools"                                 | Principal | Required  | None          | "/tools"
    Rest      | ToolSchema | GET     | "/tools/{name}/schema"                   | Principal | Required  | None          | "/tools/{name}/schema"
    Rest      | OpenApi    | GET     | "/openapi.json"                          | Principal | OrQuery   | None          | "/openapi.json"
    Rest      | Tool       | POST    | "/namespaces/{namespace}/tools/{name}"   | Principal | Required  | JsonOrNothing | "/tools/{name}"
    Rest      | Tools      | GET     | "/namespaces/{namespace}/tools"          | Principal | Required  | None          | "/tools"
    Rest      | ToolSchema | GET     | "/namespaces/{namespace}/tools/{name}/schema" | Principal | Required | None      | "/tools/{name}/schema"
    Rest      | OpenApi    | GET     | "/namespaces/{namespace}/openapi.json"   | Principal | OrQuery   | None          | "/openapi.json"
    Rest      | Namespaces | GET     | "/namespaces"                            | Principal | None      | None          | "/namespaces"
    Reload    | Reload     | POST    | "/reload"                                | Manager   | None      | None          | "/reload"
    Reload    | Explain    | POST    | "/explain"                               | Manager   | None      | Json          | "/explain"
    Reload    | Output     | POST    | "/output"                                | Manager   | None      | Json          | "/output"
    Reload    | Api        | API     | "/operator/{rest}"                       | Internal  | Management | None         | "/operator"
    Front     | FrontProbe | MCP     | "/mcp/_probe/{rest}"                     | Public    | None      | Any           | "/mcp/_probe"
    Probes    | Health     | GET_HEAD | "/health"                               | Probe     | None      | None          | "/health"
    Probes    | Ready      | GET_HEAD | "/ready"                                | Probe     | None      | None          | "/ready"
    Discovery | WellKnown  | GET_HEAD | "/.well-known/{rest}"                   | Public    | None      | None          | "/.well-known"
    Ui        | Ui         | GET_HEAD | "/ui"                                   | Public    | None      | None          | "/ui"
    Ui        | Ui         | GET_HEAD | "/ui/{rest}"                            | Public    | None      | None          | "/ui"
    Metrics   | Metrics    | GET_HEAD | "/metrics"                              | Public    | None      | None          | "/metrics"
    Web       | WebLogin   | GET_POST | "/api/login/oauth"                      | Public    | None      | Any           | "/api/login/oauth"
    Web       | WebLogin   | POST    | "/api/login/oauth/code"                  | Public    | None      | Any           | "/api/login/oauth"
    Web       | Api        | API     | "/api/{rest}"                            | Principal | Management | Any          | "/api"
    Web       | WebAsset   | GET_HEAD | "/assets/{rest}"                        | Public    | None      | None          | "/assets"
    Web       | WebPage    | GET_HEAD | "/"                                     | Principal | None      | None          | "/"
    Web       | WebPage    | GET_HEAD | "/login"                                | Public    | None      | None          | "/"
};

/// Paths that a listener serves together or not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteGroup {
    /// MCP over Streamable HTTP, and 2026-07-28.
    Mcp,
    /// MCP 2024-11-05 over HTTP+SSE.
    Sse,
    /// Tools over plain HTTP, and the namespaces.
    Rest,
    /// Descriptions of the MCP endpoints, as ToolDock v1 has them.
    McpInfo,
    /// Tools over plain HTTP, as Tool Vault serves them.
    Vault,
    /// Tool Vault's single-page app.
    Ui,
    /// Reading the namespaces again, the principals that may use them, and the state of the gateway for operators.
    Reload,
    /// Probes of the servers in front of the gateway, at a path that these pass on with the MCP endpoints.
    Front,
    /// Health checks.
    Probes,
    /// Documents below `/.well-known/`.
    Discovery,
    /// The metrics.
    Metrics,
    /// The web UI: its page, and the paths that the page requests.
    Web,
}

/// The groups a listener serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteGroups(u16);

impl RouteGroups {
    /// The set of these groups.
    pub const fn of(groups: &[RouteGroup]) -> Self {
        let mut bits = 0;
        let mut at = 0;
        while at < groups.len() {
            bits |= 1 << groups[at] as u16;
            at += 1;
        }
        Self(bits)
    }

    /// These groups without `group`.
    #[must_use]
    pub const fn without(self, group: RouteGroup) -> Self {
        Self(self.0 & !(1 << group as u16))
    }

    const fn contains(self, group: RouteGroup) -> bool {
        self.0 & (1 << group as u16) != 0
    }

    /// Returns true if tools can be called by one of the groups.
    pub(crate) const fn call_tools(self) -> bool {
        self.contains(RouteGroup::Mcp)
            || self.contains(RouteGroup::Sse)
            || self.contains(RouteGroup::Rest)
            || self.contains(RouteGroup::Vault)
    }

    /// True if MCP over Streamable HTTP is served.
    pub const fn has_mcp_endpoints(self) -> bool {
        self.contains(RouteGroup::Mcp)
    }

    /// The label of a path's route, aliases aside.
    pub fn label_of(self, path: &str) -> Option<&'static str> {
        self.find(path).map(|found| found.spec.label)
    }

    /// The route of a path, if it has one, aliases of MCP endpoints included. The path has passed
    /// [`well_formed`](crate::path::well_formed).
    pub(crate) fn find_with<'a>(
        self,
        path: &'a str,
        aliases: &'a EndpointAliases,
    ) -> Option<MatchedRoute<'a>> {
        self.find(path).or_else(|| {
            let namespace = aliases.namespace(path)?;
            let endpoint = self.find_of_alias(path)?;
            let segments = Segments {
                namespace: Some(namespace.as_str()),
                ..Segments::default()
            };
            Some(MatchedRoute {
                segments,
                ..endpoint
            })
        })
    }

    /// The route of a path that may be an alias: HTTP+SSE if the path ends with `/sse` and that is served, otherwise Streamable
    /// HTTP. The path alone decides, so that an anonymous client does not learn which paths are aliases.
    pub(crate) fn find_of_alias(self, path: &str) -> Option<MatchedRoute<'static>> {
        let path = path.strip_suffix('/').unwrap_or(path);
        let is_sse = path.ends_with("/sse");
        // The route of the namespace `-`; its segment is replaced by the alias's namespace.
        is_sse
            .then(|| self.find("/sse"))
            .flatten()
            .or_else(|| self.find("/mcp/-"))
    }

    /// The route of a path, if it has one. The path has passed [`well_formed`](crate::path::well_formed).
    pub(crate) fn find(self, path: &str) -> Option<MatchedRoute<'_>> {
        let mut served = ROUTES.iter().filter(|spec| self.contains(spec.group));
        served.find_map(|spec| {
            let segments = spec.pattern.read(path)?;
            Some(MatchedRoute {
                spec,
                segments,
                served: self,
            })
        })
    }
}

/// A row of the table, with the segments of the path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MatchedRoute<'a> {
    pub(crate) spec: &'static RouteSpec,
    segments: Segments<'a>,
    served: RouteGroups,
}

impl<'a> MatchedRoute<'a> {
    /// Returns true if the path names the namespace.
    pub(crate) fn names_namespace(&self) -> bool {
        self.segments.namespace.is_some()
    }

    /// A clause for error messages that names the path at which this listener lists the namespaces. `None` if it serves no such
    /// path.
    pub(crate) fn way_to_list_namespaces(&self) -> Option<&'static str> {
        if self.served.contains(RouteGroup::Rest) {
            Some("GET /namespaces lists the ones there are")
        } else if self.served.contains(RouteGroup::McpInfo) {
            Some("GET /mcp/namespaces lists the ones there are")
        } else if self.served.contains(RouteGroup::Web) {
            Some("GET /api/namespaces lists the ones there are")
        } else {
            None
        }
    }

    /// The namespace that the path names, decoded.
    pub(crate) fn namespace(&self) -> Result<Option<Cow<'a, str>>, Rejection> {
        self.segments.namespace.map(decoded).transpose()
    }

    /// The tool that the path names, decoded.
    pub(crate) fn name(&self) -> Result<Option<Cow<'a, str>>, Rejection> {
        let name = self.segments.name;
        Ok(name.map(path::decoded_tool).transpose()?)
    }
}

impl MatchedRoute<'_> {
    /// The end of the request's path that matches `{rest}`, each segment decoded; `None` for a pattern without `{rest}`.
    pub(crate) fn rest(&self) -> Result<Option<String>, Rejection> {
        let Some(rest) = self.segments.rest else {
            return Ok(None);
        };
        let segments: Result<Vec<_>, _> = rest.split('/').map(decoded).collect();
        Ok(Some(segments?.join("/")))
    }
}

/// A segment of a path that is well formed, so this refuses none.
fn decoded(segment: &str) -> Result<Cow<'_, str>, Rejection> {
    Ok(path::decoded(segment)?)
}

/// The clients that may use a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteAccess {
    /// All clients.
    Public,
    /// All clients, even while all other requests are refused. A known principal gets more details.
    Probe,
    /// Clients with a principal.
    Principal,
    /// Clients with a principal that pass the controls of `/reload`, too.
    Manager,
    /// Clients with a principal and an address in `admission.internal_cidrs`.
    Internal,
}

/// How requests to a route name their namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteNamespace {
    /// The route belongs to no namespace.
    None,
    /// The namespace is named by the path, `X-Namespace` or the listener.
    Required,
    /// The namespace is named by the path, `X-Namespace`, the listener, or `namespace` in the query.
    OrQuery,
    /// The namespace is named by the path, `X-Namespace`, the listener, or the session that the query names.
    OrSession,
    /// The request names no namespace: the route belongs to that of the management tools, for principals that may use them.
    Management,
}

/// The body of a POST or PUT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteBody {
    /// The request has no body; it is never read.
    None,
    /// The request has a JSON body.
    Json,
    /// A JSON body, or no body at all.
    JsonOrNothing,
    /// Any type that the handler accepts; it refuses other types itself.
    Any,
}

/// The methods that a route supports.
#[derive(Debug, Clone, Copy)]
pub struct Methods {
    /// The methods in the form of `Allow`.
    allow: &'static str,
    know: fn(&Method) -> bool,
}

impl Methods {
    const MCP: Self = Self {
        allow: "GET, POST, DELETE, OPTIONS",
        know: |method| {
            matches!(
                *method,
                Method::GET | Method::POST | Method::DELETE | Method::OPTIONS
            )
        },
    };
    const GET: Self = Self {
        allow: "GET, OPTIONS",
        know: |method| matches!(*method, Method::GET | Method::OPTIONS),
    };
    const GET_POST: Self = Self {
        allow: "GET, POST, OPTIONS",
        know: |method| matches!(*method, Method::GET | Method::POST | Method::OPTIONS),
    };
    const GET_HEAD: Self = Self {
        allow: "GET, HEAD, OPTIONS",
        know: |method| matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS),
    };
    const API: Self = Self {
        allow: "GET, POST, PUT, DELETE, OPTIONS",
        know: |method| {
            matches!(
                *method,
                Method::GET | Method::POST | Method::PUT | Method::DELETE | Method::OPTIONS
            )
        },
    };
    const POST: Self = Self {
        allow: "POST, OPTIONS",
        know: |method| matches!(*method, Method::POST | Method::OPTIONS),
    };
}

impl RouteSpec {
    /// The methods, as `Allow` spells them.
    pub(crate) fn allow(&self) -> &'static str {
        self.methods.allow
    }

    /// Returns true if the route speaks MCP.
    pub fn is_mcp(&self) -> bool {
        matches!(self.group, RouteGroup::Mcp | RouteGroup::Sse)
    }

    /// The error bodies that the route's clients read.
    pub fn error_shape(&self) -> ErrorShape {
        let is_below = matches!(self.group, RouteGroup::McpInfo | RouteGroup::Front);
        match self.is_mcp() || is_below {
            true => ErrorShape::Mcp,
            false => ErrorShape::Rest,
        }
    }

    /// Returns true if the body of a request to the route is read. Any other body is never read.
    pub fn takes_body(&self, method: &Method) -> bool {
        matches!(*method, Method::POST | Method::PUT) && self.body != RouteBody::None
    }

    /// A clause for error messages that lists how a request to this route can name its namespace.
    pub(crate) fn ways_to_name_a_namespace(&self) -> &'static str {
        match (self.group, self.namespace) {
            (RouteGroup::Mcp, _) => {
                "send the header `X-Namespace: <name>`, or use the path /mcp/<name>"
            }
            (_, RouteNamespace::OrQuery) => {
                "send the header `X-Namespace: <name>`, or use the path /namespaces/<name>/openapi.json, or the query ?namespace=<name>"
            }
            (RouteGroup::Rest, _) => {
                "send the header `X-Namespace: <name>`, or use a path below /namespaces/<name>/tools"
            }
            _ => "send the header `X-Namespace: <name>`",
        }
    }

    /// Refuses a method that the route does not support.
    pub(crate) fn check_method(&self, method: &Method) -> Result<(), Rejection> {
        if (self.methods.know)(method) {
            return Ok(());
        }
        let message = format!(
            "{} does not know the method {}; it knows {}.",
            self.label,
            quoted(method.as_str()),
            self.allow()
        );
        Err(Rejection::method_not_allowed(message, self.allow()))
    }

    /// Refuses methods that MCP does not have since 2026-07-28: it has no separate streams and sessions, so neither GET nor
    /// DELETE.
    pub(crate) fn check_modern_method(
        &self,
        method: &Method,
        fields: &Fields<'_>,
    ) -> Result<(), Rejection> {
        let gone = self.id == RouteId::Mcp && matches!(*method, Method::GET | Method::DELETE);
        if !gone || !modern_version_named(fields) {
            return Ok(());
        }
        let message = format!(
            "Since protocol version 2026-07-28 {} knows only POST, not {}; leave out MCP-Protocol-Version or send the one your session was opened with.",
            self.label, method
        );
        let allow = Methods::POST.allow;
        Err(Rejection::method_not_allowed(message, allow))
    }
}

/// The 404 response for a path without a route.
pub(crate) fn not_found(path: &str) -> Rejection {
    Rejection::new(
        Reason::NotFound,
        format!("Nothing is served at {}.", quoted(path)),
    )
}

#[cfg(test)]
pub(crate) const ALL: RouteGroups = RouteGroups(u16::MAX);

/// The row of a path, for the tests of other checks.
#[cfg(test)]
pub(crate) fn of(path: &'static str) -> &'static RouteSpec {
    ALL.find(path).expect(path).spec
}

#[cfg(test)]
mod tests;
