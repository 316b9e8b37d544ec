//! Removes members with the value `null` from messages of clients. Some programming languages write all members, and those
//! without a value as `null`.
//!
//! | member | replaced by |
//! |---|---|
//! | `params` | `{}` |
//! | `params.arguments` of `tools/call` and `prompts/get`, `params.capabilities` of `initialize`, `params._meta` | `{}` |
//! | `id` of a notification, `result` and `error` in a message with a method | removed |
//! | `params.cursor` | removed: an empty string would be a cursor |
//!
//! A message is edited once, before it is sent to any server, since servers refuse `null` there, too.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use memchr::memmem;

use super::plain::plain;
use super::spans::{self, MemberEdit};
use super::splice::{Edit, splice};
use super::{Body, Key, Members, Message};
use crate::version::method::TOOLS_CALL;

const NULL: &str = "null";
const EMPTY: &str = "{}";
const PROMPTS_GET: &str = "prompts/get";
const INITIALIZE: &str = "initialize";

/// An edit of a body: the part to replace, and its replacement.
type Change<'a> = (&'a str, Cow<'static, str>);

/// Removes members that are `null` from a body. Returns `None` if there are none.
pub fn without_nulls(content: &Body<'_>, body: &Bytes) -> Option<Bytes> {
    match content {
        Body::One(message) => {
            if holds_null_beside_method(message) {
                return plain(std::str::from_utf8(body).ok()?, None).map(Bytes::from);
            }
            let change = change(message)?;
            edited(body, vec![change])
        }
        Body::Batch(messages) => {
            // Fast path: a batch without the text `null`, as most are, need not be parsed for this.
            memmem::find(body, NULL.as_bytes())?;
            let read = |text| super::message(text).ok();
            let changes = messages.iter().filter_map(|text| {
                let message = read(text.get())?;
                match holds_null_beside_method(&message) {
                    true => Some((text.get(), plain(text.get(), None)?.into())),
                    false => change(&message),
                }
            });
            edited(body, changes.collect())
        }
    }
}

/// Returns true if the message has a method, and also an `id`, `result` or `error` that is `null`.
pub fn holds_null_beside_method(message: &Message<'_>) -> bool {
    let is_null = |members: &Members<'_>, key| members.raw(key) == Some(NULL);
    match message {
        Message::Request { members, .. } => {
            is_null(members, Key::Result) || is_null(members, Key::Error)
        }
        Message::Notification { members, .. } => [Key::Id, Key::Result, Key::Error]
            .into_iter()
            .any(|key| is_null(members, key)),
        Message::Response { .. } => false,
    }
}

fn change<'a>(message: &Message<'a>) -> Option<Change<'a>> {
    let (Message::Request {
        method, members, ..
    }
    | Message::Notification { method, members }) = message
    else {
        return None;
    };
    let params = members.params()?.get();
    if params == NULL {
        return Some((params, EMPTY.into()));
    }
    let null = |key| members.raw(key).filter(|raw| *raw == NULL);
    if null(Key::Cursor).is_some() {
        let mut edits = vec![MemberEdit::Remove("cursor")];
        if null(Key::Meta).is_some() {
            edits.push(MemberEdit::Remove("_meta"));
        }
        return Some((params, spans::edited(params, &edits)?.into()));
    }
    let arguments = || match &**method {
        TOOLS_CALL | PROMPTS_GET => null(Key::Arguments),
        // The index does not contain this member, so it is searched for. That happens only once per session.
        INITIALIZE => spans::find(params, "capabilities").filter(|raw| *raw == NULL),
        _ => None,
    };
    match (arguments(), null(Key::Meta)) {
        (Some(_), Some(_)) => {
            let name = if &**method == INITIALIZE {
                "capabilities"
            } else {
                "arguments"
            };
            let edits = [
                MemberEdit::Set(name, EMPTY.into()),
                MemberEdit::Remove("_meta"),
            ];
            Some((params, spans::edited(params, &edits)?.into()))
        }
        (Some(null), None) | (None, Some(null)) => Some((null, EMPTY.into())),
        (None, None) => None,
    }
}

/// Applies edits to a body. Returns `None` if there are no edits.
fn edited(body: &Bytes, changes: Vec<Change<'_>>) -> Option<Bytes> {
    let text = std::str::from_utf8(body).ok()?;
    let edits = changes
        .iter()
        .map(|(part, new)| Edit::new(text, part, &**new));
    let mut edits: Vec<_> = edits.collect();
    if edits.is_empty() {
        return None;
    }
    let added: usize = changes.iter().map(|(_, new)| new.len()).sum();
    let mut out = BytesMut::with_capacity(body.len() + added);
    splice(&mut out, body, &mut edits);
    Some(out.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &'static str) -> Option<String> {
        let body = Bytes::from_static(text.as_bytes());
        let content = super::super::body(&body).ok()?;
        let edited = without_nulls(&content, &body)?;
        Some(String::from_utf8(edited.to_vec()).expect("text"))
    }

    #[test]
    fn members_that_are_null_count_as_absent_and_no_other_member_changes() {
        for (text, expected) in [
            (
                r#" {"jsonrpc":"2.0","id":1e2,"method":"tools/call","params":{"arguments" : null ,"name":"null","x":null}}"#,
                r#" {"jsonrpc":"2.0","id":1e2,"method":"tools/call","params":{"arguments" : {} ,"name":"null","x":null}}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"p","arguments":null}}"#,
                r#"{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"p","arguments":{}}}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","method":"notifications/initialized","params":null}"#,
                r#"{"jsonrpc":"2.0","method":"notifications/initialized","params":{}}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params": {"cursor":null, "x":1}}"#,
                r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params": {"x":1}}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":null}}"#,
                r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{}}}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":null}}"#,
                r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{}}}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":null,"_meta":null}}"#,
                r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{}}}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":null,"method":"notifications/initialized","error":null}"#,
                r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
            ),
            (
                r#"[{"jsonrpc":"2.0","id":1,"method":"ping","result":null}]"#,
                r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#,
            ),
            (
                r#"[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":null}},5,
                    {"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"b","arguments":null}}]"#,
                r#"[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{}}},5,
                    {"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"b","arguments":{}}}]"#,
            ),
        ] {
            assert_eq!(read(text).as_deref(), Some(expected));
        }
    }

    #[test]
    fn other_nulls_stay() {
        for text in [
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"a":null}}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"x/y","params":{"arguments":null}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"null"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":null}"#,
            r#"[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"a":null}}}]"#,
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
