//! Lists of the tools of a namespace at one moment, by name, from files or from a server.

use std::borrow::Cow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde_json::value::RawValue;
use tooldock_base::tool::Tool;
use tooldock_protocol::jsonrpc::{self, spans};

use super::arguments::InputSchema;
use super::cursor;
use super::documents::Documents;
use super::written::WrittenLists;

/// Maximum memory of the compiled schemas of a list, in bytes. Further schemas are compiled for each call.
const COMPILED_MAX: usize = 8 * 1024 * 1024;

/// All tools of a namespace, including those that a view hides. Never changes.
#[derive(Debug)]
pub struct ToolList {
    entries: Vec<ToolEntry>,
    /// Positions in `entries`, sorted by name; of equal names the first entry comes first.
    by_name: Vec<usize>,
    /// Memory of the kept compiled schemas, in bytes.
    compiled: AtomicUsize,
    version: u64,
    /// True when some tool of a server has an `outputSchema`.
    declares_outputs: bool,
    /// Texts of `tools/list` that the gateway wrote from this list.
    pub(super) written: WrittenLists,
    /// The documents made of this list.
    pub(super) documents: Documents,
}

/// A tool as its author describes it; undeclared members are absent. Definitions of servers are read on demand.
#[derive(Debug)]
pub struct ToolEntry {
    name: Arc<str>,
    source: DefinitionSource,
    /// The compiled schema of arguments, set when a call first needs it; `None` inside if the schema is unusable.
    input: OnceLock<Option<Arc<InputSchema>>>,
    /// The compiled schema of structured results, set when a result is first checked; `None` inside if the schema is unusable.
    output: OnceLock<Option<Arc<InputSchema>>>,
}

#[derive(Debug)]
enum DefinitionSource {
    /// A tool of the namespace's files.
    Declared(Arc<Tool>),
    /// A server's definition, a JSON object: a view into its page.
    Listed(Bytes),
}

/// A page of a server's tools.
#[derive(Debug, Default)]
pub(super) struct ToolPage {
    pub(super) entries: Vec<ToolEntry>,
    /// The cursor of the next page, in the server's own spelling.
    pub(super) next: Option<Box<RawValue>>,
}

impl ToolPage {
    /// Reads a page; empty if the JSON is not a page of tools.
    pub(super) fn read(page: &Bytes) -> Self {
        let Some(object) = spans::raw(page) else {
            return Self::default();
        };
        let tools = spans::member(object, "tools").map(RawValue::get);
        let entry = |tool: &str| {
            let name = spans::raw(spans::find(tool, "name")?.as_bytes());
            let name = name.and_then(jsonrpc::string)?;
            let definition = page.slice_ref(tool.as_bytes());
            Some(ToolEntry::new(
                name.into(),
                DefinitionSource::Listed(definition),
            ))
        };
        let next = spans::member(object, "nextCursor").filter(|next| next.get() != "null");
        let next = next.map(|next| cursor::of_server(next).unwrap_or_else(|| next.to_owned()));
        Self {
            entries: spans::items(tools.unwrap_or_default())
                .filter_map(entry)
                .collect(),
            next,
        }
    }

    /// Returns true if a first page holds all tools.
    pub(super) fn is_whole(&self) -> bool {
        !self.entries.is_empty() && self.next.is_none()
    }
}

impl ToolList {
    /// A server's tools at this version.
    pub(super) fn new(version: u64, entries: Vec<ToolEntry>) -> Self {
        let mut by_name: Vec<usize> = (0..entries.len()).collect();
        by_name.sort_by(|one, other| entries[*one].name.cmp(&entries[*other].name));
        let declares_outputs = entries.iter().any(|it| {
            matches!(it.source, DefinitionSource::Listed(_)) && it.output_schema().is_some()
        });
        Self {
            declares_outputs,
            entries,
            by_name,
            compiled: AtomicUsize::new(0),
            version,
            written: WrittenLists::default(),
            documents: Documents::default(),
        }
    }

    /// The tools that a namespace's files declare, which have a single version.
    pub fn declared(tools: &[Arc<Tool>]) -> Self {
        let entry = |tool: &Arc<Tool>| {
            let source = DefinitionSource::Declared(Arc::clone(tool));
            ToolEntry::new(Arc::clone(&tool.name), source)
        };
        Self::new(0, tools.iter().map(entry).collect())
    }

    /// The tools of a single page, `{"tools":[…]}`, at this version.
    pub fn listed(version: u64, page: &Bytes) -> Self {
        Self::new(version, ToolPage::read(page).entries)
    }

