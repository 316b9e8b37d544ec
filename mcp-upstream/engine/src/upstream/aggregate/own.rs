//! The aggregate's own tools in `tools/list`, and the form of the aggregate's own responses (AGG-39): an object with `success`,
//! `result` and `error`, whose error advises the model how to continue.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::{Value, json};
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_protocol::format::ResultFormat;
use tooldock_protocol::jsonrpc::{Response, ResponseOutcome};
use tooldock_sessions::audit::Transport;
use tooldock_sessions::session::Toolset;
use tooldock_workers::aggregate::AggregateOptions;

use super::catalogue::{Catalogue, EntryKind, PublishedEntry};
use super::nearness::nearest;
use super::toolsets::HANDLE_KEY;
use crate::engine::{CallOutcome, UpstreamReply};

/// Name of the tool that activates and deactivates tools and resources.
pub(super) const ACTIVATE: &str = "toolman_activate";
/// Name of the tool that searches tools and resources.
pub(super) const SEARCH: &str = "toolman_search";
/// Name of the tool that calls any active tool.
pub(super) const CALL: &str = "toolman_call";

/// The arguments of [`ACTIVATE`]: four lists of names and patterns.
pub(super) const LISTS: [&str; 4] = ["tools_on", "tools_off", "resources_on", "resources_off"];

/// Text for a complete call of [`ACTIVATE`] that activates a name. The text contains all four lists, since the tool requires them
/// and a model may repeat the text literally.
pub(super) fn activation_of(name: &str, is_resource: bool) -> String {
    let (tools, resources) = match is_resource {
        false => (vec![name], Vec::new()),
        true => (Vec::new(), vec![name]),
    };
    activation([json!(tools), json!([]), json!(resources), json!([])])
}

/// Text for a complete call of [`ACTIVATE`]. The lists are in the order of [`LISTS`].
pub(super) fn activation(lists: [Value; 4]) -> String {
    let members = LISTS.iter().zip(lists);
    let members: Vec<_> = members
        .map(|(key, list)| format!("\"{key}\": {list}"))
        .collect();
    format!("call {ACTIVATE} with {{{}}}", members.join(", "))
}

/// Text for a complete call of [`CALL`] for a tool, without arguments. If the tool needs arguments, its error names them.
pub(super) fn call_of(tool: &str) -> String {
    format!(
        "call {CALL} with {{\"tool\": {}, \"arguments\": {{}}}}",
        json!(tool)
    )
}

/// Minimum [`likeness`] (from 0 to 1) of an unknown name and a suggested one.
pub(super) const ALIKE: f64 = 0.75;
/// Maximum size in bytes of names that are compared, since the cost of a comparison is the product of both lengths. A search
/// compares only this many characters of a longer name.
pub(super) const COMPARED_MAX: usize = 256;
/// Maximum number of characters, and of words, of a query; the remainder is ignored.
const QUERY_MAX: usize = 256;
const WORDS_MAX: usize = 16;
/// Maximum number of entries in the result of a search.
const FOUND_MAX: usize = 20;
/// Maximum work of one search for similar words: the product of the lengths of two words, summed over all comparisons. Once it is
/// used up, the search finds only words that occur literally in a name or description.
const EFFORT_MAX: usize = 64 * 1024 * 1024;

/// The names of the aggregate's own tools.
pub(super) fn names(options: &AggregateOptions) -> Vec<&'static str> {
    let mut names = vec![ACTIVATE];
    names.extend(options.toolman_search.then_some(SEARCH));
    names.extend(options.toolman_call.then_some(CALL));
    names
}

