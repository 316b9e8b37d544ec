//! Corrects results of calls, prompts, resources and completions whose members have a form that no revision allows. Strict
//! clients refuse such a result completely, although its tool has run.
//!
//! A result is parsed only if its bytes contain a suspicious text. `structuredContent` and `_meta` contain the tool's own data,
//! so their contents are not changed.

use std::borrow::Cow;
use std::sync::LazyLock;

use memchr::memmem::Finder;
use serde_json::value::RawValue;

use crate::jsonrpc::spans::{self, MemberEdit};
use crate::version::Era;

/// Search for a fixed text in results. Built once, since building it costs more than searching a typical result.
type Word = LazyLock<Finder<'static>>;

static NULL: Word = LazyLock::new(|| Finder::new("null"));
static META: Word = LazyLock::new(|| Finder::new("\"_meta\""));
static ANNOTATIONS: Word = LazyLock::new(|| Finder::new("\"annotations\""));
static CONTENT: Word = LazyLock::new(|| Finder::new("\"content\""));
static CONTENTS: Word = LazyLock::new(|| Finder::new("\"contents\""));
static MESSAGES: Word = LazyLock::new(|| Finder::new("\"messages\""));
static VALUES: Word = LazyLock::new(|| Finder::new("\"values\""));
static TOTAL: Word = LazyLock::new(|| Finder::new("\"total\""));
static HAS_MORE: Word = LazyLock::new(|| Finder::new("\"hasMore\""));
static STRUCTURED: Word = LazyLock::new(|| Finder::new("\"structuredContent\""));
static IS_ERROR: Word = LazyLock::new(|| Finder::new("\"isError\""));
static TEXT: Word = LazyLock::new(|| Finder::new("\"text\""));
static IMAGE: Word = LazyLock::new(|| Finder::new("\"image\""));
static AUDIO: Word = LazyLock::new(|| Finder::new("\"audio\""));
static MIME_TYPE: Word = LazyLock::new(|| Finder::new("\"mimeType\""));
/// Byte sequences that occur if a list contains a string: at the list's end, or before an object in the list.
static TEXTS_IN_LISTS: LazyLock<[Finder<'static>; 3]> =
    LazyLock::new(|| ["\"]", "\",{", "\", {"].map(Finder::new));

/// Corrects the members of a result as its method requires. Returns `None` if nothing changes. `era` is that of the server: in
/// 2026-07-28, `structuredContent` may be any value.
pub fn of_result(method: &str, era: Era, result: &[u8]) -> Option<String> {
    let mend: fn(&str, Era) -> Option<String> = match method {
        "tools/call" if !is_usual_call(result) && is_odd_call(result) => call,
        "resources/read" if is_odd_list(result, &CONTENTS) => contents,
        "prompts/get" if is_odd_prompt(result) => messages,
        "completion/complete" if is_odd_completion(result) => completion,
        _ => return None,
    };
    mend(std::str::from_utf8(result).ok()?, era)
}

/// Returns true if the result of a call has the typical form, which needs no change: text blocks, then members with values of
/// their type. The contents of strings are skipped, so that checking a long result costs only one search.
fn is_usual_call(result: &[u8]) -> bool {
    let mut rest = JsonTokens(result);
    usual_call(&mut rest).is_some() && rest.0.trim_ascii_start().is_empty()
}

fn usual_call(rest: &mut JsonTokens<'_>) -> Option<()> {
    rest.skip(b"{")?;
    rest.name(b"\"content\"")?;
    rest.skip(b"[")?;
    if rest.skip(b"]").is_none() {
        loop {
            rest.skip(b"{")?;
            rest.name(b"\"type\"")?;
            rest.skip(b"\"text\"")?;
            rest.skip(b",")?;
            rest.name(b"\"text\"")?;
            rest.skip_text()?;
            rest.skip(b"}")?;
            if rest.skip(b",").is_none() {
                break;
            }
        }
        rest.skip(b"]")?;
    }
    while rest.skip(b",").is_some() {
        if rest.name(b"\"isError\"").is_some() {
            rest.skip(b"false").or_else(|| rest.skip(b"true"))?;
        } else if rest.name(b"\"structuredContent\"").is_some() || rest.name(b"\"_meta\"").is_some()
        {
            rest.skip_nested(b"{")?;
        } else if rest.name(b"\"content\"").is_some() {
            return None;
        } else {
            rest.skip_text()?;
            rest.skip(b":")?;
            rest.skip_value()?;
        }
    }
    rest.skip(b"}")
}

/// Scanner for JSON text. Contains the text that has not been read yet. Each method returns `None` if the text does not match.
struct JsonTokens<'a>(&'a [u8]);

