//! Edits of a member of a JSON object. The input has three lines: key, value, object.

#![no_main]

use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tooldock_protocol::jsonrpc::spans::{MemberEdit, edited, find, may_hold};

libfuzzer_sys::fuzz_target!(|input: &str| {
    let mut lines = input.splitn(3, '\n');
    let mut line = || lines.next().unwrap_or_default();
    let (key, value, object) = (line(), line(), line());
    let Ok(value) = serde_json::from_str::<&RawValue>(value).map(RawValue::get) else {
        return;
    };
    // `spans` reads only valid JSON. `Map` keeps the last of repeated keys, whereas `edited` refuses repeated keys.
    let Ok(mut expected) = serde_json::from_str::<Map<String, Value>>(object) else {
        return;
    };
    let set = edited(object, &[MemberEdit::Set(key, value.into())]);
    let default = edited(object, &[MemberEdit::Default(key, value.into())]);
    let removed = edited(object, &[MemberEdit::Remove(key)]);
    assert_eq!(
        (set.is_some(), default.is_some()),
        (removed.is_some(), removed.is_some())
    );
    let (Some(set), Some(default), Some(removed)) = (set, default, removed) else {
        return;
    };
    let read = |text: &str| serde_json::from_str::<Map<String, Value>>(text).expect("an object");
    let Ok(parsed) = serde_json::from_str::<Value>(value) else {
        return;
    };
    let before = expected.clone();
    let known = expected.contains_key(key);
    assert!(!known || may_hold(object.as_bytes(), key));
    assert_eq!(find(object, key).is_some(), known);
    expected.insert(key.to_owned(), parsed);
    assert_eq!(read(&set), expected);
    assert_eq!(find(&set, key), Some(value));
    assert_eq!(
        read(&default),
        if known { before.clone() } else { expected }
    );
    let mut without = before;
    without.remove(key);
    assert_eq!(read(&removed), without);
});
