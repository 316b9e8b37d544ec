//! The difference of two definitions, value by value, as text in which invisible characters are shown as escapes.

use std::fmt::Write as _;

use serde::Serialize;

use super::definition::Node;
use super::findings::is_hidden;

/// Maximum number of differences that are listed.
const DIFFERENCES_MAX: usize = 50;
/// Maximum length of a value in a difference, in characters.
const VALUE_MAX: usize = 2_000;

/// A value that differs between an approved and a new definition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Keys on the path from the definition to the value, such as `inputSchema.properties.path.description`.
    pub path: String,
    /// The approved value as JSON, with invisible characters as `\u{…}`; `None` if the approved definition has no such value.
    pub before: Option<String>,
    /// The new value as JSON, with invisible characters as `\u{…}`; `None` if the new definition has no such value.
    pub after: Option<String>,
}

/// Returns the differences between two canonical definitions, at most [`DIFFERENCES_MAX`].
pub(super) fn between(before: &str, after: &str) -> Vec<Difference> {
    let mut found = Vec::new();
    match (Node::read(before), Node::read(after)) {
        (Some(before), Some(after)) => compare(&before, &after, "", &mut found),
        _ if before != after => found.push(Difference {
            path: String::new(),
            before: Some(shown(before)),
            after: Some(shown(after)),
        }),
        _ => {}
    }
    found
}

fn compare(before: &Node, after: &Node, path: &str, found: &mut Vec<Difference>) {
    if before == after || found.len() >= DIFFERENCES_MAX {
        return;
    }
    match (before, after) {
        (Node::Object(old), Node::Object(new)) if is_plain(old) && is_plain(new) => {
            let mut keys: Vec<_> = old.iter().chain(new).map(|(key, _)| key).collect();
            keys.sort();
            keys.dedup();
            for key in keys {
                let at = match path.is_empty() {
                    true => shown(key),
                    false => format!("{path}.{}", shown(key)),
                };
                either(before.get(key), after.get(key), &at, found);
            }
        }
        (Node::List(old), Node::List(new)) => {
            for at in 0..old.len().max(new.len()) {
                either(old.get(at), new.get(at), &format!("{path}[{at}]"), found);
            }
        }
        _ => push(Some(before), Some(after), path, found),
    }
}

/// Returns true if no key of an object occurs twice.
fn is_plain(members: &[(String, Node)]) -> bool {
    members.windows(2).all(|pair| pair[0].0 != pair[1].0)
}

fn either(before: Option<&Node>, after: Option<&Node>, path: &str, found: &mut Vec<Difference>) {
    match (before, after) {
        (Some(before), Some(after)) => compare(before, after, path, found),
        (before, after) => push(before, after, path, found),
    }
}

fn push(before: Option<&Node>, after: Option<&Node>, path: &str, found: &mut Vec<Difference>) {
    if found.len() < DIFFERENCES_MAX {
        let value = |node: &Node| shown(&node.to_json());
        found.push(Difference {
            path: path.to_owned(),
            before: before.map(value),
            after: after.map(value),
        });
    }
}

/// Returns a text of a server with invisible and reordering characters as escapes, shortened, so that people can read it.
pub(super) fn shown(text: &str) -> String {
    let mut out = String::new();
    for (at, character) in text.chars().enumerate() {
        if at >= VALUE_MAX {
            let _ = write!(out, "… ({} characters)", text.chars().count());
            break;
        }
        match character {
            '\n' | '\t' => out.push(character),
            // Writing to a `String` cannot fail.
            hidden if is_hidden(hidden) => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(hidden));
            }
            plain => out.push(plain),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(before: &str, after: &str) -> Vec<(String, Option<String>, Option<String>)> {
        let all = between(before, after).into_iter();
        all.map(|it| (it.path, it.before, it.after)).collect()
    }

    #[test]
    fn each_value_that_differs_is_named_with_its_place() {
        let before = r#"{"name":"a","description":"reads","inputSchema":{"properties":{"x":{"type":"string"}},"required":["x"]}}"#;
        let after = r#"{"name":"a","description":"sends","inputSchema":{"properties":{"x":{"type":"string"},"y":{}},"required":["x","y"]}}"#;
        let text = |it: &str| Some(it.to_owned());
        assert_eq!(
            found(before, after),
            [
                (
                    "description".to_owned(),
                    text("\"reads\""),
                    text("\"sends\"")
                ),
                ("inputSchema.properties.y".to_owned(), None, text("{}")),
                ("inputSchema.required[1]".to_owned(), None, text("\"y\"")),
            ]
        );
        assert_eq!(found(before, before), []);
    }

    #[test]
    fn hidden_characters_are_shown_by_their_numbers() {
        let after = "{\"description\":\"a\u{200b}b\u{e0041}\"}";
        let all = between(r#"{"description":"ab"}"#, after);
        assert_eq!(all[0].after.as_deref(), Some("\"a\\u{200b}b\\u{e0041}\""));
    }

    #[test]
    fn differences_and_their_values_are_bounded() {
        let many: Vec<_> = (0..500).map(|at| format!("\"k{at}\":{at}")).collect();
        let many = format!("{{{}}}", many.join(","));
        assert_eq!(between("{}", &many).len(), DIFFERENCES_MAX);
        let long = format!("{{\"d\":\"{}\"}}", "é".repeat(100_000));
        let all = between("{}", &long);
        let after = all[0].after.as_deref().expect("a value");
        assert!(after.chars().count() < VALUE_MAX + 50, "{after}");
    }

    #[test]
    fn an_object_with_a_repeated_key_is_compared_as_a_whole() {
        let all = found(r#"{"a":{"b":1}}"#, r#"{"a":{"b":1,"b":2}}"#);
        let text = |it: &str| Some(it.to_owned());
        assert_eq!(
            all,
            [("a".to_owned(), text(r#"{"b":1}"#), text(r#"{"b":1,"b":2}"#))]
        );
    }
}
