//! Facts about Python files that make MCP servers, as far as the files' text shows them.

use std::collections::BTreeMap;

use super::logical_lines::{LogicalLine, logical_lines};

/// Names of the decorators that declare entries (tools, resources and prompts).
const KINDS: [&str; 3] = ["tool", "resource", "prompt"];
/// Decorators of low-level servers of the official SDK 1.x, which later versions do not have.
const OLD_DECORATORS: [&str; 4] = ["list_tools", "call_tool", "list_resources", "list_prompts"];
/// Texts that show work which only the file's own server object does: the worker would serve the file without this work.
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

/// Packages whose imports show that a file makes a server or declares entries. Imports of other packages are not stored.
const PACKAGES: [&str; 3] = ["mcp", "fastmcp", "app"];
/// Maximum length of a stored module name, in bytes. No module of these packages has a longer name, and a file with many long
/// names would take much memory.
const MODULE_MAX: usize = 64;

/// SDK, with its version, that a file is written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sdk {
    /// Official SDK 1.x, with `mcp.server.fastmcp`.
    Official1,
    /// Official SDK from 2.0 on, with `mcp.server.mcpserver`.
    Official2,
    /// Low-level server of the official SDK 1.x.
    LowLevel1,
    /// Low-level server of the official SDK, of any version.
    LowLevel,
    /// FastMCP as the separate package `fastmcp`.
    FastMcp,
}

impl Sdk {
    /// Returns the requirement that installs the newest suitable version of the SDK.
    pub(super) fn requirement(self) -> &'static str {
        match self {
            Self::Official1 => "mcp[cli]<2",
            Self::Official2 => "mcp[cli]>=2",
            Self::LowLevel1 => "mcp<2",
            Self::LowLevel => "mcp",
            Self::FastMcp => "fastmcp",
        }
    }

    /// Returns the SDK that has this class; `None` if the class is not a server class.
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

/// Facts about a Python file, taken from its text.
#[derive(Debug)]
pub(super) struct PythonFile {
    pub(super) name: String,
    /// SDK of the server that the file makes; `None` if it makes none.
    pub(super) sdk: Option<Sdk>,
    /// True if a server is made at the top level; false if servers are made only in functions, or not at all.
    makes_at_top: bool,
    /// True if the file has an `if __name__ == "__main__":`; false if it has none.
    pub(super) has_main: bool,
    /// True if the file declares entries that the worker serves; false if it declares none.
    pub(super) declares: bool,
    /// True if the file decorates functions with methods of an object, as in `@mcp.tool`; false if it does not.
    decorates: bool,
    /// True if the server does something that the worker cannot do in its place; false if it does not.
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

    /// Returns true if the file makes a server at its top level, or makes a server and is a program; false if neither holds.
    pub(super) fn is_server(&self) -> bool {
        self.sdk.is_some() && (self.makes_at_top || self.has_main)
    }

    /// Returns true if the worker can serve the file in place of its server: FastMCP's decorators mark the functions, and the
    /// server does nothing else.
    pub(super) fn is_traced(&self) -> bool {
        self.sdk == Some(Sdk::FastMcp) && self.decorates && !self.has_own_work
    }
}

/// Names that a file imports. A name from a package that is not in [`PACKAGES`] is recorded with an empty module name.
#[derive(Debug, Default)]
struct Imports {
    /// Imported names, each with its module and its name in the module.
    names: BTreeMap<String, (String, String)>,
    /// Names that stand for modules, each with the full name of the module.
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
                let module = known(module.trim());
                for name in names.trim_matches(['(', ')', ' ']).split(',') {
                    let (name, alias) = alias(name);
                    let own = (module.to_owned(), name.to_owned());
                    imports.names.insert(alias.to_owned(), own);
                    let whole = match module {
                        "" => String::new(),
                        module => known(&format!("{module}.{name}")).to_owned(),
                    };
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
                    let module = known(module).to_owned();
                    imports.modules.insert(bound.to_owned(), module);
                }
            }
        }
        imports
    }

    /// Returns true if a decorator of this name declares an entry for the worker; false otherwise. The name must be one of
    /// [`KINDS`], imported from `fastmcp` or not imported.
    fn is_decorator(&self, name: &str) -> bool {
        match self.names.get(name) {
            Some((module, name)) => module.starts_with("fastmcp") && KINDS.contains(&&**name),
            None => KINDS.contains(&name),
        }
    }

    /// Returns the SDK of the server that a line makes, as in `mcp = FastMCP("x")`; `None` if the line makes none.
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

/// Returns the name of a module if it belongs to [`PACKAGES`]; an empty text for other modules.
fn known(module: &str) -> &str {
    let package = module.split('.').next().unwrap_or_default();
    match PACKAGES.contains(&package) && module.len() <= MODULE_MAX {
        true => module,
        false => "",
    }
}

/// Splits `name as alias`; without an alias, both are the name.
fn alias(text: &str) -> (&str, &str) {
    let text = text.trim();
    let (name, alias) = text.split_once(" as ").unwrap_or((text, text));
    (name.trim(), alias.trim())
}

/// Returns the dotted name at the beginning of a text.
fn path_at(text: &str) -> &str {
    let is_in_a_path = |sign: char| sign.is_alphanumeric() || matches!(sign, '_' | '.');
    let end = text.find(|sign| !is_in_a_path(sign));
    &text[..end.unwrap_or(text.len())]
}
