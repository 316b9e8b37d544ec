//! Python files that make MCP servers, as far as their text shows it.

use std::collections::BTreeMap;

use super::logical_lines::{LogicalLine, logical_lines};

/// Kinds of entries that decorators declare.
const KINDS: [&str; 3] = ["tool", "resource", "prompt"];
/// Decorators of low-level servers of the official SDK 1.x, which later versions do not have.
const OLD_DECORATORS: [&str; 4] = ["list_tools", "call_tool", "list_resources", "list_prompts"];
/// Parts of a file that only its own server object can act on: the worker would serve the file without them.
const OWN_WORK: [&str; 19] = [
    ".mount(",
    ".import_server(",
    ".add_tool(",
    ".add_resource(",
    ".add_template(",
    ".add_prompt(",
    ".add_middleware(",
    ".add_provider(",
    ".add_transform(",
    "from_openapi(",
    "from_fastapi(",
    "from_client(",
    "as_proxy(",
    "create_proxy(",
    "lifespan=",
    "middleware=",
    "providers=",
    "transforms=",
    "tools=[",
];

/// Version of an SDK that a file is written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sdk {
    /// The official SDK 1.x, with `mcp.server.fastmcp`.
    Official1,
    /// The official SDK from 2.0 on, with `mcp.server.mcpserver`.
    Official2,
    /// A low-level server of the official SDK 1.x.
    LowLevel1,
    /// A low-level server of the official SDK, of any version.
    LowLevel,
    /// FastMCP, the package of its own.
    FastMcp,
}

impl Sdk {
    /// The requirement that installs the newest suitable version.
    pub(super) fn requirement(self) -> &'static str {
        match self {
            Self::Official1 => "mcp[cli]<2",
            Self::Official2 => "mcp[cli]>=2",
            Self::LowLevel1 => "mcp<2",
            Self::LowLevel => "mcp",
            Self::FastMcp => "fastmcp",
        }
    }

    /// The SDK of a class; `None` if it is not the class of a server.
    fn of(module: &str, class: &str) -> Option<Self> {
        let is_in = |package: &str| {
            let rest = module.strip_prefix(package);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        match class {
            "FastMCP" if is_in("fastmcp") => Some(Self::FastMcp),
            "FastMCP" if is_in("mcp") => Some(Self::Official1),
            "MCPServer" if is_in("mcp") => Some(Self::Official2),
            "Server" if is_in("mcp.server") => Some(Self::LowLevel),
            _ => None,
        }
    }
}

/// Facts about a Python file, from its text.
#[derive(Debug)]
pub(super) struct PythonFile {
    pub(super) name: String,
    /// SDK of the server that the file makes; `None` if it makes none.
    pub(super) sdk: Option<Sdk>,
    /// True if a server is made at the top level, and not only in a function.
    makes_at_top: bool,
    /// True if the file has an `if __name__ == "__main__":`.
    pub(super) has_main: bool,
    /// True if the file declares something that the worker serves.
    pub(super) declares: bool,
    /// True if the file decorates functions with methods of an object, as in `@mcp.tool`.
    decorates: bool,
    /// True if the server does something that the worker cannot do in its place.
    has_own_work: bool,
}

impl PythonFile {
    pub(super) fn read(name: String, text: &str) -> Self {
        let lines = logical_lines(text);
        let imports = Imports::of(&lines);
        let mut file = Self {
            name,
            sdk: None,
            makes_at_top: false,
            has_main: false,
            declares: imports
                .modules
                .values()
                .any(|it| it.starts_with("app.registry")),
            decorates: false,
            has_own_work: false,
        };
        let mut is_old = false;
        for line in &lines {
            let text = &*line.text;
            if line.indent == 0 && text.starts_with("if __name__") {
                file.has_main = true;
            }
            if let Some(decorator) = text.strip_prefix('@') {
                let path = path_at(decorator);
                match path.rsplit_once('.') {
                    None => file.declares |= imports.is_decorator(path),
                    Some((owner, method)) => {
                        let is_kind = KINDS.contains(&method);
                        let module = imports.modules.get(owner);
                        let is_ours = module.is_some_and(|it| it.starts_with("fastmcp"));
                        file.declares |= is_kind && is_ours;
                        file.decorates |= is_kind && !is_ours;
                        is_old |= OLD_DECORATORS.contains(&method);
                    }
                }
                continue;
            }
            file.has_own_work |= OWN_WORK.iter().any(|part| text.contains(part));
            if let Some(sdk) = imports.server_in(text) {
                file.makes_at_top |= line.indent == 0;
                file.sdk.get_or_insert(sdk);
            }
        }
        if is_old && file.sdk == Some(Sdk::LowLevel) {
            file.sdk = Some(Sdk::LowLevel1);
        }
        file
    }

