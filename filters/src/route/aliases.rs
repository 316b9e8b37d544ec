//! Further paths of the MCP endpoints of namespaces, which the configuration gives them.

use std::collections::BTreeMap;
use std::sync::Arc;

use tooldock_workers::names::NamespaceName;

/// The namespaces by the aliases of their MCP endpoints. As `/mcp/{namespace}`, an alias may have a slash at its end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EndpointAliases(Option<Arc<BTreeMap<Box<str>, NamespaceName>>>);

impl EndpointAliases {
    /// No aliases.
    pub const NONE: Self = Self(None);

    /// The aliases of a configuration: paths without a slash at their end, each once.
    pub fn new<'a>(aliases: impl IntoIterator<Item = (&'a str, &'a NamespaceName)>) -> Self {
        let aliases = aliases.into_iter();
        let table: BTreeMap<_, _> = aliases
            .map(|(path, namespace)| (path.into(), namespace.clone()))
            .collect();
        Self((!table.is_empty()).then(|| Arc::new(table)))
    }

    /// The namespace whose MCP endpoint has this path, too.
    pub(crate) fn namespace(&self, path: &str) -> Option<&NamespaceName> {
        let table = self.0.as_ref()?;
        table.get(path.strip_suffix('/').unwrap_or(path))
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
        assert_eq!(EndpointAliases::new([]), EndpointAliases::NONE);
    }
}