    /// The tools on one page of a server, without a version.
    #[cfg(any(test, feature = "testing"))]
    pub fn of_page(page: &'static str) -> Self {
        Self::new(
            0,
            ToolPage::read(&Bytes::from_static(page.as_bytes())).entries,
        )
    }

    /// The version of the server's tools that the list shows.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// All tools, hidden or not.
    pub fn entries(&self) -> &[ToolEntry] {
        &self.entries
    }

    /// Finds a tool by name, hidden or not.
    pub fn tool(&self, name: &str) -> Option<&ToolEntry> {
        let before = |at: &usize| *self.entries[*at].name < *name;
        let found = *self.by_name.get(self.by_name.partition_point(before))?;
        let found = &self.entries[found];
        (*found.name == *name).then_some(found)
    }

    /// The compiled schema of a tool's arguments; `None` if it was not compiled yet.
    pub fn compiled_schema(&self, name: &str) -> Option<Option<Arc<InputSchema>>> {
        match self.tool(name) {
            Some(entry) => entry.input.get().cloned(),
            None => Some(None),
        }
    }

    /// The schema that a tool's arguments are checked against, if the tool has a usable schema. Compiles it on first use, which
    /// is much work.
    pub fn arguments_schema(&self, name: &str) -> Option<Arc<InputSchema>> {
        let entry = self.tool(name)?;
        if let Some(kept) = entry.input.get() {
            return kept.clone();
        }
        let compiled = entry.compile(entry.input_schema(), "arguments");
        self.keep(&entry.input, compiled)
    }

    /// Returns true if some tool of a server has an `outputSchema`.
    pub(super) fn declares_outputs(&self) -> bool {
        self.declares_outputs
    }

    /// The compiled schema of a tool's structured results; `None` if the tool has no usable schema. With `light`
    /// nothing is compiled.
    ///
    /// # Errors
    ///
    /// `light` is set and the schema is not compiled yet.
    pub(super) fn result_schema(
        &self,
        entry: &ToolEntry,
        light: bool,
    ) -> Result<Option<Arc<InputSchema>>, ()> {
        match entry.output.get() {
            Some(kept) => Ok(kept.clone()),
            None if light => Err(()),
            None => {
                let compiled = entry.compile(entry.output_schema(), "results");
                Ok(self.keep(&entry.output, compiled))
            }
        }
    }

    /// Stores a compiled schema in its slot, unless the list's schemas take too many bytes.
    fn keep(
        &self,
        place: &OnceLock<Option<Arc<InputSchema>>>,
        compiled: Option<Arc<InputSchema>>,
    ) -> Option<Arc<InputSchema>> {
        let weight = compiled.as_ref().map_or(0, |schema| schema.weight());
        let kept = self.compiled.fetch_add(weight, Ordering::Relaxed) + weight;
        if kept <= COMPILED_MAX {
            // Another call may have stored its schema first.
            return place.get_or_init(|| compiled).clone();
        }
        self.compiled.fetch_sub(weight, Ordering::Relaxed);
        compiled
    }
}

impl ToolEntry {
    fn new(name: Arc<str>, source: DefinitionSource) -> Self {
        Self {
            name,
            source,
            input: OnceLock::new(),
            output: OnceLock::new(),
        }
    }

