//! Iteration over syntax trees without recursion, and helpers that the analysis of each language uses.

use tree_sitter::{Node, TreeCursor};

use super::{SourceFacts, names};

/// Maximum depth of a syntax tree; deeper nodes are not read. Hand-written code is much less deep.
const DEPTH_MAX: usize = 500;

/// A parsed source file.
#[derive(Clone, Copy)]
pub(super) struct File<'t> {
    pub(super) path: &'t str,
    pub(super) text: &'t str,
    pub(super) root: Node<'t>,
}

impl<'t> File<'t> {
    pub(super) fn text(&self, node: Node<'_>) -> &'t str {
        self.text.get(node.byte_range()).unwrap_or_default()
    }

    /// The text of a named field of a syntax node.
    pub(super) fn field(&self, node: Node<'t>, field: &str) -> Option<&'t str> {
        Some(self.text(node.child_by_field_name(field)?))
    }

    /// All syntax nodes of the file; each node precedes its descendants.
    pub(super) fn nodes(&self) -> Nodes<'t> {
        below(self.root)
    }

    /// Adds the hosts of the URLs in a string literal to the facts.
    pub(super) fn look_for_hosts(&self, node: Node<'_>, facts: &mut SourceFacts) {
        facts.hosts.extend(names::hosts(self.text(node)));
    }

    /// Adds to the facts an environment variable that the file reads, if the variable's name looks like that of a credential.
    pub(super) fn look_at_variable(name: &str, facts: &mut SourceFacts) {
        if names::is_credential(name) {
            facts.secrets.insert(name.to_owned());
        }
    }
}

/// A syntax node and all its descendants; each node precedes its own descendants.
pub(super) fn below(node: Node<'_>) -> Nodes<'_> {
    Nodes {
        cursor: Some(node.walk()),
        depth: 0,
    }
}

/// The named children of a syntax node, without comments.
pub(super) fn children(node: Node<'_>) -> Vec<Node<'_>> {
    let mut cursor = node.walk();
    node.named_children(&mut cursor)
        .filter(|it| !it.is_extra())
        .collect()
}

pub(super) struct Nodes<'t> {
    cursor: Option<TreeCursor<'t>>,
    depth: usize,
}

impl<'t> Iterator for Nodes<'t> {
    type Item = Node<'t>;

    fn next(&mut self) -> Option<Node<'t>> {
        let cursor = self.cursor.as_mut()?;
        let node = cursor.node();
        if self.depth < DEPTH_MAX && cursor.goto_first_child() {
            self.depth += 1;
            return Some(node);
        }
        loop {
            if self.depth == 0 {
                self.cursor = None;
                break;
            }
            if cursor.goto_next_sibling() {
                break;
            }
            if !cursor.goto_parent() {
                self.cursor = None;
                break;
            }
            self.depth -= 1;
        }
        Some(node)
    }
}

/// The last name of a path such as `mcp.server.tool`.
pub(super) fn last_name(path: &str) -> &str {
    path.rsplit(['.', ':']).next().unwrap_or(path).trim()
}

/// Returns true if a text can be the name of a tool.
pub(super) fn is_tool_name(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && text
            .chars()
            .all(|it| it.is_ascii_alphanumeric() || "_-./".contains(it))
}

/// Resolves the escape sequences of a string literal, as far as all analysed languages define them equally.
pub(super) fn unescape(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        if c != '\\' {
            result.push(c);
            continue;
        }
        match rest.next() {
            Some('n') => result.push('\n'),
            Some('t') => result.push('\t'),
            Some('r' | '\n') | None => {}
            Some(other) => result.push(other),
        }
    }
    result
}

/// Removes the indentation that all lines of a documentation text share.
pub(super) fn dedent(text: &str) -> String {
    let lines: Vec<&str> = text.trim().lines().collect();
    let indent = lines.iter().skip(1).filter(|it| !it.trim().is_empty());
    let indent = indent
        .map(|it| it.len() - it.trim_start().len())
        .min()
        .unwrap_or(0);
    let clean = lines.iter().enumerate().map(|(index, line)| match index {
        0 => line.trim_end(),
        _ => line.get(indent..).unwrap_or_default().trim_end(),
    });
    clean.collect::<Vec<_>>().join("\n")
}
