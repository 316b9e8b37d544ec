//! Finds tools in Rust sources: functions with the attribute `#[tool(description = "…")]` of the crate `rmcp`.

use tooldock_process::repositories::{FoundParameter, FoundTool};
use tree_sitter::Node;

use super::SourceFacts;
use super::syntax::{File, children, last_name, unescape};

pub(super) fn read(file: &File<'_>, facts: &mut SourceFacts) {
    for node in file.nodes() {
        match node.kind() {
            "use_declaration" => {
                facts
                    .imports
                    .extend(file.field(node, "argument").map(str::to_owned));
            }
            "function_item" => facts.tools.extend(tool(file, node)),
            "call_expression" => {
                let function = file.field(node, "function").unwrap_or_default();
                // The call is `std::env::var("NAME")`.
                let reads =
                    matches!(last_name(function), "var" | "var_os") && function.contains("env");
                let arguments = node
                    .child_by_field_name("arguments")
                    .map(children)
                    .unwrap_or_default();
                if let Some(name) = arguments
                    .first()
                    .filter(|_| reads)
                    .and_then(|it| string(file, *it))
                {
                    File::look_at_variable(&name, facts);
                }
            }
            "macro_invocation" => {
                let name = file.field(node, "macro").unwrap_or_default();
                if matches!(last_name(name), "env" | "option_env") {
                    let text = super::syntax::below(node).find_map(|it| string(file, it));
                    File::look_at_variable(&text.unwrap_or_default(), facts);
                }
            }
            "string_literal" | "raw_string_literal" => file.look_for_hosts(node, facts),
            _ => {}
        }
    }
}

/// Reads a tool from a function, if `tool` is among the attributes before it.
fn tool(file: &File<'_>, function: Node<'_>) -> Option<FoundTool> {
    let mut attribute = None;
    let mut documentation = Vec::new();
    let mut before = function.prev_named_sibling();
    while let Some(node) = before {
        match node.kind() {
            "attribute_item" => attribute = attribute.or_else(|| tool_attribute(file, node)),
            "line_comment" => {
                documentation.extend(file.text(node).strip_prefix("///").map(str::trim))
            }
            "block_comment" => {}
            _ => break,
        }
        before = node.prev_named_sibling();
    }
    documentation.reverse();
    let attribute = attribute?;
    let parameters = function
        .child_by_field_name("parameters")
        .map(children)
        .unwrap_or_default();
    let of_attribute = |key| value_of(file, attribute, key);
    Some(FoundTool {
        name: of_attribute("name").unwrap_or(file.field(function, "name")?.to_owned()),
        file: file.path.to_owned(),
        description: of_attribute("description").unwrap_or_else(|| documentation.join("\n")),
        parameters: parameters
            .into_iter()
            .flat_map(|it| parameter(file, it))
            .collect(),
    })
}

/// Finds the attribute `tool` in `#[tool(…)]` or `#[rmcp::tool]`; returns `None` for other attributes.
fn tool_attribute<'t>(file: &File<'_>, item: Node<'t>) -> Option<Node<'t>> {
    let attribute = *children(item)
        .first()
        .filter(|it| it.kind() == "attribute")?;
    let path = *children(attribute).first()?;
    (last_name(file.text(path)) == "tool").then_some(attribute)
}

/// The string that follows `key =` in an attribute.
fn value_of(file: &File<'_>, attribute: Node<'_>, key: &str) -> Option<String> {
    let tokens = attribute.child_by_field_name("arguments")?;
    let tokens = children(tokens);
    tokens.windows(2).find_map(|pair| {
        let is_it = pair[0].kind() == "identifier" && file.text(pair[0]) == key;
        is_it.then(|| string(file, pair[1]))?
    })
}

/// The tool's parameters that one parameter of its function declares; for `Parameters(…): Parameters<T>`, the fields of `T`.
fn parameter(file: &File<'_>, node: Node<'_>) -> Vec<FoundParameter> {
    if node.kind() != "parameter" {
        return Vec::new();
    }
    let pattern = file.field(node, "pattern").unwrap_or_default();
    let kind = file.field(node, "type").unwrap_or_default();
    if let Some(inner) = kind
        .split_once("Parameters<")
        .and_then(|it| it.1.strip_suffix('>'))
    {
        return fields(file, last_name(inner)).unwrap_or_default();
    }
    // Skipped: these parameters are passed by the framework, not by the caller.
    if [
        "RequestContext",
        "Peer",
        "Extension",
        "Extensions",
        "CancellationToken",
    ]
    .iter()
    .any(|it| kind.contains(it))
    {
        return Vec::new();
    }
    let is_name = pattern
        .chars()
        .all(|it| it.is_ascii_alphanumeric() || it == '_');
    if !is_name || pattern.is_empty() {
        return Vec::new();
    }
    vec![FoundParameter {
        name: pattern.to_owned(),
        kind: kind.to_owned(),
        required: !kind.contains("Option<"),
        description: String::new(),
    }]
}

/// The fields of a struct that is declared in the same file, as parameters of a tool.
fn fields(file: &File<'_>, name: &str) -> Option<Vec<FoundParameter>> {
    let structure = file
        .nodes()
        .find(|it| it.kind() == "struct_item" && file.field(*it, "name") == Some(name))?;
    let mut parameters = Vec::new();
    let (mut comments, mut attribute) = (Vec::new(), None);
    for node in children_with_comments(structure.child_by_field_name("body")?) {
        match node.kind() {
            "line_comment" => comments.extend(file.text(node).strip_prefix("///").map(str::trim)),
            "attribute_item" => {
                let text = children(node)
                    .first()
                    .and_then(|it| value_of(file, *it, "description"));
                attribute = text.or(attribute);
            }
            "field_declaration" => {
                let kind = file.field(node, "type").unwrap_or("any");
                parameters.push(FoundParameter {
                    name: file.field(node, "name").unwrap_or_default().to_owned(),
                    kind: kind.to_owned(),
                    required: !kind.starts_with("Option<"),
                    description: attribute.take().unwrap_or_else(|| comments.join(" ")),
                });
                comments.clear();
            }
            _ => {}
        }
    }
    Some(parameters)
}

fn children_with_comments(node: Node<'_>) -> Vec<Node<'_>> {
    let mut cursor = node.walk();
    node.named_children(&mut cursor).collect()
}

fn string(file: &File<'_>, node: Node<'_>) -> Option<String> {
    let text = file.text(node);
    match node.kind() {
        "string_literal" => text.get(1..text.len().checked_sub(1)?).map(unescape),
        "raw_string_literal" => {
            let inner = text.trim_start_matches('r').trim_matches('#');
            inner.get(1..inner.len().checked_sub(1)?).map(str::to_owned)
        }
        _ => None,
    }
}
