//! Corrections of servers' lists for strict clients. The first byte chooses the kind of the list.

#![no_main]

use std::collections::HashSet;

use serde_json::Value;
use serde_json::value::RawValue;
use tooldock_protocol::version::Era;
use tooldock_sessions::catalogue::cursor::of_server;
use tooldock_sessions::catalogue::{ListKind, mend};

const KINDS: [ListKind; 4] = [
    ListKind::Tools,
    ListKind::Resources,
    ListKind::Templates,
    ListKind::Prompts,
];

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((&kind, page)) = input.split_first() else {
        return;
    };
    let Ok(page) = std::str::from_utf8(page) else {
        return;
    };
    let Ok(before) = serde_json::from_str::<Value>(page) else {
        return;
    };
    let kind = KINDS[usize::from(kind) % KINDS.len()];
    for era in [Era::Legacy, Era::Modern] {
        let mended = mend::page((kind, era), page, None, &mut HashSet::new());
        let Some((text, mends)) = mended else {
            continue;
        };
        assert!(!mends.is_empty(), "a correction is reported");
        let after: Value = serde_json::from_str(&text).expect("a corrected page is JSON");
        let again = mend::page((kind, era), &text, None, &mut HashSet::new());
        assert_eq!(again.map(|it| it.0), None, "corrected twice");
        let cursor = (&before["nextCursor"], &after["nextCursor"]);
        if let (before, Value::String(_)) = cursor
            && !before.is_string()
        {
            let written = RawValue::from_string(after["nextCursor"].to_string()).expect("JSON");
            let own = of_server(&written).expect("a cursor comes back");
            assert_eq!(
                &serde_json::from_str::<Value>(own.get()).expect("JSON"),
                before
            );
        }
    }
});
