//! Definition of a management tool: a function, texts for models, and Rust types for the parameters and the result, from which
//! the tool's schemas are derived.
//!
//! A new tool is a type that implements [`ManagementTool`], in a file of its group in `tools/`, and a line in the table of
//! `tools.rs`. Parameters derive `Deserialize` with `deny_unknown_fields` and `JsonSchema`; the comments of their fields are the
//! descriptions for models. Wrong, missing and unknown arguments are refused before the tool runs.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};
use tooldock_base::effect::Effect;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::key_maker::KeyMaker;
use tooldock_base::tool::Tool;
use tooldock_process::worker::{CallEvent, CallSink};

use super::Management;

/// A tool of the management server.
pub(super) trait ManagementTool: 'static {
    /// The name that clients call.
    const NAME: &'static str;
    /// The tool's purpose and the next steps after it, for any model.
    const DESCRIPTION: &'static str;
    /// Hints for clients that ask their user before a call.
    const HINTS: Hints;
    /// All effects of the tool. A credential's scopes must cover each of them.
    const EFFECTS: &'static [Effect];
    /// Time limit of the tool.
    const TIME: Time = Time::Short;
    /// The type of the arguments, whose schema is an object.
    type Parameters: DeserializeOwned + JsonSchema + Send + 'static;
    /// The type of the result, whose schema is an object or a list.
    type Outcome: Serialize + JsonSchema;

    /// Runs the tool. Dropping the future ends the tool.
    ///
    /// # Errors
    ///
    /// The fault and its remedy. The tool has changed nothing then.
    fn run(
        management: Arc<Management>,
        parameters: Self::Parameters,
        progress: Progress,
    ) -> impl Future<Output = Result<Self::Outcome, CallError>> + Send;
}

/// Hints of a tool, as MCP's `annotations` have them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hints {
    read_only: bool,
    destructive: bool,
    idempotent: bool,
    open_world: bool,
}

impl Hints {
    /// Hints of tools that change nothing.
    pub(super) const READS: Self = Self {
        read_only: true,
        destructive: false,
        idempotent: true,
        open_world: false,
    };
    /// Hints of tools that add something; repeating the call adds nothing more.
    pub(super) const ADDS: Self = Self {
        read_only: false,
        destructive: false,
        idempotent: true,
        open_world: false,
    };
    /// Hints of tools that replace or remove existing data.
    pub(super) const REPLACES: Self = Self {
        destructive: true,
        ..Self::ADDS
    };

    /// Marks a tool that also communicates with servers outside of ToolDock (MCP's `openWorldHint`).
    pub(super) const fn open_world(mut self) -> Self {
        self.open_world = true;
        self
    }

    /// Marks a tool that has a further effect each time it is called, even with the same arguments.
    pub(super) const fn not_idempotent(mut self) -> Self {
        self.idempotent = false;
        self
    }

    /// The tool's annotations under their names in MCP. Hints with their default value are left out; for a tool that only reads,
    /// the hints about destructive and repeated calls are left out, too.
    fn annotations(self) -> Value {
        let hints = [
            ("destructiveHint", self.destructive, true),
            ("idempotentHint", self.idempotent, false),
            ("openWorldHint", self.open_world, true),
        ];
        let of_changes = if self.read_only { 2 } else { 0 };
        let told = hints.into_iter().skip(of_changes);
        let told = told.filter(|(_, hint, default)| hint != default);
        let told = told.map(|(name, hint, _)| (name, hint));
        let all = std::iter::once(("readOnlyHint", self.read_only)).chain(told);
        Value::Object(
            all.map(|(name, hint)| (name.to_owned(), hint.into()))
                .collect(),
        )
    }
}

/// Time limit of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Time {
    /// Two minutes, for files and short child processes.
    Short,
    /// The time limit of an installer plus two minutes: for a reload, an installer, a clone. Such a tool reports progress.
    Long,
}

