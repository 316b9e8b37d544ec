//! The table of all request paths. A listener serves some groups of its rows. To add a surface, add a group of rows and a
//! handler.
//!
//! The first row whose pattern matches the path is used. In a pattern, `{namespace}` and `{name}` match exactly one decoded
//! segment, and `{rest}` at the end matches the remainder. Paths with the most traffic come first.

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

/// A row of the route table.
#[derive(Debug)]
pub struct RouteSpec {
    /// The group of routes that this route belongs to. A listener serves complete groups.
    pub group: RouteGroup,
    /// Identifies the handler of requests to the route.
    pub id: RouteId,
    /// The HTTP methods that the route supports.
    pub methods: Methods,
    /// The pattern that paths of the route match.
    pattern: Pattern,
    /// The clients that may use the route.
    pub access: RouteAccess,
    /// The part of a request that determines its namespace.
    pub namespace: RouteNamespace,
    /// The kind of body that a POST or PUT to the route has.
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

// The table has rows with a trailing slash for `/mcp`, since some clients append one to their base URL.
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
    Connect   | Connect    | GET_POST | "/connect/{rest}"                       | Public    | None      | Any           | "/connect"
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

/// A group of routes. A listener serves either all routes of a group or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteGroup {
    /// MCP endpoints: Streamable HTTP, and protocol version 2026-07-28.
    Mcp,
    /// MCP endpoints of the transport HTTP+SSE (protocol version 2024-11-05).
    Sse,
    /// Tools over plain HTTP, and the list of namespaces.
    Rest,
    /// Descriptions of the MCP endpoints, in the format of ToolDock v1.
    McpInfo,
    /// Tools over plain HTTP, compatible with Tool Vault.
    Vault,
    /// Single-page app that is compatible with Tool Vault's.
    Ui,
    /// Routes for operators: reloading the namespaces, explaining which principals may use them, and the gateway's state.
    Reload,
    /// Test requests by which the gateway checks the servers in front of it. Their path is below `/mcp`, so that these servers
    /// forward them like requests to the MCP endpoints.
    Front,
    /// Health checks: `/health` and `/ready`.
    Probes,
    /// Documents below `/.well-known/`, such as OAuth metadata.
    Discovery,
    /// Pages on which principals give their personal credentials for servers.
    Connect,
    /// The metrics of the gateway.
    Metrics,
    /// The web UI: its page, and the paths that the page requests.
    Web,
}

/// The set of route groups that a listener serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteGroups(u16);

impl RouteGroups {
    /// Creates a set of these groups.
    pub const fn of(groups: &[RouteGroup]) -> Self {
        let mut bits = 0;
        let mut at = 0;
        while at < groups.len() {
            bits |= 1 << groups[at] as u16;
            at += 1;
        }
        Self(bits)
    }

    /// Returns the set without `group`.
    #[must_use]
    pub const fn without(self, group: RouteGroup) -> Self {
        Self(self.0 & !(1 << group as u16))
    }

    const fn contains(self, group: RouteGroup) -> bool {
        self.0 & (1 << group as u16) != 0
    }

    /// Returns true if at least one of the groups contains routes by which tools can be called.
    pub(crate) const fn call_tools(self) -> bool {
        self.contains(RouteGroup::Mcp)
            || self.contains(RouteGroup::Sse)
            || self.contains(RouteGroup::Rest)
            || self.contains(RouteGroup::Vault)
    }

    /// Returns true if the set contains MCP over Streamable HTTP.
    pub const fn has_mcp_endpoints(self) -> bool {
        self.contains(RouteGroup::Mcp)
    }

    /// Label of the route that matches a path; `None` if no route does. Aliases of MCP endpoints are not considered.
    pub fn label_of(self, path: &str) -> Option<&'static str> {
        self.find(path).map(|found| found.spec.label)
    }

    /// Finds the route of a path, including aliases of MCP endpoints; `None` if there is none. The path must have passed
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

    /// The route that a path has if it is an alias: HTTP+SSE if it ends with `/sse` and that group is served, otherwise
    /// Streamable HTTP. Configured aliases are not looked up, so that a client without credentials does not learn which paths are
    /// aliases.
    pub(crate) fn find_of_alias(self, path: &str) -> Option<MatchedRoute<'static>> {
        let path = path.strip_suffix('/').unwrap_or(path);
        let is_sse = path.ends_with("/sse");
        // The namespace `-` is a placeholder; the caller replaces it by the alias's namespace.
        is_sse
            .then(|| self.find("/sse"))
            .flatten()
            .or_else(|| self.find("/mcp/-"))
    }

    /// Finds the route of a path; `None` if there is none. The path must have passed
    /// [`well_formed`](crate::path::well_formed).
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

