//! Edits of single members in the text of a JSON object. All other bytes stay unchanged.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use bytes::Bytes;
use memchr::memmem::{self, Finder};
use serde_json::value::RawValue;

mod members;

use members::{FEW, Member};
pub use members::{items, members};

/// An edit of one member of a JSON object. The values are raw JSON.
#[derive(Debug, Clone)]
pub enum MemberEdit<'a> {
    /// Sets the member to this value. Adds it if it is missing.
    Set(&'a str, Cow<'a, str>),
    /// Adds the member with this value if it is missing. An existing member is not changed.
    Default(&'a str, Cow<'a, str>),
    /// Removes the member.
    Remove(&'a str),
}

impl MemberEdit<'_> {
    fn key(&self) -> &str {
        match self {
            Self::Set(key, _) | Self::Default(key, _) | Self::Remove(key) => key,
        }
    }

    /// Maximum number of bytes by which the edit makes the object longer.
    fn room(&self) -> usize {
        match self {
            Self::Set(key, new) | Self::Default(key, new) => key.len() + new.len() + 4,
            Self::Remove(_) => 0,
        }
    }
}

/// The value of a member; `None` if the member is missing, or if the object cannot be read.
pub fn member<'a>(object: &'a RawValue, name: &str) -> Option<&'a RawValue> {
    serde_json::from_str(find(object.get(), name)?).ok()
}

/// The value of a member as raw JSON; `None` if the member is missing. `object` must be valid JSON.
pub fn find<'a>(object: &'a str, name: &str) -> Option<&'a str> {
    /// Maximum length of a text, in bytes, that is parsed at once. Longer texts are first searched for the name.
    const SHORT: usize = 256;
    // Most objects do not contain the member, and searching for its name is faster than parsing.
    if object.len() > SHORT && !may_hold(object.as_bytes(), name) {
        return None;
    }
    let mut members = members(object)?.into_iter();
    let (_, value) = members.find(|(key, _)| key == name)?;
    Some(value)
}

