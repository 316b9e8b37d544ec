//! Removes optional members of results that a server wrote as `null`. No revision allows `null` there, and strict clients refuse
//! the complete result. `structuredContent` and `_meta` contain the tool's own data, so their contents are not changed.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use serde_json::value::RawValue;

use super::SERVER_INFO;
use crate::jsonrpc::spans::{self, MemberEdit};
use crate::version::Era;

/// Names of the optional members of results and of the objects in them.
const OPTIONAL: [&str; 17] = [
    "_meta",
    "annotations",
    "audience",
    "blob",
    "content",
    "description",
    "icons",
    "isError",
    "lastModified",
    "mimeType",
    "priority",
    "resultType",
    "size",
    "structuredContent",
    "text",
    "title",
    "websiteUrl",
];
/// Names of members whose value is an object, or a list of objects, with optional members.
const PARTS: [&str; 5] = ["annotations", "content", "contents", "messages", "resource"];
/// Names of the optional members of `serverInfo` and of its icons, and the key of `serverInfo` in `_meta`.
const INFO: [&str; 11] = [
    "name",
    "title",
    "version",
    "description",
    "icons",
    "websiteUrl",
    "src",
    "mimeType",
    "sizes",
    "theme",
    SERVER_INFO,
];
/// Maximum depth of the objects that are searched in a result. The deepest are the annotations of a resource that is embedded in
/// a prompt's message.
const DEPTH_MAX: usize = 5;

/// Search for the text `null`. Built once, since building it costs more than searching a typical result.
static NULL: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("null"));

/// Returns true if the text contains `null` anywhere. Most results do not.
fn may_hold_null(text: &[u8]) -> bool {
    NULL.find(text).is_some()
}

/// Returns true if a member with one of these names may have the value `null`. Only the bytes before each `null` are compared, so
/// results that contain `null` elsewhere need not be parsed. A name that is written with escapes is not found.
fn may_hold_null_of(text: &[u8], names: &[&str]) -> bool {
    let is_value_of_one = |at: usize| {
        let before = text.get(..at).unwrap_or_default().trim_ascii_end();
        let name = before.strip_suffix(b":").map(<[u8]>::trim_ascii_end);
        let Some(name) = name.and_then(|it| it.strip_suffix(b"\"")) else {
            return false;
        };
        let is_it = |it: &&str| {
            let quote = name.strip_suffix(it.as_bytes());
            quote.is_some_and(|it| it.ends_with(b"\""))
        };
        names.iter().any(is_it)
    };
    NULL.find_iter(text).any(is_value_of_one)
}

/// Removes optional members that are `null` from the result of a call, a prompt or a resource. Returns `None` if there are none.
/// The content of a call is required, so `null` becomes an empty list there. `era` is that of the server: in 2026-07-28,
/// `structuredContent` may be `null`.
pub fn of_result(method: &str, era: Era, result: &[u8]) -> Option<String> {
    let is_known = matches!(method, "tools/call" | "prompts/get" | "resources/read");
    if !is_known || !may_hold_null_of(result, &OPTIONAL) {
        return None;
    }
    let result = std::str::from_utf8(result).ok()?;
    let listed = (method == "tools/call" && spans::find(result, "content") == Some("null"))
        .then(|| spans::edit(result, &[MemberEdit::Set("content", "[]".into())]));
    part(listed.as_deref().unwrap_or(result), era, 0).or(listed)
}

fn part(object: &str, era: Era, depth: usize) -> Option<String> {
    let members = spans::members(object)?;
    let mut changes = Vec::new();
    for (key, value) in &members {
        let key: &str = key;
        let is_value = era == Era::Modern && key == "structuredContent";
        if *value == "null" && OPTIONAL.contains(&key) && !is_value {
            changes.push(MemberEdit::Remove(key));
        } else if depth < DEPTH_MAX && PARTS.contains(&key) && may_hold_null(value.as_bytes()) {
            let changed = match value.as_bytes().first() {
                Some(b'{') => part(value, era, depth + 1),
                Some(b'[') => list(value, era, depth + 1),
                _ => None,
            };
            changes.extend(changed.map(|it| MemberEdit::Set(key, it.into())));
        }
    }
    (!changes.is_empty()).then(|| spans::edit(object, &changes))
}

