//! The tools that a namespace's files declare.

use tooldock_workers::registry::Namespace;

use crate::upstream::Catalogue;
use crate::upstream::catalogue::ToolEntry;

impl Catalogue for Namespace {
    fn tools(&self) -> Box<dyn Iterator<Item = ToolEntry<'_>> + Send + '_> {
        Box::new(self.tools.iter().map(|tool| ToolEntry::declared(tool)))
    }

    fn tool(&self, name: &str) -> Option<ToolEntry<'_>> {
        let found = self.tools.iter().find(|tool| *tool.name == *name)?;
        Some(ToolEntry::declared(found))
    }
}
