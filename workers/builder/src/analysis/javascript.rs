//! Finds tools in TypeScript and JavaScript sources: tools of the MCP SDK in each of its forms, and of FastMCP.
//!
//! - `server.tool("name", "description", { … }, handler)`, `server.registerTool("name", { … }, handler)`
//! - `server.addTool({ name, description, parameters, execute })`
//! - lists of `{ name, description, inputSchema }` at any position: handlers of `ListToolsRequestSchema` return them
//!
//! Schemas are read as JSON Schema and as Zod. Identifiers are resolved to their values within a file.

use std::collections::HashMap;

use tooldock_process::repositories::{FoundParameter, FoundTool};
use tree_sitter::Node;

use super::SourceFacts;
use super::syntax::{File, children, dedent, is_tool_name, last_name, unescape};

/// Maximum number of steps for resolving a name to its value, or a schema to its parameters. A name or schema that needs more
/// steps is ignored.
const DEPTH_MAX: usize = 12;

pub(super) fn read(file: &File<'_>, facts: &mut SourceFacts) {
    let reader = JavascriptReader {
        file: *file,
        values: values(file),
    };
    for node in file.nodes() {
        match node.kind() {
            "import_statement" => {
                let source = node.child_by_field_name("source");
                facts
                    .imports
                    .extend(source.and_then(|it| reader.string(it)));
            }
            "call_expression" => reader.call(node, facts),
            "object" => facts.tools.extend(reader.listed_tool(node)),
            "string" | "template_string" => file.look_for_hosts(node, facts),
            "member_expression" | "subscript_expression" => reader.variable(node, facts),
            "variable_declarator" => reader.unpacked_variables(node, facts),
            _ => {}
        }
    }
}

/// The values of a file's constants and enumeration members (`Enum.MEMBER`), as syntax nodes, by name.
fn values<'t>(file: &File<'t>) -> HashMap<String, Node<'t>> {
    let mut values = HashMap::new();
    for node in file.nodes() {
        let name = || file.field(node, "name");
        match node.kind() {
            "variable_declarator" => {
                if let (Some(name), Some(value)) = (name(), node.child_by_field_name("value")) {
                    values.insert(name.to_owned(), value);
                }
            }
            "enum_assignment" => {
                let of = node.parent().and_then(|it| it.parent());
                let of = of.and_then(|it| file.field(it, "name"));
                if let (Some(of), Some(name), Some(value)) =
                    (of, name(), node.child_by_field_name("value"))
                {
                    values.insert(format!("{of}.{name}"), value);
                }
            }
            _ => {}
        }
    }
    values
}

struct JavascriptReader<'t> {
    file: File<'t>,
    values: HashMap<String, Node<'t>>,
}

impl<'t> JavascriptReader<'t> {
    fn call(&self, node: Node<'t>, facts: &mut SourceFacts) {
        let (Some(function), Some(arguments)) = (
            node.child_by_field_name("function"),
            node.child_by_field_name("arguments"),
        ) else {
            return;
        };
        let arguments = children(arguments);
        let name = last_name(self.file.text(function));
        match (name, function.kind()) {
            ("tool" | "registerTool", "member_expression") => {
                facts.tools.extend(self.registered_tool(&arguments));
            }
            ("addTool", _) => {
                let object = arguments.first().and_then(|it| self.resolved(*it, 0));
                facts
                    .tools
                    .extend(object.and_then(|it| self.tool_of_object(it)));
            }
            ("require", "identifier") => {
                facts
                    .imports
                    .extend(arguments.first().and_then(|it| self.string(*it)));
            }
            // The call is `Deno.env.get("NAME")`.
            ("get", _) if self.file.text(function).ends_with("env.get") => {
                if let Some(name) = arguments.first().and_then(|it| self.string(*it)) {
                    File::look_at_variable(&name, facts);
                }
            }
            _ => {}
        }
    }

