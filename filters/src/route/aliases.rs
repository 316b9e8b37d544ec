//! Additional paths of the MCP endpoints of namespaces, from the configuration.

use std::collections::BTreeMap;
use std::sync::Arc;

use tooldock_base::names::NamespaceName;

use super::RouteGroups;

/// Map from aliases to the namespaces whose MCP endpoint they are. A request may append a slash, as to `/mcp/{namespace}`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EndpointAliases(Option<Arc<BTreeMap<Box<str>, NamespaceName>>>);

impl EndpointAliases {
    /// The empty map.
    pub const NONE: Self = Self(None);

    /// Creates the map from configured aliases. They are distinct paths without a trailing slash.
    pub fn new<'a>(aliases: impl IntoIterator<Item = (&'a str, &'a NamespaceName)>) -> Self {
        let aliases = aliases.into_iter();
        let table: BTreeMap<_, _> = aliases
            .map(|(path, namespace)| (path.into(), namespace.clone()))
            .collect();
        Self((!table.is_empty()).then(|| Arc::new(table)))
    }

    /// The namespace whose MCP endpoint has this path as an alias; `None` if the path is no alias.
    pub(crate) fn namespace(&self, path: &str) -> Option<&NamespaceName> {
        let table = self.0.as_ref()?;
        table.get(path.strip_suffix('/').unwrap_or(path))
    }

    /// Returns true if a path could be an alias by its form, whether configured or not; always false if there are no aliases.
    /// Used so that a client without credentials does not learn which paths are aliases.
    pub(crate) fn may_have(&self, path: &str, routes: RouteGroups) -> bool {
        let path = path.strip_suffix('/').unwrap_or(path);
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        let is_form = |rest: &str| {
            let mut segments = rest.split('/');
            segments.all(|segment| !segment.is_empty() && segment.bytes().all(plain))
        };
        self.0.is_some()
            && path.strip_prefix('/').is_some_and(is_form)
            && routes.find(path).is_none()
            && routes.find(&format!("{path}/")).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alias_has_one_namespace_with_and_without_a_slash_at_its_end() {
        let files: NamespaceName = "files".parse().expect("a name");
        let aliases = EndpointAliases::new([("/files/mcp", &files)]);
        for path in ["/files/mcp", "/files/mcp/"] {
            assert_eq!(aliases.namespace(path), Some(&files), "{path}");
        }
        for path in [
            "/files",
            "/files/mcp//",
            "/files/mcp/x",
            "/FILES/mcp",
            "",
            "/",
        ] {
            assert_eq!(aliases.namespace(path), None, "{path}");
        }
        let routes = crate::route::ALL;
        for path in ["/files/mcp", "/files/mcp/", "/other", "/mcp/a/b"] {
            assert!(aliases.may_have(path, routes), "{path}");
        }
        for path in [
            "",
            "/",
            "/mcp",
            "/mcp/files",
            "/tools",
            "/ui",
            "/a//b",
            "/a\"b",
        ] {
            assert!(!aliases.may_have(path, routes), "{path}");
        }
        assert!(!EndpointAliases::NONE.may_have("/files/mcp", routes));
        assert_eq!(EndpointAliases::new([]), EndpointAliases::NONE);
    }
}
