//! Which paths a listener serves, and with which methods. One table per surface; nothing is matched by prefix except
//! `/.well-known/`.

use std::borrow::Cow;

use http::Method;

use crate::fields::Fields;
use crate::media;
use crate::path;
use crate::rejection::{Reason, Rejection, quoted};

/// The label of every path nothing is served at, so that metrics stay bounded whatever is asked for.
pub(crate) const UNKNOWN_LABEL: &str = "unknown";

const POST_ONLY: &str = "POST, OPTIONS";

/// Which table a listener uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Surface {
    /// MCP, REST and the public paths.
    Core,
    /// `/metrics` and the public paths.
    Metrics,
}

/// What a request is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// `/mcp` and `/mcp/{namespace}`
    Mcp,
    /// `/sse`, which opens a session of HTTP+SSE
    Sse,
    /// `/messages`, where such a session is written to
    Messages,
    /// `/tools`, and `/namespaces/{namespace}/tools`, as the next two and the document have a second path
    Tools,
    /// `/tools/{name}`
    Tool {
        /// The tool, decoded.
        name: String,
    },
    /// `/tools/{name}/schema`
    ToolSchema {
        /// The tool, decoded.
        name: String,
    },
    /// `/namespaces`
    Namespaces,
    /// `/openapi.json`
    OpenApi,
    /// `/reload`
    Reload,
    /// `/health`
    Health,
    /// `/ready`
    Ready,
    /// Anything below `/.well-known/`
    WellKnown,
    /// `/metrics`
    Metrics,
}

/// A route together with the namespace its path names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found<'a> {
    pub(crate) route: Route,
    pub(crate) namespace: Option<Cow<'a, str>>,
}

impl Surface {
    /// What is served at a path, if anything. The path has passed [`path::well_formed`].
    pub(crate) fn find(self, path: &str) -> Option<Found<'_>> {
        let found = |route| {
            Some(Found {
                route,
                namespace: None,
            })
        };
        match (self, path) {
            (_, "/health") => found(Route::Health),
            (_, "/ready") => found(Route::Ready),
            (Self::Metrics, "/metrics") => found(Route::Metrics),
            (Self::Metrics, _) => None,
            // Some clients join their base URL with a slash.
            (Self::Core, "/mcp" | "/mcp/") => found(Route::Mcp),
            (Self::Core, "/sse") => found(Route::Sse),
            (Self::Core, "/messages") => found(Route::Messages),
            (Self::Core, "/tools") => found(Route::Tools),
            (Self::Core, "/namespaces") => found(Route::Namespaces),
            (Self::Core, "/openapi.json") => found(Route::OpenApi),
            (Self::Core, "/reload") => found(Route::Reload),
            (Self::Core, _) => {
                if let Some(rest) = path.strip_prefix("/mcp/") {
                    let namespace = segment(rest.strip_suffix('/').unwrap_or(rest))?;
                    Some(Found {
                        route: Route::Mcp,
                        namespace: Some(namespace),
                    })
                } else if let Some(rest) = path.strip_prefix("/tools/") {
                    found(tool_route(rest)?)
                } else if let Some(rest) = path.strip_prefix("/namespaces/") {
                    let (namespace, below) = rest.split_once('/')?;
                    let route = match below {
                        "tools" => Route::Tools,
                        "openapi.json" => Route::OpenApi,
                        _ => tool_route(below.strip_prefix("tools/")?)?,
                    };
                    Some(Found {
                        route,
                        namespace: Some(segment(namespace)?),
                    })
                } else if path.starts_with("/.well-known/") {
                    found(Route::WellKnown)
                } else {
                    None
                }
            }
        }
    }
}

/// What is below `/tools/`.
fn tool_route(rest: &str) -> Option<Route> {
    Some(match rest.strip_suffix("/schema") {
        Some(name) => Route::ToolSchema {
            name: segment(name)?.into(),
        },
        None => Route::Tool {
            name: segment(rest)?.into(),
        },
    })
}