impl JsonTokens<'_> {
    /// Skips white space and then the bytes `token`.
    fn skip(&mut self, token: &[u8]) -> Option<()> {
        self.0 = self.0.trim_ascii_start().strip_prefix(token)?;
        Some(())
    }

    /// Skips the name of a member and the colon after it.
    fn name(&mut self, name: &[u8]) -> Option<()> {
        self.skip(name)?;
        self.skip(b":")
    }

    /// Skips a JSON string. Searches for quotes, not for backslashes: strings contain many escapes, but few escaped quotes.
    fn skip_text(&mut self) -> Option<()> {
        self.skip(b"\"")?;
        let mut end = 0;
        loop {
            end += memchr::memchr(b'"', self.0.get(end..)?)?;
            let before = self.0.get(..end)?;
            let escapes = before.iter().rev().take_while(|it| **it == b'\\').count();
            if escapes.is_multiple_of(2) {
                self.0 = self.0.get(end + 1..)?;
                return Some(());
            }
            end += 1;
        }
    }

    /// Skips a JSON value of any type.
    fn skip_value(&mut self) -> Option<()> {
        self.0 = self.0.trim_ascii_start();
        match self.0.first()? {
            b'"' => self.skip_text(),
            b'{' => self.skip_nested(b"{"),
            b'[' => self.skip_nested(b"["),
            _ => {
                let end = self
                    .0
                    .iter()
                    .position(|it| matches!(it, b',' | b'}' | b']'))?;
                self.0 = self.0.get(end..)?;
                Some(())
            }
        }
    }

    /// Skips an object or a list that begins with this bracket.
    fn skip_nested(&mut self, opening: &[u8]) -> Option<()> {
        self.skip(opening)?;
        let mut depth = 1_usize;
        while depth > 0 {
            let is_found = |it: &u8| matches!(it, b'"' | b'{' | b'}' | b'[' | b']');
            let at = self.0.iter().position(is_found)?;
            self.0 = self.0.get(at..)?;
            match self.0.first()? {
                b'"' => {
                    self.skip_text()?;
                    continue;
                }
                b'{' | b'[' => depth += 1,
                _ => depth -= 1,
            }
            self.0 = self.0.get(1..)?;
        }
        Some(())
    }
}

/// Returns true if the result of a call may need a correction. A name that is written with escapes is not found.
fn is_odd_call(result: &[u8]) -> bool {
    let content = CONTENT.find(result);
    let is_first = match (content, STRUCTURED.find(result)) {
        (Some(content), Some(structured)) => content < structured,
        (content, _) => content.is_some(),
    };
    // If `content` comes after `structuredContent`, the name may have been found within the tool's data, so it is unknown
    // whether the result has a `content`.
    !is_first
        || holds_null(result)
        || is_other(result, &CONTENT, |rest| {
            let list = rest.strip_prefix(b"[").map(<[u8]>::trim_ascii_start);
            !matches!(list.and_then(<[u8]>::first), Some(b'{' | b']'))
        })
        || is_other(result, &STRUCTURED, |rest| !rest.starts_with(b"{"))
        || is_other(result, &IS_ERROR, |rest| !matches!(rest, [b't' | b'f', ..]))
        || holds_odd_part(result)
        || holds_text_in_list(result)
}

/// Returns true if the list with this name, or an element of it, may need a correction.
fn is_odd_list(result: &[u8], name: &Word) -> bool {
    name.find(result).is_none()
        || is_other(result, name, |rest| {
            let list = rest.strip_prefix(b"[").map(<[u8]>::trim_ascii_start);
            !matches!(list.and_then(<[u8]>::first), Some(b'{' | b']'))
        })
        || holds_null(result)
        || holds_other_than(result, &TEXT, |first| first == b'"')
        || holds_other_than(result, &META, |first| first == b'{')
        || holds_other_than(result, &ANNOTATIONS, |first| first == b'{')
}

fn is_odd_prompt(result: &[u8]) -> bool {
    is_odd_list(result, &MESSAGES)
        || holds_other_than(result, &CONTENT, |first| first == b'{')
        || holds_odd_part(result)
}

