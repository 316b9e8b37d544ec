//! Property tests with any JSON: the bytes around the rewritten spans stay equal.

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use proptest::strategy::Union;

use super::*;
use crate::testing::{any_json, object, request, response, space};

/// The raw JSON of a name: a string or a number.
fn any_name() -> impl Strategy<Value = String> {
    Union::new([
        "-?(0|[1-9][0-9]{0,20})(\\.[0-9]{1,3})?".boxed(),
        "\"([ -!#-\\[\\]-~🦀]|\\\\u00[4-6][0-9a-f]){0,12}\"".boxed(),
    ])
}

/// Members with unique names that no reader here knows.
fn strangers() -> impl Strategy<Value = Vec<(String, String)>> {
    proptest::collection::vec(("x-[a-z\\-]{0,6}", any_json()), 0..4).prop_map(|members| {
        let number =
            |(at, (name, value)): (usize, (String, String))| (format!("{name}{at}"), value);
        members.into_iter().enumerate().map(number).collect()
    })
}

/// An object of unknown members with one known member somewhere among them.
fn with_member(
    mut strangers: Vec<(String, String)>,
    name: &str,
    value: &str,
    at: usize,
    gap: &str,
) -> String {
    let at = at % (strangers.len() + 1);
    strangers.insert(at, (name.to_owned(), value.to_owned()));
    object(&strangers, gap)
}

/// The form of a message: unknown members on three levels, white space, and the positions of the known members.
#[derive(Debug, Clone)]
struct Shape {
    levels: [Vec<(String, String)>; 3],
    gap: String,
    at: usize,
}

fn any_shape() -> impl Strategy<Value = Shape> {
    (
        [strangers(), strangers(), strangers()],
        space(),
        0_usize..60,
    )
        .prop_map(|(levels, gap, at)| Shape { levels, gap, at })
}

impl Shape {
    /// A message whose `params` (or `result`) hold this text; `head` has its other known members.
    fn message(&self, head: &[(&str, &str)], part: Option<(&str, &str)>) -> String {
        let mut members = self.levels[0].clone();
        for (turn, (name, value)) in head.iter().chain(part.iter()).enumerate() {
            let at = (self.at + turn * 7) % (members.len() + 1);
            members.insert(at, ((*name).to_owned(), (*value).to_owned()));
        }
        object(&members, &self.gap)
    }

    /// Parameters with a member.
    fn params(&self, name: &str, value: &str) -> String {
        with_member(self.levels[1].clone(), name, value, self.at / 3, &self.gap)
    }

    /// Parameters with a member of `_meta`.
    fn meta(&self, name: &str, value: &str) -> String {
        let meta = with_member(self.levels[2].clone(), name, value, self.at / 5, &self.gap);
        self.params("_meta", &meta)
    }
}

const V: (&str, &str) = ("jsonrpc", "\"2.0\"");

fn text(bytes: Option<Vec<u8>>) -> Option<String> {
    bytes.map(|bytes| String::from_utf8(bytes).expect("text"))
}

