//! Finds tools in Python sources: functions with a decorator named `tool`, `Tool(name=…, inputSchema=…)`,
//! `add_tool(function)`.

use tooldock_process::repositories::{FoundParameter, FoundTool};
use tree_sitter::Node;

use super::SourceFacts;
use super::syntax::{File, children, dedent, is_tool_name, last_name, unescape};

pub(super) fn read(file: &File<'_>, facts: &mut SourceFacts) {
    for node in file.nodes() {
        match node.kind() {
            "import_from_statement" => {
                facts
                    .imports
                    .extend(file.field(node, "module_name").map(str::to_owned));
            }
            "import_statement" => {
                let names = children(node).into_iter();
                facts.imports.extend(names.map(|it| {
                    file.field(it, "name")
                        .unwrap_or_else(|| file.text(it))
                        .to_owned()
                }));
            }
            "decorated_definition" => facts.tools.extend(decorated(file, node)),
            "call" => call(file, node, facts),
            "subscript" => {
                let name = file
                    .field(node, "value")
                    .is_some_and(|it| last_name(it) == "environ");
                let key = node
                    .child_by_field_name("subscript")
                    .and_then(|it| string(file, it));
                if let Some(key) = key.filter(|_| name) {
                    File::look_at_variable(&key, facts);
                }
            }
            // A statement that consists of a string is documentation, not a value.
            "string"
                if node
                    .parent()
                    .is_none_or(|it| it.kind() != "expression_statement") =>
            {
                file.look_for_hosts(node, facts);
            }
            _ => {}
        }
    }
}

/// Reads a tool from a function with a decorator `@tool`, `@mcp.tool()` or `@server.tool(name="…")`.
fn decorated(file: &File<'_>, node: Node<'_>) -> Option<FoundTool> {
    let function = node.child_by_field_name("definition")?;
    if function.kind() != "function_definition" {
        return None;
    }
    let decorators = children(node)
        .into_iter()
        .filter(|it| it.kind() == "decorator");
    let (arguments, _) = decorators
        .filter_map(|it| {
            let expression = *children(it).first()?;
            let name = expression
                .child_by_field_name("function")
                .unwrap_or(expression);
            let is_tool = last_name(file.text(name)) == "tool";
            is_tool.then(|| (expression.child_by_field_name("arguments"), it))
        })
        .next()?;
    let mut tool = of_function(file, function)?;
    for argument in arguments.map(children).unwrap_or_default() {
        if argument.kind() != "keyword_argument" {
            // The first argument of the decorator may be the tool's name.
            if let Some(name) = string(file, argument).filter(|it| is_tool_name(it)) {
                tool.name = name;
            }
            continue;
        }
        let value = argument
            .child_by_field_name("value")
            .and_then(|it| string(file, it));
        match (file.field(argument, "name"), value) {
            (Some("name"), Some(name)) => tool.name = name,
            (Some("description"), Some(text)) => tool.description = text,
            _ => {}
        }
    }
    Some(tool)
}

/// Creates a tool with the name, docstring and parameters of a function.
fn of_function(file: &File<'_>, function: Node<'_>) -> Option<FoundTool> {
    let body = function.child_by_field_name("body")?;
    let first = children(body).into_iter().next();
    let documentation = first
        .filter(|it| it.kind() == "expression_statement")
        .and_then(|it| string(file, *children(it).first()?));
    let parameters = children(function.child_by_field_name("parameters")?);
    Some(FoundTool {
        name: file.field(function, "name")?.to_owned(),
        file: file.path.to_owned(),
        description: documentation.unwrap_or_default(),
        parameters: parameters
            .into_iter()
            .filter_map(|it| parameter(file, it))
            .collect(),
    })
}

fn parameter(file: &File<'_>, node: Node<'_>) -> Option<FoundParameter> {
    let name = match node.kind() {
        "identifier" => node,
        "typed_parameter" => *children(node)
            .first()
            .filter(|it| it.kind() == "identifier")?,
        "default_parameter" | "typed_default_parameter" => node.child_by_field_name("name")?,
        _ => return None,
    };
    let name = file.text(name);
    let annotation = node.child_by_field_name("type");
    let kind = annotation.map_or("any", |it| file.text(it));
    // Skipped: these parameters are passed by the framework, not by the caller.
    if matches!(name, "self" | "cls")
        || last_name(kind.split('[').next().unwrap_or(kind)) == "Context"
    {
        return None;
    }
    let default = node.child_by_field_name("value");
    // The description is in `Annotated[str, Field(description="…")]`, or in the default `Field(…, description="…")`.
    let description = [annotation, default].into_iter().flatten().find_map(|it| {
        super::syntax::below(it)
            .filter(|it| {
                it.kind() == "keyword_argument" && file.field(*it, "name") == Some("description")
            })
            .find_map(|it| string(file, it.child_by_field_name("value")?))
    });
    let kind = kind
        .strip_prefix("Annotated[")
        .and_then(|it| it.split_once(", "))
        .map_or(kind, |it| it.0);
    let is_required = default.is_none_or(|it| {
        let text = file.text(it);
        text == "..."
            || text.starts_with("Field(...")
            || text.starts_with("Field(description") && !text.contains("default")
    });
    Some(FoundParameter {
        name: name.to_owned(),
        kind: kind.split_whitespace().collect::<Vec<_>>().join(" "),
        required: is_required,
        description: description.unwrap_or_default(),
    })
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
        "Tool" => facts.tools.extend(listed(file, &arguments)),
        "add_tool" => facts.tools.extend(added(file, &arguments)),
        // The call is `os.getenv("NAME")`; the next line matches `os.environ.get("NAME")`.
        "getenv" => variable(file, &arguments, facts),
        "get" | "pop" if function.contains("environ.") => variable(file, &arguments, facts),
        _ => {}
    }
}

