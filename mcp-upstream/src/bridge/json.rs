//! Changes to single members of a JSON object, in place: every other byte stays.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::value::RawValue;

use crate::mcp::entries;

/// A change to one member.
#[derive(Debug, Clone)]
pub(crate) enum Change<'a> {
    /// Gives the member this value, whether it is there or not.
    Set(&'a str, Cow<'a, str>),
    /// Adds the member unless it is there.
    Default(&'a str, Cow<'a, str>),
    /// Takes the member out.
    Remove(&'a str),
}

impl Change<'_> {
    fn key(&self) -> &str {
        match self {
            Self::Set(key, _) | Self::Default(key, _) | Self::Remove(key) => key,
        }
    }
}

/// The value of one member. `None` where there is none, or where the object cannot be read.
pub(crate) fn member<'a>(object: &'a RawValue, name: &str) -> Option<&'a RawValue> {
    // The text is looked for first: most objects do not have most members.
    if !may_hold(object.get().as_bytes(), name) {
        return None;
    }
    let entries = entries(object)?;
    let found = entries.into_iter().find(|(key, _)| key == name);
    found.map(|(_, value)| value)
}

/// A cheap look whether a text may hold a key. Letters can only be written as themselves or as `\u`; a slash has an
/// escape of its own.
pub(crate) fn may_hold(text: &[u8], name: &str) -> bool {
    let holds = |part: &str| memchr::memmem::find(text, part.as_bytes()).is_some();
    holds(name) || holds("\\u") || (name.contains('/') && holds("\\/"))
}

/// Reads a span as a value.
pub(crate) fn raw(span: &[u8]) -> Option<&RawValue> {
    serde_json::from_slice(span).ok()
}

/// A value as bytes of its own.
pub(crate) fn owned(value: &RawValue) -> Bytes {
    Bytes::copy_from_slice(value.get().as_bytes())
}

/// The object with these members changed. Text that is no object, or holds a key twice, comes back as it is.
pub(crate) fn edit(object: &str, changes: &[Change<'_>]) -> String {
    let parsed = serde_json::from_str::<&RawValue>(object).ok();
    let Some(entries) = parsed.and_then(entries) else {
        return object.to_owned();
    };
    let touched = entries.iter().any(|(key, _)| {
        let mut all = changes.iter();
        all.any(|change| !matches!(change, Change::Default(..)) && change.key() == key)
    });
    if !touched {
        return append(object, &entries, changes);
    }
    let mut out = String::with_capacity(object.len() + 64);
    for (key, value) in &entries {
        let change = changes.iter().find(|change| change.key() == key);
        match change {
            Some(Change::Remove(_)) => {}
            Some(Change::Set(_, new)) => put(&mut out, key, new),
            Some(Change::Default(..)) | None => put(&mut out, key, value.get()),
        }
    }
    add_missing(&mut out, &entries, changes);
    close(out)
}

type Entries<'a> = [(Cow<'a, str>, &'a RawValue)];

/// Adds what is missing behind what is there, which keeps its bytes, white space included.
fn append(object: &str, entries: &Entries<'_>, changes: &[Change<'_>]) -> String {
    let mut added = String::new();
    add_missing(&mut added, entries, changes);
    if added.is_empty() {
        return object.to_owned();
    }
    let open = object.trim_end();
    let open = open.strip_suffix('}').unwrap_or(open);
    let separator = if entries.is_empty() { "" } else { "," };
    let added = added.strip_prefix('{').unwrap_or(&added);
    format!("{open}{separator}{added}}}")
}

fn add_missing(out: &mut String, entries: &Entries<'_>, changes: &[Change<'_>]) {
    for change in changes {
        if let Change::Set(key, new) | Change::Default(key, new) = change
            && !entries.iter().any(|(own, _)| own == key)
        {
            put(out, key, new);
        }
    }
}

fn put(out: &mut String, key: &str, value: &str) {
    out.push(if out.is_empty() { '{' } else { ',' });
    out.push_str(&serde_json::Value::from(key).to_string());
    out.push(':');
    out.push_str(value);
}

fn close(mut out: String) -> String {
    if out.is_empty() {
        out.push('{');
    }
    out.push('}');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_members_leave_the_rest_as_it_was() {
        let set = |value: &'static str| [Change::Default("a", Cow::Borrowed(value))];
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
            Change::Set("a", Cow::Borrowed("[]")),
            Change::Remove("b"),
            Change::Set("c", Cow::Borrowed("3")),
        ];
        let text = r#"{"a":1,"x":9007199254740993,"b":{"y":[1.0]},"\u00e9":null}"#;
        assert_eq!(
            edit(text, &changes),
            r#"{"a":[],"x":9007199254740993,"é":null,"c":3}"#
        );
        assert_eq!(edit(r#"{"b":1}"#, &[Change::Remove("b")]), "{}");
    }

    #[test]
    fn what_is_no_object_stays() {
        for text in ["[1]", "null", r#"{"a":1,"a":2}"#, "nonsense"] {
            assert_eq!(edit(text, &[Change::Remove("a")]), text);
        }
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
