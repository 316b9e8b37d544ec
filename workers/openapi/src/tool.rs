//! The definition of an operation's tool: title, description, schemas and annotations.

use serde_json::{Map, Value, json};

use crate::body::{BodyArguments, OperationBody};
use crate::budget::Budget;
use crate::document::Document;
use crate::output::OutputSchema;
use crate::pages;
use crate::parameter::{self, Parameter};

/// Maximum length of an operation's description in the tool's description, in characters. Longer ones are cut.
const DESCRIPTION_MAX: usize = 2_000;
/// Maximum length of the example arguments as JSON, in bytes. Longer ones are left out.
const EXAMPLE_MAX: usize = 600;
/// Maximum length of a tool's title, in characters. Longer ones are cut.
const TITLE_MAX: usize = 120;

/// The parts of an operation that make up the definition of its tool.
pub(crate) struct ToolParts<'a> {
    pub(crate) document: &'a Document,
    pub(crate) name: &'a str,
    /// Method in upper case.
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) parameters: &'a [Parameter],
    /// The definitions of `parameters` in the document, in the same order; `None` for a placeholder of the path (`{id}`) that the
    /// document does not define as a parameter.
    pub(crate) sources: &'a [Option<&'a Value>],
    pub(crate) body: Option<&'a OperationBody>,
    pub(crate) output: Option<&'a OutputSchema>,
}

/// Builds the definition of a tool. `source`: the operation in the document; `input`: the tool's input schema.
pub(crate) fn definition(operation: &ToolParts<'_>, source: &Value, input: Value) -> Value {
    let mut tool = json!({
        "name": operation.name,
        "description": description(operation, source),
        "inputSchema": input,
        "annotations": annotations(operation.method),
    });
    if let Some(summary) = text(source, "summary") {
        tool["title"] = shortened(summary, TITLE_MAX).into();
    }
    if let Some(output) = operation.output {
        tool["outputSchema"] = output.schema.clone();
    }
    tool
}

/// Returns a text of the operation, such as its summary; `None` if it is missing or empty.
fn text<'a>(source: &'a Value, key: &str) -> Option<&'a str> {
    let text = source.get(key)?.as_str()?.trim();
    (!text.is_empty()).then_some(text)
}

/// Returns hints about the effect of a call, from the semantics of its HTTP method. `POST` and `PATCH` count as destructive,
/// since they may do anything.
fn annotations(method: &str) -> Value {
    let (reads, destroys, repeats) = match method {
        "GET" => (true, false, true),
        "PUT" | "DELETE" => (false, true, true),
        _ => (false, true, false),
    };
    json!({
        "readOnlyHint": reads,
        "destructiveHint": destroys,
        "idempotentHint": repeats,
        "openWorldHint": true,
    })
}

/// Builds the description: summary, description, parameters that select a page, and example arguments.
fn description(operation: &ToolParts<'_>, source: &Value) -> String {
    let mut parts = Vec::new();
    if source.get("deprecated") == Some(&Value::Bool(true)) {
        parts.push("Deprecated.".to_owned());
    }
    let (summary, long) = (text(source, "summary"), text(source, "description"));
    parts.extend(
        summary
            .filter(|it| long.is_none_or(|long| !long.starts_with(*it)))
            .map(sentence),
    );
    parts.extend(long.map(|it| shortened(it, DESCRIPTION_MAX)));
    if parts.is_empty() {
        parts.push(format!("{} {}", operation.method, operation.path));
    }
    let selectors: Vec<_> = pages::selectors(operation.parameters).collect();
    if !selectors.is_empty() {
        let names: Vec<_> = selectors
            .iter()
            .map(|it| format!("`{}`", it.argument))
            .collect();
        parts.push(format!(
            "Returns a page of the results, selected by {}.",
            names.join(", ")
        ));
    }
    let example = Value::Object(example(operation)).to_string();
    if example.len() > 2 && example.len() <= EXAMPLE_MAX {
        parts.push(format!("Example arguments: {example}"));
    }
    parts.join("\n")
}

/// Adds a full stop to a text without a punctuation mark at its end.
fn sentence(text: &str) -> String {
    match text.ends_with(['.', '!', '?', ':']) {
        true => text.to_owned(),
        false => format!("{text}."),
    }
}

/// Returns example arguments, from the examples of parameters and body in the document.
fn example(operation: &ToolParts<'_>) -> Map<String, Value> {
    let document = operation.document;
    // Limits the memory for examples that would be too long for the description anyway.
    let budget = Budget::new(EXAMPLE_MAX * 64);
    let copied = |value: &Value| budget.copied(value).ok();
    let parameters = operation.parameters.iter().zip(operation.sources);
    let parameters = parameters.filter_map(|(it, source)| {
        let value = parameter::example(document, (*source)?)?;
        Some((it.argument.clone(), copied(value)?))
    });
    let mut example: Map<_, _> = parameters.collect();
    let body = operation.body;
    if let Some((body, value)) = body.and_then(|it| Some((it, it.example(document)?))) {
        match &body.arguments {
            BodyArguments::Whole(name) => {
                example.extend(copied(value).map(|it| (name.clone(), it)));
            }
            BodyArguments::Members(members) => {
                let members = members.iter().filter_map(|(argument, member)| {
                    Some((argument.clone(), copied(value.get(&member.name)?)?))
                });
                example.extend(members);
            }
        }
    }
    example
}

/// Cuts a text to `max` characters. A cut text ends with `…`.
fn shortened(text: &str, max: usize) -> String {
    if text.char_indices().nth(max).is_none() {
        return text.to_owned();
    }
    let kept: String = text.chars().take(max - 1).collect();
    format!("{}…", kept.trim_end())
}
