//! Validation of JSON values: accepts the texts that `serde_json` accepts, unless they are nested too deeply.

#![no_main]

use serde_json::value::RawValue;
use tooldock_base::json::is_value;
use tooldock_protocol::jsonrpc::{self, depth};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let mut keys = 0;
    let found = is_value(text.as_bytes(), |key| {
        keys += 1;
        assert!(key.len() >= 2 && key.starts_with(b"\"") && key.ends_with(b"\""));
    });
    let is_deep = depth::exceeds(text.as_bytes(), jsonrpc::MAX_DEPTH);
    let expected = serde_json::from_str::<&RawValue>(text).is_ok() && !is_deep;
    assert_eq!(found, expected);
});
