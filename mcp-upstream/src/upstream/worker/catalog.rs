//! The tools that a namespace's files declare.

use std::borrow::Cow;

use tooldock_workers::registry::Namespace;
use tooldock_workers::tool::Tool;

use crate::upstream::Catalog;
use crate::upstream::catalog::ToolEntry;

impl Catalog for Namespace {
    fn tools(&self) -> Box<dyn Iterator<Item = ToolEntry<'_>> + Send + '_> {
        Box::new(self.tools.iter().map(|tool| entry(tool)))
    }

    fn tool(&self, name: &str) -> Option<ToolEntry<'_>> {
        let found = self.tools.iter().find(|tool| *tool.name == *name)?;
        Some(entry(found))
    }
}

fn entry(tool: &Tool) -> ToolEntry<'_> {
    ToolEntry {
        name: &tool.name,
        title: tool.title.as_deref().map(Cow::Borrowed),
        description: Cow::Borrowed(&tool.description),
        input_schema: Some(&tool.input_schema),
        output_schema: tool.output_schema.as_deref(),
        annotations: tool.annotations.as_deref(),
        filename: &tool.filename,
    }
}
