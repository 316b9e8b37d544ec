//! `/openapi.json` and `/namespaces/{namespace}/openapi.json`: the caller's namespace as an OpenAPI 3.1 document.
//!
//! Paths of a document are relative to its server URL. In the document at `/namespaces/calc/openapi.json`, `/tools/add` stands
//! for `/namespaces/calc/tools/add`. In the document at `/openapi.json`, it is a path below the root, and `X-Namespace` is a
//! parameter. The document with tools only (`?view=tools`) is for models, which do not need the operators' paths; the document
//! below `/namespaces/` contains only the tools unless `?view=all` is requested.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tooldock_base::heavy_work;
use tooldock_base::route::can_stand_in_path;
use tooldock_engine::upstream::global::GlobalTools;
use tooldock_workers::registry::Namespace;

use sha2::{Digest as _, Sha256};
use tooldock_base::names::NamespaceName;
use tooldock_sessions::caller::Caller;
use tooldock_sessions::catalogue::{Access, ToolEntry, ToolList};
use tooldock_sessions::profile::RestShape;

use super::{arguments, unknown_namespace};
use crate::error;
use crate::mcp::{self, Core};
use crate::reply::Reply;

mod example;
mod inline;
mod responses;
mod schema;
mod work_budget;

use responses::{Fails, ValueForm};
use schema::HoistedSchema;
use work_budget::WorkBudget;

#[derive(Deserialize)]
struct DocumentQuery {
    namespace: Option<String>,
    view: Option<View>,
}

/// Selects the paths that a requested document contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum View {
    /// The document contains only the paths of tools, one operation for each tool.
    Tools,
    /// The document contains the paths of tools and all other paths.
    All,
}

/// How requests described in the document name the namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Addresses {
    /// Requests name the namespace by the header `X-Namespace`.
    Header,
    /// Requests name the namespace in their path.
    Path,
}

/// Parameters of a request for an OpenAPI document.
pub(crate) struct DocumentRequest<'a> {
    pub(crate) query: Option<&'a str>,
    pub(crate) addresses: Addresses,
    pub(crate) shape: RestShape,
}

/// Answers with the OpenAPI document of the request's namespace. Clients that cannot send the header `X-Namespace` can name the
/// namespace in the query (RST-17).
pub(crate) async fn document(core: &Core, caller: &Caller, asked: DocumentRequest<'_>) -> Reply {
    let query = asked.query.unwrap_or_default();
    let Ok(scope) = serde_urlencoded::from_str::<DocumentQuery>(query) else {
        return error::rest_plain(
            StatusCode::BAD_REQUEST,
            "invalid_request",
            "The query is malformed; it may hold namespace=NAME and view=tools or view=all, each once",
        );
    };
    let header = caller.namespace.as_ref().map(|name| name.as_str());
    let Some(name) = header.or(scope.namespace.as_deref()) else {
        return error::rest_plain(
            StatusCode::BAD_REQUEST,
            "namespace_required",
            "The request names no namespace: send X-Namespace or ?namespace=, or use /namespaces/<name>/openapi.json",
        );
    };
    if NamespaceName::global().as_str() == name {
        let snapshot = core.registry.snapshot();
        return match GlobalTools::of(&core.upstreams, &snapshot, caller).await {
            Ok(tools) => {
                let sent = tools
                    .iter()
                    .map(|it| ValueForm::by(core.upstreams.of(it.namespace)));
                let sent = sent.collect();
                let layout = Layout::new(caller, None, &asked, scope.view);
                answered(caller, move || of_all(&tools, sent, &layout).into()).await
            }
            Err(failed) => error::rest_call(&failed, caller),
        };
    }
    let found = core.registry.namespace(name);
    // A namespace that the caller may not use is answered as unknown. This check is needed here since the edge does not read
    // the query.
    let Some(namespace) = found.filter(|namespace| caller.may_use(namespace)) else {
        return unknown_namespace(name);
    };
    let layout = Layout::new(caller, Some(&namespace), &asked, scope.view);
    let upstream = core.upstreams.of(&namespace);
    match mcp::shown_tools(core, caller, &namespace).await {
        Ok(list) => {
            let sent = ValueForm::by(upstream);
            let access = Access::of(caller);
            let form = layout.fingerprint(&namespace);
            if let Some(document) = list.document(&form, access.view(&namespace)) {
                return Reply::json(StatusCode::OK, document);
            }
            let work = move || {
                let view = access.view(&namespace);
                // Another request may have built and stored the document in the meantime.
                if let Some(document) = list.document(&form, view) {
                    return document;
                }
                let document = Bytes::from(of_one(&namespace, &list, &access, sent, &layout));
                list.keep_document(form, view, &document);
                document
            };
            answered(caller, work).await
        }
        Err(failed) => error::rest_call(&failed, caller),
    }
}

