//! The keys under which MCP clients store their servers in their files.
//!
//! The format of a file is recognized by its keys, not by the file's name. A file may have several of these keys, for example one
//! for each project in `~/.claude.json`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::finding::{Finding, Weight, shown};
use crate::tree::{Member, Node, Value};
use crate::{ClientFile, Unreadable};

/// Keys of a file whose value is a map of servers, or a list of servers with names.
const CONTAINERS: [&str; 7] = [
    // Used by Claude, Cursor, Windsurf, Gemini CLI, LM Studio, Cline, Continue and most other clients.
    "mcpServers",
    // Used in `.vscode/mcp.json`.
    "servers",
    // Used by Codex.
    "mcp_servers",
    // Used by Zed.
    "context_servers",
    // Used by Goose.
    "extensions",
    // Used in the settings of VS Code and of Amp.
    "mcp.servers",
    "amp.mcpServers",
];

/// An entry for a server in a client's file.
pub(crate) struct FileEntry<'a> {
    pub(crate) label: String,
    pub(crate) line: usize,
    pub(crate) node: &'a Node,
    /// Folder to which the entry's relative paths refer.
    pub(crate) base: PathBuf,
    /// True if a key outside the entry switches the server off.
    pub(crate) disabled: bool,
}

/// Descriptions of the inputs that the client requests from its user, by the ids that the file gives them.
pub(crate) type Inputs = BTreeMap<String, String>;

/// All entries for servers in a client's file.
pub(crate) struct FileEntries<'a> {
    pub(crate) entries: Vec<FileEntry<'a>>,
    pub(crate) inputs: Inputs,
    pub(crate) findings: Vec<Finding>,
}

/// Finds the entries for servers in a client's file.
pub(crate) fn find<'a>(
    tree: &'a Node,
    file: &ClientFile<'_>,
) -> Result<FileEntries<'a>, Unreadable> {
    let mut found = FileEntries {
        entries: Vec::new(),
        inputs: Inputs::new(),
        findings: Vec::new(),
    };
    let base = base(file.folder);
    let mut any = found.containers(tree, &base);
    if let Some(mcp) = tree.get("mcp").filter(|it| it.is_map()) {
        // Settings of VS Code with a container of servers under `mcp`, or a file of OpenCode with the servers directly under
        // `mcp`.
        any |= found.containers(mcp, &base);
        if !any && mcp.members().iter().any(|it| is_server(&it.node)) {
            found.entries_of(mcp, &base, &BTreeSet::new());
            any = true;
        }
    }
    if let Some(projects) = tree.get("projects").filter(|it| it.is_map()) {
        for project in projects.members() {
            any |= found.containers(&project.node, Path::new(&project.key));
        }
    }
    if !any && tree.members().iter().any(|it| is_server(&it.node)) {
        // The top level of the file contains the servers directly, as in files of plugins.
        found.entries_of(tree, &base, &BTreeSet::new());
        any = true;
    }
    match any {
        true => Ok(found),
        false => Err(Unreadable::new(
            1,
            "no servers in it: looked for mcpServers, servers, mcp.servers, mcp_servers, context_servers, extensions and projects",
        )),
    }
}

/// The folder to which relative paths in a file refer: for a file in `.vscode`, `.cursor` or a similar folder, the parent folder.
fn base(folder: &Path) -> PathBuf {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    match (name.starts_with('.'), folder.parent()) {
        (true, Some(parent)) => parent.to_owned(),
        _ => folder.to_owned(),
    }
}

/// Returns true if a value has a key that only servers have, such as a command or a URL.
fn is_server(node: &Node) -> bool {
    ["command", "cmd", "url", "httpUrl", "serverUrl", "uri"]
        .iter()
        .any(|key| node.get(key).is_some())
}

impl<'a> FileEntries<'a> {
    /// Reads the maps of servers among the keys of a map. Returns true if there is such a map, even an empty one.
    fn containers(&mut self, node: &'a Node, base: &Path) -> bool {
        self.read_inputs(node);
        let disabled = ["disabledMcpServers", "disabledMcpjsonServers"];
        let disabled = disabled.iter().filter_map(|key| node.get(key)?.scalars());
        let disabled: BTreeSet<String> = disabled.flatten().map(|(name, _)| name).collect();
        let mut any = false;
        for member in node.members() {
            let is_container = CONTAINERS.contains(&member.key.as_str());
            // Other programs use keys with these names for other purposes. So the value must contain a server.
            let is_common = matches!(member.key.as_str(), "servers" | "extensions");
            let is_empty = is_common && !members(&member.node).any(|(_, _, it)| is_server(it));
            if !is_container || is_empty {
                continue;
            }
            any = true;
            self.entries_of(&member.node, base, &disabled);
        }
        any
    }

    fn entries_of(&mut self, node: &'a Node, base: &Path, disabled: &BTreeSet<String>) {
        if !matches!(node.value, Value::Map(_) | Value::List(_) | Value::Null) {
            self.findings.push(Finding {
                line: node.line,
                key: "servers".to_owned(),
                weight: Weight::Lost,
                why: "must be a map of names to servers".to_owned(),
            });
        }
        let mut seen = BTreeMap::new();
        for (label, line, node) in members(node) {
            let disabled = disabled.contains(&label);
            let entry = FileEntry {
                label: label.clone(),
                line,
                node,
                base: base.to_owned(),
                disabled,
            };
            // If a name occurs twice, the last entry counts, as in the clients that read these files.
            if let Some(before) = seen.insert(label.clone(), self.entries.len()) {
                let before: usize = before;
                self.findings.push(Finding {
                    line: self.entries[before].line,
                    key: shown(&label),
                    weight: Weight::Lost,
                    why: format!("stands again in line {line}, which counts; give one of the two another name"),
                });
                self.entries[before] = entry;
                seen.insert(label, before);
                continue;
            }
            self.entries.push(entry);
        }
    }

    fn read_inputs(&mut self, node: &Node) {
        let Some(Value::List(inputs)) = node.get("inputs").map(|it| &it.value) else {
            return;
        };
        for input in inputs {
            if let Some(id) = input.get("id").and_then(Node::text) {
                let description = input.get("description").and_then(Node::text);
                let description = description.map(shown).unwrap_or_default();
                self.inputs.insert(id.to_owned(), description);
            }
        }
    }
}

/// The servers of a map, or of a list whose items have names.
fn members(node: &Node) -> impl Iterator<Item = (String, usize, &Node)> {
    let map = node.members().iter();
    let map = map.map(|Member { key, line, node }| (key.clone(), *line, node));
    let list = match &node.value {
        Value::List(items) => items.as_slice(),
        _ => &[],
    };
    let list = list.iter().map(|item| {
        let name = item.get("name").and_then(Node::scalar);
        (name.unwrap_or_default(), item.line, item)
    });
    map.chain(list)
}