impl Time {
    /// The time limit of a tool; `install` is the time limit of an installer.
    pub(super) fn limit(self, install: Duration) -> Duration {
        const SHORT: Duration = Duration::from_secs(120);
        match self {
            Self::Short => SHORT,
            Self::Long => install.saturating_add(SHORT),
        }
    }
}

/// Reports a tool's progress to the client. Also contains the credential that counts as the maker of API keys that the call
/// creates.
pub(super) struct Progress {
    sink: Option<Arc<dyn CallSink>>,
    maker: KeyMaker,
}

impl Progress {
    /// Creates the progress reporter of a call. `maker` becomes the maker of API keys that the call creates.
    pub(super) fn new(sink: Option<Arc<dyn CallSink>>, maker: KeyMaker) -> Self {
        Self { sink, maker }
    }

    /// The credential that counts as the maker of API keys that the call creates.
    pub(super) fn maker(&self) -> &KeyMaker {
        &self.maker
    }

    /// Reports that `step` of `steps` begins.
    pub(super) fn report(&self, step: u32, steps: u32, message: &str) {
        if let Some(sink) = &self.sink {
            let report = json!({ "progress": step, "total": steps, "message": message });
            sink.event(CallEvent::Progress(report.to_string().into()));
        }
    }
}

/// A running tool: a future of its JSON result.
type ToolFuture = Pin<Box<dyn Future<Output = Result<Bytes, CallError>> + Send>>;

/// A management tool in the table: its declaration, time limit and function.
pub(super) struct ManagementToolEntry {
    /// The tool's declaration, as lists show it.
    pub(super) declaration: Arc<Tool>,
    pub(super) time: Time,
    pub(super) run: fn(Arc<Management>, Bytes, Progress) -> ToolFuture,
}

impl ManagementToolEntry {
    /// Creates the table entry of a tool.
    pub(super) fn of<T: ManagementTool>() -> Self {
        let hints = T::HINTS;
        let annotations = hints.annotations();
        let declaration = Tool {
            task: None,
            ask_first: false,
            name: T::NAME.into(),
            title: None,
            description: T::DESCRIPTION.to_owned(),
            input_schema: raw(&input_schema::<T::Parameters>()),
            output_schema: Some(raw(&output_schema::<T::Outcome>())),
            annotations: Some(raw(&annotations)),
            icons: None,
            meta: None,
            filename: String::new(),
            context: T::TIME == Time::Long,
        };
        Self {
            declaration: Arc::new(declaration),
            time: T::TIME,
            run: |management, arguments, progress| {
                Box::pin(async move {
                    let parameters = read::<T::Parameters>(&arguments)?;
                    let outcome = T::run(management, parameters, progress).await?;
                    written(&outcome)
                })
            },
        }
    }
}

/// Writes a tool's result as JSON.
///
/// # Errors
///
/// Never for the results of these tools, which can always be written as JSON.
pub(super) fn written(outcome: &impl Serialize) -> Result<Bytes, CallError> {
    let text = serde_json::to_vec(outcome);
    text.map(Bytes::from)
        .map_err(|error| CallError::new(CallErrorCode::InternalError, error.to_string()))
}

/// Reads the arguments of a call.
///
/// # Errors
///
/// The fault of an argument, with its path.
pub(super) fn read<P: DeserializeOwned>(arguments: &[u8]) -> Result<P, CallError> {
    let arguments = match arguments {
        [] => b"{}",
        given => given,
    };
    let mut reader = serde_json::Deserializer::from_slice(arguments);
    serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let text = without_value(error.into_inner().to_string());
        // The position in the JSON text is removed, since callers write an object and not its text.
        let text = text.split(" at line ").next().unwrap_or_default();
        let place = match &*path {
            "." => String::new(),
            path => format!("{path}: "),
        };
        invalid(format!("{place}{text}. Nothing was changed"))
    })
}