/// Builds a document on a thread for heavy work, since the authors of tools decide how large it becomes.
async fn answered(caller: &Caller, work: impl FnOnce() -> Bytes + Send + 'static) -> Reply {
    match heavy_work::run(&caller.principal, work).await {
        Ok(document) => Reply::json(StatusCode::OK, document),
        Err(failed) => error::rest_call(&failed, caller),
    }
}

/// Builds the document of one namespace, with the tools that the caller may see.
fn of_one(
    namespace: &Namespace,
    list: &ToolList,
    access: &Access,
    sent: ValueForm,
    layout: &Layout,
) -> Vec<u8> {
    let tools = access.view(namespace).tools(list);
    let tools = tools.map(|entry| DocumentTool {
        name: entry.name(),
        entry,
        sent,
    });
    // Tool Vault uses the paths `/tools/call` and `/tools/list` itself, so tools with these names cannot be called by path.
    let hidden = |name: &str| matches!(name, "call" | "list");
    let vault = layout.shape == RestShape::Vault;
    let tools = tools.filter(|tool| !(vault && hidden(tool.name)));
    describe(Some(namespace), layout, tools.collect())
}

/// Builds the document of all namespaces. `sent`: for each tool, the form in which REST sends its value.
fn of_all(tools: &GlobalTools, sent: Vec<ValueForm>, layout: &Layout) -> Vec<u8> {
    let tools = tools.iter().zip(sent).map(|(tool, sent)| DocumentTool {
        name: tool.name,
        entry: tool.entry,
        sent,
    });
    describe(None, layout, tools.collect())
}

/// A tool in an OpenAPI document.
struct DocumentTool<'a> {
    /// The tool's name as it stands in the document's paths.
    name: &'a str,
    entry: &'a ToolEntry,
    sent: ValueForm,
}

/// Properties of an OpenAPI document that depend on the request.
struct Layout {
    view: View,
    shape: RestShape,
    /// URL that precedes the paths of the namespace.
    server: String,
    /// URL that precedes all other paths; `None` if it is the same as `server`.
    root: Option<String>,
    /// Parameters that each operation of the namespace has in addition to the tool's arguments.
    parameters: Vec<Value>,
}

impl Layout {
    /// Returns a hash of the settings that determine a namespace's document. Equal hashes mean equal documents, for the cache.
    fn fingerprint(&self, namespace: &Namespace) -> [u8; 32] {
        let about = json!([
            self.view == View::All,
            self.shape as u8,
            self.server,
            self.root,
            self.parameters,
            namespace.name,
            namespace.version,
            namespace.description,
        ]);
        Sha256::digest(about.to_string()).into()
    }

    /// Determines the layout of the document for one namespace, or for all namespaces.
    fn new(
        caller: &Caller,
        namespace: Option<&Namespace>,
        asked: &DocumentRequest<'_>,
        view: Option<View>,
    ) -> Self {
        let profile = &caller.profile;
        let base = format!("{}{}", profile.public_url, profile.path_prefix);
        // An empty prefix is written as a slash, since a server URL must not be empty; clients remove it when they join paths.
        let root = match base.is_empty() {
            true => "/".to_owned(),
            false => base.clone(),
        };
        // In version 1 the document contained only tools, and clients of that version turn every operation into a tool. Clients
        // of Tool Vault do so, too.
        let usual = match asked.shape {
            RestShape::V1 | RestShape::Vault => View::Tools,
            RestShape::V2 => View::All,
        };
        match (asked.addresses, namespace) {
            (Addresses::Path, Some(namespace)) => Self {
                view: view.unwrap_or(View::Tools),
                shape: asked.shape,
                server: format!("{base}/namespaces/{}", namespace.name),
                root: Some(root),
                parameters: Vec::new(),
            },
            (_, namespace) => Self {
                view: view.unwrap_or(usual),
                shape: asked.shape,
                server: root,
                root: None,
                parameters: match (namespace, &profile.namespace) {
                    (Some(namespace), None) => vec![namespace_parameter(namespace)],
                    _ => Vec::new(),
                },
            },
        }
    }
}

