//! Messages for tests: parsed requests and responses, and any JSON as text.

use bytes::Bytes;
use proptest::prelude::*;
use proptest::strategy::Union;

use crate::jsonrpc::splice::span;
use crate::jsonrpc::{self, Message, Request, Response};

/// Parses a client's request.
pub fn request(text: &str) -> Request {
    let Ok(Message::Request { members, .. }) = jsonrpc::message(text) else {
        panic!("no request: {text}");
    };
    members.unique().expect("no name twice");
    members.to_request(Bytes::copy_from_slice(text.as_bytes()))
}

/// Parses a response.
pub fn response(text: &str) -> Response {
    let Ok(Message::Response { id, outcome, .. }) = jsonrpc::message(text) else {
        panic!("no response: {text}");
    };
    let message = Bytes::copy_from_slice(text.as_bytes());
    let (Ok(part) | Err(part)) = outcome;
    Response::new(
        message,
        span(text, id),
        span(text, part.get()),
        outcome.is_err(),
    )
}

/// Raw JSON of any kind, in every valid spelling.
pub fn any_json() -> BoxedStrategy<String> {
    let leaf = Union::new([
        "-?(0|[1-9][0-9]{0,25})(\\.[0-9]{1,5})?([eE][+-]?[0-9]{1,3})?".boxed(),
        "\"([ -!#-\\[\\]-~é🦀]|\\\\[\"\\\\/bfnrt]|\\\\u[0-9a-fA-F]{4}){0,12}\"".boxed(),
        "true|false|null".boxed(),
    ]);
    leaf.prop_recursive(4, 24, 6, |inner| {
        let array =
            proptest::collection::vec((space(), inner.clone(), space()), 0..5).prop_map(|items| {
                let items: Vec<_> = items.iter().map(|(a, x, b)| format!("{a}{x}{b}")).collect();
                format!("[{}]", items.join(","))
            });
        let members = proptest::collection::vec(("[a-z_]{0,9}", inner), 0..5);
        Union::new([
            array.boxed(),
            (members, space())
                .prop_map(|(members, gap)| {
                    let members: Vec<_> = members
                        .iter()
                        .enumerate()
                        .map(|(at, (name, value))| (format!("{name}{at}"), value.clone()))
                        .collect();
                    object(&members, &gap)
                })
                .boxed(),
        ])
    })
    .boxed()
}

/// White space between tokens.
pub fn space() -> impl Strategy<Value = String> {
    "[ \t\r\n]{0,2}"
}

/// An object of these members: names, and values as raw JSON. `gap` stands around each token.
pub fn object(members: &[(String, String)], gap: &str) -> String {
    let members: Vec<_> = members
        .iter()
        .map(|(name, value)| format!("{gap}\"{name}\"{gap}:{gap}{value}{gap}"))
        .collect();
    format!("{{{}}}", members.join(","))
}
