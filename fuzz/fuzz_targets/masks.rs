//! Masking of credentials in displayed configurations: a recognised credential is masked wherever it stands.

#![no_main]

use serde_json::{Map, Value};
use tooldock_base::mask;

const TOKEN: &str = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";
const PASSWORD: &str = "hunter2-and-more";

libfuzzer_sys::fuzz_target!(|input: &str| {
    assert!(!mask::text(&format!("{input} {TOKEN}")).contains(TOKEN));
    assert!(!mask::text(&format!("{TOKEN} {input}")).contains(TOKEN));
    let login = format!("{input} https://user:{PASSWORD}@host.example/path");
    assert!(
        !mask::text(&login).contains(PASSWORD),
        "{:?}",
        mask::text(&login)
    );
    let login = format!("https://user:{PASSWORD}@{input}");
    assert!(
        !mask::address(&login).contains(PASSWORD),
        "{:?}",
        mask::address(&login)
    );
    let _ = (mask::url(input), mask::value(input));
    let arguments = mask::arguments(input.lines());
    assert_eq!(arguments.len(), input.lines().count());
    if let Ok(entry) = serde_json::from_str::<Map<String, Value>>(input)
        && let Some(place) = mask::pasted(&entry)
        && !place.contains("the name of")
        && !input.contains(mask::MASK)
    {
        let entry = Value::Object(entry);
        assert_ne!(mask::server(&entry), entry, "{place} is refused, and shown");
    }
});