fn describe(
    namespace: Option<&Namespace>,
    layout: &Layout,
    tools: Vec<DocumentTool<'_>>,
) -> Vec<u8> {
    let mut effort = WorkBudget::default();
    let mut paths = match layout.view {
        View::Tools => Map::new(),
        View::All => fixed_paths(layout),
    };
    let mut schemas = Map::new();
    schemas.insert("Error".into(), responses::error_schema());
    let (tools, uncallable): (Vec<_>, Vec<_>) = tools
        .into_iter()
        .partition(|tool| can_stand_in_path(tool.name));
    let operations = operation_ids(tools.iter().map(|tool| tool.name));
    for (tool, operation) in tools.iter().zip(&operations) {
        let path = format!("/tools/{}", path_segment(tool.name));
        let operation = tool_operation(tool, operation, &path, layout, (&mut schemas, &mut effort));
        let item = json!({ "post": operation });
        paths.insert(path, item);
    }
    let version = namespace.map(|namespace| namespace.version.as_str());
    let version = version.filter(|version| !version.is_empty());
    let title = namespace.map_or("ToolDock".to_owned(), |namespace| {
        format!("ToolDock: {}", namespace.name)
    });
    let document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": title,
            "version": version.unwrap_or(env!("CARGO_PKG_VERSION")),
            "description": description(namespace, &uncallable),
        },
        "servers": [{ "url": layout.server }],
        "security": [{ "BearerAuth": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": { "BearerAuth": { "type": "http", "scheme": "bearer" } },
            "responses": responses::components(),
            "schemas": schemas,
        },
    });
    serde_json::to_vec(&document).expect("plain data with string keys serializes")
}

