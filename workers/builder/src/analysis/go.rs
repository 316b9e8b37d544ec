//! Finds tools in Go sources: `mcp.NewTool("name", mcp.WithDescription(…), mcp.WithString(…))` of mcp-go, and
//! `mcp.AddTool(server, &mcp.Tool{Name: …, Description: …}, handler)` of the official SDK.

use tooldock_process::repositories::{FoundParameter, FoundTool};
use tree_sitter::Node;

use super::SourceFacts;
use super::syntax::{File, children, is_tool_name, last_name, unescape};

pub(super) fn read(file: &File<'_>, facts: &mut SourceFacts) {
    for node in file.nodes() {
        match node.kind() {
            "import_spec" => {
                let path = node.child_by_field_name("path");
                facts.imports.extend(path.and_then(|it| string(file, it)));
            }
            "call_expression" => call(file, node, facts),
            "composite_literal" => {
                let kind = file.field(node, "type").unwrap_or_default();
                if last_name(kind) == "Tool" {
                    let handler = handler_beside(node);
                    facts.tools.extend(literal(file, node, handler));
                }
            }
            "interpreted_string_literal" | "raw_string_literal" => file.look_for_hosts(node, facts),
            _ => {}
        }
    }
}

fn call(file: &File<'_>, node: Node<'_>, facts: &mut SourceFacts) {
    let (Some(function), Some(arguments)) = (
        file.field(node, "function"),
        node.child_by_field_name("arguments"),
    ) else {
        return;
    };
    let arguments = children(arguments);
    match last_name(function) {
        "NewTool" => facts.tools.extend(new_tool(file, &arguments)),
        "Getenv" | "LookupEnv" => {
            if let Some(name) = arguments.first().and_then(|it| string(file, *it)) {
                File::look_at_variable(&name, facts);
            }
        }
        _ => {}
    }
}

fn new_tool(file: &File<'_>, arguments: &[Node<'_>]) -> Option<FoundTool> {
    let mut tool = FoundTool {
        name: string(file, *arguments.first()?).filter(|it| is_tool_name(it))?,
        file: file.path.to_owned(),
        ..FoundTool::default()
    };
    for (name, arguments) in arguments[1..].iter().filter_map(|it| option(file, *it)) {
        let first = arguments.first().and_then(|it| string(file, *it));
        match (name, first) {
            ("WithDescription", Some(text)) => tool.description = text,
            (
                "WithString" | "WithNumber" | "WithBoolean" | "WithArray" | "WithObject"
                | "WithInteger",
                Some(parameter),
            ) => {
                let settings: Vec<_> = arguments[1..]
                    .iter()
                    .filter_map(|it| option(file, *it))
                    .collect();
                let text = settings.iter().find(|it| it.0 == "Description");
                tool.parameters.push(FoundParameter {
                    name: parameter,
                    kind: name.trim_start_matches("With").to_lowercase(),
                    required: settings.iter().any(|it| it.0 == "Required"),
                    description: text
                        .and_then(|it| string(file, *it.1.first()?))
                        .unwrap_or_default(),
                });
            }
            _ => {}
        }
    }
    Some(tool)
}

/// Splits a call expression into the last part of its function's name and its arguments.
fn option<'t>(file: &File<'t>, node: Node<'t>) -> Option<(&'t str, Vec<Node<'t>>)> {
    (node.kind() == "call_expression").then_some(())?;
    let function = last_name(file.field(node, "function")?);
    Some((function, children(node.child_by_field_name("arguments")?)))
}

