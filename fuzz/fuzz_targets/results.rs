//! Corrections of servers' results and errors for strict clients. The first byte chooses the method.

#![no_main]

use serde_json::Value;
use tooldock_protocol::bridge::{errors, nulls, shapes};
use tooldock_protocol::jsonrpc::plain::plain;
use tooldock_protocol::version::Era;

const METHODS: [&str; 4] = [
    "tools/call",
    "resources/read",
    "prompts/get",
    "completion/complete",
];

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((&method, text)) = input.split_first() else {
        return;
    };
    if serde_json::from_slice::<Value>(text).is_err() {
        return;
    }
    let method = METHODS[usize::from(method) % METHODS.len()];
    let is_json = |text: &str| drop(serde_json::from_str::<Value>(text).expect("JSON"));
    for era in [Era::Legacy, Era::Modern] {
        if let Some(mended) = nulls::of_result(method, era, text) {
            is_json(&mended);
            assert_eq!(
                nulls::of_result(method, era, mended.as_bytes()),
                None,
                "{mended}"
            );
        }
        if let Some(mended) = shapes::of_result(method, era, text) {
            is_json(&mended);
            assert_eq!(
                shapes::of_result(method, era, mended.as_bytes()),
                None,
                "{mended}"
            );
        }
    }
    if let Some(mended) = errors::mended(text) {
        is_json(&mended);
        assert_eq!(errors::mended(mended.as_bytes()), None, "{mended}");
    }
    let text = std::str::from_utf8(text).expect("JSON is UTF-8");
    if let Some(mended) = plain(text, None) {
        is_json(&mended);
        assert_eq!(plain(&mended, None), None, "{mended}");
    }
});