/// Returns the document's description: that of the namespace, followed by the tools whose names cannot stand in a path.
fn description(namespace: Option<&Namespace>, uncallable: &[DocumentTool<'_>]) -> String {
    const NAMED_MAX: usize = 10;
    let own = namespace.map_or("The tools of all namespaces", |it| &it.description);
    if uncallable.is_empty() {
        return own.to_owned();
    }
    let names: Vec<_> = uncallable.iter().map(|tool| tool.name).collect();
    let named = json!(&names[..names.len().min(NAMED_MAX)]);
    let more = match names.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let left_out = format!("Left out, since no path can name them; MCP calls them: {named}{more}");
    match own.is_empty() {
        true => left_out,
        false => format!("{own}\n\n{left_out}"),
    }
}

fn tool_operation(
    tool: &DocumentTool<'_>,
    operation: &str,
    path: &str,
    layout: &Layout,
    (schemas, effort): (&mut Map<String, Value>, &mut WorkBudget),
) -> Value {
    let DocumentTool { name, entry, sent } = *tool;
    // In the formats V1 and Vault the tool's value is a property of the response object.
    let (answer, within) = match layout.shape {
        RestShape::V1 | RestShape::Vault => ("responses/200", "/properties/result"),
        RestShape::V2 => ("responses/200", ""),
    };
    // A local reference in a schema is resolved from the root of the document, so references are rewritten for the schema's
    // new position.
    let mut hoist = |schemas: &mut Map<String, Value>, raw: &str, (part, within), kind: &str| {
        let pointer = format!(
            "#/paths/{}/post/{part}/content/application~1json/schema{within}",
            pointer(path)
        );
        let HoistedSchema {
            schema,
            definitions,
        } = schema::hoist(raw, &pointer, &format!("{operation}_{kind}"), effort);
        schemas.extend(definitions);
        schema
    };
    let input_schema = entry.input_schema();
    let input = input_schema.map_or("{}", RawValue::get);
    let input = hoist(schemas, input, ("requestBody", ""), "input");
    let output = responses::value_schema(entry.output_schema(), sent);
    let output = hoist(schemas, &output, (answer, within), "output");
    let output = match layout.shape {
        RestShape::V1 => json!({
            "type": "object",
            "required": ["tool", "result"],
            "properties": { "tool": { "type": "string" }, "result": output },
        }),
        RestShape::Vault => json!({
            "type": "object",
            "required": ["result", "isError"],
            "properties": { "result": output, "isError": { "type": "boolean" } },
        }),
        RestShape::V2 => output,
    };
    let mut body = json!({ "schema": input });
    if let Some(example) = example::of(&body["schema"]) {
        body["example"] = example;
    }
    let mut responses = json!({
        "200": { "description": "The tool's value", "content": { "application/json": { "schema": output } } },
    });
    Fails::Call.add(&mut responses);
    json!({
        "operationId": operation,
        "summary": entry.title().as_deref().unwrap_or(name),
        "description": entry.description(),
        "parameters": layout.parameters,
        "requestBody": {
            "required": input_schema
                .is_some_and(|schema| arguments::are_required(schema, || effort.may_compile(schema.get()))),
            "content": { "application/json": body },
        },
        "responses": responses,
    })
}

const FIXED_OPERATIONS: [&str; 5] = [
    "list_tools",
    "get_tool_schema",
    "list_namespaces",
    "get_health",
    "get_ready",
];

fn fixed_paths(layout: &Layout) -> Map<String, Value> {
    // The pattern for tool names excludes the characters that the gateway refuses in a path.
    let name = json!({
        "name": "name",
        "in": "path",
        "required": true,
        "schema": { "type": "string", "pattern": r"^[^/\\\u0000-\u001f\u007f-\u009f]+$" },
    });
    let mut of_one_tool = layout.parameters.clone();
    of_one_tool.push(name);
    let answer = |description: &str, schema: &Value| {
        json!({
            "description": description,
            "content": { "application/json": { "schema": schema } },
        })
    };
    let answers = |fails: Fails, description: &str, schema: &Value| {
        let mut responses = json!({ "200": answer(description, schema) });
        fails.add(&mut responses);
        responses
    };
    let objects = json!({ "type": "array", "items": { "type": "object" } });
    let object = json!({ "type": "object" });
    let tools = match layout.shape {
        RestShape::V1 | RestShape::Vault => &object,
        RestShape::V2 => &objects,
    };
    // Credentials are optional for health checks: a caller with a token gets more details.
    let optional = json!([{}, { "BearerAuth": [] }]);
    let mut paths = json!({
        "/tools": { "get": {
            "operationId": "list_tools",
            "summary": "Tools of the namespace",
            "parameters": layout.parameters,
            "responses": answers(Fails::Tools, "The tools", tools),
        } },
        "/tools/{name}/schema": { "get": {
            "operationId": "get_tool_schema",
            "summary": "Input schema of one tool",
            "parameters": of_one_tool,
            "responses": answers(Fails::Tools, "A JSON Schema", &object),
        } },
        "/namespaces": { "get": {
            "operationId": "list_namespaces",
            "summary": "Namespaces open to the token",
            "responses": answers(Fails::Gateway, "The namespaces", &objects),
        } },
        "/health": { "get": {
            "operationId": "get_health",
            "summary": "Whether the process is up",
            "security": optional,
            "responses": answers(Fails::HealthCheck, "It is", &object),
        } },
        "/ready": { "get": {
            "operationId": "get_ready",
            "summary": "Whether the process takes traffic",
            "security": optional,
            "responses": answers(Fails::HealthCheck, "It does", &object),
        } },
    });
    // 503 is the regular response of this check when the process is not ready, so it is not described as an error.
    paths["/ready"]["get"]["responses"]["503"] = answer("It does not", &object);
    if let Some(root) = &layout.root {
        for path in ["/namespaces", "/health", "/ready"] {
            paths[path]["servers"] = json!([{ "url": root }]);
        }
    }
    match paths {
        // The listener for Tool Vault serves `/health` and `/ready`, and no other path that exists without tools.
        Value::Object(mut paths) if layout.shape == RestShape::Vault => {
            paths.retain(|path, _| matches!(path.as_str(), "/health" | "/ready"));
            paths
        }
        Value::Object(paths) => paths,
        _ => Map::new(),
    }
}

fn namespace_parameter(namespace: &Namespace) -> Value {
    json!({
        "name": "X-Namespace",
        "in": "header",
        "required": true,
        "description": "The namespace the tools belong to",
        "schema": { "type": "string", "default": namespace.name },
    })
}

/// Replaces all characters of a name except ASCII letters and digits by underscores. A name that would begin with a digit gets
/// an underscore in front.
fn identifier(name: &str) -> String {
    let mut out: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .collect();
    if !out.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_') {
        out.insert(0, '_');
    }
    out
}