fn variable(file: &File<'_>, arguments: &[Node<'_>], facts: &mut SourceFacts) {
    if let Some(name) = arguments.first().and_then(|it| string(file, *it)) {
        File::look_at_variable(&name, facts);
    }
}

/// Reads a tool from an expression `Tool(name="…", description="…", inputSchema={…})`.
fn listed(file: &File<'_>, arguments: &[Node<'_>]) -> Option<FoundTool> {
    let keyword = |names: &[&str]| {
        arguments
            .iter()
            .filter(|it| it.kind() == "keyword_argument")
            .find(|it| {
                file.field(**it, "name")
                    .is_some_and(|it| names.contains(&it))
            })
            .and_then(|it| it.child_by_field_name("value"))
    };
    let schema = keyword(&["inputSchema", "input_schema", "parameters"]);
    Some(FoundTool {
        name: string(file, keyword(&["name"])?).filter(|it| is_tool_name(it))?,
        file: file.path.to_owned(),
        description: keyword(&["description"])
            .and_then(|it| string(file, it))
            .unwrap_or_default(),
        parameters: schema.map(|it| of_schema(file, it)).unwrap_or_default(),
    })
}

/// Reads a tool from `mcp.add_tool(function)`, if the function is in the same file.
fn added(file: &File<'_>, arguments: &[Node<'_>]) -> Option<FoundTool> {
    let first = *arguments.first().filter(|it| it.kind() == "identifier")?;
    let name = file.text(first);
    let function = file
        .nodes()
        .find(|it| it.kind() == "function_definition" && file.field(*it, "name") == Some(name))?;
    of_function(file, function)
}

/// The tool parameters that a JSON Schema declares. The schema is written in the source as a Python dictionary.
fn of_schema(file: &File<'_>, schema: Node<'_>) -> Vec<FoundParameter> {
    let Some(properties) = member(file, schema, "properties") else {
        return Vec::new();
    };
    let required: Vec<String> = member(file, schema, "required")
        .map(|it| {
            children(it)
                .into_iter()
                .filter_map(|it| string(file, it))
                .collect()
        })
        .unwrap_or_default();
    let parameter = |pair: Node<'_>| {
        let name = string(file, pair.child_by_field_name("key")?)?;
        let value = pair.child_by_field_name("value")?;
        let text = |key| string(file, member(file, value, key)?);
        Some(FoundParameter {
            kind: text("type").unwrap_or_else(|| "any".into()),
            description: text("description").unwrap_or_default(),
            required: required.contains(&name),
            name,
        })
    };
    children(properties)
        .into_iter()
        .filter_map(parameter)
        .collect()
}

fn member<'t>(file: &File<'_>, dictionary: Node<'t>, key: &str) -> Option<Node<'t>> {
    if dictionary.kind() != "dictionary" {
        return None;
    }
    children(dictionary).into_iter().find_map(|pair| {
        let name = string(file, pair.child_by_field_name("key")?)?;
        (name == key).then(|| pair.child_by_field_name("value"))?
    })
}

/// The text of a string literal, or of several adjacent string literals, with or without parentheses.
fn string(file: &File<'_>, node: Node<'_>) -> Option<String> {
    literal(file, node).map(|it| dedent(&it))
}

fn literal(file: &File<'_>, node: Node<'_>) -> Option<String> {
    match node.kind() {
        "string" => {
            let text = file.text(node);
            let raw = text.trim_start_matches(|it: char| it.is_ascii_alphabetic());
            let quotes = ["\"\"\"", "'''", "\"", "'"]
                .into_iter()
                .find(|it| raw.starts_with(it))?;
            let inner = raw.strip_prefix(quotes)?.strip_suffix(quotes)?;
            Some(unescape(inner))
        }
        "concatenated_string" => children(node)
            .into_iter()
            .map(|it| literal(file, it))
            .collect(),
        "parenthesized_expression" => {
            let inner = *children(node).first()?;
            matches!(inner.kind(), "string" | "concatenated_string")
                .then(|| literal(file, inner))?
        }
        _ => None,
    }
}