/// Removes the text that a type error quotes, since a caller may have written the value of a secret in the wrong argument.
fn without_value(text: String) -> String {
    const BEGIN: &str = "string \"";
    match (text.find(BEGIN), text.rfind("\", expected")) {
        (Some(begin), Some(end)) if begin < end => {
            format!("{}string{}", &text[..begin], &text[end + 1..])
        }
        _ => text,
    }
}

/// The error for wrong arguments.
pub(super) fn invalid(message: impl Into<String>) -> CallError {
    CallError::new(CallErrorCode::InvalidArguments, message)
}

/// The error for an operation that cannot be done although its arguments are correct.
pub(super) fn refused(message: impl Into<String>) -> CallError {
    CallError::new(CallErrorCode::ToolError, message)
}

fn raw(value: &Value) -> Arc<RawValue> {
    to_raw_value(value)
        .expect("a value is written into memory")
        .into()
}

/// The schema of a tool's arguments: an object without references, since clients that generate forms cannot resolve references.
/// Optional arguments do not also allow `null`, because `null` is read like a missing argument.
fn input_schema<T: JsonSchema>() -> Value {
    let mut schema = schema::<T>(SchemaSettings::draft2020_12());
    for property in properties(&mut schema) {
        let Some(members) = property.as_object_mut() else {
            continue;
        };
        if members.get("default").is_some_and(is_empty) {
            members.remove("default");
        }
        if let Some(Value::Array(types)) = members.get_mut("type") {
            types.retain(|it| it != "null");
            if let [only] = &types[..] {
                let only = only.clone();
                members.insert("type".to_owned(), only);
            }
        }
        if let Some(text) = members.get_mut("description") {
            *text = text.as_str().unwrap_or_default().replace('\n', " ").into();
        }
    }
    schema
}

/// Returns true for a default value without information: `null` or an empty list.
fn is_empty(default: &Value) -> bool {
    default.is_null() || default.as_array().is_some_and(Vec::is_empty)
}

/// The schemas of an object's properties.
fn properties(schema: &mut Value) -> impl Iterator<Item = &mut Value> {
    let members = schema["properties"].as_object_mut();
    members.into_iter().flat_map(|members| members.values_mut())
}

fn schema<T: JsonSchema>(mut settings: SchemaSettings) -> Value {
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    let schema = settings.into_generator().into_root_schema_for::<T>();
    let mut schema = schema.to_value();
    remove_number_formats(&mut schema);
    if let Some(schema) = schema.as_object_mut() {
        // Title and description come from the comments of the Rust type and are not meant for clients.
        schema.remove("title");
        schema.remove("description");
        let is_object = schema.get("type").is_some_and(|it| it == "object");
        if is_object {
            schema.entry("properties").or_insert_with(|| json!({}));
        }
    }
    schema
}

/// Removes formats such as `uint64`, which JSON Schema does not have and clients warn about.
fn remove_number_formats(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            let is_of_number = |it: &Value| it.as_str().is_some_and(|it| it.contains("int"));
            if members.get("format").is_some_and(is_of_number) {
                members.remove("format");
            }
            members.values_mut().for_each(remove_number_formats);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_number_formats),
        _ => {}
    }
}

/// The schema of `structuredContent`: only an object and the names of its keys. It is kept short, since an agent that manages has
/// the definitions of all tools in its context, and sees each result itself. If the result is a list, the schema describes the
/// object in which the list is wrapped.
fn output_schema<T: JsonSchema>() -> Value {
    let schema = schema::<T>(SchemaSettings::draft2020_12().for_serialize());
    let names = match schema["properties"].as_object() {
        Some(members) if schema["type"] == "object" => members.keys().cloned().collect(),
        _ => vec!["result".to_owned()],
    };
    let members: Map<_, _> = names.into_iter().map(|name| (name, json!({}))).collect();
    json!({ "type": "object", "properties": members })
}