/// Exactly one segment, decoded.
fn segment(text: &str) -> Option<Cow<'_, str>> {
    if text.is_empty() || text.contains('/') {
        return None;
    }
    path::decoded(text).ok()
}

impl Route {
    /// The methods a route knows, as `Allow` spells them.
    pub fn allow(&self) -> &'static str {
        match self {
            Self::Mcp => "GET, POST, DELETE, OPTIONS",
            Self::Messages | Self::Tool { .. } | Self::Reload => POST_ONLY,
            Self::Sse
            | Self::Tools
            | Self::ToolSchema { .. }
            | Self::Namespaces
            | Self::OpenApi => "GET, OPTIONS",
            Self::Health | Self::Ready | Self::WellKnown | Self::Metrics => "GET, HEAD, OPTIONS",
        }
    }

    /// The route's name in metrics: the path with its variable parts as placeholders.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Mcp => "/mcp",
            Self::Sse => "/sse",
            Self::Messages => "/messages",
            Self::Tools => "/tools",
            Self::Tool { .. } => "/tools/{name}",
            Self::ToolSchema { .. } => "/tools/{name}/schema",
            Self::Namespaces => "/namespaces",
            Self::OpenApi => "/openapi.json",
            Self::Reload => "/reload",
            Self::Health => "/health",
            Self::Ready => "/ready",
            Self::WellKnown => "/.well-known",
            Self::Metrics => "/metrics",
        }
    }

    /// Served without credentials.
    pub(crate) fn is_public(&self) -> bool {
        matches!(
            self,
            Self::Health | Self::Ready | Self::WellKnown | Self::Metrics
        )
    }

    /// Belongs to HTTP+SSE, the transport of MCP 2024-11-05.
    pub(crate) fn is_legacy_sse(&self) -> bool {
        matches!(self, Self::Sse | Self::Messages)
    }

    /// Probes have to get through while everything else is being refused.
    pub(crate) fn is_probe(&self) -> bool {
        matches!(self, Self::Health | Self::Ready)
    }

    /// Belongs to one namespace.
    pub(crate) fn needs_namespace(&self) -> bool {
        matches!(
            self,
            Self::Mcp
                | Self::Sse
                | Self::Messages
                | Self::Tools
                | Self::Tool { .. }
                | Self::ToolSchema { .. }
                | Self::OpenApi
        )
    }

    /// How a client names the namespace here, as a sentence tells it.
    pub(crate) fn ways_to_name_a_namespace(&self) -> &'static str {
        match self {
            Self::Mcp => "send the header `X-Namespace: <name>`, or use the path /mcp/<name>",
            Self::OpenApi => {
                "send the header `X-Namespace: <name>`, or use the path /namespaces/<name>/openapi.json, or the query ?namespace=<name>"
            }
            Self::Tools | Self::Tool { .. } | Self::ToolSchema { .. } => {
                "send the header `X-Namespace: <name>`, or use a path below /namespaces/<name>/tools"
            }
            _ => "send the header `X-Namespace: <name>`",
        }
    }

    /// Whether a method is one of [`Route::allow`].
    fn knows(&self, method: &Method) -> bool {
        match *method {
            Method::OPTIONS => true,
            Method::GET => !matches!(self, Self::Messages | Self::Tool { .. } | Self::Reload),
            Method::HEAD => self.is_public(),
            Method::POST => matches!(
                self,
                Self::Mcp | Self::Messages | Self::Tool { .. } | Self::Reload
            ),
            Method::DELETE => *self == Self::Mcp,
            _ => false,
        }
    }

    /// Whether a request to the route has a body that means something. Any other is never read.
    pub fn takes_body(&self, method: &Method) -> bool {
        *method == Method::POST && matches!(self, Self::Mcp | Self::Messages | Self::Tool { .. })
    }

    /// Refuses a method the route does not know.
    pub(crate) fn check_method(&self, method: &Method) -> Result<(), Rejection> {
        if self.knows(method) {
            return Ok(());
        }
        let message = format!(
            "{} does not know the method {}; it knows {}.",
            self.label(),
            quoted(method.as_str()),
            self.allow()
        );
        Err(Rejection::method_not_allowed(message, self.allow()))
    }

    /// Refuses what MCP has no more since 2026-07-28: streams and sessions of their own, so GET and DELETE.
    pub(crate) fn check_modern_method(
        &self,
        method: &Method,
        fields: &Fields<'_>,
    ) -> Result<(), Rejection> {
        let gone = *self == Self::Mcp && matches!(*method, Method::GET | Method::DELETE);
        if !gone || !media::modern_version_named(fields) {
            return Ok(());
        }
        let message = format!(
            "Since protocol version 2026-07-28 {} knows only POST, not {}; leave out MCP-Protocol-Version or send the one your session was opened with.",
            self.label(),
            method
        );
        Err(Rejection::method_not_allowed(message, POST_ONLY))
    }
}

