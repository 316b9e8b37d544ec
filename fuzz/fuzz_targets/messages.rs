//! Index of the members of a JSON-RPC message, compared with `serde_json`.

#![no_main]

use std::collections::HashMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use tooldock_protocol::jsonrpc::{self, Body, Key, MESSAGES_MAX, Members, Message};

/// Object as the first value of each key.
#[derive(Default)]
struct Object<'a>(HashMap<String, &'a RawValue>);

impl<'a> Object<'a> {
    /// Returns the value of a key, if it is an object.
    fn below(&self, key: Key) -> Option<Object<'a>> {
        serde_json::from_str(self.0.get(key.name())?.get()).ok()
    }
}

impl<'de> Deserialize<'de> for Object<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Object<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut object = Object::default();
                while let Some((key, value)) = map.next_entry()? {
                    object.0.entry(key).or_insert(value);
                }
                Ok(object)
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

fn is_name(raw: &str) {
    let value: serde_json::Value = serde_json::from_str(raw).unwrap_or_else(|error| {
        // Ids may be numbers that no number type of serde_json can hold.
        assert!(error.to_string().contains("out of range"), "{raw}: {error}");
        0.into()
    });
    assert!(value.is_string() || value.is_number());
}

fn check(members: &Members<'_>) {
    let message: Object<'_> = serde_json::from_str(members.message()).expect("an object");
    let same = |object: &Object<'_>, keys: &[Key]| {
        for key in keys {
            let expected = object.0.get(key.name()).map(|value| value.get());
            assert_eq!(members.raw(*key), expected, "{}", key.name());
        }
    };
    let keys = [
        Key::JsonRpc,
        Key::Id,
        Key::Method,
        Key::Params,
        Key::Result,
        Key::Error,
    ];
    same(&message, &keys);
    // Below a repeated key, the index has members of several objects; the gateway refuses such messages.
    if members.unique().is_err() {
        return;
    }
    let Some(params) = message.below(Key::Params) else {
        return;
    };
    same(
        &params,
        &[
            Key::Name,
            Key::Arguments,
            Key::Uri,
            Key::Cursor,
            Key::Meta,
            Key::RequestId,
        ],
    );
    if let Some(meta) = params.below(Key::Meta) {
        same(
            &meta,
            &[Key::ProgressToken, Key::ProtocolVersion, Key::RelatedTask],
        );
    }
}

libfuzzer_sys::fuzz_target!(|body: &[u8]| {
    match jsonrpc::body(body) {
        Ok(Body::One(message)) => match message {
            Message::Request { id, members, .. } => {
                is_name(id);
                check(&members);
            }
            Message::Notification { members, .. } => check(&members),
            Message::Response { id, members, .. } => {
                is_name(id);
                // A response that is nested too deeply is indexed only by its outermost members.
                if !jsonrpc::depth::exceeds(body, jsonrpc::MAX_DEPTH) {
                    check(&members);
                }
            }
        },
        Ok(Body::Batch(messages)) => assert!(messages.len() <= MESSAGES_MAX + 1),
        Err(invalid) => {
            if let Some(id) = invalid.id {
                is_name(id);
            }
        }
    }
});