/// The definition of one of the aggregate's own tools. `about_handle`: a sentence for callers whose activations are stored in a
/// handle.
pub(super) fn definition(
    name: &str,
    catalogue: &CatalogueView<'_>,
    options: &AggregateOptions,
    about_handle: &str,
) -> Value {
    let texts = |about: String| json!({ "type": "array", "items": { "type": "string" }, "description": about });
    match name {
        SEARCH => json!({
            "name": SEARCH,
            "description": "Finds tools and resources by words in their names and descriptions, active or not. Turn on what you need with toolman_activate.",
            "inputSchema": { "type": "object", "properties": { "query": { "type": "string", "description": "Words to look for" } }, "required": ["query"] },
            "annotations": { "readOnlyHint": true },
        }),
        CALL => json!({
            "name": CALL,
            "description": "Calls any active tool by its name, for clients that do not list tools again after toolman_activate.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "tool": { "type": "string", "description": "Name of an active tool" },
                    "arguments": { "type": "object", "description": "Arguments of that tool" },
                },
                "required": ["tool"],
            },
        }),
        _ => {
            let patterns = match options.activation_patterns {
                true => " Names may be patterns such as github_*.",
                false => "",
            };
            json!({
                "name": ACTIVATE,
                "description": format!("{LEAD}{patterns}{about_handle}{}\n\n{}", catalogue.example(), catalogue.text(options)),
                "inputSchema": {
                    "type": "object",
                    "properties": {
                        "tools_on": texts("Tools to activate".into()),
                        "tools_off": texts("Tools to deactivate".into()),
                        "resources_on": texts("Resources to activate, by URI".into()),
                        "resources_off": texts("Resources to deactivate, by URI".into()),
                    },
                    "required": LISTS,
                },
            })
        }
    }
}

const LEAD: &str = "Activate or deactivate tools and resources. Only active ones (marked *) can be used. Give all four lists; leave those empty that you do not need. What is not named stays as it is.";

/// The catalogue as one client sees it.
pub(super) struct CatalogueView<'a> {
    pub(super) catalogue: &'a Catalogue,
    pub(super) toolset: &'a Toolset,
    /// Filter that returns true if the caller may learn about the entry.
    pub(super) visible: &'a (dyn Fn(&PublishedEntry) -> bool + Sync),
}

