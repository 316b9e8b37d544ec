//! `"arguments": null` of a call, as clients write it in languages that write members which hold nothing: it says `{}`.
//!
//! Read so at the entrance, once for every upstream: a server that is sent `null` refuses the call, too.

use bytes::{Bytes, BytesMut};
use memchr::memmem;

use super::splice::{Edit, splice};
use super::{Body, Key, Message};
use crate::protocol::method::TOOLS_CALL;

const NULL: &str = "null";
const PROMPTS_GET: &str = "prompts/get";

/// The body with `{}` in the place of calls' null arguments; `None` where there are none.
pub(crate) fn with_empty_arguments(content: &Body<'_>, body: &Bytes) -> Option<Bytes> {
    match content {
        Body::One(message) => {
            let null = null_arguments(message)?;
            edited(body, &[null])
        }
        Body::Batch(messages) => {
            // Most batches are not read twice for this.
            memmem::find(body, NULL.as_bytes())?;
            let read = |text| super::message(text).ok();
            let nulls = messages
                .iter()
                .filter_map(|message| null_arguments(&read(message.get())?));
            edited(body, &nulls.collect::<Vec<_>>())
        }
    }
}

/// The null itself.
fn null_arguments<'a>(message: &Message<'a>) -> Option<&'a str> {
    let Message::Request {
        method, members, ..
    } = message
    else {
        return None;
    };
    let null = members.raw(Key::Arguments).filter(|raw| *raw == NULL)?;
    matches!(&**method, TOOLS_CALL | PROMPTS_GET).then_some(null)
}

/// The body with `{}` for parts of it.
fn edited(body: &Bytes, nulls: &[&str]) -> Option<Bytes> {
    let text = std::str::from_utf8(body).ok()?;
    let edits = nulls.iter().map(|null| Edit::new(text, null, "{}"));
    let mut edits: Vec<_> = edits.collect();
    if edits.is_empty() {
        return None;
    }
    let mut out = BytesMut::with_capacity(body.len());
    splice(&mut out, body, &mut edits);
    Some(out.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &'static str) -> Option<String> {
        let body = Bytes::from_static(text.as_bytes());
        let content = super::super::body(&body).ok()?;
        let edited = with_empty_arguments(&content, &body)?;
        Some(String::from_utf8(edited.to_vec()).expect("text"))
    }

    #[test]
    fn null_arguments_of_a_call_are_empty_ones_and_no_other_byte_changes() {
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
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":null}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"x/y","params":{"arguments":null}}"#,
            r#"[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"a":null}}}]"#,
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
