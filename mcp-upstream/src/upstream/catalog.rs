//! What a namespace offers, whoever lists it: what REST, OpenAPI and mirrored headers have to know of its tools.

use std::borrow::Cow;

use serde_json::value::RawValue;
use tooldock_workers::error::CallError;
use tooldock_workers::registry::Namespace;

use crate::engine::unknown_tool;

/// The tools of a namespace at one moment, those that its policy denies among them.
pub(crate) trait Catalog: Send + Sync {
    /// All of them.
    fn tools(&self) -> Box<dyn Iterator<Item = ToolEntry<'_>> + Send + '_>;

    /// One of them.
    fn tool(&self, name: &str) -> Option<ToolEntry<'_>>;
}

/// One tool, as its author describes it; what its author did not say is absent.
pub(crate) struct ToolEntry<'a> {
    pub(crate) name: &'a str,
    pub(crate) title: Option<Cow<'a, str>>,
    pub(crate) description: Cow<'a, str>,
    pub(crate) input_schema: Option<&'a RawValue>,
    pub(crate) output_schema: Option<&'a RawValue>,
    pub(crate) annotations: Option<&'a RawValue>,
    /// Where its code is; empty for a tool of a server.
    pub(crate) filename: &'a str,
}

impl dyn Catalog {
    /// The tools that the namespace's policy allows.
    pub(crate) fn allowed<'a>(
        &'a self,
        namespace: &'a Namespace,
    ) -> impl Iterator<Item = ToolEntry<'a>> + Send {
        let allowed = |tool: &ToolEntry<'_>| namespace.policy.allows_tool(tool.name);
        self.tools().filter(allowed)
    }

    /// One tool that the namespace's policy allows.
    ///
    /// # Errors
    ///
    /// There is none of that name for callers.
    pub(crate) fn allowed_tool(
        &self,
        namespace: &Namespace,
        name: &str,
    ) -> Result<ToolEntry<'_>, CallError> {
        let tool = self
            .tool(name)
            .filter(|_| namespace.policy.allows_tool(name));
        tool.ok_or_else(|| unknown_tool(name))
    }
}