proptest! {
    #[test]
    fn a_requests_id_and_token_are_replaced_and_nothing_else(
        shape in any_shape(), id in any_name(), token in any_name(), ours in 0_u64..1 << 53,
    ) {
        let build = |id: &str, token: &str| {
            let params = shape.meta("progressToken", token);
            shape.message(&[V, ("id", id), ("method", "\"tools/call\"")], Some(("params", &params)))
        };
        let request = request(&build(&id, &token));
        prop_assert_eq!(request.token(), Some(token.as_str()));
        let mut out = BytesMut::new();
        let ours = ours.to_string();
        request.write_as(&mut out, &ours, None);
        let expected = build(&ours, &ours);
        prop_assert_eq!(&out[..], expected.as_bytes());
    }

    #[test]
    fn a_request_gets_other_parameters_and_keeps_the_rest(
        shape in any_shape(), id in any_name(), token in any_name(), ours in 0_u64..1 << 53, has in any::<bool>(),
    ) {
        let build = |id: &str, params: &str| {
            shape.message(&[V, ("id", id), ("method", "\"x\"")], Some(("params", params)))
        };
        let own = if has { build(&id, "{}") } else { shape.message(&[V, ("id", &id), ("method", "\"x\"")], None) };
        let params = |token: &str| format!(r#"{{"cursor":1.50,"_meta":{{"progressToken":{token}}}}}"#);
        let meta = format!(r#"{{"progressToken":{token}}}"#);
        let with_meta = [(Key::Cursor, Some("1.50")), (Key::Meta, Some(&*meta))];
        let other = request(&own).edited(&with_meta).expect("JSON");
        prop_assert_eq!(other.token(), Some(token.as_str()));
        let mut out = BytesMut::new();
        let ours = ours.to_string();
        other.write_as(&mut out, &ours, None);
        let expected = if has {
            build(&ours, &params(&ours))
        } else {
            let own = shape.message(&[V, ("id", &ours), ("method", "\"x\"")], None);
            let open = own.strip_suffix('}').expect("an object");
            format!("{open},\"params\":{}}}", params(&ours))
        };
        prop_assert_eq!(&out[..], expected.as_bytes());
    }

    #[test]
    fn a_response_gets_another_id_and_keeps_the_rest(
        shape in any_shape(), id in any_name(), other in any_name(), result in any_json(), error in any::<bool>(),
        new in any_json(),
    ) {
        let name = if error { "error" } else { "result" };
        let build = |id: &str, part: &str| shape.message(&[V, ("id", id)], Some((name, part)));
        let answer = response(&build(&id, &result));
        prop_assert_eq!(text(Some(answer.with_id(&other))), Some(build(&other, &result)));
        prop_assert_eq!((answer.payload(), answer.is_error()), (result.as_bytes(), error));
        let changed = answer.with_payload(Bytes::copy_from_slice(new.as_bytes()));
        prop_assert_eq!(text(Some(changed.with_id(&other))), Some(build(&other, &new)));
    }

    #[test]
    fn a_cancellation_names_another_request_and_keeps_the_rest(
        shape in any_shape(), id in any_name(), other in any_name(),
    ) {
        let build = |id: &str| {
            let params = shape.params("requestId", id);
            shape.message(&[V, ("method", "\"notifications/cancelled\"")], Some(("params", &params)))
        };
        prop_assert_eq!(text(with_request_id(&build(&id), &other)), Some(build(&other)));
        let params = shape.params("requestId", &id);
        let members = Members::of_params(&params).expect("an object");
        prop_assert_eq!(members.name(Key::RequestId), Some(id.as_str()));
    }

    #[test]
    fn one_line_is_the_same_json_with_no_line_break(value in any_json()) {
        let mut line = value.clone().into_bytes();
        on_one_line(&mut line);
        prop_assert!(memchr::memchr2(b'\r', b'\n', &line).is_none());
        let plain: String = value.chars().map(|c| if matches!(c, '\r' | '\n') { ' ' } else { c }).collect();
        prop_assert_eq!(line, plain.into_bytes());
    }

    #[test]
    fn nothing_is_rewritten_in_what_has_no_names(value in any_json(), text in ".{0,40}") {
        if let Some(members) = Members::of_params(&value) {
            let named = [Key::ProgressToken, Key::Subscription].map(|key| members.name(key));
            prop_assert_eq!(named, [None, None]);
        }
        prop_assert_eq!(with_request_id(&text, "1"), None);
    }
}

fn params(text: &str) -> Members<'_> {
    Members::of_params(text).expect("JSON")
}

#[test]
fn an_escaped_name_is_the_same_name() {
    let found = params(r#"{"_m\u0065ta":{"progress\u0054oken":"a"}}"#);
    assert_eq!(found.name(Key::ProgressToken), Some("\"a\""));
}

#[test]
fn a_name_deeper_or_elsewhere_or_of_another_kind_is_none() {
    for text in [
        r#"{"arguments":{"_meta":{"progressToken":1}}}"#,
        r#"{"_meta":{"x":{"progressToken":1}}}"#,
        r#"{"_meta":[{"progressToken":1}]}"#,
        r#"{"_meta":"progressToken"}"#,
        r#"{"_meta":{"progressToken":null}}"#,
        r#"{"_meta":{"progressToken":{"a":1}}}"#,
        r#"{"_meta":null,"x":"progressToken"}"#,
        r#"[{"progressToken":1}]"#,
        r#""progressToken""#,
    ] {
        let found = params(text);
        assert_eq!(found.name(Key::ProgressToken), None, "{text}");
        assert_eq!(found.name(Key::Progress), None, "{text}");
    }
}

#[test]
fn a_name_that_is_there_twice_is_refused() {
    for text in [
        r#"{"_meta":{"progressToken":1,"progressToken":2}}"#,
        r#"{"_meta":{"progressToken":1,"progress\u0054oken":2}}"#,
        r#"{"_meta":{"progressToken":1},"_meta":{}}"#,
        r#"{"requestId":1,"requestId":1}"#,
    ] {
        assert!(params(text).unique().is_err(), "{text}");
    }
}

/// Members that parsers which build values would change, drop or refuse.
const AWKWARD: &str = r#""big":1e400,"long":12345678901234567890,"zero":-0.0,"tail":1.50,"twice":1,"twice":2,"\u0074ext":"\u00e9\ud83e\udd80\/\ud800", "gap" : [ ] "#;

#[test]
fn awkward_bytes_survive_both_ways() {
    for id in [
        "1e400",
        "12345678901234567890",
        "-0",
        r#""\u0041\ud800\/""#,
        &"9".repeat(1024),
    ] {
        let build = |id: &str, token: &str| {
            format!(
                r#"{{{AWKWARD},"json\u0072pc":"\u0032.0","i\u0064":{id},"m\u0065thod":"tools\/call","p\u0061rams":{{"_m\u0065ta":{{"progress\u0054oken":{token},{AWKWARD}}},{AWKWARD}}}}}"#
            )
        };
        let request = request(&build(id, id));
        let mut out = BytesMut::new();
        request.write_as(&mut out, "65536", None);
        assert_eq!(out, build("65536", "65536"));
        for part in ["result", "error"] {
            let build = |id: &str| {
                format!(r#"{{{AWKWARD},"{part}":{{{AWKWARD}}},"id": {id} ,"jsonrpc":"2.0"}}"#)
            };
            let answer = response(&build("65536"));
            assert_eq!(text(Some(answer.with_id(id))), Some(build(id)));
        }
    }
}

#[test]
fn only_progress_gets_another_token() {
    let renamed = |message: &str| {
        let message = with_progress_token(message, "\"b\"");
        message.map(|out| String::from_utf8(out).unwrap())
    };
    let progress = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7,"progress":1.0}}"#;
    assert_eq!(renamed(progress), Some(progress.replace('7', "\"b\"")));
    let other = progress.replace("notifications/progress", "notifications/x");
    assert_eq!(renamed(&other), None);
}

#[test]
fn the_gateways_id_of_a_request_comes_into_its_metadata_and_nothing_else_changes() {
    let written = |params: &str| {
        let message = format!(r#"{{"jsonrpc":"2.0","id":"a","method":"tools/call"{params}}}"#);
        let mut out = BytesMut::new();
        request(&message).write_as(&mut out, "7", Some("r-1"));
        String::from_utf8(out.to_vec()).expect("text")
    };
    let message =
        |params: &str| format!(r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call"{params}}}"#);
    for (params, expected) in [
        (
            r#","params":{"name":"t","n":1.50}"#,
            r#","params":{"name":"t","n":1.50,"_meta":{"tooldock/request_id":"r-1"}}"#,
        ),
        (
            r#","params":{ }"#,
            r#","params":{ "_meta":{"tooldock/request_id":"r-1"}}"#,
        ),
        (
            r#","params":{"n":1.50,"_meta":{"progressToken": "p","x":1.50}}"#,
            r#","params":{"n":1.50,"_meta":{"progressToken": 7,"x":1.50,"tooldock/request_id":"r-1"}}"#,
        ),
        (
            r#","params":{"_meta":{ },"n":1}"#,
            r#","params":{"_meta":{ "tooldock/request_id":"r-1"},"n":1}"#,
        ),
        // A client's own member of that name is not passed on, in any spelling.
        (
            r#","params":{"_meta":{"tooldock\/request_id":"mine","progressToken":1}}"#,
            r#","params":{"_meta":{"tooldock/request_id":"r-1","progressToken":7}}"#,
        ),
        // There is no object to insert it into.
        (r#","params":{"_meta":null}"#, r#","params":{"_meta":null}"#),
        ("", ""),
    ] {
        assert_eq!(written(params), message(expected), "{params}");
    }
    let odd = request(r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{}}"#);
    let mut out = BytesMut::new();
    odd.write_as(&mut out, "7", Some("a\"b"));
    let value: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
    assert_eq!(value["params"]["_meta"]["tooldock/request_id"], "a\"b");
}