/// Returns a unique identifier for each name. A name that is a valid identifier is unchanged. If another name would give the same
/// identifier, a suffix is added that depends on that name alone, so that it stays the same when other tools are added or
/// removed.
fn operation_ids<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Vec<String> {
    let mut taken = UsedNames::default();
    let is_plain = |name: &str| identifier(name) == name && !FIXED_OPERATIONS.contains(&name);
    let plain = names.clone().filter(|name| is_plain(name));
    taken.names.extend(FIXED_OPERATIONS.map(str::to_owned));
    taken.names.extend(plain.map(str::to_owned));
    let named = |name: &str| {
        if is_plain(name) {
            return name.to_owned();
        }
        let plain = identifier(name);
        if taken.names.insert(plain.clone()) {
            return plain;
        }
        let digest = Sha256::digest(name);
        let mark: String = digest[..4]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        taken.unique(format!("{plain}_{mark}"))
    };
    names.map(named).collect()
}

/// The set of identifiers that are in use already.
#[derive(Default)]
struct UsedNames {
    names: BTreeSet<String>,
    /// For each name that was requested more than once, the next number to try as its suffix, so that numbers that were
    /// tried before are not tried again.
    next: HashMap<String, u64>,
}

impl UsedNames {
    /// Returns the name if it is unused; otherwise the name with the first unused number.
    fn unique(&mut self, name: String) -> String {
        if self.names.insert(name.clone()) {
            return name;
        }
        let next = self.next.entry(name.clone()).or_insert(2);
        loop {
            let numbered = format!("{name}_{next}");
            *next += 1;
            if self.names.insert(numbered.clone()) {
                return numbered;
            }
        }
    }
}

/// Returns a tool's name as a segment of a path template. It is percent-encoded, including braces.
fn path_segment(name: &str) -> String {
    name.bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                char::from(byte).to_string()
            }
            byte => format!("%{byte:02X}"),
        })
        .collect()
}

/// Returns a key as a token of a JSON pointer in a URI fragment. `%` is encoded, since clients percent-decode the fragment.
fn pointer(key: &str) -> String {
    key.replace('~', "~0")
        .replace('/', "~1")
        .replace('%', "%25")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_plain_and_unique() {
        let ids = |names: &[&str]| operation_ids(names.iter().copied());
        assert_eq!(ids(&["get-weather", "2fast"]), ["get_weather", "_2fast"]);
        assert_eq!(
            ids(&["größe", "list_tools"]),
            ["gr__e", "list_tools_6fdebc90"]
        );
        let both = ids(&["get-weather", "get.weather", "get_weather"]);
        assert_eq!(both[2], "get_weather");
        assert!(both[0].starts_with("get_weather_") && both[0] != both[1]);
        // A name keeps its identifier whatever other names come or go.
        assert_eq!(ids(&["get_weather", "get.weather"])[1], both[1]);
    }

    #[test]
    fn names_survive_in_paths_and_pointers() {
        assert_eq!(path_segment("a/b {c}"), "a%2Fb%20%7Bc%7D");
        assert_eq!(pointer("/tools/a%20b~"), "~1tools~1a%2520b~0");
    }
}