fn list(parts: &str, era: Era, depth: usize) -> Option<String> {
    each(parts, |it| part(it, era, depth))
}

/// Applies `change` to each element of a list. Returns `None` if no element changes.
fn each(parts: &str, change: impl Fn(&str) -> Option<String>) -> Option<String> {
    let all: Vec<&RawValue> = serde_json::from_str(parts).ok()?;
    let changed: Vec<_> = all.iter().map(|it| change(it.get())).collect();
    if changed.iter().all(Option::is_none) {
        return None;
    }
    let each = all.iter().zip(&changed);
    let each: Vec<&str> = each
        .map(|(before, after)| after.as_deref().unwrap_or(before.get()))
        .collect();
    Some(format!("[{}]", each.join(",")))
}

/// Removes members that are `null` from the server's capabilities and `serverInfo` in the result of `initialize` or
/// `server/discover`, at the top level and one level below. Returns `None` if there are none.
pub fn of_opening(result: &str) -> Option<String> {
    if !may_hold_null(result.as_bytes()) {
        return None;
    }
    let named = of_meta(result.as_bytes());
    let said = named.as_deref().unwrap_or(result);
    let is_described = |key: &str| matches!(key, "capabilities" | "serverInfo");
    without(said, is_described, described).or(named)
}

/// Removes members that are `null` from a server's `serverInfo`. Returns `None` if there are none.
pub fn of_info(info: &str) -> Option<String> {
    may_hold_null(info.as_bytes())
        .then(|| described(info))
        .flatten()
}

/// Removes members that are `null` from the `serverInfo` in the `_meta` of a modern server's result. Returns `None` if there are
/// none.
pub fn of_meta(result: &[u8]) -> Option<String> {
    if !may_hold_null_of(result, &INFO) {
        return None;
    }
    let result = std::str::from_utf8(result).ok()?;
    let meta = spans::find(result, "_meta")?;
    let change = match spans::find(meta, SERVER_INFO)? {
        "null" => MemberEdit::Remove(SERVER_INFO),
        info => MemberEdit::Set(SERVER_INFO, of_info(info)?.into()),
    };
    let meta = spans::edit(meta, &[change]);
    Some(spans::edit(
        result,
        &[MemberEdit::Set("_meta", meta.into())],
    ))
}

/// Removes members that are `null` from capabilities or a `serverInfo`, at the top level and one level below.
fn described(part: &str) -> Option<String> {
    let cleaned = |it: &str| without(it, |_| false, |_| None);
    without(
        part,
        |_| true,
        |inner| match inner.as_bytes().first() {
            Some(b'[') => each(inner, cleaned),
            _ => cleaned(inner),
        },
    )
}