    /// Returns true if running the file runs a server.
    pub(super) fn is_server(&self) -> bool {
        self.sdk.is_some() && (self.makes_at_top || self.has_main)
    }

    /// Returns true if the decorators of the file's server leave a trace on the functions, by which the worker serves them, and
    /// the server does nothing else.
    pub(super) fn is_traced(&self) -> bool {
        self.sdk == Some(Sdk::FastMcp) && self.decorates && !self.has_own_work
    }
}

/// Names that a file imports.
#[derive(Debug, Default)]
struct Imports {
    /// Imported names, each with its module and its name there.
    names: BTreeMap<String, (String, String)>,
    /// Names that stand for modules, each with the whole name of the module.
    modules: BTreeMap<String, String>,
}

impl Imports {
    fn of(lines: &[LogicalLine]) -> Self {
        let mut imports = Self::default();
        for line in lines {
            let text = &*line.text;
            if let Some(rest) = text.strip_prefix("from ")
                && let Some((module, names)) = rest.split_once(" import ")
            {
                let module = module.trim();
                for name in names.trim_matches(['(', ')', ' ']).split(',') {
                    let (name, alias) = alias(name);
                    let own = (module.to_owned(), name.to_owned());
                    imports.names.insert(alias.to_owned(), own);
                    let whole = format!("{module}.{name}");
                    imports.modules.insert(alias.to_owned(), whole);
                }
            } else if let Some(names) = text.strip_prefix("import ") {
                for name in names.split(',') {
                    let (name, alias) = alias(name);
                    let bound = match alias == name {
                        true => name.split('.').next().unwrap_or(name),
                        false => alias,
                    };
                    let module = match alias == name {
                        true => bound,
                        false => name,
                    };
                    imports.modules.insert(bound.to_owned(), module.to_owned());
                }
            }
        }
        imports
    }

    /// Returns true if a decorator of this name is one of the gateway's and FastMCP's own.
    fn is_decorator(&self, name: &str) -> bool {
        match self.names.get(name) {
            Some((module, name)) => module.starts_with("fastmcp") && KINDS.contains(&&**name),
            None => KINDS.contains(&name),
        }
    }

    /// The SDK of the server that a line makes, as in `mcp = FastMCP("x")`.
    fn server_in(&self, line: &str) -> Option<Sdk> {
        let (target, value) = line.split_once('=')?;
        let target = target.split(':').next().unwrap_or(target).trim();
        let is_name = !target.is_empty() && path_at(target) == target;
        if !is_name {
            return None;
        }
        let value = value.trim_start();
        let path = path_at(value);
        let mut rest = value[path.len()..].trim_start();
        if rest.starts_with('[') {
            rest = rest[rest.find(']')? + 1..].trim_start();
        }
        if !rest.starts_with('(') {
            return None;
        }
        match path.rsplit_once('.') {
            None => {
                let (module, class) = self.names.get(path)?;
                Sdk::of(module, class)
            }
            Some((owner, class)) => {
                let (first, others) = owner.split_once('.').unwrap_or((owner, ""));
                let module = self.modules.get(first)?;
                let module = match others {
                    "" => module.clone(),
                    others => format!("{module}.{others}"),
                };
                Sdk::of(&module, class)
            }
        }
    }
}

/// Splits `name as alias`; without an alias, both are the name.
fn alias(text: &str) -> (&str, &str) {
    let text = text.trim();
    let (name, alias) = text.split_once(" as ").unwrap_or((text, text));
    (name.trim(), alias.trim())
}

/// The dotted name at the beginning of a text.
fn path_at(text: &str) -> &str {
    let is_in_a_path = |sign: char| sign.is_alphanumeric() || matches!(sign, '_' | '.');
    let end = text.find(|sign| !is_in_a_path(sign));
    &text[..end.unwrap_or(text.len())]
}