impl CatalogueView<'_> {
    /// Returns the visible entries of a kind, without parts of MCP Apps.
    pub(super) fn of(&self, kind: EntryKind) -> impl Iterator<Item = &PublishedEntry> {
        self.catalogue
            .of(kind)
            .filter(|entry| !entry.is_of_app && (self.visible)(entry))
    }

    /// The visible entries that [`ACTIVATE`] can activate and deactivate.
    pub(super) fn switched(&self) -> impl Iterator<Item = &PublishedEntry> {
        let all = self.catalogue.entries().iter();
        all.filter(|entry| entry.is_switched() && (self.visible)(entry))
    }

    /// An entry for use in an example, preferably an inactive one.
    pub(super) fn exemplary(&self) -> Option<&PublishedEntry> {
        let mut inactive = self.switched().filter(|it| !it.is_active(self.toolset));
        inactive.next().or_else(|| self.switched().next())
    }

    /// A sentence with a complete call that activates an entry; empty if the catalogue has no entry.
    fn example(&self) -> String {
        let call = self
            .exemplary()
            .map(|it| activation_of(&it.published, it.is_resource()));
        call.map_or_else(String::new, |call| format!(" For example, {call}."))
    }

    fn text(&self, options: &AggregateOptions) -> String {
        let mut text = String::from("TOOLS:");
        let tools = sorted(self.of(EntryKind::Tool));
        for entry in &tools {
            self.line(&mut text, entry, options);
        }
        text.push_str("\n\nRESOURCES:");
        for entry in sorted(
            self.of(EntryKind::Resource)
                .chain(self.of(EntryKind::Template)),
        ) {
            self.line(&mut text, entry, options);
        }
        text
    }

    fn line(&self, text: &mut String, entry: &PublishedEntry, options: &AggregateOptions) {
        text.push('\n');
        if entry.is_active(self.toolset) {
            text.push_str("* ");
        }
        text.push_str(&entry.published);
        if entry.unsafe_name.is_some() {
            text.push_str(&format!(" ({})", entry.own));
        }
        text.push_str(": ");
        text.push_str(&entry.description);
        if options.token_estimates {
            let tokens = entry.tokens();
            let blank = if entry.description.is_empty() {
                ""
            } else {
                " "
            };
            text.push_str(&format!("{blank}[~{tokens} tokens]"));
        }
    }

    /// The names nearest to an unknown name, the nearest first.
    pub(super) fn nearest_names(&self, name: &str, resources: bool) -> Vec<&str> {
        let all = self.switched();
        nearest(name, all.filter(|entry| entry.is_resource() == resources))
    }

    /// Advice about an unknown name: the nearest names, or the information that a resource has the name of a tool, or the
    /// reverse.
    pub(super) fn unknown(&self, name: &str, resources: bool) -> String {
        let kind = if resources { "resource" } else { "tool" };
        let near = self.nearest_names(name, resources);
        let other = match resources {
            true => (self.catalogue.tool(name), "it is a tool"),
            false => (self.catalogue.resource(name), "it is a resource"),
        };
        let other = other.0.filter(|it| (self.visible)(it)).map(|_| other.1);
        let name = crate::engine::shortened(name);
        match (other, near.is_empty()) {
            (Some(other), _) => format!("{name} is no {kind}: {other}"),
            (None, false) => format!("unknown {kind} {name}: did you mean {}?", near.join(", ")),
            (None, true) => {
                format!("unknown {kind} {name}: the description of {ACTIVATE} lists all there are")
            }
        }
    }

    /// The entries that match the words of a query, best first, at most [`FOUND_MAX`].
    pub(super) fn search(&self, query: &str) -> Vec<Value> {
        let query: String = query.chars().take(QUERY_MAX).collect();
        let query = query.to_lowercase();
        let words: Vec<&str> = query
            .split(|it: char| !it.is_alphanumeric())
            .filter(|word| !word.is_empty())
            .take(WORDS_MAX)
            .collect();
        let mut effort = EFFORT_MAX;
        let mut found: Vec<_> = self
            .switched()
            .filter_map(|entry| {
                let score = score(entry, &words, &mut effort);
                (score > 0.0).then_some((score, entry))
            })
            .collect();
        found.sort_by(|one, other| {
            let by_score = other.0.total_cmp(&one.0);
            by_score.then_with(|| one.1.published.cmp(&other.1.published))
        });
        let found = found.into_iter().take(FOUND_MAX);
        let found = found.map(|(_, entry)| {
            json!({
                "name": &*entry.published,
                "kind": if entry.is_resource() { "resource" } else { "tool" },
                "active": entry.is_active(self.toolset),
                "description": entry.description,
                "tokens": entry.tokens(),
            })
        });
        found.collect()
    }
}

/// Score of an entry in a search: words in its name weigh most, then words in its description, then words similar to a part of
/// its name.
fn score(entry: &PublishedEntry, words: &[&str], effort: &mut usize) -> f64 {
    let name: String = entry.published.chars().take(COMPARED_MAX).collect();
    let name = name.to_lowercase();
    let description = entry.description.to_lowercase();
    let parts: Vec<&str> = name.split(|it: char| !it.is_alphanumeric()).collect();
    let mut alike = |part: &str, word: &str| {
        let (shorter, longer) = (part.len().min(word.len()), part.len().max(word.len()));
        // Two words are never alike if one is more than twice as long as the other.
        if 2 * shorter < longer {
            return 0.0;
        }
        match effort.checked_sub(shorter * longer) {
            Some(left) => {
                *effort = left;
                likeness(part, word)
            }
            None => 0.0,
        }
    };
    let one = |word: &&str| {
        if parts.contains(word) {
            3.0
        } else if name.contains(*word) {
            2.0
        } else if description.contains(*word) {
            1.0
        } else {
            let nearest = parts.iter().map(|part| alike(part, word));
            let nearest = nearest.fold(0.0, f64::max);
            if nearest >= 0.9 { 0.5 } else { 0.0 }
        }
    };
    words.iter().map(one).sum()
}

/// Likeness of two names, from 0 to 1. It is 0 if one of them is longer than [`COMPARED_MAX`] bytes.
pub(super) fn likeness(one: &str, other: &str) -> f64 {
    match one.len().max(other.len()) > COMPARED_MAX {
        true => 0.0,
        false => strsim::jaro_winkler(one, other),
    }
}