/// 404 for a path nothing is served at.
pub(crate) fn not_found(path: &str) -> Rejection {
    Rejection::new(
        Reason::NotFound,
        format!("Nothing is served at {}.", quoted(path)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn core(path: &str) -> Option<(Route, Option<String>)> {
        let found = Surface::Core.find(path)?;
        Some((found.route, found.namespace.map(Cow::into_owned)))
    }

    #[test]
    fn the_core_serves_its_documented_paths() {
        let name = || "say_hello".to_owned();
        for (path, route) in [
            ("/mcp", Route::Mcp),
            ("/mcp/", Route::Mcp),
            ("/sse", Route::Sse),
            ("/messages", Route::Messages),
            ("/tools", Route::Tools),
            ("/tools/say_hello", Route::Tool { name: name() }),
            ("/tools/say%5Fhello", Route::Tool { name: name() }),
            (
                "/tools/say_hello/schema",
                Route::ToolSchema { name: name() },
            ),
            (
                "/tools/schema",
                Route::Tool {
                    name: "schema".into(),
                },
            ),
            ("/namespaces", Route::Namespaces),
            ("/openapi.json", Route::OpenApi),
            ("/reload", Route::Reload),
            ("/health", Route::Health),
            ("/ready", Route::Ready),
            (
                "/.well-known/oauth-protected-resource/mcp",
                Route::WellKnown,
            ),
        ] {
            assert_eq!(core(path), Some((route, None)), "{path}");
        }
    }

    #[test]
    fn a_path_may_name_the_namespace() {
        for (path, namespace) in [
            ("/mcp/shared", "shared"),
            ("/mcp/shared/", "shared"),
            ("/mcp/a%2Db", "a-b"),
        ] {
            assert_eq!(
                core(path),
                Some((Route::Mcp, Some(namespace.into()))),
                "{path}"
            );
        }
        let name = || "add".to_owned();
        for (path, route) in [
            ("/namespaces/a%2Db/tools", Route::Tools),
            ("/namespaces/a-b/tools/add", Route::Tool { name: name() }),
            ("/namespaces/a-b/tools/ad%64", Route::Tool { name: name() }),
            (
                "/namespaces/a-b/tools/add/schema",
                Route::ToolSchema { name: name() },
            ),
            ("/namespaces/a-b/openapi.json", Route::OpenApi),
        ] {
            assert_eq!(core(path), Some((route, Some("a-b".into()))), "{path}");
        }
    }

    #[test]
    fn nothing_else_is_served() {
        for path in [
            "/",
            "",
            "*",
            "/sse/",
            "/messages/x",
            "/metrics",
            "/MCP",
            "/mcp//",
            "/mcp//x",
            "/mcp/a/b",
            "/mcp/a//",
            "/tools/",
            "/tools//schema",
            "/tools/a/b",
            "/tools/a/schema/",
            "/tools/a/schema/x",
            "/namespaces/",
            "/namespaces/a",
            "/namespaces/a/",
            "/namespaces//tools",
            "/namespaces/a/tools/",
            "/namespaces/a/tools/b/c",
            "/namespaces/a/tools/b/schema/",
            "/namespaces/a/openapi.json/",
            "/namespaces/a/mcp",
            "/namespaces/a/b/tools",
            "/health/",
            "/healthz",
            "/.well-known",
            "//mcp",
        ] {
            assert_eq!(core(path), None, "{path}");
        }
    }

    #[test]
    fn the_metrics_surface_serves_metrics_and_probes_only() {
        let find = |path| Surface::Metrics.find(path).map(|found| found.route);
        assert_eq!(find("/metrics"), Some(Route::Metrics));
        assert_eq!(find("/ready"), Some(Route::Ready));
        for path in ["/mcp", "/tools", "/reload", "/.well-known/x", "/"] {
            assert_eq!(find(path), None, "{path}");
        }
    }

    #[test]
    fn a_route_knows_the_methods_it_says_it_allows() {
        let name = || "x".to_owned();
        for route in [
            Route::Mcp,
            Route::Sse,
            Route::Messages,
            Route::Tools,
            Route::Tool { name: name() },
            Route::ToolSchema { name: name() },
            Route::Namespaces,
            Route::OpenApi,
            Route::Reload,
            Route::Health,
            Route::Ready,
            Route::WellKnown,
            Route::Metrics,
        ] {
            let allowed: Vec<_> = route.allow().split(", ").collect();
            for method in [
                Method::GET,
                Method::HEAD,
                Method::POST,
                Method::PUT,
                Method::DELETE,
                Method::OPTIONS,
                Method::PATCH,
                Method::TRACE,
                Method::CONNECT,
            ] {
                let known = allowed.contains(&method.as_str());
                assert_eq!(
                    route.check_method(&method).is_ok(),
                    known,
                    "{method} {route:?}"
                );
            }
        }
    }

    #[test]
    fn an_unknown_method_is_405_with_the_known_ones() {
        for method in ["PUT", "HEAD", "POSTS", "post", "PO"] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let refused = Route::Mcp.check_method(&method).unwrap_err();
            assert_eq!(refused.reason, Reason::MethodNotAllowed);
            assert_eq!(refused.headers[0].1, "GET, POST, DELETE, OPTIONS");
        }
        assert!(Route::Sse.check_method(&Method::POST).is_err());
        assert!(Route::Messages.check_method(&Method::GET).is_err());
        for route in [Route::Health, Route::Ready] {
            assert!(route.check_method(&Method::HEAD).is_ok());
        }
    }

    #[test]
    fn modern_versions_have_post_only() {
        let outcome = |method: Method, version: &str, route: Route| {
            let request = http::Request::builder()
                .method(method)
                .uri("/mcp")
                .header("mcp-protocol-version", version);
            let parts = request.body(()).unwrap().into_parts().0;
            route
                .check_modern_method(&parts.method, &Fields::of(&parts.headers))
                .map_err(|refused| refused.headers[0].1.clone())
        };
        for method in [Method::GET, Method::DELETE] {
            for version in ["2026-07-28", "2030-01-01"] {
                let refused = outcome(method.clone(), version, Route::Mcp);
                assert_eq!(refused.unwrap_err(), "POST, OPTIONS", "{method} {version}");
            }
            for version in ["2025-11-25", "", "2026-07-27", "latest", "9999-99-9x"] {
                assert_eq!(outcome(method.clone(), version, Route::Mcp), Ok(()));
            }
        }
        assert_eq!(outcome(Method::POST, "2026-07-28", Route::Mcp), Ok(()));
        assert_eq!(outcome(Method::GET, "2026-07-28", Route::Sse), Ok(()));
    }
}