fn is_odd_completion(result: &[u8]) -> bool {
    VALUES.find(result).is_none()
        || holds_null(result)
        || holds_other_than(result, &VALUES, |first| first == b'[')
        || holds_other_than(result, &TOTAL, |first| first.is_ascii_digit())
        || holds_other_than(result, &HAS_MORE, |first| matches!(first, b't' | b'f'))
        || holds_other_than(result, &META, |first| first == b'{')
}

/// Returns true if a member with this name has a value whose first byte is not the usual one.
fn holds_other_than(result: &[u8], name: &Word, is_usual: impl Fn(u8) -> bool) -> bool {
    is_other(result, name, |rest| {
        !rest.first().is_some_and(|&first| is_usual(first))
    })
}

/// Returns true if an object in a result, such as a block of its content, may need a correction.
fn holds_odd_part(result: &[u8]) -> bool {
    let (mut names, mut values) = (0_usize, 0_usize);
    for at in TEXT.find_iter(result) {
        match value_behind(result, at + TEXT.needle().len()) {
            Some([b'"', ..]) => names += 1,
            Some(_) => return true,
            None => values += 1,
        }
    }
    let count = |word: &Word| word.find_iter(result).count();
    names != values
        || is_other(result, &META, |rest| !rest.starts_with(b"{"))
        || is_other(result, &ANNOTATIONS, |rest| !rest.starts_with(b"{"))
        || match count(&IMAGE) + count(&AUDIO) {
            0 => false,
            media => media > count(&MIME_TYPE),
        }
}

/// Returns true if an element of a list, or a required member of an object, may be `null`.
fn holds_null(result: &[u8]) -> bool {
    NULL.find_iter(result).any(|at| {
        let before = result.get(..at).unwrap_or_default().trim_ascii_end();
        match before {
            [.., b'[' | b','] => true,
            [name @ .., b':'] => {
                let name = name.trim_ascii_end();
                let needed = [TEXT.needle(), MIME_TYPE.needle(), CONTENT.needle()];
                needed.iter().any(|it| name.ends_with(it))
            }
            _ => false,
        }
    })
}

/// Returns true if a list in the result may contain a string.
fn holds_text_in_list(result: &[u8]) -> bool {
    TEXTS_IN_LISTS.iter().any(|end| {
        end.find_iter(result)
            .any(|at| at == 0 || result.get(at - 1) != Some(&b'\\'))
    })
}

/// Returns true if `is_odd` returns true for a member with this name. It gets the text that begins with the member's value.
fn is_other(result: &[u8], name: &Word, is_odd: impl Fn(&[u8]) -> bool) -> bool {
    name.find_iter(result)
        .filter_map(|at| value_behind(result, at + name.needle().len()))
        .any(is_odd)
}

/// The text that begins with the value of a member whose name ends at `at`; `None` if the text before `at` is not a name.
fn value_behind(result: &[u8], at: usize) -> Option<&[u8]> {
    let behind = result.get(at..)?.trim_ascii_start();
    behind.strip_prefix(b":").map(<[u8]>::trim_ascii_start)
}

/// Corrects the result of `tools/call`. Returns `None` if nothing changes.
fn call(result: &str, era: Era) -> Option<String> {
    let members = spans::members(result)?;
    let value = |name: &str| {
        let found = members.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| *value).filter(|it| *it != "null")
    };
    // Results that create a task, or that contain questions to the client, need no content.
    if value("task").is_some() || value("resultType").is_some_and(|it| it != "\"complete\"") {
        return None;
    }
    let mut changes = Vec::new();
    let mut structured = value("structuredContent");
    if era == Era::Legacy && structured.is_some_and(is_empty_list) {
        changes.push(MemberEdit::Remove("structuredContent"));
        structured = None;
    }
    let content: Option<Cow<'_, str>> = match (value("content"), structured) {
        (Some(content), _) => blocks(content).map(Cow::Owned),
        (None, Some(structured)) => Some(format!("[{}]", text_block(structured)).into()),
        // A result with none of the members of a call's result is not changed.
        (None, None) => members
            .iter()
            .any(|(key, _)| matches!(&**key, "content" | "isError" | "structuredContent"))
            .then_some("[]".into()),
    };
    changes.extend(content.map(|it| MemberEdit::Set("content", it)));
    if value("_meta").is_some_and(|it| !is_object(it)) {
        changes.push(MemberEdit::Remove("_meta"));
    }
    let is_error = value("isError").filter(|it| !matches!(*it, "true" | "false"));
    changes.extend(is_error.map(|it| MemberEdit::Set("isError", boolean(it).into())));
    changed(result, &changes)
}