fn sorted<'a>(entries: impl Iterator<Item = &'a PublishedEntry>) -> Vec<&'a PublishedEntry> {
    let mut entries: Vec<_> = entries.collect();
    entries.sort_by(|one, other| one.published.cmp(&other.published));
    entries
}

/// Lists names in a text of about `max` characters; further names are only counted.
pub(super) fn list_names(names: &[&str], max: usize) -> String {
    let mut text = String::new();
    for (at, name) in names.iter().enumerate() {
        if at > 0 && text.len() + name.len() > max {
            return format!("{text} and {} more", names.len() - at);
        }
        if at > 0 {
            text.push_str(", ");
        }
        text.extend(name.chars().take(max));
    }
    text
}

/// A response that the aggregate generates.
pub(super) struct AggregateReply {
    /// The result of the call; on failure, advice for the model.
    pub(super) outcome: Result<Value, String>,
    /// Further blocks of text for the model, after the result.
    pub(super) further: Vec<String>,
    /// The new handle, if the call has changed a set that is stored in a handle.
    pub(super) handle: Option<String>,
    /// Stable error code of the response; unused if the response has a result.
    code: CallErrorCode,
}

impl AggregateReply {
    /// A response with a result.
    pub(super) fn result(result: Value) -> Self {
        Self {
            outcome: Ok(result),
            further: Vec::new(),
            handle: None,
            code: CallErrorCode::InternalError,
        }
    }

    /// A response with an error, whose text advises what to do.
    pub(super) fn failed(reason: impl Into<String>, code: CallErrorCode) -> Self {
        Self {
            outcome: Err(reason.into()),
            code,
            ..Self::result(Value::Null)
        }
    }

    /// A response with an error about the arguments.
    pub(super) fn invalid(reason: impl Into<String>) -> Self {
        Self::failed(reason, CallErrorCode::InvalidArguments)
    }

    /// A response with an error about a name that is unknown or inactive.
    pub(super) fn unknown(reason: impl Into<String>) -> Self {
        Self::failed(reason, CallErrorCode::ToolNotFound)
    }

    /// Adds text at the end of an error; a result is not changed.
    pub(super) fn adding(mut self, words: &str) -> Self {
        if let Err(reason) = &mut self.outcome {
            reason.push_str(words);
        }
        self
    }

    /// The response as an object with `success`, `result` and `error`.
    fn object(&self) -> Value {
        match &self.outcome {
            Ok(result) => json!({ "success": true, "result": result, "error": null }),
            Err(error) => json!({ "success": false, "result": null, "error": error }),
        }
    }

    /// The response as the result of a tool call.
    pub(super) fn as_result(&self, format: &ResultFormat) -> Response {
        let object = self.object();
        let mut content = vec![json!({ "type": "text", "text": object.to_string() })];
        let further = self
            .further
            .iter()
            .map(|text| json!({ "type": "text", "text": text }));
        content.extend(further);
        let mut result = json!({ "content": content, "isError": self.outcome.is_err() });
        if self.outcome.is_ok() && format.has_structured_content() {
            result["structuredContent"] = object;
            if let Some(handle) = &self.handle {
                result["structuredContent"]["toolset"] = handle.as_str().into();
            }
        }
        if let Some(handle) = &self.handle {
            result["_meta"] = json!({ HANDLE_KEY: handle });
        }
        if let Err(error) = &self.outcome {
            let failure = json!({ "code": self.code.as_str(), "message": error });
            result["_meta"] = json!({ "tooldock/error": failure });
        }
        if matches!(format, ResultFormat::Modern(_)) {
            result["resultType"] = "complete".into();
        }
        Response::from_outcome(ResponseOutcome::Result(bytes(&result)))
    }

    /// The response as the outcome of a call. Errors for REST have another form.
    pub(super) fn as_outcome(&self, transport: Transport, format: &ResultFormat) -> CallOutcome {
        match &self.outcome {
            Err(reason) if transport == Transport::Rest => {
                Err(CallError::new(self.code, reason.clone()))
            }
            _ => Ok(UpstreamReply::Response(self.as_result(format))),
        }
    }