    /// The name of the tool.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    /// The title for people.
    pub fn title(&self) -> Option<Cow<'_, str>> {
        match &self.source {
            DefinitionSource::Declared(tool) => tool.title.as_deref().map(Cow::Borrowed),
            DefinitionSource::Listed(definition) => text(definition, "title"),
        }
    }

    /// The description of the tool; empty if its author gave none.
    pub fn description(&self) -> Cow<'_, str> {
        match &self.source {
            DefinitionSource::Declared(tool) => Cow::Borrowed(&tool.description),
            DefinitionSource::Listed(definition) => {
                text(definition, "description").unwrap_or_default()
            }
        }
    }

    /// The JSON Schema of the arguments.
    pub fn input_schema(&self) -> Option<&RawValue> {
        match &self.source {
            DefinitionSource::Declared(tool) => Some(&tool.input_schema),
            DefinitionSource::Listed(definition) => member(definition, "inputSchema"),
        }
    }

    /// The JSON Schema of the structured result.
    pub fn output_schema(&self) -> Option<&RawValue> {
        match &self.source {
            DefinitionSource::Declared(tool) => tool.output_schema.as_deref(),
            DefinitionSource::Listed(definition) => member(definition, "outputSchema"),
        }
    }

    /// The tool's annotations, such as `readOnlyHint`.
    pub fn annotations(&self) -> Option<&RawValue> {
        match &self.source {
            DefinitionSource::Declared(tool) => tool.annotations.as_deref(),
            DefinitionSource::Listed(definition) => member(definition, "annotations"),
        }
    }

    /// The file that contains the tool's code; empty for a tool of a server.
    pub fn filename(&self) -> &str {
        match &self.source {
            DefinitionSource::Declared(tool) => &tool.filename,
            DefinitionSource::Listed(_) => "",
        }
    }

    /// The declaration of a tool in the namespace's Python files; `None` for a tool of an MCP server.
    pub fn declaration(&self) -> Option<&Tool> {
        match &self.source {
            DefinitionSource::Declared(tool) => Some(tool),
            DefinitionSource::Listed(_) => None,
        }
    }

    /// A server's definition, a JSON object; empty for a tool of the namespace's files.
    pub fn definition(&self) -> &[u8] {
        match &self.source {
            DefinitionSource::Declared(_) => b"",
            DefinitionSource::Listed(definition) => definition,
        }
    }

    /// Returns true if calling the tool twice has the same effect as calling it once.
    pub(super) fn is_repeatable(&self) -> bool {
        let says = |annotations: &RawValue, hint| {
            spans::member(annotations, hint).is_some_and(|it| it.get() == "true")
        };
        self.annotations()
            .is_some_and(|it| says(it, "readOnlyHint") || says(it, "idempotentHint"))
    }

    fn compile(&self, schema: Option<&RawValue>, checked: &str) -> Option<Arc<InputSchema>> {
        match InputSchema::compile(schema?) {
            Ok(schema) => Some(Arc::new(schema)),
            Err(reason) => {
                tracing::debug!(
                    tool = &*self.name,
                    "the {checked} of tool {:?} are not checked against its schema: {reason}",
                    self.name
                );
                None
            }
        }
    }
}

/// Extracts a member of a tool definition, which must be valid JSON.
fn member<'a>(definition: &'a Bytes, key: &str) -> Option<&'a RawValue> {
    let definition = std::str::from_utf8(definition).ok()?;
    serde_json::from_str(spans::find(definition, key)?).ok()
}

fn text<'a>(definition: &'a Bytes, key: &str) -> Option<Cow<'a, str>> {
    member(definition, key).and_then(jsonrpc::string)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(page: &'static str) -> ToolList {
        ToolList::of_page(page)
    }

    #[test]
    fn definitions_keep_their_bytes_and_what_has_no_name_is_left_out() {
        let page = r#"{"tools":[{"name":"a","x":1},{"x":1},{"name":"b","inputSchema":{"n":1.50}}],"nextCursor":"n"}"#;
        let read = ToolPage::read(&Bytes::from_static(page.as_bytes()));
        assert_eq!(read.next.expect("another page").get(), "\"n\"");
        let list = list(page);
        assert_eq!(list.entries().len(), 2);
        let tool = list.tool("b").expect("it is there");
        let schema = tool.input_schema().expect("a schema").get();
        assert!(schema.contains("1.50"));
        assert!(list.tool("c").is_none() && list.tool("").is_none());
    }

    #[test]
    fn of_two_tools_with_one_name_the_first_is_found() {
        let page = r#"{"tools":[{"name":"b"},{"name":"a","title":"1"},{"name":"a","title":"2"}]}"#;
        let list = list(page);
        let title = list.tool("a").and_then(ToolEntry::title);
        assert_eq!(title.as_deref(), Some("1"));
    }

    #[test]
    fn a_schema_is_compiled_once_and_only_so_much_is_kept() {
        let list = list(
            r#"{"tools":[{"name":"a","inputSchema":{"type":"object"}},{"name":"odd","inputSchema":{"type":5}},{"name":"b","inputSchema":{}}]}"#,
        );
        let first = list.arguments_schema("a").expect("a schema");
        let again = list.arguments_schema("a").expect("a schema");
        assert!(Arc::ptr_eq(&first, &again));
        assert!(list.arguments_schema("odd").is_none());
        assert!(list.arguments_schema("missing").is_none());
        list.compiled.store(COMPILED_MAX, Ordering::Relaxed);
        let first = list.arguments_schema("b").expect("a schema");
        let again = list.arguments_schema("b").expect("a schema");
        assert!(!Arc::ptr_eq(&first, &again));
        assert_eq!(list.compiled.load(Ordering::Relaxed), COMPILED_MAX);
    }
}