/// Returns true if a text may contain a key, without parsing it. A key may be written with escapes: any letter as `\u` and four
/// digits, and a slash as `\/`. The result is also true if the text contains such an escape that the key could use, or if the key
/// is always written with an escape.
pub fn may_hold(text: &[u8], name: &str) -> bool {
    /// Searches for the escapes `\u` and `\/`. Built once, since building a search costs more than searching a typical text.
    static ESCAPES: LazyLock<[Finder<'static>; 2]> =
        LazyLock::new(|| ["\\u", "\\/"].map(Finder::new));
    let [letter, slash] = &*ESCAPES;
    memmem::find(text, name.as_bytes()).is_some()
        || letter.find(text).is_some()
        || (name.contains('/') && slash.find(text).is_some())
        || needs_escape(name)
}

/// Returns true if a key contains a character that JSON does not allow in strings without an escape.
fn needs_escape(key: &str) -> bool {
    key.bytes()
        .any(|byte| matches!(byte, b'"' | b'\\' | ..=0x1f))
}

/// Parses bytes as raw JSON. Returns `None` if they are not valid JSON.
pub fn raw(span: &[u8]) -> Option<&RawValue> {
    serde_json::from_slice(span).ok()
}

/// Copies a value, so that it does not keep the message in memory.
pub fn owned(value: &RawValue) -> Bytes {
    Bytes::copy_from_slice(value.get().as_bytes())
}

/// Applies edits to an object, which must be valid JSON. If it is not an object or contains a repeated key, it is returned
/// unchanged.
pub fn edit(object: &str, changes: &[MemberEdit<'_>]) -> String {
    edited(object, changes).unwrap_or_else(|| object.to_owned())
}

/// Applies edits to an object. Returns `None` if the text is not an object, or contains a repeated key.
pub fn edited(object: &str, changes: &[MemberEdit<'_>]) -> Option<String> {
    let members = members(object)?;
    let size = object.len() + changes.iter().map(MemberEdit::room).sum::<usize>();
    let mut out = String::with_capacity(size);
    // If there are several edits for one member, the first applies. The list is reversed, since later entries overwrite.
    let by_key: Option<HashMap<&str, &MemberEdit<'_>>> = (changes.len() > FEW).then(|| {
        let changes = changes.iter().rev();
        changes.map(|change| (change.key(), change)).collect()
    });
    let changed = |key: &str| match &by_key {
        Some(by_key) => by_key.get(key).copied(),
        None => changes.iter().find(|change| is_same(change.key(), key)),
    };
    let stays =
        |(key, _): &Member<'_>| matches!(changed(key), None | Some(MemberEdit::Default(..)));
    if members.iter().all(stays) {
        // No existing member is edited, so the text is copied with its white space, up to the closing brace.
        let open = object.trim_end();
        out.push_str(open.strip_suffix('}').unwrap_or(open));
        let is_empty = members.is_empty();
        let added = add_missing(&mut out, is_empty, &members, changes);
        if !added {
            return Some(object.to_owned());
        }
        out.push('}');
        return Some(out);
    }
    out.push('{');
    let mut is_empty = true;
    for (key, value) in &members {
        let value = match changed(key) {
            Some(MemberEdit::Remove(_)) => continue,
            Some(MemberEdit::Set(_, new)) => &**new,
            Some(MemberEdit::Default(..)) | None => value,
        };
        put(&mut out, is_empty, key, value);
        is_empty = false;
    }
    add_missing(&mut out, is_empty, &members, changes);
    out.push('}');
    Some(out)
}

/// Appends members to an object without reading its existing members. Returns `None` if the text is not an object.
pub fn with_members(object: &str, changes: &[MemberEdit<'_>]) -> Option<String> {
    let inner = object.trim_end().strip_suffix('}')?.trim_end();
    let room = changes.iter().map(MemberEdit::room).sum::<usize>();
    let mut out = String::with_capacity(object.len() + room);
    out.push_str(inner);
    add_missing(&mut out, inner.ends_with('{'), &[], changes);
    out.push('}');
    Some(out)
}

/// Appends the members of edits that the object does not contain yet. Returns true if a member was added.
fn add_missing(
    out: &mut String,
    mut is_empty: bool,
    members: &[Member<'_>],
    changes: &[MemberEdit<'_>],
) -> bool {
    let present: Option<HashSet<&str>> = (changes.len() > FEW && members.len() > FEW)
        .then(|| members.iter().map(|(key, _)| &**key).collect());
    let is_present = |key: &str| match &present {
        Some(present) => present.contains(key),
        None => members.iter().any(|(own, _)| is_same(own, key)),
    };
    let mut added = false;
    for change in changes {
        if let MemberEdit::Set(key, new) | MemberEdit::Default(key, new) = change
            && !is_present(key)
        {
            put(out, is_empty, key, new);
            is_empty = false;
            added = true;
        }
    }
    added
}

/// Compares two keys. Tests count the comparisons.
fn is_same(one: &str, other: &str) -> bool {
    #[cfg(test)]
    tests::COMPARED.set(tests::COMPARED.get() + 1);
    one == other
}

fn put(out: &mut String, is_first: bool, key: &str, value: &str) {
    if !is_first {
        out.push(',');
    }
    if needs_escape(key) {
        out.push_str(&serde_json::Value::from(key).to_string());
    } else {
        out.push('"');
        out.push_str(key);
        out.push('"');
    }
    out.push(':');
    out.push_str(value);
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// The number of comparisons of keys on this thread.
        pub static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    #[test]
    fn a_key_with_quotes_is_found_in_a_long_object() {
        let filler = "x".repeat(1000);
        for key in ["say \"yes\"", "a\\b", "two\nlines"] {
            let object = format!(r#"{{"filler":"{filler}"}}"#);
            let object = edit(&object, &[MemberEdit::Set(key, "7".into())]);
            assert_eq!(find(&object, key), Some("7"), "{object}");
        }
    }

    #[test]
    fn many_changes_to_many_members_are_looked_up() {
        const MANY: usize = 2_000;
        let compared = |members: usize, changes: &[MemberEdit<'_>]| {
            let object: Vec<_> = (0..members).map(|at| format!(r#""k{at}":{at}"#)).collect();
            let object = format!("{{{}}}", object.join(","));
            COMPARED.set(0);
            let edited = edit(&object, changes);
            (COMPARED.get(), edited)
        };
        let keys: Vec<_> = (0..2 * MANY).map(|at| format!("k{at}")).collect();
        let mut changes: Vec<_> = (keys.iter().enumerate())
            .map(|(at, key)| match at % 3 {
                0 => MemberEdit::Set(key, "true".into()),
                1 => MemberEdit::Default(key, "false".into()),
                _ => MemberEdit::Remove(key),
            })
            .collect();
        // The first change to a member counts.
        changes.push(MemberEdit::Remove("k0"));
        let expected: Vec<_> = (0..2 * MANY)
            .filter_map(|at| match at % 3 {
                0 => Some(format!(r#""k{at}":true"#)),
                1 if at < MANY => Some(format!(r#""k{at}":{at}"#)),
                1 => Some(format!(r#""k{at}":false"#)),
                _ => None,
            })
            .collect();
        let (count, edited) = compared(MANY, &changes);
        assert_eq!(edited, format!("{{{}}}", expected.join(",")));
        assert!(count <= MANY, "{count}");
        let added: Vec<_> = (keys.iter().skip(MANY))
            .map(|key| MemberEdit::Default(key, "0".into()))
            .collect();
        let (count, edited) = compared(MANY, &added);
        assert!(edited.ends_with(r#""k3999":0}"#) && edited.starts_with(r#"{"k0":0,"k1":1,"#));
        assert!(count <= MANY, "{count}");
        // For few changes no table is made.
        let (count, _) = compared(MANY, &changes[..2]);
        assert!(count > MANY, "{count}");
    }

    #[test]
    fn added_members_leave_the_rest_as_it_was() {
        let set = |value: &'static str| [MemberEdit::Default("a", Cow::Borrowed(value))];
        assert_eq!(
            edit(r#"{ "b" : 1.50 }"#, &set("2")),
            r#"{ "b" : 1.50 ,"a":2}"#
        );
        assert_eq!(edit("{}", &set("2")), r#"{"a":2}"#);
        assert_eq!(edit(r#"{"a":0}"#, &set("2")), r#"{"a":0}"#);
    }

    #[test]
    fn members_are_replaced_and_removed_and_others_keep_their_spelling() {
        let changes = [
            MemberEdit::Set("a", Cow::Borrowed("[]")),
            MemberEdit::Remove("b"),
            MemberEdit::Set("c", Cow::Borrowed("3")),
        ];
        let text = r#"{"a":1,"x":9007199254740993,"b":{"y":[1.0]},"\u00e9":null}"#;
        assert_eq!(
            edit(text, &changes),
            r#"{"a":[],"x":9007199254740993,"é":null,"c":3}"#
        );
        assert_eq!(edit(r#"{"b":1}"#, &[MemberEdit::Remove("b")]), "{}");
        assert_eq!(
            edit(r#"{"b":0,"b\"" : "\\", "c\u0001":[]}"#, &changes),
            r#"{"b\"":"\\","c\u0001":[],"a":[],"c":3}"#
        );
    }

    #[test]
    fn what_is_no_object_stays() {
        for text in ["[1]", "null", r#"{"a":1,"a":2}"#, "nonsense"] {
            assert_eq!(edit(text, &[MemberEdit::Remove("a")]), text);
            let set = [MemberEdit::Set("b", Cow::Borrowed("3"))];
            assert_eq!(edit(text, &set), text);
        }
    }

    #[test]
    fn members_are_added_to_an_object_that_holds_a_key_twice() {
        let set = [MemberEdit::Set("b", Cow::Borrowed("3"))];
        let more = |text| with_members(text, &set);
        assert_eq!(
            more(r#"{"a":1,"a":2 } "#).as_deref(),
            Some(r#"{"a":1,"a":2,"b":3}"#)
        );
        assert_eq!(more("{ }").as_deref(), Some(r#"{"b":3}"#));
        assert_eq!(more("[1]"), None);
    }

    #[test]
    fn a_member_is_found_where_it_is() {
        let object: &RawValue = serde_json::from_str(r#"{"x":{"a":1},"a": 2.0}"#).expect("JSON");
        assert_eq!(member(object, "a").map(RawValue::get), Some("2.0"));
        assert!(member(object, "b").is_none());
    }

    #[test]
    fn a_member_is_found_however_its_key_is_spelled() {
        for (text, name) in [
            (r#"{"request\u0053tate":1}"#, "requestState"),
            (r#"{"argum\u0065nts":1}"#, "arguments"),
            (
                r#"{"x":"y","\u0063\u0075\u0072\u0073\u006f\u0072":1}"#,
                "cursor",
            ),
            (r#"{"a\/b":1}"#, "a/b"),
        ] {
            let object: &RawValue = serde_json::from_str(text).expect("JSON");
            assert_eq!(member(object, name).map(RawValue::get), Some("1"), "{text}");
        }
        let twice: &RawValue = serde_json::from_str(r#"{"a":1,"\u0061":2}"#).expect("JSON");
        assert!(member(twice, "a").is_none());
    }
}
