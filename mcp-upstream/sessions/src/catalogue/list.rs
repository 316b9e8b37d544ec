//! The list of all tools of a namespace at one moment, from its files or from its server, with a look-up by name.

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

/// Maximum memory of the compiled schemas of a list, in bytes. Schemas that do not fit are compiled again for each call.
const COMPILED_MAX: usize = 8 * 1024 * 1024;

/// All tools of a namespace, including those that are hidden from some callers. The list never changes.
#[derive(Debug)]
pub struct ToolList {
    entries: Vec<ToolEntry>,
    /// Indices into `entries`, sorted by name. If names are equal, the first entry comes first.
    by_name: Vec<usize>,
    /// Memory of the stored compiled schemas, in bytes.
    compiled: AtomicUsize,
    version: u64,
    /// True if at least one tool of a server has an `outputSchema`.
    declares_outputs: bool,
    /// Stored texts of `tools/list` that the gateway wrote from this list.
    pub(super) written: WrittenLists,
    /// Stored documents that were generated from this list.
    pub(super) documents: Documents,
}

/// A tool as its author describes it. Fields that the author left out stay absent. The definition of a server's tool is kept as
/// text, and parsed only when a field is needed.
#[derive(Debug)]
pub struct ToolEntry {
    name: Arc<str>,
    source: DefinitionSource,
    /// Compiled schema of the arguments, set when a call first needs it. The inner `None` means that the schema is unusable.
    input: OnceLock<Option<Arc<InputSchema>>>,
    /// Compiled schema of structured results, set when a result is first checked. The inner `None` means that the schema is
    /// unusable.
    output: OnceLock<Option<Arc<InputSchema>>>,
}

#[derive(Debug)]
enum DefinitionSource {
    /// The tool is declared in the namespace's files.
    Declared(Arc<Tool>),
    /// The tool is offered by a server. Contains its definition, a JSON object, as a slice of the list's page.
    Listed(Bytes),
}

/// A page of a server's `tools/list`.
#[derive(Debug, Default)]
pub(super) struct ToolPage {
    pub(super) entries: Vec<ToolEntry>,
    /// Cursor of the next page, exactly as the server wrote it; `None` for the last page.
    pub(super) next: Option<Box<RawValue>>,
}

impl ToolPage {
    /// Parses a page. The result is empty if the JSON is not a page of tools.
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

    /// Returns true if this page, as the first page of a list, contains all tools.
    pub(super) fn is_whole(&self) -> bool {
        !self.entries.is_empty() && self.next.is_none()
    }
}

impl ToolList {
    /// Creates the list of a server's tools at this version.
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

    /// Creates the list of the tools that a namespace's files declare. Its version never changes.
    pub fn declared(tools: &[Arc<Tool>]) -> Self {
        let entry = |tool: &Arc<Tool>| {
            let source = DefinitionSource::Declared(Arc::clone(tool));
            ToolEntry::new(Arc::clone(&tool.name), source)
        };
        Self::new(0, tools.iter().map(entry).collect())
    }

    /// Creates the list of the tools on a single page, `{"tools":[…]}`, at this version.
    pub fn listed(version: u64, page: &Bytes) -> Self {
        Self::new(version, ToolPage::read(page).entries)
    }

    /// Creates the list of the tools on a single page, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn of_page(page: &'static str) -> Self {
        Self::new(
            0,
            ToolPage::read(&Bytes::from_static(page.as_bytes())).entries,
        )
    }

    /// Version of the server's tools when this list was read.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// All tools, including hidden ones.
    pub fn entries(&self) -> &[ToolEntry] {
        &self.entries
    }

    /// Finds a tool by name, even if it is hidden.
    pub fn tool(&self, name: &str) -> Option<&ToolEntry> {
        let before = |at: &usize| *self.entries[*at].name < *name;
        let found = *self.by_name.get(self.by_name.partition_point(before))?;
        let found = &self.entries[found];
        (*found.name == *name).then_some(found)
    }

    /// The compiled schema of a tool's arguments. The outer `None` means that it has not been compiled yet, the inner one that
    /// there is no usable schema.
    pub fn compiled_schema(&self, name: &str) -> Option<Option<Arc<InputSchema>>> {
        match self.tool(name) {
            Some(entry) => entry.input.get().cloned(),
            None => Some(None),
        }
    }

    /// The compiled schema of a tool's arguments; `None` if the tool has no usable schema. It is compiled on first use, which is
    /// much work.
    pub fn arguments_schema(&self, name: &str) -> Option<Arc<InputSchema>> {
        let entry = self.tool(name)?;
        if let Some(kept) = entry.input.get() {
            return kept.clone();
        }
        let compiled = entry.compile(entry.input_schema(), "arguments");
        self.keep(&entry.input, compiled)
    }

    /// Returns true if at least one tool of a server has an `outputSchema`.
    pub(super) fn declares_outputs(&self) -> bool {
        self.declares_outputs
    }

    /// The compiled schema of a tool's structured results; `None` if the tool has no usable schema. It is compiled on first use,
    /// unless `light` is set.
    ///
    /// # Errors
    ///
    /// `light` is set, and the schema has not been compiled yet.
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

    /// Stores a compiled schema, if the memory of the list's schemas stays within its limit.
    fn keep(
        &self,
        place: &OnceLock<Option<Arc<InputSchema>>>,
        compiled: Option<Arc<InputSchema>>,
    ) -> Option<Arc<InputSchema>> {
        let weight = compiled.as_ref().map_or(0, |schema| schema.weight());
        let kept = self.compiled.fetch_add(weight, Ordering::Relaxed) + weight;
        if kept <= COMPILED_MAX {
            // A concurrent call may have stored its schema first; then that one is used.
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

    /// The tool's title, which user interfaces show.
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

    /// The JSON Schema of the tool's arguments.
    pub fn input_schema(&self) -> Option<&RawValue> {
        match &self.source {
            DefinitionSource::Declared(tool) => Some(&tool.input_schema),
            DefinitionSource::Listed(definition) => member(definition, "inputSchema"),
        }
    }

    /// The JSON Schema of the tool's structured results; `None` if its author gave none.
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

    /// The tool's `_meta`, such as its page (MCP Apps); `None` if its author gave none.
    pub fn meta(&self) -> Option<&RawValue> {
        match &self.source {
            DefinitionSource::Declared(tool) => tool.meta.as_deref(),
            DefinitionSource::Listed(definition) => member(definition, "_meta"),
        }
    }

    /// Name of the file that contains the tool's code; empty for a tool of a server.
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

    /// The tool's definition as its server wrote it, a JSON object; empty for a tool from the namespace's files.
    pub fn definition(&self) -> &[u8] {
        match &self.source {
            DefinitionSource::Declared(_) => b"",
            DefinitionSource::Listed(definition) => definition,
        }
    }

    /// Returns true if calls of the tool may be repeated: its annotations state that a second call has no further effect.
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
