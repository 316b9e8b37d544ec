//! Information for clients that need access tokens: the metadata of protected resources (RFC 9728), and the challenges in 401
//! and 403 responses (RFC 6750), which refer to the metadata.
//!
//! The resource of a namespace is the URL by which clients reach it: public URL, path prefix of the listener, and path. The URL
//! of its metadata is defined by RFC 9728: `/.well-known/oauth-protected-resource` is inserted between the host and the path.

use std::collections::BTreeSet;

use serde_json::json;
use tooldock_base::names::NamespaceName;

use crate::request::ListenerRules;
use crate::route::{EndpointAliases, RouteGroups};

/// Path below which the metadata of protected resources are served (RFC 9728).
const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

/// Last segment of the path of the metadata, without `/.well-known/`.
const DOCUMENT: &str = "oauth-protected-resource";

/// Settings of a listener that determine the URLs of its resources: path prefix, aliases and routes.
#[derive(Debug, Clone, Copy)]
pub struct ResourcePlace<'a> {
    /// The path prefix that a proxy in front of the gateway removes.
    prefix: &'a str,
    aliases: &'a EndpointAliases,
    routes: RouteGroups,
}

impl<'a> ResourcePlace<'a> {
    /// Collects these settings from the rules of a listener.
    pub fn of(listener: &'a ListenerRules) -> Self {
        Self {
            prefix: listener.path_prefix.as_deref().unwrap_or_default(),
            aliases: &listener.aliases,
            routes: listener.routes,
        }
    }
}

/// Content that is the same in the metadata documents of all resources.
#[derive(Debug, Default)]
pub(super) struct Resources {
    /// The gateway's public origin, by which clients reach it.
    origin: String,
    issuers: Vec<String>,
    scopes: BTreeSet<String>,
}

impl Resources {
    pub(super) fn new<'a>(
        origin: &str,
        issuers: impl IntoIterator<Item = &'a str>,
        scopes: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let mut listed: Vec<String> = Vec::new();
        for issuer in issuers {
            if !listed.iter().any(|it| it == issuer) {
                listed.push(issuer.to_owned());
            }
        }
        Self {
            origin: origin.to_owned(),
            issuers: listed,
            scopes: scopes.into_iter().map(str::to_owned).collect(),
        }
    }

    /// Builds the metadata document for the path `rest` below `/.well-known/`; `None` if no resource belongs to that path.
    pub(super) fn document(&self, rest: &str, place: ResourcePlace<'_>) -> Option<Vec<u8>> {
        let prefix = place.prefix;
        let path = rest.strip_prefix(DOCUMENT)?;
        // The path is accepted with and without the prefix: a proxy in front of the gateway may have removed it.
        let path = match path.strip_prefix(prefix) {
            Some(inner) if inner.is_empty() || inner.starts_with('/') => inner,
            _ => path,
        };
        let path = match path {
            "" | "/" => "",
            _ => resource_path(path, place)?,
        };
        let document = json!({
            "resource": format!("{}{prefix}{path}", self.origin),
            "authorization_servers": self.issuers,
            "scopes_supported": self.scopes,
            "bearer_methods_supported": ["header"],
        });
        Some(document.to_string().into_bytes())
    }

    /// URL of the metadata for a request's path. A path of an MCP endpoint has metadata of its own; all others share those of the
    /// whole gateway.
    pub(super) fn metadata_url(&self, path: &str, place: ResourcePlace<'_>) -> String {
        let path = resource_path(path, place).unwrap_or_default();
        format!("{}{WELL_KNOWN}{}{path}", self.origin, place.prefix)
    }

    /// All token scopes that the configuration maps to scopes of the gateway, separated by spaces.
    pub(super) fn scopes(&self) -> String {
        let scopes: Vec<_> = self.scopes.iter().map(String::as_str).collect();
        scopes.join(" ")
    }
}

