//! Property tests for messages: their parts keep the client's exact bytes, whatever surrounds them.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::Value;
use serde_json::value::RawValue;

use super::{Message, message, text};
use crate::format::{ResultFormat, ResultWriter};
use crate::version::ProtocolVersion;

/// Generates ids as clients may write them, including numbers that no numeric type represents exactly.
fn id() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        any::<f64>()
            .prop_filter("JSON has no such number", |number| number.is_finite())
            .prop_map(|number| format!("{number:e}")),
        "[ -~🦀é]{0,20}".prop_map(|text| Value::from(text).to_string()),
        prop::sample::select(vec![
            "9007199254740993",
            "18446744073709551617",
            "1.5",
            "-0",
            "1e400",
            r#""""#,
            r#""🦀""#,
            r#""A\"\\""#,
        ])
        .prop_map(str::to_owned),
    ]
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map(".{0,6}", inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// Generates parameters of a request, which are always an object.
fn params() -> impl Strategy<Value = String> {
    prop::collection::hash_map(".{0,6}", json(), 0..4).prop_map(|members| {
        let object = Value::Object(members.into_iter().collect());
        // The text contains the white space of pretty printing.
        format!("{object:#}")
    })
}

fn space() -> impl Strategy<Value = String> {
    "[ \t\r\n]{0,3}"
}

proptest! {
    #[test]
    fn a_request_gives_back_the_bytes_of_its_id_and_params(
        id in id(), params in params(), space in space(), unknown in json(), first in any::<bool>(),
    ) {
        let own = format!(r#""id"{space}:{space}{id}{space}"#);
        let rest = format!(r#""x-unknown":{unknown},"method":"m/🦀","params":{space}{params}"#);
        let (one, two) = if first { (&own, &rest) } else { (&rest, &own) };
        let body = format!(r#"{space}{{"jsonrpc":"2.0",{one},{two}}}{space}"#);
        let text = text(body.as_bytes()).expect("nested no deeper than allowed");
        match message(text) {
            Ok(Message::Request { id: read, method, members }) => {
                prop_assert_eq!(read, id);
                prop_assert_eq!(&*method, "m/🦀");
                prop_assert_eq!(members.raw(crate::jsonrpc::Key::Params), Some(&*params));
            }
            other => prop_assert!(false, "{body}: {other:?}"),
        }
    }

    #[test]
    fn a_response_begins_with_the_bytes_of_the_id(id in id(), result in params()) {
        let format = ResultFormat::Legacy(ProtocolVersion::V2025_11_25);
        let mut answer = ResultWriter::begin(&id, &format, 0);
        answer.members_after(0, result.as_bytes());
        let bytes = answer.end();
        let text = std::str::from_utf8(&bytes).expect("JSON is UTF-8");
        let begin = format!(r#"{{"jsonrpc":"2.0","id":{id},"#);
        prop_assert!(text.starts_with(&begin), "{text}");
        // The message is not parsed as a `Value`, since no numeric type represents every id exactly.
        let whole: BTreeMap<String, &RawValue> = serde_json::from_str(text).expect("a message");
        let given: Value = serde_json::from_str(whole["result"].get()).expect("an object");
        let wanted: Value = serde_json::from_str(&result).expect("an object");
        prop_assert_eq!(given, wanted);
    }

    #[test]
    fn no_bytes_make_it_panic(body in prop::collection::vec(any::<u8>(), 0..64), text_like in ".{0,64}") {
        for body in [&body[..], text_like.as_bytes()] {
            if let Ok(text) = text(body) {
                let _ = message(text);
            }
        }
    }
}
