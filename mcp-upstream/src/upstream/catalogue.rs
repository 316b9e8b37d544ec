//! What a namespace offers, whoever lists it: what REST, OpenAPI and mirrored headers have to know of its tools.

use std::borrow::Cow;

use serde_json::value::RawValue;
use tooldock_workers::error::CallError;
use tooldock_workers::registry::Namespace;
use tooldock_workers::tool::Tool;

use crate::engine::unknown_tool;
use crate::jsonrpc::{self, spans};

/// The tools of a namespace at one moment, those that its policy denies among them.
pub(crate) trait Catalogue: Send + Sync {
    /// All of them.
    fn tools(&self) -> Box<dyn Iterator<Item = ToolEntry<'_>> + Send + '_>;

    /// One of them.
    fn tool(&self, name: &str) -> Option<ToolEntry<'_>>;
}

/// One tool, as its author describes it; what its author did not say is absent. Read as far as it is asked for.
#[derive(Clone, Copy)]
pub(crate) struct ToolEntry<'a> {
    pub(crate) name: &'a str,
    source: Source<'a>,
}

#[derive(Clone, Copy)]
enum Source<'a> {
    /// A tool of the namespace's files.
    Declared(&'a Tool),
    /// A server's definition, a JSON object.
    Listed(&'a RawValue),
}

impl<'a> ToolEntry<'a> {
    /// A tool that the namespace's files declare.
    pub(crate) fn declared(tool: &'a Tool) -> Self {
        Self {
            name: &tool.name,
            source: Source::Declared(tool),
        }
    }

    /// A tool of that name as a server lists it.
    pub(crate) fn listed(name: &'a str, definition: &'a RawValue) -> Self {
        let source = Source::Listed(definition);
        Self { name, source }
    }

    /// Its title for people.
    pub(crate) fn title(self) -> Option<Cow<'a, str>> {
        match self.source {
            Source::Declared(tool) => tool.title.as_deref().map(Cow::Borrowed),
            Source::Listed(definition) => text(definition, "title"),
        }
    }

    /// What it does; empty where nobody said.
    pub(crate) fn description(self) -> Cow<'a, str> {
        match self.source {
            Source::Declared(tool) => Cow::Borrowed(&tool.description),
            Source::Listed(definition) => text(definition, "description").unwrap_or_default(),
        }
    }

    /// What its arguments are.
    pub(crate) fn input_schema(self) -> Option<&'a RawValue> {
        match self.source {
            Source::Declared(tool) => Some(&tool.input_schema),
            Source::Listed(definition) => spans::member(definition, "inputSchema"),
        }
    }

    /// What its structured result is.
    pub(crate) fn output_schema(self) -> Option<&'a RawValue> {
        match self.source {
            Source::Declared(tool) => tool.output_schema.as_deref(),
            Source::Listed(definition) => spans::member(definition, "outputSchema"),
        }
    }

    /// Hints about what it does.
    pub(crate) fn annotations(self) -> Option<&'a RawValue> {
        match self.source {
            Source::Declared(tool) => tool.annotations.as_deref(),
            Source::Listed(definition) => spans::member(definition, "annotations"),
        }
    }

    /// Where its code is; empty for a tool of a server.
    pub(crate) fn filename(self) -> &'a str {
        match self.source {
            Source::Declared(tool) => &tool.filename,
            Source::Listed(_) => "",
        }
    }
}

fn text<'a>(definition: &'a RawValue, key: &str) -> Option<Cow<'a, str>> {
    spans::member(definition, key).and_then(jsonrpc::string)
}

impl dyn Catalogue {
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