/// Reads a tool from a literal `mcp.Tool{Name: "…", Description: "…"}`.
fn literal(file: &File<'_>, node: Node<'_>, handler: Option<Node<'_>>) -> Option<FoundTool> {
    let body = node.child_by_field_name("body")?;
    let mut tool = FoundTool {
        file: file.path.to_owned(),
        ..FoundTool::default()
    };
    for element in children(body)
        .into_iter()
        .filter(|it| it.kind() == "keyed_element")
    {
        let parts = children(element);
        let [key, value] = parts[..] else {
            continue;
        };
        match (file.text(key), string(file, value)) {
            ("Name", Some(name)) => tool.name = name,
            ("Description", Some(text)) => tool.description = text,
            _ => {}
        }
    }
    is_tool_name(&tool.name).then_some(())?;
    tool.parameters = handler
        .and_then(|it| of_handler(file, it))
        .unwrap_or_default();
    Some(tool)
}

/// The handler of a tool: the argument after the tool in `AddTool(server, &mcp.Tool{…}, handler)`.
fn handler_beside(tool: Node<'_>) -> Option<Node<'_>> {
    let mut at = tool;
    if at.parent()?.kind() == "unary_expression" {
        at = at.parent()?;
    }
    (at.parent()?.kind() == "argument_list").then(|| at.next_named_sibling())?
}

/// The parameters of a tool: the fields of the struct that is the last parameter of its handler.
fn of_handler(file: &File<'_>, handler: Node<'_>) -> Option<Vec<FoundParameter>> {
    let name = file.text(handler);
    let function = match handler.kind() {
        "func_literal" => handler,
        _ => file.nodes().find(|it| {
            it.kind() == "function_declaration" && file.field(*it, "name") == Some(name)
        })?,
    };
    let parameters = children(function.child_by_field_name("parameters")?);
    let kind = file
        .field(*parameters.last()?, "type")?
        .trim_start_matches('*');
    let structure = file
        .nodes()
        .find(|it| it.kind() == "type_spec" && file.field(*it, "name") == Some(kind))?
        .child_by_field_name("type")
        .filter(|it| it.kind() == "struct_type")?;
    let fields = super::syntax::below(structure).filter(|it| it.kind() == "field_declaration");
    let parameter = |field: Node<'_>| {
        let tag = field
            .child_by_field_name("tag")
            .and_then(|it| string(file, it))
            .unwrap_or_default();
        let json = of_tag(&tag, "json").unwrap_or_default();
        let mut words = json.split(',');
        let name = words
            .next()
            .filter(|it| !it.is_empty())
            .or(file.field(field, "name"))?;
        (name != "-").then(|| FoundParameter {
            name: name.to_owned(),
            kind: file.field(field, "type").unwrap_or("any").to_owned(),
            required: !words.any(|it| it == "omitempty" || it == "omitzero"),
            description: of_tag(&tag, "jsonschema").unwrap_or_default().to_owned(),
        })
    };
    Some(fields.filter_map(parameter).collect())
}

/// The value of `key` in the tag of a struct field, such as `json:"name,omitempty" jsonschema:"a description"`.
fn of_tag<'a>(tag: &'a str, key: &str) -> Option<&'a str> {
    let (before, after) = tag.split_once(&format!("{key}:\""))?;
    let is_whole = before.is_empty() || before.ends_with(' ');
    is_whole.then(|| after.split('"').next())?
}

/// The text of a string literal, or of several string literals that are joined by `+`.
fn string(file: &File<'_>, node: Node<'_>) -> Option<String> {
    string_at(file, node, 0)
}

fn string_at(file: &File<'_>, node: Node<'_>, depth: usize) -> Option<String> {
    let text = file.text(node);
    let inner = || text.get(1..text.len().checked_sub(1)?);
    match node.kind() {
        "interpreted_string_literal" => inner().map(unescape),
        "raw_string_literal" => inner().map(str::to_owned),
        // The node wraps a value in a composite literal.
        "literal_element" => string_at(file, *children(node).first()?, depth),
        "binary_expression" if depth < 12 => {
            let left = string_at(file, node.child_by_field_name("left")?, depth + 1)?;
            let right = string_at(file, node.child_by_field_name("right")?, depth + 1)?;
            Some(left + &right)
        }
        _ => None,
    }
}
