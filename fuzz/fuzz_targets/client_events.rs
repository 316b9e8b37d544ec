//! Framing of server-sent events for clients: data stays one event, whatever its bytes are.

#![no_main]

use tooldock_sessions::stream::frame::{message, read};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let frame = message(None, data);
    let (id, read) = read(&frame);
    assert_eq!(id, None);
    let expected: Vec<u8> = data
        .iter()
        .map(|byte| match byte {
            b'\r' | b'\n' => b' ',
            other => *other,
        })
        .collect();
    assert_eq!(read.unwrap_or_default(), expected);
    assert!(!frame.contains(&b'\r'));
    let end = frame.windows(2).position(|it| it == b"\n\n");
    assert_eq!(end, Some(frame.len() - 2), "one event");
});