    /// The response as a JSON-RPC error, for methods whose results cannot contain an error message.
    pub(super) fn rpc_error(&self, code: i32) -> Response {
        let message: Cow<'_, str> = match &self.outcome {
            Err(error) => error.as_str().into(),
            Ok(_) => "".into(),
        };
        let error = json!({ "code": code, "message": message, "data": self.object() });
        Response::from_outcome(ResponseOutcome::Error(bytes(&error)))
    }
}

fn bytes(value: &Value) -> Bytes {
    value.to_string().into()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::value::RawValue;
    use tooldock_workers::aggregate::{ActivePatterns, AggregateSpec};

    use super::*;
    use crate::upstream::aggregate::nearness::SUGGESTIONS;
    use crate::upstream::aggregate::offer::{Offer, OfferEntry};
    use crate::upstream::aggregate::state::CatalogueOffer;

    #[test]
    fn a_confirmation_names_few_and_counts_the_rest() {
        assert_eq!(list_names(&["a", "b"], 100), "a, b");
        let many: Vec<String> = (0..500)
            .map(|number| format!("server_tool_{number}"))
            .collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let text = list_names(&many, 100);
        assert!(text.len() < 130 && text.contains(" more"), "{text}");
        assert!(list_names(&[&"x".repeat(500)], 100).len() <= 100);
    }

    #[test]
    fn names_and_queries_of_any_length_are_answered_without_comparing_all_of_them() {
        let huge = "a_".repeat(2_000_000);
        assert!(likeness("notes_create", "notes_crate") > ALIKE);
        assert!(likeness(&huge, &huge) < ALIKE);
        let listed = |own: &str| OfferEntry {
            own: own.into(),
            definition: RawValue::from_string("{}".into()).unwrap(),
        };
        let offer = Offer {
            tools: (0..600)
                .map(|number| listed(&format!("notes_create_{number}")))
                .collect(),
            resources: vec![listed(&huge)],
            ..Offer::default()
        };
        let spec = AggregateSpec {
            file: "tools.toml".into(),
            members: Vec::new(),
            active: ActivePatterns::default(),
            options: AggregateOptions::default(),
        };
        let offered = CatalogueOffer {
            prefix: "".into(),
            offer: Some(Arc::new(offer)),
            now: true,
        };
        let (catalogue, _) = Catalogue::new(&spec, &[offered], &[]);
        let shown = CatalogueView {
            catalogue: &catalogue,
            toolset: &Toolset::default(),
            visible: &|_| true,
        };
        assert!(
            shown
                .nearest_names(&format!("notes_create_1{huge}"), false)
                .is_empty()
        );
        assert_eq!(
            shown.nearest_names("notes_crate_1", false).len(),
            SUGGESTIONS
        );
        assert!(shown.nearest_names("_a_", true).is_empty());
        // Only the beginning of a query counts.
        let found = |query: &str| shown.search(query).len();
        assert_eq!(found("create"), FOUND_MAX);
        assert_eq!(found(&format!("{}create", "? ".repeat(2_000_000))), 0);
        assert_eq!(found(&format!("{}create", "q ".repeat(16))), 0);
        assert_eq!(found(&format!("{}create", "q ".repeat(15))), FOUND_MAX);
    }

    #[test]
    fn what_the_aggregate_says_has_the_form_of_the_convention() {
        let said = AggregateReply::invalid("Name at least one");
        let format = ResultFormat::Legacy(tooldock_protocol::version::ProtocolVersion::V2025_11_25);
        let result: Value = serde_json::from_slice(said.as_result(&format).payload()).unwrap();
        assert_eq!(result["isError"], true);
        let text: Value =
            serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
        assert_eq!(
            text,
            json!({ "success": false, "result": null, "error": "Name at least one" })
        );
        let error: Value = serde_json::from_slice(said.rpc_error(-32602).payload()).unwrap();
        assert_eq!(
            (&error["message"], &error["data"]),
            (&json!("Name at least one"), &text)
        );
    }
}
