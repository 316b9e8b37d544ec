//! Parses a client's file into a tree. The format is JSON with comments, TOML or YAML, and is recognized by the content.

use jsonc_parser::ast;
use toml_edit::{Document, Item, TableLike};
use tooldock_base::yaml;

use crate::Unreadable;
use crate::tree::{Lines, Member, Node, Value};

/// Reads a text in the first matching format: JSON if it begins with a brace, else TOML, else YAML.
pub(crate) fn read(text: &str) -> Result<Node, Unreadable> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if begins_as_json(text) {
        return json(text);
    }
    match toml(text) {
        Ok(tree) => Ok(tree),
        Err(error) => match yaml(text) {
            Ok(tree) if tree.is_map() => Ok(tree),
            // Headings in brackets show that the file is TOML, so the error of the TOML parser is the useful one.
            _ if text.lines().any(|line| line.starts_with('[')) => Err(error),
            Err(error) => Err(error),
            Ok(_) => Err(Unreadable::new(
                1,
                "neither JSON, TOML nor YAML with servers in it",
            )),
        },
    }
}

/// Returns true if the first character outside of comments opens an object.
fn begins_as_json(text: &str) -> bool {
    let mut rest = text.trim_start();
    loop {
        if let Some(comment) = rest.strip_prefix("//") {
            rest = comment.split_once('\n').map_or("", |(_, after)| after);
        } else if let Some(comment) = rest.strip_prefix("/*") {
            rest = comment.split_once("*/").map_or("", |(_, after)| after);
        } else {
            return rest.starts_with('{');
        }
        rest = rest.trim_start();
    }
}

fn json(text: &str) -> Result<Node, Unreadable> {
    let parsed = jsonc_parser::parse_to_ast(text, &Default::default(), &Default::default());
    // The parser's message quotes no value of the file, so it may be shown.
    let parsed = parsed.map_err(|error| {
        Unreadable::new(error.line_display(), format!("JSON: {}", error.kind()))
    })?;
    let lines = Lines::of(text);
    match parsed.value {
        Some(value) => Ok(json_node(&lines, value)),
        None => Err(Unreadable::new(1, "the file is empty")),
    }
}

fn json_node(lines: &Lines, value: ast::Value<'_>) -> Node {
    use jsonc_parser::common::Ranged as _;
    let line = lines.at(value.range().start);
    let value = match value {
        ast::Value::NullKeyword(_) => Value::Null,
        ast::Value::BooleanLit(value) => Value::Bool(value.value),
        ast::Value::NumberLit(number) => Value::Number(number.value.to_owned()),
        ast::Value::StringLit(text) => Value::Text(text.value.into_owned()),
        ast::Value::Array(array) => {
            let items = array.elements.into_iter();
            Value::List(items.map(|it| json_node(lines, it)).collect())
        }
        ast::Value::Object(object) => {
            let members = object.properties.into_iter().map(|it| Member {
                line: lines.at(it.range.start),
                key: it.name.into_string(),
                node: json_node(lines, it.value),
            });
            Value::Map(members.collect())
        }
    };
    Node { line, value }
}

fn toml(text: &str) -> Result<Node, Unreadable> {
    let lines = Lines::of(text);
    let parsed = Document::parse(text).map_err(|error| {
        let line = error.span().map_or(1, |it| lines.at(it.start));
        // Only the message is shown: the complete error would quote the line, which may contain a secret.
        Unreadable::new(line, format!("TOML: {}", error.message()))
    })?;
    Ok(Node {
        line: 1,
        value: table(&lines, parsed.as_table(), 1),
    })
}

fn table(lines: &Lines, table: &dyn TableLike, above: usize) -> Value {
    let members = table.iter().map(|(key, item)| {
        let span = table.key(key).and_then(toml_edit::Key::span);
        let line = span.or_else(|| item.span());
        let line = line.map_or(above, |it| lines.at(it.start));
        Member {
            key: key.to_owned(),
            line,
            node: item_node(lines, item, line),
        }
    });
    Value::Map(members.collect())
}