/// The resource's path for a request's path: `/mcp`, `/mcp/NAMESPACE` or an alias, without a trailing slash; `None` for other
/// paths. A client compares the resource with the URL that it uses, so each alias is a separate resource. Every path that might
/// be an alias counts as one, since the metadata are public and must not reveal which aliases exist.
fn resource_path<'a>(path: &'a str, place: ResourcePlace<'_>) -> Option<&'a str> {
    let path = path.strip_suffix('/').unwrap_or(path);
    if place.aliases.may_have(path, place.routes) {
        return Some(path);
    }
    let rest = path.strip_prefix("/mcp")?;
    match rest.strip_prefix('/') {
        None => rest.is_empty().then_some(path),
        Some(namespace) => namespace.parse::<NamespaceName>().is_ok().then_some(path),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn resources() -> Resources {
        let issuers = ["https://a", "https://b", "https://a"];
        Resources::new("https://gw.example", issuers, ["mcp:write", "mcp:read"])
    }

    fn aliases() -> EndpointAliases {
        let calc = "calc".parse().unwrap();
        EndpointAliases::new([("/old/calc", &calc)])
    }

    fn place<'a>(prefix: &'a str, aliases: &'a EndpointAliases) -> ResourcePlace<'a> {
        ResourcePlace {
            prefix,
            aliases,
            routes: crate::route::ALL,
        }
    }

    #[test]
    fn each_path_has_its_resource_with_and_without_the_prefix() {
        let resources = resources();
        for (rest, prefix, resource) in [
            ("oauth-protected-resource", "", "https://gw.example"),
            ("oauth-protected-resource/mcp", "", "https://gw.example/mcp"),
            (
                "oauth-protected-resource/mcp/",
                "",
                "https://gw.example/mcp",
            ),
            (
                "oauth-protected-resource/mcp/calc",
                "",
                "https://gw.example/mcp/calc",
            ),
            (
                "oauth-protected-resource/mcp/calc",
                "/tools",
                "https://gw.example/tools/mcp/calc",
            ),
            (
                "oauth-protected-resource/tools/mcp/calc",
                "/tools",
                "https://gw.example/tools/mcp/calc",
            ),
            (
                "oauth-protected-resource/old/calc",
                "",
                "https://gw.example/old/calc",
            ),
            (
                "oauth-protected-resource/tools/old/calc/",
                "/tools",
                "https://gw.example/tools/old/calc",
            ),
            (
                "oauth-protected-resource/tools",
                "/tools",
                "https://gw.example/tools",
            ),
        ] {
            let aliases = aliases();
            let document = resources
                .document(rest, place(prefix, &aliases))
                .expect(rest);
            let document: Value = serde_json::from_slice(&document).unwrap();
            assert_eq!(document["resource"], resource);
            assert_eq!(
                document["authorization_servers"],
                json!(["https://a", "https://b"])
            );
            assert_eq!(
                document["scopes_supported"],
                json!(["mcp:read", "mcp:write"])
            );
        }
        for rest in [
            "openid-configuration",
            "oauth-protected-resource2",
            "oauth-protected-resource/tools/tools/list",
            "oauth-protected-resource/old/a b",
            "oauth-protected-resource/mcp/\"",
        ] {
            assert_eq!(
                resources.document(rest, place("/tools", &aliases())),
                None,
                "{rest}"
            );
        }
        // Without aliases, no path is one.
        for rest in [
            "oauth-protected-resource/mcp/a/b",
            "oauth-protected-resource/old/other",
        ] {
            let without = place("/tools", &EndpointAliases::NONE);
            assert_eq!(resources.document(rest, without), None, "{rest}");
            let document = resources.document(rest, place("", &aliases()));
            assert!(document.is_some(), "{rest}");
        }
    }

    #[test]
    fn a_challenge_leads_to_the_document_of_its_path() {
        let resources = resources();
        for (path, prefix, url) in [
            (
                "/mcp",
                "",
                "https://gw.example/.well-known/oauth-protected-resource/mcp",
            ),
            (
                "/mcp/calc",
                "/x",
                "https://gw.example/.well-known/oauth-protected-resource/x/mcp/calc",
            ),
            (
                "/old/calc/",
                "/x",
                "https://gw.example/.well-known/oauth-protected-resource/x/old/calc",
            ),
            (
                "/tools",
                "",
                "https://gw.example/.well-known/oauth-protected-resource",
            ),
            (
                "/mcp/\"quote",
                "",
                "https://gw.example/.well-known/oauth-protected-resource",
            ),
        ] {
            assert_eq!(resources.metadata_url(path, place(prefix, &aliases())), url);
        }
    }
}