/// Removes members that are `null` from an object, and applies `change` to the members whose key satisfies `inside`. Returns
/// `None` if nothing changes.
fn without(
    object: &str,
    inside: impl Fn(&str) -> bool,
    change: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    let members = spans::members(object)?;
    let mut changes = Vec::new();
    for (key, value) in &members {
        if *value == "null" {
            changes.push(MemberEdit::Remove(key));
        } else if inside(key) {
            changes.extend(change(value).map(|it| MemberEdit::Set(key, it.into())));
        }
    }
    (!changes.is_empty()).then(|| spans::edit(object, &changes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optional_members_that_are_null_are_left_out_of_results() {
        for (method, odd, expected) in [
            (
                "tools/call",
                r#"{"content":[{"type":"text","text":"a","annotations":null,"_meta":null},{"type":"text","text":"b","annotations":{"audience":null,"priority":1.50}}],"structuredContent":null,"isError":null,"_meta":null}"#,
                r#"{"content":[{"type":"text","text":"a"},{"type":"text","text":"b","annotations":{"priority":1.50}}]}"#,
            ),
            (
                "tools/call",
                r#"{"content":null,"x":1.50}"#,
                r#"{"content":[],"x":1.50}"#,
            ),
            (
                "tools/call",
                r#"{"isError":null,"content":null}"#,
                r#"{"content":[]}"#,
            ),
            (
                "prompts/get",
                r#"{"description":null,"messages":[{"role":"user","content":{"type":"resource","resource":{"uri":"a://b","text":"x","mimeType":null}}}]}"#,
                r#"{"messages":[{"role":"user","content":{"type":"resource","resource":{"uri":"a://b","text":"x"}}}]}"#,
            ),
            (
                "resources/read",
                r#"{"contents":[{"uri":"a://b","mimeType":null,"text":"null","blob":null}]}"#,
                r#"{"contents":[{"uri":"a://b","text":"null"}]}"#,
            ),
        ] {
            let found = of_result(method, Era::Legacy, odd.as_bytes());
            assert_eq!(found.as_deref(), Some(expected), "{odd}");
        }
        for right in [
            r#"{"content":[{"type":"text","text":"null"}],"structuredContent":{"text":null,"content":[{"_meta":null}]},"_meta":{"a":null},"x":null}"#,
            r#"{"content":[],"content":null}"#,
            "null",
        ] {
            assert_eq!(
                of_result("tools/call", Era::Legacy, right.as_bytes()),
                None,
                "{right}"
            );
        }
        let null = br#"{"content":[],"structuredContent":null}"#;
        assert_eq!(of_result("tools/call", Era::Modern, null), None);
        assert_eq!(of_result("x/own", Era::Legacy, br#"{"_meta":null}"#), None);
    }

    #[test]
    fn only_a_null_behind_the_name_of_an_optional_member_is_worth_a_look() {
        let may = |text: &str| may_hold_null_of(text.as_bytes(), &OPTIONAL);
        for text in [
            r#"{"text":null}"#,
            "{\"text\" :\n\tnull}",
            r#"{"a":null,"b":{"_meta":null}}"#,
        ] {
            assert!(may(text), "{text}");
        }
        for text in [
            r#"{"a":null}"#,
            r#"{"context":null}"#,
            r#"{"content":[{"text":"{\"text\":null}"}]}"#,
            r#"{"text":[null]}"#,
            r#"{"text":"null"}"#,
            "null",
            ":null",
            "\":null",
        ] {
            assert!(!may(text), "{text}");
        }
    }

    #[test]
    fn a_server_says_of_itself_what_has_a_value() {
        let odd = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":null,"x":1.50},"prompts":null},"serverInfo":{"name":"s","title":null},"instructions":null}"#;
        let plain = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{"x":1.50}},"serverInfo":{"name":"s"}}"#;
        assert_eq!(of_opening(odd).as_deref(), Some(plain));
        assert_eq!(of_opening(plain), None);
        let odd = r#"{"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s","icons":null},"a/b":null},"instructions":null}"#;
        let plain = r#"{"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s"},"a/b":null}}"#;
        assert_eq!(of_opening(odd).as_deref(), Some(plain));
        assert_eq!(of_opening(plain), None);
    }

    #[test]
    fn many_capabilities_are_looked_at_each() {
        let all = |null: &str| {
            let each = (0..2_000).map(|at| format!(r#""x/{at}":{{"a":{at}{null}}}"#));
            format!("{{{}}}", each.collect::<Vec<_>>().join(","))
        };
        assert_eq!(described(&all(r#","b":null"#)), Some(all("")));
        assert_eq!(described(&all("")), None);
    }

    #[test]
    fn a_result_names_its_server_by_what_has_a_value() {
        let odd = r#"{"content":[],"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s","title":null,"icons":[{"src":"a:b","sizes":null},{"src":"c:d"}]},"a/b":null}}"#;
        let plain = r#"{"content":[],"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s","icons":[{"src":"a:b"},{"src":"c:d"}]},"a/b":null}}"#;
        assert_eq!(of_meta(odd.as_bytes()).as_deref(), Some(plain));
        assert_eq!(of_meta(plain.as_bytes()), None);
        let none = r#"{"_meta":{"io.modelcontextprotocol/serverInfo":null}}"#;
        assert_eq!(of_meta(none.as_bytes()).as_deref(), Some(r#"{"_meta":{}}"#));
        assert_eq!(of_info(r#"{"name":"null"}"#), None);
    }
}