/// A route that matches a request's path, with the segments that its variables matched.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MatchedRoute<'a> {
    pub(crate) spec: &'static RouteSpec,
    segments: Segments<'a>,
    served: RouteGroups,
}

impl<'a> MatchedRoute<'a> {
    /// Returns true if the request's path contains the namespace's name.
    pub(crate) fn names_namespace(&self) -> bool {
        self.segments.namespace.is_some()
    }

    /// Part of an error message that tells the client at which path this listener lists the namespaces; `None` if it has no such
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

    /// The namespace's name in the request's path, decoded; `None` if the path contains none.
    pub(crate) fn namespace(&self) -> Result<Option<Cow<'a, str>>, Rejection> {
        self.segments.namespace.map(decoded).transpose()
    }

    /// The tool's name in the request's path, decoded; `None` if the path contains none.
    pub(crate) fn name(&self) -> Result<Option<Cow<'a, str>>, Rejection> {
        let name = self.segments.name;
        Ok(name.map(path::decoded_tool).transpose()?)
    }
}

impl MatchedRoute<'_> {
    /// The remainder of the path that `{rest}` matched, each segment decoded; `None` for a pattern without `{rest}`.
    pub(crate) fn rest(&self) -> Result<Option<String>, Rejection> {
        let Some(rest) = self.segments.rest else {
            return Ok(None);
        };
        let segments: Result<Vec<_>, _> = rest.split('/').map(decoded).collect();
        Ok(Some(segments?.join("/")))
    }
}

/// Decodes a segment of the path. Cannot fail, since the path was checked before.
fn decoded(segment: &str) -> Result<Cow<'_, str>, Rejection> {
    Ok(path::decoded(segment)?)
}

/// The clients that may use a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteAccess {
    /// All clients may use the route, even without a credential.
    Public,
    /// All clients may use the route, even if the gateway refuses all other requests. A known principal gets more details.
    Probe,
    /// Clients with a valid credential may use the route, or all clients if the listener requires no credentials.
    Principal,
    /// Clients with a valid credential may use the route, if they also pass the checks of `/reload`: client address and manager's
    /// token.
    Manager,
    /// Clients with a valid credential may use the route, if their address is also in `admission.internal_cidrs`.
    Internal,
}

/// The part of a request that determines its namespace, for a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteNamespace {
    /// The route belongs to no namespace.
    None,
    /// The namespace is determined by the path, `X-Namespace` or the listener.
    Required,
    /// The namespace is determined by the path, `X-Namespace`, the listener, or the query parameter `namespace`.
    OrQuery,
    /// The namespace is determined by the path, `X-Namespace`, the listener, or the session whose id the query contains.
    OrSession,
    /// The namespace is always that of the management tools. Only principals that may use it are admitted.
    Management,
}

/// The kind of body that a POST or PUT to a route has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteBody {
    /// No body is expected. If there is one, it is not read.
    None,
    /// The body must be JSON.
    Json,
    /// The body must be JSON, or missing.
    JsonOrNothing,
    /// Admission does not check the body's type; the route's handler does.
    Any,
}

/// The HTTP methods that a route supports.
#[derive(Debug, Clone, Copy)]
pub struct Methods {
    /// List of the supported methods, as the value of an `Allow` header.
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
    /// List of the supported methods, as the value of an `Allow` header.
    pub(crate) fn allow(&self) -> &'static str {
        self.methods.allow
    }

    /// Returns true if the route is an MCP endpoint.
    pub fn is_mcp(&self) -> bool {
        matches!(self.group, RouteGroup::Mcp | RouteGroup::Sse)
    }

    /// Format of the route's error bodies.
    pub fn error_shape(&self) -> ErrorShape {
        let is_below = matches!(self.group, RouteGroup::McpInfo | RouteGroup::Front);
        match self.is_mcp() || is_below {
            true => ErrorShape::Mcp,
            false => ErrorShape::Rest,
        }
    }

    /// Returns true if the body of a request to the route is read. Otherwise a body is ignored.
    pub fn takes_body(&self, method: &Method) -> bool {
        matches!(*method, Method::POST | Method::PUT) && self.body != RouteBody::None
    }

    /// Part of an error message that lists how a request to this route can name its namespace.
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

    /// Refuses GET and DELETE on the MCP endpoint if the request names protocol version 2026-07-28 or later: MCP then has no
    /// separate streams and no sessions.
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

/// Finds the route of a path, for tests of other modules.
#[cfg(test)]
pub(crate) fn of(path: &'static str) -> &'static RouteSpec {
    ALL.find(path).expect(path).spec
}

#[cfg(test)]
mod tests;