fn item_node(lines: &Lines, item: &Item, above: usize) -> Node {
    let line = item.span().map_or(above, |it| lines.at(it.start));
    let value = match item {
        Item::None => Value::Null,
        Item::Value(value) => return value_node(lines, value, above),
        Item::Table(it) => table(lines, it, line),
        Item::ArrayOfTables(all) => {
            let items = all.iter().map(|it| Node {
                line: it.span().map_or(line, |span| lines.at(span.start)),
                value: table(lines, it, line),
            });
            Value::List(items.collect())
        }
    };
    Node { line, value }
}

fn value_node(lines: &Lines, value: &toml_edit::Value, above: usize) -> Node {
    let line = value.span().map_or(above, |it| lines.at(it.start));
    let value = match value {
        toml_edit::Value::String(text) => Value::Text(text.value().clone()),
        toml_edit::Value::Integer(number) => Value::Number(number.value().to_string()),
        toml_edit::Value::Float(number) => Value::Number(number.value().to_string()),
        toml_edit::Value::Boolean(value) => Value::Bool(*value.value()),
        toml_edit::Value::Datetime(time) => Value::Text(time.value().to_string()),
        toml_edit::Value::Array(all) => {
            Value::List(all.iter().map(|it| value_node(lines, it, line)).collect())
        }
        toml_edit::Value::InlineTable(it) => table(lines, it, line),
    };
    Node { line, value }
}

fn yaml(text: &str) -> Result<Node, Unreadable> {
    if !yaml::readable_in_time(text.as_bytes()) {
        return Err(Unreadable::new(1, yaml::UNREADABLE));
    }
    let tree: yaml::Value = yaml::from_str(text).map_err(|error| {
        let line = error.location().map_or(1, |it| it.line());
        Unreadable::new(
            line,
            "not valid YAML, or its aliases stand for too many values",
        )
    })?;
    Ok(YamlLines::of(text).node(tree))
}

/// Finder for the line numbers of keys in YAML. The parser provides none, so each key is searched after the previous key.
struct YamlLines<'a> {
    lines: Vec<&'a str>,
    /// Index of the line in which the previous key was found.
    at: usize,
}

impl<'a> YamlLines<'a> {
    fn of(text: &'a str) -> Self {
        Self {
            lines: text.lines().collect(),
            at: 0,
        }
    }

    fn node(&mut self, tree: yaml::Value) -> Node {
        let line = self.at + 1;
        let value = match tree {
            yaml::Value::Null => Value::Null,
            yaml::Value::Bool(value) => Value::Bool(value),
            yaml::Value::Number(number) => Value::Number(number.to_string()),
            yaml::Value::String(text) => Value::Text(text),
            yaml::Value::Sequence(all) => {
                Value::List(all.into_iter().map(|it| self.node(it)).collect())
            }
            yaml::Value::Mapping(keys) => {
                let members = keys.into_iter().map(|(key, it)| {
                    let key = match key {
                        yaml::Value::String(key) => key,
                        other => yaml::to_string(&other)
                            .unwrap_or_default()
                            .trim()
                            .to_owned(),
                    };
                    let line = self.find(&key);
                    Member {
                        key,
                        line,
                        node: self.node(it),
                    }
                });
                Value::Map(members.collect())
            }
            yaml::Value::Tagged(tagged) => return self.node(tagged.value),
        };
        Node { line, value }
    }

    fn find(&mut self, key: &str) -> usize {
        let is_here = |line: &str| {
            let line = line.trim_start().trim_start_matches("- ").trim_start();
            let line = line.trim_start_matches(['"', '\'']);
            let rest = line.strip_prefix(key);
            rest.is_some_and(|rest| rest.trim_start_matches(['"', '\'']).starts_with(':'))
        };
        let behind = self.lines[self.at.min(self.lines.len())..].iter();
        if let Some(further) = behind.into_iter().position(|line| is_here(line)) {
            self.at += further;
        }
        self.at + 1
    }
}