    /// Reads a tool from the arguments of its registration: `("name", "description"?, schema or options?, handler)`.
    fn registered_tool(&self, arguments: &[Node<'t>]) -> Option<FoundTool> {
        if arguments.len() < 2 {
            return None;
        }
        let name = self.string(arguments[0]).filter(|it| is_tool_name(it))?;
        let mut tool = self.tool(name);
        for argument in &arguments[1..arguments.len() - 1] {
            if let Some(text) = self.string(*argument) {
                tool.description = text;
                continue;
            }
            let Some(object) = self.resolved(*argument, 0) else {
                continue;
            };
            let options = ["inputSchema", "description"]
                .iter()
                .any(|it| self.member(object, it).is_some());
            let is_zod_field = |it: &Node<'_>| self.file.text(*it).starts_with("z.");
            if options
                && !self
                    .member(object, "description")
                    .is_some_and(|it| is_zod_field(&it))
            {
                self.fill(&mut tool, object);
            } else if tool.parameters.is_empty() {
                tool.parameters = self.parameters(object, 0);
            }
        }
        Some(tool)
    }

    /// Reads a tool from an object literal with a name and a schema, at any position in the file.
    fn listed_tool(&self, object: Node<'t>) -> Option<FoundTool> {
        let members = ["inputSchema", "input_schema"];
        let has_schema = members.iter().any(|it| self.member(object, it).is_some());
        let runs = ["handler", "execute", "run", "handle"]
            .iter()
            .any(|it| self.member(object, it).is_some());
        let described = self.member(object, "description").is_some();
        (has_schema || runs && described).then_some(())?;
        self.tool_of_object(object)
    }

    fn tool_of_object(&self, object: Node<'t>) -> Option<FoundTool> {
        let name = self.string(self.member(object, "name")?)?;
        let mut tool = self.tool(Some(name).filter(|it| is_tool_name(it))?);
        self.fill(&mut tool, object);
        Some(tool)
    }

    fn tool(&self, name: String) -> FoundTool {
        FoundTool {
            name,
            file: self.file.path.to_owned(),
            ..FoundTool::default()
        }
    }

    fn fill(&self, tool: &mut FoundTool, object: Node<'t>) {
        if let Some(text) = self
            .member(object, "description")
            .and_then(|it| self.string(it))
        {
            tool.description = text;
        }
        let schema = [
            "inputSchema",
            "input_schema",
            "parameters",
            "schema",
            "paramsSchema",
        ]
        .into_iter()
        .find_map(|it| self.member(object, it));
        if let Some(schema) = schema {
            tool.parameters = self.parameters(schema, 0);
        }
    }

    /// Finds a member of an object literal. Returns its value; for a method, the method itself.
    fn member(&self, object: Node<'t>, name: &str) -> Option<Node<'t>> {
        if object.kind() != "object" {
            return None;
        }
        children(object)
            .into_iter()
            .find_map(|member| match member.kind() {
                "pair" => {
                    let key = member.child_by_field_name("key")?;
                    (self.key(key) == name).then(|| member.child_by_field_name("value"))?
                }
                "method_definition" => (self.file.field(member, "name")? == name).then_some(member),
                // In a shorthand such as `{ name }`, the member and its value have the same name.
                "shorthand_property_identifier" => {
                    (self.file.text(member) == name).then_some(member)
                }
                _ => None,
            })
    }

    fn key(&self, key: Node<'t>) -> String {
        self.file
            .text(key)
            .trim_matches(['"', '\'', '`'])
            .to_owned()
    }

    /// Removes casts and parentheses from an expression, and replaces a name by its value.
    fn resolved(&self, node: Node<'t>, depth: usize) -> Option<Node<'t>> {
        if depth > DEPTH_MAX {
            return None;
        }
        match node.kind() {
            "as_expression"
            | "satisfies_expression"
            | "parenthesized_expression"
            | "non_null_expression"
            | "type_assertion" => self.resolved(*children(node).first()?, depth + 1),
            "identifier" | "member_expression" | "shorthand_property_identifier" => {
                let name = self.file.text(node);
                let value = self.values.get(name).copied();
                // `Schema.shape` refers to the fields of a Zod schema, so the schema itself is used.
                let value =
                    value.or_else(|| self.values.get(name.strip_suffix(".shape")?).copied());
                // A value that refers to itself, as in `const a = a.b`, is ignored: resolving it would not end.
                value
                    .filter(|it| it.id() != node.id())
                    .and_then(|it| self.resolved(it, depth + 1))
            }
            _ => Some(node),
        }
    }

    fn string(&self, node: Node<'t>) -> Option<String> {
        self.string_at(node, 0).map(|it| dedent(&it))
    }

    fn string_at(&self, node: Node<'t>, depth: usize) -> Option<String> {
        let node = self.resolved(node, depth)?;
        match node.kind() {
            "string" | "template_string" => {
                let text = self.file.text(node);
                let inner = text.get(1..text.len().saturating_sub(1))?;
                Some(unescape(inner))
            }
            "binary_expression"
                if depth < DEPTH_MAX && self.file.field(node, "operator") == Some("+") =>
            {
                let left = self.string_at(node.child_by_field_name("left")?, depth + 1)?;
                let right = self.string_at(node.child_by_field_name("right")?, depth + 1)?;
                Some(left + &right)
            }
            _ => None,
        }
    }

    /// The parameters that a schema declares: JSON Schema, an object of Zod types, or an expression derived from one of these.
    fn parameters(&self, schema: Node<'t>, depth: usize) -> Vec<FoundParameter> {
        let Some(schema) = self.resolved(schema, depth).filter(|_| depth < DEPTH_MAX) else {
            return Vec::new();
        };
        match schema.kind() {
            "object" => {
                let properties = self.member(schema, "properties");
                let is_json = self
                    .member(schema, "type")
                    .and_then(|it| self.string(it))
                    .as_deref()
                    == Some("object");
                match properties.and_then(|it| self.resolved(it, depth + 1)) {
                    Some(properties) => self.json_parameters(schema, properties),
                    None if is_json => Vec::new(),
                    None => self.zod_parameters(schema),
                }
            }
            "call_expression" => {
                let function = schema.child_by_field_name("function");
                let arguments = schema
                    .child_by_field_name("arguments")
                    .map(children)
                    .unwrap_or_default();
                let name = function.map_or("", |it| last_name(self.file.text(it)));
                let takes_it = matches!(
                    name,
                    "object" | "strictObject" | "looseObject" | "toJSONSchema" | "zodToJsonSchema"
                ) || function.is_some_and(|it| it.kind() == "identifier");
                if takes_it {
                    return arguments
                        .first()
                        .map(|it| self.parameters(*it, depth + 1))
                        .unwrap_or_default();
                }
                // The schema is derived by a call, as in `z.object({ … }).strict()`.
                let object = function.and_then(|it| it.child_by_field_name("object"));
                object
                    .map(|it| self.parameters(it, depth + 1))
                    .unwrap_or_default()
            }
            // The schema is a member of an object, as in `z.object({ … }).shape`.
            "member_expression" => schema
                .child_by_field_name("object")
                .map(|it| self.parameters(it, depth + 1))
                .unwrap_or_default(),
            _ => Vec::new(),
        }
    }

    fn json_parameters(&self, schema: Node<'t>, properties: Node<'t>) -> Vec<FoundParameter> {
        let required: Vec<String> = self
            .member(schema, "required")
            .and_then(|it| self.resolved(it, 0))
            .map(|it| {
                children(it)
                    .into_iter()
                    .filter_map(|it| self.string(it))
                    .collect()
            })
            .unwrap_or_default();
        self.fields(properties, |name, value| {
            let text = |key| self.string(self.member(self.resolved(value, 0)?, key)?);
            FoundParameter {
                kind: text("type").unwrap_or_else(|| "any".into()),
                description: text("description").unwrap_or_default(),
                required: required.contains(&name),
                name,
            }
        })
    }

    fn zod_parameters(&self, object: Node<'t>) -> Vec<FoundParameter> {
        self.fields(object, |name, value| {
            let mut parameter = FoundParameter {
                name,
                kind: "any".into(),
                required: true,
                description: String::new(),
            };
            // Follows a chain such as `z.string().optional()` from its last call to its first, which names the type.
            let mut at = self.resolved(value, 0);
            for _ in 0..DEPTH_MAX {
                let Some(call) = at.filter(|it| it.kind() == "call_expression") else {
                    break;
                };
                let Some(function) = call.child_by_field_name("function") else {
                    break;
                };
                let arguments = call
                    .child_by_field_name("arguments")
                    .map(children)
                    .unwrap_or_default();
                match last_name(self.file.text(function)) {
                    "optional" | "default" | "nullish" => parameter.required = false,
                    "describe" => {
                        let text = arguments.first().and_then(|it| self.string(*it));
                        parameter.description = text.unwrap_or_default();
                    }
                    method => method.clone_into(&mut parameter.kind),
                }
                at = function
                    .child_by_field_name("object")
                    .and_then(|it| self.resolved(it, 0));
            }
            parameter
        })
    }

    fn fields(
        &self,
        object: Node<'t>,
        make: impl Fn(String, Node<'t>) -> FoundParameter,
    ) -> Vec<FoundParameter> {
        let pair = |member: Node<'t>| match member.kind() {
            "pair" => Some(make(
                self.key(member.child_by_field_name("key")?),
                member.child_by_field_name("value")?,
            )),
            "shorthand_property_identifier" => Some(make(self.key(member), member)),
            _ => None,
        };
        if object.kind() != "object" {
            return Vec::new();
        }
        children(object).into_iter().filter_map(pair).collect()
    }

    /// Adds the environment variable that an expression reads: `process.env.NAME`, `process.env["NAME"]`, `import.meta.env.NAME`.
    fn variable(&self, node: Node<'t>, facts: &mut SourceFacts) {
        let object = node
            .child_by_field_name("object")
            .map(|it| self.file.text(it));
        if !object.is_some_and(is_environment) {
            return;
        }
        let name = match node.kind() {
            "member_expression" => self.file.field(node, "property").map(str::to_owned),
            _ => node
                .child_by_field_name("index")
                .and_then(|it| self.string(it)),
        };
        if let Some(name) = name {
            File::look_at_variable(&name, facts);
        }
    }

    /// Adds the environment variables that a declaration reads: `const { NAME, OTHER: renamed } = process.env`.
    fn unpacked_variables(&self, node: Node<'t>, facts: &mut SourceFacts) {
        let value = node
            .child_by_field_name("value")
            .map(|it| self.file.text(it));
        let Some(pattern) = node.child_by_field_name("name") else {
            return;
        };
        if pattern.kind() != "object_pattern" || !value.is_some_and(is_environment) {
            return;
        }
        for part in children(pattern) {
            let name = part
                .child_by_field_name("key")
                .or(part.child_by_field_name("left"))
                .unwrap_or(part);
            File::look_at_variable(self.file.text(name), facts);
        }
    }
}

fn is_environment(text: &str) -> bool {
    matches!(
        text,
        "process.env" | "import.meta.env" | "env" | "globalThis.process.env"
    )
}