/// Corrects the result of `resources/read`. Returns `None` if nothing changes.
fn contents(result: &str, _: Era) -> Option<String> {
    let entry = |entry: &str| match is_object(entry) {
        true => Block::of(with_text(entry)),
        // An entry that is not an object has no URI, so it is omitted.
        false => Block::Absent,
    };
    with_list(result, "contents", entry)
}

/// Corrects the result of `prompts/get`. Returns `None` if nothing changes.
fn messages(result: &str, _: Era) -> Option<String> {
    with_list(result, "messages", message)
}

/// Corrects a message of a prompt, whose content must be a single block.
fn message(message: &str) -> Block {
    if message == "null" {
        return Block::Absent;
    }
    if !is_object(message) {
        let content = text_block(message);
        return Block::Other(format!(r#"{{"role":"user","content":{content}}}"#));
    }
    let Some(content) = spans::find(message, "content").filter(|it| *it != "null") else {
        return Block::Absent;
    };
    let mut items = spans::items(content);
    let single = match (items.next(), items.next()) {
        (Some(single), None) => single,
        (Some(_), Some(_)) => return Block::Same,
        (None, _) if content.starts_with('[') => return Block::Absent,
        (None, _) => content,
    };
    let set = match block(single) {
        Block::Absent => return Block::Absent,
        Block::Other(block) => block,
        Block::Same if single == content => return Block::Same,
        Block::Same => single.to_owned(),
    };
    Block::of(changed(message, &[MemberEdit::Set("content", set.into())]))
}

/// Corrects a result that consists of one list: applies `part` to the elements of the list `name`, and removes a `_meta` that is
/// not an object. Returns `None` if nothing changes.
fn with_list(result: &str, name: &'static str, part: impl Fn(&str) -> Block) -> Option<String> {
    let members = spans::members(result)?;
    let value = |name: &str| {
        let found = members.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| *value).filter(|it| *it != "null")
    };
    // A result with questions to the client needs no list.
    if value("resultType").is_some_and(|it| it != "\"complete\"") {
        return None;
    }
    let list = match value(name) {
        None => Some("[]".into()),
        Some(list) if list.starts_with('[') => listed(list, part),
        Some(single) => {
            let single = format!("[{single}]");
            Some(listed(&single, part).unwrap_or(single))
        }
    };
    let mut changes = Vec::new();
    changes.extend(list.map(|it| MemberEdit::Set(name, it.into())));
    if value("_meta").is_some_and(|it| !is_object(it)) {
        changes.push(MemberEdit::Remove("_meta"));
    }
    changed(result, &changes)
}

/// Corrects the result of `completion/complete`. Returns `None` if nothing changes.
fn completion(result: &str, _: Era) -> Option<String> {
    let members = spans::members(result)?;
    let value = |name: &str| {
        let found = members.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| *value)
    };
    if value("resultType").is_some_and(|it| !matches!(it, "\"complete\"" | "null")) {
        return None;
    }
    let mut changes = Vec::new();
    let inner = match value("completion") {
        Some(completion) if is_object(completion) => completed(completion),
        Some(values) if values.starts_with('[') => completed(&format!(r#"{{"values":{values}}}"#))
            .or_else(|| Some(format!(r#"{{"values":{values}}}"#))),
        _ => Some(r#"{"values":[]}"#.into()),
    };
    changes.extend(inner.map(|it| MemberEdit::Set("completion", it.into())));
    if value("_meta").is_some_and(|it| !is_object(it)) {
        changes.push(MemberEdit::Remove("_meta"));
    }
    changed(result, &changes)
}

/// Corrects a completion: its values become a list of strings, and other members with a wrong type are corrected or removed.
/// Returns `None` if nothing changes.
fn completed(completion: &str) -> Option<String> {
    let members = spans::members(completion)?;
    let mut changes = Vec::new();
    let mut has_values = false;
    for (key, value) in &members {
        match &**key {
            "values" => {
                has_values = true;
                let values = match value.as_bytes().first() {
                    Some(b'[') => listed(value, |it| match it {
                        "null" => Block::Absent,
                        it if it.starts_with('"') => Block::Same,
                        it => Block::Other(serde_json::Value::from(it).to_string()),
                    }),
                    Some(b'"') => Some(format!("[{value}]")),
                    _ => Some("[]".into()),
                };
                changes.extend(values.map(|it| MemberEdit::Set("values", it.into())));
            }
            "total" if !value.starts_with(|it: char| it.is_ascii_digit()) => {
                changes.push(MemberEdit::Remove("total"));
            }
            "hasMore" if *value == "null" => changes.push(MemberEdit::Remove("hasMore")),
            "hasMore" if !matches!(*value, "true" | "false") => {
                changes.push(MemberEdit::Set("hasMore", boolean(value).into()));
            }
            _ => {}
        }
    }
    if !has_values {
        changes.push(MemberEdit::Set("values", "[]".into()));
    }
    changed(completion, &changes)
}

/// Converts content to a list of blocks. Returns `None` if it needs no change.
fn blocks(content: &str) -> Option<String> {
    if !content.starts_with('[') {
        let block = block(content);
        return Some(match block {
            Block::Same => format!("[{content}]"),
            Block::Other(block) => format!("[{block}]"),
            Block::Absent => "[]".into(),
        });
    }
    listed(content, block)
}

/// Result of checking an element of a list.
enum Block {
    /// The element needs no change.
    Same,
    /// The element must be replaced by this text.
    Other(String),
    /// The element cannot be corrected and is omitted.
    Absent,
}

impl Block {
    fn of(changed: Option<String>) -> Self {
        changed.map_or(Self::Same, Self::Other)
    }
}

/// Applies `change` to each element of a list. Returns `None` if no element changes.
fn listed(list: &str, change: impl Fn(&str) -> Block) -> Option<String> {
    let all: Vec<&RawValue> = serde_json::from_str(list).ok()?;
    let looked: Vec<_> = all.iter().map(|it| change(it.get())).collect();
    if looked.iter().all(|it| matches!(it, Block::Same)) {
        return None;
    }
    let parts = all.iter().zip(&looked);
    let parts: Vec<&str> = parts
        .filter_map(|(before, after)| match after {
            Block::Same => Some(before.get()),
            Block::Other(after) => Some(after),
            Block::Absent => None,
        })
        .collect();
    Some(format!("[{}]", parts.join(",")))
}

/// Corrects a block of content. A value that is not a block becomes a text block.
fn block(block: &str) -> Block {
    if block == "null" {
        return Block::Absent;
    }
    if !is_object(block) {
        return Block::Other(text_block(block));
    }
    // A block with a repeated key is not changed; the client decides about it.
    let Some(members) = spans::members(block) else {
        return Block::Same;
    };
    let value = |name: &str| {
        let found = members.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| *value).filter(|it| *it != "null")
    };
    let mut changes = Vec::new();
    let is_text = |name: &str| value(name).is_some_and(|it| it.starts_with('"'));
    match value("type") {
        Some("\"text\"") => changes.extend(readable(value("text"))),
        Some("\"image\"" | "\"audio\"") if !is_text("mimeType") || !is_text("data") => {
            return Block::Absent;
        }
        Some("\"resource\"") => {
            let held = value("resource").and_then(with_text);
            changes.extend(held.map(|it| MemberEdit::Set("resource", it.into())));
        }
        Some(_) => {}
        None if is_text("text") => changes.push(MemberEdit::Set("type", "\"text\"".into())),
        None => return Block::Other(text_block(block)),
    }
    changes.extend(plain_members(value));
    Block::of(changed(block, &changes))
}

/// Corrects the contents of a resource: an empty text is added if it has neither a text nor a blob. Returns `None` if nothing
/// changes.
fn with_text(resource: &str) -> Option<String> {
    let members = spans::members(resource)?;
    let value = |name: &str| {
        let found = members.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| *value).filter(|it| *it != "null")
    };
    let mut changes = Vec::new();
    if value("blob").is_none() {
        changes.extend(readable(value("text")));
    }
    changes.extend(plain_members(value));
    changed(resource, &changes)
}

/// Edit that sets the member `text` to a string; `None` if it is a string already.
fn readable(text: Option<&str>) -> Option<MemberEdit<'static>> {
    let text = match text {
        None => "\"\"".into(),
        Some(text) if text.starts_with('"') => return None,
        Some(other) => serde_json::Value::from(other).to_string(),
    };
    Some(MemberEdit::Set("text", text.into()))
}

/// Edits that remove `_meta` and `annotations` if they are not objects.
fn plain_members<'v>(
    value: impl Fn(&str) -> Option<&'v str>,
) -> impl Iterator<Item = MemberEdit<'static>> {
    ["_meta", "annotations"]
        .into_iter()
        .filter(move |name| value(name).is_some_and(|it| !is_object(it)))
        .map(MemberEdit::Remove)
}

/// Creates a text block that contains the value: a string itself, or the JSON text of any other value.
fn text_block(value: &str) -> String {
    let text = match value.starts_with('"') {
        true => Cow::Borrowed(value),
        false => Cow::Owned(serde_json::Value::from(value).to_string()),
    };
    format!(r#"{{"type":"text","text":{text}}}"#)
}

/// Converts a value of another type, such as `"no"` or `0`, to a boolean.
fn boolean(value: &str) -> &'static str {
    let word = value.trim_matches('"').trim().to_ascii_lowercase();
    let is_number = word.parse::<f64>().ok();
    match &*word {
        "" | "false" | "no" | "off" | "null" | "[]" | "{}" => "false",
        _ if is_number == Some(0.0) => "false",
        _ => "true",
    }
}

fn is_object(value: &str) -> bool {
    value.starts_with('{')
}

fn is_empty_list(value: &str) -> bool {
    let inner = value.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    inner.is_some_and(|it| it.trim_ascii().is_empty())
}

fn changed(object: &str, changes: &[MemberEdit<'_>]) -> Option<String> {
    (!changes.is_empty())
        .then(|| spans::edited(object, changes))
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mended(method: &str, result: &str) -> Option<String> {
        of_result(method, Era::Legacy, result.as_bytes())
    }

    #[test]
    fn the_content_of_a_call_becomes_a_list_of_whole_blocks() {
        let text = r#"{"content":[{"type":"text","text":"hello"}]}"#;
        let empty = r#"{"content":[{"type":"text","text":""}]}"#;
        for (odd, expected) in [
            (r#"{"content":[{"type":"text","text":null}]}"#, empty),
            (r#"{"content":[{"type":"text"}]}"#, empty),
            (
                r#"{"content":[{"type":"text","text":5.0},{"type":"text","text":{"a":"b"}}]}"#,
                r#"{"content":[{"type":"text","text":"5.0"},{"type":"text","text":"{\"a\":\"b\"}"}]}"#,
            ),
            (
                r#"{"content":[null, {"type":"text","text":"hello"}, null]}"#,
                text,
            ),
            (r#"{"content":[null]}"#, r#"{"content":[]}"#),
            (r#"{"content":["hello"]}"#, text),
            (
                r#"{"content":[{"type":"text","text":"a\u00e9"},"b\"c"]}"#,
                r#"{"content":[{"type":"text","text":"a\u00e9"},{"type":"text","text":"b\"c"}]}"#,
            ),
            (
                r#"{"content":[{"type":"text","text":"a"}, "b", {"type":"text","text":"c"}]}"#,
                r#"{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"},{"type":"text","text":"c"}]}"#,
            ),
            (
                r#"{"content":[5,{"rows":[]}]}"#,
                r#"{"content":[{"type":"text","text":"5"},{"type":"text","text":"{\"rows\":[]}"}]}"#,
            ),
            (r#"{"content":"hello"}"#, text),
            (r#"{"content" : {"type":"text","text":"hello"}}"#, text),
            (r#"{"content":{"type":"text","text":null}}"#, empty),
            (
                r#"{"content":[{"text":"hello"}]}"#,
                r#"{"content":[{"text":"hello","type":"text"}]}"#,
            ),
            (
                r#"{"content":[{"type":"image","data":"aGk="},{"type":"audio","data":"aGk=","mimeType":null},{"type":"text","text":"hello"}]}"#,
                text,
            ),
            (
                r#"{"content":[{"type":"resource","resource":{"uri":"a://b","text":null}}]}"#,
                r#"{"content":[{"type":"resource","resource":{"uri":"a://b","text":""}}]}"#,
            ),
            (
                r#"{"content":[{"type":"text","text":"a","annotations":[],"_meta":[]}],"_meta":[]}"#,
                r#"{"content":[{"type":"text","text":"a"}]}"#,
            ),
        ] {
            assert_eq!(
                mended("tools/call", odd).as_deref(),
                Some(expected),
                "{odd}"
            );
            assert_eq!(mended("tools/call", expected), None, "{expected}");
        }
    }

    #[test]
    fn a_call_without_content_shows_its_structured_content() {
        let shown = r#"[{"type":"text","text":"{\"v\":\"x\",\"content\":[]}"}]"#;
        let structured = r#""structuredContent":{"v":"x","content":[]}"#;
        for (odd, expected) in [
            (
                format!("{{{structured}}}"),
                format!(r#"{{{structured},"content":{shown}}}"#),
            ),
            (
                format!(r#"{{"content":null,{structured}}}"#),
                format!(r#"{{"content":{shown},{structured}}}"#),
            ),
            (
                r#"{"structuredContent":[]}"#.into(),
                r#"{"content":[]}"#.into(),
            ),
            (
                r#"{"content":[],"structuredContent":[ ],"isError":false}"#.into(),
                r#"{"content":[],"isError":false}"#.into(),
            ),
            (
                r#"{"isError":true}"#.into(),
                r#"{"isError":true,"content":[]}"#.into(),
            ),
        ] {
            assert_eq!(mended("tools/call", &odd), Some(expected), "{odd}");
        }
        let list = r#"{"content":[],"structuredContent":[]}"#;
        assert_eq!(
            of_result("tools/call", Era::Modern, list.as_bytes()),
            None,
            "any value is right there"
        );
    }

    #[test]
    fn the_mark_of_a_failed_call_is_a_boolean() {
        for (odd, expected) in [
            (r#""true""#, "true"),
            (r#""True""#, "true"),
            ("1", "true"),
            (r#""false""#, "false"),
            (r#""""#, "false"),
            ("0", "false"),
            ("0.0", "false"),
            ("[]", "false"),
        ] {
            let result = |it: &str| format!(r#"{{"content":[],"isError": {it}}}"#);
            let expected = format!(r#"{{"content":[],"isError":{expected}}}"#);
            assert_eq!(mended("tools/call", &result(odd)), Some(expected), "{odd}");
            assert_eq!(mended("tools/call", &result("true")), None);
        }
    }

    #[test]
    fn a_result_as_most_servers_write_it_is_searched_once() {
        let block = r#"{"type":"text","text":"say \"isError\": 0 \\"}"#;
        for usual in [
            r#"{"content":[],"pid":7,"own":[{"a":"]"},null],"last":"x"}"#.to_owned(),
            format!(r#"{{"content":[{block}]}}"#),
            format!(r#"{{ "content" : [ {block} , {block} ] , "isError" : true }} "#),
            format!(
                r#"{{"content":[{block}],"structuredContent":{{"a":{{"b":"}}"}},"c":[{{}}]}},"_meta":{{}},"isError":false}}"#
            ),
        ] {
            assert!(is_usual_call(usual.as_bytes()), "{usual}");
        }
        for other in [
            r#"{"content":[{"type":"text","text":null}]}"#.to_owned(),
            format!(r#"{{"content":[{block},null]}}"#),
            format!(r#"{{"content":[{block}],"content":[]}}"#),
            format!(r#"{{"content":[{block}],"isError":"true"}}"#),
            format!(r#"{{"content":[{block}],"structuredContent":[]}}"#),
            format!(r#"{{"content":[{block}],"structuredContent":{{}}"#),
            format!(r#"{{"content":[{block}]}}x"#),
        ] {
            assert!(!is_usual_call(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn usual_results_of_calls_are_not_even_parsed() {
        for usual in [
            r#"{"content":[]}"#,
            r#"{ "content" : [ { "type" : "text" , "text" : "a" } ] , "isError" : false }"#,
            r#"{"_meta":{"a":[]},"content":[{"type":"text","text":"{\"text\": null, \"isError\": 0, \"a\": [\"b\"], \"content\": 5}"}],"structuredContent":{"a":null},"isError":true}"#,
            r#"{"content":[{"type":"image","data":"aGk=","mimeType":"image/png","annotations":{"priority":1}},{"type":"text","text":"null [null, null]x"}]}"#,
        ] {
            let is_null_in_text = usual.contains("[null");
            assert_eq!(is_odd_call(usual.as_bytes()), is_null_in_text, "{usual}");
            assert_eq!(mended("tools/call", usual), None, "{usual}");
        }
        for other in [
            r#"{"task":{"taskId":"t"},"isError":0}"#,
            r#"{"resultType":"input_required","inputRequests":{"a":{"params":{"content":"x"}}}}"#,
            r#"{"content":[{"type":"x/own","text":null}],"structuredContent":{"content":"a","isError":0,"l":["a",null]},"isError":false}"#,
            r#"{"x":1}"#,
            r#"{"content":"a","content":"b"}"#,
            r#"["content"]"#,
        ] {
            assert_eq!(mended("tools/call", other), None, "{other}");
        }
    }

    #[test]
    fn resources_prompts_and_completions_have_their_lists() {
        let entry = r#"{"uri":"a://b","text":"x"}"#;
        let message = r#"{"role":"user","content":{"type":"text","text":"hello"}}"#;
        let read = |it: &str| format!(r#"{{"contents":{it}}}"#);
        let prompt = |it: &str| format!(r#"{{"messages":{it}}}"#);
        let completed = |it: &str| format!(r#"{{"completion":{it}}}"#);
        let (one, said) = (format!("[{entry}]"), format!("[{message}]"));
        for (method, odd, expected) in [
            ("resources/read", read("null"), read("[]")),
            (
                "resources/read",
                read(&format!("[null, {entry}]")),
                read(&one),
            ),
            ("resources/read", read(entry), read(&one)),
            ("resources/read", r#"{"_meta":[]}"#.into(), read("[]")),
            (
                "resources/read",
                read(r#"[{"uri":"a://b","text":null,"_meta":[]}]"#),
                read(r#"[{"uri":"a://b","text":""}]"#),
            ),
            ("prompts/get", prompt("null"), prompt("[]")),
            (
                "prompts/get",
                prompt(&format!("[{message},null]")),
                prompt(&said),
            ),
            ("prompts/get", prompt(message), prompt(&said)),
            (
                "prompts/get",
                prompt(r#"[{"role":"user","content":"hello"}]"#),
                prompt(&said),
            ),
            (
                "prompts/get",
                prompt(r#"[{"role":"user","content":[{"type":"text","text":"hello"}]}]"#),
                prompt(&said),
            ),
            (
                "prompts/get",
                prompt(r#"[{"role":"user","content":{"type":"text","text":null}}]"#),
                prompt(r#"[{"role":"user","content":{"type":"text","text":""}}]"#),
            ),
            (
                "completion/complete",
                completed(r#"{"values":null,"total":null,"hasMore":null}"#),
                completed(r#"{"values":[]}"#),
            ),
            (
                "completion/complete",
                completed(r#"{"values":["a",null,5],"total":1,"hasMore":"false"}"#),
                completed(r#"{"values":["a","5"],"total":1,"hasMore":false}"#),
            ),
            (
                "completion/complete",
                completed("null"),
                completed(r#"{"values":[]}"#),
            ),
            (
                "completion/complete",
                r#"{"completion":{"values":["a"]},"_meta":[]}"#.into(),
                completed(r#"{"values":["a"]}"#),
            ),
        ] {
            assert_eq!(mended(method, &odd).as_ref(), Some(&expected), "{odd}");
            assert_eq!(mended(method, &expected), None, "{expected}");
        }
    }

    #[test]
    fn usual_resources_prompts_and_completions_are_not_even_parsed() {
        let read = br#"{"contents":[{"uri":"a://b","mimeType":null,"text":"[\"text\": null]","_meta":{}},{"uri":"a","blob":"aGk="}]}"#;
        let odd_type = read.windows(4).any(|it| it == b"null");
        assert!(odd_type && mended("resources/read", std::str::from_utf8(read).unwrap()).is_none());
        assert!(!is_odd_list(
            br#"{"contents":[{"uri":"a","text":"b"}]}"#,
            &CONTENTS
        ));
        assert!(!is_odd_prompt(
            br#"{"description":"d","messages":[{"role":"user","content":{"type":"text","text":"b"}}]}"#
        ));
        assert!(!is_odd_completion(
            br#"{"completion":{"values":[],"total":0,"hasMore":false},"_meta":{}}"#
        ));
    }
}
